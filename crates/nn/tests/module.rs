//! Names, parameters, modes, states; by derive and by hand.

use crate::common::{assert_close, cpu, f64s, values};
use isograd_core::ops::{Conv, ConvTranspose};
use isograd_core::{DType, Kind, Result, Shape, Tensor, no_grad};
use isograd_nn::{
    Activation, Averaged, Averaging, BatchNorm2d, Bilinear, Conv2d, ConvTranspose1d, Dropout, Embedding, Flatten,
    Forward, Gelu, Init, Layer, LayerNorm, LeakyRelu, Linear, LoadFloats, LoadNames, LoadOptions, Lstm, Module,
    Optimizer, RecurrentOptions, Relu, Sequential, Sgd, Softmax, SpectralNorm, StateDict, Unmatched, Visitor,
    WeightNorm,
};
use std::collections::BTreeMap;
use std::fmt::Debug;

#[derive(Module)]
struct Mlp {
    fc1: Linear,
    dropout: Dropout,
    fc2: Linear,
    blocks: Vec<Linear>,
    head: Option<Linear>,
    none: Option<Linear>,
    boxed: Box<dyn Layer>,
    pair: [Linear; 2],
    mean: Tensor,
    #[module(skip)]
    width: usize,
}

impl Mlp {
    fn new(init: &Init) -> Result<Mlp> {
        let linear = |i, o| Linear::new(i, o, init);
        Ok(Mlp {
            fc1: linear(3, 4)?,
            dropout: Dropout::new(0.5, init),
            fc2: linear(4, 2)?,
            blocks: vec![linear(2, 2)?, Linear::without_bias(2, 2, init)?],
            head: Some(linear(2, 1)?),
            none: None,
            boxed: Box::new(linear(1, 1)?),
            pair: [linear(1, 2)?, linear(2, 1)?],
            mean: Tensor::zeros(3, DType::F32, init.device())?,
            width: 4,
        })
    }
}

struct ByHand {
    fc1: Linear,
    fc2: Linear,
}

impl Module for ByHand {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part("fc1", &self.fc1);
        visitor.part("fc2", &self.fc2);
    }
}

#[derive(Module)]
struct Residual<M>(M);

impl<M: Forward> Forward for Residual<M> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.add(&self.0.forward(x)?)
    }
}

#[derive(Module)]
struct Nothing;

#[derive(Module)]
#[module(crate = isograd_nn)]
struct WithPath {
    r#type: Linear,
}

fn names(tensors: &[(String, Tensor)]) -> Vec<&str> {
    tensors.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn derive_names_every_part() {
    let model = Mlp::new(&Init::new(&cpu())).unwrap();
    let named = model.named_parameters();
    let expected = [
        "fc1.weight",
        "fc1.bias",
        "fc2.weight",
        "fc2.bias",
        "blocks.0.weight",
        "blocks.0.bias",
        "blocks.1.weight",
        "head.weight",
        "head.bias",
        "boxed.weight",
        "boxed.bias",
        "pair.0.weight",
        "pair.0.bias",
        "pair.1.weight",
        "pair.1.bias",
    ];
    assert_eq!(names(&named), expected);
    assert_eq!(names(&model.named_buffers()), ["mean"]);
    assert_eq!(model.num_parameters(), 12 + 4 + 8 + 2 + 4 + 2 + 4 + 2 + 1 + 1 + 1 + 2 + 2 + 2 + 1);
    assert_eq!(model.width, 4);
    let modules = model.named_modules();
    let modules: Vec<(&str, &str)> =
        modules.iter().map(|(name, kind)| (name.as_str(), kind.rsplit("::").next().unwrap())).collect();
    assert!(modules.contains(&("", "Mlp")) && modules.contains(&("blocks.1", "Linear")), "{modules:?}");
    assert!(!modules.iter().any(|(name, _)| ["mean", "fc1.weight", "none"].contains(name)), "{modules:?}");
}

#[test]
fn parameters_are_frozen_and_trained_by_their_names() {
    let init = Init::new(&cpu());
    let linear = || Linear::new(2, 2, &init).unwrap();
    let model = Sequential::new().push(linear()).push(linear()).push(linear());
    let trained = || -> Vec<String> {
        let named = model.named_parameters().into_iter().filter(|(_, t)| t.requires_grad());
        named.map(|(name, _)| name).collect()
    };
    model.freeze();
    model.unfreeze_matching("1.*").unwrap();
    model.unfreeze_matching("*.bias").unwrap();
    assert_eq!(trained(), ["0.bias", "1.weight", "1.bias", "2.bias"]);
    model.freeze_matching("1.*").unwrap();
    assert_eq!(trained(), ["0.bias", "2.bias"]);
    assert_eq!(model.unfreeze_matching("3.*").unwrap_err().kind(), Kind::Value);
    assert_eq!(trained(), ["0.bias", "2.bias"]);
}

#[test]
fn layers_print_their_extents() {
    let init = Init::new(&cpu());
    let strided = Conv { stride: [2, 2], groups: 2, ..Conv::default() };
    let both = RecurrentOptions { layers: 2, bidirectional: true, ..RecurrentOptions::default() };
    let printed: [(&dyn Debug, &str); 10] = [
        (&Linear::new(784, 128, &init).unwrap(), "Linear(784 -> 128, bias)"),
        (&Linear::without_bias(3, 2, &init).unwrap(), "Linear(3 -> 2)"),
        (&Bilinear::new(3, 4, 2, &init).unwrap(), "Bilinear(3 x 4 -> 2, bias)"),
        (
            &Conv2d::with_options(4, 8, [3, 3], &strided, &init).unwrap(),
            "Conv2d(4 -> 8, kernel [3, 3], bias, stride [2, 2], groups 2)",
        ),
        (
            &ConvTranspose1d::without_bias(4, 6, [3], &ConvTranspose { groups: 2, ..Default::default() }, &init)
                .unwrap(),
            "ConvTranspose1d(4 -> 6, kernel [3], groups 2)",
        ),
        (&Embedding::new(100, 16, &init).unwrap(), "Embedding(100 -> 16)"),
        (&Dropout::new(0.5, &init), "Dropout(0.5)"),
        (&BatchNorm2d::new(8, &init).unwrap(), "BatchNorm2d(8, eps 0.00001)"),
        (&LayerNorm::new(16, &init).unwrap(), "LayerNorm([16], eps 0.00001)"),
        (&Lstm::with_options(8, 32, &both, &init).unwrap(), "Lstm(8 -> 32, layers 2, bidirectional true)"),
    ];
    for (layer, text) in printed {
        assert_eq!(format!("{layer:?}"), text);
    }
    let layers = Sequential::new().push(Linear::new(3, 4, &init).unwrap()).push(Relu).push(Tensor::tanh);
    assert_eq!(format!("{layers:?}"), "Sequential(Linear(3 -> 4, bias), Relu, tanh)");
    // A module of a program's own has the shapes of its parameters.
    let own: Box<dyn Layer> = Box::new(Residual(Linear::new(2, 2, &init).unwrap()));
    assert_eq!(format!("{own:?}"), "Residual { 0.weight: f32 [2, 2] on cpu, 0.bias: f32 [2] on cpu }");
    // A tensor in a public field may have any shape.
    let odd = Linear { weight: Tensor::zeros((), DType::F32, &cpu()).unwrap(), bias: None };
    assert_eq!(format!("{odd:?}"), "Linear(0 -> 0)");
}

#[test]
fn a_module_by_hand_and_others_by_derive() {
    let init = Init::new(&cpu());
    let hand = ByHand { fc1: Linear::new(2, 3, &init).unwrap(), fc2: Linear::new(3, 1, &init).unwrap() };
    assert_eq!(names(&hand.named_parameters()), ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]);
    let residual = Residual(Linear::new(2, 2, &init).unwrap());
    assert_eq!(names(&residual.named_parameters()), ["0.weight", "0.bias"]);
    let model = Sequential::new().push(residual).push(Relu);
    assert_eq!(names(&model.named_parameters()), ["0.0.weight", "0.0.bias"]);
    let path = WithPath { r#type: Linear::new(1, 1, &init).unwrap() };
    assert_eq!(names(&path.named_parameters()), ["type.weight", "type.bias"]);
    assert_eq!(Nothing.num_parameters(), 0);
}

#[test]
fn a_tied_tensor_is_one_parameter_with_two_names() {
    let init = Init::new(&cpu());
    let first = Linear::without_bias(2, 2, &init).unwrap();
    let second = Linear { weight: first.weight.clone(), bias: None };
    let tied = vec![first, second];
    assert_eq!(names(&tied.named_parameters()), ["0.weight"]);
    assert_eq!(tied.state_dict().len(), 2);
    tied.load_state_dict(&tied.state_dict()).unwrap();
}

#[test]
fn a_tied_tensor_may_be_saved_under_one_of_its_names() {
    let init = Init::new(&cpu());
    // The second weight is the first, the third its transpose.
    let first = Linear::without_bias(2, 2, &init).unwrap();
    let turned = first.weight.t().unwrap();
    let tied = vec![first.weight.clone(), first.weight.clone(), turned, init.ones((2, 2)).unwrap()];
    let whole = tied.state_dict();
    let new = Tensor::from_vec(vec![1f32, 2.0, 3.0, 4.0], (2, 2), &cpu()).unwrap();
    for kept in ["0", "1", "2"] {
        let state: StateDict = [(kept.into(), new.clone()), ("3".into(), new.clone())].into();
        tied.load_state_dict(&state).unwrap();
        let expected = if kept == "2" { [1.0, 3.0, 2.0, 4.0] } else { [1.0, 2.0, 3.0, 4.0] };
        assert_eq!((values(&tied[0]), values(&tied[1])), (expected.to_vec(), expected.to_vec()), "{kept}");
        let options = LoadOptions { names: LoadNames::Shared, ..LoadOptions::default() };
        assert_eq!(tied.load_state_dict_with(&state, &options).unwrap(), Unmatched::default());
    }
    // Two names with the same values, and with others, which change nothing.
    let turned = new.t().unwrap();
    let mut state: StateDict =
        [("0", &new), ("1", &new), ("2", &turned), ("3", &new)].map(|(n, t)| (n.into(), t.clone())).into();
    tied.load_state_dict(&state).unwrap();
    assert_eq!((values(&tied[0]), values(&tied[2])), (vec![1.0, 2.0, 3.0, 4.0], vec![1.0, 3.0, 2.0, 4.0]));
    let other = new.mul_scalar(2.0).unwrap();
    for (name, wrong) in [("1", &other), ("2", &new)] {
        let before = state.insert(name.into(), wrong.clone()).unwrap();
        state.insert("3".into(), other.clone());
        let error = tied.load_state_dict(&state).unwrap_err();
        assert_eq!(error.kind(), Kind::Value);
        assert!(
            error.message().contains(&format!("0 and {name} differ, which are one tensor of the module")),
            "{error}"
        );
        assert_eq!((values(&tied[0]), values(&tied[3])), (vec![1.0, 2.0, 3.0, 4.0], vec![1.0, 2.0, 3.0, 4.0]));
        state.insert(name.into(), before);
    }
    // Not of another's memory, nor of a part.
    for missing in [&["0", "1", "2"][..], &["3"]] {
        let mut state = whole.clone();
        state.retain(|name, _| !missing.contains(&name.as_str()));
        let error = tied.load_state_dict(&state).unwrap_err();
        assert!(missing.iter().all(|name| error.message().contains(&format!("{name} is missing"))), "{error}");
    }
    let parts = vec![first.weight.clone(), first.weight.narrow(0, 0, 1).unwrap()];
    let part: StateDict = [("1".to_string(), new.narrow(0, 0, 1).unwrap())].into();
    assert!(parts.load_state_dict(&part).unwrap_err().message().contains("0 is missing"));
}

#[test]
fn train_and_eval_reach_every_layer() {
    let init = Init::new(&cpu()).seed(1);
    let model = Mlp::new(&init).unwrap();
    let x = Tensor::ones(100, DType::F32, &cpu()).unwrap();
    let zeros = |t: &Tensor| values(t).iter().filter(|v| **v == 0.0).count();
    assert!(zeros(&model.dropout.forward(&x).unwrap()) > 20);
    model.eval();
    assert_eq!(zeros(&model.dropout.forward(&x).unwrap()), 0);
    model.train();
    assert!(zeros(&model.dropout.forward(&x).unwrap()) > 20);
    let nested = Sequential::new().push(Sequential::new().push(Dropout::new(0.5, &init)));
    nested.eval();
    assert_eq!(zeros(&nested.forward(&x).unwrap()), 0);
}

#[test]
fn zero_grad_forgets() {
    let model = Linear::new(2, 1, &Init::new(&cpu())).unwrap();
    let x = Tensor::ones((1, 2), DType::F32, &cpu()).unwrap();
    model.forward(&x).unwrap().sum(..).unwrap().backward().unwrap();
    assert_eq!(values(&model.weight.grad().unwrap()), [1.0, 1.0]);
    model.zero_grad();
    assert!(model.parameters().iter().all(|p| p.grad().is_none()));
}

#[test]
fn states_load_and_keep_their_identity() {
    let (a, b) = (Mlp::new(&Init::new(&cpu()).seed(1)).unwrap(), Mlp::new(&Init::new(&cpu()).seed(2)).unwrap());
    let before = a.parameters();
    assert_ne!(values(&a.fc1.weight), values(&b.fc1.weight));
    a.load_state_dict(&b.state_dict()).unwrap();
    for (x, y) in a.state_dict().values().zip(b.state_dict().values()) {
        assert_eq!(values(x), values(y));
        assert!(!x.shares_memory(y) && !x.requires_grad());
    }
    assert!(before.iter().zip(a.parameters()).all(|(x, y)| x.shares_memory(&y)));
}

#[test]
fn a_state_that_does_not_fit_is_named_in_full_and_changes_nothing() {
    let model = Mlp::new(&Init::new(&cpu())).unwrap();
    let before: Vec<Vec<f64>> = model.state_dict().values().map(values).collect();
    let ones = |t: &Tensor| t.ones_like().unwrap();
    let mut state: StateDict = model.state_dict().iter().map(|(k, t)| (k.clone(), ones(t))).collect();
    state.remove("fc1.bias");
    state.insert("extra".into(), ones(&model.mean));
    state.insert("mean".into(), Tensor::ones(4, DType::F32, &cpu()).unwrap());
    state.insert("fc2.bias".into(), Tensor::ones(2, DType::F64, &cpu()).unwrap());
    let error = model.load_state_dict(&state).unwrap_err();
    assert_eq!((error.op(), error.kind()), ("load_state_dict", Kind::Value));
    for part in [
        "fc1.bias is missing",
        "extra is unexpected",
        "mean is f32 [4], expected f32 [3]",
        "fc2.bias is f64 [2], expected f32 [2]",
    ] {
        assert!(error.message().contains(part), "{error}");
    }
    assert_eq!(model.state_dict().values().map(values).collect::<Vec<_>>(), before);
}

#[test]
fn what_both_have_is_loaded_if_asked() {
    let (model, other) = (Mlp::new(&Init::new(&cpu()).seed(1)).unwrap(), Mlp::new(&Init::new(&cpu()).seed(2)).unwrap());
    let before = values(model.fc1.bias.as_ref().unwrap());
    let mut state = other.state_dict();
    state.remove("fc1.bias");
    state.insert("extra".into(), other.mean.detach());
    let shared = LoadOptions { names: LoadNames::Shared, ..LoadOptions::default() };
    let unmatched = model.load_state_dict_with(&state, &shared).unwrap();
    assert_eq!((unmatched.missing, unmatched.unexpected), (vec!["fc1.bias".into()], vec!["extra".to_string()]));
    assert_eq!(values(&model.fc1.weight), values(&other.fc1.weight));
    assert_eq!(values(model.fc1.bias.as_ref().unwrap()), before);
    assert_eq!(model.load_state_dict_with(&model.state_dict(), &shared).unwrap(), Unmatched::default());
    // Shapes and dtypes must fit all the same, and then nothing has changed.
    let ones = |t: &Tensor| t.ones_like().unwrap();
    let mut state: StateDict = model.state_dict().iter().map(|(k, t)| (k.clone(), ones(t))).collect();
    state.insert("mean".into(), Tensor::ones(4, DType::F32, &cpu()).unwrap());
    state.insert("fc2.bias".into(), Tensor::ones(2, DType::F16, &cpu()).unwrap());
    let error = model.load_state_dict_with(&state, &shared).unwrap_err();
    assert_eq!(error.kind(), Kind::Value);
    assert_eq!(error.message(), "fc2.bias is f16 [2], expected f32 [2]; mean is f32 [4], expected f32 [3]");
    assert_eq!(values(&model.fc1.weight), values(&other.fc1.weight));
}

#[test]
fn floats_are_cast_if_asked() {
    let model = Linear::new(2, 2, &Init::new(&cpu())).unwrap();
    let cast = LoadOptions { floats: LoadFloats::Cast, ..LoadOptions::default() };
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let tensor = |v: &[f64], shape: &[usize]| f64s(v).reshape(shape).unwrap().cast(dtype).unwrap();
        let state = StateDict::from([
            ("weight".into(), tensor(&[1.0, -2.5, 0.5, 4.0], &[2, 2])),
            ("bias".into(), tensor(&[0.25, -1.0], &[2])),
        ]);
        assert_eq!(model.load_state_dict(&state).is_ok(), dtype == DType::F32);
        assert_eq!(model.load_state_dict_with(&state, &cast).unwrap(), Unmatched::default());
        assert_eq!((model.weight.dtype(), values(&model.weight)), (DType::F32, vec![1.0, -2.5, 0.5, 4.0]));
        assert_eq!(values(model.bias.as_ref().unwrap()), [0.25, -1.0]);
        model
            .load_state_dict(&model.state_dict().iter().map(|(k, t)| (k.clone(), t.zeros_like().unwrap())).collect())
            .unwrap();
    }
    // Integers are no floats, and names must be the same.
    let mut state = model.state_dict();
    state.insert("bias".into(), Tensor::ones(2, DType::I64, &cpu()).unwrap());
    let error = model.load_state_dict_with(&state, &cast).unwrap_err();
    assert!(error.message().contains("bias is i64 [2], expected f32 [2]"), "{error}");
    state.remove("bias");
    assert!(model.load_state_dict_with(&state, &cast).unwrap_err().message().contains("bias is missing"));
}

#[test]
fn flatten_takes_dimensions() {
    let x = Tensor::ones((2, 3, 4, 5), DType::F32, &cpu()).unwrap();
    let dims = |flatten: Flatten| flatten.forward(&x).unwrap().dims().to_vec();
    assert_eq!(dims(Flatten::default()), [2, 60]);
    assert_eq!(dims(Flatten { start: 0, ..Flatten::default() }), [120]);
    assert_eq!(dims(Flatten { end: 2, ..Flatten::default() }), [2, 12, 5]);
    assert_eq!(dims(Flatten { start: -3, end: -2 }), [2, 12, 5]);
    assert!(Flatten { start: 2, end: 1 }.forward(&x).is_err());
}

#[test]
fn sequential_runs_in_order() {
    let init = Init::new(&cpu()).dtype(DType::F64);
    let model = Sequential::new()
        .push(Flatten::default())
        .push(Linear::new(6, 5, &init).unwrap())
        .push(LeakyRelu::default())
        .push(Gelu::default())
        .push(Linear::new(5, 3, &init).unwrap())
        .push(Softmax::default());
    let x = init.normal((4, 2, 3), 0.0, 1.0).unwrap();
    let y = model.forward(&x).unwrap();
    assert_eq!(y.dims(), [4, 3]);
    assert_close(&values(&y.sum(-1).unwrap()), &[1.0; 4], 1e-12);
    let empty = Sequential::new();
    assert_eq!(values(&empty.forward(&x).unwrap()), values(&x));
    let error = model.forward(&init.normal((4, 5), 0.0, 1.0).unwrap()).unwrap_err();
    assert_eq!((error.op(), error.kind()), ("linear", Kind::Shape));
}

#[test]
fn linear_applies_an_activation() {
    let init = Init::new(&cpu()).dtype(DType::F64);
    let x = init.normal((4, 3), 0.0, 1.0).unwrap();
    for layer in [Linear::new(3, 5, &init).unwrap(), Linear::without_bias(3, 5, &init).unwrap()] {
        let y = layer.forward_with(&x, Activation::Silu).unwrap();
        assert_eq!(values(&y), values(&layer.forward(&x).unwrap().silu().unwrap()));
    }
}

#[test]
fn bilinear_is_a_form_of_two_inputs() -> Result<()> {
    let init = Init::new(&cpu()).dtype(DType::F64);
    let form = Bilinear::new(4, 3, 2, &init)?;
    assert_eq!(names(&form.named_parameters()), ["weight", "bias"]);
    assert_eq!(form.weight.dims(), [2, 4, 3]);
    // PyTorch's bound comes from the first input.
    let all = [values(&form.weight), values(form.bias.as_ref().unwrap())].concat();
    assert!(all.iter().all(|v| v.abs() <= 0.5) && all.iter().any(|v| v.abs() > 0.35), "{all:?}");
    assert!(Bilinear::without_bias(4, 3, 2, &init)?.bias.is_none());
    let (x, y) = (f64s(&[0.0, 1.0, 0.0, 0.0]), f64s(&[0.0, 0.0, 2.0]));
    let expected = form.weight.select(1, 1)?.select(1, 2)?.mul_scalar(2.0)?.add(form.bias.as_ref().unwrap())?;
    assert_eq!(values(&form.forward(&x, &y)?), values(&expected));
    Ok(())
}

#[test]
fn embedding_has_a_padding_row() {
    let options = isograd_core::ops::EmbeddingOptions { padding_idx: Some(-1), ..Default::default() };
    let layer = Embedding::with_options(3, 4, &options, &Init::new(&cpu())).unwrap();
    let index = Tensor::from_vec(vec![0i64, 2, 2], 3, &cpu()).unwrap();
    let y = layer.forward(&index).unwrap();
    assert!(values(&y)[4..].iter().all(|v| *v == 0.0) && values(&y)[..4].iter().all(|v| *v != 0.0));
    y.sum(..).unwrap().backward().unwrap();
    assert_eq!(values(&layer.weight.grad().unwrap()), [[1.0; 4], [0.0; 4], [0.0; 4]].concat());
    let outside = isograd_core::ops::EmbeddingOptions { padding_idx: Some(3), ..Default::default() };
    assert!(Embedding::with_options(3, 4, &outside, &Init::new(&cpu())).is_err());
}

#[test]
fn an_embedding_takes_a_table() {
    let table = f64s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).reshape((3, 2)).unwrap();
    let index = Tensor::from_vec(vec![2i64, 0], 2, &cpu()).unwrap();
    let options = isograd_core::ops::EmbeddingOptions { padding_idx: Some(2), ..Default::default() };
    let kept = Embedding::from_pretrained(table.clone(), &options).unwrap();
    assert_eq!(values(&kept.forward(&index).unwrap()), [5.0, 6.0, 1.0, 2.0]);
    assert!(kept.weight.shares_memory(&table) && kept.parameters().is_empty());
    assert_eq!(kept.state_dict().into_keys().collect::<Vec<_>>(), ["weight"]);
    let learnt = Embedding::from_pretrained(table.require_grad().unwrap(), &options).unwrap();
    learnt.forward(&index).unwrap().sum(..).unwrap().backward().unwrap();
    assert_eq!(values(&learnt.parameters()[0].grad().unwrap()), [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(Embedding::from_pretrained(f64s(&[1.0]), &options).unwrap_err().kind(), Kind::Shape);
}

#[test]
fn a_dropout_rate_out_of_range_is_an_error() {
    let x = Tensor::ones(3, DType::F32, &cpu()).unwrap();
    let error = Dropout::new(1.5, &Init::new(&cpu())).forward(&x).unwrap_err();
    assert_eq!(error.kind(), Kind::Attr);
}

#[test]
fn functions_are_layers_of_a_sequence() -> Result<()> {
    let init = Init::new(&cpu()).seed(1);
    let scale = 0.5;
    let model = Sequential::new()
        .push(Linear::new(3, 4, &init)?)
        .push(Tensor::relu)
        .push(move |x: &Tensor| x.mul_scalar(scale))
        .push(Box::new(Linear::new(4, 2, &init)?) as Box<dyn Layer>);
    let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["0.weight", "0.bias", "3.weight", "3.bias"]);
    let x = Tensor::from_slice(&[1.0f32, -2.0, 3.0], (1, 3), &cpu())?;
    let by_hand = |i: usize, x: &Tensor| model.get(i).expect("a layer").forward(x);
    let expected = by_hand(3, &by_hand(0, &x)?.relu()?.mul_scalar(0.5)?)?;
    assert_eq!(values(&model.forward(&x)?), values(&expected));
    Ok(())
}

#[test]
fn layers_of_a_sequence_are_reached_inserted_and_removed() -> Result<()> {
    let init = Init::new(&cpu()).seed(1);
    let mut model = Sequential::new().push(Linear::new(2, 2, &init)?).push(Linear::new(2, 2, &init)?);
    assert_eq!((model.len(), model.is_empty(), model.iter().len()), (2, false, 2));
    assert!(model.get(2).is_none());
    model.insert(1, Relu)?;
    model.insert(3, |x: &Tensor| x.neg())?;
    let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["0.weight", "0.bias", "2.weight", "2.bias"]);
    let error = model.insert(5, Relu).unwrap_err();
    assert_eq!(error.to_string(), "sequential: Index: there is no place 5, expected one in 0..=4");
    let x = Tensor::from_slice(&[1.0f32, -2.0], (1, 2), &cpu())?;
    let whole = model.forward(&x)?;
    let last = model.pop().expect("a layer");
    assert_eq!(values(&last.forward(&model.forward(&x)?)?), values(&whole));
    assert_eq!((model.len(), model.iter().rev().map(|layer| layer.num_parameters()).collect()), (3, vec![6, 0, 6]));
    while model.pop().is_some() {}
    assert_eq!(values(&model.forward(&x)?), values(&x));
    Ok(())
}

#[test]
fn a_frozen_trunk_gets_no_gradients_and_no_tape() -> Result<()> {
    let init = Init::new(&cpu()).seed(1);
    let trunk = Linear::new(3, 4, &init)?;
    let model = BTreeMap::from([("trunk".to_string(), trunk), ("head".to_string(), Linear::new(4, 2, &init)?)]);
    let x = Tensor::ones((2, 3), DType::F32, &cpu())?;
    model.set_trained(&|name| name.starts_with("head."));
    assert_eq!(model.num_parameters(), 10);
    assert_eq!(model.named_parameters().len(), 4);
    let hidden = model["trunk"].forward(&x)?;
    assert!(!hidden.requires_grad());
    let before = model["trunk"].weight.to_vec::<f32>()?;
    let mut optimizer = Sgd::new(&model).lr(0.1);
    model["head"].forward(&hidden)?.sum(..)?.backward()?;
    assert!(model["trunk"].weight.grad().is_none() && model["head"].weight.grad().is_some());
    optimizer.step()?;
    assert_eq!(model["trunk"].weight.to_vec::<f32>()?, before);
    // Tensors of an earlier state stay outside of the tape.
    let state = model.state_dict();
    model.unfreeze();
    assert!(state.values().all(|t| !t.requires_grad()));
    model["head"].forward(&model["trunk"].forward(&x)?)?.sum(..)?.backward()?;
    assert!(model["trunk"].weight.grad().is_some());
    optimizer.step()?;
    assert_ne!(model["trunk"].weight.to_vec::<f32>()?, before);
    assert_eq!(x.set_requires_grad(false).unwrap_err().kind(), Kind::Value);
    Ok(())
}

#[test]
fn a_norm_of_a_weight_leaves_the_weight_as_it_is() -> Result<()> {
    let init = Init::new(&cpu()).seed(1);
    for (shape, dim) in [(Shape::from((4, 3)), Some(0)), ((2, 3, 2).into(), Some(1)), ((4, 3).into(), None)] {
        let weight = init.normal(shape, 0.0, 1.0)?;
        let norm = WeightNorm::new(&weight, dim)?;
        assert_close(&values(&norm.weight()?), &values(&weight), 1e-5);
        norm.weight()?.square()?.sum(..)?.backward()?;
        // The size has a gradient; the direction has none along itself.
        let along = norm.v.grad().unwrap().mul(&norm.v.detach())?.sum(..)?.item::<f64>()?;
        assert!(norm.g.grad().is_some() && along.abs() < 1e-4, "{along}");
    }
    Ok(())
}

#[test]
fn a_spectral_norm_divides_by_the_largest_singular_value() -> Result<()> {
    let init = Init::new(&cpu()).seed(1);
    let weight = Tensor::from_slice(&[3.0f32, 0.0, 0.0, 0.0, -4.0, 0.0], (2, 3), &cpu())?.require_grad()?;
    let norm = SpectralNorm::new(&weight, &init)?;
    assert_eq!(norm.named_parameters().len(), 1);
    for _ in 0..20 {
        norm.weight()?;
    }
    assert_close(&values(&norm.weight()?), &[0.75, 0.0, 0.0, 0.0, -1.0, 0.0], 1e-5);
    norm.eval();
    let before = norm.state_dict()["weight_u"].to_vec::<f32>()?;
    norm.weight()?.sum(..)?.backward()?;
    assert_eq!(norm.state_dict()["weight_u"].to_vec::<f32>()?, before);
    assert!(norm.original.grad().is_some());
    Ok(())
}

#[test]
fn averages_of_weights_follow_a_model_and_are_lent_to_it() -> Result<()> {
    let init = Init::new(&cpu()).seed(1);
    let model = Linear::without_bias(1, 1, &init)?;
    let set = |v: f64| no_grad(|| model.weight.detach().fill_(v));
    set(1.0)?;
    let mut moving = Averaged::new(&model, Averaging::Exponential { decay: 0.75 })?;
    let mut mean = Averaged::new(&model, Averaging::Mean)?;
    for v in [3.0, 5.0] {
        set(v)?;
        moving.update(&model)?;
        mean.update(&model)?;
    }
    let weight = |state: &StateDict| values(&state["weight"])[0];
    assert_eq!([weight(moving.state_dict()), weight(mean.state_dict())], [2.375, 4.0]);
    let seen = mean.applied(&model, || Ok(values(&model.weight)[0]))?;
    assert_eq!([seen, values(&model.weight)[0]], [4.0, 5.0]);
    let failed: Result<()> = mean.applied(&model, || Err(isograd_core::Error::value("test", "fails")));
    assert!(failed.is_err() && values(&model.weight)[0] == 5.0);
    let mut again = Averaged::new(&model, Averaging::Mean)?;
    again.resume(mean.state_dict(), mean.updates())?;
    set(7.0)?;
    again.update(&model)?;
    assert_eq!(weight(again.state_dict()), 5.0);
    assert!(Averaged::new(&model, Averaging::Exponential { decay: 1.5 }).is_err());
    Ok(())
}
