//! Joining tensors.

use crate::backend::Kernel;
use crate::tape::{Gradients, record, report};
use crate::tensor::{Attributes, check_same, describe, run};
use crate::{Dims, Error, Result, Shape, Tensor};

/// The largest number of pieces of a split: each is a tensor on the host.
const PIECES: usize = 1 << 22;

impl Tensor {
    /// Joins tensors along an existing dimension. Errors: `Attr` for an empty list, `Shape` if other dimensions differ.
    pub fn concat(parts: &[&Tensor], dim: isize) -> Result<Tensor> {
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
        let mut start = 0;
        for part in parts {
            let length = part.dims()[d];
            if part.numel() > 0 {
                let place = y.with_layout(y.layout().narrow(d, start, length, 1));
                run(op, Kernel::Copy, &[part], &[&place], Attributes::default())?;
            }
            start += length;
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
    pub fn stack(parts: &[&Tensor], dim: isize) -> Result<Tensor> {
        if parts.iter().any(|t| t.shape() != parts[0].shape()) {
            return Err(Error::shape("stack", format!("all must have one shape, got {}", describe(parts))));
        }
        let unsqueezed: Vec<Tensor> = parts.iter().map(|t| t.unsqueeze(dim)).collect::<Result<_>>()?;
        let at = if dim < 0 { dim + parts.first().map_or(0, |t| t.rank() as isize) + 1 } else { dim };
        Tensor::concat(&unsqueezed.iter().collect::<Vec<_>>(), at)
    }

    /// Splits one dimension into pieces of `size`; the last piece may be smaller. Views. Errors: `Attr` for a dimension out of
    /// range, a size of 0, or a size that gives more than 2^22 pieces.
    pub fn split(&self, size: usize, dim: isize) -> Result<Vec<Tensor>> {
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
        (0..extent).step_by(size).map(|start| self.narrow(dim, start, size.min(extent - start))).collect()
    }
}
