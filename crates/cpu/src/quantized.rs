//! Numbers of quantised weights, and products with them. The numbers of some rows of a weight at a time lie in scratch memory, never all.

use crate::access::{Source, Target, in_short_vectors, in_vectors, store, with_scratch};
use crate::matrix::{Factor, multiply_alone};
use crate::memory::scratch;
use crate::slices::Elements;
use isograd_core::fused::Fused;
use isograd_core::operands::{Input, Output};
use isograd_core::ops::matrix::quantized::{Dequantize, QuantizedInputs, QuantizedLinear};
use isograd_core::quantized::BlockFormat;
use isograd_core::{Call, DType, Result};
use rayon::prelude::*;

/// Numbers that are dequantised at once, a multiple of every block. They fit into the first-level cache.
const PIECE: usize = 1024;
/// Rows of x that are multiplied with pieces as they are dequantised. For more, a product of matrices is faster.
const FEW: usize = 8;
/// Rows of the weight in a task: of few rows of x, and of more.
const TASK: [usize; 2] = [16, 64];
/// Lanes of sums: they are added in the same order whatever the processor.
const LANES: usize = 16;

fn numbers(format: BlockFormat, bytes: &[u8], values: &mut [f32]) {
    in_short_vectors(
        #[inline(always)]
        || format.dequantise(bytes, values),
    );
}

/// The contiguous bytes of blocks.
fn blocks<'s>(source: &'s Source<'_>) -> &'s [u8] {
    &source.bytes[source.layout.offset()..][..source.layout.shape().numel()]
}

pub fn dequantize(call: &Call<'_>, fused: &Dequantize) -> Result<()> {
    let (Input { x }, Output { y }) = (fused.inputs(call), fused.outputs(call));
    let (format, source, mut target) = (fused.0, Source::new(x)?, Target::new(y)?);
    let dtype = target.dtype;
    let (read, written) = (PIECE / format.elements() * format.bytes(), PIECE * dtype.size());
    let pieces = blocks(&source).par_chunks(read).zip(target.elements().par_chunks_mut(written));
    pieces.for_each(|(bytes, y)| {
        let mut values = [0.0f32; PIECE];
        let values = &mut values[..y.len() / dtype.size()];
        numbers(format, bytes, values);
        match dtype {
            DType::F64 => store(&values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>(), dtype, y),
            _ => store(values, dtype, y),
        }
    });
    Ok(())
}

/// Adds the products of a piece of a row of the weight with the same piece of each row of x to lanes.
fn add_products(lanes: &mut [[f32; LANES]], w: &[f32], x: &[f32], width: usize) {
    in_vectors(
        #[inline(always)]
        || {
            for (lanes, x) in lanes.iter_mut().zip(x.chunks(width)) {
                for (w, x) in w.as_chunks::<LANES>().0.iter().zip(x.as_chunks::<LANES>().0) {
                    (0..LANES).for_each(|i| lanes[i] += w[i] * x[i]);
                }
            }
        },
    );
}

pub fn linear(call: &Call<'_>, fused: &QuantizedLinear) -> Result<()> {
    let (QuantizedInputs { x, weight, bias }, Output { y }) = (fused.inputs(call), fused.outputs(call));
    let (format, rows, source) = (fused.format, fused.rows, Source::new(weight)?);
    let (width, outputs) = (x.layout.shape()[1], weight.layout.shape()[0]);
    let bias = Elements::all(bias)?;
    let x = Elements::all(Some(x))?.unwrap_or_default();
    let (bytes, row) = (blocks(&source), format.row_bytes(width).expect("rows are whole blocks"));
    // The result, transposed.
    let mut turned = scratch::<f32>(call, outputs * rows)?;
    let is_few = rows <= FEW;
    let task = TASK[usize::from(!is_few)];
    turned.par_chunks_mut(task * rows).enumerate().for_each(|(i, y)| {
        let bytes = &bytes[i * task * row..][..y.len() / rows * row];
        match is_few {
            true => few(format, bytes, &x, width, y, rows),
            false => many(format, bytes, &x, width, y, rows),
        }
    });
    let mut target = Target::new(y)?;
    let dtype = target.dtype;
    target.elements().par_chunks_mut(outputs * dtype.size()).enumerate().for_each(|(m, y)| {
        with_scratch(outputs, |line: &mut [f32]| {
            let sums = turned[m..].iter().step_by(rows);
            match &bias {
                Some(bias) => line.iter_mut().zip(sums).zip(bias).for_each(|((y, sum), bias)| *y = sum + bias),
                None => line.iter_mut().zip(sums).for_each(|(y, sum)| *y = *sum),
            }
            store(line, dtype, y);
        });
    });
    Ok(())
}

/// Rows of the weight times few rows of x, piece by piece.
fn few(format: BlockFormat, bytes: &[u8], x: &[f32], width: usize, y: &mut [f32], rows: usize) {
    let (row, piece) = (width / format.elements() * format.bytes(), PIECE / format.elements() * format.bytes());
    let mut values = [0.0f32; PIECE];
    for (y, bytes) in y.chunks_mut(rows).zip(bytes.chunks(row)) {
        let mut lanes = [[0.0f32; LANES]; FEW];
        for (k, bytes) in bytes.chunks(piece).enumerate() {
            let values = &mut values[..bytes.len() / format.bytes() * format.elements()];
            numbers(format, bytes, values);
            add_products(&mut lanes[..rows], values, &x[k * PIECE..], width);
        }
        for (y, mut lanes) in y.iter_mut().zip(lanes) {
            for half in [8, 4, 2, 1] {
                (0..half).for_each(|i| lanes[i] += lanes[i + half]);
            }
            *y = lanes[0];
        }
    }
}

/// Rows of the weight times many rows of x: a product of matrices.
fn many(format: BlockFormat, bytes: &[u8], x: &[f32], width: usize, y: &mut [f32], rows: usize) {
    let outputs = y.len() / rows;
    with_scratch(outputs * width, |values: &mut [f32]| {
        numbers(format, bytes, values);
        let (a, b) = (Factor { values, strides: [width, 1] }, Factor { values: x, strides: [1, width] });
        multiply_alone(y, [outputs, rows, width], a, b, false);
    });
}
