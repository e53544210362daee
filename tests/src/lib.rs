//! What the tests share: the registry of all ops, generated cases, comparison.

pub mod case;
pub mod compare;
pub mod harness;
pub mod registry;

use isograd::{Device, Result, Tensor};

/// The CPU.
pub fn cpu() -> Device {
    Device::cpu().expect("the CPU backend is linked")
}

/// A leaf of f64 values.
pub fn leaf(values: &[f64], shape: impl Into<isograd::Shape>) -> Result<Tensor> {
    Tensor::from_slice(values, shape, &cpu())?.leaf()
}

/// The code of the book and of the repository's pages, which runs as documentation tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../README.md")]
    mod readme {}
    #[doc = include_str!("../../ARCHITECTURE.md")]
    mod architecture {}
    #[doc = include_str!("../../docs/src/first-model.md")]
    mod first_model {}
    #[doc = include_str!("../../docs/src/data.md")]
    mod data {}
}
