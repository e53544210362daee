//! Reading and writing at indices of the operand's rank.

use crate::backend::{Kernel, Scatter};
use crate::check::{check_device, check_index, check_same, describe};
use crate::ops::{gradients, parts};
use crate::tape::{Saved, record, report};
use crate::tensor::{Attributes, run};
use crate::{DType, Dims, Error, Position, Result, Scalar, Shape, Tensor, no_grad};

/// # Gather and scatter
impl Tensor {
    /// `y[p] = x[p with p[dim] = index[p]]`; the result has the index's shape. The index is i64 or i32 and may be smaller
    /// than `x` in other dimensions. Errors: `Shape`, `Dtype`, `Attr`; `Index` for an index outside of `0..extent`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
    /// let at = Tensor::from_vec(vec![1i64, 0], (2, 1), device)?;
    /// assert_eq!(x.gather(1, &at)?.to_vec::<f32>()?, [2.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn gather(&self, dim: impl Into<Position>, index: &Tensor) -> Result<Tensor> {
        let Position(dim) = dim.into();
        gather(self, dim, index, Scatter::Add)
    }

    /// [`gather`](Tensor::gather) by an index without repeated positions. Its gradient needs no sums.
    pub(crate) fn gather_distinct(&self, dim: isize, index: &Tensor) -> Result<Tensor> {
        gather(self, dim, index, Scatter::Distinct)
    }

    /// This tensor with `src[p]` added at `p with p[dim] = index[p]`, for every `p` of the index. The index is i64 or i32
    /// and may be smaller than `src`. Errors: as [`gather`](Tensor::gather).
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let at = Tensor::from_vec(vec![0i64, 2, 0], 3, device)?;
    /// let sums = Tensor::zeros(3, DType::F32, device)?.scatter_add(0, &at, &Tensor::ones(3, DType::F32, device)?)?;
    /// assert_eq!(sums.to_vec::<f32>()?, [2.0, 0.0, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn scatter_add(&self, dim: impl Into<Position>, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        let Position(dim) = dim.into();
        scatter("scatter_add", Scatter::Add, self, dim, index, src)
    }

    /// [`scatter_add`](Tensor::scatter_add) in place. Errors: as there, and `Value` if this tensor is on the tape, shares memory with `src`
    /// or the index, or has several elements at one position.
    pub fn scatter_add_(&self, dim: impl Into<Position>, index: &Tensor, src: &Tensor) -> Result<()> {
        let Position(dim) = dim.into();
        scatter_("scatter_add_", Scatter::Add, self, dim, index, src)
    }

    /// This tensor with `src[p]` written at `p with p[dim] = index[p]`. Of several values for one position, the last in row-major
    /// order is written; the others have gradient 0. Errors: as [`gather`](Tensor::gather).
    pub fn scatter(&self, dim: impl Into<Position>, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        let Position(dim) = dim.into();
        scatter("scatter", Scatter::Assign, self, dim, index, src)
    }

    /// Slices of `x` along `dim`, one for each element of the index `[L]` or `[]`. Repeats are allowed. Errors: `Shape`, `Dtype`,
    /// `Attr`; `Index` for an index outside of `0..extent`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(6, device)?.reshape((2, 3))?;
    /// let rows = Tensor::from_vec(vec![1i64, 1, 0], 3, device)?;
    /// assert_eq!(x.index_select(0, &rows)?.to_vec::<i64>()?, [3, 4, 5, 3, 4, 5, 0, 1, 2]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn index_select(&self, dim: impl Into<Position>, index: &Tensor) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let d = self.shape().dim_for("index_select", dim)?;
        let expanded = along("index_select", self, d, index)?;
        let y = parts("index_select", || at_least_1d_on_tape(self)?.gather(d as isize, &expanded))?;
        report("index_select", &[self, index], &[&y], || [("dim", d.into())]);
        Ok(y)
    }

    /// This tensor with `alpha src[.., l, ..]` added at `[.., index[l], ..]`. Errors: as
    /// [`index_select`](Tensor::index_select).
    pub fn index_add(
        &self,
        dim: impl Into<Position>,
        index: &Tensor,
        src: &Tensor,
        alpha: impl Into<Scalar>,
    ) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let (d, expanded, src) = addends("index_add", self, dim, index, src, alpha.into())?;
        parts("index_add", || at_least_1d_on_tape(self)?.scatter_add(d, &expanded, &src)?.reshape(self.shape()))
    }

    /// [`index_add`](Tensor::index_add) in place. Errors: as there, and `Value` if this tensor is on the tape, shares memory with `src` or
    /// the index, or has several elements at one position.
    pub fn index_add_(
        &self,
        dim: impl Into<Position>,
        index: &Tensor,
        src: &Tensor,
        alpha: impl Into<Scalar>,
    ) -> Result<()> {
        let Position(dim) = dim.into();
        self.check_in_place("index_add_")?;
        let (d, expanded, src) = addends("index_add_", self, dim, index, src, alpha.into())?;
        parts("index_add_", || at_least_1d(self).scatter_add_(d, &expanded, &src))
    }
}

/// `back`: the scatter of the gradient.
fn gather(x: &Tensor, dim: isize, index: &Tensor, back: Scatter) -> Result<Tensor> {
    let op = "gather";
    check_index(op, index)?;
    check_device(op, &[x, index])?;
    let d = x.shape().dim_for(op, dim)?;
    let fits = |k: usize| k == d || index.dims()[k] <= x.dims()[k];
    if x.rank() != index.rank() || !(0..x.rank()).all(fits) {
        let message = format!("the index {} must have x's rank and fit {}", index.shape(), x.shape());
        return Err(Error::shape(op, format!("{message} except in dimension {dim}")));
    }
    let y = Tensor::allocate(op, index.shape(), x.dtype(), x.device())?;
    if y.numel() > 0 {
        let inputs = [&at_least_1d(x), &at_least_1d(index)];
        run(op, Kernel::Gather, &inputs, &[&at_least_1d(&y)], Attributes::ints(&[d as i64]))?;
    }
    report(op, &[x, index], &[&y], || [("dim", d.into())]);
    let (saved, shape) = (Saved::input(index), x.shape().clone());
    record(op, &[x], y, move |t| {
        let index = t.get(&saved)?;
        let zeros = Tensor::zeros(&shape, t.dy().dtype(), t.dy().device())?;
        gradients![Some(scatter_onto("scatter_add", back, &zeros, zeros.clone(), dim, &index, t.dy())?)]
    })
}

/// The slices `alpha src` of `index_add` and its kin as arguments of a scatter.
pub(crate) fn addends(
    op: &'static str,
    x: &Tensor,
    dim: isize,
    index: &Tensor,
    src: &Tensor,
    alpha: Scalar,
) -> Result<(isize, Tensor, Tensor)> {
    let d = x.shape().dim_for(op, dim)?;
    let expanded = along(op, x, d, index)?;
    let (given, src) = (src, at_least_1d_on_tape(src)?);
    if src.shape() != expanded.shape() {
        let (operands, shape) = (describe(&[x, index, given]), expanded.shape());
        let message = format!("src must be {shape} along dimension {dim} of self: self, index and src are {operands}");
        return Err(Error::shape(op, message));
    }
    let src = match alpha {
        Scalar::Int(1) => src,
        alpha => src.mul_scalar(alpha)?,
    };
    Ok((d as isize, expanded, src))
}

/// A rank-0 tensor as `[1]`, outside of the tape.
fn at_least_1d(t: &Tensor) -> Tensor {
    if t.rank() > 0 { t.clone() } else { t.with_layout(t.layout().expand(&Shape::from(1))) }
}

pub(crate) fn at_least_1d_on_tape(t: &Tensor) -> Result<Tensor> {
    if t.rank() > 0 { Ok(t.clone()) } else { t.reshape(1) }
}

/// An index `[L]` expanded to `x`'s other dimensions.
pub(crate) fn along(op: &'static str, x: &Tensor, d: usize, index: &Tensor) -> Result<Tensor> {
    check_index(op, index)?;
    if index.rank() > 1 {
        let message = format!("the index of {} is {}, expected rank 0 or 1", x.shape(), index.shape());
        return Err(Error::shape(op, message));
    }
    let mut dims = if x.rank() == 0 { Dims::from_slice(&[1]) } else { Dims::from_slice(x.dims()) };
    dims[d] = index.numel();
    let mut column: Dims = dims.iter().map(|_| 1).collect();
    column[d] = index.numel();
    index.reshape(Shape::from(column))?.broadcast_to(Shape::from(dims))
}

/// `x` after a scatter. With [`Scatter::Distinct`] no two elements of the index have the same position.
pub(crate) fn scatter(
    op: &'static str,
    mode: Scatter,
    x: &Tensor,
    dim: isize,
    index: &Tensor,
    src: &Tensor,
) -> Result<Tensor> {
    check_scatter(op, x, dim, index, src)?;
    scatter_onto(op, mode, x, x.detach().copy()?, dim, index, src)
}

/// A scatter onto `x` itself.
pub(crate) fn scatter_(
    op: &'static str,
    mode: Scatter,
    x: &Tensor,
    dim: isize,
    index: &Tensor,
    src: &Tensor,
) -> Result<()> {
    x.check_in_place(op)?;
    let d = check_scatter(op, x, dim, index, src)?;
    check_apart(op, x, &[index, src])?;
    if !x.is_contiguous() {
        // Kernels write contiguous memory.
        let y = x.detach().copy()?;
        put(op, mode, &y, d, index, src)?;
        return no_grad(|| x.copy_(&y));
    }
    put(op, mode, x, d, index, src)?;
    x.touch();
    Ok(())
}

/// Checks that the inputs do not share memory with the changed tensor.
pub(crate) fn check_apart(op: &'static str, changed: &Tensor, inputs: &[&Tensor]) -> Result<()> {
    match inputs.iter().any(|x| x.shares_memory(changed)) {
        true => Err(Error::value(op, "an input shares memory with what is changed; copy it first")),
        false => Ok(()),
    }
}

/// The dimension of a scatter, after checking the operands.
pub(crate) fn check_scatter(op: &'static str, x: &Tensor, dim: isize, index: &Tensor, src: &Tensor) -> Result<usize> {
    check_index(op, index)?;
    check_same(op, &[x, src])?;
    check_device(op, &[x, index])?;
    let d = x.shape().dim_for(op, dim)?;
    let fits = |k: usize| index.dims()[k] <= src.dims()[k] && (k == d || index.dims()[k] <= x.dims()[k]);
    if x.rank() != index.rank() || x.rank() != src.rank() || !(0..x.rank()).all(fits) {
        let operands = describe(&[x, index, src]);
        return Err(Error::shape(
            op,
            format!("self, index and src must have one rank and contain the index: {operands}"),
        ));
    }
    if x.numel() == 0 && index.numel() > 0 {
        let message = format!("dimension {dim} of {} has no element for the index {}", x.shape(), index.shape());
        return Err(Error::index(op, message));
    }
    Ok(d)
}

/// Scatters onto memory.
fn put(op: &'static str, mode: Scatter, y: &Tensor, d: usize, index: &Tensor, src: &Tensor) -> Result<()> {
    if index.numel() == 0 {
        return Ok(());
    }
    // Only the part of src that the index covers is read.
    let used = index.shape().iter().enumerate().fold(src.layout().clone(), |l, (k, &n)| l.narrow(k, 0, n, 1));
    let (i, s) = (at_least_1d(index), at_least_1d(&src.with_layout(used)));
    run(op, Kernel::Scatter(mode), &[&i, &s], &[&at_least_1d(y)], Attributes::ints(&[d as i64]))
}

/// Scatters onto `y`, a copy of `x`.
fn scatter_onto(
    op: &'static str,
    mode: Scatter,
    x: &Tensor,
    y: Tensor,
    dim: isize,
    index: &Tensor,
    src: &Tensor,
) -> Result<Tensor> {
    let d = x.shape().dim_for(op, dim)?;
    put(op, mode, &y, d, index, src)?;
    report(op, &[x, index, src], &[&y], || [("dim", d.into()), ("adds", (mode == Scatter::Add).into())]);
    let (saved, src_shape) = (Saved::input(index), src.shape().clone());
    record(op, &[x, src], y, move |t| {
        let index = t.get(&saved)?;
        let dself = || match mode {
            Scatter::Add => Ok(t.dy().clone()),
            Scatter::Assign | Scatter::Distinct => {
                let zeros = Tensor::zeros(index.shape(), t.dy().dtype(), t.dy().device())?;
                t.dy().scatter(dim, &index, &zeros)
            }
        };
        let dsrc = || source_gradient(mode, t.dy(), dim, &index)?.pad_to(&src_shape);
        gradients![t.want(0, dself)?, t.want(1, dsrc)?]
    })
}

/// The gradient of a scatter's source, in the index's shape: 0 for overwritten elements.
fn source_gradient(mode: Scatter, dy: &Tensor, dim: isize, index: &Tensor) -> Result<Tensor> {
    match mode {
        Scatter::Add => dy.gather(dim, index),
        Scatter::Distinct => dy.gather_distinct(dim, index),
        Scatter::Assign => last_written(dy.shape(), dim, index)?.where_scalar(&dy.gather(dim, index)?, 0),
    }
}

/// For each element of an index into `shape`: true if no later element has the same position. The result has extent 1 along
/// dimensions where the index is expanded, because the positions repeat there.
fn last_written(shape: &Shape, dim: isize, index: &Tensor) -> Result<Tensor> {
    let op = "scatter";
    let d = shape.dim_for(op, dim)?;
    let (mut layout, mut extents) = (index.layout().clone(), Dims::from_slice(shape));
    for k in (0..index.rank()).filter(|&k| k != d && index.layout().strides()[k] == 0 && index.numel() > 0) {
        layout = layout.narrow(k, 0, 1, 1);
        extents[k] = 1;
    }
    let index = index.with_layout(layout);
    let number = Tensor::arange(index.numel(), index.device())?.reshape(index.shape())?;
    // Only positions that are written are read later.
    let last = Tensor::allocate(op, &Shape::from(extents), DType::I64, index.device())?;
    put(op, Scatter::Assign, &last, d, &index, &number)?;
    last.gather(dim, &index)?.eq(&number)
}

impl Tensor {
    /// Zeros of `shape` with this tensor at the start of every dimension.
    fn pad_to(&self, shape: &Shape) -> Result<Tensor> {
        let mut y = self.clone();
        for d in 0..shape.rank() {
            let missing = shape[d] - y.dims()[d];
            if missing > 0 {
                let mut dims = Dims::from_slice(y.dims());
                dims[d] = missing;
                let zeros = Tensor::zeros(Shape::from(dims), y.dtype(), y.device())?;
                y = Tensor::concat(&[&y, &zeros], d as isize)?;
            }
        }
        Ok(y)
    }
}
