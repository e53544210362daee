//! Scatters that reduce the values of a place.

use crate::check::describe;
use crate::ops::indexing::gather::{addends, at_least_1d_on_tape, check_scatter};
use crate::ops::reduction::scan::doubled;
use crate::ops::{Order, Rounding, gradients, in_acc_of, named, parts};
use crate::tape::{Saved, record};
use crate::{DType, Error, Position, Result, Scalar, Shape, Tensor, no_grad};

/// The reduction of values with the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterReduce {
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
    /// Their sum divided by their number; of integers rounded down.
    Mean,
    /// The largest; NaN wins.
    Amax,
    /// The smallest; NaN wins.
    Amin,
}

/// Whether a place's own element is one of the values that are reduced there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Own {
    /// The own element is one of the values.
    #[default]
    Included,
    /// The own element is replaced. A place without values keeps it.
    Replaced,
}

/// # Reductions by index
impl Tensor {
    /// This tensor with the values `src[p]` reduced to place `p with p[dim] = index[p]`. The index is i64 or i32 and may be smaller than
    /// `src`. Values that share an extremum share its gradient. Products take some log2 of the number of values kernels. Float and integer
    /// dtypes. Errors: as [`scatter_add`](Tensor::scatter_add).
    pub fn scatter_reduce(
        &self,
        dim: impl Into<Position>,
        index: &Tensor,
        src: &Tensor,
        reduce: ScatterReduce,
        own: Own,
    ) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let op = "scatter_reduce";
        let d = check_scatter(op, self, dim, index, src)?;
        if self.dtype() == DType::Bool {
            return Err(Error::dtype(op, format!("{} was given, expected numbers", describe(&[self]))));
        }
        if self.rank() == 0 {
            let [x, i, s] = [self, index, src].map(|t| t.reshape(1));
            return x?.scatter_reduce(0, &i?, &s?, reduce, own)?.reshape(());
        }
        named(op, &[self, index, src], || {
            let src = (0..src.rank()).try_fold(src.clone(), |s, k| s.narrow(k as isize, 0, index.dims()[k]))?;
            let places = Places { x: self, d: d as isize, index, src: &src, own };
            match reduce {
                ScatterReduce::Sum => places.base(0)?.scatter_add(dim, index, &src),
                ScatterReduce::Mean => places.mean(),
                ScatterReduce::Prod => places.product(),
                ScatterReduce::Amax => places.extremum(Order::Ascending),
                ScatterReduce::Amin => places.extremum(Order::Descending),
            }
        })
    }

    /// [`scatter_reduce`](Tensor::scatter_reduce) of the slices of `src` along `dim`, one for each element of the index `[L]`.
    pub fn index_reduce(
        &self,
        dim: impl Into<Position>,
        index: &Tensor,
        src: &Tensor,
        reduce: ScatterReduce,
        own: Own,
    ) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let op = "index_reduce";
        let (d, at, src) = addends(op, self, dim, index, src, Scalar::Int(1))?;
        parts(op, || at_least_1d_on_tape(self)?.scatter_reduce(d, &at, &src, reduce, own)?.reshape(self.shape()))
    }
}

/// The operands; src has the index's shape.
struct Places<'a> {
    x: &'a Tensor,
    d: isize,
    index: &'a Tensor,
    src: &'a Tensor,
    own: Own,
}

impl Places<'_> {
    /// x, with `neutral` in places that have values where these replace the own element.
    fn base(&self, neutral: i64) -> Result<Tensor> {
        match self.own {
            Own::Included => Ok(self.x.clone()),
            Own::Replaced => {
                let all = Tensor::full(self.index.shape(), neutral, self.x.dtype(), self.x.device())?;
                self.x.scatter(self.d, self.index, &all)
            }
        }
    }

    /// The number of values of each place (i64).
    fn counts(&self) -> Result<Tensor> {
        let zeros = Tensor::zeros(self.x.shape(), DType::I64, self.x.device())?;
        zeros.scatter_add(self.d, self.index, &Tensor::ones(self.index.shape(), DType::I64, self.x.device())?)
    }

    fn mean(&self) -> Result<Tensor> {
        let own = if self.own == Own::Included { 1 } else { 0 };
        let counts = self.counts()?.add_scalar(own)?.clamp(Some(1.into()), None)?;
        if !self.x.dtype().is_float() {
            let sums = self.base(0)?.scatter_add(self.d, self.index, self.src)?;
            return sums.div_rounded(&counts.cast(self.x.dtype())?, Rounding::Floor);
        }
        in_acc_of("scatter_reduce", [self.x, self.src], |[x, src]| {
            let sums = Places { x, src, ..*self }.base(0)?.scatter_add(self.d, self.index, src)?;
            sums.div(&counts.cast(x.dtype())?)
        })
    }

    /// The places in memory order of index elements (i64, `[E]`).
    fn flat(&self) -> Result<Tensor> {
        let numbers = Tensor::arange(self.x.numel(), self.x.device())?.reshape(self.x.shape())?;
        numbers.gather(self.d, self.index)?.reshape(self.index.numel())
    }

    /// Values that are sorted by place, and multiplied in rounds in which an element takes the product of twice as many before it.
    fn product(&self) -> Result<Tensor> {
        let base = self.base(1)?;
        let values = self.index.numel();
        if values == 0 {
            return base.scatter_add(self.d, self.index, self.src);
        }
        let (order, at) = no_grad(|| {
            let (at, order) = self.flat()?.sort(0, Order::Ascending)?;
            Ok::<_, Error>((order, at))
        })?;
        let sorted = self.src.reshape(values)?.gather_distinct(0, &order)?;
        // True for the first value of a place.
        let is_first = match values {
            1 => Tensor::ones(1, DType::Bool, at.device())?,
            n => {
                let first = Tensor::ones(1, DType::Bool, at.device())?;
                Tensor::concat(&[&first, &at.narrow(0, 1, n - 1)?.ne(&at.narrow(0, 0, n - 1)?)?], 0)?
            }
        };
        let step = |[f, v]: [&Tensor; 2], [g, w]: [&Tensor; 2]| Ok([g.logical_or(f)?, g.where_cond(w, &v.mul(w)?)?]);
        let [_, products] = doubled([is_first.clone(), sorted], 0, step)?;
        // The last value of a place has the product of all.
        let last = match values {
            1 => is_first,
            n => Tensor::concat(&[&is_first.narrow(0, 1, n - 1)?, &is_first.narrow(0, 0, 1)?], 0)?,
        };
        let found = last.nonzero()?.swap_remove(0);
        let (place, product) = (at.index_select(0, &found)?, products.index_select(0, &found)?);
        let flat = base.reshape(base.numel())?;
        let all = flat.index_select(0, &place)?.mul(&product)?;
        flat.scatter(0, &place, &all)?.reshape(self.x.shape())
    }

    /// The values are written in their order, so that the last one of a place, which stays, is the largest or smallest.
    fn extremum(&self, order: Order) -> Result<Tensor> {
        let y = no_grad(|| self.extremum_of(order))?;
        let (x, src, index, result) =
            (Saved::input(self.x), Saved::input(self.src), Saved::input(self.index), Saved::output(&y));
        let (d, own, counts) = (self.d, self.own, no_grad(|| self.counts())?);
        record("scatter_reduce", &[self.x, self.src], y, move |t| {
            let (x, src, index, y) =
                (t.get(&x)?.detach(), t.get(&src)?.detach(), t.get(&index)?, t.get(&result)?.detach());
            let (acc, dtype, has_none) = (t.dy().dtype().acc(), t.dy().dtype(), counts.eq_scalar(0)?);
            let is_own = match own {
                Own::Included => x.eq(&y)?.logical_or(&has_none)?,
                Own::Replaced => has_none.clone(),
            };
            let is_value = src.eq(&y.gather(d, &index)?)?;
            let ties = is_own.cast(acc)?.scatter_add(d, &index, &is_value.cast(acc)?)?;
            // A NaN equals no value: the gradients of its place are divided by 0, and become NaN.
            let share = has_none.where_cond(t.dy(), &t.dy().cast(acc)?.div(&ties)?.cast(dtype)?)?;
            let of_own = match own {
                Own::Included => is_own.cast(dtype)?.mul(&share)?,
                Own::Replaced => has_none.where_scalar(t.dy(), 0)?,
            };
            let of_values = is_value.cast(dtype)?.mul(&share.gather(d, &index)?)?;
            gradients![Some(of_own), Some(of_values)]
        })
    }

    fn extremum_of(&self, order: Order) -> Result<Tensor> {
        let flat = |t: &Tensor| t.detach().reshape(t.numel());
        let (mut values, mut places) = (flat(self.src)?, self.flat()?);
        if self.own == Own::Included {
            let all = Tensor::arange(self.x.numel(), self.x.device())?;
            (values, places) = (Tensor::concat(&[&flat(self.x)?, &values], 0)?, Tensor::concat(&[&all, &places], 0)?);
        }
        // NaN comes last in an ascending order, and would come first in a descending one.
        let is_negated = order == Order::Descending && values.dtype().is_float();
        let keys = if is_negated { values.neg()? } else { values.clone() };
        let by = keys.argsort(0, if is_negated { Order::Ascending } else { order })?;
        let written = flat(self.x)?.scatter(0, &places.gather(0, &by)?, &values.gather(0, &by)?)?;
        written.reshape(Shape::from(self.x.dims().to_vec()))
    }
}
