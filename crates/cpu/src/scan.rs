//! Running sums and products along the last dimension.

use crate::access::{Acc, PARALLEL, Source, Strided, Target, load, store, with_acc, with_bits};
use crate::copy::copy_bits;
use isograd_core::backend::Scan;
use isograd_core::{Call, DType, Layout, Result};
use rayon::prelude::*;

/// Longer running sums are made of parts of this length, so that errors do not pile up along the whole row.
const PART: usize = 128;

pub fn run(call: &Call<'_>, kind: Scan) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let mut target = Target::new(&call.outputs[0])?;
    let (reverse, exclusive) = (call.ints[0] != 0, call.ints[1] != 0);
    let (dtype, numel) = (target.dtype, source.layout.shape().numel());
    if numel == 0 {
        return Ok(());
    }
    if target.layout.is_contiguous() {
        with_acc!(source.dtype, scan(&source, target.elements(), dtype, kind, reverse, exclusive));
        return Ok(());
    }
    let mut rows = vec![0u64; (numel * dtype.size()).div_ceil(size_of::<u64>())];
    let rows = &mut bytemuck::cast_slice_mut(&mut rows)[..numel * dtype.size()];
    with_acc!(source.dtype, scan(&source, rows, dtype, kind, reverse, exclusive));
    let layout = Layout::contiguous(source.layout.shape().clone());
    with_bits!(dtype, copy_bits(rows, &layout, &mut target.bytes, target.layout));
    Ok(())
}

fn scan<A: Acc>(source: &Source<'_>, target: &mut [u8], dtype: DType, kind: Scan, reverse: bool, exclusive: bool) {
    let row = source.layout.shape().last().copied().unwrap_or(1);
    let (view, layout) = (source.view(), Strided::new(source.layout));
    let one = |(r, bytes): (usize, &mut [u8])| {
        let mut x = vec![A::from_i64(0); row];
        load(view, &layout, r * row, &mut x);
        if reverse {
            x.reverse();
        }
        match kind {
            Scan::Sum => running_sum(&mut x),
            Scan::Prod => running_product(&mut x),
        }
        if exclusive {
            x.copy_within(..row - 1, 1);
            x[0] = A::from_i64((kind == Scan::Prod) as i64);
        }
        if reverse {
            x.reverse();
        }
        store(&x, dtype, bytes);
    };
    match source.layout.shape().numel() < PARALLEL {
        true => target.chunks_mut(row * dtype.size()).enumerate().for_each(one),
        false => target.par_chunks_mut(row * dtype.size()).enumerate().for_each(one),
    }
}

fn running_sum<A: Acc>(x: &mut [A]) {
    let add = |a: A, b: A| A::back(a.number() + b.number());
    for part in x.chunks_mut(PART) {
        (1..part.len()).for_each(|i| part[i] = add(part[i - 1], part[i]));
    }
    if x.len() <= PART {
        return;
    }
    let mut totals: Vec<A> = x.chunks(PART).map(|part| part[part.len() - 1]).collect();
    running_sum(&mut totals);
    for (part, &before) in x.chunks_mut(PART).skip(1).zip(&totals) {
        part.iter_mut().for_each(|v| *v = add(before, *v));
    }
}

/// In order: a product of parts could overflow where the running product does not.
fn running_product<A: Acc>(x: &mut [A]) {
    (1..x.len()).for_each(|i| x[i] = A::back(x[i - 1].number() * x[i].number()));
}
