//! Reductions over one, several or all dimensions.

use crate::backend::{Kernel, Reduce};
use crate::check::check_float;
use crate::fused::{Fused, gradient_by_ops, has_kernel, run_fused};
use crate::operands::{Input, Output};
use crate::ops::reduction::scan::ScanOptions;
use crate::ops::{gradients, in_acc, pointwise_one};
use crate::pointwise::Pointwise;
use crate::tape::{Record, Saved, is_recording, record, report};
use crate::tensor::{Attributes, run};
use crate::{DType, Dims, Error, Position, Result, Shape, Tensor, autocast, no_grad};
use smallvec::SmallVec;

/// The dimensions that a reduction removes: `..` for all, a number, an array or a list. Negative ones count from the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axes(SmallVec<[isize; 4]>);

impl Axes {
    /// The dimensions; empty for all.
    pub(crate) fn as_slice(&self) -> &[isize] {
        &self.0
    }
}

impl From<std::ops::RangeFull> for Axes {
    fn from(_: std::ops::RangeFull) -> Self {
        Axes(SmallVec::new())
    }
}

macro_rules! axes {
    ($($Integer:ty),*) => {$(
        impl From<$Integer> for Axes {
            fn from(dim: $Integer) -> Self {
                Axes(smallvec::smallvec![Position::from(dim).0])
            }
        }
    )*};
}
axes!(isize, usize, i32, u32, i64, u64);

impl<T: Into<Position> + Copy> From<&[T]> for Axes {
    fn from(dims: &[T]) -> Self {
        Axes(dims.iter().map(|&dim| dim.into().0).collect())
    }
}

impl<T: Into<Position> + Copy, const N: usize> From<[T; N]> for Axes {
    fn from(dims: [T; N]) -> Self {
        dims.as_slice().into()
    }
}

impl<T: Into<Position> + Copy> From<Vec<T>> for Axes {
    fn from(dims: Vec<T>) -> Self {
        dims.as_slice().into()
    }
}

/// A tensor with the reduced dimensions moved to the end.
pub(crate) struct ReducePlan {
    /// `[kept.., reduced..]`, a view outside of the tape.
    view: Tensor,
    kept: Shape,
    /// Dimension `k` of the view is dimension `perm[k]` of the tensor.
    perm: Dims,
    /// The shape with reduced dimensions of size 1.
    keepdim: Shape,
    reduced: usize,
    /// Number of elements of a slice.
    count: usize,
}

impl ReducePlan {
    pub(crate) fn new(op: &'static str, x: &Tensor, axes: &Axes) -> Result<ReducePlan> {
        let mut is_reduced = [axes.0.is_empty(); crate::MAX_RANK];
        for &axis in &axes.0 {
            let d = x.shape().dim_for(op, axis)?;
            if std::mem::replace(&mut is_reduced[d], true) {
                return Err(Error::attr(op, format!("dimension {axis} is named twice in {:?}", axes.0.as_slice())));
            }
        }
        let (reduced, kept): (Dims, Dims) = (0..x.rank()).partition(|&d| is_reduced[d]);
        let perm: Dims = kept.iter().chain(&reduced).copied().collect();
        let keepdim: Dims = (0..x.rank()).map(|d| if is_reduced[d] { 1 } else { x.dims()[d] }).collect();
        Ok(ReducePlan {
            view: x.with_layout(x.layout().permute(&perm)),
            kept: Shape::from(kept.iter().map(|&d| x.dims()[d]).collect::<Dims>()),
            perm,
            keepdim: Shape::from(keepdim),
            reduced: reduced.len(),
            count: reduced.iter().map(|&d| x.dims()[d]).product(),
        })
    }

    /// The reduction outside of the tape, of shape `kept`.
    fn run(&self, op: &'static str, kernel: Kernel, dtype: DType) -> Result<Tensor> {
        let y = self.empty(op, dtype)?;
        run(op, kernel, &[&self.view], &[&y], Attributes::ints(&[self.reduced as i64]))?;
        Ok(y)
    }

    /// Reports the reduction of x to y.
    fn report(&self, op: &'static str, x: &Tensor, y: &Tensor) {
        report(op, &[x], &[y], || [("axes", self.perm[self.kept.rank()..].into())]);
    }

    fn report_position(&self, op: &'static str, x: &Tensor, y: &Tensor, tie: Tie) {
        let axes = &self.perm[self.kept.rank()..];
        report(op, &[x], &[y], || [("axes", axes.into()), ("last", (tie == Tie::Last).into())]);
    }

    fn empty(&self, op: &'static str, dtype: DType) -> Result<Tensor> {
        Tensor::allocate(op, &self.kept, dtype, self.view.device())
    }

    /// Applies `f` to the slices of a tensor as rows `[kept, count]`, and returns its result in the tensor's shape.
    fn in_rows(&self, x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let perm: Vec<isize> = self.perm.iter().map(|&p| p as isize).collect();
        let mut inverse = vec![0; perm.len()];
        self.perm.iter().enumerate().for_each(|(k, &p)| inverse[p] = k as isize);
        let rows = x.permute(&perm)?.reshape((self.kept.numel(), self.count))?;
        f(&rows)?.reshape(self.view.shape())?.permute(&inverse)
    }

    /// The means of slices and `1 / sqrt(var + eps)` of their biased variances. If not `centred`, the mean is 0 and the variance is
    /// the mean of squares. By a kernel that the device must have.
    pub(crate) fn moments(&self, op: &'static str, is_centred: bool, eps: f64) -> Result<[Tensor; 2]> {
        let empty = || Tensor::allocate(op, &self.keepdim, self.view.dtype().acc(), self.view.device());
        let found = [empty()?, empty()?];
        let [mean, rstd] = &found;
        let kernel = Moments { dims: self.reduced, is_centred, eps };
        run_fused(op, &kernel, Input { x: &self.view }, MomentsOutputs { mean, rstd })?;
        Ok(found)
    }

    fn check_not_empty(&self, op: &'static str) -> Result<()> {
        if self.count == 0 && self.kept.numel() > 0 {
            return Err(Error::value(op, format!("{} has nothing to reduce", self.view.shape())));
        }
        Ok(())
    }
}

/// The logarithm of the sum of `e^x` over the last dimensions of x, of any strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSumExp {
    /// Number of reduced dimensions.
    pub dims: usize,
}

crate::operands! {
    /// The outputs of [`LogSumExp`].
    pub struct LogSumExpOutputs {
        /// The logarithms.
        y,
        /// `[2, ..]`, in the accumulation dtype: the largest elements, and the logarithms of the sums of `e^(x - max)`. Both are 0 for a
        /// slice of -infinity alone.
        parts?,
    }
}

/// The sum of squared deviations from the mean over the last dimensions of x, of any strides, divided by a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variance {
    /// Number of reduced dimensions.
    pub dims: usize,
    /// The divisor of the sums.
    pub divisor: f64,
}

crate::operands! {
    /// The outputs of [`Variance`].
    pub struct VarianceOutputs {
        /// The sums over the divisor.
        y,
        /// The mean, in the accumulation dtype.
        mean,
    }
}

/// Mean and deviation over the last dimensions of x, of any strides. No intermediate value overflows. For backends without kernels of
/// the norms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    /// Number of reduced dimensions.
    pub dims: usize,
    /// True if the mean is subtracted; otherwise the mean is 0.
    pub is_centred: bool,
    /// Added to variances.
    pub eps: f64,
}

crate::operands! {
    /// The outputs of [`Moments`], in the accumulation dtype.
    pub struct MomentsOutputs {
        /// The mean.
        mean,
        /// `1 / sqrt(var + eps)` of the biased variance.
        rstd,
    }
}

/// The gradient of the products of rows. A row has at most [`LONGEST_PRODUCT`] bytes in the accumulation dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProdBackward;

crate::operands! {
    /// The inputs of [`ProdBackward`].
    pub struct ProdBackwardInputs {
        /// `[rows, length]`.
        x,
        /// The gradient of the products, `[rows]`.
        dy,
    }
}

/// Bytes of the longest row that [`ProdBackward`] accepts.
pub const LONGEST_PRODUCT: usize = 1 << 15;

/// The last dimensions of x.
fn last_axes(x: &Tensor, dims: usize) -> Vec<isize> {
    (0..x.rank() as isize).skip(x.rank() - dims).collect()
}

impl Fused for LogSumExp {
    type Inputs<T> = Input<T>;
    type Outputs<T> = LogSumExpOutputs<T>;

    fn name(&self) -> &'static str {
        "logsumexp"
    }

    fn composite(
        &self,
        Input { x }: Input<&Tensor>,
        before: LogSumExpOutputs<&Tensor>,
    ) -> Result<LogSumExpOutputs<Option<Tensor>>> {
        let axes = &last_axes(x, self.dims)[..];
        let parts = || {
            let max = x.amax_keepdim(axes)?;
            let has_numbers = max.ne_scalar(f64::NEG_INFINITY)?;
            let max = has_numbers.where_scalar(&max, 0.0)?;
            let sum = x.sub(&max)?.exp()?.sum_keepdim(axes)?;
            let log = has_numbers.where_scalar(&sum, 1.0)?.log()?;
            Tensor::stack(&[&max, &log], 0).map(Some)
        };
        Ok(LogSumExpOutputs { y: Some(x.logsumexp(axes)?), parts: before.parts.map(|_| parts()).transpose()? })
    }
}

impl Fused for Variance {
    type Inputs<T> = Input<T>;
    type Outputs<T> = VarianceOutputs<T>;

    fn name(&self) -> &'static str {
        "variance"
    }

    fn composite(
        &self,
        Input { x }: Input<&Tensor>,
        _before: VarianceOutputs<&Tensor>,
    ) -> Result<VarianceOutputs<Option<Tensor>>> {
        let axes = last_axes(x, self.dims);
        let count: usize = axes.iter().map(|&d| x.dims()[d as usize]).product();
        let variance = x.var(axes.clone(), count as f64 - self.divisor)?;
        Ok(VarianceOutputs { y: Some(variance), mean: Some(x.mean(axes)?) })
    }
}

impl Fused for Moments {
    type Inputs<T> = Input<T>;
    type Outputs<T> = MomentsOutputs<T>;

    fn name(&self) -> &'static str {
        "moments"
    }

    fn composite(
        &self,
        Input { x }: Input<&Tensor>,
        _before: MomentsOutputs<&Tensor>,
    ) -> Result<MomentsOutputs<Option<Tensor>>> {
        let axes = &last_axes(x, self.dims)[..];
        let mean = x.mean_keepdim(axes)?;
        let mean = if self.is_centred { mean } else { mean.zeros_like()? };
        let var = x.sub(&mean)?.square()?.mean_keepdim(axes)?;
        Ok(MomentsOutputs { mean: Some(mean), rstd: Some(var.add_scalar(self.eps)?.rsqrt()?) })
    }
}

impl Fused for ProdBackward {
    type Inputs<T> = ProdBackwardInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "prod_backward"
    }

    fn composite(
        &self,
        ProdBackwardInputs { x, dy }: ProdBackwardInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        let x = x.require_grad()?;
        gradient_by_ops(&x, dy, || x.prod(-1))
    }
}

/// The dtype of a sum or product: i64 for integers and bool.
fn sum_dtype(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::I64 }
}

/// The extremum: the largest or the smallest element.
#[derive(Clone, Copy)]
enum Extremum {
    Max,
    Min,
}

impl Extremum {
    fn reduce(self) -> Kernel<'static> {
        Kernel::Reduce(match self {
            Extremum::Max => Reduce::Max,
            Extremum::Min => Reduce::Min,
        })
    }

    fn arg(self) -> Kernel<'static> {
        match self {
            Extremum::Max => Kernel::ArgMax,
            Extremum::Min => Kernel::ArgMin,
        }
    }
}

/// The position that an arg-reduction returns, of several equal elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tie {
    /// The first.
    #[default]
    First,
    /// The last.
    Last,
}

/// # Reductions
impl Tensor {
    /// The sum over `axes`. Integers and bool sum to i64. An empty sum is 0. Errors: `Attr` for a dimension out of range
    /// or named twice.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(6, device)?.reshape((2, 3))?;
    /// assert_eq!(x.sum(..)?.item::<i64>()?, 15);
    /// assert_eq!((x.sum(0)?.to_vec::<i64>()?, x.sum([0, 1])?.rank()), (vec![3, 5, 7], 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn sum(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.sum(axes);
        }
        self.sum_as(axes, sum_dtype(self.dtype()))
    }

    /// The sum, rounded once, to `dtype`.
    pub(crate) fn sum_as(&self, axes: impl Into<Axes>, dtype: DType) -> Result<Tensor> {
        let plan = ReducePlan::new("sum", self, &axes.into())?;
        let y = plan.run("sum", Kernel::Reduce(Reduce::Sum), dtype)?;
        plan.report("sum", self, &y);
        let (shape, keepdim, from) = (self.shape().clone(), plan.keepdim, self.dtype());
        record("sum", &[self], y, move |t| {
            gradients![Some(t.dy().cast(from)?.reshape(&keepdim)?.broadcast_to(&shape)?)]
        })
    }

    /// The mean over `axes`; NaN of an empty slice. It is correct even if the sum overflows. A term below the number of elements
    /// times the smallest normal number may be rounded to a multiple of the smallest subnormal number before it is added. Float
    /// dtypes. Errors: `Attr`, `Dtype`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
    /// assert_eq!(x.mean(-1)?.to_vec::<f32>()?, [1.5, 4.5]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn mean(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.mean(axes);
        }
        check_float("mean", self)?;
        let plan = ReducePlan::new("mean", self, &axes.into())?;
        let y = plan.run("mean", Kernel::Reduce(Reduce::Mean), self.dtype())?;
        plan.report("mean", self, &y);
        let (shape, keepdim, count) = (self.shape().clone(), plan.keepdim, plan.count as f64);
        record("mean", &[self], y, move |t| {
            gradients![Some(t.dy().div_scalar(count)?.reshape(&keepdim)?.broadcast_to(&shape)?)]
        })
    }

    /// The product over `axes`. Integers and bool multiply to i64. An empty product is 1. It is correct even if the product of some of
    /// the factors is out of range. So is the gradient, also if factors are zero; for rows of more than [`LONGEST_PRODUCT`] bytes, the
    /// products of all factors before and of all after each must be in range. Errors: `Attr`.
    pub fn prod(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.prod(axes);
        }
        let axes = axes.into();
        let plan = ReducePlan::new("prod", self, &axes)?;
        let y = plan.run("prod", Kernel::Reduce(Reduce::Prod), sum_dtype(self.dtype()))?;
        plan.report("prod", self, &y);
        let saved = Saved::input(self);
        record("prod", &[self], y, move |t| {
            let x = t.get(&saved)?;
            let plan = ReducePlan::new("prod", &x, &axes)?;
            let is_short = plan.count * x.dtype().acc().size() <= LONGEST_PRODUCT;
            if is_short && !t.creates_graph() && has_kernel::<ProdBackward>(&x) {
                return gradients![Some(plan.in_rows(&x, |rows| prod_backward(rows, t.dy()))?)];
            }
            let dy = t.dy().reshape(&plan.keepdim)?;
            // In 16 bits the product of the other factors may overflow where the gradient does not.
            gradients![Some(in_acc(&dy, |dy| {
                let x = x.cast(dy.dtype())?;
                dy.mul(&match plan.perm.last() {
                    Some(&d) if plan.reduced == 1 && !t.creates_graph() => others(&x, d)?,
                    _ => plan.in_rows(&x, |rows| others_in_rows(rows, t.creates_graph()))?,
                })
            })?)]
        })
    }

    /// The Euclidean norm over `axes`; 0 of an empty slice. The gradient at 0 is 0. The norm is correct even if squares overflow.
    /// Float dtypes. Errors: `Attr`, `Dtype`.
    pub fn l2_norm(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.l2_norm(axes);
        }
        let op = "l2_norm";
        check_float(op, self)?;
        let plan = ReducePlan::new(op, self, &axes.into())?;
        let y = plan.run(op, Kernel::Reduce(Reduce::Norm), self.dtype())?;
        plan.report(op, self, &y);
        let (sx, sy, keepdim) = (Saved::input(self), Saved::output(&y), plan.keepdim);
        record(op, &[self], y, move |t| {
            let x = t.get(&sx)?;
            let spread = |v: &Tensor| v.reshape(&keepdim)?.broadcast_to(x.shape());
            gradients![Some(t.row(Pointwise::NormBackward, &[&spread(t.dy())?, &x, &spread(&t.get(&sy)?)?], &[])?)]
        })
    }

    /// The largest element over `axes`. NaN wins, and ties share the gradient. All dtypes; true is larger than false. Errors: `Value`
    /// for an empty slice, `Attr`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(6, device)?.reshape((2, 3))?;
    /// assert_eq!(x.amax(1)?.to_vec::<i64>()?, [2, 5]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn amax(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        extremum("amax", Extremum::Max, self, axes.into())
    }

    /// The smallest element over `axes`. NaN wins, and ties share the gradient. Errors: as [`amax`](Tensor::amax).
    pub fn amin(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        extremum("amin", Extremum::Min, self, axes.into())
    }

    /// The largest elements along `dim` and their first positions (i64). Only these positions get the gradient. The largest element of
    /// the whole tensor, or over several axes, is [`amax`](Tensor::amax): `x.amax(..)`. Errors: as
    /// [`amax`](Tensor::amax).
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
    /// let (values, positions) = x.max(0)?;
    /// assert_eq!((values.to_vec::<f32>()?, positions.to_vec::<i64>()?), (vec![3.0, 6.0], vec![1, 1]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn max(&self, dim: impl Into<Position>) -> Result<(Tensor, Tensor)> {
        let Position(dim) = dim.into();
        with_index(self, dim, Tensor::argmax)
    }

    /// The smallest elements along `dim` and their first positions (i64). Only these positions get the gradient. The smallest element of
    /// the whole tensor, or over several axes, is [`amin`](Tensor::amin): `x.amin(..)`. Errors: as
    /// [`amax`](Tensor::amax).
    pub fn min(&self, dim: impl Into<Position>) -> Result<(Tensor, Tensor)> {
        let Position(dim) = dim.into();
        with_index(self, dim, Tensor::argmin)
    }

    /// The first position (i64) of the largest element over `axes`, counted in row-major order over these dimensions. NaN is the
    /// largest. Errors: as [`amax`](Tensor::amax).
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
    /// assert_eq!(x.argmax(-1)?.to_vec::<i64>()?, [1, 1]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn argmax(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        arg("argmax", Extremum::Max, self, axes.into())
    }

    /// The first position (i64) of the smallest element; NaN is the smallest. Errors: as [`amax`](Tensor::amax).
    pub fn argmin(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        arg("argmin", Extremum::Min, self, axes.into())
    }

    /// [`argmax`](Tensor::argmax), or the last of the positions of equal elements, and of NaN; this needs a copy of x. Errors: as there.
    pub fn argmax_with(&self, axes: impl Into<Axes>, tie: Tie) -> Result<Tensor> {
        arg_of_tie("argmax", Extremum::Max, self, axes.into(), tie)
    }

    /// [`argmin`](Tensor::argmin), or the last of the positions of equal elements, and of NaN; this needs a copy of x. Errors: as there.
    pub fn argmin_with(&self, axes: impl Into<Axes>, tie: Tie) -> Result<Tensor> {
        arg_of_tie("argmin", Extremum::Min, self, axes.into(), tie)
    }

    /// [`sum`](Tensor::sum) with the reduced dimensions kept as size 1.
    pub fn sum_keepdim(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.keepdim(axes.into(), |x, axes| x.sum(axes))
    }

    /// [`mean`](Tensor::mean) with the reduced dimensions kept as size 1.
    pub fn mean_keepdim(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.keepdim(axes.into(), |x, axes| x.mean(axes))
    }

    /// [`amax`](Tensor::amax) with the reduced dimensions kept as size 1.
    pub fn amax_keepdim(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.keepdim(axes.into(), |x, axes| x.amax(axes))
    }

    /// Any reduction with the reduced dimensions kept as size 1: `x.keepdim(1, |x, axes| x.prod(axes))`.
    pub fn keepdim(
        &self,
        axes: impl Into<Axes>,
        reduce: impl FnOnce(&Tensor, Axes) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let axes = axes.into();
        let shape = ReducePlan::new("keepdim", self, &axes)?.keepdim;
        reduce(self, axes)?.reshape(shape)
    }

    /// The variance over `axes`: the sum of squared deviations divided by `count - correction` (1: unbiased, 0: biased). It is
    /// correct even if sums overflow. It is NaN for a slice with infinite elements, and so are the gradients of all of its elements. Float dtypes. Errors: `Attr`, also for a NaN
    /// correction; `Dtype`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
    /// assert_eq!(x.var(-1, 1.0)?.to_vec::<f32>()?, [0.5, 4.5]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn var(&self, axes: impl Into<Axes>, correction: f64) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.var(axes, correction);
        }
        let (op, axes) = ("var", axes.into());
        check_float(op, self)?;
        if correction.is_nan() {
            return Err(Error::attr(op, "the correction is NaN, expected a number"));
        }
        let plan = ReducePlan::new(op, self, &axes)?;
        let divisor = (plan.count as f64 - correction).max(0.0);
        let composite = move |x: &Tensor| {
            in_acc(x, |x| {
                let deviation = x.sub(&x.mean_keepdim(axes.clone())?)?;
                deviation.square()?.sum(axes.clone())?.div_scalar(divisor)
            })
        };
        let reported = |y: &Tensor| {
            let axes = || plan.perm[plan.kept.rank()..].into();
            report(op, &[self], &[y], || [("axes", axes()), ("divisor", divisor.into())]);
        };
        if !has_kernel::<Variance>(self) {
            let y = composite(self)?;
            reported(&y);
            return Ok(y);
        }
        let (y, mean) = (plan.empty(op, self.dtype())?, plan.empty(op, self.dtype().acc())?);
        let (kernel, outputs) = (Variance { dims: plan.reduced, divisor }, VarianceOutputs { y: &y, mean: &mean });
        run_fused(op, &kernel, Input { x: &plan.view }, outputs)?;
        reported(&y);
        let keepdim = plan.keepdim;
        Record::new(op, &[self]).fused(
            y,
            move |x| composite(&x[0]),
            move |t, x| {
                let [dy, mean] = [t.dy(), &mean].map(|v| v.reshape(&keepdim));
                let (inputs, factor) = ([&dy?, &x[0], &mean?], [2.0 / divisor]);
                let (row, factor) = (Pointwise::VarBackward, Attributes::floats(&factor));
                gradients![Some(pointwise_one(op, row, &inputs, factor, x[0].shape(), x[0].dtype())?)]
            },
        )
    }

    /// `ln sum(e^x)` over `axes`, without overflow; -inf of an empty slice. Float dtypes. Errors: `Attr`.
    ///
    /// If all elements of a slice are -inf, their gradient is 0 (in PyTorch NaN): masked elements do not contribute to a loss. In a
    /// slice with +inf, the gradient of that element is NaN, and the gradient of the others 0.
    pub fn logsumexp(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        let op = "logsumexp";
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.logsumexp(axes);
        }
        check_float(op, self)?;
        let axes = axes.into();
        let plan = ReducePlan::new(op, self, &axes)?;
        let composite = move |x: &Tensor| {
            in_acc(x, |x| {
                if x.numel() == 0 {
                    return x.exp()?.sum(axes.clone())?.log();
                }
                // Limits the maximum: infinity minus itself is NaN.
                let largest = if x.dtype() == DType::F64 { f64::MAX } else { f32::MAX as f64 };
                let max =
                    x.detach().amax_keepdim(axes.clone())?.clamp(Some((-largest).into()), Some(largest.into()))?;
                let sum = x.sub(&max)?.exp()?.sum(axes.clone())?;
                // The sum is 0 for a slice of -infinity alone, whose gradient is 0.
                let has_powers = sum.ne_scalar(0.0)?;
                let log = has_powers.where_scalar(&sum, 1.0)?.log()?;
                has_powers.where_scalar(&log.add(&max.reshape(sum.shape())?)?, f64::NEG_INFINITY)
            })
        };
        if !has_kernel::<LogSumExp>(self) {
            let y = composite(self)?;
            plan.report(op, self, &y);
            return Ok(y);
        }
        let (kernel, dtype, y) = (LogSumExp { dims: plan.reduced }, self.dtype(), plan.empty(op, self.dtype())?);
        if !is_recording(&[self]) {
            run_fused(op, &kernel, Input { x: &plan.view }, LogSumExpOutputs { y: &y, parts: None })?;
            plan.report(op, self, &y);
            return Ok(y);
        }
        let parts: Dims = [2].into_iter().chain(plan.kept.iter().copied()).collect();
        let parts = Tensor::allocate(op, &Shape::from(parts), dtype.acc(), self.device())?;
        run_fused(op, &kernel, Input { x: &plan.view }, LogSumExpOutputs { y: &y, parts: Some(&parts) })?;
        let keepdim = plan.keepdim;
        Record::new(op, &[self]).fused(
            y,
            move |x| composite(&x[0]),
            move |t, x| {
                let (max, log) = (parts.select(0, 0)?, parts.select(0, 1)?);
                let [dy, max, log] = [t.dy(), &max, &log].map(|v| v.reshape(&keepdim));
                let (inputs, row) = ([&dy?, &x[0], &max?, &log?], Pointwise::LogSumExpBackward);
                gradients![Some(pointwise_one(op, row, &inputs, Attributes::default(), x[0].shape(), x[0].dtype())?)]
            },
        )
    }
}

fn extremum(op: &'static str, which: Extremum, x: &Tensor, axes: Axes) -> Result<Tensor> {
    let plan = ReducePlan::new(op, x, &axes)?;
    plan.check_not_empty(op)?;
    let acc = x.dtype().acc();
    if !is_recording(&[x]) {
        let y = plan.run(op, which.reduce(), x.dtype())?;
        plan.report(op, x, &y);
        return Ok(y);
    }
    let (y, share) = (plan.empty(op, x.dtype())?, plan.empty(op, acc)?);
    run(op, which.reduce(), &[&plan.view], &[&y, &share], Attributes::ints(&[plan.reduced as i64]))?;
    let (sx, sy, keepdim) = (Saved::input(x), Saved::output(&y), plan.keepdim);
    record(op, &[x], y, move |t| {
        // dx = g [x = y], shared by equal elements.
        let (x, y) = (t.get(&sx)?.detach(), t.get(&sy)?.detach());
        // For a second derivative the row becomes tensor ops, which need the same dtype.
        let wide = |v: &Tensor| if t.creates_graph() { v.cast(acc) } else { Ok(v.clone()) };
        let spread = |v: &Tensor| wide(v)?.reshape(&keepdim)?.broadcast_to(x.shape());
        let inputs = [&spread(t.dy())?, &wide(&x)?, &spread(&y)?, &spread(&share)?];
        gradients![Some(t.row(Pointwise::ExtremumBackward, &inputs, &[])?.cast(x.dtype())?)]
    })
}

fn arg(op: &'static str, which: Extremum, x: &Tensor, axes: Axes) -> Result<Tensor> {
    let plan = ReducePlan::new(op, x, &axes)?;
    plan.check_not_empty(op)?;
    let index = plan.run(op, which.arg(), DType::I64)?;
    plan.report_position(op, x, &index, Tie::First);
    Ok(index)
}

/// [`arg`] of the first or of the last of equal elements.
fn arg_of_tie(op: &'static str, which: Extremum, x: &Tensor, axes: Axes, tie: Tie) -> Result<Tensor> {
    if tie == Tie::First {
        return arg(op, which, x, axes);
    }
    let plan = ReducePlan::new(op, x, &axes)?;
    plan.check_not_empty(op)?;
    let reduced: SmallVec<[isize; 4]> = plan.perm[plan.kept.rank()..].iter().map(|&d| d as isize).collect();
    let index = no_grad(|| {
        let from_end = arg(op, which, &x.detach().flip(&reduced)?, axes)?;
        from_end.rsub_scalar(plan.count as i64 - 1)
    });
    let index = index.map_err(|e| e.of(op))?;
    plan.report_position(op, x, &index, Tie::Last);
    Ok(index)
}

/// The position of the largest element of each row `[.., n]`: the first of equal elements, but the last NaN.
pub(crate) fn argmax_last_nan(op: &'static str, x: &Tensor) -> Result<Tensor> {
    let plan = ReducePlan::new(op, x, &Axes::from(-1))?;
    let y = Tensor::allocate(op, &plan.kept, DType::I64, x.device())?;
    run(op, Kernel::ArgMax, &[&plan.view], &[&y], Attributes::ints(&[1, 1]))?;
    plan.report_position("argmax", x, &y, Tie::First);
    Ok(y)
}

fn with_index(
    x: &Tensor,
    dim: isize,
    position: impl FnOnce(&Tensor, isize) -> Result<Tensor>,
) -> Result<(Tensor, Tensor)> {
    let index = position(x, dim)?;
    if x.rank() == 0 {
        return Ok((x.clone(), index));
    }
    let d = x.shape().dim_for("max", dim)? as isize;
    Ok((x.gather_distinct(d, &index.unsqueeze(d)?)?.squeeze(d)?, index))
}

/// The gradient of the products of rows `[rows, K]`, by the kernel.
fn prod_backward(rows: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let (rows, dy) = (rows.contiguous()?, dy.contiguous()?);
    let dx = Tensor::allocate("prod", rows.shape(), rows.dtype(), rows.device())?;
    run_fused("prod", &ProdBackward, ProdBackwardInputs { x: &rows, dy: &dy }, Output { y: &dx })?;
    Ok(dx)
}

/// For each factor the product of all others along dimension `d`.
fn others(x: &Tensor, d: usize) -> Result<Tensor> {
    let from = |reverse| x.running_product(d, ScanOptions { exclusive: true, reverse });
    from(false)?.mul(&from(true)?)
}

/// For each factor the product of all others in its row `[rows, K]`.
fn others_in_rows(rows: &Tensor, creates_graph: bool) -> Result<Tensor> {
    if creates_graph {
        // Scans have no second derivative. A product with the factor itself masked out does.
        let count = rows.dims()[1];
        let own = Tensor::eye(count, DType::Bool, rows.device())?;
        let factors = rows.unsqueeze(1)?.broadcast_to((rows.dims()[0], count, count))?;
        return own.logical_not()?.where_scalar(&factors, 1.0)?.prod(-1);
    }
    others(rows, 1)
}
