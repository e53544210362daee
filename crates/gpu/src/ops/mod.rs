//! Kernels by family: which one a call takes, and its launches.

mod attention;
mod batch_norm;
pub mod conv;
mod cross_entropy;
mod ctc;
mod custom;
mod distance;
mod dropout;
mod each;
mod edge_softmax;
pub(crate) mod elementwise;
mod family;
mod gather;
mod group_norm;
mod index;
pub mod matmul;
mod mesh;
mod norm;
mod pooling;
mod prod;
mod radix_sort;
mod random;
mod recurrent;
mod reduce;
mod reduce_prologue;
mod resample;
mod rotary;
mod sample;
mod scan;
mod scatter;
mod segment;
mod softmax;
mod sort;
mod sparse;
mod total;
mod window;

use crate::launch::device::Gpu;
use family::Family;
use isograd_core::{Call, Kernel, Result};

pub use family::{examples, has_room, supports, types};

/// The families of kernels, under the names of their modules.
const FAMILIES: &[(&str, Family)] = include!(concat!(env!("OUT_DIR"), "/families.rs"));

/// Launches the kernels of a call.
pub fn run(gpu: &Gpu, call: &Call<'_>) -> Result<()> {
    match call.kernel {
        Kernel::Fill | Kernel::Copy | Kernel::Cast | Kernel::Pointwise(_) => elementwise::run(gpu, call),
        Kernel::Reduce(_) | Kernel::ArgMax | Kernel::ArgMin => reduce::run(gpu, call),
        Kernel::Fused(fused) => family::launch(gpu, call, fused),
        Kernel::Scan(kind) => scan::run(gpu, call, kind),
        Kernel::Matmul => matmul::run(gpu, call),
        Kernel::Gather => gather::run(gpu, call),
        Kernel::Scatter(mode) => scatter::run(gpu, call, mode),
        Kernel::Random(kind) => random::run(gpu, call, kind),
        Kernel::Sort => sort::run(gpu, call),
        Kernel::Custom(op) => custom::run(gpu, call, op),
    }
}
