//! One row over many sets of tensors, as an optimizer steps all of its parameters.

use super::fused::has_kernel;
use super::in_place::{check_update, update_};
use crate::backend::{Fused, Kernel};
use crate::pointwise::Pointwise;
use crate::tensor::{Attributes, run};
use crate::{DType, Error, Result, Tensor};
use smallvec::SmallVec;

/// A set of tensors that [`update_each_`] updates together.
pub struct Update<'a> {
    /// What is changed, in the row's order.
    pub targets: Vec<&'a Tensor>,
    /// The set's own inputs, which come before those that all sets share.
    pub inputs: Vec<&'a Tensor>,
}

/// [`update_`] of every set, one after the other, with inputs of rank 0 that all sets share after the set's own. A device
/// that can runs all sets of the same dtypes in one launch.
///
/// Errors: as [`update_`], for any of the sets; then none has changed. `Shape` if a shared input is not of rank 0.
pub fn update_each_(
    op: &'static str,
    row: Pointwise,
    sets: &[Update<'_>],
    shared: &[&Tensor],
    floats: &[f64],
) -> Result<()> {
    if let Some(wide) = shared.iter().find(|t| t.rank() != 0) {
        return Err(Error::shape(op, format!("a shared input has shape {}, expected rank 0", wide.shape())));
    }
    sets.iter().try_for_each(|set| check_update(op, row, &set.targets, &set.all_inputs(shared), floats))?;
    let alone = |set: &Update<'_>| update_(op, row, &set.targets, &set.all_inputs(shared), floats);
    if !are_apart(sets) {
        return sets.iter().try_for_each(alone);
    }
    let is_simple = |set: &&Update<'_>| set.is_simple(row, shared);
    let (simple, others): (Vec<_>, Vec<_>) = sets.iter().filter(|s| s.targets[0].numel() > 0).partition(is_simple);
    for group in by_dtypes(simple) {
        launch(op, row, &group, shared, floats)?;
    }
    others.into_iter().try_for_each(alone)
}

/// Runs sets of the same dtypes at once.
fn launch(op: &'static str, row: Pointwise, sets: &[&Update<'_>], shared: &[&Tensor], floats: &[f64]) -> Result<()> {
    let inputs: Vec<&Tensor> = sets.iter().flat_map(|s| s.inputs.iter()).chain(shared).copied().collect();
    let targets: Vec<&Tensor> = sets.iter().flat_map(|s| s.targets.iter()).copied().collect();
    let attributes = Attributes { ints: &[shared.len() as i64], floats };
    run(op, Kernel::Fused(Fused::Each(row)), &inputs, &targets, attributes)?;
    targets.iter().for_each(|t| t.touch());
    Ok(())
}

impl Update<'_> {
    fn all_inputs<'a>(&'a self, shared: &[&'a Tensor]) -> SmallVec<[&'a Tensor; 8]> {
        self.inputs.iter().chain(shared).copied().collect()
    }

    fn operands(&self) -> impl Iterator<Item = &Tensor> {
        self.targets.iter().chain(&self.inputs).copied()
    }

    fn dtypes(&self) -> SmallVec<[DType; 8]> {
        self.operands().map(Tensor::dtype).collect()
    }

    /// True if the device's kernel takes the set as it lies in memory.
    fn is_simple(&self, row: Pointwise, shared: &[&Tensor]) -> bool {
        let shape = self.targets[0].shape();
        self.operands().all(|t| t.shape() == shape && t.is_contiguous())
            && self.operands().chain(shared.iter().copied()).all(|t| has_kernel(Fused::Each(row), t))
    }
}

fn by_dtypes<'s, 't>(sets: Vec<&'s Update<'t>>) -> Vec<Vec<&'s Update<'t>>> {
    let mut groups: Vec<(SmallVec<[DType; 8]>, Vec<&Update<'_>>)> = Vec::new();
    for set in sets {
        let dtypes = set.dtypes();
        match groups.iter_mut().find(|(known, _)| *known == dtypes) {
            Some((_, group)) => group.push(set),
            None => groups.push((dtypes, vec![set])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// True if the order of the sets does not matter: nothing that one changes overlaps with what another reads or changes.
fn are_apart(sets: &[Update<'_>]) -> bool {
    let mut spans = Vec::new();
    for Update { targets, inputs } in sets {
        spans.extend(targets.iter().map(|t| (t.span(), true)));
        spans.extend(inputs.iter().map(|t| (t.span(), false)));
    }
    spans.sort_unstable_by_key(|((memory, bytes), _)| (*memory, bytes.start));
    // The ends of what was read and changed so far in this memory.
    let (mut last, mut read, mut changed) = (0, 0, 0);
    for ((memory, bytes), is_target) in spans {
        if memory != last {
            (last, read, changed) = (memory, 0, 0);
        }
        if !bytes.is_empty() && (bytes.start < changed || (is_target && bytes.start < read)) {
            return false;
        }
        let end = if is_target { &mut changed } else { &mut read };
        *end = bytes.end.max(*end);
    }
    true
}
