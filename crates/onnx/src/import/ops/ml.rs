//! Operators of the domain ai.onnx.ml that linear models and scalers of scikit-learn become.

use super::{Op, Table};
use crate::import::call::{Call, misshapen, unsupported, wrong};
use crate::import::value::Value;
use isograd_core::{DType, Result, Tensor};

pub const OPS: Table = &[
    ("ArrayFeatureExtractor", Op::One(features)),
    ("Binarizer", Op::One(binarizer)),
    ("LinearClassifier", Op::Many(classifier)),
    ("LinearRegressor", Op::Tensor(regressor)),
    ("Normalizer", Op::Tensor(normalizer)),
    ("Scaler", Op::Tensor(scaler)),
];

/// Features by their places in the last dimension.
fn features(c: &Call<'_>) -> Result<Value> {
    let (x, at) = (c.x(0)?, c.x(1)?);
    let x = if x.rank() == 1 { x.unsqueeze(0)? } else { x };
    c.moved(0, x.index_select(-1, &at.flatten(0, -1)?)?)
}

/// 1 above the threshold, and 0 elsewhere.
fn binarizer(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    c.wrapped(0, x.gt_scalar(c.float("threshold", 0.0)?)?.cast(x.dtype())?)
}

/// f32, or f64 in a wide model.
pub fn dtype(c: &Call<'_>) -> DType {
    c.run.floats().dtype()
}

/// A list of numbers on the device.
fn numbers(c: &Call<'_>, name: &str) -> Result<Option<Tensor>> {
    let Some(values) = c.node.attributes.floats(name)? else { return Ok(None) };
    let count = values.len();
    Tensor::from_vec(values.iter().map(|&v| v as f32).collect(), count, c.device())?.cast(dtype(c)).map(Some)
}

/// Samples `[N, features]`.
pub fn samples(c: &Call<'_>) -> Result<Tensor> {
    let x = c.x(0)?.cast(dtype(c))?;
    match x.rank() {
        1 => x.unsqueeze(0),
        2 => Ok(x),
        _ => misshapen(format!("the samples are {}, expected [N, features]", x.shape())),
    }
}

/// `x w^T + b`, `[N, rows]`.
fn linear(c: &Call<'_>, rows: usize) -> Result<Tensor> {
    let x = samples(c)?;
    let Some(weight) = numbers(c, "coefficients")? else { return wrong("the attribute coefficients is missing") };
    if weight.shape().numel() != rows * x.dims()[1] {
        return misshapen(format!("{} coefficients were given for {rows} results of {}", weight.dims()[0], x.shape()));
    }
    let y = x.matmul(&weight.reshape((rows, x.dims()[1]))?.t()?)?;
    numbers(c, "intercepts")?.map_or(Ok(y.clone()), |bias| y.add(&bias))
}

/// Scores after the node's last function.
pub fn finished(c: &Call<'_>, y: Tensor) -> Result<Tensor> {
    match c.text("post_transform", "NONE")? {
        "NONE" => Ok(y),
        "SOFTMAX" => y.softmax(-1),
        "LOGISTIC" => y.sigmoid(),
        other => unsupported(format!("scores after {other}")),
    }
}

fn regressor(c: &Call<'_>) -> Result<Tensor> {
    let targets = usize::try_from(c.int("targets", 1)?).unwrap_or(0);
    finished(c, linear(c, targets)?)
}

/// The label of the largest score, and all scores.
fn classifier(c: &Call<'_>) -> Result<Vec<Value>> {
    let Some(labels) = c.list("classlabels_ints")? else { return unsupported("classes whose labels are texts") };
    let scores = linear(c, labels.len())?;
    let count = labels.len();
    let labels = Tensor::from_vec(labels, count, c.device())?;
    let found = labels.index_select(0, &scores.argmax(-1)?)?;
    Ok(vec![found.into(), finished(c, scores)?.into()])
}

fn normalizer(c: &Call<'_>) -> Result<Tensor> {
    let x = samples(c)?;
    let size = match c.text("norm", "MAX")? {
        "MAX" => x.amax_keepdim(-1)?,
        "L1" => x.abs()?.sum_keepdim(-1)?,
        "L2" => x.square()?.sum_keepdim(-1)?.sqrt()?,
        other => return wrong(format!("the norm is {other:?}, expected MAX, L1 or L2")),
    };
    // A row of zeros stays.
    size.eq_scalar(0.0)?.where_cond(&x, &x.div(&size)?)
}

fn scaler(c: &Call<'_>) -> Result<Tensor> {
    let x = samples(c)?;
    let x = numbers(c, "offset")?.map_or(Ok(x.clone()), |offset| x.sub(&offset))?;
    numbers(c, "scale")?.map_or(Ok(x.clone()), |scale| x.mul(&scale))
}
