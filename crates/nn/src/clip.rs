//! Bounds for gradients.

use isograd_core::ops::update_;
use isograd_core::pointwise::Pointwise;
use isograd_core::{DType, Device, Error, Result, Tensor, no_grad};

/// Scales the gradients of `parameters` in place by `min(1, max_norm / (total + 1e-6))` and returns their total norm
/// before that, on the device. `norm_type` is 1, 2 or infinity. A NaN in the norm makes all gradients NaN. Errors: `Attr`
/// for another norm or a negative bound.
pub fn clip_grad_norm(parameters: &[Tensor], max_norm: f64, norm_type: f64) -> Result<Tensor> {
    no_grad(|| {
        let gradients: Vec<Tensor> = parameters.iter().filter_map(Tensor::grad).collect();
        let Some(first) = gradients.first().or(parameters.first()) else {
            return Tensor::scalar(0f32, &Device::best()?);
        };
        let total = total_norm(&gradients, norm_type, first.device(), scalar_dtype(first))?;
        let factor = clip_factor(&total, max_norm)?;
        for gradient in &gradients {
            update_("gradient_clip_norm", Pointwise::ScaleInPlace, &[gradient], &[&factor], &[])?;
        }
        Ok(total)
    })
}

/// Holds every element of the gradients of `parameters` between `-limit` and `limit`, in place; NaN stays. Errors: `Attr`
/// for a negative limit.
pub fn clip_grad_value(parameters: &[Tensor], limit: f64) -> Result<()> {
    let op = "gradient_clip_value";
    if limit.is_nan() || limit < 0.0 {
        return Err(Error::attr(op, format!("the limit is {limit}, expected at least 0")));
    }
    no_grad(|| {
        let gradients = parameters.iter().filter_map(Tensor::grad);
        gradients.into_iter().try_for_each(|g| update_(op, Pointwise::ClipValue, &[&g], &[], &[limit]))
    })
}

/// The dtype of a device scalar that goes with a tensor: f64 with f64, else f32.
pub(crate) fn scalar_dtype(t: &Tensor) -> DType {
    t.dtype().acc()
}

/// The norm of the tensors' norms.
pub(crate) fn total_norm(gradients: &[Tensor], norm_type: f64, device: &Device, dtype: DType) -> Result<Tensor> {
    let norm = |t: &Tensor| match norm_type {
        2.0 => t.l2_norm(..),
        1.0 => t.abs()?.sum(..),
        f64::INFINITY if t.numel() == 0 => Tensor::zeros((), t.dtype(), t.device()),
        f64::INFINITY => t.abs()?.amax(..),
        _ => Err(Error::attr("gradient_clip_norm", format!("norm_type is {norm_type}, expected 1, 2 or infinity"))),
    };
    let norms: Vec<Tensor> = gradients.iter().map(|g| norm(&g.cast(dtype)?)).collect::<Result<_>>()?;
    if norms.is_empty() {
        return Tensor::zeros((), dtype, device);
    }
    norm(&Tensor::stack(&norms.iter().collect::<Vec<_>>(), 0)?)
}

/// `min(1, max_norm / (total + 1e-6))`.
pub(crate) fn clip_factor(total: &Tensor, max_norm: f64) -> Result<Tensor> {
    if max_norm.is_nan() || max_norm < 0.0 {
        let message = format!("max_norm is {max_norm}, expected at least 0");
        return Err(Error::attr("gradient_clip_norm", message));
    }
    total.add_scalar(1e-6)?.rdiv_scalar(max_norm)?.clamp(None, Some(1.0.into()))
}
