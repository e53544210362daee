//! Drawing the next token of a sequence.

use crate::backend::logits_error;
use crate::capture::Draw;
use crate::check::{check_float, describe};
use crate::fused::{Fused, has_kernel, run_fused};
use crate::operands;
use crate::operands::Output;
use crate::ops::{Order, Rounding, parts};
use crate::{DType, Error, Result, Rng, RngState, Tensor};

/// The options of [`Tensor::sample_logits`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Sampling {
    /// The divisor of logits. With 0 the position of the largest logit is returned, without a draw.
    pub temperature: f64,
    /// The number of largest logits that are kept; of equal logits the first. 0 keeps all. With 1 there is no draw.
    pub top_k: usize,
    /// Of these, the smallest set of largest logits is kept whose probabilities add up to at least this.
    pub top_p: f64,
    /// The number of tokens drawn from each row, with replacement.
    pub num_samples: usize,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, num_samples: 1 }
    }
}

/// The kernel of [`Tensor::sample_logits`]. Output: positions `[B, n]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleLogits {
    /// The state of the generator at the first draw.
    pub state: RngState,
    /// The number of largest logits that are kept; 0 for all.
    pub top_k: usize,
    /// `(1 - top_p) * 2^24`.
    pub left_out: i64,
    /// `log2(e) / temperature`.
    pub slope: f64,
}

operands! {
    /// The inputs of [`SampleLogits`].
    pub struct SampleInputs {
        /// `[B, V]`.
        logits,
        /// An offset to the generator's state, i64 `[3]`.
        base?,
    }
}

impl Fused for SampleLogits {
    type Inputs<T> = SampleInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "sample_logits"
    }

    fn composite(
        &self,
        SampleInputs { logits, base }: SampleInputs<&Tensor>,
        before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        let sampling = Sampling {
            temperature: std::f64::consts::LOG2_E / self.slope,
            top_k: self.top_k,
            top_p: 1.0 - self.left_out as f64 / UNIT,
            num_samples: before.y.dims()[1],
        };
        let rng = self.state.generator(base)?;
        Ok(Output { y: Some(composite("sample_logits", logits, &sampling, &rng)?) })
    }
}

/// The weights are fixed-point numbers in units of 2^-40 of the largest weight, so that sums do not depend on order or device.
const FRACTION: i32 = 40;
/// 2^24: uniform draws are multiples of its inverse.
pub(crate) const UNIT: f64 = 16_777_216.0;
/// The largest number of classes. It keeps the sum of their weights below 2^62.
pub(crate) const CLASSES: usize = 1 << 22;
/// 2^f for f from 0 to 1 as a polynomial, highest power first. Its relative error is 9e-8; it is exact at both ends.
#[allow(clippy::approx_constant, clippy::excessive_precision)]
const POWER: [f64; 7] = [2.1715024e-4, 1.2440877e-3, 9.678064e-3, 5.5484153e-2, 2.4022952e-1, 6.93147e-1, 1.0];

/// # Sampling of tokens
impl Tensor {
    /// Positions (i64, `[B]`, or `[B, n]` for n samples above 1), drawn from each row of logits `[B, V]` by the softmax of the
    /// logits that `sampling` keeps. Float dtypes. Arithmetic is in f32; f64 is rounded to it first. Positions are the same on
    /// every device.
    ///
    /// The draw of a sample is the corresponding element of [`Tensor::rand`] `[B, n]`. The position is the first at which the
    /// running sum of the kept probabilities, in the order of positions, exceeds the draw. An element whose probability is below
    /// 2^-40 of the largest is never drawn. With temperature 0 or `top_k` 1, the result is the position of the largest logit, and
    /// the generator does not advance. Outside of the tape. Holtzman et al. 2019, arXiv 1904.09751.
    ///
    /// Errors: `Dtype` unless the logits are floats; `Shape` unless they are `[B, V]` with V from 1 to 2^22; `Attr` for a
    /// temperature that is negative or not finite, a `top_p` outside of 0 (exclusive) to 1, or no samples; `Value` for a row that
    /// contains NaN or infinity, or only -infinity.
    pub fn sample_logits(&self, sampling: &Sampling, rng: &Rng) -> Result<Tensor> {
        let op = "sample_logits";
        check(op, self, sampling)?;
        let (rows, n) = (self.dims()[0], sampling.num_samples);
        if rows == 0 {
            return shaped(Tensor::zeros((0, n), DType::I64, self.device())?);
        }
        let x = self.detach();
        if !has_kernel::<SampleLogits>(&x) {
            return shaped(parts(op, || composite(op, &x, sampling, rng))?);
        }
        let draw = match is_greedy(sampling) {
            true => Draw { state: RngState { seed: 0, offset: 0, stream: 0 }, base: None },
            false => rng.advance(rows * n)?,
        };
        let (x, y) = (x.contiguous()?, Tensor::allocate(op, &(rows, n).into(), DType::I64, self.device())?);
        let inputs = SampleInputs { logits: &x, base: draw.base.as_ref() };
        let top_k = if is_greedy(sampling) { 1 } else { sampling.top_k.min(x.dims()[1]) };
        let (state, left_out, slope) = (draw.state, left_out(sampling), slope(sampling));
        run_fused(op, &SampleLogits { state, top_k, left_out, slope }, inputs, Output { y: &y })?;
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

/// True if nothing is drawn.
fn is_greedy(sampling: &Sampling) -> bool {
    sampling.temperature == 0.0 || sampling.top_k == 1
}

/// `log2(e) / temperature` in f32. It is kept away from 0 and infinity, whose products could be NaN.
fn slope(sampling: &Sampling) -> f64 {
    let slope = (std::f64::consts::LOG2_E / sampling.temperature) as f32;
    slope.clamp(f32::MIN_POSITIVE, f32::MAX) as f64
}

/// `(1 - top_p) * 2^24`, limited so that at least one logit is kept.
fn left_out(sampling: &Sampling) -> i64 {
    ((1.0 - sampling.top_p) * UNIT).round().min(UNIT - 1.0) as i64
}

/// The kernel's composite: positions `[B, n]`.
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
    // Restores the order of positions.
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

/// `2^(slope d)` of distances d of at most 0, truncated to units of 2^-40 (i64). Each step is rounded alike on every device.
fn weights(d: &Tensor, slope: f64) -> Result<Tensor> {
    // Smaller values are 0.
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

/// `floor(a f / 2^24)` for sums a and numbers f from 0 to 2^24, which broadcast (i64). No product exceeds 2^63.
pub(crate) fn share(a: &Tensor, f: &Tensor) -> Result<Tensor> {
    let unit = a.full_like(UNIT as i64)?;
    let high = a.div_rounded(&unit, Rounding::Floor)?;
    let low = a.sub(&high.mul(&unit)?)?.mul(f)?;
    high.mul(f)?.add(&low.div_rounded(&low.full_like(UNIT as i64)?, Rounding::Floor)?)
}
