//! Moving elements: fill, copy, cast.

use crate::access::{
    Acc, BLOCK, PARALLEL, Source, Strided, Target, for_runs, load, store, with_acc, with_bits, with_scratch,
};
use bytemuck::Pod;
use isograd_core::{Call, Layout, Result};
use rayon::prelude::*;

/// Rows and columns that a transposing copy processes at a time, so that their cache lines stay in the cache.
const TILE: usize = 32;

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

fn fill_bits<T: Pod + Send + Sync>(bytes: &mut [u8], layout: &Layout, element: &[u8]) {
    let value: T = bytemuck::pod_read_unaligned(element);
    let values: &mut [T] = bytemuck::cast_slice_mut(bytes);
    for_runs(&Strided::new(layout), 0, layout.shape().numel(), |_, position, stride, n| match stride {
        0 => values[position] = value,
        1 if n >= 8 * PARALLEL => values[position..][..n].par_chunks_mut(PARALLEL).for_each(|part| part.fill(value)),
        1 => values[position..][..n].fill(value),
        _ => values[position..].iter_mut().step_by(stride).take(n).for_each(|v| *v = value),
    });
}

pub fn copy(call: &Call<'_>) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let mut target = Target::new(&call.outputs[0])?;
    with_bits!(target.dtype, copy_bits(&source.bytes, source.layout, &mut target.bytes, call.outputs[0].layout));
    Ok(())
}

/// Copies elements from one layout to another of the same shape.
pub fn copy_bits<T: Pod + Send + Sync>(from: &[u8], from_layout: &Layout, to: &mut [u8], to_layout: &Layout) {
    let (from, to): (&[T], &mut [T]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
    let numel = from_layout.shape().numel();
    if numel == 0 {
        return;
    }
    if to_layout.is_contiguous() {
        return pack(from, &Strided::new(from_layout), &mut to[to_layout.offset()..][..numel]);
    }
    let layouts = [(from_layout.strides(), from_layout.offset()), (to_layout.strides(), to_layout.offset())];
    let [from_layout, to_layout] = Strided::merge(to_layout.shape().dims(), layouts);
    if numel < PARALLEL || !to_layout.has_separate_blocks() {
        return copy_rows(from, &from_layout, to, &to_layout);
    }
    let (step, inner) = (from_layout.strides()[0], from_layout.block());
    let (count, to_step, to_inner) = (to_layout.dims()[0], to_layout.strides()[0], to_layout.block());
    let blocks = to[to_layout.offset..].par_chunks_mut(to_step).take(count).enumerate();
    blocks.with_min_len((PARALLEL / 4).div_ceil(inner.numel())).for_each(|(i, to)| {
        copy_rows(from, &inner.at(from_layout.offset + i * step), to, &to_inner.at(0));
    });
}

/// Copies row by row between layouts of the same extents.
fn copy_rows<T: Pod>(from: &[T], from_layout: &Strided, to: &mut [T], to_layout: &Strided) {
    let ((row, step), (_, to_step)) = (from_layout.last(), to_layout.last());
    for start in (0..from_layout.numel()).step_by(row) {
        let (position, to_position) = (from_layout.position(start), to_layout.position(start));
        match (step, to_step) {
            (1, 1) => to[to_position..][..row].copy_from_slice(&from[position..][..row]),
            (s, d) => (0..row).for_each(|i| to[to_position + i * d] = from[position + i * s]),
        }
    }
}

/// Copies a strided source, which is not empty, to contiguous memory.
fn pack<T: Pod + Send + Sync>(from: &[T], layout: &Strided, to: &mut [T]) {
    if let (&[.., rows, columns], &[.., 1, stride]) = (layout.dims(), layout.strides())
        && columns >= 8
    {
        return transpose(from, layout, [rows, columns], stride, to);
    }
    let some = |start: usize, to: &mut [T]| {
        for_runs(layout, start, to.len(), |at, position, stride, n| {
            pick(&from[position..], stride, &mut to[at..][..n])
        });
    };
    // One thread almost reaches the bandwidth of the caches.
    let alone = if layout.is_contiguous() { 8 * PARALLEL } else { PARALLEL };
    if to.len() < alone {
        return some(0, to);
    }
    to.par_chunks_mut(PARALLEL).enumerate().for_each(|(i, to)| some(i * PARALLEL, to));
}

fn pick<T: Copy>(from: &[T], stride: usize, to: &mut [T]) {
    match stride {
        0 => to.fill(from[0]),
        1 => to.copy_from_slice(&from[..to.len()]),
        _ => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, &from)| *to = from),
    }
}

/// Copies matrices whose columns are contiguous in the source and whose rows are contiguous in the target.
fn transpose<T: Pod + Send + Sync>(
    from: &[T],
    layout: &Strided,
    [rows, columns]: [usize; 2],
    stride: usize,
    to: &mut [T],
) {
    let strip = |from: &[T], to: &mut [T]| {
        for first in (0..columns).step_by(TILE) {
            for (r, to) in to.chunks_mut(columns).enumerate() {
                let part = &mut to[first..columns.min(first + TILE)];
                pick(&from[r + first * stride..], stride, part);
            }
        }
    };
    let matrix = |(i, to): (usize, &mut [T])| {
        let from = &from[layout.position(i * rows * columns)..];
        let strips = |(s, to): (usize, &mut [T])| strip(&from[s * TILE..], to);
        match to.len() < PARALLEL {
            true => to.chunks_mut(TILE * columns).enumerate().for_each(strips),
            false => to.par_chunks_mut(TILE * columns).enumerate().for_each(strips),
        }
    };
    match to.len() < PARALLEL {
        true => to.chunks_mut(rows * columns).enumerate().for_each(matrix),
        false => to.par_chunks_mut(rows * columns).enumerate().for_each(matrix),
    }
}

pub fn cast(call: &Call<'_>) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let mut target = Target::new(&call.outputs[0])?;
    with_acc!(source.dtype, cast_via(&source, &mut target));
    Ok(())
}

fn cast_via<A: Acc>(source: &Source<'_>, target: &mut Target<'_>) {
    let (view, layout, dtype) = (source.view(), Strided::new(source.layout), target.dtype);
    let convert = |start: usize, bytes: &mut [u8]| {
        for (i, block) in bytes.chunks_mut(BLOCK * dtype.size()).enumerate() {
            with_scratch(block.len() / dtype.size(), |values: &mut [A]| {
                load(view, &layout, start + i * BLOCK, values);
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
