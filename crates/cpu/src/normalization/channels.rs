//! Normalisation of channels over the batch.

use super::moments::{self, Moments};
use crate::access::{BLOCK, Source, Strided, Target, in_vectors, store, with_scratch};
use crate::elementwise::pointwise::Eval;
use crate::memory::scratch;
use crate::reduction::reduce::Rows;
use crate::slices::{Elements, SUMMED, TASK, add_to, pieces, row, sum_and_dot, sum_rows, write};
use isograd_core::fused::Fused;
use isograd_core::ops::normalization::channel_norm::{
    BatchNorm, BatchNormBackward, BatchNormBackwardInputs, BatchNormBackwardOutputs, BatchNormInputs, BatchNormOutputs,
    Rectified,
};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Call, DType, Operand, Result, host};
use rayon::prelude::*;
use std::mem::swap;

/// Elements of a channel of a sample up to which parameters are repeated for each of them.
const FEW: usize = 64;

/// The elements `[batch, channels, inner]` as lines, whose parameters are adjacent or equal.
#[derive(Clone, Copy)]
struct Lines {
    channels: usize,
    inner: usize,
    /// Elements of a line, except of the last.
    length: usize,
    /// All elements.
    numel: usize,
    /// True if a line has one channel; else it has whole samples, and each of its elements has parameters of its own.
    is_plane: bool,
}

impl Lines {
    fn new(&BatchNorm { batch, channels, inner, .. }: &BatchNorm) -> Lines {
        let sample = channels * inner;
        let is_plane = inner > FEW;
        let length = if is_plane { inner } else { sample * (BLOCK / sample).max(1) };
        Lines { channels, inner, length, numel: batch * sample, is_plane }
    }

    /// Elements that are computed together.
    fn piece(&self) -> usize {
        self.length.min(4 * BLOCK)
    }

    /// Elements of a task.
    fn elements(&self) -> usize {
        (TASK / self.length).max(1) * self.length
    }

    /// Elements of the lines that a task adds up.
    fn summed(&self) -> usize {
        (TASK / self.length).max(SUMMED) * self.length
    }

    /// A number for each channel, for each element of a line.
    fn spread(&self, values: Option<Vec<f32>>) -> Option<Vec<f32>> {
        let values = values?;
        Some(if self.is_plane {
            values
        } else {
            (0..self.length).map(|i| values[i / self.inner % self.channels]).collect()
        })
    }

    /// The parameters of the elements from this one on.
    fn of<'p>(&self, values: &'p [f32], at: usize, scratch: &'p mut [f32]) -> &'p [f32] {
        if !self.is_plane {
            return &values[at % self.length..][..scratch.len()];
        }
        scratch.fill(values[at / self.length % self.channels]);
        scratch
    }

    /// Calls `f(element, number of elements)` for the pieces of a part.
    fn pieces(&self, start: usize, end: usize, mut f: impl FnMut(usize, usize)) {
        for line in (start..end).step_by(self.length) {
            let end = end.min(line + self.length);
            (line..end).step_by(self.piece()).for_each(|at| f(at, self.piece().min(end - at)));
        }
    }
}

/// A normalisation: its parameters for the channels, or for the elements of a line, and rows of the pointwise table.
struct Norm {
    lines: Lines,
    mean: Option<Vec<f32>>,
    rstd: Option<Vec<f32>>,
    weight: Option<Vec<f32>>,
    bias: Option<Vec<f32>>,
    standardise: Eval<f32>,
    mul: Eval<f32>,
    add: Eval<f32>,
    /// The activation, and its gradient.
    rectified: Option<[Eval<f32>; 2]>,
}

/// The scratch memory of a piece: two results, and the parameters of its elements.
type Buffers<'s> = [&'s mut [f32]; 4];

impl Norm {
    fn new(norm: &BatchNorm, mean: Vec<f32>, rstd: Vec<f32>, weight: Option<Vec<f32>>, bias: Option<Vec<f32>>) -> Norm {
        let lines = Lines::new(norm);
        let [mean, rstd, weight, bias] = [Some(mean), Some(rstd), weight, bias].map(|values| lines.spread(values));
        let [standardise, mul, add] = [Pointwise::Standardise, Pointwise::Mul, Pointwise::Add].map(row);
        let rectified = match norm.rectified {
            Rectified::No => None,
            Rectified::Relu => Some([Pointwise::Relu, Pointwise::ReluBackward].map(row)),
            Rectified::Relu6 => Some([Pointwise::Relu6, Pointwise::Relu6Backward].map(row)),
        };
        Norm { lines, mean, rstd, weight, bias, standardise, mul, add, rectified }
    }

    /// Normalises elements from this one on, to the first buffer.
    fn normalise(&self, at: usize, x: &[f32], [a, _, p, q]: &mut Buffers<'_>) {
        let (Some(mean), Some(rstd)) = (&self.mean, &self.rstd) else { return };
        (self.standardise)(&[x, self.lines.of(mean, at, p), self.lines.of(rstd, at, q)], &[], &mut [a]);
    }

    /// Applies weight and bias to the first buffer.
    fn scale(&self, at: usize, [a, b, p, _]: &mut Buffers<'_>) {
        if let Some(weight) = &self.weight {
            (self.mul)(&[a, self.lines.of(weight, at, p)], &[], &mut [b]);
            swap(a, b);
        }
        if let Some(bias) = &self.bias {
            (self.add)(&[a, self.lines.of(bias, at, p)], &[1.0], &mut [b]);
            swap(a, b);
        }
    }
}

pub fn forward(call: &Call<'_>, descriptor: &BatchNorm) -> Result<()> {
    let BatchNormInputs { x, weight, bias, residual, mean, var } = descriptor.inputs(call);
    let outputs = descriptor.outputs(call);
    let given = Elements::all(mean)?.zip(Elements::all(var)?);
    let (x, residual) = (Elements::new(x)?, residual.map(Elements::new).transpose()?);
    let (mean, rstd) = match given {
        Some((mean, var)) => {
            let rstd = |var: f32| (f64::from(var) + descriptor.eps).sqrt().recip() as f32;
            (mean, var.into_iter().map(rstd).collect())
        }
        None => {
            let rows = rows(&x.0, descriptor);
            let found = moments::all::<f32>(&rows, true);
            update(descriptor, &outputs, &rows, &found)?;
            let values = |f: &dyn Fn(&Moments) -> f64| found.iter().map(|m| f(m) as f32).collect::<Vec<f32>>();
            (values(&|m| m.mean), values(&|m| m.rstd(descriptor.eps)))
        }
    };
    write(outputs.mean, &mean)?;
    write(outputs.rstd, &rstd)?;
    let norm = Norm::new(descriptor, mean, rstd, Elements::all(weight)?, Elements::all(bias)?);
    let mut y = Target::new(outputs.y)?;
    let (dtype, part, piece) = (y.dtype, norm.lines.elements(), norm.lines.piece());
    y.elements().par_chunks_mut(part * dtype.size()).enumerate().for_each(|(task, y)| {
        with_scratch(5 * piece, |scratch: &mut [f32]| {
            norm.lines.pieces(task * part, task * part + y.len() / dtype.size(), |at, n| {
                let mut scratch = scratch.chunks_exact_mut(piece).map(|scratch| &mut scratch[..n]);
                let [read, a, b, p, q] = std::array::from_fn(|_| scratch.next().unwrap_or_default());
                let mut buffers = [a, b, p, q];
                norm.normalise(at, x.at(at, read), &mut buffers);
                norm.scale(at, &mut buffers);
                let [a, b, ..] = &mut buffers;
                if let Some(residual) = &residual {
                    (norm.add)(&[a, residual.at(at, read)], &[1.0], &mut [b]);
                    swap(a, b);
                }
                if let Some([rectify, _]) = norm.rectified {
                    rectify(&[a], &[], &mut [b]);
                    swap(a, b);
                }
                store(a, dtype, &mut y[(at - task * part) * dtype.size()..][..n * dtype.size()]);
            });
        });
    });
    Ok(())
}

/// The channels of x, as rows that are reduced.
fn rows<'a>(x: &'a Source<'_>, &BatchNorm { batch, channels, inner, .. }: &BatchNorm) -> Rows<'a> {
    let kept = Strided::of(&[channels], &[inner], x.layout.offset());
    let reduced = Strided::of(&[batch, inner], &[channels * inner, 1], 0);
    Rows { view: x.view(), kept, reduced, rows: channels, count: batch * inner }
}

/// Updates running statistics and their number of batches.
fn update(
    norm: &BatchNorm,
    outputs: &BatchNormOutputs<&Operand<'_>>,
    rows: &Rows<'_>,
    found: &[Moments],
) -> Result<()> {
    let mut share = norm.momentum.unwrap_or_default();
    if let Some(batches) = outputs.batches {
        let mut target = Target::new(batches)?;
        let number: &mut [i64] = bytemuck::cast_slice_mut(target.elements());
        number[0] += 1;
        share = norm.momentum.unwrap_or(1.0 / number[0] as f64);
    }
    let count = (norm.batch * norm.inner) as f64;
    let unbiased = count / (count - 1.0);
    // An infinite mean has no moments.
    let mean = |channel: usize| match found[channel].mean {
        mean if mean.is_nan() => f64::from(moments::mean::<f32>(rows, channel)),
        mean => mean,
    };
    let new: [&dyn Fn(usize) -> f64; 2] = [&mean, &|channel| found[channel].square * unbiased];
    for (running, new) in [outputs.running_mean, outputs.running_var].into_iter().zip(new) {
        let Some(running) = running else { continue };
        let Some(mut values) = Elements::all(Some(running))? else { continue };
        for (channel, value) in values.iter_mut().enumerate() {
            *value = (f64::from(*value) * (1.0 - share) + new(channel) * share) as f32;
        }
        write(running, &values)?;
    }
    Ok(())
}

// dx = rstd (h - mean(h) - xhat mean(h xhat)), h = dy weight. With given mean and variance, dx = rstd h.
pub fn backward(call: &Call<'_>, descriptor: &BatchNormBackward) -> Result<()> {
    let BatchNormBackwardInputs { dy, x, mean, rstd, weight, y, bias, added } = descriptor.inputs(call);
    let BatchNormBackwardOutputs { dx, weight: dweight, bias: dbias, residual: dresidual } = descriptor.outputs(call);
    let optional = |operand: Option<&_>| operand.copied().map(|operand| Elements::new(&operand)).transpose();
    let (dy, x, y, added) = (Elements::new(dy)?, Elements::new(x)?, optional(y)?, optional(added)?);
    let numbers = |operand| Elements::all(operand).map(Option::unwrap_or_default);
    let norm = Norm::new(
        &descriptor.norm,
        numbers(Some(mean))?,
        numbers(Some(rstd))?,
        Elements::all(weight)?,
        Elements::all(bias)?,
    );
    let (lines, part, piece) = (norm.lines, norm.lines.elements(), norm.lines.piece());
    // Puts normalised elements and their dy before the activation to the scratch.
    let gradient = |at: usize, n: usize, scratch: &mut [f32]| {
        let mut scratch = scratch.chunks_exact_mut(piece).map(|scratch| &mut scratch[..n]);
        let [xhat, g, read, a, b, p, q] = std::array::from_fn(|_| scratch.next().unwrap_or_default());
        let mut buffers = [a, b, p, q];
        norm.normalise(at, x.at(at, read), &mut buffers);
        xhat.copy_from_slice(buffers[0]);
        let mut from = dy.at(at, read);
        if let Some(added) = &added {
            (norm.add)(&[from, added.at(at, buffers[2])], &[1.0], &mut [&mut *g]);
            read.copy_from_slice(g);
            from = read;
        }
        let Some([_, slope]) = norm.rectified else { return g.copy_from_slice(from) };
        let argument = match &y {
            Some(y) => y.at(at, buffers[2]),
            None => {
                norm.scale(at, &mut buffers);
                &*buffers[0]
            }
        };
        slope(&[from, argument], &[], &mut [g]);
    };
    let buffers = 8 * piece;
    let is_summed = dweight.is_some() || dbias.is_some() || dx.is_some() && !descriptor.is_given;
    // The sums of dy and of its products with normalised elements, of each channel.
    let mut totals = vec![[0.0f32; 2]; descriptor.norm.channels];
    if is_summed && lines.is_plane {
        totals.par_iter_mut().enumerate().for_each(|(channel, total)| {
            with_scratch(buffers, |scratch: &mut [f32]| {
                let mut sums = [0.0; 2];
                for sample in 0..descriptor.norm.batch {
                    let start = (sample * lines.channels + channel) * lines.length;
                    lines.pieces(start, start + lines.length, |at, n| {
                        gradient(at, n, scratch);
                        let found = sum_and_dot(&scratch[piece..][..n], &scratch[..n]);
                        sums.iter_mut().zip(found).for_each(|(sum, v)| *sum += v);
                    });
                }
                *total = sums.map(|sum| sum as f32);
            });
        });
    } else if is_summed {
        // A task adds up one piece of some lines.
        let (summed, pieces) = (lines.summed(), lines.length.div_ceil(piece));
        let width = 2 * pieces * piece;
        let mut sums = scratch::<f32>(call, lines.numel.div_ceil(summed) * width)?;
        sums.fill(0.0);
        sums.par_chunks_mut(2 * piece).enumerate().for_each(|(task, sums)| {
            let (start, first) = (task / pieces * summed, task % pieces * piece);
            let (of_g, of_products) = sums.split_at_mut(piece);
            with_scratch(buffers, |scratch: &mut [f32]| {
                let end = lines.numel.min(start + summed);
                for line in (start..end).step_by(lines.length) {
                    let (at, end) = (line + first, end.min(line + lines.length));
                    if at >= end {
                        continue;
                    }
                    let n = piece.min(end - at);
                    gradient(at, n, scratch);
                    let (xhat, g) = scratch.split_at(piece);
                    add_to([&mut of_g[..n], &mut of_products[..n]], &g[..n], xhat);
                }
            });
        });
        let sums = sum_rows(&mut sums, width);
        for (i, v) in sums.iter().enumerate() {
            let (element, k) = (i / (2 * piece) * piece + i % piece, i % (2 * piece) / piece);
            if element < lines.length {
                totals[element / lines.inner % lines.channels][k] += v;
            }
        }
    }
    for (k, gradient) in [dbias, dweight].into_iter().enumerate() {
        if let Some(gradient) = gradient {
            write(gradient, &totals.iter().map(|total| total[k]).collect::<Vec<f32>>())?;
        }
    }
    let count = (descriptor.norm.batch * descriptor.norm.inner) as f32;
    let means = [0, 1].map(|k| {
        let mean = |total: &[f32; 2]| if descriptor.is_given { 0.0 } else { total[k] / count };
        lines.spread(Some(totals.iter().map(mean).collect())).unwrap_or_default()
    });
    let (mut dx, mut dresidual) = (dx.map(Target::new).transpose()?, dresidual.map(Target::new).transpose()?);
    let dtypes = [&dx, &dresidual].map(|y| y.as_ref().map(|y| y.dtype));
    let tasks = lines.numel.div_ceil(part);
    let mut parts = host::with_room(call.op, tasks)?;
    parts.extend(pieces(dx.as_mut(), part).zip(pieces(dresidual.as_mut(), part)).take(tasks));
    if dtypes == [None; 2] {
        return Ok(());
    }
    parts.par_iter_mut().enumerate().for_each(|(task, (dx, dresidual))| {
        with_scratch(buffers, |scratch: &mut [f32]| {
            let start = task * part;
            lines.pieces(start, lines.numel.min(start + part), |at, n| {
                gradient(at, n, scratch);
                let mut scratch = scratch.chunks_exact_mut(piece).map(|scratch| &mut scratch[..n]);
                let [xhat, g, a, p, q, r, s] = std::array::from_fn(|_| scratch.next().unwrap_or_default());
                let range = |bytes: &mut Option<&mut [u8]>, dtype: Option<DType>, values: &[f32]| {
                    if let Some((bytes, dtype)) = bytes.as_mut().zip(dtype) {
                        store(values, dtype, &mut bytes[(at - start) * dtype.size()..][..n * dtype.size()]);
                    }
                };
                range(dresidual, dtypes[1], g);
                let [mean, slope] =
                    [(&means[0], p), (&means[1], q)].map(|(values, scratch)| lines.of(values, at, scratch));
                let rstd = norm.rstd.as_ref().map_or(&[][..], |rstd| lines.of(rstd, at, r));
                let (xhat, mean, slope, rstd) = (&xhat[..n], &mean[..n], &slope[..n], &rstd[..n]);
                in_vectors(
                    #[inline(always)]
                    || match descriptor.is_given {
                        // Infinite elements have no part in it.
                        true => (0..n).for_each(|i| a[i] = rstd[i] * g[i]),
                        false => (0..n).for_each(|i| a[i] = rstd[i] * (g[i] - mean[i] - xhat[i] * slope[i])),
                    },
                );
                if let Some(weight) = &norm.weight {
                    (norm.mul)(&[a, lines.of(weight, at, s)], &[], &mut [g]);
                    return range(dx, dtypes[0], g);
                }
                range(dx, dtypes[0], a);
            });
        });
    });
    Ok(())
}
