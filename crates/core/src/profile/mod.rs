//! Times of ops: how long the device works for each op of a step, forward and backward, by the line of the program that called it.

mod holders;
#[cfg(feature = "backtrace")]
mod lines;
pub mod origin;

pub use origin::Direction;

use crate::backend::Mark;
use crate::thread::{Event, Kind, Listener, Outer, listen};
use crate::{Device, MemoryStats, Result};
use holders::{Allocation, Holders};
use origin::Origins;
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::Arc;

/// One call of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct OpTime {
    /// The op; in the backward pass the op whose gradient is computed.
    pub op: &'static str,
    /// The op that launched the kernel: a part of `op`, or `op` itself.
    pub part: &'static str,
    /// The direction.
    pub direction: Direction,
    /// The part of the model, if it is named (`nn::profile_model`), and `file:line` of the program that called the op, in a program with line numbers and isograd's
    /// feature `profile`.
    pub origin: Option<String>,
    /// Seconds from the start of the profile to that of the kernel.
    pub start: f64,
    /// Seconds of the device.
    pub seconds: f64,
    /// Bytes of the results.
    pub bytes: usize,
}

/// All calls of an op from one origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Total {
    /// As [`OpTime::op`].
    pub op: &'static str,
    /// As [`OpTime::direction`].
    pub direction: Direction,
    /// As [`OpTime::origin`].
    pub origin: Option<String>,
    /// The number of kernels.
    pub calls: usize,
    /// Seconds of the device.
    pub seconds: f64,
    /// Bytes of the results.
    pub bytes: usize,
}

/// The calls of a step, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The calls.
    pub ops: Vec<OpTime>,
    /// Seconds of the device from the start to the end, with the time between calls.
    pub seconds: f64,
    /// The device's memory at the end; the peak is that of the step.
    pub memory: MemoryStats,
}

/// A call whose times are read after the step.
struct Started {
    op: &'static str,
    part: &'static str,
    direction: Direction,
    origin: Option<String>,
    bytes: usize,
    from: Result<Mark>,
}

/// The listener that measures the kernels of a device.
struct Profiler {
    device: Device,
    origins: Origins,
    /// Kernels that have started and not ended.
    started: Vec<Started>,
    ended: Vec<(Started, Result<Mark>)>,
    holders: Holders,
}

impl Listener for Profiler {
    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Kernel, Kind::Memory, Kind::Tape]
    }

    fn hear(&mut self, event: &Event<'_>) {
        match event {
            Event::Kernel(run) if *run.device == self.device => {
                let (direction, op, origin) = self.origins.origin(run.call.op);
                let bytes = run.call.outputs.iter().map(|y| y.layout.shape().numel() * y.dtype.size()).sum();
                let from = self.device.backend().mark();
                self.started.push(Started { op, part: run.call.op, direction, origin, bytes, from });
            }
            Event::Ran(run) if *run.device == self.device => {
                let to = self.device.backend().mark();
                self.ended.extend(self.started.pop().map(|call| (call, to)));
            }
            Event::Allocation { op, storage, bytes } => {
                let (direction, op, origin) = self.origins.origin(op);
                self.holders.note(Allocation {
                    op,
                    direction,
                    origin,
                    bytes: *bytes,
                    storage: Arc::downgrade(storage),
                });
            }
            Event::Refusal { device, holders } => holders.borrow_mut().extend(self.holders.largest(device)),
            Event::Tape(event) => self.origins.told(*event),
            _ => (),
        }
    }
}

/// Runs `f`, and measures each kernel that this thread runs on `device`. Events of the device's clock lie around a kernel; nothing waits
/// before the end. A captured step is measured in the run that captures it, not when it is replayed. A profile within a profile takes its calls.
/// An error for want of memory names the five largest holders of it: ops and origins of this thread whose results are alive.
///
/// ```
/// # use isograd_core::{Device, Result, Tensor, profile};
/// fn show(x: &Tensor) -> Result<()> {
///     let (_, profile) = profile(x.device(), || x.square()?.sum(..)?.backward())?;
///     println!("{profile}");
///     Ok(())
/// }
/// ```
///
/// Errors: those of `f`, and of the device.
pub fn profile<R>(device: &Device, f: impl FnOnce() -> Result<R>) -> Result<(R, Profile)> {
    let backend = device.backend();
    device.synchronize()?;
    backend.reset_peak();
    let start = backend.mark()?;
    let (origins, holders) = (Origins::default(), Holders::default());
    let profiler = Profiler { device: device.clone(), origins, started: Vec::new(), ended: Vec::new(), holders };
    let (result, Profiler { ended, .. }) = listen(profiler, Outer::Pauses, f);
    let result = result?;
    let end = backend.mark()?;
    let timed = |(call, to): (Started, Result<Mark>)| {
        let (from, to) = (call.from?, to?);
        Ok(OpTime {
            op: call.op,
            part: call.part,
            direction: call.direction,
            origin: call.origin,
            start: backend.between(&start, &from)?,
            seconds: backend.between(&from, &to)?,
            bytes: call.bytes,
        })
    };
    let ops = ended.into_iter().map(timed).collect::<Result<Vec<_>>>()?;
    Ok((result, Profile { ops, seconds: backend.between(&start, &end)?, memory: device.memory() }))
}

impl Profile {
    /// Seconds in which the device ran kernels.
    pub fn busy(&self) -> f64 {
        self.ops.iter().map(|op| op.seconds).sum()
    }

    /// The calls by op, direction and origin, the longest first.
    pub fn totals(&self) -> Vec<Total> {
        let mut totals: Vec<Total> = Vec::new();
        let mut known: HashMap<(&str, Direction, Option<&str>), usize> = HashMap::new();
        for call in &self.ops {
            let at = *known.entry((call.op, call.direction, call.origin.as_deref())).or_insert_with(|| {
                let origin = call.origin.clone();
                totals.push(Total { op: call.op, direction: call.direction, origin, calls: 0, seconds: 0.0, bytes: 0 });
                totals.len() - 1
            });
            totals[at].calls += 1;
            totals[at].seconds += call.seconds;
            totals[at].bytes += call.bytes;
        }
        totals.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        totals
    }

    /// The calls as a trace, a JSON text that `chrome://tracing` and ui.perfetto.dev show. Times are in microseconds.
    pub fn chrome_trace(&self) -> String {
        let mut text = String::from("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
        for (i, call) in self.ops.iter().enumerate() {
            let (thread, category) = (if call.direction == Direction::Forward { 1 } else { 2 }, call.direction);
            let origin = call.origin.as_deref().unwrap_or("").replace('\\', "\\\\").replace('"', "\\\"");
            let comma = if i == 0 { "" } else { "," };
            let (start, length) = (call.start * 1e6, call.seconds * 1e6);
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "{comma}\n{{\"name\":\"{}\",\"cat\":\"{category}\",\"ph\":\"X\",\"pid\":1,\"tid\":{thread},\"ts\":{start:.3},\
                 \"dur\":{length:.3},\"args\":{{\"part\":\"{}\",\"origin\":\"{origin}\",\"bytes\":{}}}}}",
                call.op, call.part, call.bytes
            );
        }
        text.push_str("\n]}\n");
        text
    }

    /// The `rows` longest of the [`totals`](Profile::totals) as a table.
    pub fn table(&self, rows: usize) -> String {
        let (totals, busy) = (self.totals(), self.busy());
        let mut text = format!(
            "{} kernels take {} of the {} from the first to the last; at most {} of memory\n",
            self.ops.len(),
            seconds(busy),
            seconds(self.seconds),
            size(self.memory.peak)
        );
        let _ = writeln!(
            text,
            "{:>6} {:>10} {:>6} {:>10}  {:<8} {:<24} origin",
            "share", "time", "calls", "results", "way", "op"
        );
        for total in totals.iter().take(rows) {
            let way = total.direction;
            let share = format!("{:.1} %", if busy > 0.0 { 100.0 * total.seconds / busy } else { 0.0 });
            let (time, bytes, origin) =
                (seconds(total.seconds), size(total.bytes), total.origin.as_deref().unwrap_or("-"));
            let _ = writeln!(
                text,
                "{share:>6} {time:>10} {:>6} {bytes:>10}  {way:<8} {:<24} {origin}",
                total.calls, total.op
            );
        }
        if totals.len() > rows {
            let rest: f64 = totals[rows..].iter().map(|total| total.seconds).sum();
            let _ = writeln!(text, "and {} more rows, {}", totals.len() - rows, seconds(rest));
        }
        if !cfg!(feature = "backtrace") {
            text += "the feature `profile` of isograd adds the lines of the program\n";
        }
        text
    }
}

/// A table of the twenty longest totals.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.table(20).trim_end())
    }
}

fn seconds(s: f64) -> String {
    match s {
        _ if s >= 1.0 => format!("{s:.2} s"),
        _ if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        _ => format!("{:.1} us", s * 1e6),
    }
}

fn size(bytes: usize) -> String {
    match bytes as f64 {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b => format!("{:.1} kB", b / 1e3),
    }
}
