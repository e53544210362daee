//! Running sums and products along the last dimension.

use crate::access::{Acc, PARALLEL, Source, Strided, Target, load, store, with_acc, with_bits};
use crate::elementwise::copy::copy_bits;
use crate::memory::scratch;
use crate::reduction::product;
use isograd_core::backend::Scan;
use isograd_core::{Call, DType, Layout, Result, host};
use rayon::prelude::*;

/// Longer running sums are computed in parts of this length, which keeps rounding errors small.
const PART: usize = 128;

pub fn run(call: &Call<'_>, kind: Scan) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let mut target = Target::new(&call.outputs[0])?;
    let (dtype, numel) = (target.dtype, source.layout.shape().numel());
    if numel == 0 {
        return Ok(());
    }
    if target.layout.is_contiguous() {
        return with_acc!(source.dtype, scan(call, &source, target.elements(), dtype, kind));
    }
    let mut rows = scratch::<u8>(call, numel * dtype.size())?;
    with_acc!(source.dtype, scan(call, &source, &mut rows, dtype, kind))?;
    let layout = Layout::contiguous(source.layout.shape().clone());
    with_bits!(dtype, copy_bits(&rows, &layout, &mut target.bytes, target.layout));
    Ok(())
}

fn scan<A: Acc>(call: &Call<'_>, source: &Source<'_>, target: &mut [u8], dtype: DType, kind: Scan) -> Result<()> {
    let (reverse, exclusive) = (call.ints[0] != 0, call.ints[1] != 0);
    let row = source.layout.shape().last().copied().unwrap_or(1);
    let (view, layout) = (source.view(), Strided::new(source.layout));
    let one = |(r, bytes): (usize, &mut [u8])| {
        let mut x = scratch::<A>(call, row)?;
        load(view, &layout, r * row, &mut x);
        if reverse {
            x.reverse();
        }
        match kind {
            Scan::Sum => running_sum(call.op, &mut x)?,
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
        Ok(())
    };
    match source.layout.shape().numel() < PARALLEL {
        true => target.chunks_mut(row * dtype.size()).enumerate().try_for_each(one),
        false => target.par_chunks_mut(row * dtype.size()).enumerate().try_for_each(one),
    }
}

fn running_sum<A: Acc>(op: &'static str, x: &mut [A]) -> Result<()> {
    let add = |a: A, b: A| A::back(a.number() + b.number());
    for part in x.chunks_mut(PART) {
        (1..part.len()).for_each(|i| part[i] = add(part[i - 1], part[i]));
    }
    if x.len() <= PART {
        return Ok(());
    }
    let mut totals: Vec<A> = host::collect(op, x.chunks(PART).map(|part| part[part.len() - 1]))?;
    running_sum(op, &mut totals)?;
    for (part, &before) in x.chunks_mut(PART).skip(1).zip(&totals) {
        part.iter_mut().for_each(|v| *v = add(before, *v));
    }
    Ok(())
}

fn running_product<A: Acc>(x: &mut [A]) {
    match A::DTYPE.is_float() {
        true => product::running(x),
        false => (1..x.len()).for_each(|i| x[i] = A::back(x[i - 1].number() * x[i].number())),
    }
}
