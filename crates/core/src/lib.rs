//! Tensors, the tape and the [`Backend`] trait of isograd.
//!
//! Backends live in crates of their own and register themselves when linked. This crate knows none of them. Its ops and the tape are therefore
//! tested in the workspace's `tests`, from the registry of `isograd-parity`; unit tests here are of functions that need no device.
//!
//! Items for isograd's other crates alone are hidden from this documentation, and may change in any version.

#[cfg(feature = "ndarray")]
mod arrays;
mod autocast;
pub mod backend;
mod capture;
pub mod check;
pub mod collective;
pub mod custom;
mod device;
mod dtype;
mod error;
mod file;
mod foreign;
pub mod fused;
#[doc(hidden)]
pub mod host;
pub mod operands;
pub mod ops;
#[doc(hidden)]
pub mod page;
pub mod pointwise;
mod print;
mod profile;
pub mod quantized;
pub mod random;
mod shape;
mod sys;
pub mod tape;
mod tensor;
mod thread;

pub use autocast::{autocast, forget_casts, no_autocast, remembered_casts};
pub use backend::{Backend, Blas, Call, Checks, Determinism, Kernel, Memory, MemoryStats, Operand, Precision};
pub use capture::{Step, Tensors, is_in_step};
pub use device::{Device, DeviceInfo, Provider};
pub use dtype::{DType, Element, Scalar};
pub use error::{Error, Kind, Result};
pub use file::replace_file;
#[doc(hidden)]
pub use file::{remove_abandoned, replace_private_file, try_writing};
pub use foreign::{Foreign, Permission, Space};
pub use half::{bf16, f16};
#[doc(hidden)]
pub use inventory;
pub use print::{Notation, PrintOptions};
#[doc(hidden)]
pub use profile::origin;
pub use profile::{Direction, OpTime, Profile, Total, profile};
pub use random::{Rng, RngState};
pub use shape::{Dims, Layout, MAX_RANK, Position, Shape};
pub use tape::{checkpoint, enable_grad, fuse, grad, no_grad};
pub use tensor::{Tensor, TensorKey};
pub use thread::Context;
