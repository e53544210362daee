//! Keys and values in memory for many positions.

use crate::backend::Scatter;
use crate::check::describe;
use crate::ops::indexing::gather::scatter_;
use crate::{Error, Result, Tensor};

/// Writes `part`, `[B, H, T, D]`, to positions (`[B, T]`, i64 or i32) of `memory`, `[B, H, P, D]`, in one kernel. The positions of a batch are
/// distinct. Errors: `Shape`; `Dtype`; `Device`; `Index` for a position outside of `0..P`; `Value` for memory on the tape.
pub fn write_positions(op: &'static str, memory: &Tensor, positions: &Tensor, part: &Tensor) -> Result<()> {
    let &[b, _, t, _] = part.dims() else {
        return Err(Error::shape(op, format!("got {}, expected [B, H, T, D]", describe(&[part]))));
    };
    if positions.dims() != [b, t] {
        return Err(Error::shape(
            op,
            format!("positions and rows are {}, expected [B, T] and [B, H, T, D]", describe(&[positions, part])),
        ));
    }
    let index = positions.reshape((b, 1, t, 1))?.expand(part.shape())?;
    scatter_(op, Scatter::Distinct, memory, 2, &index, part)
}
