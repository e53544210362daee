//! Normalisation of rows.

use super::moments::of_slice;
use crate::access::{Strided, Target, View, in_vectors, load, store, with_scratch};
use crate::elementwise::pointwise::Eval;
use crate::memory::scratch;
use crate::slices::{Elements, SUMMED, TASK, add_to, pieces, row, sum_and_dot, sum_rows};
use isograd_core::fused::Fused;
use isograd_core::ops::normalization::norm::{
    NormBackwardInputs, NormBackwardOutputs, NormInputs, NormOutputs, RowNorm, RowNormBackward,
};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Call, Operand, Result, host};
use rayon::prelude::*;
use std::mem::swap;

/// The end of a norm: the product with the weight, the sum with the bias, and the activation.
struct End {
    weight: Option<Vec<f32>>,
    bias: Option<Vec<f32>>,
    activation: Option<Eval<f32>>,
    mul: Eval<f32>,
    add: Eval<f32>,
}

impl End {
    fn new(weight: Option<&Operand<'_>>, bias: Option<&Operand<'_>>, activation: Option<Pointwise>) -> Result<End> {
        let (weight, bias) = (Elements::all(weight)?, Elements::all(bias)?);
        let [mul, add] = [Pointwise::Mul, Pointwise::Add].map(row);
        Ok(End { weight, bias, activation: activation.map(row), mul, add })
    }

    /// Replaces a row in `a` by its end; `b` is scratch memory.
    fn apply<'s>(&self, a: &mut &'s mut [f32], b: &mut &'s mut [f32]) {
        if let Some(weight) = &self.weight {
            (self.mul)(&[a, weight], &[], &mut [b]);
            swap(a, b);
        }
        if let Some(bias) = &self.bias {
            (self.add)(&[a, bias], &[1.0], &mut [b]);
            swap(a, b);
        }
        if let Some(activation) = self.activation {
            activation(&[a], &[], &mut [b]);
            swap(a, b);
        }
    }
}

pub fn forward(call: &Call<'_>, norm: &RowNorm) -> Result<()> {
    let NormInputs { x, residual, weight, bias } = norm.inputs(call);
    let NormOutputs { y, mean, rstd, sum } = norm.outputs(call);
    let (x, residual) = (Elements::new(x)?, residual.map(Elements::new).transpose()?);
    let end = End::new(weight, bias, norm.activation.row())?;
    let (mut y, mut mean, mut rstd) = (Target::new(y)?, Target::new(mean)?, Target::new(rstd)?);
    let mut sum = sum.map(Target::new).transpose()?;
    let (dtype, sum_dtype, length) = (y.dtype, sum.as_ref().map(|sum| sum.dtype), norm.length);
    let rows = (TASK / length).max(1);
    let mut parts = host::with_room(call.op, norm.rows.div_ceil(rows))?;
    let statistics = |of| bytemuck::cast_slice_mut::<u8, f32>(of).chunks_mut(rows);
    let (means, rstds) = (statistics(mean.elements()), statistics(rstd.elements()));
    let ys = y.elements().chunks_mut(rows * length * dtype.size());
    parts.extend(ys.zip(means).zip(rstds).zip(pieces(sum.as_mut(), rows * length)));
    let [standardise, add] = [Pointwise::Standardise, Pointwise::Add].map(row);
    parts.par_iter_mut().enumerate().for_each(|(task, (((y, mean), rstd), sum))| {
        with_scratch(5 * length, |scratch: &mut [f32]| {
            let mut scratch = scratch.chunks_exact_mut(length);
            let mut next = || scratch.next().unwrap_or_default();
            let (of_x, mut a, mut b, means, rstds) = (next(), next(), next(), next(), next());
            for (i, y) in y.chunks_mut(length * dtype.size()).enumerate() {
                let start = (task * rows + i) * length;
                let mut x = x.at(start, of_x);
                if let (Some(residual), Some(sum), Some(dtype)) = (&residual, &mut *sum, sum_dtype) {
                    add(&[x, residual.at(start, a)], &[1.0], &mut [b]);
                    // The rounded sum is normalised.
                    let bytes = &mut sum[i * length * dtype.size()..][..length * dtype.size()];
                    store(b, dtype, bytes);
                    load(View { bytes, dtype }, &Strided::line(0, length), 0, of_x);
                    x = of_x;
                }
                [mean[i], rstd[i]] = of_slice(x, norm.is_centred, norm.eps);
                means.fill(mean[i]);
                rstds.fill(rstd[i]);
                standardise(&[x, means, rstds], &[], &mut [a]);
                end.apply(&mut a, &mut b);
                store(a, dtype, y);
            }
        });
    });
    Ok(())
}

// dx = rstd (h - mean(h) - xhat mean(h xhat)), h = dy weight
pub fn backward(call: &Call<'_>, norm: &RowNormBackward) -> Result<()> {
    let NormBackwardInputs { dy, x, mean, rstd, weight, bias, added } = norm.inputs(call);
    let NormBackwardOutputs { low, dx, weight: dweight, bias: dbias } = norm.outputs(call);
    let RowNorm { rows: count, length, is_centred, activation, .. } = norm.0;
    let (dy, x, added) = (Elements::new(dy)?, Elements::new(x)?, added.map(Elements::new).transpose()?);
    let (mean, rstd) = (Elements::new(mean)?, Elements::new(rstd)?);
    let slope = activation.slope();
    // The slope reads the activation's argument, or its result.
    let end = End::new(weight, bias, activation.row().filter(|_| slope.is_some_and(|(_, of_result)| of_result)))?;
    let (mut low, mut dx) = (low.map(Target::new).transpose()?, dx.map(Target::new).transpose()?);
    let dtypes = [&low, &dx].map(|y| y.as_ref().map(|y| y.dtype));
    let is_summed = dweight.is_some() || dbias.is_some();
    let rows = (TASK / length).max(if is_summed { SUMMED } else { 1 });
    let tasks = count.div_ceil(rows);
    // The sums of each task: of the products of dy and normalised rows, and of dy.
    let mut sums = scratch::<f32>(call, tasks * 2 * length)?;
    sums.fill(0.0);
    let mut parts = host::with_room(call.op, tasks)?;
    let outputs = pieces(low.as_mut(), rows * length).zip(pieces(dx.as_mut(), rows * length));
    parts.extend(sums.chunks_mut(2 * length).zip(outputs));
    let slope = slope.map(|(slope, _)| row(slope));
    let [standardise, mul] = [Pointwise::Standardise, Pointwise::Mul].map(row);
    parts.par_iter_mut().enumerate().for_each(|(task, (sums, (low, dx)))| {
        let (of_weight, of_bias) = sums.split_at_mut(length);
        with_scratch(8 * length, |scratch: &mut [f32]| {
            let mut scratch = scratch.chunks_exact_mut(length);
            let mut next = || scratch.next().unwrap_or_default();
            let [of_dy, of_x, xhat, mut a, mut b, of_added, means, rstds] = std::array::from_fn(|_| next());
            for (i, at) in (task * rows..count.min((task + 1) * rows)).enumerate() {
                let (mut g, x) = (dy.at(at * length, of_dy), x.at(at * length, of_x));
                let [mean, rstd] = [&mean, &rstd].map(|values| values.at(at, &mut [0.0])[0]);
                means.fill(if is_centred { mean } else { 0.0 });
                rstds.fill(rstd);
                standardise(&[x, means, rstds], &[], &mut [xhat]);
                if let Some(slope) = slope {
                    a.copy_from_slice(xhat);
                    end.apply(&mut a, &mut b);
                    slope(&[g, a], &[], &mut [means]);
                    g = means;
                }
                if is_summed {
                    add_to([of_bias, of_weight], g, xhat);
                }
                let outputs = [low.as_mut().zip(dtypes[0]), dx.as_mut().zip(dtypes[1])];
                if outputs.iter().all(Option::is_none) {
                    continue;
                }
                let h = match &end.weight {
                    Some(weight) => {
                        mul(&[g, weight], &[], &mut [b]);
                        &*b
                    }
                    None => g,
                };
                let [sum, dot] = sum_and_dot(h, xhat).map(|sum| (sum / length as f64) as f32);
                let mean = if is_centred { sum } else { 0.0 };
                let more = added.as_ref().map(|added| added.at(at * length, of_added));
                in_vectors(
                    #[inline(always)]
                    || {
                        let (a, h, xhat) = (&mut a[..length], &h[..length], &xhat[..length]);
                        (0..length).for_each(|j| a[j] = rstd * (h[j] - mean - xhat[j] * dot));
                    },
                );
                if let Some(more) = more {
                    a.iter_mut().zip(more).for_each(|(a, more)| *a += more);
                }
                for (bytes, dtype) in outputs.into_iter().flatten() {
                    store(a, dtype, &mut bytes[i * length * dtype.size()..][..length * dtype.size()]);
                }
            }
        });
    });
    drop(parts);
    let sums = sum_rows(&mut sums, 2 * length);
    for (k, gradient) in [dweight, dbias].into_iter().enumerate() {
        if let Some(gradient) = gradient {
            let mut target = Target::new(gradient)?;
            let dtype = target.dtype;
            store(&sums[k * length..][..length], dtype, target.elements());
        }
    }
    Ok(())
}
