//! Random tensors: the same bits on every backend.

use crate::backend::{Kernel, Random};
use crate::tensor::{Attributes, run};
use crate::{DType, Device, Error, Result, Rng, Shape, Tensor};
use smallvec::SmallVec;

impl Tensor {
    /// Uniform in `[lo, hi)`. Float dtypes. Errors: `Attr` unless `lo <= hi` and `hi - lo` is finite in f32.
    pub fn rand(shape: impl Into<Shape>, lo: f64, hi: f64, dtype: DType, device: &Device, rng: &Rng) -> Result<Tensor> {
        if lo > hi || !(hi as f32 - lo as f32).is_finite() {
            let message = format!("the range is {lo}..{hi}, expected lo <= hi and a finite difference in f32");
            return Err(Error::attr("rand", message));
        }
        draw("rand", Random::Uniform, shape.into(), dtype, device, rng, &[lo, hi], None)
    }

    /// Normal with mean `mean` and deviation `std`. Float dtypes. Errors: `Attr` unless both are finite in f32 and `std >= 0`.
    pub fn randn(
        shape: impl Into<Shape>,
        mean: f64,
        std: f64,
        dtype: DType,
        device: &Device,
        rng: &Rng,
    ) -> Result<Tensor> {
        if !(mean as f32).is_finite() || !(std as f32).is_finite() || std < 0.0 {
            let message = format!("mean {mean} and std {std} were given, expected finite f32 numbers and std >= 0");
            return Err(Error::attr("randn", message));
        }
        draw("randn", Random::Normal, shape.into(), dtype, device, rng, &[mean, std], None)
    }

    /// u8: 1 with probability `p`, else 0. Errors: `Attr` unless `0 <= p <= 1`.
    pub fn bernoulli(shape: impl Into<Shape>, p: f64, device: &Device, rng: &Rng) -> Result<Tensor> {
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::attr("bernoulli", format!("p is {p}, expected 0 to 1")));
        }
        draw("bernoulli", Random::Bernoulli, shape.into(), DType::U8, device, rng, &[], Some(threshold(p)))
    }
}

/// The threshold below which a 32-bit draw falls with probability `p`.
pub(super) fn threshold(p: f64) -> i64 {
    (p * 4_294_967_296.0).floor() as i64
}

#[allow(clippy::too_many_arguments)]
fn draw(
    op: &'static str,
    kind: Random,
    shape: Shape,
    dtype: DType,
    device: &Device,
    rng: &Rng,
    floats: &[f64],
    threshold: Option<i64>,
) -> Result<Tensor> {
    if !dtype.is_float() && kind != Random::Bernoulli {
        return Err(Error::dtype(op, format!("{dtype} was asked for, expected a float dtype")));
    }
    let y = Tensor::allocate(op, &shape, dtype, device)?;
    if y.numel() > 0 {
        let draw = rng.advance(y.numel())?;
        let base: SmallVec<[&Tensor; 1]> = draw.base.iter().collect();
        let ints = draw.ints(threshold.unwrap_or(0));
        run(op, Kernel::Random(kind), &base, &[&y], Attributes { ints: &ints, floats })?;
    }
    Ok(y)
}
