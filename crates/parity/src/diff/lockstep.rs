//! Two devices in lockstep, as one device. Every call runs on both with the same inputs, and its outputs are compared with the CPU
//! in f64. Both devices continue with the CPU's outputs.

use super::reference::{Expected, expected};
use super::{Entry, Off};
use crate::compare::largest;
use isograd_core::origin::Origins;
use isograd_core::tape::observe;
use isograd_core::{
    Backend, Blas, Call, Checks, DType, Determinism, Device, Error, Kernel, Kind, Layout, Memory, MemoryStats, Operand,
    Precision, Result, Tensor, no_grad,
};
use std::any::{Any, TypeId};
use std::sync::{Arc, Mutex, MutexGuard};

/// Two devices as one.
pub struct Lockstep {
    devices: [Device; 2],
    origins: Mutex<Origins>,
    entries: Mutex<Vec<Entry>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Lockstep {
    pub fn new(a: &Device, b: &Device) -> Arc<Lockstep> {
        let devices = [a.clone(), b.clone()];
        let (origins, entries) = (Mutex::default(), Mutex::default());
        Arc::new(Lockstep { devices, origins, entries })
    }

    /// Runs `step` on both devices, and returns the findings of every call.
    pub fn run(self: Arc<Lockstep>, step: impl FnOnce(&Device) -> Result<()>) -> Result<Vec<Entry>> {
        let [a, b] = &self.devices;
        let device = Device::from_backend(format!("{a} and {b}"), self.clone());
        let told = self.clone();
        observe(move |event| lock(&told.origins).told(event), || step(&device))?;
        Ok(std::mem::take(&mut lock(&self.entries)))
    }

    /// Runs a call on one device, and returns the distance of its outputs; `None` if the device does not have the fused kernel.
    fn compare(&self, k: usize, call: &Call<'_>, expected: &[Option<Expected>]) -> Result<Option<Off>> {
        let backend = self.devices[k].backend();
        let (inputs, outputs) = (operands(k, call.inputs)?, operands(k, call.outputs)?);
        match (backend.run(&Call { inputs: &inputs, outputs: &outputs, ..*call }), call.kernel) {
            (Err(error), Kernel::Fused(_)) if error.kind() == Kind::Unsupported => return Ok(None),
            (ran, _) => ran?,
        }
        let mut worst = Off::default();
        for (i, (operand, expected)) in outputs.iter().zip(expected).enumerate() {
            let Some(expected) = expected else { continue };
            let mut bytes = vec![0; operand.layout.end() * operand.dtype.size()];
            backend.download(operand.memory, 0, &mut bytes)?;
            let got = gather(&bytes, operand)?.to_f64_vec()?;
            let (bounds, element) = largest(&got, &expected.exact, operand.dtype, |j| expected.bounds[j]);
            if worst.element.is_empty() && bounds >= worst.bounds || bounds > worst.bounds {
                let (got, expected) = (got[element], expected.exact[element]);
                worst = Off { bounds, output: i, element: indices(operand.layout, element), got, expected };
            }
        }
        Ok(Some(worst))
    }

    /// Writes the correct values of an output to both devices.
    fn put(&self, operand: &Operand<'_>, truth: &Tensor) -> Result<()> {
        let mirror = mirror(operand.memory)?;
        let mut bytes = lock(&mirror.truth);
        let size = operand.dtype.size();
        for (position, element) in positions(operand.layout).zip(truth.to_bytes()?.chunks(size)) {
            bytes[position * size..][..size].copy_from_slice(element);
        }
        self.upload_to_all(mirror, &bytes)
    }

    fn upload_to_all(&self, mirror: &Mirror, bytes: &[u8]) -> Result<()> {
        let mut copies = self.devices.iter().zip(&mirror.copies);
        copies.try_for_each(|(device, copy)| device.backend().upload(&**copy, bytes))
    }
}

/// A buffer on both devices. Between calls it has the same bytes on both.
struct Mirror {
    truth: Mutex<Vec<u8>>,
    copies: [Box<dyn Memory>; 2],
}

impl Memory for Mirror {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn mirror(memory: &dyn Memory) -> Result<&Mirror> {
    let found = memory.as_any().downcast_ref();
    found.ok_or_else(|| Error::backend("memory", "the memory belongs to another device"))
}

/// The operands of a call on device `k`.
fn operands<'a>(k: usize, operands: &[Operand<'a>]) -> Result<Vec<Operand<'a>>> {
    operands.iter().map(|o| Ok(Operand { memory: &*mirror(o.memory)?.copies[k], ..*o })).collect()
}

/// The operands of a call on the CPU, contiguous.
fn values(operands: &[Operand<'_>]) -> Result<Vec<Tensor>> {
    operands.iter().map(|o| gather(&lock(&mirror(o.memory)?.truth), o)).collect()
}

/// The elements of an operand, from the bytes of its buffer.
fn gather(bytes: &[u8], operand: &Operand<'_>) -> Result<Tensor> {
    let size = operand.dtype.size();
    let elements: Vec<u8> = positions(operand.layout).flat_map(|p| &bytes[p * size..][..size]).copied().collect();
    Tensor::from_bytes(&elements, operand.layout.shape(), operand.dtype, &Device::cpu()?)
}

/// The positions of a layout's elements, in row-major order.
fn positions(layout: &Layout) -> impl Iterator<Item = usize> {
    let at = |i| layout.offset() + indices(layout, i).iter().zip(layout.strides()).map(|(i, s)| i * s).sum::<usize>();
    (0..layout.shape().numel()).map(at)
}

/// The index of the element at a position in row-major order.
fn indices(layout: &Layout, position: usize) -> Vec<usize> {
    let strides = layout.shape().strides();
    layout.shape().dims().iter().zip(&strides).map(|(d, s)| position / s % d).collect()
}

fn shapes(operands: &[Operand<'_>]) -> Vec<String> {
    operands.iter().map(|o| format!("{} {}", o.dtype, o.layout.shape())).collect()
}

impl Backend for Lockstep {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        let [a, b] = &self.devices;
        let copies = [a.backend().allocate(bytes)?, b.backend().allocate(bytes)?];
        let mirror = Mirror { truth: Mutex::new(vec![0; bytes]), copies };
        self.upload_to_all(&mirror, &vec![0; bytes])?;
        Ok(Box::new(mirror))
    }

    fn upload(&self, memory: &dyn Memory, bytes: &[u8]) -> Result<()> {
        let mirror = mirror(memory)?;
        match lock(&mirror.truth).get_mut(..bytes.len()) {
            Some(truth) => truth.copy_from_slice(bytes),
            None => return Err(Error::backend("upload", format!("{} bytes do not fit", bytes.len()))),
        }
        self.upload_to_all(mirror, bytes)
    }

    fn download(&self, memory: &dyn Memory, offset: usize, bytes: &mut [u8]) -> Result<()> {
        match lock(&mirror(memory)?.truth).get(offset..offset.saturating_add(bytes.len())) {
            Some(truth) => bytes.copy_from_slice(truth),
            None => return Err(Error::backend("download", format!("{} bytes are not there", bytes.len()))),
        }
        Ok(())
    }

    fn run(&self, call: &Call<'_>) -> Result<()> {
        let (direction, op, origin) = lock(&self.origins).origin(call.op);
        // The reference's work is no part of the step.
        let expected = observe(|_| (), || no_grad(|| expected(call, &values(call.inputs)?, &values(call.outputs)?)))?;
        let found = [self.compare(0, call, &expected)?, self.compare(1, call, &expected)?];
        for (operand, expected) in call.outputs.iter().zip(&expected) {
            expected.as_ref().map_or(Ok(()), |expected| self.put(operand, &expected.truth))?;
        }
        let (inputs, outputs) = (shapes(call.inputs), shapes(call.outputs));
        let (op, kernel) = (op.to_string(), call.kernel.to_string());
        lock(&self.entries).push(Entry { direction, op, kernel, origin, inputs, outputs, found });
        Ok(())
    }

    fn supports(&self, fused: TypeId, dtype: DType) -> bool {
        self.devices.iter().any(|device| device.backend().supports(fused, dtype))
    }

    fn set_matmul_precision(&self, precision: Precision) {
        self.devices.iter().for_each(|device| device.set_matmul_precision(precision));
    }

    fn set_blas(&self, blas: Blas) {
        self.devices.iter().for_each(|device| device.set_blas(blas));
    }

    fn set_checks(&self, checks: Checks) {
        self.devices.iter().for_each(|device| device.set_checks(checks));
    }

    fn set_determinism(&self, determinism: Determinism) {
        self.devices.iter().for_each(|device| device.set_determinism(determinism));
    }

    fn synchronize(&self) -> Result<()> {
        self.devices.iter().try_for_each(|device| device.backend().synchronize())
    }

    fn memory(&self) -> MemoryStats {
        self.devices[0].memory()
    }

    fn reset_peak(&self) {
        self.devices.iter().for_each(|device| device.backend().reset_peak());
    }
}
