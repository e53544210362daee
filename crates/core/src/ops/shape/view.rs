//! Other shapes over the same memory, and copies where strides cannot express them.

use crate::backend::Kernel;
use crate::ops::shape::factory::INFER;
use crate::ops::{Axes, gradients};
use crate::tape::{Attribute, Gradient, Record, record, report};
use crate::tensor::{Attributes, run};
use crate::{DType, Dims, Error, Layout, Position, Result, Shape, Tensor, no_grad};

/// # Views
impl Tensor {
    /// A view: the same memory under `layout`, with the rule of its gradient.
    fn view<const N: usize>(
        &self,
        op: &'static str,
        layout: Layout,
        attributes: impl FnOnce() -> [(&'static str, Attribute); N],
        backward: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<Tensor> {
        let y = self.viewed(op, layout, attributes)?;
        record(op, &[self], y, move |t| gradients![Some(backward(t.dy())?)])
    }

    /// [`view`](Tensor::view) of all elements, each once, as is its gradient.
    fn rearranged<const N: usize>(
        &self,
        op: &'static str,
        layout: Layout,
        attributes: impl FnOnce() -> [(&'static str, Attribute); N],
        backward: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<Tensor> {
        let y = self.viewed(op, layout, attributes)?;
        Record::new(op, &[self]).view(y, backward)
    }

    fn viewed<const N: usize>(
        &self,
        op: &'static str,
        layout: Layout,
        attributes: impl FnOnce() -> [(&'static str, Attribute); N],
    ) -> Result<Tensor> {
        layout.shape().check(op)?;
        let y = self.with_layout(layout);
        report(op, &[self], &[&y], attributes);
        Ok(y)
    }

    /// The same elements in row-major order under another shape; one extent may be [`INFER`]. A view where strides
    /// allow it, else a copy. Errors: `Shape` if the number of elements differs.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// assert_eq!(Tensor::arange(6, device)?.reshape((2, 3))?.dims(), [2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = infer(self, shape.into())?;
        if shape == *self.shape() {
            return Ok(self.clone());
        }
        let from = self.shape().clone();
        match self.layout().reshape(&shape) {
            Some(layout) => self.rearranged("reshape", layout, || [], move |dy| dy.reshape(&from)),
            None => self.contiguous()?.reshape(shape),
        }
    }

    /// Swaps two dimensions (negative ones count from the end). A view. Errors: `Attr` for a dimension out of range.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(6, device)?.reshape((2, 3))?;
    /// assert_eq!(x.transpose(0, 1)?.to_vec::<i64>()?, [0, 3, 1, 4, 2, 5]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn transpose(&self, a: impl Into<Position>, b: impl Into<Position>) -> Result<Tensor> {
        let (Position(a), Position(b)) = (a.into(), b.into());
        let (i, j) = (self.shape().dim_for("transpose", a)?, self.shape().dim_for("transpose", b)?);
        let axes = || [("axes", [i, j][..].into())];
        self.rearranged("transpose", self.layout().transpose(i, j), axes, move |dy| dy.transpose(a, b))
    }

    /// Swaps the last two dimensions. A view. Errors: `Shape` below rank 2.
    pub fn t(&self) -> Result<Tensor> {
        if self.rank() < 2 {
            return Err(Error::shape("t", format!("{} has rank {}, expected at least 2", self.shape(), self.rank())));
        }
        self.transpose(-2, -1)
    }

    /// Dimension `k` of the result is dimension `perm[k]`. A view. Errors: `Attr` unless `perm` is a permutation.
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let images = Tensor::zeros((8, 32, 24, 3), DType::F32, device)?;
    /// assert_eq!(images.permute(&[0, 3, 1, 2])?.dims(), [8, 3, 32, 24]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn permute<D: Into<Position> + Copy>(&self, perm: &[D]) -> Result<Tensor> {
        let op = "permute";
        let perm: Vec<isize> = perm.iter().map(|&dim| dim.into().0).collect();
        let wrong = || Error::attr(op, format!("{perm:?} is not a permutation of the dimensions of {}", self.shape()));
        if perm.len() != self.rank() {
            return Err(wrong());
        }
        let resolved: Dims = perm.iter().map(|&p| self.shape().dim_for(op, p)).collect::<Result<_>>()?;
        let mut inverse = vec![isize::MAX; self.rank()];
        resolved.iter().enumerate().for_each(|(k, &p)| inverse[p] = k as isize);
        if inverse.contains(&isize::MAX) {
            return Err(wrong());
        }
        let layout = self.layout().permute(&resolved);
        self.rearranged(op, layout, || [("permutation", resolved[..].into())], move |dy| dy.permute(&inverse))
    }

    /// Elements `start .. start + length` of one dimension. A view. Errors: `Attr` for a dimension, `Index` for a range
    /// out of bounds.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(6, device)?.reshape((2, 3))?;
    /// assert_eq!(x.narrow(1, 1, 2)?.to_vec::<i64>()?, [1, 2, 4, 5]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn narrow(&self, dim: impl Into<Position>, start: usize, length: usize) -> Result<Tensor> {
        let Position(dim) = dim.into();
        self.slice(dim, start, start.saturating_add(length), 1)
    }

    /// Elements `start`, `start + step`, ... below `stop` of one dimension. A view. Errors: `Attr` for a dimension out of
    /// range or step 0, `Index` unless `start <= stop <= extent`.
    pub fn slice(&self, dim: impl Into<Position>, start: usize, stop: usize, step: usize) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let op = "narrow";
        let d = self.shape().dim_for(op, dim)?;
        let extent = self.dims().get(d).copied().unwrap_or(0);
        if step == 0 {
            return Err(Error::attr(
                op,
                format!("the step is 0 in dimension {dim} of {}, expected at least 1", self.shape()),
            ));
        }
        if self.rank() == 0 || start > stop || stop > extent {
            let message = format!("{start}..{stop} is outside of 0..{extent} in dimension {dim} of {}", self.shape());
            return Err(Error::index(op, message));
        }
        let length = (stop - start).div_ceil(step);
        let shape = self.shape().clone();
        let attributes = || [("dim", d.into()), ("start", start.into()), ("step", step.into())];
        let layout = self.layout().narrow(d, start, length, step);
        let y = self.viewed(op, layout, attributes)?;
        record(op, &[self], y, move |t| Ok([Gradient::part(t.dy().clone(), &shape, d, [start, step])]))
    }

    /// The windows of `size` neighbours along dimension `dim`, `step` apart: `[.., n, ..]` with n windows in place of the dimension, and a
    /// last dimension of `size`. Elements after the last whole window are in none. A view, in which windows of `step` below `size`
    /// share elements; changes in place refuse it. The gradient of an element is the sum over its windows, in the accumulation dtype.
    /// All dtypes. Errors: `Attr` for a dimension out of range, a size or a step of 0; `Shape` for a scalar, a size above the extent,
    /// or more dimensions than a tensor has.
    pub fn windows(&self, dim: impl Into<Position>, size: usize, step: usize) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let op = "windows";
        let d = self.shape().dim_for(op, dim)?;
        if size == 0 || step == 0 {
            return Err(Error::attr(op, format!("the size is {size} and the step {step}, expected at least 1")));
        }
        let extent = self.dims().get(d).copied().unwrap_or(0);
        if size > extent {
            let message = format!("a window of {size} does not fit into dimension {dim} of {}", self.shape());
            return Err(Error::shape(op, message));
        }
        let count = (extent - size) / step + 1;
        // A single window has no neighbour; its step may have any value.
        let parts = [(count, if count > 1 { step } else { 1 }), (size, 1)];
        let last = (0..=self.rank()).filter(|&k| k != d + 1).chain([d + 1]).collect::<Dims>();
        let layout = self.layout().split(d, parts).permute(&last);
        let shape = self.shape().clone();
        let attributes = || [("dim", d.into()), ("size", size.into()), ("step", step.into())];
        self.view(op, layout, attributes, move |dy| dy.fold_windows(&shape, d, step))
    }

    /// Zeros of `shape` to which the windows of dimension `dim` are added: the adjoint of [`windows`](Tensor::windows).
    fn fold_windows(&self, shape: &Shape, dim: usize, step: usize) -> Result<Tensor> {
        let op = "windows_backward";
        let size = self.dims()[self.rank() - 1];
        let y = no_grad(|| sum_of_windows(&self.detach(), shape, dim, step)).map_err(|e| e.of(op))?;
        record(op, &[self], y, move |t| gradients![Some(t.dy().windows(dim as isize, size, step)?)])
    }

    /// Selects `index` along dimension `dim`, and removes the dimension (negative values count from the end). A view. Errors:
    /// `Attr`, `Index`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(6, device)?.reshape((2, 3))?;
    /// assert_eq!(x.select(1, -1)?.to_vec::<i64>()?, [2, 5]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn select(&self, dim: impl Into<Position>, index: impl Into<Position>) -> Result<Tensor> {
        let (Position(dim), Position(index)) = (dim.into(), index.into());
        let d = self.shape().dim_for("select", dim)?;
        let extent = self.dims().get(d).copied().unwrap_or(0) as isize;
        let resolved = if index < 0 { index.saturating_add(extent) } else { index };
        if !(0..extent).contains(&resolved) {
            let message = format!("index {index} is outside of {}..{extent} in dimension {dim} of", -extent);
            return Err(Error::index("select", format!("{message} {}", self.shape())));
        }
        let shape = self.shape().clone();
        let attributes = || [("dim", d.into()), ("index", (resolved as i64).into())];
        let at = resolved as usize;
        let y = self.viewed("select", self.layout().select(d, at), attributes)?;
        record("select", &[self], y, move |t| Ok([Gradient::part(t.dy().unsqueeze(d as isize)?, &shape, d, [at, 1])]))
    }

    /// Zeros of `shape` with this tensor at `start`, `start + step`, ... of dimension `dim`: the adjoint of a slice.
    pub(crate) fn embed(&self, shape: &Shape, dim: usize, start: usize, step: usize) -> Result<Tensor> {
        let op = "select_backward";
        let y = Tensor::zeros(shape, self.dtype(), self.device())?;
        let is_last = self.is_channels_last() || self.layout().has_adjacent_channels();
        let y = if is_last { y.with_layout(Layout::channels_last(shape.clone())) } else { y };
        y.put(op, self, dim, [start, step])?;
        let stop = start.saturating_add(self.dims()[dim].saturating_mul(step)).min(shape[dim]);
        record(op, &[self], y, move |t| gradients![Some(t.dy().slice(dim as isize, start, stop, step)?)])
    }

    /// Copies x to the elements `start`, `start + step`, ... of dimension `dim` of this new tensor. Outside of the tape.
    pub(crate) fn put(&self, op: &'static str, x: &Tensor, dim: usize, [start, step]: [usize; 2]) -> Result<()> {
        if x.numel() == 0 {
            return Ok(());
        }
        let ordered = |layout: Layout| if self.is_channels_last() { layout.with_channels_at_end() } else { layout };
        let place = self.with_layout(ordered(self.layout().narrow(dim, start, x.dims()[dim], step)));
        run(op, Kernel::Copy, &[&x.with_layout(ordered(x.layout().clone()))], &[&place], Attributes::default())
    }

    /// Adds a dimension of size 1 before `dim` (`-1`: at the end). A view. Errors: `Attr`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(6, device)?.reshape((2, 3))?;
    /// assert_eq!((x.unsqueeze(0)?.dims(), x.unsqueeze(-1)?.dims()), (&[1, 2, 3][..], &[2, 3, 1][..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn unsqueeze(&self, dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let rank = self.rank() as isize;
        let at = if dim < 0 { dim.saturating_add(rank + 1) } else { dim };
        if !(0..=rank).contains(&at) {
            let message = format!("dimension {dim} is outside of {}..={rank} for shape {}", -rank - 1, self.shape());
            return Err(Error::attr("unsqueeze", message));
        }
        let mut dims = Dims::from_slice(self.dims());
        dims.insert(at as usize, 1);
        self.reshape(Shape::from(dims))
    }

    /// Removes a dimension of size 1. A view. Errors: `Attr` for a dimension out of range, `Shape` if its size is not 1.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// assert_eq!(Tensor::arange(3, device)?.reshape((3, 1))?.squeeze(1)?.dims(), [3]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn squeeze(&self, dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let d = self.shape().dim_for("squeeze", dim)?;
        if self.dims().get(d) != Some(&1) {
            return Err(Error::shape("squeeze", format!("dimension {dim} of {} is not of size 1", self.shape())));
        }
        let mut dims = Dims::from_slice(self.dims());
        dims.remove(d);
        self.reshape(Shape::from(dims))
    }

    /// Merges dimensions `first..=last` into one. Errors: `Attr`.
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::zeros((2, 3, 4), DType::F32, device)?;
    /// assert_eq!(x.flatten(1, -1)?.dims(), [2, 12]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn flatten(&self, first: impl Into<Position>, last: impl Into<Position>) -> Result<Tensor> {
        let (Position(first), Position(last)) = (first.into(), last.into());
        let (a, b) = (self.shape().dim_for("flatten", first)?, self.shape().dim_for("flatten", last)?);
        if a > b {
            return Err(Error::attr("flatten", format!("dimension {first} comes after dimension {last}")));
        }
        if self.rank() == 0 {
            return self.reshape(1);
        }
        let mut dims = Dims::from_slice(&self.dims()[..a]);
        dims.push(self.dims()[a..=b].iter().product());
        dims.extend_from_slice(&self.dims()[b + 1..]);
        self.reshape(Shape::from(dims))
    }

    /// Expands dimensions of size 1, and adds leading ones, with stride 0. A view. Errors: `Shape` unless the shape
    /// broadcasts to `shape`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(3, device)?.broadcast_to((2, 3))?;
    /// assert_eq!(x.to_vec::<i64>()?, [0, 1, 2, 0, 1, 2]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn broadcast_to(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        let op = "broadcast_to";
        shape.check(op).map_err(|e| Error::shape(op, format!("{} to {}", self.shape(), e.message())))?;
        if self.shape().broadcast_for(op, &shape)? != shape {
            return Err(Error::shape(op, format!("{} does not broadcast to {shape}", self.shape())));
        }
        let from = self.shape().clone();
        self.view(op, self.layout().expand(&shape), || [], move |dy| dy.sum_to_size(&from))
    }

    /// PyTorch's name of [`broadcast_to`](Tensor::broadcast_to).
    pub fn expand(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        self.broadcast_to(shape)
    }

    /// Sums the dimensions that a broadcast from `shape` to this tensor's shape expanded. Errors: `Shape` unless `shape`
    /// broadcasts to this shape.
    pub fn sum_to_size(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        sum_to_size(self, shape.into(), |x, axes| x.sum(axes))
    }

    /// [`sum_to_size`](Tensor::sum_to_size) of floats, rounded once, to `dtype`.
    pub(crate) fn sum_to_size_as(&self, shape: &Shape, dtype: DType) -> Result<Tensor> {
        sum_to_size(self, shape.clone(), |x, axes| x.sum_as(axes, dtype))?.cast(dtype)
    }

    /// The same tensor if it is contiguous, else a contiguous copy.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// The same tensor `[N, C, ..]` with adjacent channels in memory: a view of a copy `[N, .., C]`, or this tensor if it is one. Its
    /// shape says `[N, C, ..]`. Convolutions in 16 bits are fastest in this order. [`contiguous`](Tensor::contiguous) goes back.
    ///
    /// Errors: `Shape` for fewer than three dimensions.
    pub fn to_channels_last(&self) -> Result<Tensor> {
        if self.rank() < 3 {
            return Err(Error::shape("to_channels_last", format!("{} has no dimensions after channels", self.shape())));
        }
        if self.is_channels_last() {
            return Ok(self.clone());
        }
        if self.layout().has_channels_last() {
            // Both orders are the same. The strides say which one is meant.
            let layout = Layout::channels_last(self.shape().clone()).shift(self.layout().offset());
            return self.rearranged("reshape", layout, || [], |dy| Ok(dy.clone()));
        }
        self.with_channels_at_end()?.contiguous()?.with_channels_second()
    }

    /// The same tensor if its elements fill memory without gaps, else such a copy: with channels last if its channels are adjacent, else in
    /// row-major order.
    pub(crate) fn dense(&self) -> Result<Tensor> {
        match self.layout() {
            layout if layout.is_dense() => Ok(self.clone()),
            layout if layout.has_adjacent_channels() => self.to_channels_last(),
            _ => self.contiguous(),
        }
    }

    /// `[N, C, ..]` as `[N, .., C]`.
    pub(crate) fn with_channels_at_end(&self) -> Result<Tensor> {
        let order: Vec<isize> = [0].into_iter().chain(2..self.rank() as isize).chain([1]).collect();
        self.permute(&order)
    }

    /// `[N, .., C]` as `[N, C, ..]`.
    pub(crate) fn with_channels_second(&self) -> Result<Tensor> {
        let last = self.rank() as isize - 1;
        let order: Vec<isize> = [0, last].into_iter().chain(1..last).collect();
        self.permute(&order)
    }

    /// The rows `[N .., C]` of this tensor, whose channels are last in memory.
    pub(crate) fn as_rows(&self) -> Result<Tensor> {
        let channels = self.dims()[1];
        self.with_channels_at_end()?.reshape((self.numel() / channels, channels))
    }

    /// Applies `f` to the rows `[N .., C]` of this tensor, whose channels are last in memory, and gives its result this tensor's shape.
    pub(crate) fn on_rows(&self, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let x = self.with_channels_at_end()?;
        f(&self.as_rows()?)?.reshape(x.shape())?.with_channels_second()
    }

    /// A contiguous copy in memory of its own.
    pub fn copy(&self) -> Result<Tensor> {
        let y = Tensor::allocate("copy", self.shape(), self.dtype(), self.device())?;
        if y.numel() > 0 {
            run("copy", Kernel::Copy, &[self], &[&y], Attributes::default())?;
        }
        record("copy", &[self], y, |t| gradients![Some(t.dy().clone())])
    }
}

/// Zeros of `shape` to which windows `[.., n, .., size]` of dimension `dim` are added.
///
/// A window is a row of m pieces of `step` elements, the last of which may be shorter. Piece q of the dimension is the sum of the pieces j
/// of windows q - j. If m <= n, line j of a matrix has the pieces j of all windows, with m - 1 pieces of zeros on both sides. The terms of
/// a sum are then on a diagonal of the matrix, so that they are equally far apart in memory, and a view adds them along a dimension.
/// Otherwise line w has the pieces of window w.
fn sum_of_windows(dy: &Tensor, shape: &Shape, dim: usize, step: usize) -> Result<Tensor> {
    let x = dy.movedim(dim as isize, -2)?;
    let (outer, &[count, size]) = x.dims().split_at(x.rank() - 2) else { unreachable!("windows have two dimensions") };
    let (extent, batch) = (shape[dim], outer.iter().product::<usize>());
    let x = x.reshape((batch, count, size))?;
    let step = if count == 1 { size } else { step };
    let pieces = size.div_ceil(step);
    let (lines, length) = (pieces.min(count), pieces.max(count));
    let sums = extent.div_ceil(step).max(count + pieces - 1);
    let line = sums + lines - 1;
    let matrix = Tensor::zeros((batch, lines, line, step), x.dtype(), x.device())?;
    let places = matrix.narrow(2, lines - 1, length)?;
    // [batch, pieces, count, step]
    let places = if pieces <= count { places } else { places.transpose(1, 2)? };
    let (whole, rest) = (size / step, size % step);
    if whole > 0 {
        let whole_pieces = x.narrow(2, 0, whole * step)?.windows(2, step, step)?;
        places.narrow(1, 0, whole)?.copy_(&whole_pieces.transpose(1, 2)?)?;
    }
    if rest > 0 {
        places.select(1, whole as isize)?.narrow(2, 0, rest)?.copy_(&x.narrow(2, whole * step, rest)?)?;
    }
    let all = matrix.reshape((batch, lines * line * step))?;
    let y = match lines {
        1 => all,
        _ => {
            let first = (lines - 1) * step;
            let diagonals = all.narrow(1, first, all.dims()[1] - first)?.windows(1, sums * step, (line - 1) * step)?;
            diagonals.narrow(1, 0, lines)?.sum_as(1, x.dtype())?
        }
    };
    let dims = Shape::from(outer.iter().copied().chain([extent]).collect::<Dims>());
    y.narrow(1, 0, extent)?.reshape(dims)?.movedim(-1, dim as isize)
}

/// `sum` over the dimensions that a broadcast from `shape` expanded.
fn sum_to_size(x: &Tensor, shape: Shape, sum: impl FnOnce(&Tensor, Axes) -> Result<Tensor>) -> Result<Tensor> {
    if *x.shape() == shape {
        return Ok(x.clone());
    }
    let op = "sum_to_size";
    if shape.broadcast_for(op, x.shape())? != *x.shape() {
        return Err(Error::shape(op, format!("{shape} does not broadcast to {}", x.shape())));
    }
    let new = x.rank() - shape.rank();
    let expanded = |i: usize| x.dims()[i] != 1 && (i < new || shape[i - new] == 1);
    let dims: Vec<isize> = (0..x.rank()).filter(|&i| expanded(i)).map(|i| i as isize).collect();
    let summed = if dims.is_empty() { x.clone() } else { x.keepdim(dims, sum)? };
    summed.reshape(shape)
}

/// Replaces [`INFER`] by the remaining extent, and checks the number of elements.
fn infer(x: &Tensor, shape: Shape) -> Result<Shape> {
    let op = "reshape";
    let wrong = || {
        let asked: Vec<String> = shape.iter().map(|&d| if d == INFER { "-1".into() } else { d.to_string() }).collect();
        Error::shape(op, format!("{} ({} elements) does not fit into [{}]", x.shape(), x.numel(), asked.join(", ")))
    };
    let known = shape.iter().filter(|&&d| d != INFER).try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or_else(wrong)?;
    let mut dims = Dims::from_slice(&shape);
    match shape.iter().filter(|&&d| d == INFER).count() {
        0 => {}
        1 if known > 0 && x.numel().is_multiple_of(known) => {
            dims.iter_mut().filter(|d| **d == INFER).for_each(|d| *d = x.numel() / known);
        }
        _ => return Err(wrong()),
    }
    let resolved = Shape::from(dims);
    resolved.check(op).map_err(|e| Error::shape(op, format!("{} to {}", x.shape(), e.message())))?;
    if resolved.numel() == x.numel() { Ok(resolved) } else { Err(wrong()) }
}
