//! A call that makes a gradient, and the sum of another over some dimensions, becomes two: the gradient can then join the calls that read it, and
//! the sum computes for itself what it adds up.

use crate::driver::Limits;
use crate::memory::block::Place;
use crate::step::passes::draft::{Draft, Frame, Made, Reduction, Sum, reduction};
use crate::step::passes::pointwise::Item;
use crate::step::program::{Entry, KeptKernel, KeptOperand, Program, Work};
use isograd_core::{Kernel, Layout};
use smallvec::SmallVec;
use std::iter;

/// The two calls of one, as numbers of entries, and the outputs of the one.
pub struct Pair {
    elements: usize,
    sum: usize,
    outputs: SmallVec<[KeptOperand; 2]>,
}

/// Splits calls.
pub fn run(program: &mut Program, limits: &Limits) -> Vec<Pair> {
    let mut pairs = Vec::new();
    let survivors = program.survivors();
    for entry in std::mem::take(&mut program.entries) {
        let split = split(program, &entry, limits, &survivors);
        let Some((elements, sum)) = split else {
            program.entries.push(entry);
            continue;
        };
        let at = program.entries.len();
        program.entries.extend([elements, sum]);
        pairs.push(Pair { elements: at, sum: at + 1, outputs: entry.outputs });
    }
    pairs
}

fn split(program: &mut Program, entry: &Entry, limits: &Limits, survivors: &[bool]) -> Option<(Entry, Entry)> {
    let Reduction { frame, of: Some(of), acc, .. } = reduction(entry, limits)? else { return None };
    let Frame::Sum(Sum { shape, .. }) = &frame else { return None };
    let is_temporary = |part: &KeptOperand| matches!(part.place, Place::Later(n) if !survivors[n]);
    let is_sum = |part: &KeptOperand| part.layout.shape() != shape;
    let mut gradients = entry.outputs.iter().filter(|part| !is_sum(part)).peekable();
    gradients.peek()?;
    if !gradients.all(is_temporary) {
        return None;
    }
    // Results that one of the two does not have are memory that nobody reads.
    let mut unread = |part: &KeptOperand| {
        let memory = program.allocate(shape.numel() * part.dtype.size());
        KeptOperand { place: Place::Later(memory.number), layout: Layout::contiguous(shape.clone()), dtype: part.dtype }
    };
    let of_elements = entry.outputs.iter().map(|part| if is_sum(part) { unread(part) } else { part.clone() }).collect();
    let of_sum = entry.outputs.iter().map(|part| if is_sum(part) { part.clone() } else { unread(part) }).collect();
    let Work::Call { kernel: KeptKernel::Fused(fused, masks), ints, floats } = &entry.work else { return None };
    let elements = Work::Call {
        kernel: KeptKernel::Other(Kernel::Pointwise(of.row)),
        ints: SmallVec::new(),
        floats: of.attributes.iter().copied().collect(),
    };
    let sum =
        Work::Call { kernel: KeptKernel::Fused(fused.clone(), *masks), ints: ints.clone(), floats: floats.clone() };
    let part = |work, outputs| Entry { op: entry.op, whole: entry.whole, work, inputs: entry.inputs.clone(), outputs };
    let (elements, sum) = (part(elements, of_elements), part(sum, of_sum));
    let is_unread = |place| !entry.outputs.iter().any(|part| part.place == place);
    let draft = Draft::new(iter::once((&sum, Made::Once)), acc, Some(&frame), limits, is_unread);
    draft.refusal(limits).is_none().then_some((elements, sum))
}

/// Makes one call again of two of which the first has joined no others.
pub fn join(pairs: Vec<Pair>, entries: &mut [Entry], items: &mut Vec<Item>, is_again: impl Fn(Place) -> bool) {
    for Pair { elements, sum, outputs } in pairs {
        let is_alone = |item: &Item| item.members == [elements] && item.clones.is_empty();
        let of_sum = items.iter().any(|item| item.members == [sum] && item.clones.is_empty());
        if of_sum && items.iter().any(is_alone) && !outputs.iter().any(|part| is_again(part.place)) {
            items.retain(|item| !is_alone(item));
            entries[sum].outputs = outputs;
        }
    }
}
