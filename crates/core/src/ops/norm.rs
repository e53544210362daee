//! Normalisation of rows.

use super::fused::{has_kernel, record_fused};
use super::in_acc;
use crate::backend::{Fused, Kernel};
use crate::tape::{Backward, Gradients};
use crate::tensor::{Attributes, check_device, check_float, describe, run};
use crate::{DType, Error, Result, Shape, Tensor, autocast};

/// Which of the two.
#[derive(Clone, Copy, PartialEq)]
enum Norm {
    Layer,
    Rms,
}

impl Norm {
    fn op(self) -> &'static str {
        match self {
            Norm::Layer => "layer_norm",
            Norm::Rms => "rms_norm",
        }
    }
}

impl Tensor {
    /// `(x - mean) / sqrt(var + eps) * weight + bias` over the last `dims` dimensions, with the biased variance. Weight and
    /// bias have the shape of these dimensions and the dtype of x or f32; without them they are 1 and 0. Float dtypes. Ba
    /// et al. 2016, arXiv:1607.06450. Errors: `Attr` unless `1 <= dims <= rank` and `eps >= 0`, `Shape`, `Dtype`.
    pub fn layer_norm(&self, dims: usize, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        norm(Norm::Layer, self, dims, weight, bias, eps)
    }

    /// `x / sqrt(mean(x^2) + eps) * weight` over the last `dims` dimensions. Weight as in
    /// [`layer_norm`](Tensor::layer_norm). Float dtypes. Zhang and Sennrich 2019, NeurIPS. Errors: as there.
    pub fn rms_norm(&self, dims: usize, weight: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        norm(Norm::Rms, self, dims, weight, None, eps)
    }
}

fn norm(
    norm: Norm,
    x: &Tensor,
    dims: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let op = norm.op();
    if let Some(([x], _)) = autocast::wide([x], None)? {
        return self::norm(norm, &x, dims, in_f32(weight)?.as_ref(), in_f32(bias)?.as_ref(), eps);
    }
    check_float(op, x)?;
    if dims == 0 || dims > x.rank() {
        let message = format!("{dims} dimensions of {} were asked for, expected 1 to {}", x.shape(), x.rank());
        return Err(Error::attr(op, message));
    }
    check_eps(op, eps)?;
    let (rows, row) = x.dims().split_at(x.rank() - dims);
    for p in weight.into_iter().chain(bias) {
        check_device(op, &[x, p])?;
        if p.dims() != row {
            return Err(Error::shape(op, format!("parameters must be {row:?}: {}", describe(&[x, p]))));
        }
        if p.dtype() != x.dtype() && p.dtype() != DType::F32 {
            return Err(Error::dtype(op, format!("parameters must have the dtype of x or f32: {}", describe(&[x, p]))));
        }
    }
    let (count, length) = (rows.iter().product::<usize>(), row.iter().product::<usize>());
    let rows = x.reshape((count, length))?;
    let flat = |p: Option<&Tensor>| p.map(|p| p.reshape(length)).transpose();
    let (weight, bias) = (flat(weight)?, flat(bias)?);
    let same = |p: &Option<Tensor>| p.as_ref().is_none_or(|p| weight.as_ref().is_none_or(|w| w.dtype() == p.dtype()));
    let y = match has_kernel(Fused::Norm, x) && same(&bias) {
        true => fused(norm, &rows, weight.as_ref(), bias.as_ref(), eps)?,
        false => composite(norm, &rows, weight.as_ref(), bias.as_ref(), eps)?,
    };
    y.reshape(x.shape())
}

/// Errors unless a variance can be added to it.
pub(super) fn check_eps(op: &'static str, eps: f64) -> Result<()> {
    match eps >= 0.0 {
        true => Ok(()),
        false => Err(Error::attr(op, format!("eps is {eps}, expected 0 or more"))),
    }
}

/// A parameter, for what an [`autocast`](crate::autocast()) takes in f32.
pub(super) fn in_f32(p: Option<&Tensor>) -> Result<Option<Tensor>> {
    p.map(|p| p.cast(DType::F32)).transpose()
}

/// What the kernel computes, in tensor ops, for rows `[rows, length]`.
fn composite(norm: Norm, x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    in_acc(x, |x| {
        let x = if norm == Norm::Layer { x.sub(&x.mean_keepdim(1)?)? } else { x.clone() };
        let y = x.mul(&x.square()?.mean_keepdim(1)?.add_scalar(eps)?.rsqrt()?)?;
        let y = match weight {
            Some(weight) => y.mul(&weight.cast(y.dtype())?)?,
            None => y,
        };
        match bias {
            Some(bias) => y.add(&bias.cast(y.dtype())?),
            None => Ok(y),
        }
    })
}

fn fused(norm: Norm, x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    let op = norm.op();
    let x = x.contiguous()?;
    let (rows, length, acc) = (x.dims()[0], x.dims()[1], x.dtype().acc());
    let ints = [rows, length, (norm == Norm::Layer) as usize, weight.is_some() as usize, bias.is_some() as usize];
    let ints = ints.map(|v| v as i64);
    let y = Tensor::allocate(op, x.shape(), x.dtype(), x.device())?;
    let statistics = || Tensor::allocate(op, &Shape::from(rows), acc, x.device());
    let (mean, rstd) = (statistics()?, statistics()?);
    let parameters: Vec<Tensor> = weight.into_iter().chain(bias).map(Tensor::contiguous).collect::<Result<_>>()?;
    let inputs: Vec<&Tensor> = [&x].into_iter().chain(&parameters).collect();
    run(op, Kernel::Fused(Fused::Norm), &inputs, &[&y, &mean, &rstd], Attributes { ints: &ints, floats: &[eps] })?;
    let (has_weight, has_bias) = (weight.is_some(), bias.is_some());
    let again = move |x: &[Tensor]| {
        let weight = has_weight.then(|| &x[1]);
        let bias = has_bias.then(|| &x[1 + has_weight as usize]);
        composite(norm, &x[0], weight, bias, eps)
    };
    record_fused(op, &inputs, y, again, move |t: &Backward<'_>, inputs: &[Tensor]| {
        gradients(op, Fused::NormBackward, t, inputs, &[&mean, &rstd], has_weight, &ints)
    })
}

/// Runs a backward kernel: dy, x, the statistics and the weight to dx and the gradients of weight and bias.
pub(super) fn gradients(
    op: &'static str,
    kernel: Fused,
    t: &Backward<'_>,
    inputs: &[Tensor],
    statistics: &[&Tensor; 2],
    has_weight: bool,
    ints: &[i64],
) -> Result<Gradients> {
    let dy = t.dy().contiguous()?;
    let like = |t: &Tensor| Tensor::allocate(op, t.shape(), t.dtype(), t.device());
    let (wants_dx, wants_parameters) = (t.needs(0), (1..inputs.len()).any(|i| t.needs(i)));
    let wants = |i: usize| if i == 0 { wants_dx } else { wants_parameters };
    let wanted = (0..inputs.len()).map(|i| wants(i).then(|| like(&inputs[i])).transpose());
    let wanted: Vec<Option<Tensor>> = wanted.collect::<Result<_>>()?;
    let mut operands = vec![&dy, &inputs[0], statistics[0], statistics[1]];
    operands.extend(has_weight.then(|| &inputs[1]));
    let ints = [ints, &[wants_dx as i64, wants_parameters as i64]].concat();
    let outputs: Vec<&Tensor> = wanted.iter().flatten().collect();
    run(op, Kernel::Fused(kernel), &operands, &outputs, Attributes::ints(&ints))?;
    Ok(wanted.into_iter().enumerate().map(|(i, gradient)| gradient.filter(|_| t.needs(i))).collect())
}
