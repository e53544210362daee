//! Means, variances and norms of slices, whose sums and squares may leave the range of their dtype.
//!
//! Sums are in f64. If a sum or a square of f64 numbers is out of range, the numbers are first scaled by a power of 2.

use crate::access::{Acc, BLOCK, Source, Strided, Target, borrow, for_runs, in_vectors, store, with_acc, with_scratch};
use crate::reduction::reduce::{COLUMNS, Rows, SEGMENT};
use isograd_core::fused::Fused;
use isograd_core::operands::Input;
use isograd_core::ops::reduction::reduce::{self, MomentsOutputs, Variance, VarianceOutputs};
use isograd_core::{Call, DType, Operand, Result};
use rayon::prelude::*;
use smallvec::SmallVec;

/// The mean of a slice, and the mean of squared deviations from it, of numbers multiplied by `scale`.
#[derive(Clone, Copy, Default)]
pub struct Moments {
    pub mean: f64,
    pub square: f64,
    scale: f64,
}

impl Moments {
    fn deviation(&self) -> f64 {
        self.square.sqrt() / self.scale
    }

    pub fn rstd(&self, eps: f64) -> f64 {
        self.deviation().hypot(eps.sqrt()).recip()
    }

    /// True if the moments are accurate without scaling. Squares of f32 numbers are well inside of the range.
    fn is_sure<A: Acc>(&self) -> bool {
        A::DTYPE != DType::F64 || (self.mean.is_finite() && (LEAST_SQUARE..=f64::MAX).contains(&self.square))
    }
}

/// The mean of f64 squares above which subnormal squares are negligible.
const LEAST_SQUARE: f64 = 1e-280;

/// The variance and the mean.
pub fn variance(call: &Call<'_>, variance: &Variance) -> Result<()> {
    let put = |m: &Moments, count: f64| {
        let share = count / variance.divisor;
        [m.square * share / m.scale / m.scale, m.mean / m.scale]
    };
    let (Input { x }, VarianceOutputs { y, mean }) = (variance.inputs(call), variance.outputs(call));
    run(x, [y, mean], variance.dims, true, put)
}

/// The mean and the reciprocal deviation.
pub fn moments(call: &Call<'_>, descriptor: &reduce::Moments) -> Result<()> {
    let (Input { x }, MomentsOutputs { mean, rstd }) = (descriptor.inputs(call), descriptor.outputs(call));
    let put = |m: &Moments, _| [m.mean / m.scale, m.rstd(descriptor.eps)];
    run(x, [mean, rstd], descriptor.dims, descriptor.is_centred, put)
}

/// Writes `put(moments, number of elements)` of each slice of x to the two outputs.
fn run(
    x: &Operand<'_>,
    outputs: [&Operand<'_>; 2],
    dims: usize,
    is_centred: bool,
    put: impl Fn(&Moments, f64) -> [f64; 2],
) -> Result<()> {
    let source = Source::new(x)?;
    let rows = Rows::new(&source, dims);
    let found = with_acc!(source.dtype, all(&rows, is_centred));
    let results: Vec<[f64; 2]> = found.iter().map(|m| put(m, rows.count as f64)).collect();
    for (k, output) in outputs.into_iter().enumerate() {
        let values: SmallVec<[f64; 32]> = results.iter().map(|result| result[k]).collect();
        let mut target = Target::new(output)?;
        let dtype = target.dtype;
        store(&values, dtype, target.elements());
    }
    Ok(())
}

pub fn all<A: Acc>(rows: &Rows<'_>, is_centred: bool) -> Vec<Moments> {
    let mut found = vec![Moments::default(); rows.rows];
    let one = |(row, m): (usize, &mut Moments)| *m = of_row::<A>(rows, row, is_centred);
    let piece_of_columns = |(first, piece): (usize, &mut [Moments])| {
        of_columns::<A>(rows, first, is_centred, piece);
        let unsure = piece.iter_mut().enumerate().filter(|(_, m)| !m.is_sure::<A>());
        unsure.for_each(|(k, m)| *m = of_row::<A>(rows, first + k, is_centred));
    };
    match (rows.columns(), rows.is_large()) {
        (Some(columns), is_large) => {
            let (mut pieces, mut first) = (Vec::new(), 0);
            for piece in found.chunks_mut(columns).flat_map(|line| line.chunks_mut(COLUMNS)) {
                let start = first;
                first += piece.len();
                pieces.push((start, piece));
            }
            match is_large {
                false => pieces.into_iter().for_each(piece_of_columns),
                true => pieces.into_par_iter().for_each(piece_of_columns),
            }
        }
        (None, false) => found.iter_mut().enumerate().for_each(one),
        (None, true) => found.par_iter_mut().enumerate().for_each(one),
    }
    found
}

fn of_row<A: Acc>(rows: &Rows<'_>, row: usize, is_centred: bool) -> Moments {
    let found = scaled_moments::<A>(rows, row, is_centred, 1.0);
    match found.is_sure::<A>() {
        true => found,
        false => scaled_moments::<A>(rows, row, is_centred, scale::<A>(rows, row)),
    }
}

fn scaled_moments<A: Acc>(rows: &Rows<'_>, row: usize, is_centred: bool, scale: f64) -> Moments {
    let n = rows.count as f64;
    let mean = if is_centred { sums::<A, 1>(rows, row, |v| [v * scale])[0] / n } else { 0.0 };
    let [shift, square] = sums::<A, 2>(rows, row, |v| {
        let d = v * scale - mean;
        [d, d * d]
    });
    corrected(mean, if is_centred { shift / n } else { 0.0 }, square / n, scale)
}

/// Moments about the mean, from a mean that is `shift` too small and the mean of squared differences from it.
fn corrected(mean: f64, shift: f64, square: f64, scale: f64) -> Moments {
    Moments { mean: mean + shift, square: square - shift * shift, scale }
}

/// The power of 2 that scales the largest element of a row to 1 .. 2; 1 if the row is empty or has no finite largest element.
fn scale<A: Acc>(rows: &Rows<'_>, row: usize) -> f64 {
    let mut largest = 0.0f64;
    rows.blocks(row, 0, rows.count, |_, block: &[A]| {
        // NaN stays.
        block.iter().for_each(|v| largest = if v.to_f64().abs() <= largest { largest } else { v.to_f64().abs() });
    });
    let exponent = largest.log2().floor().clamp(-1000.0, 1000.0);
    if largest > 0.0 && largest.is_finite() { 2f64.powi(-exponent as i32) } else { 1.0 }
}

#[inline(always)]
fn add<const K: usize>(mut all: [f64; K], one: [f64; K]) -> [f64; K] {
    all.iter_mut().zip(one).for_each(|(a, b)| *a += b);
    all
}

/// Sums of `f` over adjacent elements, in eight lanes.
fn sums_of_block<A: Acc, const K: usize>(block: &[A], f: &impl Fn(f64) -> [f64; K]) -> [f64; K] {
    in_vectors(
        #[inline(always)]
        || {
            let (groups, rest) = block.as_chunks::<8>();
            let mut lanes = [[0.0; 8]; K];
            for group in groups {
                let values = group.map(
                    #[inline(always)]
                    |v| f(v.to_f64()),
                );
                for (k, lanes) in lanes.iter_mut().enumerate() {
                    lanes.iter_mut().zip(values).for_each(|(lane, v)| *lane += v[k]);
                }
            }
            let few = rest.iter().fold([0.0; K], |few, v| add(few, f(v.to_f64())));
            (0..8).fold(few, |sum, i| add(sum, std::array::from_fn(|k| lanes[k][i])))
        },
    )
}

/// The mean of a slice, and `1 / sqrt(variance + eps)`.
pub fn of_slice(x: &[f32], is_centred: bool, eps: f64) -> [f32; 2] {
    let n = x.len() as f64;
    let of_blocks = |f: &dyn Fn(&[f32]) -> [f64; 2]| x.chunks(BLOCK).map(f).fold([0.0; 2], add);
    let mean = if is_centred { of_blocks(&|block| [sums_of_block(block, &|v| [v])[0], 0.0])[0] / n } else { 0.0 };
    let [shift, square] = of_blocks(&|block| {
        sums_of_block(block, &|v| {
            let d = v - mean;
            [d, d * d]
        })
    });
    let found = corrected(mean, if is_centred { shift / n } else { 0.0 }, square / n, 1.0);
    [found.mean as f32, found.rstd(eps) as f32]
}

/// Sums of `f` over the elements of a row, in an order that depends only on the shape.
fn sums<A: Acc, const K: usize>(rows: &Rows<'_>, row: usize, f: impl Fn(f64) -> [f64; K] + Sync) -> [f64; K] {
    let of_segment = |s: usize| {
        let mut sum = [0.0; K];
        let end = rows.count.min((s + 1) * SEGMENT);
        rows.blocks(row, s * SEGMENT, end, |_, block: &[A]| sum = add(sum, sums_of_block(block, &f)));
        sum
    };
    let segments = rows.count.div_ceil(SEGMENT);
    match rows.rows == 1 && segments > 1 {
        false => (0..segments).map(of_segment).fold([0.0; K], add),
        true => (0..segments).into_par_iter().map(of_segment).collect::<Vec<_>>().into_iter().fold([0.0; K], add),
    }
}

/// The moments of adjacent columns from `first` on. Memory is read in its order.
fn of_columns<A: Acc>(rows: &Rows<'_>, first: usize, is_centred: bool, found: &mut [Moments]) {
    let (n, base) = (rows.count as f64, rows.kept.position(first));
    let each_line = |f: &mut dyn FnMut(&[A])| {
        with_scratch(found.len(), |scratch: &mut [A]| {
            for_runs(&rows.reduced, 0, rows.count, |_, position, stride, lines| {
                for line in 0..lines {
                    let line = Strided::line(base + position + line * stride, scratch.len());
                    f(borrow(rows.view, &line, 0, scratch));
                }
            });
        });
    };
    let mut means: SmallVec<[f64; COLUMNS]> = SmallVec::from_elem(0.0, found.len());
    if is_centred {
        each_line(&mut |line| {
            in_vectors(
                #[inline(always)]
                || means.iter_mut().zip(line).for_each(|(mean, v)| *mean += v.to_f64()),
            );
        });
        means.iter_mut().for_each(|mean| *mean /= n);
    }
    let [mut shifts, mut squares] = [0, 1].map(|_| SmallVec::<[f64; COLUMNS]>::from_elem(0.0, found.len()));
    each_line(&mut |line| {
        in_vectors(
            #[inline(always)]
            || {
                for (((shift, square), v), mean) in shifts.iter_mut().zip(&mut squares).zip(line).zip(&means) {
                    let d = v.to_f64() - mean;
                    *shift += d;
                    *square += d * d;
                }
            },
        );
    });
    for (((m, mean), shift), square) in found.iter_mut().zip(means).zip(shifts).zip(squares) {
        *m = corrected(mean, if is_centred { shift / n } else { 0.0 }, square / n, 1.0);
    }
}

/// The mean of a row whose sum overflows.
pub fn mean<A: Acc>(rows: &Rows<'_>, row: usize) -> A {
    // A power of 2 of at most 1 over the number of elements.
    let share = 2f64.powi(-(rows.count as f64).log2().ceil() as i32);
    let [sum] = sums::<A, 1>(rows, row, |v| [v * share]);
    A::from_f64(sum / (rows.count as f64 * share))
}

/// The norm of a row from the sum of its squares, which may be out of range.
pub fn norm<A: Acc>(rows: &Rows<'_>, row: usize, square: A) -> A {
    let (least, most) = match A::DTYPE {
        DType::F64 => (LEAST_SQUARE, f64::MAX),
        _ => (1e-30, f32::MAX as f64),
    };
    if (least..=most).contains(&square.to_f64()) {
        return A::from_f64(square.to_f64().sqrt());
    }
    let scale = if A::DTYPE == DType::F64 { scale::<A>(rows, row) } else { 1.0 };
    let [sum] = sums::<A, 1>(rows, row, |v| [(v * scale) * (v * scale)]);
    A::from_f64(sum.sqrt() / scale)
}
