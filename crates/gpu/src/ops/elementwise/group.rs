//! Several calls in one kernel. Results that later steps read stay in registers, rounded as in memory.

use crate::launch::device::Gpu;
use crate::ops::elementwise::pointwise::{Elements, Number, Source, Step, launch, reads};
use crate::ops::elementwise::rows;
use crate::ops::reduction::reduce::{self, Team};
use isograd_core::{DType, Operand, Result};
use smallvec::SmallVec;

/// The steps of some calls, between the operands that are read and those that are written.
#[derive(Clone, Debug)]
pub struct Group {
    pub steps: SmallVec<[Step; 1]>,
    /// The value of each output.
    pub stored: SmallVec<[Source; 4]>,
    /// The arithmetic of all steps.
    pub acc: DType,
    pub numbers: SmallVec<[Number; 4]>,
    pub reduces: Reduces,
    /// The names of the ops whose calls these are.
    pub ops: Vec<String>,
}

/// The reduction among the calls of a group.
#[derive(Clone, Copy, Debug)]
pub enum Reduces {
    Nothing,
    /// The last dimensions of the operands, so many, which are rows of such teams.
    Rows(usize, Team),
    /// The last step sums over the dimensions in which its output has one element.
    Sum,
}

impl Group {
    /// Whether the steps read the value that an output had.
    pub fn reads(&self, output: usize) -> bool {
        reads(&self.steps, &self.stored, output)
    }

    /// The output of the last step.
    pub fn summed(&self) -> Option<usize> {
        let last = self.steps.iter().map(|step| step.results.len()).sum::<usize>().checked_sub(1)?;
        self.stored.iter().position(|source| *source == Source::Result(last))
    }
}

/// Launches a group.
pub fn run(gpu: &Gpu, op: &'static str, group: &Group, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    match group.reduces {
        Reduces::Nothing => (),
        Reduces::Rows(dims, team) => return rows::launch(gpu, op, group, (dims, team), inputs, outputs),
        Reduces::Sum => return reduce::group(gpu, op, group, inputs, outputs),
    }
    let elements = Elements {
        op,
        steps: group.steps.clone(),
        stored: group.stored.clone(),
        is_group: true,
        acc: group.acc,
        numbers: &group.numbers,
        check: None,
    };
    launch(gpu, &elements, inputs, outputs)
}
