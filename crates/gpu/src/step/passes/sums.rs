//! Sums and means over elements that are no rows of a team of threads: over columns, and over very many elements. Their operands get the
//! order of memory, which the calls have that make the elements. So the sum can compute for itself what it adds up.

use crate::driver::Limits;
use crate::step::passes::draft::reduction;
use crate::step::program::{Entry, KeptKernel, KeptOperand, Program, Reduction, Work};
use isograd_core::backend::Reduce;
use isograd_core::{Dims, Kernel, Shape};
use std::cmp::Reverse;
use std::iter;

/// Gives the operands of such sums the order of memory.
pub fn run(program: &mut Program, limits: &Limits) {
    for entry in &mut program.entries {
        if let Some(ordered) = ordered(entry, limits) {
            *entry = ordered;
        }
    }
}

fn ordered(entry: &Entry, limits: &Limits) -> Option<Entry> {
    let Work::Call { kernel: KeptKernel::Other(Kernel::Reduce(kind @ (Reduce::Sum | Reduce::Mean))), ints, .. } =
        &entry.work
    else {
        return None;
    };
    let ([x], [y]) = (&entry.inputs[..], &entry.outputs[..]) else { return None };
    if !x.dtype.is_float() || x.layout.shape().numel() == 0 || reduction(entry, limits).is_some() {
        return None;
    }
    let (shape, dims) = (x.layout.shape(), usize::try_from(ints[0]).ok()?);
    let mut order: Vec<usize> = (0..shape.rank()).collect();
    order.sort_by_key(|&d| Reverse(if shape[d] == 1 { usize::MAX } else { x.layout.strides()[d] }));
    let kept = &shape.dims()[..shape.rank() - dims];
    let with_ones: Dims = kept.iter().copied().chain(iter::repeat_n(1, dims)).collect();
    let of_y = y.layout.reshape(&Shape::from(with_ones))?.permute(&order);
    let input = KeptOperand { layout: x.layout.permute(&order), ..x.clone() };
    if !input.layout.is_contiguous() {
        return None;
    }
    let output = KeptOperand { layout: of_y, ..y.clone() };
    let layouts = [x.layout.clone(), y.layout.clone()];
    Some(Entry {
        op: entry.op,
        whole: entry.whole,
        work: Work::Reduce(Reduction { kind: *kind, dims, layouts }),
        inputs: iter::once(input).collect(),
        outputs: iter::once(output).collect(),
    })
}
