//! One number from all elements of many tensors, for clipping by norm and loss scaling.

use crate::check::{check_device, check_float};
use crate::fused::{Fused, has_kernel, has_kernel_for, run_fused};
use crate::operands::{List, Output};
use crate::{DType, Error, Result, Shape, Tensor};

/// A reduction over many tensors. As a kernel, its inputs have the same dtype and are not empty. The output is one number, in the
/// accumulation dtype or f64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Total {
    /// The square root of the sum of squares.
    Norm,
    /// The sum of absolute values.
    AbsSum,
    /// The largest absolute value; NaN wins.
    AbsMax,
    /// 1 if an element is NaN or infinite, else 0.
    NotFinite,
}

impl Fused for Total {
    type Inputs<T> = List<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "total"
    }

    fn composite(&self, inputs: List<&Tensor>, _before: Output<&Tensor>) -> Result<Output<Option<Tensor>>> {
        let wide = inputs.iter().any(|t| t.dtype() == DType::F64);
        let dtype = if wide { DType::F64 } else { DType::F32 };
        Ok(Output { y: Some(composite(*self, &inputs, dtype)?) })
    }
}

/// The reduction `kind` of all elements of one or more float tensors: rank 0, f64 if a tensor is f64, else f32. Outside of the
/// tape. Errors: `Dtype`, `Device`; `Value` without tensors.
pub fn total(kind: Total, tensors: &[&Tensor]) -> Result<Tensor> {
    total_for("total", kind, tensors)
}

/// [`total`], with errors of `op`.
pub(crate) fn total_for(op: &'static str, kind: Total, tensors: &[&Tensor]) -> Result<Tensor> {
    tensors.iter().try_for_each(|t| check_float(op, t))?;
    check_device(op, tensors)?;
    let tensors: Vec<Tensor> = tensors.iter().map(|t| t.detach()).collect();
    let Some(first) = tensors.first() else { return Err(Error::value(op, "no tensors were given")) };
    let dtypes = [DType::F64, DType::F32, DType::F16, DType::BF16];
    let groups = dtypes.map(|dtype| tensors.iter().filter(|t| t.dtype() == dtype && t.numel() > 0).collect::<Vec<_>>());
    let dtype = if tensors.iter().any(|t| t.dtype() == DType::F64) { DType::F64 } else { DType::F32 };
    let mut totals = Vec::new();
    for group in groups.into_iter().filter(|group| !group.is_empty()) {
        match has_kernel::<Total>(group[0]) && has_kernel_for::<Total>(first, dtype) {
            true => totals.push(fused(op, kind, &group, dtype)?),
            false => totals.push(composite(kind, &group, dtype)?),
        }
    }
    match &totals[..] {
        [] => Tensor::zeros((), dtype, first.device()),
        [one] => Ok(one.clone()),
        several => join(kind, several),
    }
}

fn fused(op: &'static str, kind: Total, tensors: &[&Tensor], dtype: DType) -> Result<Tensor> {
    let dense = |t: &&Tensor| if t.layout().is_dense() { Ok((*t).clone()) } else { t.contiguous() };
    let tensors: Vec<Tensor> = tensors.iter().map(dense).collect::<Result<_>>()?;
    let y = Tensor::allocate(op, &Shape::from(()), dtype, tensors[0].device())?;
    run_fused(op, &kind, tensors.iter().collect::<List<_>>(), Output { y: &y })?;
    Ok(y)
}

fn composite(kind: Total, tensors: &[&Tensor], dtype: DType) -> Result<Tensor> {
    let one = |t: &&Tensor| {
        let t = t.cast(dtype)?;
        match kind {
            Total::Norm => t.l2_norm(..),
            Total::AbsSum => t.abs()?.sum(..),
            Total::AbsMax => t.abs()?.amax(..),
            Total::NotFinite => t.not_finite()?.sum(..)?.ne_scalar(0)?.cast(dtype),
        }
    };
    join(kind, &tensors.iter().map(one).collect::<Result<Vec<_>>>()?)
}

/// The reduction of partial results.
fn join(kind: Total, totals: &[Tensor]) -> Result<Tensor> {
    let all = Tensor::stack(&totals.iter().collect::<Vec<_>>(), 0)?;
    match kind {
        Total::Norm => all.l2_norm(..),
        Total::AbsSum => all.sum(..),
        Total::AbsMax | Total::NotFinite => all.amax(..),
    }
}
