//! Running sums and products.

use super::gradients;
use crate::backend::{Kernel, Scan};
use crate::tape::record;
use crate::tensor::{Attributes, describe, run};
use crate::{DType, Dims, Error, Result, Shape, Tensor, autocast};
use std::cmp::Reverse;

/// The end from which a scan starts.
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
        let d = self.shape().dim_for(op, dim)?;
        if self.rank() == 0 {
            return Ok(self.clone());
        }
        let dtype = if self.dtype().is_float() { self.dtype() } else { DType::I64 };
        let y = self.scan(op, Scan::Sum, d, dtype, [(direction == Direction::Backward) as i64, 0])?;
        let back = if direction == Direction::Forward { Direction::Backward } else { Direction::Forward };
        record(op, &[self], y, move |t| gradients![Some(t.dy().running_sum(dim, back)?)])
    }

    /// For each element the product of the elements before it (or after it) along dimension `d`; outside of the tape.
    pub(super) fn running_product(&self, d: usize, direction: Direction) -> Result<Tensor> {
        self.scan("prod", Scan::Prod, d, self.dtype(), [(direction == Direction::Backward) as i64, 1])
    }

    /// Scans along dimension `d`. The dimensions of the result are in the same memory order as in `self`.
    fn scan(&self, op: &'static str, kind: Scan, d: usize, dtype: DType, ints: [i64; 2]) -> Result<Tensor> {
        let mut order: Dims = (0..self.rank()).collect();
        // Expanded dimensions, of stride 0, come first.
        order.sort_by_key(|&d| Reverse(self.layout().strides()[d].wrapping_sub(1)));
        let mut inverse = order.clone();
        order.iter().enumerate().for_each(|(k, &d)| inverse[d] = k);
        let shape = Shape::from(order.iter().map(|&d| self.dims()[d]).collect::<Dims>());
        let y = Tensor::allocate(op, &shape, dtype, self.device())?;
        let y = y.with_layout(y.layout().permute(&inverse));
        order.retain(|k| *k != d);
        order.push(d);
        let [from, to] = [self, &y].map(|t| t.with_layout(t.layout().permute(&order)));
        if y.numel() > 0 {
            run(op, Kernel::Scan(kind), &[&from], &[&to], Attributes::ints(&ints))?;
        }
        Ok(y)
    }
}
