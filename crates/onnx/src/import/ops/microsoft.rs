//! Operators of the domain com.microsoft, into which onnxruntime's optimiser fuses those of ONNX.

use super::attention::{heads, rows};
use super::{Op, Table};
use crate::import::call::{Call, misshapen, unsupported};
use crate::import::value::Value;
use isograd_core::ops::{Approximate, Attention};
use isograd_core::{DType, Result, Tensor};

pub const OPS: Table = &[
    ("LayerNormalization", Op::Tensor(layer_norm)),
    ("SimplifiedLayerNormalization", Op::Tensor(|c| rms(c, &c.x(0)?, 1))),
    ("SkipLayerNormalization", Op::Many(skip_layer_norm)),
    ("SkipSimplifiedLayerNormalization", Op::Many(skip_rms)),
    ("EmbedLayerNormalization", Op::Many(embed_layer_norm)),
    ("Gelu", Op::Tensor(|c| c.x(0)?.gelu(Approximate::None))),
    ("FastGelu", Op::Tensor(|c| with_bias(c, 0, 1)?.gelu(Approximate::Tanh))),
    ("QuickGelu", Op::Tensor(quick_gelu)),
    ("BiasGelu", Op::Tensor(|c| with_bias(c, 0, 1)?.gelu(Approximate::None))),
    ("FusedMatMul", Op::Tensor(fused_matmul)),
    ("TransposeMatMul", Op::Tensor(fused_matmul)),
    ("FusedGemm", Op::Tensor(fused_gemm)),
    ("FusedConv", Op::Tensor(fused_conv)),
    ("MultiHeadAttention", Op::Many(multi_head_attention)),
];

/// Input `i`, plus the bias at input `bias` where there is one.
fn with_bias(c: &Call<'_>, i: usize, bias: usize) -> Result<Tensor> {
    let x = c.x(i)?;
    match c.optional(bias)? {
        Some(bias) => x.add(&bias),
        None => Ok(x),
    }
}

fn norm(c: &Call<'_>, x: &Tensor, weight: usize, bias: usize) -> Result<Tensor> {
    x.layer_norm(1, c.optional(weight)?.as_ref(), c.optional(bias)?.as_ref(), c.float("epsilon", 1e-12)?)
}

fn layer_norm(c: &Call<'_>) -> Result<Tensor> {
    let (x, eps) = (c.x(0)?, c.float("epsilon", 1e-5)?);
    let axis = c.axis("axis", -1, x.rank())?;
    x.layer_norm(x.rank() - axis, c.optional(1)?.as_ref(), c.optional(2)?.as_ref(), eps)
}

fn rms(c: &Call<'_>, x: &Tensor, weight: usize) -> Result<Tensor> {
    x.rms_norm(1, c.optional(weight)?.as_ref(), c.float("epsilon", 1e-5)?)
}

/// The results of a norm of a sum: the norm, two statistics that nobody reads, and the sum.
fn of_sum(c: &Call<'_>, y: Tensor, sum: Tensor) -> Result<Vec<Value>> {
    if c.node.outputs.iter().skip(1).take(2).any(Option::is_some) {
        return unsupported("the statistics of a norm as results");
    }
    Ok(vec![y.into(), Value::Absent, Value::Absent, sum.into()])
}

fn skip_layer_norm(c: &Call<'_>) -> Result<Vec<Value>> {
    let sum = c.x(0)?.add(&c.x(1)?)?;
    let sum = c.optional(4)?.map_or(Ok(sum.clone()), |bias| sum.add(&bias))?;
    of_sum(c, norm(c, &sum, 2, 3)?, sum)
}

fn skip_rms(c: &Call<'_>) -> Result<Vec<Value>> {
    let sum = c.x(0)?.add(&c.x(1)?)?;
    let sum = c.optional(3)?.map_or(Ok(sum.clone()), |bias| sum.add(&bias))?;
    of_sum(c, rms(c, &sum, 2)?, sum)
}

/// The embeddings of words, positions and segments, and their norm; the numbers of words that are attended to; and the sum.
fn embed_layer_norm(c: &Call<'_>) -> Result<Vec<Value>> {
    let (tokens, words, positions) = (c.x(0)?, c.x(2)?, c.x(3)?);
    let &[batch, steps] = tokens.dims() else { return misshapen(format!("the tokens are {}", tokens.shape())) };
    let rows_of = |table: &Tensor, index: &Tensor| table.embedding(index, &Default::default());
    let at = match c.optional(8)? {
        Some(at) => rows_of(&positions, &at)?,
        None => positions.narrow(0, 0, steps)?.unsqueeze(0)?,
    };
    let mut sum = rows_of(&words, &tokens)?.add(&at)?;
    if let (Some(segments), Some(table)) = (c.optional(1)?, c.optional(4)?) {
        sum = sum.add(&rows_of(&table, &segments)?)?;
    }
    let counts = match c.optional(7)? {
        Some(mask) => mask.cast(DType::I64)?.sum(1)?.cast(DType::I32)?,
        None => Tensor::zeros(batch, DType::I32, c.device())?,
    };
    Ok(vec![norm(c, &sum, 5, 6)?.into(), counts.into(), sum.into()])
}

/// `x sigmoid(alpha x)`.
fn quick_gelu(c: &Call<'_>) -> Result<Tensor> {
    let x = c.x(0)?;
    x.mul(&x.mul_scalar(c.float("alpha", 1.702)?)?.sigmoid()?)
}

/// `alpha a b`, of factors that may be transposed.
fn fused_matmul(c: &Call<'_>) -> Result<Tensor> {
    if c.flag("transBatchA")? || c.flag("transBatchB")? {
        return unsupported("a product whose batches are transposed");
    }
    let factor = |i: usize, name: &str| -> Result<Tensor> {
        let t = c.x(i)?;
        if c.flag(name)? && t.rank() > 1 { t.t() } else { Ok(t) }
    };
    let product = factor(0, "transA")?.matmul(&factor(1, "transB")?)?;
    let alpha = c.float("alpha", 1.0)?;
    if alpha == 1.0 { Ok(product) } else { product.mul_scalar(alpha) }
}

/// The activation that a fused operator names.
fn activated(c: &Call<'_>, x: Tensor, parameters: &[f64]) -> Result<Tensor> {
    let number = |k: usize, default: f64| parameters.get(k).copied().unwrap_or(default);
    match c.text("activation", "")? {
        "" => Ok(x),
        "Relu" => x.relu(),
        "Tanh" => x.tanh(),
        "Sigmoid" => x.sigmoid(),
        "LeakyRelu" => x.leaky_relu(number(0, 0.01)),
        "HardSigmoid" => x.hardsigmoid_with(number(0, 0.2), number(1, 0.5)),
        "Clip" => x.clamp(Some(number(0, f64::NEG_INFINITY).into()), Some(number(1, f64::INFINITY).into())),
        other => unsupported(format!("the activation {other:?}")),
    }
}

fn fused_gemm(c: &Call<'_>) -> Result<Tensor> {
    let y = super::matrix::gemm(c)?.tensor(c.device())?;
    activated(c, y, &[c.float("activation_alpha", 0.01)?, c.float("activation_beta", 0.5)?])
}

fn fused_conv(c: &Call<'_>) -> Result<Tensor> {
    let y = super::conv::conv(c, &c.x(0)?, &c.x(1)?, c.optional(2)?.as_ref())?;
    let y = c.optional(3)?.map_or(Ok(y.clone()), |z| y.add(&z))?;
    let parameters = c.node.attributes.floats("activation_params")?.unwrap_or_default().to_vec();
    activated(c, y, &parameters)
}

/// Attention of rows `[B, T, H D]`, with their biases, a mask of keys, numbers that are added to the scores, and keys and values before.
fn multi_head_attention(c: &Call<'_>) -> Result<Vec<Value>> {
    let count = c.needed("num_heads")?;
    let (q, k, v) = (c.x(0)?, c.x(1)?, c.x(2)?);
    if q.rank() != 3 {
        return unsupported(format!("queries {}, expected [B, T, H D]", q.shape()));
    }
    let (of_q, of_v) = (q.dims()[2], v.dims().last().copied().unwrap_or(0));
    let biases = match c.optional(3)? {
        Some(bias) => Some(bias.split_with_sizes(&[of_q, of_q, if v.rank() == 3 { of_v } else { of_q }], 0)?),
        None => None,
    };
    let biased = |t: Tensor, i: usize| match &biases {
        Some(biases) if t.rank() == 3 => t.add(&biases[i]),
        _ => Ok(t),
    };
    let (q, k, v) = (heads(biased(q, 0)?, count)?, heads(biased(k, 1)?, count)?, heads(biased(v, 2)?, count)?);
    let after = |i: usize, t: Tensor| match c.optional(i)? {
        Some(past) => Tensor::concat(&[&past, &t], 2),
        None => Ok(t),
    };
    let (k, v) = (after(6, k)?, after(7, v)?);
    let padding = match c.optional(4)? {
        None => None,
        Some(mask) if mask.dims() == [q.dims()[0], k.dims()[2]] => {
            Some(mask.cast(DType::Bool)?.reshape([mask.dims()[0], 1, 1, mask.dims()[1]])?)
        }
        Some(mask) => return unsupported(format!("a mask of keys {}, expected [B, T]", mask.shape())),
    };
    let mask = match (padding, c.optional(5)?) {
        (Some(padding), Some(added)) => Some(padding.where_scalar(&added, f64::NEG_INFINITY)?),
        (padding, added) => padding.or(added),
    };
    let scale = match c.float("scale", 0.0)? {
        0.0 => None,
        scale => Some(scale),
    };
    let causal = if c.flag("unidirectional")? { isograd_core::ops::Causal::BottomRight } else { Default::default() };
    let y = q.scaled_dot_product_attention(&k, &v, &Attention { mask, scale, causal, ..Default::default() })?;
    Ok(vec![rows(&y)?.into(), k.into(), v.into()])
}
