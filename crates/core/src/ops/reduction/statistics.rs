//! Deviations, norms, order statistics, and sums that leave out NaN.

use crate::check::check_float;
use crate::ops::{Axes, Order, in_acc, named};
use crate::{DType, Error, Position, Result, Shape, Tensor, autocast, no_grad};

/// The value of a quantile between two elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quantile {
    /// On the line between them.
    #[default]
    Linear,
    /// The smaller.
    Lower,
    /// The larger.
    Higher,
    /// The middle between them.
    Midpoint,
    /// The nearer; of two equally near ones that with the even position.
    Nearest,
}

/// The square root of a variance; its gradient at 0 is 0.
fn root(variance: &Tensor) -> Result<Tensor> {
    let is_apart = variance.ne_scalar(0.0)?;
    is_apart.where_scalar(&is_apart.where_scalar(variance, 1.0)?.sqrt()?, 0.0)
}

/// The resolved dimension and its extent, which is 1 for a scalar. Errors: `Attr`; `Value` if there are slices without elements.
fn slices(op: &'static str, x: &Tensor, dim: isize) -> Result<(isize, usize)> {
    let d = x.shape().dim_for(op, dim)?;
    let extent = x.dims().get(d).copied().unwrap_or(1);
    let others = x.dims().iter().enumerate().filter(|(k, _)| *k != d).map(|(_, n)| n).product::<usize>();
    if extent == 0 && others > 0 {
        return Err(Error::value(op, format!("dimension {dim} of {} has no elements", x.shape())));
    }
    Ok((d as isize, extent))
}

/// True where numbers are NaN; `None` for integers.
fn is_nan(x: &Tensor) -> Result<Option<Tensor>> {
    if x.dtype().is_float() { x.isnan().map(Some) } else { Ok(None) }
}

/// # Statistics
impl Tensor {
    /// The standard deviation over `axes`: the root of [`var`](Tensor::var). Its gradient is 0 where it is 0. Float dtypes. Errors:
    /// `Attr`, `Dtype`.
    pub fn std(&self, axes: impl Into<Axes>, correction: f64) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.std(axes, correction);
        }
        check_float("std", self)?;
        let axes = axes.into();
        named("std", &[self], || in_acc(self, |x| root(&x.var(axes, correction)?)))
    }

    /// [`var`](Tensor::var) and [`mean`](Tensor::mean) over `axes`. Float dtypes. Errors: `Attr`, `Dtype`.
    pub fn var_mean(&self, axes: impl Into<Axes>, correction: f64) -> Result<(Tensor, Tensor)> {
        let axes = axes.into();
        named("var_mean", &[self], || Ok((self.var(axes.clone(), correction)?, self.mean(axes)?)))
    }

    /// [`std`](Tensor::std) and [`mean`](Tensor::mean) over `axes`. Float dtypes. Errors: `Attr`, `Dtype`.
    pub fn std_mean(&self, axes: impl Into<Axes>, correction: f64) -> Result<(Tensor, Tensor)> {
        let axes = axes.into();
        named("std_mean", &[self], || Ok((self.std(axes.clone(), correction)?, self.mean(axes)?)))
    }

    /// The norm of order p over `axes`: `(sum |x|^p)^(1/p)`, the largest absolute value for infinity, the smallest for -infinity, and
    /// the number of elements other than 0 for p = 0, which is outside of the tape. It is correct even if powers overflow. The gradient
    /// at 0 is 0. Float dtypes. Errors: `Attr`, also if p is NaN; `Dtype`; `Value` for the infinite norms of a slice without elements.
    pub fn norm(&self, p: f64, axes: impl Into<Axes>) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.norm(p, axes);
        }
        let (op, axes) = ("norm", axes.into());
        check_float(op, self)?;
        if p.is_nan() {
            return Err(Error::attr(op, "p is NaN, expected a number"));
        }
        named(op, &[self], || match p {
            0.0 => in_acc(&self.detach(), |x| x.ne_scalar(0.0)?.cast(x.dtype())?.sum(axes)),
            1.0 => self.l1_norm(axes),
            2.0 => self.l2_norm(axes),
            f64::INFINITY => self.abs()?.amax(axes),
            f64::NEG_INFINITY => self.abs()?.amin(axes),
            _ if self.numel() == 0 => self.sum(axes),
            _ => in_acc(self, |x| powers(x, p, axes)),
        })
    }

    /// The sum of absolute values over `axes`. Float dtypes. Errors: `Attr`, `Dtype`.
    pub fn l1_norm(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.l1_norm(axes);
        }
        check_float("l1_norm", self)?;
        let axes = axes.into();
        named("l1_norm", &[self], || self.abs()?.sum(axes))
    }

    /// The logarithm of the sum over `axes`. Float dtypes. Errors: `Attr`, `Dtype`.
    pub fn log_sum(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.log_sum(axes);
        }
        check_float("log_sum", self)?;
        let axes = axes.into();
        // The sum of -0 alone may be -0, whose reciprocal has the other sign.
        named("log_sum", &[self], || in_acc(self, |x| x.sum(axes)?.add_scalar(0.0)?.log()))
    }

    /// The sum of squares over `axes`. Float dtypes. Errors: `Attr`, `Dtype`.
    pub fn sum_square(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.sum_square(axes);
        }
        check_float("sum_square", self)?;
        let axes = axes.into();
        named("sum_square", &[self], || in_acc(self, |x| x.square()?.sum(axes)))
    }

    /// The sum of all elements but NaN over `axes`; 0 if there are none. Float dtypes. Errors: `Attr`, `Dtype`.
    pub fn nansum(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.nansum(axes);
        }
        check_float("nansum", self)?;
        let axes = axes.into();
        named("nansum", &[self], || self.eq(self)?.where_scalar(self, 0.0)?.sum(axes))
    }

    /// The mean of all elements but NaN over `axes`; NaN if there are none. Float dtypes. Errors: `Attr`, `Dtype`.
    pub fn nanmean(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.nanmean(axes);
        }
        check_float("nanmean", self)?;
        let axes = axes.into();
        named("nanmean", &[self], || {
            in_acc(self, |x| {
                let is_number = x.eq(x)?;
                let count = is_number.cast(x.dtype())?.sum(axes.clone())?;
                is_number.where_scalar(x, 0.0)?.sum(axes)?.div(&count)
            })
        })
    }

    /// True where all elements over `axes` are true, or not 0; true without elements. Outside of the tape. Errors: `Attr`.
    pub fn all(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        let axes = axes.into();
        named("all", &[self], || self.eq_scalar(0)?.sum(axes)?.eq_scalar(0))
    }

    /// True where any element over `axes` is true, or not 0; false without elements. Outside of the tape. Errors: `Attr`.
    pub fn any(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        let axes = axes.into();
        named("any", &[self], || self.count_nonzero(axes)?.ne_scalar(0))
    }

    /// The number (i64) of elements over `axes` that are true, or not 0. Outside of the tape. Errors: `Attr`.
    pub fn count_nonzero(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        let axes = axes.into();
        named("count_nonzero", &[self], || self.eq_scalar(0)?.eq_scalar(0)?.sum(axes))
    }

    /// The smallest element along `dim` for k = 1, the next for k = 2, and so on, and its position (i64). Of equal elements the first
    /// comes first; NaN is the largest. Float and integer dtypes. Errors: `Attr` unless k is 1 up to the extent; `Dtype`.
    pub fn kthvalue(&self, k: usize, dim: impl Into<Position>) -> Result<(Tensor, Tensor)> {
        let Position(dim) = dim.into();
        let op = "kthvalue";
        let (d, extent) = slices(op, self, dim)?;
        if !(1..=extent).contains(&k) {
            let message = format!("k is {k}, but dimension {dim} of {} has {extent} elements", self.shape());
            return Err(Error::attr(op, message));
        }
        named(op, &[self], || {
            let order = self.argsort(dim, Order::Ascending)?;
            if self.rank() == 0 { Ok((self.clone(), order)) } else { self.element(d, &order.narrow(d, k - 1, 1)?) }
        })
    }

    /// The element along `dim` that has as many smaller as larger ones, the smaller of two, and its position (i64); NaN if there is one.
    /// Float and integer dtypes. Errors: `Attr`; `Dtype`; `Value` for a slice without elements.
    pub fn median(&self, dim: impl Into<Position>) -> Result<(Tensor, Tensor)> {
        let Position(dim) = dim.into();
        let op = "median";
        let (d, extent) = slices(op, self, dim)?;
        named(op, &[self], || {
            let order = self.argsort(dim, Order::Ascending)?;
            if self.rank() == 0 {
                return Ok((self.clone(), order));
            }
            if extent == 0 {
                let index = order.sum(d)?;
                return Ok((Tensor::zeros(index.shape(), self.dtype(), self.device())?, index));
            }
            let middle = order.narrow(d, (extent - 1) / 2, 1)?;
            let last = order.narrow(d, extent - 1, 1)?;
            let at = match is_nan(&self.detach().gather(d, &last)?)? {
                Some(is_nan) => is_nan.where_cond(&last, &middle)?,
                None => middle,
            };
            self.element(d, &at)
        })
    }

    /// The elements at positions `at`, of extent 1 in dimension d, which is removed, and the positions.
    fn element(&self, d: isize, at: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok((self.gather_distinct(d, at)?.squeeze(d)?, at.squeeze(d)?))
    }

    /// The number below which a share q of the elements along `dim` lies; NaN if there is one. The gradient goes to the one or two
    /// elements that it lies between. Float dtypes. Errors: `Attr` unless q is 0 to 1; `Dtype`; `Value` for a slice without elements.
    pub fn quantile(&self, q: f64, dim: impl Into<Position>, between: Quantile) -> Result<Tensor> {
        let Position(dim) = dim.into();
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.quantile(q, dim, between);
        }
        let op = "quantile";
        check_float(op, self)?;
        let (d, extent) = slices(op, self, dim)?;
        if !(0.0..=1.0).contains(&q) {
            return Err(Error::attr(op, format!("q is {q}, expected 0 to 1")));
        }
        if self.rank() == 0 {
            return Ok(self.clone());
        }
        named(op, &[self], || {
            if extent == 0 {
                return self.sum(d);
            }
            let order = self.argsort(dim, Order::Ascending)?;
            let element = |k: usize| self.element(d, &order.narrow(d, k, 1)?).map(|(y, _)| y);
            let place = q * (extent - 1) as f64;
            let (low, high) = (place.floor() as usize, place.ceil() as usize);
            let y = match between {
                _ if low == high => element(low),
                Quantile::Lower => element(low),
                Quantile::Higher => element(high),
                Quantile::Nearest => element(place.round_ties_even() as usize),
                Quantile::Linear => weighted(&element(low)?, &element(high)?, place - low as f64),
                Quantile::Midpoint => weighted(&element(low)?, &element(high)?, 0.5),
            }?;
            let largest = self.detach().gather(d, &order.narrow(d, extent - 1, 1)?)?.squeeze(d)?;
            largest.isnan()?.logical_not()?.where_scalar(&y, f64::NAN)
        })
    }

    /// The most frequent element along `dim`, the smallest of several, and the last of its positions (i64). Float and integer dtypes;
    /// no NaN equals another. Errors: `Attr`; `Dtype`; `Value` for a slice without elements.
    pub fn mode(&self, dim: impl Into<Position>) -> Result<(Tensor, Tensor)> {
        let Position(dim) = dim.into();
        let op = "mode";
        let (d, extent) = slices(op, self, dim)?;
        named(op, &[self], || {
            let order = self.argsort(dim, Order::Ascending)?;
            if self.rank() == 0 {
                return Ok((self.clone(), order));
            }
            if extent == 0 {
                let index = order.sum(d)?;
                return Ok((Tensor::zeros(index.shape(), self.dtype(), self.device())?, index));
            }
            let at = no_grad(|| {
                let sorted = self.detach().gather(d, &order)?;
                let mut dims = vec![1; self.rank()];
                dims[d as usize] = extent;
                let place = Tensor::arange(extent, self.device())?.reshape(Shape::from(dims))?;
                let new = sorted.narrow(d, 1, extent - 1)?.ne(&sorted.narrow(d, 0, extent - 1)?)?;
                let first = Tensor::ones(sorted.narrow(d, 0, 1)?.shape(), DType::Bool, self.device())?;
                let start = Tensor::concat(&[&first, &new], d)?.where_scalar(&place, 0)?.cummax(d)?.0;
                let longest = place.sub(&start)?.argmax(d)?.unsqueeze(d)?;
                order.gather(d, &longest)
            })?;
            self.element(d, &at)
        })
    }
}

/// `a + share (b - a)`, rounded once.
fn weighted(a: &Tensor, b: &Tensor, share: f64) -> Result<Tensor> {
    let acc = a.dtype().acc();
    let wide = a.cast(acc)?;
    wide.add(&b.cast(acc)?.sub(&wide)?.mul_scalar(share)?)?.cast(a.dtype())
}

/// `(sum |x|^p)^(1/p)` for p other than 0 and infinity.
fn powers(x: &Tensor, p: f64, axes: Axes) -> Result<Tensor> {
    // Elements relative to the largest have powers in range.
    let largest = x.detach().abs()?.amax_keepdim(axes.clone())?;
    let is_scaled = largest.gt_scalar(0.0)?.logical_and(&largest.not_finite()?.logical_not()?)?;
    let scale = is_scaled.where_scalar(&largest, 1.0)?;
    let size = x.div(&scale)?.abs()?;
    let terms = match p < 1.0 {
        true => {
            // The slope of the power at 0 is infinite.
            let is_apart = size.ne_scalar(0.0)?;
            let at_zero = if p > 0.0 { 0.0 } else { f64::INFINITY };
            is_apart.where_scalar(&is_apart.where_scalar(&size, 1.0)?.pow_scalar(p)?, at_zero)?
        }
        false => size.pow_scalar(p)?,
    };
    let sum = terms.sum(axes)?;
    let is_regular = sum.ne_scalar(0.0)?.logical_and(&sum.ne_scalar(f64::INFINITY)?)?;
    let root = is_regular.where_scalar(&sum, 1.0)?.pow_scalar(1.0 / p)?;
    let limit = sum.detach().pow_scalar(1.0 / p)?;
    is_regular.where_cond(&root, &limit)?.mul(&scale.reshape(sum.shape())?)
}
