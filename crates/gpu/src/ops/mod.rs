//! Kernels by family: which one a call takes, and its launches.
//!
//! Constants that choose between kernels, or divide work, were measured on an H100 unless their comments say otherwise.

mod attention;
pub mod conv;
mod custom;
pub(crate) mod elementwise;
mod family;
mod graph;
mod image;
mod indexing;
mod loss;
pub mod matrix;
mod normalization;
mod random;
mod recurrent;
pub(crate) mod reduction;
mod sequence;
mod sparse;

use crate::launch::device::Gpu;
use family::Family;
use isograd_core::{Call, Kernel, Result};

pub use family::{Example, examples, has_room, supports, types};

/// The families of kernels, under the names of their modules.
const FAMILIES: &[(&str, Family)] = include!(concat!(env!("OUT_DIR"), "/families.rs"));

/// Launches the kernels of a call.
pub fn run(gpu: &Gpu, call: &Call<'_>) -> Result<()> {
    match call.kernel {
        Kernel::Copy if conv::turn::copy(gpu, call)? => Ok(()),
        Kernel::Fill | Kernel::Copy | Kernel::Cast | Kernel::Pointwise(_) => elementwise::pointwise::run(gpu, call),
        Kernel::Reduce(_) | Kernel::ArgMax | Kernel::ArgMin => reduction::reduce::run(gpu, call),
        Kernel::Fused(fused) => family::launch(gpu, call, fused.fused()),
        Kernel::Scan(kind) => reduction::scan::run(gpu, call, kind),
        Kernel::Matmul => matrix::matmul::run(gpu, call),
        Kernel::Gather => indexing::gather::run(gpu, call),
        Kernel::Scatter(mode) => indexing::scatter::run(gpu, call, mode),
        Kernel::Random(kind) => random::draw::run(gpu, call, kind),
        Kernel::Sort => indexing::sort::run(gpu, call),
        Kernel::Custom(op) => custom::run(gpu, call, op),
    }
}
