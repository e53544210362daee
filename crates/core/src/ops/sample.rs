//! Drawing the next token of a sequence.

use super::{Order, Rounding};
use crate::backend::logits_error;
use crate::capture::Draw;
use crate::fused::{Fused, has_kernel, run_fused};
use crate::tensor::{check_float, describe};
use crate::{DType, Error, Result, Rng, RngState, Tensor};
use smallvec::SmallVec;

/// How [`Tensor::sample_logits`] draws.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// What logits are divided by. At 0 the largest is taken, and nothing is drawn.
    pub temperature: f64,
    /// How many of the largest logits are kept, of equal ones the first; 0 for all. With 1 nothing is drawn.
    pub top_k: usize,
    /// Of these, as many of the largest are kept as have this probability together, the one that reaches it included.
    pub top_p: f64,
    /// How many tokens of each row are drawn, each from all that are kept.
    pub num_samples: usize,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, num_samples: 1 }
    }
}

/// Logits `[B, V]` to positions `[B, n]`, as [`Tensor::sample_logits`] says. A second input, if there is one, is an i64 `[3]` that is
/// added to the generator's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleLogits {
    /// The state of the generator at the first draw.
    pub state: RngState,
    /// How many of the largest logits are kept; 0 for all.
    pub top_k: usize,
    /// `(1 - top_p) 2^24`.
    pub left_out: i64,
    /// `log2(e) / temperature`.
    pub slope: f64,
}

impl Fused for SampleLogits {
    fn name(&self) -> &'static str {
        "sample_logits"
    }

    fn composite(&self, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let sampling = Sampling {
            temperature: std::f64::consts::LOG2_E / self.slope,
            top_k: self.top_k,
            top_p: 1.0 - self.left_out as f64 / UNIT,
            num_samples: before[0].dims()[1],
        };
        let rng = self.state.generator(inputs.get(1))?;
        Ok(vec![Some(composite("sample_logits", &inputs[0], &sampling, &rng)?)])
    }
}

/// A weight is a whole number of 2^-40 of the largest, so that sums are the same in any order, on every device.
const FRACTION: i32 = 40;
/// 2^24: uniform draws are whole numbers of its inverse.
const UNIT: f64 = 16_777_216.0;
/// The most classes, whose weights have a sum below 2^62.
const CLASSES: usize = 1 << 22;
/// 2^f for f from 0 to 1 as a polynomial, the highest power first, with an error of 9e-8 of it. Exact at both ends.
#[allow(clippy::approx_constant, clippy::excessive_precision)]
const POWER: [f64; 7] = [2.1715024e-4, 1.2440877e-3, 9.678064e-3, 5.5484153e-2, 2.4022952e-1, 6.93147e-1, 1.0];

impl Tensor {
    /// Positions (i64, `[B]`, or `[B, n]` for n samples above 1) drawn from each row of logits `[B, V]` by the softmax of those
    /// that `sampling` keeps. Float dtypes; arithmetic is in f32, to which f64 is rounded first. Positions are the same on
    /// every device.
    ///
    /// A sample's draw is the element of [`Tensor::rand`] `[B, n]` in its place. The position is the first one up to which the
    /// kept probabilities, in the order of positions, add up to more than the draw; what has less than 2^-40 of the largest is
    /// never drawn. With temperature 0 or `top_k` 1 it is that of the largest logit, and the generator stays where it is.
    /// Outside of the tape. Holtzman et al. 2019, arXiv 1904.09751.
    ///
    /// Errors: `Dtype` unless the logits are floats; `Shape` unless they are `[B, V]` with V from 1 to 2^22; `Attr` for a
    /// temperature that is negative or not finite, a `top_p` outside of 0 (exclusive) to 1, or no samples; `Value` for a row
    /// that has NaN or infinity, or -infinity alone.
    pub fn sample_logits(&self, sampling: &Sampling, rng: &Rng) -> Result<Tensor> {
        let op = "sample_logits";
        check(op, self, sampling)?;
        let (rows, n) = (self.dims()[0], sampling.num_samples);
        if rows == 0 {
            return shaped(Tensor::zeros((0, n), DType::I64, self.device())?);
        }
        let x = self.detach();
        if !has_kernel::<SampleLogits>(&x) {
            return shaped(composite(op, &x, sampling, rng).map_err(|e| e.of(op))?);
        }
        let draw = match is_greedy(sampling) {
            true => Draw { state: RngState { seed: 0, offset: 0, stream: 0 }, base: None },
            false => rng.advance(rows * n)?,
        };
        let (x, y) = (x.contiguous()?, Tensor::allocate(op, &(rows, n).into(), DType::I64, self.device())?);
        let inputs: SmallVec<[&Tensor; 2]> = std::iter::once(&x).chain(&draw.base).collect();
        let top_k = if is_greedy(sampling) { 1 } else { sampling.top_k.min(x.dims()[1]) };
        let (state, left_out, slope) = (draw.state, left_out(sampling), slope(sampling));
        run_fused(op, &SampleLogits { state, top_k, left_out, slope }, &inputs, &[&y])?;
        shaped(y)
    }
}

fn check(op: &'static str, x: &Tensor, sampling: &Sampling) -> Result<()> {
    let Sampling { temperature, top_p, num_samples, .. } = *sampling;
    check_float(op, x)?;
    if x.rank() != 2 || !(1..=CLASSES).contains(&x.dims()[1]) {
        let message = format!("{} was given, expected logits [B, V] with V from 1 to {CLASSES}", describe(&[x]));
        return Err(Error::shape(op, message));
    }
    if !temperature.is_finite() || temperature < 0.0 {
        return Err(Error::attr(op, format!("temperature is {temperature}, expected a finite number from 0 on")));
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return Err(Error::attr(op, format!("top_p is {top_p}, expected more than 0 and up to 1")));
    }
    let most = isize::MAX as usize / DType::I64.size() / x.dims()[0].max(1);
    if !(1..=most).contains(&num_samples) {
        let message = format!("num_samples is {num_samples} for {}, expected 1 to {most}", describe(&[x]));
        return Err(Error::attr(op, message));
    }
    Ok(())
}

/// `[B, n]`, or `[B]` for n of 1.
fn shaped(y: Tensor) -> Result<Tensor> {
    if y.dims()[1] == 1 { y.squeeze(1) } else { Ok(y) }
}

/// Whether there is nothing to draw.
fn is_greedy(sampling: &Sampling) -> bool {
    sampling.temperature == 0.0 || sampling.top_k == 1
}

/// What the distance to the largest logit is multiplied with to give a power of 2, in f32: neither 0 nor infinite, which
/// would make NaN of what is.
fn slope(sampling: &Sampling) -> f64 {
    let slope = (std::f64::consts::LOG2_E / sampling.temperature) as f32;
    slope.clamp(f32::MIN_POSITIVE, f32::MAX) as f64
}

/// `1 - top_p` in units of 2^-24; something is kept always.
fn left_out(sampling: &Sampling) -> i64 {
    ((1.0 - sampling.top_p) * UNIT).round().min(UNIT - 1.0) as i64
}

/// What the kernel computes, in tensor ops: positions `[B, n]`.
fn composite(op: &'static str, x: &Tensor, sampling: &Sampling, rng: &Rng) -> Result<Tensor> {
    let (rows, extent, n) = (x.dims()[0], x.dims()[1], sampling.num_samples);
    let x = x.cast(DType::F32)?;
    let largest = x.amax_keepdim(-1)?;
    if let Some(row) = largest.to_vec::<f32>()?.iter().position(|v| !v.is_finite()) {
        return Err(logits_error(op, row as i64));
    }
    if is_greedy(sampling) {
        return x.argmax(-1)?.unsqueeze(1)?.broadcast_to((rows, n))?.copy();
    }
    let weights = weights(&x.sub(&largest)?, slope(sampling))?;
    let k = if sampling.top_k == 0 { extent } else { sampling.top_k.min(extent) };
    let order = x.argsort(-1, Order::Descending)?.narrow(1, 0, k)?;
    let ordered = weights.gather(1, &order)?;
    let up_to = ordered.cumsum(-1)?;
    let all = up_to.narrow(1, k - 1, 1)?;
    let limit = all.sub(&share(&all, &all.full_like(left_out(sampling))?)?)?;
    let kept = ordered.mul(&up_to.sub(&ordered)?.lt(&limit)?.cast(DType::I64)?)?;
    // Back in the order of positions.
    let up_to = weights.zeros_like()?.scatter(1, &order, &kept)?.cumsum(-1)?;
    let all = up_to.narrow(1, extent - 1, 1)?;
    let draws = Tensor::rand((rows, n), 0.0, 1.0, DType::F32, x.device(), rng)?;
    let drawn = share(&all, &draws.mul_scalar(UNIT)?.cast(DType::I64)?)?;
    let positions = Tensor::allocate(op, &(rows, n).into(), DType::I64, x.device())?;
    for i in 0..n {
        let at = positions.narrow(1, i, 1)?;
        at.copy_(&up_to.le(&drawn.narrow(1, i, 1)?)?.sum_keepdim(-1)?)?;
    }
    Ok(positions)
}

/// `2^(slope d)` of distances d of at most 0, in units of 2^-40 and cut off (i64). Each step is rounded alike everywhere.
fn weights(d: &Tensor, slope: f64) -> Result<Tensor> {
    // Whatever is smaller is 0.
    let least = -(FRACTION + 1);
    let s = d.mul_scalar(slope)?.clamp(Some(least.into()), None)?;
    let whole = s.floor()?;
    let f = s.sub(&whole)?;
    let power = |p: Tensor, c: &f64| p.mul(&f)?.add_scalar(*c);
    let p = POWER[1..].iter().try_fold(f.full_like(POWER[0])?, power)?;
    let scales: Vec<f32> = (0..=FRACTION + 1).map(|i| if i == 0 { 0.0 } else { 2f32.powi(i - 1) }).collect();
    let scales = Tensor::from_slice(&scales, scales.len(), d.device())?;
    let at = whole.sub_scalar(least)?.cast(DType::I64)?.reshape(d.numel())?;
    p.mul(&scales.index_select(0, &at)?.reshape(d.shape())?)?.cast(DType::I64)
}

/// `floor(a f / 2^24)` of sums a and numbers f from 0 to 2^24, which broadcast (i64), without a product above 2^63.
fn share(a: &Tensor, f: &Tensor) -> Result<Tensor> {
    let unit = a.full_like(UNIT as i64)?;
    let high = a.div_rounded(&unit, Rounding::Floor)?;
    let low = a.sub(&high.mul(&unit)?)?.mul(f)?;
    high.mul(f)?.add(&low.div_rounded(&low.full_like(UNIT as i64)?, Rounding::Floor)?)
}
