//! Sorting.

use crate::backend::Kernel;
use crate::tape::report;
use crate::tensor::{Attributes, run};
use crate::{DType, Error, Position, Result, Tensor};

/// The order of a sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Smallest first; NaN last.
    Ascending,
    /// Largest first; NaN first.
    Descending,
}

/// # Sorting
impl Tensor {
    /// The values sorted along `dim`, and their original positions (i64). Stable; NaN is the largest. The gradient goes to these
    /// positions. All dtypes; true is larger than false. Errors: `Attr` for a dimension out of range.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # use isograd_core::ops::Order;
    /// # fn example(device: &Device) -> Result<()> {
    /// let (values, positions) = Tensor::from_vec(vec![3i64, 1, 2], 3, device)?.sort(0, Order::Ascending)?;
    /// assert_eq!((values.to_vec::<i64>()?, positions.to_vec::<i64>()?), (vec![1, 2, 3], vec![1, 2, 0]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn sort(&self, dim: impl Into<Position>, order: Order) -> Result<(Tensor, Tensor)> {
        let Position(dim) = dim.into();
        let index = self.argsort(dim, order)?;
        if self.rank() == 0 {
            return Ok((self.clone(), index));
        }
        let values = self.gather_distinct(dim, &index)?;
        self.report_sorted("sort", &[&values, &index], dim, order);
        Ok((values, index))
    }

    /// The positions (i64) that sort the values along `dim`. Errors: as [`sort`](Tensor::sort).
    pub fn argsort(&self, dim: impl Into<Position>, order: Order) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let op = "sort";
        let d = self.shape().dim_for(op, dim)?;
        if self.rank() == 0 {
            return Tensor::zeros((), DType::I64, self.device());
        }
        let last = self.rank() - 1;
        let view = self.with_layout(self.layout().transpose(d, last));
        let values = Tensor::allocate(op, view.shape(), self.dtype(), self.device())?;
        let index = Tensor::allocate(op, view.shape(), DType::I64, self.device())?;
        if values.numel() > 0 {
            let ints = [(order == Order::Descending) as i64];
            run(op, Kernel::Sort, &[&view], &[&values, &index], Attributes::ints(&ints))?;
        }
        let index = index.with_layout(index.layout().transpose(d, last));
        self.report_sorted("argsort", &[&index], dim, order);
        Ok(index)
    }

    fn report_sorted(&self, op: &'static str, outputs: &[&Tensor], dim: isize, order: Order) {
        report(op, &[self], outputs, || {
            let d = dim.rem_euclid(self.rank() as isize).unsigned_abs();
            [("dim", d.into()), ("descends", (order == Order::Descending).into())]
        });
    }

    /// The first `k` of the sorted values along `dim`, and their original positions (i64). Of equal values, the lower position is
    /// first. Errors: `Attr` if `k` is larger than the extent; otherwise as [`sort`](Tensor::sort).
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # use isograd_core::ops::Order;
    /// # fn example(device: &Device) -> Result<()> {
    /// let (values, positions) = Tensor::from_vec(vec![3i64, 1, 2], 3, device)?.topk(2, 0, Order::Descending)?;
    /// assert_eq!((values.to_vec::<i64>()?, positions.to_vec::<i64>()?), (vec![3, 2], vec![0, 2]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn topk(&self, k: usize, dim: impl Into<Position>, order: Order) -> Result<(Tensor, Tensor)> {
        let Position(dim) = dim.into();
        let d = self.shape().dim_for("topk", dim)?;
        let extent = self.dims().get(d).copied().unwrap_or(1);
        if k > extent {
            let message = format!("k is {k}, but dimension {dim} of {} has {extent} elements", self.shape());
            return Err(Error::attr("topk", message));
        }
        let index = self.argsort(dim, order)?;
        if self.rank() == 0 {
            return Ok((self.clone(), index));
        }
        let index = index.narrow(dim, 0, k)?;
        let values = self.gather_distinct(dim, &index)?;
        self.report_sorted("topk", &[&values, &index], dim, order);
        Ok((values, index))
    }
}
