//! Elements by mask, by position in memory order, or by an index that broadcasts.

use crate::check::{check_index, check_same, describe};
use crate::ops::indexing::gather::{addends, along, at_least_1d_on_tape};
use crate::ops::{Index, Put, common_shape, named, parts};
use crate::{Dims, Error, Position, Result, Scalar, Shape, Tensor};

/// # Selection by masks
impl Tensor {
    /// The elements where the bool `mask` is true, in row-major order: a vector. Both broadcast. Reads back their number. Errors: `Shape`,
    /// `Dtype`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(6, device)?.reshape((2, 3))?;
    /// assert_eq!(x.masked_select(&x.gt_scalar(3)?)?.to_vec::<i64>()?, [4, 5]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        let op = "masked_select";
        crate::ops::elementwise::compare::check_bool(op, mask)?;
        let shape = common_shape(op, &[self, mask])?;
        let (x, mask) = (self.broadcast_to(&shape)?, mask.broadcast_to(&shape)?);
        let (x, mask) = if shape.rank() == 0 { (x.reshape(1)?, mask.reshape(1)?) } else { (x, mask) };
        parts(op, || x.index(&[Index::Tensor(mask)]))
    }

    /// This tensor with the first elements of `source`, in row-major order, where the bool `mask`, which broadcasts to it, is true. Reads
    /// back their number. Errors: `Shape` if the source has fewer elements, or for a mask that does not fit; `Dtype`.
    pub fn masked_scatter(&self, mask: &Tensor, source: &Tensor) -> Result<Tensor> {
        let op = "masked_scatter";
        crate::ops::elementwise::compare::check_bool(op, mask)?;
        check_same(op, &[self, source])?;
        named(op, &[self, mask, source], || {
            let mask = mask.broadcast_to(self.shape())?;
            let count = mask.sum(..)?.to_vec::<i64>()?[0] as usize;
            if count > source.numel() {
                let message = format!("the mask has {count} true elements, the source {}", source.numel());
                return Err(Error::shape(op, message));
            }
            let values = source.reshape(source.numel())?.narrow(0, 0, count)?;
            let (x, mask) = if self.rank() == 0 { (self.reshape(1)?, mask.reshape(1)?) } else { (self.clone(), mask) };
            x.index_put(&[Index::Tensor(mask)], &values, Put::Assign)?.reshape(self.shape())
        })
    }

    /// The elements at positions in row-major order, in the index's shape. Negative positions count from the end. Errors: `Dtype`, `Index`.
    pub fn take(&self, index: &Tensor) -> Result<Tensor> {
        let op = "take";
        check_index(op, index)?;
        parts(op, || self.reshape(self.numel())?.index(&[Index::Tensor(index.clone())]))
    }

    /// [`gather`](Tensor::gather) along `dim`, where this tensor and the index broadcast in the other dimensions. Errors: as there.
    pub fn take_along_dim(&self, index: &Tensor, dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let op = "take_along_dim";
        if index.rank() != self.rank() {
            let message = format!("self and the index have different ranks: {}", describe(&[self, index]));
            return Err(Error::shape(op, message));
        }
        let d = self.shape().dim_for(op, dim)?;
        if self.rank() == 0 {
            return parts(op, || self.gather(0, index));
        }
        named(op, &[self, index], || {
            let others = |t: &Tensor| t.narrow(d as isize, 0, t.dims()[d].min(1));
            let (x, i) = (others(self)?, others(index)?);
            let mut shape = Dims::from_slice(&x.shape().broadcast(i.shape())?);
            let mut expanded = |t: &Tensor| {
                shape[d] = t.dims()[d];
                t.broadcast_to(Shape::from(shape.clone()))
            };
            expanded(self)?.gather(dim, &expanded(index)?)
        })
    }

    /// This tensor with `value` in the slices along `dim` that the index `[L]` names. Errors: as
    /// [`index_select`](Tensor::index_select).
    pub fn index_fill(&self, dim: impl Into<Position>, index: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let op = "index_fill";
        let d = self.shape().dim_for(op, dim)?;
        let at = along(op, self, d, index)?;
        parts(op, || {
            let values = Tensor::full(at.shape(), value, self.dtype(), self.device())?;
            at_least_1d_on_tape(self)?.scatter(d as isize, &at, &values)?.reshape(self.shape())
        })
    }

    /// This tensor with slices of `src` along `dim` in the places that the index `[L]` names. Of several slices for one place the last is
    /// written. Errors: as [`index_add`](Tensor::index_add).
    pub fn index_copy(&self, dim: impl Into<Position>, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let op = "index_copy";
        let (d, at, src) = addends(op, self, dim, index, src, Scalar::Int(1))?;
        parts(op, || at_least_1d_on_tape(self)?.scatter(d, &at, &src)?.reshape(self.shape()))
    }
}
