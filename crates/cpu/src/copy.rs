//! Moving elements: fill, copy, cast.

use crate::access::{Acc, BLOCK, PARALLEL, Source, Target, for_runs, load, store, with_acc, with_bits, with_scratch};
use bytemuck::Pod;
use isograd_core::{Call, Layout, Result};
use rayon::prelude::*;

pub fn fill(call: &Call<'_>) -> Result<()> {
    let mut target = Target::new(&call.outputs[0])?;
    let mut element = [0u8; 8];
    let element = &mut element[..target.dtype.size()];
    match target.dtype.is_float() {
        true => store(&[call.floats[0]], target.dtype, element),
        false => store(&[call.ints[0]], target.dtype, element),
    }
    with_bits!(target.dtype, fill_bits(&mut target.bytes, call.outputs[0].layout, element));
    Ok(())
}

fn fill_bits<T: Pod>(bytes: &mut [u8], layout: &Layout, element: &[u8]) {
    let value: T = bytemuck::pod_read_unaligned(element);
    let values: &mut [T] = bytemuck::cast_slice_mut(bytes);
    for_runs(layout, 0, layout.shape().numel(), |_, position, stride, n| match stride {
        0 => values[position] = value,
        _ => values[position..].iter_mut().step_by(stride).take(n).for_each(|v| *v = value),
    });
}

pub fn copy(call: &Call<'_>) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let mut target = Target::new(&call.outputs[0])?;
    with_bits!(target.dtype, copy_bits(&source.bytes, source.layout, &mut target.bytes, call.outputs[0].layout));
    Ok(())
}

fn copy_bits<T: Pod>(from: &[u8], from_layout: &Layout, to: &mut [u8], to_layout: &Layout) {
    let (from, to): (&[T], &mut [T]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
    let numel = from_layout.shape().numel();
    if from_layout.is_contiguous() && to_layout.is_contiguous() {
        let source = &from[from_layout.offset()..][..numel];
        return to[to_layout.offset()..][..numel].copy_from_slice(source);
    }
    // Shapes agree, so the runs of both, cut to rows, pair up.
    let row = from_layout.shape().last().copied().unwrap_or(1);
    for start in (0..numel).step_by(row.max(1)) {
        let mut source = (0, 0);
        for_runs(from_layout, start, row, |_, position, stride, _| source = (position, stride));
        for_runs(to_layout, start, row, |_, position, stride, n| match (source.1, stride) {
            (1, 1) => to[position..position + n].copy_from_slice(&from[source.0..source.0 + n]),
            (s, d) => (0..n).for_each(|i| to[position + i * d] = from[source.0 + i * s]),
        });
    }
}

pub fn cast(call: &Call<'_>) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let mut target = Target::new(&call.outputs[0])?;
    with_acc!(source.dtype, cast_via(&source, &mut target));
    Ok(())
}

fn cast_via<A: Acc>(source: &Source<'_>, target: &mut Target<'_>) {
    let (view, layout, dtype) = (source.view(), source.layout, target.dtype);
    let convert = |start: usize, bytes: &mut [u8]| {
        for (i, block) in bytes.chunks_mut(BLOCK * dtype.size()).enumerate() {
            with_scratch(block.len() / dtype.size(), |values: &mut [A]| {
                load(view, layout, start + i * BLOCK, values);
                store(values, dtype, block);
            });
        }
    };
    let bytes = target.elements();
    if bytes.len() < PARALLEL * dtype.size() {
        return convert(0, bytes);
    }
    let chunk = 16 * BLOCK;
    bytes.par_chunks_mut(chunk * dtype.size()).enumerate().for_each(|(i, bytes)| convert(i * chunk, bytes));
}
