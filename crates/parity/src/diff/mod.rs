//! The tape diff: the error that each node of a step adds, on two devices.

mod lockstep;
mod ranks;
mod reference;

pub use isograd_core::Direction;
use isograd_core::{Device, Result, Tensor};
use lockstep::Lockstep;
use serde::{Serialize, Serializer};
use std::collections::HashMap;

/// Runs `step` once, on two devices in lockstep, and finds the error that each node adds on each of them.
///
/// `step` is called with a device that stands for both. It builds model and inputs there, from seeds, and returns the loss. If the
/// loss is on the tape, its backward pass runs. A step that calls `backward` itself, and then an optimizer, returns the loss
/// detached. Every kernel call runs on `a`, on `b` and on the CPU in f64, with the same inputs. Its outputs are compared, and all
/// devices continue with the CPU's result in the step's own dtype. An error found at a node is therefore the node's own.
///
/// A fused kernel runs if either device has it, and is compared with its composite. Results are read back after every call. The
/// devices must multiply exactly ([`Precision::Exact`](isograd_core::Precision::Exact)).
///
/// The bound of an element's error is `1.5 u |r| + max(8 E, 32 u_acc rho, C u_acc a) + eta`.
///
/// - u: unit roundoff of its dtype; the term is dropped if the arithmetic is in this dtype.
/// - u_acc: unit roundoff of the arithmetic.
/// - E: the CPU's largest error in the dtype of the arithmetic.
/// - rho: the largest |r| of the output. For pointwise kernels its factor is 40 instead of 32.
/// - a: for sums, the sum of the absolute values of its K terms.
/// - C: `8 + 4 log2(K + 1)`, for products `8 + 2 sqrt(K)` (`32 + 8 sqrt(K)` in 16 bits).
/// - eta: the smallest normal number.
///
/// Kernels that move, select or draw must be correct to the bit.
///
/// Errors: the errors of the step and of the devices; `Value` if the step captures; `Shape` if the loss has several elements.
///
/// ```
/// use isograd_core::{DType, Device, Rng, Tensor};
///
/// # fn main() -> isograd_core::Result<()> {
/// # let (a, b) = (Device::cpu()?, Device::cpu()?);
/// let found = isograd_parity::diff(&a, &b, |device| {
///     let rng = Rng::new(7);
///     let w = Tensor::rand((3, 4), -1.0, 1.0, DType::F32, device, &rng)?.require_grad()?;
///     let x = Tensor::rand((2, 3), -1.0, 1.0, DType::F32, device, &rng)?;
///     x.matmul(&w)?.softmax(-1)?.square()?.sum(..)
/// })?;
/// assert!(found.first().is_none(), "{}", found.text());
/// # Ok(())
/// # }
/// ```
pub fn diff(a: &Device, b: &Device, step: impl FnOnce(&Device) -> Result<Tensor>) -> Result<Diff> {
    let entries = Lockstep::new(a, b).run(|device| {
        let loss = step(device)?;
        if loss.requires_grad() { loss.backward() } else { Ok(()) }
    })?;
    Ok(Diff { devices: [a, b].map(|device| device.name().to_string()), entries })
}

/// The result of [`diff`].
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// The two devices.
    pub devices: [String; 2],
    /// Every kernel call, in the order of execution. Views and other nodes without kernels are not included.
    pub entries: Vec<Entry>,
}

/// One call of a kernel.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Forward or backward.
    #[serde(serialize_with = "as_text")]
    pub direction: Direction,
    /// The op; in the backward pass, the op of the node whose gradient is computed.
    pub op: String,
    /// The kernel.
    pub kernel: String,
    /// The line that called the op, as `file:line`, or the function in a program without line numbers; the node, in a graph of ONNX;
    /// `None` for a call from another thread.
    pub origin: Option<String>,
    /// Dtypes and shapes of the inputs.
    pub inputs: Vec<String>,
    /// Dtypes and shapes of the outputs.
    pub outputs: Vec<String>,
    /// The error on each device; `None` if the device does not have the kernel and runs the composite.
    pub found: [Option<Off>; 2],
}

fn as_text<S: Serializer>(direction: &Direction, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(direction)
}

/// The error of a call's outputs, and the element where it is largest.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Off {
    /// In units of the bound: up to 1 is correct. Infinite (`null` in JSON) if the bound is 0, or if one of the values is NaN.
    pub bounds: f64,
    /// The number of the output.
    pub output: usize,
    /// The element's index in the output.
    pub element: Vec<usize>,
    /// The device's value.
    pub got: f64,
    /// The correct value.
    pub expected: f64,
}

impl Entry {
    /// The position of a device that exceeds its tolerance, if any.
    fn failed(&self) -> Option<usize> {
        self.found.iter().position(|off| off.as_ref().is_some_and(|off| off.bounds > 1.0))
    }
}

impl Diff {
    /// The errors of a device as bytes, for [`beside`](Diff::beside) on another host. Those of the first device.
    pub fn to_bytes(&self) -> Vec<u8> {
        ranks::to_bytes(&self.entries)
    }

    /// The first device beside that of another run of the same step, whose errors are `bytes`. Errors: `Value` naming the first call that
    /// the other run does not have.
    pub fn beside(&self, names: [String; 2], bytes: &[u8]) -> Result<Diff> {
        Ok(Diff { devices: names, entries: ranks::beside(&self.entries, bytes)? })
    }

    /// The first call that exceeds its tolerance.
    pub fn first(&self) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.failed().is_some())
    }

    /// The [`table`](Diff::table), and the [`verdict`](Diff::verdict) as the last line.
    pub fn text(&self) -> String {
        format!("{}\n{}", self.table(), self.verdict())
    }

    /// All calls, in order. Calls of the same origin, kernel and shapes are one line, with their number and their largest errors.
    pub fn table(&self) -> String {
        let widths = self.devices.each_ref().map(|name| name.len().max(6));
        let heads = [0, 1].map(|k| format!("{:>w$}", self.devices[k], w = widths[k]));
        let mut lines = vec![format!(
            "    # calls way      {:<24} {:<24} {} {}  origin and shapes",
            "op", "kernel", heads[0], heads[1]
        )];
        for (first, calls) in self.folded() {
            let Entry { direction, op, kernel, .. } = calls[0];
            let largest = |k: usize| {
                let bounds = calls.iter().filter_map(|entry| Some(entry.found[k].as_ref()?.bounds));
                bounds.fold(None, |worst: Option<f64>, next| Some(worst.map_or(next, |worst| worst.max(next))))
            };
            let cells = [0, 1].map(|k| match largest(k) {
                Some(bounds) => format!("{bounds:>w$.2}", w = widths[k]),
                None => format!("{:>w$}", "-", w = widths[k]),
            });
            let origin = calls[0].origin.as_deref().unwrap_or("-");
            let shapes = format!("{} -> {}", calls[0].inputs.join(", "), calls[0].outputs.join(", "));
            let ([a, b], count) = (cells, calls.len());
            lines.push(format!(
                "{:>5} {count:>5} {direction:<8} {op:<24} {kernel:<24} {a} {b}  {origin}  {shapes}",
                first + 1
            ));
        }
        lines.join("\n")
    }

    /// The calls that differ in nothing but their values, with the position of the first, in the order of the first.
    fn folded(&self) -> Vec<(usize, Vec<&Entry>)> {
        let mut known = HashMap::new();
        let mut folded: Vec<(usize, Vec<&Entry>)> = Vec::new();
        for (i, entry) in self.entries.iter().enumerate() {
            let Entry { direction, op, kernel, origin, inputs, outputs, .. } = entry;
            let at = *known.entry((direction.to_string(), op, kernel, origin, inputs, outputs)).or_insert_with(|| {
                folded.push((i, Vec::new()));
                folded.len() - 1
            });
            folded[at].1.push(entry);
        }
        folded
    }

    /// `no node is beyond its tolerance`, or the first call that is, with its worst element.
    pub fn verdict(&self) -> String {
        let first = self.entries.iter().enumerate().find_map(|(i, entry)| Some((i, entry, entry.failed()?)));
        let Some((i, entry, k)) = first else { return "no node is beyond its tolerance".into() };
        let Entry { direction, op, kernel, found, .. } = entry;
        let Some(off) = &found[k] else { return String::new() };
        let origin = entry.origin.as_deref().map(|origin| format!(" at {origin}")).unwrap_or_default();
        let Off { bounds, output, element, got, expected } = off;
        let shape = &entry.outputs[*output];
        format!(
            "the first beyond its tolerance: {op} {direction} (#{}, {kernel}){origin} on {}: element {element:?} of {shape} \
             is {got:e}, expected {expected:e}, {bounds:.1} times what is allowed",
            i + 1,
            self.devices[k]
        )
    }
}
