//! Checks of operands, and their words in errors, for ops of any crate.
//!
//! ```
//! use isograd_core::check::{check_float, check_same};
//! # use isograd_core::{Result, Tensor};
//! fn midpoint(a: &Tensor, b: &Tensor) -> Result<Tensor> {
//!     check_float("midpoint", a)?;
//!     check_same("midpoint", &[a, b])?;
//!     a.add(b)?.mul_scalar(0.5)
//! }
//! ```

use crate::{DType, Error, Result, Scalar, Tensor};

/// Checks that all operands, of which there is at least one, have the dtype and device of the first. Errors: `Dtype`, `Device`.
pub fn check_same(op: &'static str, operands: &[&Tensor]) -> Result<()> {
    if operands.iter().any(|t| t.dtype() != operands[0].dtype()) {
        let got = describe(operands);
        return Err(Error::dtype(op, format!("operands must have one dtype, got {got}; use `cast`")));
    }
    check_device(op, operands)
}

/// Checks that all operands, of which there is at least one, are on the device of the first. Errors: `Device`.
pub fn check_device(op: &'static str, operands: &[&Tensor]) -> Result<()> {
    if operands.iter().any(|t| t.device() != operands[0].device()) {
        return Err(Error::device(op, format!("operands must be on one device, got {}", describe(operands))));
    }
    Ok(())
}

/// Checks that the tensor is a float tensor. Errors: `Dtype`.
pub fn check_float(op: &'static str, t: &Tensor) -> Result<()> {
    if !t.dtype().is_float() {
        return Err(Error::dtype(op, format!("{} was given, expected a float dtype", describe(&[t]))));
    }
    Ok(())
}

/// Checks that the tensor can be an index: i64 or i32. Errors: `Dtype`.
pub fn check_index(op: &'static str, t: &Tensor) -> Result<()> {
    if !t.dtype().is_int() {
        return Err(Error::dtype(op, format!("the index is {}, expected i64 or i32", describe(&[t]))));
    }
    Ok(())
}

/// Checks that elements of `dtype` can hold this integer. Errors: `Attr`.
pub fn check_holds(op: &'static str, dtype: DType, int: i64) -> Result<()> {
    let range = dtype.integers();
    if !range.contains(&int) {
        let message = format!("{int} does not fit {dtype}, which holds {}..={}", range.start(), range.end());
        return Err(Error::attr(op, message));
    }
    Ok(())
}

/// A scalar as the attribute of a kernel of `dtype`: an integer or a float. Errors: `Dtype` for a float with integers.
pub fn scalar_for(op: &'static str, scalar: Scalar, dtype: DType) -> Result<(i64, f64)> {
    if dtype.is_float() { Ok((0, scalar.as_f64())) } else { Ok((scalar.as_i64().map_err(|e| e.of(op))?, 0.0)) }
}

/// [`scalar_for`] of a number that elements are compared with: a float is rounded to `dtype`.
pub(crate) fn bound_for(op: &'static str, scalar: Scalar, dtype: DType) -> Result<(i64, f64)> {
    scalar_for(op, scalar, dtype).map(|(int, float)| (int, dtype.rounded(float)))
}

/// `f32 [2, 3] on cpu, ...`: the operands, for errors.
pub fn describe(operands: &[&Tensor]) -> String {
    let one = |t: &&Tensor| format!("{} {} on {}", t.dtype(), t.shape(), t.device());
    operands.iter().map(one).collect::<Vec<_>>().join(", ")
}
