//! OpenCL for isograd: any device with coarse-grained shared virtual memory.
//!
//! Linking this crate registers the devices `"opencl:0"`, `"opencl:1"` and so on, over all platforms. The library is opened
//! at run time: without it, the list of devices says so, and nothing else changes.

mod driver;

pub use driver::OpenCl;

use isograd_core::{Backend, DeviceInfo, Error, Provider, Result, inventory};
use isograd_gpu::{Dialect, Gpu, Registered, Tile};
use isograd_kernels::{CUDA, OPENCL, file};
use opencl3::device::{CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU, Device};
use opencl3::platform::get_platforms;
use parking_lot::Mutex;
use std::sync::Arc;

inventory::submit! {
    Provider { name: "opencl", priority: 10, list, open }
}

/// OpenCL C with the project's prelude. The kernels on matrix units are in NVIDIA's PTX.
pub static DIALECT: Dialect = Dialect {
    name: "opencl",
    folders: &["kernels-opencl", "kernels-cuda"],
    files: &[
        file(OPENCL, "prelude.h"),
        file(CUDA, "copies.h"),
        file(CUDA, "matrix/share.h"),
        file(CUDA, "matrix/matrix.h"),
        file(CUDA, "recurrent/recurrent_mma.h"),
        file(CUDA, "matrix/mma.c"),
        file(CUDA, "attention/attention_mma.c"),
    ],
    // As in CUDA, four waves.
    mma: &[Tile { m: 128, n: 128, k: 32, results: [8, 16] }, Tile { m: 64, n: 64, k: 32, results: [8, 4] }],
};

inventory::submit! {
    Registered(&DIALECT)
}

/// All devices of all platforms. The host's own processor is last, as PoCL has it before other drivers.
fn devices() -> Result<Vec<Device>> {
    // Some drivers tell a second thread that there are no devices while they start.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock();
    let platforms = get_platforms().map_err(|e| {
        Error::device("opencl", format!("no platform was found; is libOpenCL with a device's driver installed? ({e})"))
    })?;
    let of = |p: &opencl3::platform::Platform| p.get_devices(CL_DEVICE_TYPE_ALL).unwrap_or_default();
    let mut devices: Vec<Device> = platforms.iter().flat_map(of).map(Device::new).collect();
    devices.sort_by_key(|device| (!is_accelerator(device), !driver::is_pocl(device).unwrap_or(false)));
    match devices.is_empty() {
        true => Err(Error::device("opencl", "libOpenCL is there, but it knows no device")),
        false => Ok(devices),
    }
}

fn is_accelerator(device: &Device) -> bool {
    device.dev_type().is_ok_and(|kind| kind & CL_DEVICE_TYPE_CPU == 0)
}

fn list() -> Result<Vec<DeviceInfo>> {
    Ok(devices()?.iter().enumerate().map(|(i, device)| describe(i, device)).collect())
}

fn describe(ordinal: usize, device: &Device) -> DeviceInfo {
    let (description, driver, memory) = match driver::limits(device) {
        Ok(limits) => {
            let f64 = if limits.has_f64 { "f64" } else { "no f64" };
            let wave = if limits.wave > 1 { format!("waves of {}", limits.wave) } else { "no waves".into() };
            let gib = limits.memory as f64 / 2f64.powi(30);
            // PoCL names its version and then the processor by LLVM's name of it.
            let (name, driver) = (&limits.name, &limits.driver);
            let name =
                if driver::is_pocl(device).unwrap_or(false) { format!("PoCL on {}", bare(name)) } else { name.clone() };
            let description = format!("{name}, {gib:.1} GiB, {f64}, {wave}, {driver}");
            (description, limits.driver, Some(limits.memory))
        }
        Err(error) => (error.to_string(), String::new(), None),
    };
    let is_accelerator = is_accelerator(device);
    let memory = memory.filter(|_| is_accelerator);
    DeviceInfo { name: format!("opencl:{ordinal}"), description, driver, memory, is_accelerator }
}

/// The processor in PoCL's name of a device, such as `pthread-skylake-avx512-AMD EPYC`: what follows the driver and LLVM's target.
fn bare(name: &str) -> &str {
    let model = ["AMD ", "Intel", "ARM", "Apple"].iter().filter_map(|maker| name.find(maker)).min();
    model.map_or(name, |at| &name[at..])
}

/// Opens a device as a driver.
pub fn driver(ordinal: usize) -> Result<OpenCl> {
    let devices = devices()?;
    match devices.get(ordinal) {
        Some(device) => OpenCl::new(device),
        None => Err(Error::device("opencl", format!("device {ordinal} was asked for, there are {}", devices.len()))),
    }
}

fn open(ordinal: usize) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Gpu::new(Arc::new(driver(ordinal)?))))
}
