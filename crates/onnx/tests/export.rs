//! Models as they are written, and errors that say what cannot be.

use isograd_core::pointwise::{Domain, Pointwise, evaluate};
use isograd_core::{DType, Device, Kind, Result, Rng, Tensor};
use isograd_cpu as _;
use isograd_nn::{BatchNorm1d, Dropout, Forward, Init, Linear, Module, Relu, Sequential};
use isograd_onnx::{Batch, Export, Input};

fn zeros(shape: &[usize]) -> Result<Tensor> {
    Tensor::zeros(shape, DType::F32, &Device::cpu()?)
}

fn perceptron() -> Result<Sequential> {
    let init = Init::new(&Device::cpu()?);
    Ok(Sequential::new().push(Linear::new(4, 8, &init)?).push(Relu).push(Linear::new(8, 2, &init)?))
}

#[test]
fn a_perceptron_has_two_products_and_the_names_of_its_parameters() -> Result<()> {
    let (network, x) = (perceptron()?, zeros(&[1, 4])?);
    let export = Export::new(&network).input(Input::new("x", &x)).outputs(&["logits"]);
    let model = export.run(|x| Ok(vec![network.forward(&x[0])?]))?;
    assert_eq!(model.operators(), ["Gemm", "Relu", "Gemm"]);
    let mut names = model.initializers();
    names.sort();
    assert_eq!(names, ["0.bias", "0.weight", "2.bias", "2.weight"]);
    assert_eq!(model.inputs(), ["x [N, 4]"]);
    assert_eq!(model.outputs(), ["logits [N, 2]"]);
    Ok(())
}

#[test]
fn extents_follow_the_batch_or_the_examples() -> Result<()> {
    let x = zeros(&[5, 4])?;
    let of = |batch| {
        let export = Export::new(&Sequential::new()).input(Input::new("x", &x)).batch(batch);
        export.run(|x| Ok(vec![Tensor::concat(&[&x[0], &x[0], &x[0].narrow(0, 0, 1)?], 0)?.flatten(0, 1)?]))
    };
    assert_eq!(of(Batch::Any)?.outputs(), ["output [8 N + 4]"]);
    assert_eq!(of(Batch::Fixed)?.outputs(), ["output [44]"]);
    Ok(())
}

/// The message of a failed export.
fn refusal(x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> (Kind, String) {
    let export = Export::new(&Sequential::new()).input(Input::new("x", x));
    let error = export.run(|x| Ok(vec![f(&x[0])?])).map(drop).expect_err("the function has no counterpart");
    (error.kind(), error.message().to_string())
}

#[test]
fn an_error_lists_all_ops_without_counterpart() -> Result<()> {
    let (kind, message) = refusal(&zeros(&[1, 3, 3])?, |x| {
        let sums = x.cumprod(1)?.sum(1)?;
        sums.add(&x.diagonal(0)?)?.exp()
    });
    assert_eq!(kind, Kind::Unsupported);
    assert!(message.contains("cumprod of f32 [2, 3, 3]") && message.contains("diagonal of f32 [2, 3, 3]"), "{message}");
    assert!(!message.contains("sum of") && !message.contains("exp of"), "{message}");
    Ok(())
}

#[test]
fn an_op_whose_result_is_not_read_does_not_matter() -> Result<()> {
    let x = zeros(&[1, 3])?;
    let export = Export::new(&Sequential::new()).input(Input::new("x", &x));
    let model = export.run(|x| {
        x[0].cumprod(1)?;
        Ok(vec![x[0].exp()?])
    })?;
    assert_eq!(model.operators(), ["Exp"]);
    Ok(())
}

#[test]
fn changes_in_place_are_refused() -> Result<()> {
    let (_, message) = refusal(&zeros(&[1, 3])?, |x| {
        let y = x.exp()?;
        let view = y.narrow(1, 0, 2)?;
        y.add_(&x.sin()?)?;
        view.neg()
    });
    assert!(message.contains("in place"), "{message}");
    Ok(())
}

#[test]
fn every_row_is_exported_in_every_dtype() -> Result<()> {
    let dtypes = [DType::F16, DType::BF16, DType::F32, DType::F64, DType::U8, DType::I32, DType::I64];
    for &row in Pointwise::ALL {
        let is_of = |dtype: &&DType| match row.domain() {
            Domain::Real => dtype.is_float(),
            Domain::Integer => !dtype.is_float(),
            Domain::Any => true,
        };
        for &dtype in dtypes.iter().filter(is_of) {
            let x = Tensor::ones((1, 3), dtype, &Device::cpu()?)?;
            let names: Vec<String> = (0..row.inputs()).map(|i| format!("x{i}")).collect();
            let network = Sequential::new();
            let export = names.iter().fold(Export::new(&network), |export, name| export.input(Input::new(name, &x)));
            let attributes: Vec<f64> = (1..=row.attributes()).map(|i| 2.0 * i as f64).collect();
            let model = export.run(|x| evaluate(row, x, &attributes));
            let model = model.unwrap_or_else(|error| panic!("{} of {dtype}: {error}", row.name()));
            assert_eq!(model.outputs().len(), row.outputs());
        }
    }
    Ok(())
}

#[test]
fn values_that_depend_on_the_batch_size_are_refused() -> Result<()> {
    let (_, message) = refusal(&zeros(&[1, 3])?, |x| {
        let rows = Tensor::arange(x.dims()[0], x.device())?.cast(DType::F32)?.unsqueeze(1)?;
        x.add(&rows)
    });
    assert!(message.contains("depends on the batch size"), "{message}");
    Ok(())
}

type Function<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;

/// A number of an op that follows from the batch size is no constant of the model.
#[test]
fn numbers_that_come_from_the_batch_size_are_refused() -> Result<()> {
    let batch = |x: &Tensor| x.dims()[0];
    let functions: [(&str, Function<'_>); 9] = [
        ("div_scalar", &|x| x.div_scalar(batch(x) as f64)),
        ("add_scalar", &|x| x.add_scalar(batch(x) as f64)?.exp()),
        ("clamp", &|x| x.clamp(None, Some((batch(x) as f64).into()))),
        ("leaky_relu", &|x| x.leaky_relu(1.0 / batch(x) as f64)),
        ("pow_scalar", &|x| x.pow_scalar(batch(x) as f64)),
        ("narrow", &|x| x.narrow(1, batch(x) - 2, 2)),
        ("roll", &|x| x.roll(batch(x) as isize, 1)),
        ("where_scalar", &|x| x.gt_scalar(0.0)?.where_scalar(x, batch(x) as f64)),
        ("full", &|x| x.add(&Tensor::full((), batch(x) as f64, DType::F32, x.device())?)),
    ];
    for (op, f) in functions {
        let (kind, message) = refusal(&zeros(&[1, 8])?, f);
        assert_eq!(kind, Kind::Unsupported, "{op}: {message}");
        assert!(message.contains("depends on the batch size"), "{op}: {message}");
    }
    Ok(())
}

#[test]
fn dropout_in_training_says_to_call_eval() -> Result<()> {
    let rng = Rng::new(1);
    let (_, message) = refusal(&zeros(&[1, 3])?, |x| x.dropout(0.5, &rng));
    assert!(message.contains("random") && message.contains("`eval`"), "{message}");
    let network = Dropout::new(0.5, &Init::new(&Device::cpu()?));
    network.eval();
    let x = zeros(&[1, 3])?;
    let model = Export::new(&network).input(Input::new("x", &x)).run(|x| Ok(vec![network.forward(&x[0])?]))?;
    assert_eq!(model.operators(), ["Identity"]);
    Ok(())
}

#[test]
fn a_norm_in_training_says_to_call_eval() -> Result<()> {
    let network = BatchNorm1d::new(3, &Init::new(&Device::cpu()?))?;
    let x = zeros(&[2, 3, 4])?;
    let export = || Export::new(&network).input(Input::new("x", &x));
    let error = export().run(|x| Ok(vec![network.forward(&x[0])?])).expect_err("training changes the statistics");
    assert!(error.message().contains("running_mean") && error.message().contains("eval"), "{error}");
    network.eval();
    assert_eq!(export().run(|x| Ok(vec![network.forward(&x[0])?]))?.operators(), ["BatchNormalization"]);
    Ok(())
}
