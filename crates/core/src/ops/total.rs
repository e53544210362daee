//! One number of all elements of many tensors, as clipping by norm and loss scaling need it.

use super::fused::has_kernel;
use crate::backend::{Fused, Kernel, Total};
use crate::tensor::{Attributes, check_device, check_float, run};
use crate::{DType, Error, Result, Shape, Tensor};

/// What `kind` says of all elements of one or more float tensors: rank 0, f64 if one of them is, else f32. Outside of the
/// tape. Errors: `Dtype`, `Device`; `Value` without tensors.
pub fn total(kind: Total, tensors: &[&Tensor]) -> Result<Tensor> {
    total_for("total", kind, tensors)
}

/// [`total`], with errors of `op`.
pub(super) fn total_for(op: &'static str, kind: Total, tensors: &[&Tensor]) -> Result<Tensor> {
    tensors.iter().try_for_each(|t| check_float(op, t))?;
    check_device(op, tensors)?;
    let tensors: Vec<Tensor> = tensors.iter().map(|t| t.detach()).collect();
    let Some(first) = tensors.first() else { return Err(Error::value(op, "no tensors were given")) };
    let dtypes = [DType::F64, DType::F32, DType::F16, DType::BF16];
    let groups = dtypes.map(|dtype| tensors.iter().filter(|t| t.dtype() == dtype && t.numel() > 0).collect::<Vec<_>>());
    let dtype = if tensors.iter().any(|t| t.dtype() == DType::F64) { DType::F64 } else { DType::F32 };
    let mut totals = Vec::new();
    for group in groups.into_iter().filter(|group| !group.is_empty()) {
        let has_wide = first.device().backend().supports(Fused::Total(kind), dtype);
        match has_kernel(Fused::Total(kind), group[0]) && has_wide {
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
    let tensors: Vec<Tensor> = tensors.iter().map(|t| t.contiguous()).collect::<Result<_>>()?;
    let y = Tensor::allocate(op, &Shape::from(()), dtype, tensors[0].device())?;
    run(op, Kernel::Fused(Fused::Total(kind)), &tensors.iter().collect::<Vec<_>>(), &[&y], Attributes::default())?;
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

/// The total of totals.
fn join(kind: Total, totals: &[Tensor]) -> Result<Tensor> {
    let all = Tensor::stack(&totals.iter().collect::<Vec<_>>(), 0)?;
    match kind {
        Total::Norm => all.l2_norm(..),
        Total::AbsSum => all.sum(..),
        Total::AbsMax | Total::NotFinite => all.amax(..),
    }
}
