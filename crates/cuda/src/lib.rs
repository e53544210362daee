//! CUDA for isograd: NVIDIA's GPUs.

mod library;

pub use library::Nvrtc;

use isograd_core::inventory;
use isograd_gpu::{Dialect, Registered};

/// CUDA C++ with the project's prelude.
pub static DIALECT: Dialect = Dialect { name: "cuda", files: &[("prelude.h", include_str!("../kernels/prelude.h"))] };

inventory::submit! {
    Registered(&DIALECT)
}
