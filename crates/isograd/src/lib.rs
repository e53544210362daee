//! Deep learning for Rust: a tape-based autograd engine whose kernels are the same on every backend.
//!
//! ```
//! use isograd::prelude::*;
//!
//! # fn main() -> isograd::Result<()> {
//! let device = Device::best()?;
//! let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0], 3, &device)?.require_grad()?;
//! let y = (&x * &x).sum(..)?;
//! y.backward()?;
//! assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [2.0, 4.0, 6.0]);
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//!
//! | wanted | where |
//! |---|---|
//! | names that most programs need | [`prelude`] |
//! | tensors and their ops, by families | [`Tensor`], with the options of ops in [`ops`] |
//! | devices, dtypes, generators, errors | [`Device`], [`DType`], [`Rng`], [`Error`] |
//! | gradients, checkpoints of activations, checks of gradients | [`tape`], [`no_grad`], [`grad`], [`checkpoint`] |
//! | mixed precision; steps that are recorded and replayed | [`autocast`], [`nn::GradScaler`]; [`Device::capture`], [`Step`] |
//! | times and memory of ops | [`profile`](fn@profile), [`nn::summary`] |
//! | layers, initial values, hooks | [`nn`], [`nn::Init`], [`nn::ForwardHook`] |
//! | losses, optimizers, schedules, clipping | methods of [`Tensor`], [`nn::loss`], [`nn::AdamW`], [`nn::schedule`] |
//! | files of weights; checkpoints of runs | [`nn::save`], [`nn::load`], [`nn::Checkpoint`] |
//! | networks for images, text and tables | [`models`] |
//! | datasets, loaders, tables, tokenizers, graphs, meshes | [`data`] |
//! | a training loop, metrics, event files for TensorBoard | [`train::Trainer`], [`train::metrics`], [`train::tensorboard`] |
//! | several devices | [`parallel`] |
//! | decompositions of matrices, systems of equations | [`linalg`] |
//! | models of ONNX: opened, and exported | [`onnx`] |
//! | tensors of other libraries, without a copy | [`dlpack`], [`Tensor::from_foreign`] |
//! | ops of a program's own | [`custom`] |
//!
//! Programs of at most 80 lines for each of these are in [`examples`](https://github.com/isograd/isograd/tree/main/crates/isograd/examples); the
//! [book](https://github.com/isograd/isograd/blob/main/docs/src/SUMMARY.md) begins with a first model.

pub use isograd_core::*;
pub use isograd_data as data;
#[cfg(feature = "dlpack")]
pub use isograd_dlpack as dlpack;
#[cfg(feature = "linalg")]
pub use isograd_linalg as linalg;
#[cfg(feature = "models")]
pub use isograd_models as models;
pub use isograd_nn as nn;
#[cfg(feature = "onnx")]
pub use isograd_onnx as onnx;
#[cfg(feature = "parallel")]
pub use isograd_parallel as parallel;
#[cfg(feature = "parity")]
pub use isograd_parity as parity;
#[cfg(feature = "train")]
pub use isograd_train as train;

/// The tape: recording, backward passes, checks of gradients, and, with the feature `parity`, the diff of two devices.
pub mod tape {
    pub use isograd_core::tape::*;
    #[cfg(feature = "parity")]
    pub use isograd_parity::diff;
}

// A backend registers itself when it is linked.
#[cfg(feature = "cpu")]
use isograd_cpu as _;
#[cfg(feature = "cuda")]
use isograd_cuda as _;
#[cfg(feature = "hip")]
use isograd_hip as _;
#[cfg(feature = "opencl")]
use isograd_opencl as _;

/// What most programs need.
pub mod prelude {
    pub use crate::data::Dataset;
    #[cfg(feature = "linalg")]
    pub use crate::linalg;
    #[cfg(feature = "models")]
    pub use crate::models::Pretrained;
    pub use crate::nn::*;
    pub use crate::ops::loss::{KlTarget, Reduction};
    pub use crate::ops::{Approximate, Causal, Conv, IndexReduce, Interpolate, Pad, Padding, Replacement, Sampling};
    pub use crate::{DType, Device, Error, Result, Rng, Tensor, autocast, no_autocast, no_grad, tape};
}
