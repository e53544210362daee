//! Normalisations.

use super::matrix::activated;
use crate::export::graph::{Value, data_type, float, int};
use crate::export::translation::{Found, Translation, absent};
use isograd_core::ops::Activation;
use isograd_core::ops::normalization::channel_norm::{BatchNormInputs, ChannelNorm, Rectified, Span};
use isograd_core::ops::normalization::norm::{LastNorm, NormInputs};
use isograd_core::{DType, Result};

pub fn translate(t: &mut Translation<'_>) -> Found {
    match t.op.name {
        "batch_norm" | "batch_norm_relu" | "batch_norm_relu6" | "group_norm" | "instance_norm" => {
            let (norm, inputs) = t.described()?;
            channels(t, norm, inputs)
        }
        "softmax" | "log_softmax" => softmax(t),
        _ => rows(t),
    }
}

fn softmax(t: &mut Translation<'_>) -> Found {
    let dim = t.int("dim")?;
    if t.x().rank() == 0 {
        return absent("ONNX has no softmax of a scalar");
    }
    let op = if t.op.name == "softmax" { "Softmax" } else { "LogSoftmax" };
    Ok(vec![t.graph.node(op, &[t.inputs[0]], &[int("axis", dim)])])
}

/// The value of a parameter, or a vector of one number for all of the `channels`.
fn parameter(t: &mut Translation<'_>, given: Option<Value>, channels: &[usize], v: f64, dtype: DType) -> Result<Value> {
    given.map_or_else(|| t.graph.full(channels, v, dtype), Ok)
}

fn channels(
    t: &mut Translation<'_>,
    ChannelNorm { span, rectified, eps }: ChannelNorm,
    BatchNormInputs { x, weight, bias, residual, mean, var }: BatchNormInputs<Value>,
) -> Found {
    let eps = float("epsilon", eps);
    let (channels, rank) = ([t.x().dims()[1]], t.x().rank());
    let dtype = t.x().dtype();
    if t.op.inputs.iter().any(|x| x.dtype() != dtype) {
        return absent("its operands have several dtypes");
    }
    let weight = parameter(t, weight, &channels, 1.0, dtype)?;
    let bias = parameter(t, bias, &channels, 0.0, dtype)?;
    let y = match (span, mean, var) {
        (_, Some(mean), Some(var)) => t.graph.node("BatchNormalization", &[x, weight, bias, mean, var], &[eps]),
        (Span::Batch, ..) => {
            let (mean, var) = moments(t, x)?;
            t.graph.node("BatchNormalization", &[x, weight, bias, mean, var], &[eps])
        }
        (Span::Groups(groups), ..) => {
            let attributes = [eps, int("num_groups", groups as i64)];
            let x = if rank > 2 { x } else { t.unsqueeze(x, &[-1])? };
            let y = t.graph.node("GroupNormalization", &[x, weight, bias], &attributes);
            if rank > 2 { y } else { t.squeeze(y, &[-1])? }
        }
        (Span::Channels, ..) if rank > 2 => t.graph.node("InstanceNormalization", &[x, weight, bias], &[eps]),
        (Span::Channels, ..) => return absent("it has no elements beside its channels"),
    };
    let y = residual.map_or(y, |residual| t.graph.node("Add", &[y, residual], &[]));
    Ok(vec![match rectified {
        Rectified::No => y,
        Rectified::Relu => t.graph.node("Relu", &[y], &[]),
        Rectified::Relu6 => {
            let (least, most) = (t.graph.scalar(0.0, dtype)?, t.graph.scalar(6.0, dtype)?);
            t.graph.node("Clip", &[y, least, most], &[])
        }
    }])
}

/// The mean and the biased variance of each channel of x `[N, C, ..]`.
fn moments(t: &mut Translation<'_>, x: Value) -> Result<(Value, Value)> {
    let axes: Vec<i64> = (0..t.x().rank() as i64).filter(|&d| d != 1).collect();
    let axes = t.graph.ints(&axes)?;
    let kept = t.graph.node("ReduceMean", &[x, axes], &[int("keepdims", 1)]);
    let deviation = t.graph.node("Sub", &[x, kept], &[]);
    let square = t.graph.node("Mul", &[deviation, deviation], &[]);
    let var = t.graph.node("ReduceMean", &[square, axes], &[int("keepdims", 0)]);
    let mean = t.graph.node("ReduceMean", &[x, axes], &[int("keepdims", 0)]);
    Ok((mean, var))
}

fn rows(t: &mut Translation<'_>) -> Found {
    let (norm, inputs) = t.described::<LastNorm>()?;
    if !norm.is_centred {
        return rms(t, norm, inputs);
    }
    // Of several dtypes, arithmetic is in the accumulation dtype.
    let dtypes: Vec<DType> = t.op.inputs.iter().map(|x| x.dtype()).collect();
    let is_mixed = dtypes.iter().any(|dtype| *dtype != dtypes[0]);
    let wide = if dtypes.contains(&DType::F64) { DType::F64 } else { DType::F32 };
    if is_mixed && norm.activation != Activation::Identity {
        return absent("its operands have several dtypes");
    }
    let mut each = dtypes.iter();
    let inputs = inputs.map(|value| match each.next() {
        Some(dtype) if is_mixed && *dtype != wide => t.cast(value, wide),
        _ => value,
    });
    let NormInputs { x, residual, weight, bias } = inputs;
    let row = t.x().dims()[t.x().rank() - norm.dims..].to_vec();
    let weight = parameter(t, weight, &row, 1.0, if is_mixed { wide } else { dtypes[0] })?;
    let x = residual.map_or(x, |residual| t.graph.node("Add", &[x, residual], &[]));
    let attributes = [int("axis", -(norm.dims as i64)), float("epsilon", norm.eps)];
    let y = t.graph.node_of("LayerNormalization", &[Some(x), Some(weight), bias], &attributes, 1)[0];
    let y = activated(t, y, norm.activation)?[0];
    let mut found = if residual.is_some() { vec![y, x] } else { vec![y] };
    for (value, y) in found.iter_mut().zip(&t.op.outputs).filter(|(_, y)| is_mixed && y.dtype() != wide) {
        *value = t.graph.node("Cast", &[*value], &[int("to", data_type(y.dtype()).into())]);
    }
    Ok(found)
}

/// `x / sqrt(mean(x^2) + eps) * weight`: the op of ONNX is of a later opset.
fn rms(t: &mut Translation<'_>, norm: LastNorm, inputs: NormInputs<Value>) -> Found {
    let (NormInputs { x, weight, .. }, dtype) = (inputs, t.x().dtype());
    if t.op.inputs.iter().any(|x| x.dtype() != dtype) {
        return absent("its operands have several dtypes");
    }
    let axes = t.graph.ints(&(-(norm.dims as i64)..0).collect::<Vec<_>>())?;
    let eps = t.graph.scalar(norm.eps, dtype)?;
    let square = t.graph.node("Mul", &[x, x], &[]);
    let mean = t.graph.node("ReduceMean", &[square, axes], &[int("keepdims", 1)]);
    let sum = t.graph.node("Add", &[mean, eps], &[]);
    let root = t.graph.node("Sqrt", &[sum], &[]);
    let y = t.graph.node("Div", &[x, root], &[]);
    Ok(vec![weight.map_or(y, |weight| t.graph.node("Mul", &[y, weight], &[]))])
}
