//! Softmax and its logarithm.

use super::{Axes, in_acc};
use crate::tensor::check_float;
use crate::{Result, Tensor};

impl Tensor {
    /// `e^x / sum(e^x)` along `dim`, without overflow. Float dtypes. NaN where the slice has NaN or +inf, or is all -inf.
    /// Errors: `Attr` for a dimension out of range.
    pub fn softmax(&self, dim: isize) -> Result<Tensor> {
        check_float("softmax", self)?;
        self.shape().dim("softmax", dim)?;
        in_acc(self, |x| {
            let e = shifted(x, dim)?.exp()?;
            e.div(&e.sum_keepdim(dim)?)
        })
    }

    /// `ln softmax(x)` along `dim`. Float dtypes. Errors: `Attr`.
    pub fn log_softmax(&self, dim: isize) -> Result<Tensor> {
        check_float("log_softmax", self)?;
        self.shape().dim("log_softmax", dim)?;
        in_acc(self, |x| {
            let z = shifted(x, dim)?;
            z.sub(&z.exp()?.sum_keepdim(dim)?.log()?)
        })
    }

    /// `ln sum(e^x)` over `axes`, without overflow; -inf of nothing. Float dtypes. Errors: `Attr`.
    pub fn logsumexp(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        let op = "logsumexp";
        check_float(op, self)?;
        let axes = axes.into();
        in_acc(self, |x| {
            if x.numel() == 0 {
                return x.exp()?.sum(axes)?.log();
            }
            let max = x.detach().amax_keepdim(axes.clone())?;
            // An infinite maximum would make infinity minus infinity.
            let max = max.not_finite()?.logical_not()?.where_scalar(&max, 0.0)?;
            let sum = x.sub(&max)?.exp()?.sum(axes)?;
            sum.log()?.add(&max.reshape(sum.shape())?)
        })
        .map_err(|e| e.of(op))
    }
}

/// `x - max(x)`; the maximum is a constant, since the result does not depend on it.
fn shifted(x: &Tensor, dim: isize) -> Result<Tensor> {
    if x.numel() == 0 { Ok(x.clone()) } else { x.sub(&x.detach().amax_keepdim(dim)?) }
}
