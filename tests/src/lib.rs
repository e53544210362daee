//! What the tests share.

use isograd::{Device, Result, Tensor};

/// The device under test.
pub fn cpu() -> Device {
    Device::cpu().expect("the CPU backend is linked")
}

/// A leaf of f64 values.
pub fn leaf(values: &[f64], shape: impl Into<isograd::Shape>) -> Result<Tensor> {
    Tensor::from_slice(values, shape, &cpu())?.leaf()
}
