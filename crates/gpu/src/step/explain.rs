//! A program in words.

use crate::memory::block::Place;
use crate::step::arena::Placed;
use crate::step::passes::Report;
use crate::step::program::{Entry, KeptOperand, Program, Work};
use isograd_core::Kernel;
use std::fmt::Write;

/// The calls of a program in the order in which they run, what the passes did, and the memory. `sealed` says why later calls are not
/// among them.
pub fn text(program: &Program, report: &Report, placed: &Placed, sealed: Option<&str>) -> String {
    let mut text = String::new();
    for (i, entry) in program.entries.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{i:4}  {}", line(entry));
        if let Work::Group(group) = &entry.work {
            for step in group.ops.iter() {
                let _ = writeln!(text, "        {step}");
            }
        }
    }
    for line in report.lines() {
        let _ = writeln!(text, "{line}");
    }
    let Placed { kept, temporary, arena } = placed;
    let _ = writeln!(text, "memory: {kept} bytes of results and states, {temporary} of temporary tensors in {arena}");
    if let Some(why) = sealed {
        let _ = writeln!(text, "later calls are recorded one by one: {why}");
    }
    text
}

fn line(entry: &Entry) -> String {
    let parts = |parts: &[KeptOperand]| parts.iter().map(part).collect::<Vec<_>>().join(", ");
    let kernel = match &entry.work {
        Work::Upload(bytes) => format!("{} bytes from the host", bytes.len()),
        Work::Call { kernel, .. } => kernel.kernel().to_string(),
        Work::Reduce(reduction) => Kernel::Reduce(reduction.kind).to_string(),
        Work::Group(group) => format!("one kernel of {} calls", group.ops.len()),
    };
    format!("{}: {kernel} ({}) -> {}", entry.whole, parts(&entry.inputs), parts(&entry.outputs))
}

fn part(part: &KeptOperand) -> String {
    let place = match part.place {
        Place::At(address) => format!("@{address:x}"),
        Place::Later(number) => format!("%{number}"),
    };
    format!("{place} {}{}", part.dtype, part.layout.shape())
}
