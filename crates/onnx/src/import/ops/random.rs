//! Random draws.

use super::{Op, Table};
use crate::import::attribute::Attribute;
use crate::import::call::{Call, sizes, unsupported};
use crate::import::element::Element;
use crate::import::value::Value;
use isograd_core::ops::Replacement;
use isograd_core::{DType, Result, Rng, Tensor};

pub const OPS: Table = &[
    ("Dropout", Op::Varying(dropout)),
    ("RandomNormal", Op::Varying(|c| normal(c, shape(c)?))),
    ("RandomNormalLike", Op::Varying(|c| normal(c, c.value(0)?.dims()?))),
    ("RandomUniform", Op::Varying(|c| uniform(c, shape(c)?))),
    ("RandomUniformLike", Op::Varying(|c| uniform(c, c.value(0)?.dims()?))),
    ("Bernoulli", Op::Varying(bernoulli)),
    ("Multinomial", Op::Varying(multinomial)),
];

/// The generator of a call: that of the seed, or that of the model.
fn rng(c: &Call<'_>) -> Result<Rng> {
    Ok(match c.node.attributes.get("seed") {
        Some(Attribute::Int(seed)) => Rng::new(*seed as u64),
        Some(Attribute::Float(seed)) => Rng::new(seed.to_bits()),
        _ => c.run.rng().clone(),
    })
}

/// Dropout where the model trains, or where the graph says so; otherwise x, and a mask that is true.
fn dropout(c: &Call<'_>) -> Result<Vec<Value>> {
    let x = c.x(0)?;
    let p = match (c.node.attributes.float("ratio")?, c.optional_number(1)?) {
        (Some(p), _) | (None, Some(p)) => p,
        (None, None) => 0.5,
    };
    let drops = c.run.is_training() || (c.given(2).is_some() && c.is_true(2)?);
    let wants_mask = c.node.outputs.len() > 1;
    if !drops || p == 0.0 {
        let mask = if wants_mask { vec![Tensor::ones(x.shape(), DType::Bool, x.device())?.into()] } else { Vec::new() };
        return Ok([vec![c.moved(0, x)?], mask].concat());
    }
    let rng = rng(c)?;
    if !wants_mask {
        return Ok(vec![x.dropout(p, &rng)?.into()]);
    }
    let mask = Tensor::bernoulli(x.shape(), 1.0 - p, x.device(), &rng)?.cast(DType::Bool)?;
    let kept = mask.where_scalar(&x, 0.0)?.div_scalar(1.0 - p)?;
    Ok(vec![kept.into(), mask.into()])
}

fn shape(c: &Call<'_>) -> Result<Vec<usize>> {
    sizes(&c.list("shape")?.unwrap_or_default())
}

/// The type of the results: that of an attribute, or of the input.
fn element(c: &Call<'_>) -> Result<Element> {
    match c.element_named("dtype")? {
        Some(element) => Ok(element),
        None if c.given(0).is_some() => c.element(0),
        None => Ok(c.run.floats()),
    }
}

fn float_dtype(c: &Call<'_>) -> Result<DType> {
    match element(c)?.dtype() {
        dtype if dtype.is_float() => Ok(dtype),
        other => unsupported(format!("random numbers of {other}")),
    }
}

fn normal(c: &Call<'_>, dims: Vec<usize>) -> Result<Vec<Value>> {
    let (mean, scale) = (c.float("mean", 0.0)?, c.float("scale", 1.0)?);
    Ok(vec![Tensor::randn(dims, mean, scale, float_dtype(c)?, c.device(), &rng(c)?)?.into()])
}

fn uniform(c: &Call<'_>, dims: Vec<usize>) -> Result<Vec<Value>> {
    let (low, high) = (c.float("low", 0.0)?, c.float("high", 1.0)?);
    Ok(vec![Tensor::rand(dims, low, high, float_dtype(c)?, c.device(), &rng(c)?)?.into()])
}

fn bernoulli(c: &Call<'_>) -> Result<Vec<Value>> {
    let (element, drawn) = (element(c)?, c.x(0)?.bernoulli_each(&rng(c)?)?);
    Ok(vec![Value::Tensor(drawn.cast(element.dtype())?, element)])
}

/// Classes, drawn from logarithms of probabilities.
fn multinomial(c: &Call<'_>) -> Result<Vec<Value>> {
    let count = sizes(&[c.int("sample_size", 1)?])?[0];
    let drawn = c.x(0)?.detach().softmax(-1)?.multinomial(count, Replacement::Yes, &rng(c)?)?;
    let element = c.element_named("dtype")?.unwrap_or(Element::I32);
    Ok(vec![Value::Tensor(drawn.cast(element.dtype())?, element)])
}
