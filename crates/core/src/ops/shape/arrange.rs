//! Elements in another order, or several times: flip, roll, repeat, and lists of parts.

use crate::check::describe;
use crate::ops::gradients;
use crate::tape::{record, record_outputs, report};
use crate::{DType, Dims, Error, Kind, Layout, Position, Result, Shape, Tensor, no_grad};

/// # Order of elements
impl Tensor {
    /// Reverses the order along these dimensions (negative ones count from the end). Errors: `Attr` for a dimension out of range or
    /// named twice.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(6, device)?.reshape((2, 3))?;
    /// assert_eq!(x.flip(&[1])?.to_vec::<i64>()?, [2, 1, 0, 5, 4, 3]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn flip<D: Into<Position> + Copy>(&self, dims: &[D]) -> Result<Tensor> {
        let dims: Vec<isize> = dims.iter().map(|&dim| dim.into().0).collect();
        let axes = self.distinct_axes("flip", &dims)?;
        let reversed = |x: Tensor, &d: &usize| {
            let n = x.dims()[d];
            x.index_select(d as isize, &Tensor::arange(n, x.device())?.rsub_scalar(n as i64 - 1)?)
        };
        let y = no_grad(|| axes.iter().try_fold(self.clone(), reversed))?;
        report("flip", &[self], &[&y], || [("axes", axes[..].into())]);
        let dims = dims.to_vec();
        record("flip", &[self], y, move |t| gradients![Some(t.dy().flip(&dims)?)])
    }

    /// Moves elements by `shift` places along `dim`; those that leave the end come back at the start. Errors: `Attr`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// assert_eq!(Tensor::arange(4, device)?.roll(1, 0)?.to_vec::<i64>()?, [3, 0, 1, 2]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn roll(&self, shift: isize, dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let d = self.shape().dim_for("roll", dim)?;
        let n = self.dims().get(d).copied().unwrap_or(0);
        if n == 0 {
            return Ok(self.clone());
        }
        let tail = shift.rem_euclid(n as isize) as usize;
        let d = d as isize;
        Tensor::concat(&[&self.narrow(d, n - tail, tail)?, &self.narrow(d, 0, n - tail)?], d)
    }

    /// Turns the plane of two dimensions by `turns` times 90 degrees, from the first dimension toward the second. Errors: `Attr`.
    pub fn rot90(&self, turns: isize, dims: [isize; 2]) -> Result<Tensor> {
        let [a, b] = dims;
        self.distinct_axes("rot90", &dims)?;
        match turns.rem_euclid(4) {
            0 => Ok(self.clone()),
            1 => self.flip(&[b])?.transpose(a, b),
            2 => self.flip(&dims),
            _ => self.flip(&[a])?.transpose(a, b),
        }
    }

    /// Copies the tensor `counts[k]` times along each dimension, one after the other. More counts than dimensions: the tensor gets
    /// dimensions of size 1 in front. Errors: `Attr` for fewer counts than dimensions.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// assert_eq!(Tensor::arange(2, device)?.repeat(&[2])?.to_vec::<i64>()?, [0, 1, 0, 1]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn repeat(&self, counts: &[usize]) -> Result<Tensor> {
        if counts.len() < self.rank() {
            let message =
                format!("{} counts were given for {}, expected at least {}", counts.len(), self.shape(), self.rank());
            return Err(Error::attr("repeat", message));
        }
        let mut dims = Dims::from_elem(1, counts.len() - self.rank());
        dims.extend_from_slice(self.dims());
        let x = self.reshape(Shape::from(dims))?;
        let all = (0..counts.len()).try_fold(x, |x, d| x.copies("repeat", d, d, counts[d]));
        all.map_err(|e| self.too_large("repeat", e, format!("{counts:?} times")))
    }

    /// Copies each element `count` times in place along `dim`. Errors: `Attr`.
    pub fn repeat_interleave(&self, count: usize, dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let d = self.shape().dim_for("repeat_interleave", dim)?;
        let x = if self.rank() == 0 { self.reshape(1)? } else { self.clone() };
        let all = x.copies("repeat_interleave", d, d + 1, count);
        all.map_err(|e| self.too_large("repeat_interleave", e, format!("{count} times dimension {dim} of")))
    }

    /// The error of a result with more elements than memory can address; `what` goes before the shape.
    fn too_large(&self, op: &'static str, error: Error, what: String) -> Error {
        match error.kind() {
            Kind::Shape => Error::shape(op, format!("{what} {} is too large", self.shape())),
            _ => error.of(op),
        }
    }

    /// Copies of what the dimensions from `at` on hold, side by side; dimension `d` has `count` times the extent.
    fn copies(&self, op: &'static str, d: usize, at: usize, count: usize) -> Result<Tensor> {
        if count == 1 {
            return Ok(self.clone());
        }
        let mut dims = Dims::from_slice(self.dims());
        dims[d] = dims[d].saturating_mul(count);
        let shape = Shape::from(dims);
        shape.check(op)?;
        let [before, after] = [&self.dims()[..at], &self.dims()[at..]].map(|part| part.iter().product::<usize>());
        let copied = self.reshape((before, 1, after))?.broadcast_to((before, count, after));
        copied.and_then(|x| x.reshape(shape)).map_err(|e| e.of(op))
    }

    /// Moves a dimension to another place. A view. Errors: `Attr`.
    pub fn movedim(&self, from: impl Into<Position>, to: impl Into<Position>) -> Result<Tensor> {
        let (Position(from), Position(to)) = (from.into(), to.into());
        let (from, to) = (self.shape().dim_for("movedim", from)?, self.shape().dim_for("movedim", to)?);
        if self.rank() == 0 {
            return Ok(self.clone());
        }
        let mut perm: Vec<isize> = (0..self.rank() as isize).collect();
        let moved = perm.remove(from);
        perm.insert(to, moved);
        self.permute(&perm)
    }

    /// At most `count` parts of equal size along `dim`, of which the last may be smaller. Views. Errors: `Attr`, also for 0 parts.
    pub fn chunk(&self, count: usize, dim: impl Into<Position>) -> Result<Vec<Tensor>> {
        let Position(dim) = dim.into();
        let d = self.shape().dim_for("chunk", dim)?;
        if count == 0 || self.rank() == 0 {
            let message =
                format!("{count} parts of {} were asked for, expected at least 1 of rank 1 or more", self.shape());
            return Err(Error::attr("chunk", message));
        }
        match self.dims()[d] {
            0 => Ok(vec![self.clone()]),
            n => self.split(n.div_ceil(count), dim).map_err(|e| e.of("chunk")),
        }
    }

    /// The slices along `dim`, without this dimension. Views, whose gradients are stacked. Errors: `Attr`; `Shape` for a scalar.
    pub fn unbind(&self, dim: impl Into<Position>) -> Result<Vec<Tensor>> {
        let Position(dim) = dim.into();
        let d = self.shape().dim_for("unbind", dim)?;
        if self.rank() == 0 {
            return Err(Error::shape("unbind", format!("{} has no dimensions", describe(&[self]))));
        }
        let slices: Vec<Tensor> = (0..self.dims()[d]).map(|i| self.with_layout(self.layout().select(d, i))).collect();
        for (i, slice) in slices.iter().enumerate() {
            report("select", &[self], &[slice], || [("dim", d.into()), ("index", (i as i64).into())]);
        }
        if slices.is_empty() {
            return Ok(slices);
        }
        let (count, shape) = (slices.len(), self.shape().clone());
        record_outputs("unbind", &[self], slices, move |t| {
            let present: Vec<(usize, &Tensor)> = (0..count).filter_map(|i| Some((i, t.dy_of(i)?))).collect();
            if present.len() == count {
                let dy: Vec<&Tensor> = present.iter().map(|(_, dy)| *dy).collect();
                if let Some(whole) = joined(&dy, d).filter(|_| !t.creates_graph()) {
                    return gradients![Some(whole)];
                }
                return gradients![Some(Tensor::stack(&dy, d as isize)?)];
            }
            let mut placed = present.iter().map(|(i, dy)| dy.unsqueeze(d as isize)?.embed(&shape, d, *i, 1));
            let first = placed.next().expect("an output has a gradient")?;
            gradients![Some(placed.try_fold(first, |sum, dy| sum.add(&dy?))?)]
        })
    }

    /// `value` where the bool tensor `mask`, which broadcasts to x, is true; x elsewhere. Errors: `Shape`, `Dtype`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(6, device)?.reshape((2, 3))?;
    /// let even = x.remainder(&x.full_like(2)?)?.eq_scalar(0)?;
    /// assert_eq!(x.masked_fill(&even, -1)?.to_vec::<i64>()?, [-1, 1, -1, 3, -1, 5]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn masked_fill(&self, mask: &Tensor, value: impl Into<crate::Scalar>) -> Result<Tensor> {
        let mask = mask.broadcast_to(self.shape()).map_err(|e| e.of("masked_fill"))?;
        mask.logical_not().and_then(|kept| kept.where_scalar(self, value)).map_err(|e| e.of("masked_fill"))
    }

    /// Coordinates on a grid: result k is `[n0, n1, ..]` and varies along dimension k, with the elements of the vector k. Views.
    /// Errors: `Shape` unless all are vectors; `Attr` for an empty list.
    pub fn meshgrid(vectors: &[&Tensor]) -> Result<Vec<Tensor>> {
        if vectors.is_empty() {
            return Err(Error::attr("meshgrid", "the list is empty, expected at least one vector"));
        }
        if vectors.iter().any(|v| v.rank() != 1) {
            return Err(Error::shape("meshgrid", format!("got {}, expected vectors", describe(vectors))));
        }
        let shape = Shape::from(vectors.iter().map(|v| v.numel()).collect::<Dims>());
        let along = |(k, v): (usize, &&Tensor)| {
            let mut dims = vec![1; vectors.len()];
            dims[k] = v.numel();
            v.reshape(dims)?.broadcast_to(&shape)
        };
        vectors.iter().enumerate().map(along).collect()
    }

    /// `[.., classes]` in i64: 1 at the position that the integer names, 0 elsewhere. Errors: `Index` for a class out of range;
    /// `Dtype`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let classes = Tensor::from_vec(vec![2i64, 0], 2, device)?;
    /// assert_eq!(classes.one_hot(3)?.to_vec::<i64>()?, [0, 0, 1, 1, 0, 0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn one_hot(&self, classes: usize) -> Result<Tensor> {
        let op = "one_hot";
        if !self.dtype().is_int() {
            return Err(Error::dtype(op, format!("{} was given, expected integers", describe(&[self]))));
        }
        let mut dims = Dims::from_slice(self.dims());
        dims.push(classes);
        let zeros = Tensor::zeros(Shape::from(dims), DType::I64, self.device());
        let zeros = zeros.map_err(|e| self.too_large(op, e, format!("{classes} classes for")))?;
        let at = self.unsqueeze(-1)?;
        zeros.scatter(-1, &at, &Tensor::ones(at.shape(), DType::I64, self.device())?).map_err(|e| e.of(op))
    }

    /// Differences of neighbours along `dim`, one fewer than there are elements. Errors: `Attr`; `Shape` for a scalar.
    pub fn diff(&self, dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let d = self.shape().dim_for("diff", dim)?;
        if self.rank() == 0 {
            return Err(Error::shape("diff", format!("{} has no dimensions", describe(&[self]))));
        }
        let n = self.dims()[d].saturating_sub(1);
        let d = d as isize;
        self.narrow(d, self.dims()[d as usize] - n, n)?.sub(&self.narrow(d, 0, n)?)
    }

    /// Dimensions of this tensor, resolved. Errors: `Attr` for one out of range or named twice.
    fn distinct_axes(&self, op: &'static str, dims: &[isize]) -> Result<Dims> {
        let axes: Dims = dims.iter().map(|&d| self.shape().dim_for(op, d)).collect::<Result<_>>()?;
        if self.rank() == 0 {
            return Ok(Dims::new());
        }
        match (1..axes.len()).find(|&i| axes[..i].contains(&axes[i])) {
            Some(i) => Err(Error::attr(op, format!("dimension {} is named twice in {dims:?}", dims[i]))),
            None => Ok(axes),
        }
    }
}

/// The contiguous tensor of which these are the slices along a dimension `dim`, if they lie in memory as its slices do.
fn joined(slices: &[&Tensor], dim: usize) -> Option<Tensor> {
    let (first, others) = slices.split_first()?;
    let is_one = others.iter().all(|slice| slice.shares_memory(first) && slice.dtype() == first.dtype());
    let layouts: Vec<&Layout> = slices.iter().map(|slice| slice.layout()).collect();
    let layout = Layout::joined(&layouts, dim).filter(|layout| is_one && layout.is_contiguous())?;
    Some(first.with_layout(layout))
}
