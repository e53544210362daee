//! Stable sorting of the last dimension.

use crate::access::{Acc, Source, Target, load, store, with_acc};
use isograd_core::{Call, Result};
use rayon::prelude::*;
use std::cmp::Ordering;

pub fn run(call: &Call<'_>) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let (mut values, mut index) = (Target::new(&call.outputs[0])?, Target::new(&call.outputs[1])?);
    with_acc!(source.dtype, sort(&source, &mut values, &mut index, call.ints[0] != 0));
    Ok(())
}

fn sort<A: Acc>(source: &Source<'_>, values: &mut Target<'_>, index: &mut Target<'_>, descending: bool) {
    let row = source.layout.shape().last().copied().unwrap_or(1);
    let (view, layout, dtype) = (source.view(), source.layout, values.dtype);
    let order: &mut [i64] = bytemuck::cast_slice_mut(index.elements());
    let rows = values.elements().par_chunks_mut(row * dtype.size()).zip(order.par_chunks_mut(row));
    rows.enumerate().for_each(|(r, (bytes, order))| {
        let mut x = vec![A::from_i64(0); row];
        load(view, layout, r * row, &mut x);
        order.iter_mut().enumerate().for_each(|(i, o)| *o = i as i64);
        let by = |&i: &i64, &j: &i64| compare(x[i as usize], x[j as usize]);
        match descending {
            true => order.sort_by(|i, j| by(j, i)),
            false => order.sort_by(by),
        }
        let sorted: Vec<A> = order.iter().map(|&i| x[i as usize]).collect();
        store(&sorted, dtype, bytes);
    });
}

/// NaN is the largest, and equal to itself.
fn compare<A: Acc>(a: A, b: A) -> Ordering {
    let is_nan = |v: A| v.partial_cmp(&v).is_none();
    a.partial_cmp(&b).unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)))
}
