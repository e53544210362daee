//! How near ops come to the copy bandwidth of a device.

use crate::case::{Case, Gen};
use crate::registry::Op;
use crate::report::number;
use isograd_core::{DType, Device, Result, Tensor, no_grad};
use serde::{Deserialize, Serialize};

/// Timed calls, of which the median counts.
const RUNS: usize = 5;
/// Elements of the case's shape, on an accelerator and on the host's processor.
const ELEMENTS: [usize; 2] = [1 << 24, 1 << 20];
/// Elements of f32 that are copied for the bandwidth, and read between calls so that caches hold nothing.
const COPIED: [usize; 2] = [64 << 20, 8 << 20];
/// The width of the case's shape.
const WIDTH: usize = 1024;

/// The time of an op's result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Speed {
    /// The op.
    pub op: String,
    /// The device.
    pub device: String,
    /// The dtype of the floats.
    pub dtype: String,
    /// Bytes of inputs and outputs.
    pub bytes: usize,
    /// The median.
    pub seconds: f64,
    /// The time that a copy of as many bytes takes, over this.
    #[serde(deserialize_with = "number")]
    pub fraction: f64,
}

/// Of two sizes that of a device.
fn size_on(device: &Device, sizes: [usize; 2]) -> usize {
    let all = Device::list().into_iter().filter_map(|(_, found)| found.ok()).flatten();
    let is_accelerator = { all }.any(|info| info.name == device.name() && info.is_accelerator);
    if is_accelerator { sizes[0] } else { sizes[1] }
}

/// The call that is timed, floats in f64 on the CPU; `None` if its operands do not grow with the case's shape.
fn case_on(device: &Device, op: &Op) -> Option<Case> {
    let elements = size_on(device, ELEMENTS);
    let case = (op.make)(&mut Gen::new(&[elements / WIDTH, WIDTH], 1, &Device::cpu().ok()?));
    let largest = case.inputs.iter().map(|(_, t)| t.numel()).max()?;
    (largest >= elements / 2).then_some(case)
}

/// Runs once what will be timed. Kernels that are kept on disk are compiled for many ops at once then, and not one after
/// another between measurements.
pub fn prepare(op: &Op, dtype: DType, device: &Device) -> Result<()> {
    let Some(case) = case_on(device, op) else { return Ok(()) };
    let case = case.map_floats(|t| t.cast(dtype))?.to(device)?;
    no_grad(|| op.call(&case)).and_then(|_| device.synchronize())
}

/// A device with what its measurements share.
pub struct Stand {
    device: Device,
    flushed: Tensor,
    /// Bytes that a copy reads and writes, a second.
    pub bandwidth: f64,
}

impl Stand {
    /// Measures the bandwidth of a device.
    pub fn new(device: &Device) -> Result<Stand> {
        let copied = size_on(device, COPIED);
        let from = Tensor::zeros(copied, DType::F32, device)?;
        let to = from.zeros_like()?;
        let mut stand = Stand { device: device.clone(), flushed: from, bandwidth: 0.0 };
        let bytes = 2 * copied * DType::F32.size();
        stand.bandwidth = bytes as f64 / stand.seconds(|| to.copy_(&stand.flushed))?;
        Ok(stand)
    }

    /// The median of some calls with cold caches.
    fn seconds(&self, f: impl Fn() -> Result<()>) -> Result<f64> {
        (0..2).try_for_each(|_| f())?;
        let mut times = Vec::new();
        for _ in 0..RUNS {
            self.flushed.sum(..)?;
            times.push(self.device.time(&f)?);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[RUNS / 2])
    }

    /// The speeds of an op in these dtypes; none where its operands do not grow with the case's shape, where it does not run,
    /// or where nothing is to be done.
    pub fn speeds(&self, op: &Op, dtypes: &[DType]) -> Vec<Speed> {
        if dtypes.is_empty() {
            return Vec::new();
        }
        let Some(case) = case_on(&self.device, op) else { return Vec::new() };
        let wide = case.to(&self.device);
        let launched = || self.device.backend().launch_count();
        let one = |&dtype: &DType| -> Result<Option<Speed>> {
            let rounded = wide.as_ref().ok().and_then(|wide| wide.map_floats(|t| t.cast(dtype)).ok());
            // A device without f64 leaves it to the CPU.
            let case = rounded.map_or_else(|| case.map_floats(|t| t.cast(dtype))?.to(&self.device), Ok)?;
            let size = |t: &Tensor| t.numel() * t.dtype().size();
            let read: usize = case.inputs.iter().map(|(_, t)| size(t)).sum();
            let before = launched();
            let written: usize = no_grad(|| op.call(&case))?.iter().map(size).sum();
            if before.is_some() && launched() == before {
                return Ok(None);
            }
            let seconds = no_grad(|| self.seconds(|| op.call(&case).map(drop)))?;
            let bytes = read + written;
            let fraction = bytes as f64 / self.bandwidth / seconds;
            let (op, device, dtype) = (op.name.into(), self.device.name().into(), dtype.to_string());
            Ok(Some(Speed { op, device, dtype, bytes, seconds, fraction }))
        };
        dtypes.iter().filter_map(|dtype| one(dtype).ok().flatten()).collect()
    }
}
