//! Several calls in one kernel. Results that later steps read stay in registers, rounded as in memory.

use crate::launch::device::Gpu;
use crate::ops::elementwise::pointwise::{Elements, Number, Source, Step, launch};
use crate::ops::elementwise::rows;
use crate::ops::reduction::reduce::Team;
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
    /// The last dimensions of the operands are rows, which such teams have, if some of the calls reduce rows.
    pub rows: Option<(usize, Team)>,
    /// The names of the ops whose calls these are.
    pub ops: Vec<String>,
}

/// Launches a group.
pub fn run(gpu: &Gpu, op: &'static str, group: &Group, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    if let Some(rows) = group.rows {
        return rows::launch(gpu, op, group, rows, inputs, outputs);
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
