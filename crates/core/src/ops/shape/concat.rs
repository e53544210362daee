//! Joining tensors.

use crate::check::{check_same, describe};
use crate::tape::{Gradients, record, report};
use crate::{Dims, Error, Layout, Position, Result, Shape, Tensor};

/// The largest number of pieces of a split: each is a tensor on the host.
const PIECES: usize = 1 << 22;

/// # Joining and splitting
impl Tensor {
    /// Joins tensors along an existing dimension. Parts whose channels are last in memory make a result whose channels are. Errors: `Attr` for an empty list, `Shape` if other dimensions differ.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(2, device)?;
    /// assert_eq!(Tensor::concat(&[&x, &x], 0)?.to_vec::<i64>()?, [0, 1, 0, 1]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn concat(parts: &[&Tensor], dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let op = "concat";
        let first = *parts.first().ok_or_else(|| Error::attr(op, "the list is empty, expected at least one tensor"))?;
        check_same(op, parts)?;
        let d = first.shape().dim_for(op, dim)?;
        let fits =
            |t: &&Tensor| t.rank() == first.rank() && (0..t.rank()).all(|k| k == d || t.dims()[k] == first.dims()[k]);
        if first.rank() == 0 || !parts.iter().all(fits) {
            let message = format!("all but dimension {dim} must agree, got {}", describe(parts));
            return Err(Error::shape(op, message));
        }
        let mut dims = Dims::from_slice(first.dims());
        let lengths: Dims = parts.iter().map(|t| t.dims()[d]).collect();
        let sum = lengths.iter().try_fold(0, |sum: usize, &length| sum.checked_add(length));
        dims[d] = sum.ok_or_else(|| {
            Error::shape(op, format!("more elements than can be counted along dimension {dim}: {}", describe(parts)))
        })?;
        let y = Tensor::allocate(op, &Shape::from(dims), first.dtype(), first.device())?;
        let are_last = parts.iter().filter(|part| part.numel() > 0).all(|part| part.is_channels_last());
        let is_last = are_last && first.rank() > 2 && y.numel() > 0;
        let y = if is_last { y.with_layout(Layout::channels_last(y.shape().clone())) } else { y };
        let mut start = 0;
        for part in parts {
            y.put(op, part, d, [start, 1])?;
            start += part.dims()[d];
        }
        report(op, parts, &[&y], || [("dim", d.into())]);
        record(op, parts, y, move |t| {
            let mut start = 0;
            let mut gradients = Gradients::default();
            for (i, &length) in lengths.iter().enumerate() {
                gradients.push(t.want(i, || t.dy().narrow(d as isize, start, length))?);
                start += length;
            }
            Ok(gradients)
        })
    }

    /// Joins tensors of the same shape along a new dimension. Errors: `Shape` if the shapes differ; as [`concat`](Tensor::concat).
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(2, device)?;
    /// assert_eq!(Tensor::stack(&[&x, &x], 1)?.to_vec::<i64>()?, [0, 0, 1, 1]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stack(parts: &[&Tensor], dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        if parts.iter().any(|t| t.shape() != parts[0].shape()) {
            return Err(Error::shape("stack", format!("all must have one shape, got {}", describe(parts))));
        }
        let unsqueezed: Vec<Tensor> = parts.iter().map(|t| t.unsqueeze(dim)).collect::<Result<_>>()?;
        let at = if dim < 0 { dim + parts.first().map_or(0, |t| t.rank() as isize) + 1 } else { dim };
        Tensor::concat(&unsqueezed.iter().collect::<Vec<_>>(), at)
    }

    /// Splits one dimension into pieces of `size`; the last piece may be smaller. Views. Errors: `Attr` for a dimension out of
    /// range, a size of 0, or a size that gives more than 2^22 pieces.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let parts = Tensor::arange(5, device)?.split(2, 0)?;
    /// assert_eq!(parts.iter().map(Tensor::numel).collect::<Vec<_>>(), [2, 2, 1]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn split(&self, size: usize, dim: impl Into<Position>) -> Result<Vec<Tensor>> {
        let Position(dim) = dim.into();
        let d = self.shape().dim_for("split", dim)?;
        if size == 0 || self.rank() == 0 {
            return Err(Error::attr("split", format!("{} cannot be split into pieces of {size}", self.shape())));
        }
        let extent = self.dims()[d];
        let pieces = extent.div_ceil(size);
        if pieces > PIECES {
            let message = format!("{} in pieces of {size} are {pieces} along dimension {dim}", self.shape());
            return Err(Error::attr("split", format!("{message}, at most {PIECES} are allowed")));
        }
        let starts = (0..extent).step_by(size);
        let parts = starts.map(|start| self.narrow(dim, start, size.min(extent - start))).collect::<Result<_>>()?;
        Ok(self.split_along("split", d, parts))
    }

    /// Splits one dimension into pieces of these sizes, one after the other; a size may be 0. Views. Errors: `Attr` for a dimension out
    /// of range; `Shape` for a scalar, or sizes that do not add up to the extent.
    pub fn split_with_sizes(&self, sizes: &[usize], dim: impl Into<Position>) -> Result<Vec<Tensor>> {
        let Position(dim) = dim.into();
        let op = "split_with_sizes";
        let d = self.shape().dim_for(op, dim)?;
        let sum = sizes.iter().try_fold(0, |sum: usize, &size| sum.checked_add(size));
        if self.rank() == 0 || sum != Some(self.dims()[d]) {
            let message = format!("{} cannot be split into pieces of {sizes:?} along dimension {dim}", self.shape());
            return Err(Error::shape(op, message));
        }
        let mut start = 0;
        let piece = |&size: &usize| {
            start += size;
            self.narrow(dim, start - size, size)
        };
        Ok(self.split_along(op, d, sizes.iter().map(piece).collect::<Result<_>>()?))
    }

    /// Reports the parts of dimension `d`.
    fn split_along(&self, op: &'static str, d: usize, parts: Vec<Tensor>) -> Vec<Tensor> {
        report(op, &[self], &parts.iter().collect::<Vec<_>>(), || [("dim", d.into())]);
        parts
    }

    /// Splits one dimension into `count` pieces of equal size; if there is a rest, the first ones are larger by 1. Pieces are empty if
    /// there are more than elements. Views. Errors: `Attr` for a dimension out of range, a scalar, or a count of 0 or above 2^22.
    pub fn tensor_split(&self, count: usize, dim: impl Into<Position>) -> Result<Vec<Tensor>> {
        let Position(dim) = dim.into();
        let op = "tensor_split";
        let d = self.shape().dim_for(op, dim)?;
        if !(1..=PIECES).contains(&count) || self.rank() == 0 {
            let message = format!("{} cannot be split into {count} pieces, 1 to {PIECES} are allowed", self.shape());
            return Err(Error::attr(op, message));
        }
        let (size, rest) = (self.dims()[d] / count, self.dims()[d] % count);
        let sizes: Vec<usize> = (0..count).map(|k| size + (k < rest) as usize).collect();
        self.split_with_sizes(&sizes, dim)
    }
}
