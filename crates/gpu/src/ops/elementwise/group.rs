//! Several calls in one kernel. Results that later steps read stay in registers, rounded as in memory.

use crate::launch::device::Gpu;
use crate::ops::elementwise::pointwise::{Body, Elements, Number, Source, Step, launch, reads};
use crate::ops::elementwise::rows;
use crate::ops::reduction::reduce::{self, Order, Team};
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
    /// Steps sum, in this order, over the dimensions in which their outputs have one element.
    Sums(Order),
}

impl Group {
    /// Whether the steps read the value that an output had.
    pub fn reads(&self, output: usize) -> bool {
        reads(&self.steps, &self.stored, output)
    }

    /// The outputs of the steps that reduce.
    pub fn reduced(&self) -> Option<SmallVec<[usize; 2]>> {
        let mut next = 0;
        let firsts = self.steps.iter().map(|step| {
            next += step.results.len();
            (next - step.results.len(), step)
        });
        let reduced = firsts.filter(|(_, step)| matches!(step.body, Body::Reduce(_)));
        reduced.map(|(n, _)| self.stored.iter().position(|source| *source == Source::Result(n))).collect()
    }
}

/// Launches a group.
pub fn run(gpu: &Gpu, op: &'static str, group: &Group, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    match group.reduces {
        Reduces::Nothing => (),
        Reduces::Rows(dims, team) => return rows::launch(gpu, op, group, (dims, team), inputs, outputs),
        Reduces::Sums(order) => return reduce::group(gpu, op, group, order, inputs, outputs),
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
