//! Forward hooks, summaries, and activations that are computed again.

use crate::common::{cpu, values};
use isograd_core::{DType, Result, Tensor};
use isograd_nn::{
    BatchNorm1d, Called, Dropout, Forward, ForwardHook, Init, Linear, Lstm, Module, Relu, Sequential,
    TransformerEncoder, TransformerOptions, called, summary,
};
use std::cell::RefCell;
use std::rc::Rc;

#[derive(Module)]
struct Block {
    fc1: Linear,
    act: Relu,
    last: Relu,
    fc2: Option<Linear>,
}

impl Forward for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || {
            let x = self.act.forward(&self.fc1.forward(x)?)?;
            self.last.forward(&self.fc2.as_ref().unwrap().forward(&x)?)
        })
    }
}

#[derive(Module)]
struct Net {
    blocks: Vec<Block>,
    head: Sequential,
}

impl Forward for Net {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.blocks.iter().try_fold(x.clone(), |x, block| block.forward(&x))?)
    }
}

fn net() -> Net {
    let init = Init::new(&cpu()).seed(5);
    let linear = |i, o| Linear::new(i, o, &init).unwrap();
    let block = || Block { fc1: linear(3, 4), act: Relu, last: Relu, fc2: Some(linear(4, 3)) };
    Net { blocks: vec![block(), block()], head: Sequential::new().push(linear(3, 2)).push(Tensor::relu).push(Relu) }
}

fn x() -> Tensor {
    Tensor::from_vec((0..6).map(|i| i as f32 / 5.0 - 0.4).collect(), (2, 3), &cpu()).unwrap()
}

type Log = Rc<RefCell<Vec<(String, Vec<usize>)>>>;

fn logging(log: &Log) -> impl Fn(&Called<'_>) -> Result<Option<Tensor>> + 'static {
    let log = log.clone();
    move |call| {
        log.borrow_mut().push((call.name.to_string(), call.output().dims().to_vec()));
        Ok(None)
    }
}

fn names(log: &Log) -> Vec<String> {
    log.take().into_iter().map(|(name, _)| name).collect()
}

#[test]
fn every_part_tells_once_when_it_has_run() {
    let (model, log) = (net(), Log::default());
    let hook = ForwardHook::register(&model, "*", logging(&log)).unwrap();
    model.forward(&x()).unwrap();
    let block = |i: usize| {
        ["fc1", "act", "fc2", "last", ""].map(|part| format!("blocks.{i}.{part}").trim_end_matches('.').to_string())
    };
    let head = ["head.0", "head.1", "head.2", "head"].map(String::from);
    let expected: Vec<String> = block(0).into_iter().chain(block(1)).chain(head).collect();
    assert_eq!(names(&log), expected);
    drop(hook);
    model.forward(&x()).unwrap();
    assert!(log.borrow().is_empty());
}

#[test]
fn a_pattern_or_a_layer_is_hooked() {
    let (model, log) = (net(), Log::default());
    let hook = ForwardHook::register(&model, "blocks.*.fc2", logging(&log)).unwrap();
    model.forward(&x()).unwrap();
    assert_eq!(names(&log), ["blocks.0.fc2", "blocks.1.fc2"]);
    drop(hook);
    let hook = ForwardHook::register(&model.blocks[1].fc1, "", logging(&log)).unwrap();
    model.forward(&x()).unwrap();
    assert_eq!(log.take(), [(String::new(), vec![2, 4])]);
    drop(hook);
    let error = ForwardHook::register(&model, "nothing.*", logging(&log)).err().unwrap().to_string();
    assert!(error.contains("nothing.*") && error.contains("blocks.0.fc1"), "{error}");
}

/// Its forward function does not tell.
#[derive(Module)]
struct Silent {
    layer: Linear,
    others: Vec<Linear>,
}

#[test]
fn a_hook_of_a_part_that_never_tells_is_an_error() {
    let init = Init::new(&cpu());
    let linear = || Linear::new(3, 3, &init).unwrap();
    let (model, log) = (Silent { layer: linear(), others: vec![linear()] }, Log::default());
    let hook = ForwardHook::register(&model, "", logging(&log)).unwrap();
    let error = model.layer.forward(&x()).unwrap_err().to_string();
    assert!(error.contains("layer runs, but the model") && error.contains("called(self, ..)"), "{error}");
    drop(hook);
    // The hook of a list has nothing to tell, and that of all parts has those that do.
    let error = ForwardHook::register(&model, "others", logging(&log)).err().unwrap().to_string();
    assert!(error.contains("others.0") && !error.contains("others,"), "{error}");
    let _hook = ForwardHook::register(&model, "*", logging(&log)).unwrap();
    model.others[0].forward(&model.layer.forward(&x()).unwrap()).unwrap();
    assert_eq!(names(&log), ["layer", "others.0"]);
}

#[test]
fn layers_are_replaced_by_name() {
    let init = Init::new(&cpu()).seed(5);
    let mut model = net();
    let plain = values(&model.forward(&x()).unwrap());
    let failing = model.replace_matching("head.*", &mut |name, layer| match name {
        "head.0" => Ok(layer),
        _ => Err(isograd_core::Error::value("test", name)),
    });
    assert_eq!(failing.unwrap_err().message(), "head.1");
    // The layer of a place has the model's parameters.
    let weight = model.named_parameters().iter().find(|(name, _)| name == "head.0.weight").unwrap().1.clone();
    model
        .replace_matching("head.0", &mut |_, layer| {
            assert!(layer.parameters()[0].shares_memory(&weight));
            Ok(Box::new(Sequential::new().push(layer).push(Linear::new(2, 2, &init)?)))
        })
        .unwrap();
    let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[8..], ["head.0.0.weight", "head.0.0.bias", "head.0.1.weight", "head.0.1.bias"]);
    assert_ne!(values(&model.forward(&x()).unwrap()), plain);
    let error = model.replace_matching("blocks.*", &mut |_, layer| Ok(layer)).unwrap_err().to_string();
    assert!(error.contains("head.0, head.0.0, head.0.1, head.1, head.2"), "{error}");
}

#[test]
fn a_hook_gets_inputs_and_may_replace_the_output() {
    let model = net();
    let plain = values(&model.forward(&x()).unwrap());
    let hook = ForwardHook::register(&model, "head.0", |call| {
        assert_eq!(call.inputs[0].dims(), [2, 3]);
        assert_eq!(call.kind, "isograd_nn::layers::linear::Linear");
        call.output().full_like(4.0).map(Some)
    });
    let hook = hook.unwrap();
    assert_eq!(values(&model.forward(&x()).unwrap()), [4.0; 4]);
    // The gradient passes by the replaced output.
    model.forward(&x()).unwrap();
    drop(hook);
    assert_eq!(values(&model.forward(&x()).unwrap()), plain);
}

#[test]
fn hooks_run_in_the_order_of_registration_and_their_errors_are_those_of_the_model() {
    let (model, log) = (net(), Log::default());
    let first = ForwardHook::register(&model, "head", |call| call.output().full_like(1.0).map(Some)).unwrap();
    let other = log.clone();
    let second = ForwardHook::register(&model, "head", move |call| {
        other.borrow_mut().push((format!("{:?}", values(call.output())), Vec::new()));
        Ok(None)
    });
    model.forward(&x()).unwrap();
    assert_eq!(names(&log), ["[1.0, 1.0, 1.0, 1.0]"]);
    drop((first, second));
    let failing = ForwardHook::register(&model, "head.1", |call| call.output().reshape(77).map(Some)).unwrap();
    assert!(model.forward(&x()).is_err());
    drop(failing);
    model.forward(&x()).unwrap();
}

#[test]
fn recurrent_layers_tell_all_their_results() {
    let model = Lstm::new(3, 4, &Init::new(&cpu())).unwrap();
    let hook = ForwardHook::register(&model, "", |call| {
        assert_eq!(
            call.outputs.iter().map(|t| t.dims().to_vec()).collect::<Vec<_>>(),
            [vec![5, 2, 4], vec![1, 2, 4], vec![1, 2, 4]]
        );
        Ok(None)
    });
    let _hook = hook.unwrap();
    model.forward(&Tensor::ones((5, 2, 3), DType::F32, &cpu()).unwrap()).unwrap();
}

#[test]
fn a_summary_has_shapes_parameters_and_memory() {
    let model = net();
    model.blocks[0].freeze();
    model.head.eval();
    let summary = summary(&model, &x()).unwrap();
    let of_block = 3 * 4 + 4 + 4 * 3 + 3;
    assert_eq!((summary.trained, summary.frozen, summary.buffers), (of_block + 8, of_block, 0));
    assert_eq!(summary.state_bytes, 4 * (2 * of_block + 8));
    assert_eq!(summary.gradient_bytes, 4 * (of_block + 8));
    // fc1, act, fc2 and last of two blocks, and three layers of the head.
    assert_eq!(summary.output_bytes, 4 * (2 * (8 + 8 + 6 + 6) + 3 * 4));
    let fc1 = summary.layers.iter().find(|layer| layer.name == "blocks.1.fc1").unwrap();
    assert_eq!((fc1.kind.as_str(), fc1.calls, fc1.trained, fc1.frozen), ("Linear", 1, 16, 0));
    assert_eq!(fc1.outputs[0].dims(), [2, 4]);
    let text = summary.to_string();
    let rows: Vec<&str> = text.lines().collect();
    assert!(rows[1].starts_with("(model)"), "{text}");
    let row = rows.iter().find(|row| row.starts_with("head.1 ")).unwrap();
    assert!(row.contains("relu") && row.contains("[2, 2]"), "{text}");
    let widths: Vec<usize> = rows[..rows.len() - 2].iter().map(|row| row.chars().count()).collect();
    assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
    assert!(rows[rows.len() - 2].starts_with("39 trained parameters, 31 frozen ones"), "{text}");
}

#[test]
fn a_summary_leaves_modes_and_statistics_as_they_are() {
    let init = Init::new(&cpu()).seed(2);
    let model = Sequential::new()
        .push(Linear::new(3, 4, &init).unwrap())
        .push(BatchNorm1d::new(4, &init).unwrap())
        .push(Dropout::new(0.5, &init))
        .push(Dropout::new(0.5, &init));
    model.get(3).unwrap().eval();
    let (state, position) =
        (model.state_dict().into_values().map(|t| values(&t)).collect::<Vec<_>>(), init.rng().state());
    summary(&model, &x()).unwrap();
    assert_eq!(model.state_dict().into_values().map(|t| values(&t)).collect::<Vec<_>>(), state);
    assert_eq!(init.rng().state(), position);
    // The second-last layer draws, and the last does not.
    let ones = Tensor::ones((2, 4), DType::F32, &cpu()).unwrap();
    assert_ne!(values(&model.get(2).unwrap().forward(&ones).unwrap()), [1.0; 8]);
    assert_eq!(values(&model.get(3).unwrap().forward(&ones).unwrap()), [1.0; 8]);
}

/// The output, the gradients, the buffers and the position of the generator after a step.
fn step(model: &(impl Module + Forward), init: &Init, x: &Tensor) -> Vec<Vec<f64>> {
    let y = model.forward(x).unwrap();
    y.square().unwrap().sum(..).unwrap().backward().unwrap();
    let mut found = vec![values(&y), vec![init.rng().state().offset as f64]];
    found.extend(model.parameters().iter().map(|p| values(&p.grad().unwrap())));
    found.extend(model.named_buffers().iter().map(|(_, t)| values(t)));
    model.zero_grad();
    found
}

#[test]
fn recomputed_activations_have_the_same_bits() {
    let model = |init: &Init| {
        let mut model = Sequential::new();
        for _ in 0..3 {
            model = model
                .push(Linear::new(3, 3, init).unwrap())
                .push(BatchNorm1d::new(3, init).unwrap())
                .push(Tensor::tanh)
                .push(Dropout::new(0.5, init));
        }
        model
    };
    let [plain, again] = [Init::new(&cpu()).seed(8), Init::new(&cpu()).seed(8)];
    let (a, b) = (model(&plain), model(&again));
    b.recompute_activations(true).unwrap();
    let nodes = |y: &Tensor| isograd_core::tape::text(y).lines().count();
    assert!(nodes(&b.forward(&x()).unwrap()) < nodes(&a.forward(&x()).unwrap()));
    for _ in 0..2 {
        assert_eq!(step(&a, &plain, &x()), step(&b, &again, &x()));
    }
    b.recompute_activations(false).unwrap();
    assert_eq!(nodes(&b.forward(&x()).unwrap()), nodes(&a.forward(&x()).unwrap()));
}

#[test]
fn layers_of_a_transformer_are_recomputed_and_hooked() {
    let x = Tensor::from_vec((0..48).map(|i| (i as f32).sin()).collect(), (2, 3, 8), &cpu()).unwrap();
    let [plain, again] = [Init::new(&cpu()).seed(8), Init::new(&cpu()).seed(8)];
    let model = |init: &Init| TransformerEncoder::new(2, &TransformerOptions::new(8, 2), init).unwrap();
    let (a, b) = (model(&plain), model(&again));
    b.recompute_activations(true).unwrap();
    assert_eq!(step(&a, &plain, &x), step(&b, &again, &x));
    let log = Log::default();
    let _hook = ForwardHook::register(&b, "layers.*.linear1", logging(&log)).unwrap();
    b.forward(&x).unwrap();
    assert_eq!(names(&log), ["layers.0.linear1", "layers.1.linear1"]);
    // Parts in memory of their own as well, and the backward pass runs them again.
    let inner = |init: &Init| Sequential::new().push(Linear::new(8, 8, init).unwrap()).push(Tensor::tanh);
    let model = Sequential::new().push(inner(&again)).push(inner(&again));
    model.recompute_activations(true).unwrap();
    let _hook = ForwardHook::register(&model, "1.0", logging(&log)).unwrap();
    model.forward(&x).unwrap().sum(..).unwrap().backward().unwrap();
    assert_eq!(names(&log), ["1.0", "1.0"]);
}

#[test]
fn a_model_without_such_parts_is_told() {
    let model = Linear::new(1, 1, &Init::new(&cpu())).unwrap();
    assert!(model.recompute_activations(true).is_err());
}
