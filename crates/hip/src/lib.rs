//! HIP for isograd: AMD's GPUs from gfx9 on, with waves of 32 or 64.
//!
//! Linking this crate registers the devices `"hip:0"`, `"hip:1"` and so on. ROCm's libraries, 5 to 7, are opened at run time:
//! without them, the list of devices says so, and nothing else changes. rocBLAS multiplies matrices where it is installed, and
//! our own kernels where it is not.

mod driver;
mod hiprtc;
mod library;
mod rocblas;
mod runtime;
mod sys;

pub use driver::Hip;
pub use hiprtc::Hiprtc;

use isograd_core::{Backend, DeviceInfo, Provider, Result, inventory};
use isograd_gpu::{Dialect, Gpu, Registered};
use rocblas::Rocblas;
use runtime::Runtime;
use std::sync::Arc;

inventory::submit! {
    Provider { name: "hip", priority: 15, list, open }
}

/// HIP C++ with the project's prelude.
pub static DIALECT: Dialect = Dialect { name: "hip", files: &[("prelude.h", include_str!("../kernels/prelude.h"))] };

inventory::submit! {
    Registered(&DIALECT)
}

/// Whether an architecture has matrix units for which there is a kernel.
fn has_mma(_architecture: &str) -> bool {
    false
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
    Ok(Arc::new(Gpu::new(Hip::new(ordinal)?)))
}
