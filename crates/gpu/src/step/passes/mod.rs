//! Passes over a program. None changes a bit of what the step computes.

mod dead;
mod draft;
mod pointwise;
mod recompute;
mod shapes;
mod split;
mod sums;
mod together;
mod versions;

use crate::driver::Limits;
use crate::step::program::Program;

/// The results of the passes, in numbers.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Calls before the passes.
    calls: usize,
    /// Calls whose results nobody reads.
    dead: usize,
    /// Kernels of several calls, and the calls in them.
    groups: usize,
    grouped: usize,
    /// Values that are computed again where they are read, and not stored.
    again: usize,
    /// Bytes that are neither written nor read any more.
    saved: usize,
    /// Why a group takes no more, by the first call that it did not take.
    ends: Vec<String>,
}

/// Runs all passes.
pub fn run(program: &mut Program, limits: &Limits) -> Report {
    let mut report = Report { calls: program.entries.len(), ..Report::default() };
    dead::run(program, &mut report);
    pointwise::run(program, limits, &mut report);
    report
}

impl Report {
    /// The report in words.
    pub fn lines(&self) -> Vec<String> {
        if self.calls == 0 {
            return Vec::new();
        }
        let Report { calls, dead, groups, grouped, again, saved, ends } = self;
        let mut lines = vec![format!(
            "{calls} calls: {dead} that nobody reads are left out, {grouped} are {groups} kernels, which saves {saved} bytes of memory traffic"
        )];
        if *again > 0 {
            lines.push(format!("{again} values are computed again where they are read, instead of stored"));
        }
        lines.extend(ends.iter().cloned());
        lines
    }
}
