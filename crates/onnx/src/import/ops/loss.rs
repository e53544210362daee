//! Losses of classes.

use super::{Op, Table};
use crate::import::call::{Call, misshapen, unsupported};
use crate::import::value::Value;
use isograd_core::{DType, Result, Tensor};

pub const OPS: Table = &[
    ("NegativeLogLikelihoodLoss", Op::Tensor(|c| loss(c, &c.x(0)?))),
    ("SoftmaxCrossEntropyLoss", Op::Many(cross_entropy)),
];

fn cross_entropy(c: &Call<'_>) -> Result<Vec<Value>> {
    let logarithms = c.x(0)?.log_softmax(1)?;
    Ok(vec![loss(c, &logarithms)?.into(), logarithms.into()])
}

/// The weighted loss of logarithms of probabilities `[N, C, ..]` for classes `[N, ..]`.
fn loss(c: &Call<'_>, logarithms: &Tensor) -> Result<Tensor> {
    let (target, weight) = (c.x(1)?.cast(DType::I64)?, c.optional(2)?);
    if logarithms.rank() < 2 || target.rank() + 1 != logarithms.rank() {
        return misshapen(format!("{} was given for classes {}", logarithms.shape(), target.shape()));
    }
    let ignored = c.node.attributes.int("ignore_index")?;
    let is_counted = ignored.map(|ignored| target.ne_scalar(ignored)).transpose()?;
    // A class that is ignored may be none of those that there are.
    let class = match &is_counted {
        Some(is_counted) => is_counted.where_scalar(&target, 0)?,
        None => target,
    };
    let picked = logarithms.gather(1, &class.unsqueeze(1)?)?.squeeze(1)?.neg()?;
    let mut weights = match weight {
        Some(weight) => weight.index_select(0, &class.reshape(class.numel())?)?.reshape(class.shape())?,
        None => picked.detach().ones_like()?,
    };
    if let Some(is_counted) = &is_counted {
        weights = is_counted.where_scalar(&weights, 0.0)?;
    }
    let losses = picked.mul(&weights)?;
    match c.text("reduction", "mean")? {
        "none" => Ok(losses),
        "sum" => losses.sum(..),
        "mean" => losses.sum(..)?.div(&weights.sum(..)?),
        other => unsupported(format!("a loss with the reduction {other:?}")),
    }
}
