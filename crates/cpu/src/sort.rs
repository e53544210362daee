//! Stable sorting of the last dimension.

use crate::access::{Acc, PARALLEL, Source, Strided, Target, load, store, with_acc};
use isograd_core::{Call, Result};
use rayon::prelude::*;

pub fn run(call: &Call<'_>) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let (mut values, mut index) = (Target::new(&call.outputs[0])?, Target::new(&call.outputs[1])?);
    if source.layout.shape().numel() > 0 {
        with_acc!(source.dtype, sort(&source, &mut values, &mut index, call.ints[0] != 0));
    }
    Ok(())
}

fn sort<A: Acc>(source: &Source<'_>, values: &mut Target<'_>, index: &mut Target<'_>, descending: bool) {
    let row = source.layout.shape().last().copied().unwrap_or(1);
    let (view, layout, dtype) = (source.view(), Strided::new(source.layout), values.dtype);
    let (bytes, order): (_, &mut [i64]) = (values.elements(), bytemuck::cast_slice_mut(index.elements()));
    let one = |r: usize, bytes: &mut [u8], order: &mut [i64]| {
        let mut x = vec![A::from_i64(0); row];
        load(view, &layout, r * row, &mut x);
        // Equal values go by their positions, which makes the order that of a stable sort.
        let key = |v: A| if descending { !v.rank() } else { v.rank() };
        let mut keys: Vec<u128> = x.iter().zip(0..).map(|(&v, i)| (key(v) as u128) << 64 | i).collect();
        keys.sort_unstable();
        order.iter_mut().zip(&keys).for_each(|(order, &key)| *order = key as i64);
        let x: Vec<A> = order.iter().map(|&i| x[i as usize]).collect();
        store(&x, dtype, bytes);
    };
    let width = row * dtype.size();
    if order.len() < PARALLEL {
        let rows = bytes.chunks_mut(width).zip(order.chunks_mut(row));
        rows.enumerate().for_each(|(r, (bytes, order))| one(r, bytes, order));
    } else {
        let rows = bytes.par_chunks_mut(width).zip(order.par_chunks_mut(row));
        rows.enumerate().for_each(|(r, (bytes, order))| one(r, bytes, order));
    }
}
