//! Clones of models, and models on other devices and in other dtypes.

use crate::common::{cpu, values};
use isograd_core::ops::Rotary;
use isograd_core::{DType, Device, Kind, Result, Tensor, no_grad};
use isograd_nn::{
    Adam, BatchNorm1d, Conv2d, Dropout, Embedding, Forward, GatConv, GatOptions, Init, Linear, Lstm, Module, Optimizer,
    Prelu, Recompute, RecurrentOptions, Relu, Rotations, Sequential, TransformerEncoderLayer, TransformerOptions,
    Visitor,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A model with tied weights, lists, maps, functions and buffers.
#[derive(Module)]
struct Net {
    embedding: Embedding,
    layers: Vec<Linear>,
    named: BTreeMap<String, Linear>,
    sequence: Sequential,
    shared: Arc<Linear>,
    /// Tied to the embedding.
    head: Linear,
    /// The transposed weight of the head.
    transposed: Tensor,
    count: Tensor,
    #[module(skip)]
    width: usize,
    recompute: Recompute,
}

impl Net {
    fn new(init: &Init) -> Result<Net> {
        let linear = || Linear::new(4, 4, init);
        let embedding = Embedding::new(5, 4, init)?;
        let head = Linear { weight: embedding.weight.clone(), bias: None };
        let sequence = Sequential::new()
            .push(linear()?)
            .push(BatchNorm1d::new(4, init)?)
            .push(Tensor::relu)
            .push(Dropout::new(0.5, init));
        Ok(Net {
            transposed: head.weight.detach().t()?.require_grad()?,
            embedding,
            layers: vec![linear()?, linear()?],
            named: [("a".to_string(), linear()?)].into(),
            sequence: sequence.push(|x: &Tensor| x.mul_scalar(2.0)),
            shared: Arc::new(linear()?),
            head,
            count: Tensor::zeros((), DType::I64, init.device())?,
            width: 4,
            recompute: Recompute::default(),
        })
    }
}

impl Forward for Net {
    fn forward(&self, index: &Tensor) -> Result<Tensor> {
        let x = self.embedding.forward(index)?;
        let x = self.layers.iter().try_fold(x, |x, layer| layer.forward(&x))?;
        let x = self.sequence.forward(&self.named["a"].forward(&x)?)?;
        self.head.forward(&self.shared.forward(&x)?)
    }
}

fn index() -> Tensor {
    Tensor::from_vec(vec![0i64, 1, 2, 4], 4, &cpu()).unwrap()
}

fn state(model: &impl Module) -> Vec<(String, Vec<f64>)> {
    model.state_dict().into_iter().map(|(name, t)| (name, values(&t))).collect()
}

fn step(model: &Net) {
    let mut optimizer = Adam::new(model).lr(0.1);
    model.forward(&index()).unwrap().square().unwrap().sum(..).unwrap().backward().unwrap();
    optimizer.step().unwrap();
}

#[test]
fn training_a_clone_leaves_the_model_as_it_is() {
    let init = Init::new(&cpu()).seed(3);
    let model = Net::new(&init).unwrap();
    model.layers[0].freeze();
    let clone = model.clone();
    assert_eq!(state(&clone), state(&model));
    assert_eq!(clone.width, 4);
    assert!(!clone.layers[0].weight.requires_grad() && clone.layers[1].weight.requires_grad());
    let before = state(&model);
    step(&clone);
    assert_eq!(state(&model), before);
    assert_ne!(state(&clone), before);
    let after = state(&clone);
    step(&model);
    assert_eq!(state(&clone), after);
    for ((name, a), (_, b)) in model.state_dict().iter().zip(clone.state_dict().iter()) {
        assert!(!a.shares_memory(b), "{name}");
    }
}

#[test]
fn a_clone_has_its_own_modes() {
    let model = Net::new(&Init::new(&cpu())).unwrap();
    model.eval();
    let clone = model.clone();
    clone.train();
    assert_eq!(values(&model.forward(&index()).unwrap()), values(&model.forward(&index()).unwrap()));
    assert_ne!(values(&clone.forward(&index()).unwrap()), values(&clone.forward(&index()).unwrap()));
}

#[test]
fn tied_parameters_are_tied_in_a_clone() {
    let clone = Net::new(&Init::new(&cpu())).unwrap().clone();
    let names: Vec<String> = clone.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert!(
        names.contains(&"embedding.weight".to_string()) && !names.contains(&"head.weight".to_string()),
        "{names:?}"
    );
    assert!(clone.head.weight.shares_memory(&clone.embedding.weight));
    no_grad(|| clone.head.weight.detach().fill_(7.0)).unwrap();
    assert_eq!(values(&clone.embedding.weight), [7.0; 20]);
    assert_eq!(values(&clone.transposed), [7.0; 20]);
    assert_eq!(clone.transposed.dims(), [4, 5]);
    clone.forward(&index()).unwrap().sum(..).unwrap().backward().unwrap();
    // Of the rows that were looked up, and of the head.
    assert!(clone.head.weight.grad().is_some());
    assert_eq!(values(&clone.head.weight.grad().unwrap()), values(&clone.embedding.weight.grad().unwrap()));
}

#[test]
fn layers_of_all_kinds_are_cloned() {
    let init = Init::new(&cpu()).seed(1);
    let gat = GatConv::with_options(2, 3, &GatOptions { edge_dim: 2, ..Default::default() }, &init).unwrap();
    let lstm =
        Lstm::with_options(2, 3, &RecurrentOptions { layers: 2, bidirectional: true, ..Default::default() }, &init)
            .unwrap();
    let encoder = TransformerEncoderLayer::new(&TransformerOptions::new(8, 2), &init).unwrap();
    let conv = Conv2d::new(2, 3, [3, 3], &init).unwrap();
    let prelu = Prelu::new(1, &init).unwrap();
    fn check<M: Module + Clone>(model: &M) {
        let clone = model.clone();
        assert_eq!(state(&clone), state(model));
        assert_eq!(clone.type_name(), model.type_name());
        let (ours, theirs) = (model.named_parameters(), clone.named_parameters());
        assert!(!ours.is_empty());
        for ((name, a), (other, b)) in ours.iter().zip(&theirs) {
            assert_eq!(name, other);
            assert!(!a.shares_memory(b) && b.is_leaf(), "{name}");
        }
    }
    check(&gat);
    check(&lstm);
    check(&encoder);
    check(&conv);
    check(&prelu);
}

#[test]
fn a_model_is_cast_in_place() {
    let mut model = Net::new(&Init::new(&cpu()).seed(3)).unwrap();
    model.layers[1].freeze();
    model.forward(&index()).unwrap().sum(..).unwrap().backward().unwrap();
    let before = values(&model.shared.weight.grad().unwrap());
    let same = model.layers[0].weight.clone();
    model.to_dtype(DType::F32).unwrap();
    assert!(model.layers[0].weight.shares_memory(&same) && model.layers[0].weight.grad().is_some());
    model.to_dtype(DType::F64).unwrap();
    assert_eq!(model.count.dtype(), DType::I64);
    for (name, t) in model.state_dict() {
        let is_count = name == "count" || name.ends_with("num_batches_tracked");
        assert_eq!(t.dtype(), if is_count { DType::I64 } else { DType::F64 }, "{name}");
    }
    assert_eq!(values(&model.shared.weight.grad().unwrap()), before);
    assert!(!model.layers[1].weight.requires_grad() && model.layers[1].weight.is_leaf());
    assert!(model.head.weight.shares_memory(&model.embedding.weight));
    assert_eq!(model.forward(&index()).unwrap().dtype(), DType::F64);
    let error = model.to_dtype(DType::I64).unwrap_err();
    assert_eq!(error.kind(), Kind::Dtype);
}

#[test]
fn constants_move_but_are_not_cast() {
    #[derive(Module)]
    struct Positions {
        rotations: Rotations,
        weight: Tensor,
    }
    let rotations = Rotations::new(4, 2, 1e4, &cpu()).unwrap();
    let weight = Tensor::ones(2, DType::F32, &cpu()).unwrap().require_grad().unwrap();
    let q = Tensor::ones((1, 1, 4, 2), DType::F32, &cpu()).unwrap();
    let turned = |rotations: &Rotations| values(&rotations.apply(&q, &q, &Rotary::default()).unwrap().0);
    let before = turned(&rotations);
    let mut model = Positions { rotations, weight };
    model.to_dtype(DType::BF16).unwrap();
    assert_eq!(model.weight.dtype(), DType::BF16);
    assert_eq!(turned(&model.rotations), before);
    assert_eq!(model.state_dict().len(), 1);
}

#[test]
fn a_part_without_visit_mut_is_named_and_nothing_changes() {
    #[derive(Clone)]
    struct ByHand(Linear);
    impl Module for ByHand {
        fn visit(&self, visitor: &mut Visitor<'_>) {
            visitor.part("0", &self.0);
        }
    }
    #[derive(Module)]
    struct Outer {
        first: Linear,
        hand: ByHand,
    }
    let init = Init::new(&cpu());
    let mut model = Outer { first: Linear::new(1, 1, &init).unwrap(), hand: ByHand(Linear::new(1, 1, &init).unwrap()) };
    let error = model.to_dtype(DType::F64).unwrap_err().to_string();
    assert!(error.contains("ByHand") && error.contains("visit_mut"), "{error}");
    assert_eq!(model.first.weight.dtype(), DType::F32);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.clone())).err().unwrap();
    assert!(panic.downcast_ref::<String>().unwrap().contains("ByHand"));
}

#[test]
fn a_struct_with_a_field_that_is_not_clone_is_a_module_still() {
    struct Handle;
    #[derive(Module)]
    struct WithHandle {
        linear: Linear,
        #[module(skip)]
        handle: Handle,
    }
    let model = WithHandle { linear: Linear::new(1, 1, &Init::new(&cpu())).unwrap(), handle: Handle };
    let _ = &model.handle;
    assert_eq!(model.named_parameters().len(), 2);
}

#[test]
fn names_are_given_and_parts_flattened() {
    #[derive(Module)]
    struct Wrapped {
        #[module(flatten)]
        inner: Linear,
        #[module(name = "other.name")]
        second: Linear,
    }
    let init = Init::new(&cpu());
    let model = Wrapped { inner: Linear::new(1, 1, &init).unwrap(), second: Linear::new(1, 1, &init).unwrap() };
    let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["weight", "bias", "other.name.weight", "other.name.bias"]);
}

#[test]
fn parameters_that_are_on_the_device_stay() {
    let mut model = Sequential::new().push(Linear::new(2, 2, &Init::new(&cpu())).unwrap()).push(Relu);
    let before = model.parameters();
    model.to_device(&Device::cpu().unwrap()).unwrap();
    assert!(model.parameters().iter().zip(&before).all(|(a, b)| a.shares_memory(b)));
    // An optimizer that was made before trains them.
    before[0].set_grad(Some(Tensor::ones((2, 2), DType::F32, &cpu()).unwrap())).unwrap();
    assert!(model.parameters()[0].grad().is_some());
}
