//! Sums in place. A term that is added to a whole value of the step makes a new value instead, so that either can be computed again where it
//! is read. A sum that stays a kernel of its own is one in place in the end.

use crate::memory::block::Place;
use crate::step::passes::pointwise::operands;
use crate::step::program::{Entry, KeptKernel, KeptOperand, Program, Work};
use isograd_core::Kernel;
use isograd_core::pointwise::Pointwise;

/// The memory of a value, and of the sum that was one in place.
pub struct Version {
    value: Place,
    sum: Place,
}

/// Gives values before sums in place memory of their own.
pub fn run(program: &mut Program) -> Vec<Version> {
    let mut versions = Vec::new();
    for i in (0..program.entries.len()).rev() {
        let Some(sum) = place_of_sum(program, i) else { continue };
        let Place::Later(number) = sum else { continue };
        let value = Place::Later(program.allocate(program.memory[number].bytes).number);
        rename(&mut program.entries[..i], sum, value);
        let entry = &mut program.entries[i];
        entry.inputs.insert(0, KeptOperand { place: value, ..entry.outputs[0].clone() });
        // Its attribute is the factor of the second term.
        set_row(entry, Pointwise::Add, &[1]);
        versions.push(Version { value, sum });
    }
    versions
}

/// The memory of a sum in place that is made of a whole value of the step.
fn place_of_sum(program: &Program, i: usize) -> Option<Place> {
    let entry = &program.entries[i];
    let ([_], [sum]) = (&entry.inputs[..], &entry.outputs[..]) else { return None };
    let Place::Later(number) = sum.place else { return None };
    let bytes = sum.layout.shape().numel() * sum.dtype.size();
    let is_whole = sum.layout.is_dense() && bytes == program.memory[number].bytes;
    let touches = |entry: &&Entry| operands(entry).any(|(part, _)| part.place == sum.place);
    let makes = |first: &Entry| !first.is_inout() && first.inputs.iter().all(|part| part.place != sum.place);
    let is_made = program.entries[..i].iter().find(touches).is_some_and(makes);
    (row(entry) == Some(Pointwise::Accumulate) && is_whole && is_made && entry.inputs[0].place != sum.place)
        .then_some(sum.place)
}

/// Makes sums that are kernels of their own sums in place again.
pub fn join(versions: Vec<Version>, program: &mut Program) {
    for Version { value, sum } in versions.into_iter().rev() {
        let is_alone = |entry: &Entry| {
            row(entry) == Some(Pointwise::Add) && entry.inputs[0].place == value && entry.outputs[0].place == sum
        };
        let Some(at) = program.entries.iter().position(is_alone) else { continue };
        let has =
            |entries: &[Entry], place: Place| entries.iter().flat_map(operands).any(|(part, _)| part.place == place);
        if has(&program.entries[at + 1..], value) || has(&program.entries[..at], sum) {
            continue;
        }
        rename(&mut program.entries[..at], value, sum);
        let entry = &mut program.entries[at];
        entry.inputs.remove(0);
        set_row(entry, Pointwise::Accumulate, &[]);
    }
}

/// The row of a call, if it is one of the pointwise table.
fn row(entry: &Entry) -> Option<Pointwise> {
    let Work::Call { kernel: KeptKernel::Other(Kernel::Pointwise(row)), .. } = &entry.work else { return None };
    Some(*row)
}

fn set_row(entry: &mut Entry, row: Pointwise, attributes: &[i64]) {
    let kernel = KeptKernel::Other(Kernel::Pointwise(row));
    let (ints, floats) = (attributes.iter().copied().collect(), attributes.iter().map(|&v| v as f64).collect());
    entry.work = Work::Call { kernel, ints, floats };
}

fn rename(entries: &mut [Entry], from: Place, to: Place) {
    let parts = entries.iter_mut().flat_map(|entry| entry.inputs.iter_mut().chain(&mut entry.outputs));
    parts.filter(|part| part.place == from).for_each(|part| part.place = to);
}
