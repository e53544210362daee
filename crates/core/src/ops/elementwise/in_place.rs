//! Changes in place, outside of the tape. Each raises the version, by which the tape detects that a saved tensor changed. They fail
//! on tensors that require a gradient (unless within `no_grad`) and on tensors with several elements at one position.

use crate::backend::Kernel;
use crate::check::{check_float, check_same};
use crate::ops::{common_shape, run_expanded};
use crate::pointwise::{Domain, Pointwise};
use crate::tensor::{Attributes, run};
use crate::{DType, Error, Result, Scalar, Tensor};
use smallvec::SmallVec;

/// # Changes in place
impl Tensor {
    /// Sets every element to `value`. Errors: as [`Tensor::full`]; `Value` on the tape, or if several elements share a position.
    pub fn fill_(&self, value: impl Into<Scalar>) -> Result<()> {
        let op = "fill_";
        self.check_in_place(op)?;
        crate::ops::shape::factory::fill(op, self, value.into())?;
        self.touch();
        Ok(())
    }

    /// Copies `src`, which broadcasts to this shape and has this dtype. Errors: `Shape`, `Dtype`, `Device`; `Value` on the tape, if
    /// the tensors share memory, or if several elements of this tensor share a position.
    pub fn copy_(&self, src: &Tensor) -> Result<()> {
        let op = "copy_";
        self.check_in_place(op)?;
        check_same(op, &[self, src])?;
        check_fits(op, self, src)?;
        if self.shares_memory(src) {
            return Err(Error::value(op, "source and target share memory; copy the source first"));
        }
        if self.numel() > 0 {
            let src = src.with_layout(src.layout().expand(self.shape()));
            run(op, Kernel::Copy, &[&src], &[self], Attributes::default())?;
        }
        self.touch();
        Ok(())
    }

    /// Adds `x`, which broadcasts to this shape and has this float or integer dtype. Errors: as [`copy_`](Tensor::copy_).
    pub fn add_(&self, x: &Tensor) -> Result<()> {
        self.update_by("add_", Pointwise::Accumulate, x)
    }

    /// Multiplies by `x`, which broadcasts to this shape and has this float dtype. Errors: as [`copy_`](Tensor::copy_).
    pub fn mul_(&self, x: &Tensor) -> Result<()> {
        self.update_by("mul_", Pointwise::ScaleInPlace, x)
    }

    fn update_by(&self, op: &'static str, row: Pointwise, x: &Tensor) -> Result<()> {
        check_same(op, &[self, x])?;
        update_for(op, row, &[self], &[x], &[])
    }
}

fn check_fits(op: &'static str, target: &Tensor, src: &Tensor) -> Result<()> {
    // The common case of an optimizer's step.
    if src.rank() == 0 || src.shape() == target.shape() {
        return Ok(());
    }
    if common_shape(op, &[target, src])? != *target.shape() {
        return Err(Error::shape(op, format!("{} does not broadcast to {}", src.shape(), target.shape())));
    }
    Ok(())
}

/// Runs an `inout` row, such as an optimizer's step. `targets` are read and written in one pass; `inputs` broadcast to them.
/// Targets and inputs have float dtypes, which may differ. Rows that run on integers also accept one integer dtype. The step count
/// of [`Pointwise::AmpUpdateScale`] may be i32.
///
/// Errors: `Attr` if the number of operands differs from the row's; `Dtype`, `Shape`, `Device`; `Value` on the tape, if an operand
/// shares memory with a target, or if several elements of a target share a position.
pub fn update_(row: Pointwise, targets: &[&Tensor], inputs: &[&Tensor], floats: &[f64]) -> Result<()> {
    update_for(row.name(), row, targets, inputs, floats)
}

/// [`update_`], with errors of `op`.
pub(crate) fn update_for(
    op: &'static str,
    row: Pointwise,
    targets: &[&Tensor],
    inputs: &[&Tensor],
    floats: &[f64],
) -> Result<()> {
    check_update(op, row, targets, inputs, floats)?;
    if targets[0].numel() == 0 {
        return Ok(());
    }
    run_expanded(op, row, inputs, targets, Attributes::floats(floats))?;
    targets.iter().for_each(|t| t.touch());
    Ok(())
}

/// Checks that `targets` may be updated from `inputs` by this row.
pub(crate) fn check_update(
    op: &'static str,
    row: Pointwise,
    targets: &[&Tensor],
    inputs: &[&Tensor],
    floats: &[f64],
) -> Result<()> {
    targets.iter().try_for_each(|target| target.check_in_place(op))?;
    check_row(op, row, targets, inputs, floats)
}

/// Checks that the operands fit the row.
pub(crate) fn check_row(
    op: &'static str,
    row: Pointwise,
    targets: &[&Tensor],
    inputs: &[&Tensor],
    floats: &[f64],
) -> Result<()> {
    let counts = (row.outputs(), row.inputs() - row.outputs().min(row.inputs()), row.attributes());
    if !row.is_inout() || counts != (targets.len(), inputs.len(), floats.len()) {
        return Err(Error::attr(
            op,
            format!("`{}` updates {} tensors from {} and {}", row.name(), counts.0, counts.1, counts.2),
        ));
    }
    let first = targets[0];
    crate::check::check_device(op, &targets.iter().chain(inputs).copied().collect::<SmallVec<[_; 16]>>())?;
    check_dtypes(op, row, targets, inputs)?;
    for (i, target) in targets.iter().enumerate() {
        if target.shape() != first.shape() {
            return Err(Error::shape(op, format!("targets have shapes {} and {}", first.shape(), target.shape())));
        }
        if inputs.iter().chain(&targets[..i]).any(|x| x.shares_memory(target)) {
            return Err(Error::value(op, "an operand shares memory with what is changed; copy it first"));
        }
    }
    inputs.iter().try_for_each(|x| check_fits(op, first, x))
}

/// Checks that the row runs on operands of these dtypes.
fn check_dtypes(op: &'static str, row: Pointwise, targets: &[&Tensor], inputs: &[&Tensor]) -> Result<()> {
    let operands: SmallVec<[&Tensor; 16]> = targets.iter().chain(inputs).copied().collect();
    if row.domain() != Domain::Real && targets[0].dtype().is_number() && !targets[0].dtype().is_float() {
        return check_same(op, &operands);
    }
    // The steps since the last change of the scale are counted in i32, as in PyTorch.
    let is_count = |i: usize, t: &Tensor| row == Pointwise::AmpUpdateScale && i == 1 && t.dtype() == DType::I32;
    let mut numbers = operands.iter().enumerate().filter(|(i, t)| !is_count(*i, t));
    numbers.try_for_each(|(_, t)| check_float(op, t))
}
