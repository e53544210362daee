//! Normalisations.

use super::matrix::activated;
use crate::graph::{Value, data_type, float, int};
use crate::translation::{Found, Translation, absent};
use isograd_core::{DType, Result};

pub fn translate(t: &mut Translation<'_>) -> Found {
    match t.op.name {
        "batch_norm" | "group_norm" | "instance_norm" => channels(t),
        "batch_norm_relu" | "batch_norm_relu6" => batch_relu(t),
        "rms_norm" => rms(t),
        _ => layer(t),
    }
}

/// The value of a parameter, or a vector of one number for all of the `channels`.
fn parameter(t: &mut Translation<'_>, given: Option<Value>, channels: &[usize], v: f64, dtype: DType) -> Result<Value> {
    given.map_or_else(|| t.graph.full(channels, v, dtype), Ok)
}

fn channels(t: &mut Translation<'_>) -> Found {
    let (eps, has_statistics) = (float("epsilon", t.float("eps")?), t.flag("has_statistics")?);
    let channels = [t.x().dims()[1]];
    let dtype = t.x().dtype();
    if t.op.inputs.iter().any(|x| x.dtype() != dtype) {
        return absent("its operands have several dtypes");
    }
    let [weight, bias] = parameters(t, 1 + usize::from(t.flag("has_residual")?))?;
    let weight = parameter(t, weight, &channels, 1.0, dtype)?;
    let bias = parameter(t, bias, &channels, 0.0, dtype)?;
    let x = t.inputs[0];
    if has_statistics {
        let [mean, var] = t.inputs[t.inputs.len() - 2..] else { return absent("it has no statistics") };
        return Ok(vec![t.graph.node("BatchNormalization", &[x, weight, bias, mean, var], &[eps])]);
    }
    Ok(vec![match t.op.name {
        "instance_norm" if t.x().rank() > 2 => t.graph.node("InstanceNormalization", &[x, weight, bias], &[eps]),
        "group_norm" if t.x().rank() > 2 => {
            let groups = int("num_groups", t.int("groups")?);
            t.graph.node("GroupNormalization", &[x, weight, bias], &[eps, groups])
        }
        "group_norm" => {
            let groups = int("num_groups", t.int("groups")?);
            let x = t.unsqueeze(x, &[-1])?;
            let y = t.graph.node("GroupNormalization", &[x, weight, bias], &[eps, groups]);
            t.squeeze(y, &[-1])?
        }
        "batch_norm" | "batch_norm_relu" | "batch_norm_relu6" => {
            let (mean, var) = moments(t, x)?;
            t.graph.node("BatchNormalization", &[x, weight, bias, mean, var], &[eps])
        }
        _ => return absent("it has no elements beside its channels"),
    }])
}

/// A batch norm, the sum with a residual, and a relu, maybe up to 6.
fn batch_relu(t: &mut Translation<'_>) -> Found {
    let mut y = channels(t)?[0];
    if t.flag("has_residual")? {
        y = t.graph.node("Add", &[y, t.inputs[1]], &[]);
    }
    if t.op.name == "batch_norm_relu" {
        return Ok(vec![t.graph.node("Relu", &[y], &[])]);
    }
    let dtype = t.x().dtype();
    let (least, most) = (t.graph.scalar(0.0, dtype)?, t.graph.scalar(6.0, dtype)?);
    Ok(vec![t.graph.node("Clip", &[y, least, most], &[])])
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

/// Weight and bias after `first` operands.
fn parameters(t: &Translation<'_>, first: usize) -> Found<[Option<Value>; 2]> {
    let (has_weight, has_bias) = (t.flag("has_weight")?, t.flag("has_bias")?);
    let mut rest = t.inputs[first..].iter().copied();
    let weight = if has_weight { rest.next() } else { None };
    Ok([weight, if has_bias { rest.next() } else { None }])
}

fn layer(t: &mut Translation<'_>) -> Found {
    let has_residual = t.op.name == "residual_layer_norm";
    let (dims, eps) = (t.int("dims")?, t.float("eps")?);
    let activation = t.text("activation")?;
    // Of several dtypes, arithmetic is in the accumulation dtype.
    let dtypes: Vec<DType> = t.op.inputs.iter().map(|x| x.dtype()).collect();
    let is_mixed = dtypes.iter().any(|dtype| *dtype != dtypes[0]);
    let wide = if dtypes.contains(&DType::F64) { DType::F64 } else { DType::F32 };
    if is_mixed && !activation.is_empty() {
        return absent("its operands have several dtypes");
    }
    for (i, _) in dtypes.iter().enumerate().filter(|(_, dtype)| is_mixed && **dtype != wide) {
        t.inputs[i] = t.cast(t.inputs[i], wide);
    }
    let [weight, bias] = parameters(t, 1 + usize::from(has_residual))?;
    let row = t.x().dims()[t.x().rank() - dims as usize..].to_vec();
    let weight = parameter(t, weight, &row, 1.0, if is_mixed { wide } else { dtypes[0] })?;
    let x = match has_residual {
        true => t.graph.node("Add", &[t.inputs[0], t.inputs[1]], &[]),
        false => t.inputs[0],
    };
    let attributes = [int("axis", -dims), float("epsilon", eps)];
    let y = t.graph.node_of("LayerNormalization", &[Some(x), Some(weight), bias], &attributes, 1)[0];
    let y = activated(t, y, activation)?[0];
    let mut found = if has_residual { vec![y, x] } else { vec![y] };
    for (value, y) in found.iter_mut().zip(&t.op.outputs).filter(|(_, y)| is_mixed && y.dtype() != wide) {
        *value = t.graph.node("Cast", &[*value], &[int("to", data_type(y.dtype()).into())]);
    }
    Ok(found)
}

/// `x / sqrt(mean(x^2) + eps) * weight`: the op of ONNX is of a later opset.
fn rms(t: &mut Translation<'_>) -> Found {
    let (dims, eps) = (t.int("dims")?, t.float("eps")?);
    let [weight, _] = parameters(t, 1)?;
    let (x, dtype) = (t.inputs[0], t.x().dtype());
    if t.op.inputs.iter().any(|x| x.dtype() != dtype) {
        return absent("its operands have several dtypes");
    }
    let axes = t.graph.ints(&(-dims..0).collect::<Vec<_>>())?;
    let eps = t.graph.scalar(eps, dtype)?;
    let square = t.graph.node("Mul", &[x, x], &[]);
    let mean = t.graph.node("ReduceMean", &[square, axes], &[int("keepdims", 1)]);
    let sum = t.graph.node("Add", &[mean, eps], &[]);
    let root = t.graph.node("Sqrt", &[sum], &[]);
    let y = t.graph.node("Div", &[x, root], &[]);
    Ok(vec![weight.map_or(y, |weight| t.graph.node("Mul", &[y, weight], &[]))])
}
