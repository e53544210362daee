//! Running sums and products.

use super::gradients;
use crate::backend::{Kernel, Scan};
use crate::tape::record;
use crate::tensor::{Attributes, describe, run};
use crate::{DType, Error, Result, Tensor, autocast};

/// From which end a scan starts.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

impl Tensor {
    /// The running sum along `dim`. Integers sum to i64. Errors: `Attr` for a dimension out of range, `Dtype` for bool.
    pub fn cumsum(&self, dim: isize) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.cumsum(dim);
        }
        self.running_sum(dim, Direction::Forward)
    }

    fn running_sum(&self, dim: isize, direction: Direction) -> Result<Tensor> {
        let op = "cumsum";
        if self.dtype() == DType::Bool {
            return Err(Error::dtype(op, format!("{} was given, expected numbers", describe(&[self]))));
        }
        let d = self.shape().dim(op, dim)?;
        if self.rank() == 0 {
            return Ok(self.clone());
        }
        let last = self.rank() - 1;
        let view = self.with_layout(self.layout().transpose(d, last));
        let dtype = if self.dtype().is_float() { self.dtype() } else { DType::I64 };
        let y = Tensor::empty(op, view.shape(), dtype, self.device())?;
        let ints = [(direction == Direction::Backward) as i64, 0];
        if y.numel() > 0 {
            run(op, Kernel::Scan(Scan::Sum), &[&view], &[&y], Attributes::ints(&ints))?;
        }
        let y = y.with_layout(y.layout().transpose(d, last));
        let back = if direction == Direction::Forward { Direction::Backward } else { Direction::Forward };
        record(op, &[self], y, move |t| gradients![Some(t.dy().running_sum(dim, back)?)])
    }

    /// For each element of `[rows, K]` the product of those before it in its row (or after it); outside of the tape.
    pub(super) fn running_product(&self, direction: Direction) -> Result<Tensor> {
        let y = Tensor::empty("prod", self.shape(), self.dtype(), self.device())?;
        let ints = [(direction == Direction::Backward) as i64, 1];
        if y.numel() > 0 {
            run("prod", Kernel::Scan(Scan::Prod), &[self], &[&y], Attributes::ints(&ints))?;
        }
        Ok(y)
    }
}
