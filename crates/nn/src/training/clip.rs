//! Clipping of gradients.

use crate::module::check_distinct;
use crate::number::{Checks, Range};
use isograd_core::ops::Total;
use isograd_core::ops::{Update, total, update_each_};
use isograd_core::pointwise::Pointwise;
use isograd_core::{DType, Device, Error, Result, Tensor, no_grad};

pub(crate) const CLIP_NORM: &str = "clip_grad_norm";

/// Scales the gradients of `parameters` by `min(1, max_norm / (total + 1e-6))`, and returns their total norm before the scaling: a
/// device scalar, f64 if a gradient is f64, else f32. Nothing is read back. `norm_type` is the order, above 0 or infinity. A NaN norm makes
/// all gradients NaN; an infinite norm makes finite elements 0 and infinite ones NaN. The norm of no gradients is 0. Errors: `Attr` for
/// another norm or a negative bound; `Value` if a parameter is listed twice. Pascanu et al. 2013, ICML.
pub fn clip_grad_norm(parameters: &[Tensor], max_norm: f64, norm_type: f64) -> Result<Tensor> {
    no_grad(|| {
        let gradients = gradients_of(parameters);
        let total = norm_of(CLIP_NORM, parameters, norm_type)?;
        scale_gradients(&gradients, &clip_factor(&total, max_norm)?)?;
        Ok(total)
    })
}

/// [`clip_grad_norm`] that reads the norm back. If it is not finite, gradients stay unchanged and the error is `Value`.
pub fn clip_grad_norm_finite(parameters: &[Tensor], max_norm: f64, norm_type: f64) -> Result<Tensor> {
    let norm = norm_of(CLIP_NORM, parameters, norm_type)?.item::<f64>()?;
    if !norm.is_finite() {
        return Err(Error::value(
            CLIP_NORM,
            format!("the total norm of the gradients is {norm}, expected a finite one"),
        ));
    }
    clip_grad_norm(parameters, max_norm, norm_type)
}

/// The norm of all gradients of `parameters`, a device scalar. `norm_type` is the order, above 0 or infinity. Errors: `Attr` for another norm,
/// `Value` if a parameter is listed twice.
pub fn grad_norm(parameters: &[Tensor], norm_type: f64) -> Result<Tensor> {
    norm_of("grad_norm", parameters, norm_type)
}

fn norm_of(op: &'static str, parameters: &[Tensor], norm_type: f64) -> Result<Tensor> {
    check_distinct(op, parameters)?;
    let gradients = gradients_of(parameters);
    match (gradients.is_empty(), parameters.first()) {
        (false, _) => no_grad(|| total_norm(op, &gradients, norm_type)),
        (true, Some(first)) => Tensor::zeros((), first.dtype().acc(), first.device()),
        (true, None) => Tensor::scalar(0f32, &Device::best()?),
    }
}

/// Clips every element of the gradients of `parameters` to `-limit` .. `limit`, in place; NaN stays. Errors: `Attr` for a negative
/// limit, `Value` if a parameter is listed twice.
pub fn clip_grad_value(parameters: &[Tensor], limit: f64) -> Result<()> {
    let op = "clip_grad_value";
    check_bound(op, "limit", limit)?;
    check_distinct(op, parameters)?;
    no_grad(|| update_all(op, Pointwise::ClipValue, &gradients_of(parameters), &[], &[limit]))
}

/// Multiplies gradients in place by a device scalar, in its dtype.
fn scale_gradients(gradients: &[Tensor], factor: &Tensor) -> Result<()> {
    update_all(CLIP_NORM, Pointwise::ScaleInPlace, gradients, &[factor], &[])
}

fn update_all(
    op: &'static str,
    function: Pointwise,
    targets: &[Tensor],
    shared: &[&Tensor],
    attributes: &[f64],
) -> Result<()> {
    let update = |t| Update { targets: vec![t], inputs: Vec::new(), numbers: Vec::new() };
    update_each_(function, &targets.iter().map(update).collect::<Vec<_>>(), shared, attributes).map_err(|e| e.of(op))
}

pub(crate) fn gradients_of(parameters: &[Tensor]) -> Vec<Tensor> {
    parameters.iter().filter_map(|p| Some(p.grad()?.detach())).collect()
}

/// The norm of all elements of one or more tensors, in f64 if a tensor is f64, else in f32.
fn total_norm(op: &'static str, gradients: &[Tensor], norm_type: f64) -> Result<Tensor> {
    let kind = match norm_type {
        2.0 => Total::Norm,
        1.0 => Total::AbsSum,
        f64::INFINITY => Total::AbsMax,
        p if p > 0.0 => return norm_of_order(gradients, p).map_err(|e| e.of(op)),
        _ => return Err(Error::attr(op, format!("norm_type is {norm_type}, expected a number above 0"))),
    };
    total(kind, &gradients.iter().collect::<Vec<_>>()).map_err(|e| e.of(op))
}

/// The norm of order p. Powers are of shares of the largest element, and so in range.
fn norm_of_order(gradients: &[Tensor], p: f64) -> Result<Tensor> {
    let largest = total(Total::AbsMax, &gradients.iter().collect::<Vec<_>>())?;
    let is_number = largest.isfinite()?.logical_and(&largest.gt_scalar(0.0)?)?;
    let unit = is_number.where_scalar(&largest, 1.0)?;
    let powers = |g: &Tensor| g.cast(unit.dtype())?.abs()?.div(&unit)?.pow_scalar(p)?.sum(..);
    let zero = unit.zeros_like()?;
    let sum = gradients.iter().try_fold(zero, |sum, g| sum.add(&powers(g)?))?;
    sum.pow_scalar(1.0 / p)?.mul(&unit)
}

fn check_bound(op: &'static str, name: &str, bound: f64) -> Result<()> {
    Checks { op, dtype: DType::F64 }.number(name, bound, Range::Bound)
}

/// `min(1, max_norm / (total + 1e-6))`; NaN stays NaN.
fn clip_factor(total: &Tensor, max_norm: f64) -> Result<Tensor> {
    check_bound(CLIP_NORM, "max_norm", max_norm)?;
    total.add_scalar(1e-6)?.rdiv_scalar(max_norm)?.clamp(None, Some(1.0.into()))
}
