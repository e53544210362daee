//! What the tests share.
#![allow(dead_code)]

use isograd_core::{DType, Device, Tensor};
use isograd_cpu as _;
use isograd_nn::Optimizer;

pub fn cpu() -> Device {
    Device::cpu().unwrap()
}

pub fn f64s(values: &[f64]) -> Tensor {
    Tensor::from_slice(values, values.len(), &cpu()).unwrap()
}

pub fn values(t: &Tensor) -> Vec<f64> {
    t.to_f64_vec().unwrap()
}

/// A leaf of these values.
pub fn parameter(values: &[f64], dtype: DType) -> Tensor {
    f64s(values).cast(dtype).unwrap().require_grad().unwrap()
}

pub fn set_grad(parameter: &Tensor, gradient: &[f64]) {
    let gradient = f64s(gradient).reshape(parameter.shape()).unwrap();
    parameter.set_grad(Some(gradient.cast(parameter.dtype()).unwrap())).unwrap();
}

pub fn step_with(optimizer: &mut dyn Optimizer, parameter: &Tensor, gradient: &[f64]) {
    set_grad(parameter, gradient);
    optimizer.step().unwrap();
}

pub fn assert_close(got: &[f64], expected: &[f64], relative: f64) {
    assert_eq!(got.len(), expected.len(), "{got:?} {expected:?}");
    for (g, e) in got.iter().zip(expected) {
        assert!((g - e).abs() <= relative * e.abs().max(1e-300) || g == e, "got {got:?}, expected {expected:?}");
    }
}
