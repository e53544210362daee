//! Normalisations.

use super::{Op, Table};
use crate::import::call::{Call, axes_of, misshapen, signed, sizes};
use crate::import::value::Value;
use isograd_core::ops::{LocalResponse, Running, Statistics};
use isograd_core::{DType, Result, Tensor};

pub const OPS: Table = &[
    ("BatchNormalization", Op::Varying(batch_norm)),
    ("InstanceNormalization", Op::Tensor(instance_norm)),
    ("GroupNormalization", Op::Tensor(group_norm)),
    ("LayerNormalization", Op::Many(layer_norm)),
    ("RMSNormalization", Op::Tensor(rms_norm)),
    ("LRN", Op::Tensor(local_response_norm)),
    ("LpNormalization", Op::Tensor(lp_norm)),
    ("MeanVarianceNormalization", Op::Tensor(mean_variance)),
];

fn batch_norm(c: &Call<'_>) -> Result<Vec<Value>> {
    let (x, weight, bias, mean, var) = (c.x(0)?, c.x(1)?, c.x(2)?, c.x(3)?, c.x(4)?);
    let (eps, momentum) = (c.float("epsilon", 1e-5)?, c.float("momentum", 0.9)?);
    // Operands of several dtypes are computed in the widest.
    let (weight, bias) = (alike(weight, &x)?, alike(bias, &x)?);
    let (mean, var) = (alike(mean, &x)?, alike(var, &x)?);
    if c.flag("training_mode")? {
        return in_training(&x, [&weight, &bias], [&mean, &var], eps, momentum);
    }
    if mean.requires_grad() || var.requires_grad() {
        return Ok(vec![by_statistics(&x, [&weight, &bias, &mean, &var], eps)?.into()]);
    }
    let is_frozen = |t: &Tensor| t.is_leaf() && !t.requires_grad();
    let learns = c.run.is_training() && c.is_state(3) && c.is_state(4) && !(is_frozen(&weight) && is_frozen(&bias));
    let running = Running { mean: &mean, var: &var, batches: None, momentum: Some(1.0 - momentum) };
    let statistics = if learns { Statistics::Update(running) } else { Statistics::Running(running) };
    Ok(vec![x.batch_norm(Some(&weight), Some(&bias), statistics, eps)?.into()])
}

/// The norm by statistics that nodes compute, which have gradients.
fn by_statistics(x: &Tensor, of_channels: [&Tensor; 4], eps: f64) -> Result<Tensor> {
    if x.rank() < 2 {
        return misshapen(format!("{} was given, expected [N, C, ..]", x.shape()));
    }
    let mut dims = vec![1; x.rank()];
    dims[1] = x.dims()[1];
    let [weight, bias, mean, var] = of_channels.map(|t| t.cast(x.dtype())?.reshape(&dims));
    x.sub(&mean?)?.mul(&var?.add_scalar(eps)?.rsqrt()?)?.mul(&weight?)?.add(&bias?)
}

/// A parameter in a dtype that norms of x take.
fn alike(t: Tensor, x: &Tensor) -> Result<Tensor> {
    if t.dtype() == x.dtype() || t.dtype() == DType::F32 { Ok(t) } else { t.cast(x.dtype()) }
}

/// As the graph itself trains: by the statistics of x, and with the running ones as results, whose variance is biased.
fn in_training(
    x: &Tensor,
    [weight, bias]: [&Tensor; 2],
    running: [&Tensor; 2],
    eps: f64,
    momentum: f64,
) -> Result<Vec<Value>> {
    let y = x.batch_norm(Some(weight), Some(bias), Statistics::Batch, eps)?;
    let axes: Vec<isize> = (0..x.rank() as isize).filter(|&d| d != 1).collect();
    let (var, mean) = x.detach().cast(x.dtype().acc())?.var_mean(axes, 0.0)?;
    let mut results = vec![y.into()];
    for (running, batch) in running.into_iter().zip([mean, var]) {
        let own = running.dtype();
        let part = running.cast(batch.dtype())?.mul_scalar(momentum)?;
        results.push(part.add(&batch.mul_scalar(1.0 - momentum)?)?.cast(own)?.into());
    }
    Ok(results)
}

fn instance_norm(c: &Call<'_>) -> Result<Tensor> {
    c.x(0)?.instance_norm(Some(&c.x(1)?), Some(&c.x(2)?), Statistics::Batch, c.float("epsilon", 1e-5)?)
}

/// Since opset 21 weight and bias are of channels, before of groups.
fn group_norm(c: &Call<'_>) -> Result<Tensor> {
    let (x, eps) = (c.x(0)?, c.float("epsilon", 1e-5)?);
    let groups = sizes(&[c.needed("num_groups")?])?[0];
    let channels = x.dims().get(1).copied().unwrap_or(0);
    let of_channels = |t: Tensor| match t.numel() {
        n if n == groups && n != channels && groups > 0 => {
            t.unsqueeze(1)?.broadcast_to([groups, channels / groups])?.reshape(channels)
        }
        _ => Ok(t),
    };
    let (weight, bias) = (of_channels(c.x(1)?)?, of_channels(c.x(2)?)?);
    x.group_norm(groups, Some(&weight), Some(&bias), eps)
}

/// A weight or a bias in the extents of the dimensions that are normalised.
fn in_extents(t: Option<Tensor>, extents: &[usize]) -> Result<Option<Tensor>> {
    t.map(|t| if t.dims() == extents { Ok(t) } else { t.broadcast_to(extents) }).transpose()
}

fn layer_norm(c: &Call<'_>) -> Result<Vec<Value>> {
    let (x, eps) = (c.x(0)?, c.float("epsilon", 1e-5)?);
    let axis = c.axis("axis", -1, x.rank())?;
    let extents = &x.dims()[axis..];
    let (weight, bias) = (in_extents(c.optional(1)?, extents)?, in_extents(c.optional(2)?, extents)?);
    let y = x.layer_norm(extents.len(), weight.as_ref(), bias.as_ref(), eps)?;
    let mut results = vec![y.into()];
    if c.node.outputs.len() > 1 {
        // The statistics have the dtype of their arithmetic.
        let wide = if c.int("stash_type", 1)? == 1 { x.cast(DType::F32)? } else { x.clone() };
        let axes: Vec<isize> = (axis as isize..x.rank() as isize).collect();
        let (var, mean) = wide.var_mean(axes, 0.0)?;
        let dims = [&x.dims()[..axis], &vec![1; extents.len()]].concat();
        results.push(mean.reshape(&dims)?.into());
        results.push(var.add_scalar(eps)?.rsqrt()?.reshape(&dims)?.into());
    }
    Ok(results)
}

fn rms_norm(c: &Call<'_>) -> Result<Tensor> {
    let (x, eps) = (c.x(0)?, c.float("epsilon", 1e-5)?);
    let axis = c.axis("axis", -1, x.rank())?;
    let extents = &x.dims()[axis..];
    x.rms_norm(extents.len(), in_extents(c.optional(1)?, extents)?.as_ref(), eps)
}

fn local_response_norm(c: &Call<'_>) -> Result<Tensor> {
    let size = sizes(&[c.needed("size")?])?[0];
    let (alpha, beta, k) = (c.float("alpha", 1e-4)?, c.float("beta", 0.75)?, c.float("bias", 1.0)?);
    if size % 2 == 1 {
        return c.x(0)?.local_response_norm(&LocalResponse { size, alpha, beta, k });
    }
    misshapen(format!("a sum of {size} channels, expected an odd number"))
}

fn lp_norm(c: &Call<'_>) -> Result<Tensor> {
    let (x, p) = (c.x(0)?, c.int("p", 2)? as f64);
    let axis = c.axis("axis", -1, x.rank())? as isize;
    let norm = x.norm(p, axis)?.unsqueeze(axis)?;
    // A row of zeros stays as it is.
    let is_zero = norm.eq_scalar(0.0)?;
    x.div(&is_zero.where_cond(&norm.ones_like()?, &norm)?)
}

fn mean_variance(c: &Call<'_>) -> Result<Tensor> {
    let x = c.x(0)?;
    let axes = signed(&axes_of(&c.list("axes")?.unwrap_or_else(|| vec![0, 2, 3]), x.rank())?);
    let mut dims = x.dims().to_vec();
    axes.iter().for_each(|&axis| dims[axis as usize] = 1);
    let (var, mean) = x.var_mean(axes, 0.0)?;
    let deviation = var.sqrt()?.add_scalar(1e-9)?.reshape(&dims)?;
    x.sub(&mean.reshape(&dims)?)?.div(&deviation)
}
