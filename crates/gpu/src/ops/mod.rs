//! Kernels by family: which one a call takes, and its launches.

mod batch_norm;
mod cross_entropy;
mod custom;
mod distance;
mod dropout;
mod each;
mod elementwise;
mod fused;
mod gather;
mod group_norm;
mod index;
pub mod matmul;
mod norm;
mod pooling;
mod prod;
mod radix_sort;
mod random;
mod reduce;
mod reduce_prologue;
mod rotary;
mod sample;
mod scan;
mod scatter;
mod segment;
mod softmax;
mod sort;
mod total;

use crate::launch::device::Gpu;
use fused::Launcher;
use isograd_core::{Call, Kernel, Result};

pub use fused::{supports, types};

macro_rules! families {
    ($($family:ident)*) => {
        /// The launchers of fused ops, by family.
        const FAMILIES: &[&[Launcher]] = &[$($family::LAUNCHERS),*];
    };
}

// Families with fused ops. Their `mod` lines stand above, where rustfmt finds them.
families! {
    batch_norm cross_entropy distance dropout each elementwise group_norm matmul norm pooling prod reduce rotary sample scan segment
    softmax total
}

/// Launches the kernels of a call.
pub fn run(gpu: &Gpu, call: &Call<'_>) -> Result<()> {
    match call.kernel {
        Kernel::Fill | Kernel::Copy | Kernel::Cast | Kernel::Pointwise(_) => elementwise::run(gpu, call),
        Kernel::Reduce(_) | Kernel::ArgMax | Kernel::ArgMin => reduce::run(gpu, call),
        Kernel::Fused(fused) => fused::launch(gpu, call, fused),
        Kernel::Scan(kind) => scan::run(gpu, call, kind),
        Kernel::Matmul => matmul::run(gpu, call),
        Kernel::Gather => gather::run(gpu, call),
        Kernel::Scatter(mode) => scatter::run(gpu, call, mode),
        Kernel::Random(kind) => random::run(gpu, call, kind),
        Kernel::Sort => sort::run(gpu, call),
        Kernel::Custom(op) => custom::run(gpu, call, op),
    }
}
