//! Activations, and softmax.

use super::{Op, Table};
use crate::import::call::{Call, unsupported};
use crate::import::value::Value;
use isograd_core::ops::Approximate;
use isograd_core::{Result, Scalar, Tensor};

pub const OPS: Table = &[
    ("Relu", Op::One(relu)),
    ("LeakyRelu", Op::Tensor(|c| c.x(0)?.leaky_relu(c.float("alpha", 0.01)?))),
    ("ThresholdedRelu", Op::Tensor(|c| c.x(0)?.threshold(c.float("alpha", 1.0)?, 0.0))),
    ("PRelu", Op::One(prelu)),
    ("Elu", Op::Tensor(|c| c.x(0)?.elu(c.float("alpha", 1.0)?))),
    ("Selu", Op::Tensor(selu)),
    ("Celu", Op::Tensor(|c| c.x(0)?.celu(c.float("alpha", 1.0)?))),
    ("Sigmoid", Op::Tensor(|c| c.x(0)?.sigmoid())),
    ("HardSigmoid", Op::Tensor(|c| c.x(0)?.hardsigmoid_with(c.float("alpha", 0.2)?, c.float("beta", 0.5)?))),
    ("HardSwish", Op::Tensor(|c| c.x(0)?.hardswish())),
    ("Tanh", Op::Tensor(|c| c.x(0)?.tanh())),
    ("Softplus", Op::Tensor(|c| c.x(0)?.softplus(1.0, 20.0))),
    ("Softsign", Op::Tensor(|c| c.x(0)?.softsign())),
    ("Mish", Op::Tensor(|c| c.x(0)?.mish())),
    ("Swish", Op::Tensor(swish)),
    ("Gelu", Op::Tensor(gelu)),
    ("Shrink", Op::One(shrink)),
    ("Softmax", Op::Tensor(|c| over_axis(c, Tensor::softmax))),
    ("LogSoftmax", Op::Tensor(|c| over_axis(c, Tensor::log_softmax))),
    ("Hardmax", Op::Tensor(|c| over_axis(c, hardmax))),
];

fn relu(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    c.moved(0, if x.dtype().is_float() { x.relu()? } else { x.clamp(Some(0.into()), None)? })
}

/// The gradient at 0 is that of a negative number.
fn prelu(c: &Call<'_>) -> Result<Value> {
    let (x, slope) = (c.x(0)?, c.x(1)?);
    let zero: Scalar = super::create::scalar(0.0, x.dtype());
    c.wrapped(0, x.gt_scalar(zero)?.where_cond(&x, &x.mul(&slope)?)?)
}

fn selu(c: &Call<'_>) -> Result<Tensor> {
    let (alpha, gamma) = (c.float("alpha", 1.673_263_242_354_377_2)?, c.float("gamma", 1.050_700_987_355_480_5)?);
    c.x(0)?.selu_with(alpha, gamma)
}

fn swish(c: &Call<'_>) -> Result<Tensor> {
    let (x, alpha) = (c.x(0)?, c.float("alpha", 1.0)?);
    if alpha == 1.0 { x.silu() } else { x.mul(&x.mul_scalar(alpha)?.sigmoid()?) }
}

fn gelu(c: &Call<'_>) -> Result<Tensor> {
    match c.text("approximate", "none")? {
        "none" => c.x(0)?.gelu(Approximate::None),
        "tanh" => c.x(0)?.gelu(Approximate::Tanh),
        other => unsupported(format!("a gelu with the approximation {other:?}")),
    }
}

/// `x + bias` below -lambd, `x - bias` above lambd, and 0 between.
fn shrink(c: &Call<'_>) -> Result<Value> {
    let (x, lambda, bias) = (c.x(0)?, c.float("lambd", 0.5)?, c.float("bias", 0.0)?);
    if x.dtype().is_float() && lambda >= 0.0 {
        if bias == lambda {
            return Ok(x.softshrink(lambda)?.into());
        }
        if bias == 0.0 {
            return Ok(x.hardshrink(lambda)?.into());
        }
    }
    // The limits of integers may lie between two of them.
    let own = x.dtype();
    let wide = if own.is_float() { x.clone() } else { x.cast(isograd_core::DType::F64)? };
    let above = wide.gt_scalar(lambda)?.where_scalar(&wide.sub_scalar(bias)?, 0.0)?;
    let y = wide.lt_scalar(-lambda)?.where_cond(&wide.add_scalar(bias)?, &above)?;
    c.wrapped(0, y.cast(own)?)
}

/// A function over a dimension, or, before opset 13, over this one and all after it.
fn over_axis(c: &Call<'_>, f: impl Fn(&Tensor, isize) -> Result<Tensor>) -> Result<Tensor> {
    let x = c.x(0)?;
    if c.opset() >= 13 {
        return f(&x, c.axis("axis", -1, x.rank())? as isize);
    }
    let axis = c.axis("axis", 1, x.rank())?;
    let [rows, columns] = [&x.dims()[..axis], &x.dims()[axis..]].map(|dims| dims.iter().product::<usize>());
    f(&x.reshape([rows, columns])?, 1)?.reshape(x.shape())
}

/// 1 at the first of the largest elements, 0 elsewhere.
fn hardmax(x: &Tensor, dim: isize) -> Result<Tensor> {
    let extent = x.dims()[dim as usize];
    let mut dims = vec![1; x.rank()];
    dims[dim as usize] = extent;
    let first = x.argmax(dim)?.unsqueeze(dim)?;
    first.eq(&Tensor::arange(extent, x.device())?.reshape(dims)?)?.cast(x.dtype())
}
