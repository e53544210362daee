//! Positions in sorted sequences, counts, and distinct elements.

use crate::check::{check_float, check_same, describe};
use crate::ops::{Made, Order, named};
use crate::{DType, Error, Result, Tensor, no_grad};

/// The position of a value among equal elements of a sorted sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// Before them.
    #[default]
    Left,
    /// After them.
    Right,
}

/// The distinct elements of a tensor.
#[derive(Clone, Debug)]
pub struct Unique {
    /// The distinct elements `[N]`.
    pub values: Tensor,
    /// For each element of the tensor its position in `values` (i64), in the tensor's shape.
    pub inverse: Tensor,
    /// The number of occurrences of each (i64, `[N]`).
    pub counts: Tensor,
}

impl Made for Unique {
    fn look(&self, op: &'static str) -> Result<()> {
        self.values.look(op)
    }
}

/// # Searching
impl Tensor {
    /// The positions (i64, in the shape of `values`) at which these values would be inserted along the last dimension of this tensor, which
    /// is sorted there, and stays sorted. A vector serves all values; otherwise the leading dimensions are the same as those of `values`.
    /// NaN is the largest, and a value of NaN comes after all. Some log2 of the extent rounds of kernels. Outside of the tape. Float and integer dtypes. Errors: `Shape`;
    /// `Dtype` for bool, or operands of two dtypes.
    pub fn searchsorted(&self, values: &Tensor, side: Side) -> Result<Tensor> {
        let op = "searchsorted";
        check_numbers(op, self)?;
        check_same(op, &[self, values])?;
        let fits = match self.rank() {
            0 => false,
            1 => true,
            n => values.rank() == n && values.dims()[..n - 1] == self.dims()[..n - 1],
        };
        if !fits {
            let message =
                format!("got {}, expected a sorted vector, or equal leading dimensions", describe(&[self, values]));
            return Err(Error::shape(op, message));
        }
        let extent = self.dims()[self.rank() - 1];
        if extent == 0 || values.numel() == 0 {
            return Tensor::zeros(values.shape(), DType::I64, self.device());
        }
        let rows = self.numel() / extent;
        named(op, &[self, values], || {
            no_grad(|| {
                let sorted = self.detach().reshape((rows, extent))?;
                let wanted = values.detach().reshape((rows, values.numel() / rows))?;
                insertions(&sorted, &wanted, side)?.reshape(values.shape())
            })
        })
    }

    /// For each element the number of the interval between `boundaries` (a sorted vector) in which it lies: 0 below the first, and as many
    /// as there are boundaries above the last. With [`Side::Left`] an interval contains its upper boundary, with [`Side::Right`] its lower
    /// one. As [`searchsorted`](Tensor::searchsorted).
    pub fn bucketize(&self, boundaries: &Tensor, side: Side) -> Result<Tensor> {
        if boundaries.rank() != 1 {
            let message =
                format!("values and boundaries are {}, expected a vector of these", describe(&[self, boundaries]));
            return Err(Error::shape("bucketize", message));
        }
        boundaries.searchsorted(self, side).map_err(|e| e.of("bucketize"))
    }

    /// The number of occurrences of each integer from 0 on (i64, `[n]`), or the sum of the weights of its occurrences, which have a
    /// gradient. n is at least `minlength`, and larger than all integers, whose largest is read back. Errors: `Dtype`; `Shape` unless
    /// integers and weights have one shape; `Value` for a negative integer.
    pub fn bincount(&self, weights: Option<&Tensor>, minlength: usize) -> Result<Tensor> {
        let op = "bincount";
        if !self.dtype().is_int() {
            return Err(Error::dtype(op, format!("{} was given, expected integers", describe(&[self]))));
        }
        let weights = match weights {
            Some(w) if w.shape() == self.shape() => w.clone(),
            Some(w) => return Err(Error::shape(op, format!("the weights differ in shape: {}", describe(&[self, w])))),
            None => Tensor::ones(self.shape(), DType::I64, self.device())?,
        };
        let count = match self.numel() {
            0 => 0,
            n => {
                let ends = Tensor::stack(&[&self.amin(..)?, &self.amax(..)?], 0)?.cast(DType::I64)?.to_vec::<i64>()?;
                if ends[0] < 0 {
                    return Err(Error::value(op, format!("{} of {n} integers is negative", ends[0])));
                }
                ends[1] as usize + 1
            }
        };
        let flat = |t: &Tensor| t.reshape(t.numel());
        named(op, &[self, &weights], || {
            let zeros = Tensor::zeros(count.max(minlength), weights.dtype(), self.device())?;
            zeros.scatter_add(0, &flat(self)?, &flat(&weights)?)
        })
    }

    /// The number of elements (i64, `[bins]`) in each of `bins` intervals of equal width between the ends of `range`. The last interval
    /// contains its upper end; elements outside of the range, and NaN, are not counted. Without a range its ends are the smallest and the
    /// largest element, which are read back; if all elements are equal, 1 below and above them. Float dtypes; arithmetic is in f32, or
    /// f64 for f64. Outside of the tape. Errors: `Attr` for 0 bins, or a range that is empty or not finite; `Dtype`; `Value` if elements
    /// are not finite and no range is given.
    pub fn histc(&self, bins: usize, range: Option<[f64; 2]>) -> Result<Tensor> {
        let op = "histc";
        check_float(op, self)?;
        if bins == 0 {
            return Err(Error::attr(op, "0 bins, expected at least 1"));
        }
        let [low, high] = match range {
            Some([low, high]) if low < high && (high - low).is_finite() => [low, high],
            Some([low, high]) => {
                return Err(Error::attr(op, format!("the range is {low}..{high}, expected two finite ends")));
            }
            None => self.ends(op)?,
        };
        named(op, &[self], || {
            no_grad(|| {
                let x = self.detach().cast(self.dtype().acc())?.reshape(self.numel())?;
                let is_inside = x.ge_scalar(low)?.logical_and(&x.le_scalar(high)?)?;
                let width = x.full_like(high)?.sub_scalar(low)?;
                let place = is_inside.where_scalar(&x, low)?.sub_scalar(low)?.mul_scalar(bins as f64)?.div(&width)?;
                let last = Some((bins as i64 - 1).into());
                let place = place.floor()?.cast(DType::I64)?.clamp(None, last)?;
                let zeros = Tensor::zeros(bins, DType::I64, self.device())?;
                zeros.scatter_add(0, &place, &is_inside.cast(DType::I64)?)
            })
        })
    }

    /// The smallest and the largest element; 1 below and above them if they are equal, and 0 and 1 if there are none.
    fn ends(&self, op: &'static str) -> Result<[f64; 2]> {
        if self.numel() == 0 {
            return Ok([0.0, 1.0]);
        }
        let ends = Tensor::stack(&[&self.detach().amin(..)?, &self.detach().amax(..)?], 0)?.to_f64_vec()?;
        match [ends[0], ends[1]] {
            [low, high] if !(high - low).is_finite() => Err(Error::value(
                op,
                format!("the elements are from {low} to {high}, expected finite ones, or a range"),
            )),
            [low, high] if low == high => Ok([low - 1.0, high + 1.0]),
            ends => Ok(ends),
        }
    }

    /// The distinct elements in ascending order. Each NaN is distinct. Reads back their number. Outside of the tape. Errors: `Dtype` for
    /// bool.
    pub fn unique(&self) -> Result<Unique> {
        let op = "unique";
        check_numbers(op, self)?;
        named(op, &[self], || {
            no_grad(|| {
                let flat = self.detach().reshape(self.numel())?;
                let (sorted, order) = flat.sort(0, Order::Ascending)?;
                let Unique { values, inverse: group, counts } = runs(&sorted)?;
                let inverse = group.scatter(0, &order, &group)?.reshape(self.shape())?;
                Ok(Unique { values, inverse, counts })
            })
        })
    }

    /// The first of each run of equal elements, in row-major order. Reads back their number. Outside of the tape. Errors: `Dtype` for bool.
    pub fn unique_consecutive(&self) -> Result<Unique> {
        let op = "unique_consecutive";
        check_numbers(op, self)?;
        named(op, &[self], || {
            no_grad(|| {
                let found = runs(&self.detach().reshape(self.numel())?)?;
                Ok(Unique { inverse: found.inverse.reshape(self.shape())?, ..found })
            })
        })
    }
}

fn check_numbers(op: &'static str, x: &Tensor) -> Result<()> {
    match x.dtype() {
        DType::Bool => Err(Error::dtype(op, format!("{} was given, expected numbers", describe(&[x])))),
        _ => Ok(()),
    }
}

/// Positions of `wanted: [R, m]` in rows `sorted: [R, n]`, by halving steps: a step is taken if the element before its end belongs
/// before the value.
fn insertions(sorted: &Tensor, wanted: &Tensor, side: Side) -> Result<Tensor> {
    let extent = sorted.dims()[1];
    let mut at = Tensor::zeros(wanted.shape(), DType::I64, wanted.device())?;
    let is_number = if wanted.dtype().is_float() { Some(wanted.eq(wanted)?) } else { None };
    let mut step = extent.next_power_of_two();
    if step > extent {
        step /= 2;
    }
    while step > 0 {
        let end = at.add_scalar(step as i64)?;
        let last = Some((extent as i64 - 1).into());
        let element = sorted.gather(1, &end.sub_scalar(1)?.clamp(None, last)?)?;
        let belongs_after = match side {
            Side::Left => element.ge(wanted)?,
            Side::Right => element.gt(wanted)?,
        };
        let belongs_after = match &is_number {
            Some(is_number) => belongs_after.logical_or(&element.isnan()?.logical_and(is_number)?)?,
            None => belongs_after,
        };
        let is_taken = belongs_after.logical_not()?.logical_and(&end.le_scalar(extent as i64)?)?;
        at = is_taken.where_cond(&end, &at)?;
        step /= 2;
    }
    Ok(at)
}

/// The runs of equal elements of a vector.
fn runs(x: &Tensor) -> Result<Unique> {
    let n = x.numel();
    if n == 0 {
        let none = Tensor::zeros(0, DType::I64, x.device())?;
        return Ok(Unique { values: x.clone(), inverse: none.clone(), counts: none });
    }
    let first = Tensor::ones(1, DType::Bool, x.device())?;
    let is_new = Tensor::concat(&[&first, &x.narrow(0, 1, n - 1)?.ne(&x.narrow(0, 0, n - 1)?)?], 0)?;
    let start = is_new.nonzero()?.swap_remove(0);
    let all = Tensor::full(1, n as i64, DType::I64, x.device())?;
    let end = Tensor::concat(&[&start, &all], 0)?.narrow(0, 1, start.numel())?;
    let inverse = is_new.cast(DType::I64)?.cumsum(0)?.sub_scalar(1)?;
    Ok(Unique { values: x.index_select(0, &start)?, inverse, counts: end.sub(&start)? })
}
