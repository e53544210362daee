//! Layers that normalise: states as PyTorch saves them, modes, buffers, shapes.

use crate::common::{assert_close, cpu, values};
use isograd_core::{DType, Kind, Result, Tensor};
use isograd_nn::{
    BatchNorm1d, BatchNorm2d, BatchNorm3d, Forward, GroupNorm, Init, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d,
    LayerNorm, Module, NormOptions, RmsNorm, Sequential, StateDict, load,
};

fn init() -> Init {
    Init::new(&cpu()).seed(1)
}

fn names(module: &dyn Module) -> Vec<String> {
    module.state_dict().into_keys().collect()
}

/// The tensors whose names begin with `prefix`, without it.
fn part(all: &StateDict, prefix: &str) -> StateDict {
    all.iter().filter_map(|(name, t)| Some((name.strip_prefix(prefix)?.to_string(), t.clone()))).collect()
}

/// The file has, in f32 and from PyTorch 2.11: under `state.` that of `Sequential(BatchNorm2d(4), GroupNorm(2, 4),
/// InstanceNorm2d(4, affine=True, track_running_stats=True), LayerNorm([3, 2]))` with normal parameters after three batches, x,
/// the results `in_use` and then `in_training`, and under `after.` the state that this left.
#[test]
fn states_of_pytorch_are_loaded_by_name() -> Result<()> {
    let instance = NormOptions { affine: true, track_running_stats: true, ..NormOptions::INSTANCE };
    let model = Sequential::new()
        .push(BatchNorm2d::new(4, &init())?)
        .push(GroupNorm::new(2, 4, &init())?)
        .push(InstanceNorm2d::with_options(4, &instance, &init())?)
        .push(LayerNorm::new((3, 2), &init())?);
    let file = load(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/norm.safetensors"), &cpu())?.tensors;
    model.load_state_dict(&part(&file, "state."))?;
    let near = |got: &Tensor, name: &str| {
        for (g, e) in values(got).iter().zip(values(&file[name])) {
            assert!((g - e).abs() <= 2e-5 * (1.0 + e.abs()), "{name}: got {g}, expected {e}");
        }
    };
    model.eval();
    near(&model.forward(&file["x"])?, "in_use");
    model.train();
    near(&model.forward(&file["x"])?, "in_training");
    let (state, expected) = (model.state_dict(), part(&file, "after."));
    assert!(state.keys().eq(expected.keys()));
    state.iter().for_each(|(name, t)| near(t, &format!("after.{name}")));
    Ok(())
}

#[test]
fn running_statistics_are_buffers() -> Result<()> {
    let norm = BatchNorm1d::new(3, &init())?;
    let buffers: Vec<String> = norm.named_buffers().into_iter().map(|(name, _)| name).collect();
    assert_eq!(buffers, ["running_mean", "running_var", "num_batches_tracked"]);
    let parameters: Vec<String> = norm.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(parameters, ["weight", "bias"]);
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 3.0, 2.0, 1.0], (2, 3), &cpu())?.require_grad()?;
    norm.forward(&x)?.sum(..)?.backward()?;
    assert!(norm.running_mean.as_ref().unwrap().grad().is_none());
    // 0.9 * 0 + 0.1 * mean, and 0.9 * 1 + 0.1 * 2
    assert_close(&values(norm.running_mean.as_ref().unwrap()), &[0.2, 0.2, 0.2], 1e-6);
    assert_close(&values(norm.running_var.as_ref().unwrap()), &[1.1, 0.9, 1.1], 1e-6);
    assert_eq!(norm.num_batches_tracked.as_ref().unwrap().to_vec::<i64>()?, [1]);
    norm.eval();
    norm.forward(&x)?;
    assert_eq!(norm.num_batches_tracked.as_ref().unwrap().to_vec::<i64>()?, [1]);
    Ok(())
}

#[test]
fn a_frozen_norm_keeps_its_statistics() -> Result<()> {
    let norm = BatchNorm1d::new(3, &init())?;
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 3.0, 2.0, 1.0], (2, 3), &cpu())?;
    norm.forward(&x)?;
    let buffers = || norm.named_buffers().iter().map(|(_, t)| values(t)).collect::<Vec<_>>();
    let (before, in_training) = (buffers(), values(&norm.forward_relu(&x, None)?));
    let learnt = buffers();
    assert_ne!(learnt, before);
    norm.freeze();
    let results = || -> Result<_> {
        Ok([norm.forward(&x)?, norm.forward_relu(&x, None)?, norm.forward_relu6(&x)?].map(|y| values(&y)))
    };
    let frozen = results()?;
    assert_eq!(buffers(), learnt);
    assert_ne!(frozen[1], in_training);
    norm.eval();
    assert_eq!(results()?, frozen);
    // One that learns in part learns its statistics too.
    norm.train();
    norm.set_trained(&|name| name == "bias");
    norm.forward(&x)?;
    assert_ne!(buffers(), learnt);
    Ok(())
}

#[test]
fn without_a_momentum_all_batches_weigh_the_same() -> Result<()> {
    let options = NormOptions { momentum: None, ..NormOptions::BATCH };
    let norm = BatchNorm1d::with_options(1, &options, &init())?;
    for value in [1.0f32, 5.0, 12.0] {
        norm.forward(&Tensor::from_slice(&[value, value + 2.0], (2, 1), &cpu())?)?;
    }
    assert_close(&values(norm.running_mean.as_ref().unwrap()), &[7.0], 1e-6);
    assert_close(&values(norm.running_var.as_ref().unwrap()), &[2.0], 1e-6);
    Ok(())
}

#[test]
fn without_running_statistics_use_is_as_training() -> Result<()> {
    let options = NormOptions { track_running_stats: false, ..NormOptions::BATCH };
    let norm = BatchNorm1d::with_options(2, &options, &init())?;
    assert_eq!(names(&norm), ["bias", "weight"]);
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 5.0], (2, 2), &cpu())?;
    let in_training = values(&norm.forward(&x)?);
    norm.eval();
    assert_eq!(values(&norm.forward(&x)?), in_training);
    Ok(())
}

#[test]
fn names_of_states_and_types() -> Result<()> {
    let init = init();
    assert_eq!(names(&LayerNorm::new(3, &init)?), ["bias", "weight"]);
    assert_eq!(names(&LayerNorm::without_bias(3, &init)?), ["weight"]);
    assert!(names(&LayerNorm::without_parameters(3)).is_empty());
    assert_eq!(names(&RmsNorm::new(3, &init)?), ["weight"]);
    assert_eq!(names(&GroupNorm::new(1, 3, &init)?), ["bias", "weight"]);
    assert!(names(&InstanceNorm1d::new(3, &init)?).is_empty());
    let all = ["bias", "num_batches_tracked", "running_mean", "running_var", "weight"];
    assert_eq!(names(&BatchNorm3d::new(3, &init)?), all);
    assert_eq!(BatchNorm3d::new(3, &init)?.type_name(), "BatchNorm3d");
    assert_eq!(InstanceNorm3d::new(3, &init)?.type_name(), "InstanceNorm3d");
    Ok(())
}

#[test]
fn shapes_are_those_of_pytorch() -> Result<()> {
    let init = init();
    let ones = |dims: &[usize]| Tensor::ones(dims, DType::F32, &cpu());
    let shape_error = |result: Result<Tensor>| assert_eq!(result.unwrap_err().kind(), Kind::Shape);
    for dims in [&[2, 3][..], &[2, 3, 4]] {
        assert_eq!(BatchNorm1d::new(3, &init)?.forward(&ones(dims)?)?.dims(), dims);
    }
    for dims in [&[3][..], &[2, 4], &[2, 3, 4, 5]] {
        shape_error(BatchNorm1d::new(3, &init)?.forward(&ones(dims)?));
    }
    shape_error(BatchNorm2d::new(3, &init)?.forward(&ones(&[2, 3, 4])?));
    for dims in [&[2, 3, 4, 5][..], &[3, 4, 5]] {
        assert_eq!(InstanceNorm2d::new(3, &init)?.forward(&ones(dims)?)?.dims(), dims);
    }
    shape_error(InstanceNorm2d::new(3, &init)?.forward(&ones(&[3, 4])?));
    shape_error(LayerNorm::new((3, 2), &init)?.forward(&ones(&[2, 3])?));
    shape_error(RmsNorm::without_parameters(4).forward(&ones(&[2, 3])?));
    assert_eq!(GroupNorm::new(2, 3, &init).unwrap_err().kind(), Kind::Attr);
    Ok(())
}
