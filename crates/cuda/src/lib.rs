//! CUDA for isograd: NVIDIA's GPUs of compute capability 7.5 and later.
//!
//! Linking this crate registers the devices `"cuda:0"`, `"cuda:1"` and so on. The driver's library and NVRTC are opened at
//! run time: without them, the list of devices says so, and nothing else changes. cuBLASLt multiplies matrices where it is
//! installed, and our own kernels where it is not.

mod blaslt;
mod cudnn;
mod driver;
mod library;
mod nccl;
mod nvrtc;
mod staging;
mod stream;

pub use blaslt::CublasLt;
pub use cudnn::Cudnn;
pub use driver::Cuda;
pub use nvrtc::Nvrtc;

use isograd_core::{Backend, DeviceInfo, Provider, Result, inventory};
use isograd_gpu::{Dialect, Gpu, Registered, Tile};
use std::sync::Arc;

inventory::submit! {
    Provider { name: "cuda", priority: 20, list, open }
}

/// CUDA C++ with the project's prelude.
pub static DIALECT: Dialect = Dialect {
    name: "cuda",
    folders: &["kernels-cuda"],
    files: isograd_kernels::CUDA,
    // Four waves.
    mma: &[Tile { m: 128, n: 128, k: 32, results: [8, 16] }, Tile { m: 64, n: 64, k: 32, results: [8, 4] }],
};

inventory::submit! {
    Registered(&DIALECT)
}

fn list() -> Result<Vec<DeviceInfo>> {
    (0..driver::count()?).map(describe).collect()
}

fn describe(ordinal: usize) -> Result<DeviceInfo> {
    let limits = driver::limits(ordinal)?;
    let gib = limits.memory as f64 / 2f64.powi(30);
    let blas = CublasLt::open().map_or("no cuBLASLt".into(), |library| format!("cuBLASLt {}", library.version()));
    Ok(DeviceInfo {
        name: format!("cuda:{ordinal}"),
        description: format!("{}, {gib:.1} GiB, {}, {blas}", limits.name, limits.driver),
        driver: limits.driver,
        memory: Some(limits.memory),
        is_accelerator: true,
    })
}

fn open(ordinal: usize) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Gpu::new(Arc::new(Cuda::new(ordinal)?))))
}
