//! Random tensors: the same bits on every backend.

use crate::backend::{Kernel, Random};
use crate::check::{check_float, check_same, describe};
use crate::ops::sequence::sample::{CLASSES, UNIT, share};
use crate::ops::{Order, Side, named};
use crate::tensor::{Attributes, run};
use crate::{DType, Device, Error, Result, Rng, Shape, Tensor, no_grad};
use smallvec::SmallVec;

/// # Random tensors
impl Tensor {
    /// Uniform in `[lo, hi)`. Float dtypes. Errors: `Attr` unless `lo <= hi` and `hi - lo` is finite in f32.
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Rng, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::rand((2, 3), -1.0, 1.0, DType::F32, device, &Rng::new(42))?;
    /// assert!(x.to_vec::<f32>()?.iter().all(|v| (-1.0..1.0).contains(v)));
    /// # Ok(())
    /// # }
    /// ```
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

    /// u8, in this tensor's shape: 1 with the probability that the element of this tensor is, else 0. The draws are those of
    /// [`Tensor::rand`] in f32. Float dtypes. Outside of the tape. Errors: `Dtype`; `Value` unless all are 0 to 1.
    pub fn bernoulli_each(&self, rng: &Rng) -> Result<Tensor> {
        let op = "bernoulli_each";
        check_float(op, self)?;
        let p = self.detach();
        let is_probability = p.ge_scalar(0.0)?.logical_and(&p.le_scalar(1.0)?)?;
        check_all(op, &is_probability, || format!("{} has elements outside of 0 to 1", describe(&[self])))?;
        let draws = Tensor::rand(self.shape(), 0.0, 1.0, DType::F32, self.device(), rng)?;
        draws.lt(&p.cast(DType::F32)?)?.cast(DType::U8)
    }

    /// Normal with these means and deviations, which broadcast: `mean + std z` with z of [`Tensor::randn`], and its gradients. Float
    /// dtypes. Errors: `Dtype`; `Shape`; `Value` for a negative or NaN deviation.
    pub fn normal(mean: &Tensor, std: &Tensor, rng: &Rng) -> Result<Tensor> {
        let op = "normal";
        check_float(op, mean)?;
        check_same(op, &[mean, std])?;
        check_all(op, &std.detach().ge_scalar(0.0)?, || {
            format!("a deviation of {} is negative or NaN", describe(&[std]))
        })?;
        let shape = crate::ops::common_shape(op, &[mean, std])?;
        let z = Tensor::randn(shape, 0.0, 1.0, mean.dtype(), mean.device(), rng)?;
        mean.add(&std.mul(&z)?)
    }

    /// Integers (i64) from `low` up to, but without, `high`, all alike but for at most a share of 2^-16. The same on every device.
    /// Errors: `Attr` unless `low < high`, at most 2^46 apart.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Rng, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let dice = Tensor::randint(10, 1, 7, device, &Rng::new(42))?;
    /// assert!(dice.to_vec::<i64>()?.iter().all(|v| (1..7).contains(v)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn randint(shape: impl Into<Shape>, low: i64, high: i64, device: &Device, rng: &Rng) -> Result<Tensor> {
        let op = "randint";
        let count = high as i128 - low as i128;
        if !(1..=1 << 46).contains(&count) {
            return Err(Error::attr(op, format!("the range is {low}..{high}, expected 1 to 2^46 numbers")));
        }
        let shape = shape.into();
        let digits = digits(op, &shape, device, rng)?;
        digits.remainder(&digits.full_like(count as i64)?)?.add_scalar(low)
    }

    /// The numbers `0..n` (i64) in random order. The same on every device. Errors: as [`Tensor::arange`].
    pub fn randperm(n: usize, device: &Device, rng: &Rng) -> Result<Tensor> {
        digits("randperm", &n.into(), device, rng)?.argsort(0, Order::Ascending)
    }

    /// Positions (i64, `[.., n]`) drawn from each row of weights `[.., C]`, with probabilities proportional to these weights. Without
    /// `replacement` all positions of a row are distinct. Positions are the same on every device. Float dtypes; arithmetic is in f32,
    /// to which f64 is rounded. A weight below 2^-40 of the row's largest is never drawn with replacement. Outside of the tape.
    ///
    /// Errors: `Dtype`; `Shape` for a scalar, or C of 0 or above 2^22; `Attr` for 0 draws; `Value` for a weight that is negative or not
    /// finite, and for a row with too few positive weights.
    pub fn multinomial(&self, num_samples: usize, replacement: Replacement, rng: &Rng) -> Result<Tensor> {
        let op = "multinomial";
        check_float(op, self)?;
        let Some((&classes, rows)) = self.dims().split_last() else {
            return Err(Error::shape(op, format!("{} was given, expected weights [.., C]", describe(&[self]))));
        };
        if !(1..=CLASSES).contains(&classes) {
            return Err(Error::shape(
                op,
                format!("{} was given, expected 1 to {CLASSES} weights a row", describe(&[self])),
            ));
        }
        let least = if replacement == Replacement::Yes { 1 } else { num_samples };
        if num_samples == 0 || least > classes {
            let message = format!("{num_samples} draws from {classes} weights a row, expected at least 1");
            return Err(Error::attr(op, format!("{message}, and without replacement at most one for each weight")));
        }
        let count: usize = rows.iter().product();
        let shape = Shape::from([rows, &[num_samples]].concat());
        let draw = || {
            let w = self.detach().cast(DType::F32)?.reshape((count, classes))?;
            let is_weight = w.ge_scalar(0.0)?.logical_and(&w.isfinite()?)?;
            check_all(op, &is_weight, || format!("{} has weights that are negative or not finite", describe(&[self])))?;
            let is_enough = w.count_nonzero(-1)?.ge_scalar(least as i64)?;
            check_all(op, &is_enough, || {
                format!("{} has rows with fewer than {least} positive weights", describe(&[self]))
            })?;
            if count == 0 {
                return Tensor::zeros(&shape, DType::I64, self.device());
            }
            let drawn = match replacement {
                Replacement::Yes => by_sums(&w, num_samples, rng)?,
                Replacement::No => by_race(&w, num_samples, rng)?,
            };
            drawn.reshape(&shape)
        };
        named(op, &[self], || no_grad(draw))
    }
}

/// The draws of one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// A position can be drawn again.
    Yes,
    /// A position is drawn once at most.
    No,
}

/// Errors: `Value`, unless all elements of a bool tensor are true.
fn check_all(op: &'static str, is_right: &Tensor, message: impl FnOnce() -> String) -> Result<()> {
    match is_right.logical_not()?.sum(..)?.item::<f64>()? == 0.0 {
        true => Ok(()),
        false => Err(Error::value(op, message())),
    }
}

/// Uniform integers (i64) in `0..2^62`, from three draws each.
fn digits(op: &'static str, shape: &Shape, device: &Device, rng: &Rng) -> Result<Tensor> {
    let part = |bits: i32| -> Result<Tensor> {
        let draws = Tensor::rand(shape, 0.0, 2f64.powi(bits), DType::F32, device, rng).map_err(|e| e.of(op))?;
        draws.floor()?.cast(DType::I64)
    };
    let (high, middle, low) = (part(24)?, part(24)?, part(14)?);
    let upper = high.mul_scalar(1i64 << 24)?.add(&middle)?;
    upper.mul_scalar(1i64 << 14)?.add(&low)
}

/// Draws from weights `[R, C]`: the first position at which the running sum of weights exceeds the draw. Weights are integers, in units
/// of 2^-40 of the row's largest, so that sums depend on no order.
fn by_sums(w: &Tensor, n: usize, rng: &Rng) -> Result<Tensor> {
    let units = w.div(&w.amax_keepdim(-1)?)?.mul_scalar(2f64.powi(40))?.cast(DType::I64)?;
    let up_to = units.cumsum(-1)?;
    let all = up_to.narrow(1, w.dims()[1] - 1, 1)?;
    let draws = Tensor::rand((w.dims()[0], n), 0.0, UNIT, DType::F32, w.device(), rng)?.floor()?.cast(DType::I64)?;
    up_to.searchsorted(&share(&all, &draws)?, Side::Right)
}

/// Draws without replacement: the n first arrivals, where a weight is the rate of an exponential distribution. Half the sum of two
/// squared normal draws has this distribution, and is computed alike on every device. Efraimidis and Spirakis 2006.
fn by_race(w: &Tensor, n: usize, rng: &Rng) -> Result<Tensor> {
    let normal = || Tensor::randn(w.shape(), 0.0, 1.0, DType::F32, w.device(), rng);
    let (a, b) = (normal()?, normal()?);
    let time = a.mul(&a)?.add(&b.mul(&b)?)?;
    let is_there = w.gt_scalar(0.0)?;
    let arrival = time.div(&is_there.where_scalar(w, 1.0)?)?;
    let order = is_there.where_scalar(&arrival, f64::INFINITY)?.argsort(-1, Order::Ascending)?;
    order.narrow(1, 0, n)?.contiguous()
}

/// The threshold below which a 32-bit draw falls with probability `p`.
pub(crate) fn threshold(p: f64) -> i64 {
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
