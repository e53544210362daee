//! Calls on a GPU over copies of tensors that the CPU holds.

use super::common::{CPU, T};
use isograd::{Backend, Call, Device, Kernel, Memory, Operand, Result};
use isograd_gpu::Gpu;
use isograd_gpu::driver::Driver;
use std::sync::Arc;

pub const SIZES: [usize; 14] = [0, 1, 2, 31, 32, 33, 64, 65, 127, 129, 257, 1000, 1025, 4097];

/// The GPU of a device, opened again; none for the CPU.
pub fn open(device: &Device) -> Option<Gpu> {
    let (kind, ordinal) = device.name().split_once(':').unwrap_or((device.name(), "0"));
    let ordinal = ordinal.parse().expect("a device has a number");
    let driver: Arc<dyn Driver> = match kind {
        "cuda" => Arc::new(isograd_cuda::Cuda::new(ordinal).expect("the device opens twice")),
        "hip" => Arc::new(isograd_hip::Hip::new(ordinal).expect("the device opens twice")),
        "opencl" => Arc::new(isograd_opencl::driver(ordinal).expect("the device opens twice")),
        _ => return None,
    };
    Some(Gpu::new(driver))
}

/// The GPU of a device, with a status of its own.
pub fn opened(device: &Device) -> Gpu {
    open(device).expect("the device is a GPU")
}

/// The outputs' whole buffers after a call on copies of all operands.
pub fn try_on(
    gpu: &Gpu,
    kernel: Kernel,
    inputs: &[&T],
    outputs: &[&T],
    ints: &[i64],
    floats: &[f64],
) -> Result<Vec<Vec<u8>>> {
    let copy = |t: &&T| -> Result<Box<dyn Memory>> {
        let memory = gpu.allocate(t.bytes().len())?;
        gpu.upload(&*memory, &t.bytes())?;
        Ok(memory)
    };
    let from: Vec<_> = inputs.iter().map(copy).collect::<Result<_>>()?;
    let to: Vec<_> = outputs.iter().map(copy).collect::<Result<_>>()?;
    let inputs: Vec<Operand<'_>> = inputs.iter().zip(&from).map(|(t, m)| Operand { memory: &**m, ..t.op() }).collect();
    let targets: Vec<Operand<'_>> = outputs.iter().zip(&to).map(|(t, m)| Operand { memory: &**m, ..t.op() }).collect();
    gpu.run(&Call { op: "test", kernel, inputs: &inputs, outputs: &targets, ints, floats })?;
    let mut all: Vec<Vec<u8>> = outputs.iter().map(|t| t.bytes()).collect();
    all.iter_mut().zip(&to).try_for_each(|(bytes, m)| gpu.download(&**m, 0, bytes))?;
    Ok(all)
}

/// As the above run twice: the bits must be the same.
pub fn on_gpu(gpu: &Gpu, kernel: Kernel, inputs: &[&T], outputs: &[&T], ints: &[i64], floats: &[f64]) -> Vec<Vec<u8>> {
    let once = || try_on(gpu, kernel, inputs, outputs, ints, floats).unwrap();
    let first = once();
    assert!(first == once(), "{kernel}: two runs differ");
    first
}

/// Runs a call on both devices; the outputs must be the same bit for bit.
#[track_caller]
pub fn same(gpu: &Gpu, kernel: Kernel, inputs: &[&T], outputs: &[&T], ints: &[i64], floats: &[f64], what: &str) {
    let got = on_gpu(gpu, kernel, inputs, outputs, ints, floats);
    super::common::run(kernel, inputs, outputs, ints, floats);
    for (k, (got, t)) in got.iter().zip(outputs).enumerate() {
        let expected = t.bytes();
        if let Some(at) = (0..expected.len()).find(|&i| got[i] != expected[i]) {
            let at = at / t.dtype.size() * t.dtype.size()..(at / t.dtype.size() + 1) * t.dtype.size();
            let (got, expected) = (&got[at.clone()], &expected[at.clone()]);
            let element = at.start / t.dtype.size();
            panic!("{kernel} {what}: output {k}, element {element} is {got:?}, expected {expected:?}");
        }
    }
}

/// The elements of a tensor whose buffer the GPU filled.
pub fn values_in(t: &T, bytes: &[u8]) -> Vec<f64> {
    let before = t.bytes();
    CPU.upload(&*t.memory, bytes).unwrap();
    let values = t.values();
    CPU.upload(&*t.memory, &before).unwrap();
    values
}
