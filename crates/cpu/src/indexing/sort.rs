//! Stable sorting of the last dimension.

use crate::access::{Acc, BLOCK, PARALLEL, Source, Strided, Target, load, store, with_acc, with_scratch};
use crate::memory::scratch;
use isograd_core::{Call, Result};
use rayon::prelude::*;

pub fn run(call: &Call<'_>) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let (mut values, mut index) = (Target::new(&call.outputs[0])?, Target::new(&call.outputs[1])?);
    if source.layout.shape().numel() > 0 {
        with_acc!(source.dtype, sort(call, &source, &mut values, &mut index))?;
    }
    Ok(())
}

fn sort<A: Acc>(call: &Call<'_>, source: &Source<'_>, values: &mut Target<'_>, index: &mut Target<'_>) -> Result<()> {
    let descending = call.ints[0] != 0;
    let row = source.layout.shape().last().copied().unwrap_or(1);
    let (view, layout, dtype) = (source.view(), Strided::new(source.layout), values.dtype);
    let (bytes, order): (_, &mut [i64]) = (values.elements(), bytemuck::cast_slice_mut(index.elements()));
    let one = |r: usize, bytes: &mut [u8], order: &mut [i64]| {
        let mut x = scratch::<A>(call, row)?;
        load(view, &layout, r * row, &mut x);
        // Equal values are compared by position, which makes the sort stable.
        let key = |v: A| if descending { !v.rank() } else { v.rank() };
        let mut keys = scratch::<u128>(call, row)?;
        keys.iter_mut().zip(x.iter()).zip(0..).for_each(|((at, &v), i)| *at = (key(v) as u128) << 64 | i);
        keys.sort_unstable();
        order.iter_mut().zip(keys.iter()).for_each(|(order, &key)| *order = key as i64);
        for (order, bytes) in order.chunks(BLOCK).zip(bytes.chunks_mut(BLOCK * dtype.size())) {
            with_scratch(order.len(), |sorted: &mut [A]| {
                sorted.iter_mut().zip(order).for_each(|(v, &i)| *v = x[i as usize]);
                store(sorted, dtype, bytes);
            });
        }
        Ok(())
    };
    let width = row * dtype.size();
    if order.len() < PARALLEL {
        let rows = bytes.chunks_mut(width).zip(order.chunks_mut(row));
        rows.enumerate().try_for_each(|(r, (bytes, order))| one(r, bytes, order))
    } else {
        let rows = bytes.par_chunks_mut(width).zip(order.par_chunks_mut(row));
        rows.enumerate().try_for_each(|(r, (bytes, order))| one(r, bytes, order))
    }
}
