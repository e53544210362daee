//! Sequences of different lengths, padded to a common number of steps.

use super::TimeOrder;
use crate::check::{check_device, check_index};
use crate::ops::parts;
use crate::{DType, Error, Result, Tensor};

/// The places of the elements of sequences, in the order in which a recurrent op visits them. Backward in time, each sequence begins
/// with its own last element, so that padding is always at the end.
pub(super) struct Lengths {
    op: &'static str,
    /// Bool `[T, B, 1]`: true for elements, false for padding.
    pub is_element: Tensor,
    /// i64 `[T, B, 1]`, for the reverse order: for each visited step the place of its element in time, and back.
    reversed: Option<Tensor>,
    /// i64 `[1, B, 1]`: the step of the last visited element.
    last: Tensor,
}

impl Lengths {
    /// For `lengths: [B]` of the sequences of x, `[T, B, ..]`. Errors: `Dtype`; `Device`; `Shape`.
    pub fn new(op: &'static str, x: &Tensor, lengths: &Tensor, order: TimeOrder) -> Result<Lengths> {
        check_index(op, lengths)?;
        check_device(op, &[x, lengths])?;
        let (steps, rows) = (x.dims()[0], x.dims()[1]);
        if lengths.dims() != [rows] {
            return Err(Error::shape(
                op,
                format!("lengths is {}, expected [{rows}] for x {}", lengths.shape(), x.shape()),
            ));
        }
        let last = lengths.detach().cast(DType::I64)?.reshape((1, rows, 1))?.add_scalar(-1)?;
        let time = Tensor::arange(steps, x.device())?.reshape((steps, 1, 1))?;
        let is_element = time.le(&last)?;
        let reversed = match order {
            TimeOrder::Forward => None,
            TimeOrder::Reverse => Some(is_element.where_cond(&last.sub(&time)?, &time)?),
        };
        Ok(Lengths { op, is_element, reversed, last })
    }

    /// The elements of a sequence in the order of visits, with zeros as padding; also the inverse, of results.
    pub fn ordered(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.is_element.where_scalar(x, 0.0)?;
        match &self.reversed {
            Some(places) => self.gathered(&x, &places.broadcast_to(x.shape())?),
            None => Ok(x),
        }
    }

    /// The result of the last visited element of each sequence. Errors: `Index` for a length outside of `1..=T`.
    pub fn last(&self, states: &Tensor) -> Result<Tensor> {
        let (rows, size) = (states.dims()[1], states.dims()[2]);
        self.gathered(states, &self.last.broadcast_to((1, rows, size))?)?.squeeze(0)
    }

    fn gathered(&self, x: &Tensor, steps: &Tensor) -> Result<Tensor> {
        parts(self.op, || x.gather_distinct(0, steps))
    }
}
