//! The speed of ops relative to the limits of a device: the copy bandwidth, and for products the rate of a large product.

use crate::case::{Case, Gen};
use crate::registry::{Changes, Class, Op};
use isograd_core::tape::{BackwardOptions, grad_with};
use isograd_core::{DType, Device, Result, Rng, Tensor, no_grad};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::Mutex;
use std::thread::{self, ScopedJoinHandle};

/// The number of timed calls, whose median counts, and the number for a slow call.
const RUNS: [usize; 2] = [5, 1];
/// The duration in seconds from which a call is slow. Other activity of the machine then matters less.
const LONG: f64 = 0.02;
/// Elements of the case's shape, on an accelerator and on the host's processor.
const ELEMENTS: [usize; 2] = [1 << 24, 1 << 20];
/// The same for matrix products, whose work grows faster than their operands.
const FACTORS: [usize; 2] = [1 << 24, 1 << 16];
/// Elements of f32 that are copied to measure the bandwidth, and read between calls to clear the caches.
const COPIED: [usize; 2] = [64 << 20, 8 << 20];
/// The width of the case's shape.
const WIDTH: usize = 1024;

/// A number that JSON has as null if it is not finite; null is read as infinity.
pub(crate) fn number<'de, D: Deserializer<'de>>(json: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(json)?.unwrap_or(f64::INFINITY))
}

/// The time of a call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pass {
    /// Bytes that must be read and written. Forward: inputs and outputs. Backward: the output's gradient, the inputs (unless the op
    /// is linear in them), and the written gradients.
    pub bytes: usize,
    /// The median time. Backward, it includes the additional time of the call if gradients are required.
    pub seconds: f64,
    /// The time of a copy of as many bytes, or of a large product with as many multiplications if that is longer, divided by
    /// `seconds`.
    #[serde(deserialize_with = "number")]
    pub fraction: f64,
}

/// An input of a timed call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timed {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its dtype.
    pub dtype: String,
    /// For integers, an upper bound of all elements.
    pub below: Option<i64>,
    /// True if its gradient was timed.
    #[serde(default)]
    pub gradient: bool,
}

/// The times of an op's result, and of its gradients.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Speed {
    /// The op.
    pub op: String,
    /// The device.
    pub device: String,
    /// The dtype of the floats.
    pub dtype: String,
    /// The pass of the result.
    #[serde(flatten)]
    pub forward: Pass,
    /// The pass of all gradients together, if any takes time.
    #[serde(default)]
    pub backward: Option<Pass>,
    /// The call's attributes, by name.
    #[serde(default)]
    pub attributes: Value,
    /// Its inputs.
    #[serde(default)]
    pub inputs: Vec<Timed>,
}

/// The index of a pair's value for a device: 0 for an accelerator, 1 for the host's processor.
fn kind_of(device: &Device) -> usize {
    let all = Device::list().into_iter().filter_map(|(_, found)| found.ok()).flatten();
    usize::from(!{ all }.any(|info| info.name == device.name() && info.is_accelerator))
}

/// True if speeds in a dtype are measured on a device. On the host's processor, f32 and bf16 are.
fn measures(kind: usize, dtype: DType) -> bool {
    dtype.is_float() && (kind == 0 || [DType::F32, DType::BF16].contains(&dtype))
}

fn multiplies(op: &Op) -> bool {
    matches!(op.class, Class::Product | Class::Dense)
}

/// The timed calls of these ops, drawn in parallel.
pub fn cases(ops: &[&Op], device: &Device) -> Vec<Option<Case>> {
    let kind = kind_of(device);
    thread::scope(|scope| {
        let start = |op| thread::Builder::new().spawn_scoped(scope, move || case_of(op, kind));
        let drawn: Vec<_> = ops.iter().map(|&op| (op, start(op))).collect();
        let case = |(op, thread)| match thread {
            Ok(thread) => ScopedJoinHandle::join(thread).unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => case_of(op, kind),
        };
        drawn.into_iter().map(case).collect()
    })
}

/// The timed call, with f64 floats on the CPU; `None` if its operands do not grow with the case's shape.
fn case_of(op: &Op, kind: usize) -> Option<Case> {
    let elements = if multiplies(op) { FACTORS[kind] } else { ELEMENTS[kind] };
    let case = (op.make)(&mut Gen::new(&[elements / WIDTH, WIDTH], 1, &Device::cpu().ok()?));
    let largest = case.inputs.iter().map(|(_, t)| t.numel()).max()?;
    (largest >= elements / 2).then_some(case)
}

/// Runs a call once if it will be timed. Kernels that are cached on disk are then compiled for many ops in parallel, instead of
/// between measurements.
pub fn prepare(op: &Op, dtype: DType, device: &Device) -> Result<()> {
    let kind = kind_of(device);
    let Some(case) = measures(kind, dtype).then(|| case_of(op, kind)).flatten() else { return Ok(()) };
    let case = case.map_floats(|t| t.cast(dtype))?.to(device)?;
    no_grad(|| op.call_in_place(&case))?;
    if let Some(backward) = Backward::of(op, &case)? {
        backward.run()?;
    }
    device.synchronize()
}

/// A backward pass that can be repeated.
struct Backward {
    /// The call, with leaves for inputs with gradients.
    case: Case,
    /// The positions of the inputs whose gradients are computed.
    leaves: Vec<usize>,
    output: Tensor,
    gradient: Tensor,
}

impl Backward {
    /// The backward pass of the first differentiable output of a call; `None` without one.
    fn of(op: &Op, case: &Case) -> Result<Option<Backward>> {
        let (mut case, leaves) = (case.clone(), op.differentiable(case));
        for &i in &leaves {
            case.inputs[i].1 = case.inputs[i].1.require_grad()?;
        }
        let Some(output) = op.call(&case)?.into_iter().find(Tensor::requires_grad) else { return Ok(None) };
        let gradient = output.detach().ones_like()?;
        let mut backward = Backward { case, leaves, output, gradient };
        if backward.run().is_err() {
            // Each of several outputs depends on some of the inputs.
            let leaves = std::mem::take(&mut backward.leaves);
            backward.leaves = leaves.into_iter().filter(|&i| backward.of_leaves(&[i]).is_ok()).collect();
        }
        Ok(Some(backward))
    }

    fn run(&self) -> Result<Vec<Tensor>> {
        self.of_leaves(&self.leaves)
    }

    fn of_leaves(&self, leaves: &[usize]) -> Result<Vec<Tensor>> {
        let gradient = Some(self.gradient.clone());
        let leaves: Vec<&Tensor> = leaves.iter().map(|&i| &self.case.inputs[i].1).collect();
        grad_with(&self.output, &leaves, &BackwardOptions { gradient, retain: true, ..Default::default() })
    }

    /// Bytes that must be moved for these gradients. A gradient that shares the memory of the output's gradient is not written.
    fn bytes(&self, op: &Op, gradients: &[Tensor]) -> usize {
        let read = self.case.inputs.iter().filter(|(_, t)| !op.linear || !t.dtype().is_float()).map(|(_, t)| size(t));
        let written = gradients.iter().filter(|g| !g.shares_memory(&self.gradient)).map(size);
        size(&self.gradient) + read.chain(written).sum::<usize>()
    }
}

/// The bytes of the elements. Elements that share a position count once.
fn size(t: &Tensor) -> usize {
    let extents = t
        .dims()
        .iter()
        .zip(t.layout().strides())
        .map(|(&extent, &stride)| if stride == 0 { extent.min(1) } else { extent });
    extents.product::<usize>() * t.dtype().size()
}

/// The bytes that a call must read and write. Inputs from which it selects elements count no more than its outputs.
fn moved(op: &Op, case: &Case, outputs: &[Tensor]) -> usize {
    let written: usize = outputs.iter().map(size).sum();
    let of = |t: &Tensor| if op.picks && t.dtype().is_float() { size(t).min(written) } else { size(t) };
    let (Some(changes), Some(((_, x), others))) = (op.changes, case.inputs.split_first()) else {
        return written + case.inputs.iter().map(|(_, t)| of(t)).sum::<usize>();
    };
    let given = others.iter().map(|(_, t)| t).filter(|t| t.dtype() == x.dtype()).map(size).sum();
    let changed = match changes {
        Changes::All => 2 * size(x),
        Changes::Overwrites => size(x),
        Changes::Places => 2 * size(x).min(given),
        Changes::Every => return case.inputs.iter().map(|(_, t)| 2 * size(t)).sum(),
    };
    changed + others.iter().map(|(_, t)| size(t)).sum::<usize>()
}

fn timed(name: &str, t: &Tensor) -> Result<Timed> {
    let below = match t.dtype() {
        DType::I32 | DType::I64 if t.numel() > 0 => Some(t.cast(DType::I64)?.amax(..)?.item::<f64>()? as i64 + 1),
        _ => None,
    };
    Ok(Timed { name: name.into(), shape: t.dims().to_vec(), dtype: t.dtype().to_string(), below, gradient: false })
}

/// The additions and multiplications of a matrix product, from the elements of its operands.
fn operations(inputs: &[(String, Tensor)], y: &Tensor) -> f64 {
    let elements = inputs.iter().take(2).map(|(_, t)| t).chain([y]).map(|t| t.numel() as f64);
    2.0 * elements.product::<f64>().sqrt()
}

/// A device, with the shared data of its measurements.
pub struct Stand {
    device: Device,
    kind: usize,
    flushed: Tensor,
    /// Operations per second of a product of large square matrices, for the dtypes measured so far.
    rates: Mutex<HashMap<DType, f64>>,
    /// Bytes per second that a copy reads and writes.
    pub bandwidth: f64,
}

impl Stand {
    /// Measures the bandwidth of a device.
    pub fn new(device: &Device) -> Result<Stand> {
        let kind = kind_of(device);
        let copied = COPIED[kind];
        let from = Tensor::zeros(copied, DType::F32, device)?;
        let to = from.zeros_like()?;
        let mut stand = Stand { device: device.clone(), kind, flushed: from, rates: Mutex::default(), bandwidth: 0.0 };
        let bytes = 2 * copied * DType::F32.size();
        stand.bandwidth = bytes as f64 / stand.seconds(|| to.copy_(&stand.flushed))?;
        Ok(stand)
    }

    /// True if speeds in a dtype are measured.
    pub fn measures(&self, dtype: DType) -> bool {
        measures(self.kind, dtype)
    }

    /// The median of some calls with cold caches.
    fn seconds(&self, f: impl Fn() -> Result<()>) -> Result<f64> {
        f()?;
        let runs = RUNS[usize::from(self.device.time(&f)? > LONG)];
        let mut times = Vec::new();
        for _ in 0..runs {
            self.flushed.sum(..)?;
            times.push(self.device.time(&f)?);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[runs / 2])
    }

    /// The rate of products in a dtype.
    fn rate(&self, dtype: DType) -> Result<f64> {
        let known = self.rates.lock().unwrap_or_else(|e| e.into_inner()).get(&dtype).copied();
        if let Some(rate) = known {
            return Ok(rate);
        }
        let side = FACTORS[self.kind].isqrt();
        // A product of constant matrices takes less power, and less time.
        let x = Tensor::rand((side, side), -1.0, 1.0, dtype, &self.device, &Rng::new(0))?;
        let seconds = self.seconds(|| x.matmul(&x).map(drop))?;
        let rate = 2.0 * (side as f64).powi(3) / seconds;
        self.rates.lock().unwrap_or_else(|e| e.into_inner()).insert(dtype, rate);
        Ok(rate)
    }

    /// The speed of a pass that moves these bytes, takes `seconds`, and needs at least `least` seconds to compute.
    fn pass(&self, bytes: usize, least: f64, seconds: f64) -> Pass {
        Pass { bytes, seconds, fraction: least.max(bytes as f64 / self.bandwidth) / seconds }
    }

    /// All gradients, including the additional time of the call if they are required.
    fn backward(&self, op: &Op, backward: &Backward, bytes: usize, least: f64) -> Result<Pass> {
        let call = || op.call(&backward.case).map(drop);
        let more = (self.seconds(call)? - self.seconds(|| no_grad(call))?).max(0.0);
        Ok(self.pass(bytes, least, self.seconds(|| backward.run().map(drop))? + more))
    }

    /// The speeds of an op's call, as drawn by `cases`, in these dtypes. Dtypes in which it does not run, or has no work, are
    /// omitted.
    pub fn speeds(&self, op: &Op, case: &Case, dtypes: &[DType]) -> Vec<Speed> {
        let wide = case.to(&self.device);
        let launched = || self.device.backend().launch_count();
        let one = |&dtype: &DType| -> Result<Option<Speed>> {
            let rounded = wide.as_ref().ok().and_then(|wide| wide.map_floats(|t| t.cast(dtype)).ok());
            // A device without f64 rounds on the CPU.
            let case = rounded.map_or_else(|| case.map_floats(|t| t.cast(dtype))?.to(&self.device), Ok)?;
            let before = launched();
            let outputs = no_grad(|| op.call(&case))?;
            let bytes = moved(op, &case, &outputs);
            let least = match &outputs[..] {
                [y, ..] if multiplies(op) => operations(&case.inputs, y) / self.rate(dtype)?,
                _ => 0.0,
            };
            drop(outputs);
            if before.is_some() && launched() == before {
                return Ok(None);
            }
            let forward = self.pass(bytes, least, self.seconds(|| no_grad(|| op.call_in_place(&case).map(drop)))?);
            let mut inputs = case.inputs.iter().map(|(name, t)| timed(name, t)).collect::<Result<Vec<_>>>()?;
            let backward = match Backward::of(op, &case)? {
                Some(backward) => {
                    backward.leaves.iter().for_each(|&i| inputs[i].gradient = true);
                    let before = launched();
                    let bytes = backward.bytes(op, &backward.run()?);
                    let is_free = before.is_some() && launched() == before;
                    if is_free { None } else { Some(self.backward(op, &backward, bytes, 2.0 * least)?) }
                }
                None => None,
            };
            let (device, dtype) = (self.device.name().into(), dtype.to_string());
            Ok(Some(Speed {
                op: op.name.into(),
                device,
                dtype,
                forward,
                backward,
                attributes: case.attributes.clone(),
                inputs,
            }))
        };
        dtypes.iter().filter_map(|dtype| one(dtype).ok().flatten()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{OPS, find};

    #[test]
    fn calls_that_are_timed_move_as_much_as_the_shape_has() {
        for op in OPS.iter().filter(|op| op.picks || op.collects) {
            let case = case_of(op, 1).unwrap();
            let least = ELEMENTS[1] / 4;
            let mut moved: Vec<usize> =
                case.inputs.iter().map(|(_, t)| t).filter(|t| t.dtype().is_float()).map(Tensor::numel).collect();
            if op.picks {
                moved.extend(op.call(&case).unwrap().iter().map(Tensor::numel));
            }
            assert!(moved.iter().all(|&n| n >= least), "{} of {} moves {moved:?}", op.name, case.attributes);
        }
    }

    #[test]
    fn bytes_are_those_that_must_be_moved() -> Result<()> {
        let cpu = Device::cpu()?;
        let bytes = |name: &str, attributes, inputs: Vec<(&str, Tensor)>| -> Result<[usize; 2]> {
            let (op, case) = (find(name).unwrap(), Case::new(attributes, inputs));
            let forward = moved(op, &case, &op.call(&case)?);
            let backward = Backward::of(op, &case)?.unwrap();
            Ok([forward, backward.bytes(op, &backward.run()?)])
        };
        let x = || Tensor::ones((64, 16), DType::F64, &cpu);
        let whole = 64 * 16 * 8;
        // The gradient of a mean is an expanded view.
        let of_rows = serde_json::json!({"dims": [1], "keepdim": false});
        assert_eq!(bytes("mean", of_rows, vec![("x", x()?)])?, [whole + 64 * 8, 2 * 64 * 8]);
        // The gradient of a product reads the operands again.
        let product = vec![("a", x()?), ("b", x()?)];
        assert_eq!(bytes("mul", Value::Null, product)?, [3 * whole, 5 * whole]);
        // The call reads only the selected rows.
        let index = Tensor::zeros(8, DType::I64, &cpu)?;
        let picked = vec![("x", x()?), ("index", index)];
        let rows = 8 * 16 * 8;
        assert_eq!(bytes("index_select", serde_json::json!({"dim": 0}), picked)?, [2 * rows + 64, rows + 64 + whole]);
        Ok(())
    }

    #[test]
    fn ops_in_place_are_timed_on_what_they_change() -> Result<()> {
        let cpu = Device::cpu()?;
        let ones = |rows| Tensor::ones((rows, 16), DType::F64, &cpu);
        let (whole, rows) = (64 * 16 * 8, 8 * 16 * 8);
        let index = Tensor::zeros(8, DType::I64, &cpu)?;
        let cases = [
            ("fill_", Case::new(serde_json::json!({"value": 1.5}), vec![("x", ones(64)?)]), whole, 1.5),
            ("add_", Case::of(vec![("x", ones(64)?), ("src", ones(64)?)]), 3 * whole, 2.0),
            (
                "index_add_",
                Case::new(serde_json::json!({"dim": 0}), vec![("x", ones(64)?), ("index", index), ("src", ones(8)?)]),
                3 * rows + 64,
                9.0,
            ),
            ("clip_grad_value", Case::new(serde_json::json!({"clip": 0.5}), vec![("g0", ones(64)?)]), 2 * whole, 0.5),
        ];
        for (name, case, bytes, first) in cases {
            let (op, x) = (find(name).unwrap(), &case.inputs[0].1);
            assert_eq!(moved(op, &case, &op.call(&case)?), bytes, "{name}");
            assert_eq!(x.to_vec::<f64>()?[0], 1.0, "{name} of a copy");
            op.call_in_place(&case)?;
            assert_eq!(x.to_vec::<f64>()?[0], first, "{name} in place");
        }
        Ok(())
    }
}
