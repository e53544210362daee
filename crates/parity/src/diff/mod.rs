//! The tape diff: the error that each node of a step adds, on two devices.

mod lockstep;
mod place;
mod reference;

use isograd_core::{Device, Result, Tensor};
use lockstep::Lockstep;
use serde::Serialize;
use std::fmt;

/// Runs `step` once, on two devices in lockstep, and finds the error that each node adds on each of them.
///
/// `step` is called with a device that stands for both: it builds model and inputs there, from seeds, and returns the loss,
/// whose backward pass runs if it is on the tape. A step that calls `backward` itself, and then an optimizer, returns the
/// loss detached. Every call of a kernel runs on `a`, on `b` and on the CPU in f64, with the same inputs; its outputs are
/// compared, and all go on with what the CPU computes in the step's own dtype. So what is found of a node is its own doing.
///
/// Fused kernels are those that either device has, and are compared with their composite. Results are read back after every
/// call. The devices must multiply exactly ([`Precision::Exact`](isograd_core::Precision::Exact)).
///
/// An element may be off by `1.5 u |r| + max(8 E, 32 u_acc rho, C u_acc a) + eta`: u is the unit roundoff of its dtype, whose
/// term is dropped where arithmetic is in that dtype, u_acc that of the arithmetic, E the largest error of the CPU in the
/// latter, rho the largest |r| of the output (with 40 in place of 32 for pointwise kernels), a, for sums, the sum of the
/// absolute values of its K terms, C `8 + 4 log2(K + 1)` and for products `8 + 2 sqrt(K)` (`32 + 8 sqrt(K)` in 16 bits), eta
/// the smallest normal number. What moves, chooses or draws must be right to the bit.
///
/// Errors: those of the step and of the devices; `Value` if the step captures; `Shape` if the loss has several elements.
///
/// ```
/// use isograd_core::{DType, Device, Rng, Tensor};
///
/// # fn main() -> isograd_core::Result<()> {
/// # let (a, b) = (Device::cpu()?, Device::cpu()?);
/// let found = isograd_parity::diff(&a, &b, |device| {
///     let rng = Rng::new(7);
///     let w = Tensor::rand((3, 4), -1.0, 1.0, DType::F32, device, &rng)?.leaf()?;
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

/// What [`diff`] finds.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// The two devices.
    pub devices: [String; 2],
    /// Every call of a kernel, in the order in which they ran. Views and other nodes that run nothing are not among them.
    pub entries: Vec<Entry>,
}

/// One call of a kernel.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// On which way.
    pub direction: Direction,
    /// The op, on the way back that of the node whose gradient is computed.
    pub op: String,
    /// What ran.
    pub kernel: String,
    /// The line that called the op, as `file:line`, or the function in a program without line numbers; none where that is
    /// another thread's.
    pub place: Option<String>,
    /// Dtypes and shapes of what was read.
    pub inputs: Vec<String>,
    /// Dtypes and shapes of what was written.
    pub outputs: Vec<String>,
    /// How far each device is off; none where the device has no such kernel and runs the composite.
    pub found: [Option<Off>; 2],
}

/// Forward or backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Outside of a backward pass.
    Forward,
    /// Within one.
    Backward,
}

/// The error of a call's outputs, and the element where it is largest.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Off {
    /// In units of what is allowed: up to 1 is right. Infinite (`null` in JSON) where nothing is allowed, or where one of
    /// the values is not a number.
    pub bounds: f64,
    /// Which of the outputs.
    pub output: usize,
    /// The element's index in it.
    pub element: Vec<usize>,
    /// What the device has there.
    pub got: f64,
    /// What it should be.
    pub expected: f64,
}

impl Entry {
    /// The device that is beyond its tolerance, if one is, by its position.
    fn failed(&self) -> Option<usize> {
        self.found.iter().position(|off| off.as_ref().is_some_and(|off| off.bounds > 1.0))
    }
}

impl Diff {
    /// The first call that is beyond its tolerance.
    pub fn first(&self) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.failed().is_some())
    }

    /// The table of all calls, in order, and the last line, which says the first that is beyond its tolerance.
    pub fn text(&self) -> String {
        let widths = self.devices.each_ref().map(|name| name.len().max(6));
        let heads = [0, 1].map(|k| format!("{:>w$}", self.devices[k], w = widths[k]));
        let mut lines =
            vec![format!("    # way      {:<24} {:<24} {} {}  place and shapes", "op", "kernel", heads[0], heads[1])];
        for (i, entry) in self.entries.iter().enumerate() {
            let Entry { direction, op, kernel, .. } = entry;
            let cells = [0, 1].map(|k| match &entry.found[k] {
                Some(off) => format!("{:>w$.2}", off.bounds, w = widths[k]),
                None => format!("{:>w$}", "-", w = widths[k]),
            });
            let place = entry.place.as_deref().unwrap_or("-");
            let shapes = format!("{} -> {}", entry.inputs.join(", "), entry.outputs.join(", "));
            let [a, b] = cells;
            lines.push(format!("{:>5} {direction:<8} {op:<24} {kernel:<24} {a} {b}  {place}  {shapes}", i + 1));
        }
        lines.push(self.last());
        lines.join("\n")
    }

    fn last(&self) -> String {
        let first = self.entries.iter().enumerate().find_map(|(i, entry)| Some((i, entry, entry.failed()?)));
        let Some((i, entry, k)) = first else { return "no node is beyond its tolerance".into() };
        let Entry { direction, op, kernel, found, .. } = entry;
        let Some(off) = &found[k] else { return String::new() };
        let place = entry.place.as_deref().map(|place| format!(" at {place}")).unwrap_or_default();
        let Off { bounds, output, element, got, expected } = off;
        let shape = &entry.outputs[*output];
        format!(
            "the first beyond its tolerance: {op} {direction} (#{}, {kernel}){place} on {}: element {element:?} of {shape} \
             is {got:e}, expected {expected:e}, {bounds:.1} times what is allowed",
            i + 1,
            self.devices[k]
        )
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        })
    }
}
