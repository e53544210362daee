//! Calls whose results nobody reads are left out.

use crate::memory::block::Place;
use crate::step::passes::Report;
use crate::step::program::{Entry, KeptOperand, Program, Work};
use isograd_core::Kernel;

/// Leaves out calls that write only memory of the step which nobody reads later.
pub fn run(program: &mut Program, report: &mut Report) {
    let mut is_read = program.survivors();
    let mut is_kept = vec![true; program.entries.len()];
    for (entry, is_kept) in program.entries.iter().zip(&mut is_kept).rev() {
        let matters = |part: &KeptOperand| if let Place::Later(number) = part.place { is_read[number] } else { true };
        *is_kept = may_fail(entry) || entry.outputs.iter().any(matters);
        if *is_kept {
            for part in &entry.inputs {
                if let Place::Later(number) = part.place {
                    is_read[number] = true;
                }
            }
        }
    }
    let mut is_kept = is_kept.into_iter();
    let before = program.entries.len();
    program.entries.retain(|_| is_kept.next().unwrap_or(true));
    report.dead += before - program.entries.len();
}

/// Whether a call may report an error in its data, or does what is not known.
fn may_fail(entry: &Entry) -> bool {
    match &entry.work {
        Work::Upload(_) | Work::Reduce(_) | Work::Group(_) => false,
        Work::Call { kernel, .. } => match kernel.kernel() {
            Kernel::Pointwise(row) => row.is_checked(),
            Kernel::Gather | Kernel::Scatter(_) | Kernel::Fused(_) | Kernel::Custom(_) => true,
            _ => false,
        },
    }
}
