//! HIP for isograd: AMD's GPUs from gfx9 on, with waves of 32 or 64.
//!
//! Linking this crate registers the devices `"hip:0"`, `"hip:1"` and so on. ROCm's libraries, 5 to 7, are opened at run time:
//! without them, the list of devices says so, and nothing else changes. rocBLAS multiplies matrices where it is installed, and
//! our own kernels where it is not.

mod driver;
mod hiprtc;
mod library;
mod rccl;
mod rocblas;
mod runtime;
mod stream;
mod sys;

pub use driver::Hip;
pub use hiprtc::Hiprtc;

use isograd_core::{Backend, DeviceInfo, Provider, Result, inventory};
use isograd_gpu::{Dialect, Gpu, Registered, Tile};
use rocblas::Rocblas;
use runtime::Runtime;
use std::sync::Arc;

inventory::submit! {
    Provider { name: "hip", priority: 15, list, open }
}

/// HIP C++ with the project's prelude.
pub static DIALECT: Dialect = Dialect {
    name: "hip",
    folders: &["kernels-hip"],
    files: isograd_kernels::HIP,
    // 256 threads: four waves of 64 or eight of 32.
    mma: &[Tile { m: 128, n: 128, k: 32, results: [8, 8] }, Tile { m: 64, n: 64, k: 32, results: [4, 4] }],
};

inventory::submit! {
    Registered(&DIALECT)
}

/// Whether an architecture has the matrix units of `matrix.h`: CDNA from the second generation on, RDNA from the third.
fn has_mma(architecture: &str) -> bool {
    let cdna = ["gfx90a", "gfx940", "gfx941", "gfx942", "gfx950"];
    let rdna = ["gfx110", "gfx115", "gfx120"];
    cdna.into_iter().chain(rdna).any(|name| architecture.starts_with(name))
}

fn list() -> Result<Vec<DeviceInfo>> {
    let runtime = Runtime::open()?;
    (0..runtime.count()?).map(|ordinal| describe(runtime, ordinal)).collect()
}

fn describe(runtime: &Runtime, ordinal: usize) -> Result<DeviceInfo> {
    let limits = runtime.describe(ordinal)?.limits;
    let gib = limits.memory as f64 / 2f64.powi(30);
    let blas = Rocblas::open().map_or("no rocBLAS".into(), |library| format!("rocBLAS {}", library.version()));
    Ok(DeviceInfo {
        name: format!("hip:{ordinal}"),
        description: format!("{}, {gib:.1} GiB, waves of {}, {}, {blas}", limits.name, limits.wave, limits.driver),
        driver: limits.driver,
        memory: Some(limits.memory),
        is_accelerator: true,
    })
}

fn open(ordinal: usize) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Gpu::new(Arc::new(Hip::new(ordinal)?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_units_are_of_the_later_architectures() {
        assert!(["gfx90a:sramecc+:xnack-", "gfx942", "gfx1100", "gfx1151", "gfx1201"].into_iter().all(has_mma));
        assert!(!["gfx906", "gfx908", "gfx90c", "gfx1030", "gfx1250", "sm_90"].into_iter().any(has_mma));
    }
}
