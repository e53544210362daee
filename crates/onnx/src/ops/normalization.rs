//! Normalisations.

use super::matrix::activated;
use super::{Found, Translation, given, unsupported};
use crate::graph::{Value, float, int};
use isograd_core::Result;

pub fn translate(t: &mut Translation<'_>) -> Result<Found> {
    match t.op.name {
        "batch_norm" | "group_norm" | "instance_norm" => channels(t),
        "rms_norm" => rms(t),
        _ => layer(t),
    }
}

/// The value of a parameter, or a vector of one number for all of the `channels`.
fn parameter(t: &mut Translation<'_>, given: Option<Value>, channels: &[usize], v: f64) -> Result<Value> {
    let dtype = t.x().dtype();
    given.map_or_else(|| t.graph.full(channels, v, dtype), Ok)
}

fn channels(t: &mut Translation<'_>) -> Result<Found> {
    let (eps, has_statistics) = (float("epsilon", given!(t.float("eps"))), given!(t.flag("has_statistics")));
    let channels = [t.x().dims()[1]];
    let dtype = t.x().dtype();
    if t.op.inputs.iter().any(|x| x.dtype() != dtype) {
        unsupported!("its operands have several dtypes");
    }
    let [weight, bias] = given!(parameters(t, 1));
    let (weight, bias) = (parameter(t, weight, &channels, 1.0)?, parameter(t, bias, &channels, 0.0)?);
    let x = t.inputs[0];
    if has_statistics {
        let [mean, var] = t.inputs[t.inputs.len() - 2..] else { unsupported!("it has no statistics") };
        return Ok(Ok(vec![t.graph.node("BatchNormalization", &[x, weight, bias, mean, var], &[eps])]));
    }
    Ok(Ok(vec![match t.op.name {
        "instance_norm" if t.x().rank() > 2 => t.graph.node("InstanceNormalization", &[x, weight, bias], &[eps]),
        "group_norm" if t.x().rank() > 2 => {
            let groups = int("num_groups", given!(t.int("groups")));
            t.graph.node("GroupNormalization", &[x, weight, bias], &[eps, groups])
        }
        "group_norm" => {
            let groups = int("num_groups", given!(t.int("groups")));
            let x = t.unsqueeze(x, &[-1])?;
            let y = t.graph.node("GroupNormalization", &[x, weight, bias], &[eps, groups]);
            t.squeeze(y, &[-1])?
        }
        "batch_norm" => {
            let (mean, var) = moments(t, x)?;
            t.graph.node("BatchNormalization", &[x, weight, bias, mean, var], &[eps])
        }
        _ => unsupported!("it has no elements beside its channels"),
    }]))
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
fn parameters(t: &Translation<'_>, first: usize) -> std::result::Result<[Option<Value>; 2], String> {
    let (has_weight, has_bias) = (t.flag("has_weight")?, t.flag("has_bias")?);
    let mut rest = t.inputs[first..].iter().copied();
    let weight = if has_weight { rest.next() } else { None };
    Ok([weight, if has_bias { rest.next() } else { None }])
}

fn layer(t: &mut Translation<'_>) -> Result<Found> {
    let has_residual = t.op.name == "residual_layer_norm";
    let (dims, eps) = (given!(t.int("dims")), given!(t.float("eps")));
    let activation = given!(t.text("activation"));
    let [weight, bias] = given!(parameters(t, 1 + usize::from(has_residual)));
    let dtype = t.x().dtype();
    if t.op.inputs.iter().any(|x| x.dtype() != dtype) {
        unsupported!("its operands have several dtypes");
    }
    let row = t.x().dims()[t.x().rank() - dims as usize..].to_vec();
    let weight = parameter(t, weight, &row, 1.0)?;
    let x = match has_residual {
        true => t.graph.node("Add", &[t.inputs[0], t.inputs[1]], &[]),
        false => t.inputs[0],
    };
    let attributes = [int("axis", -dims), float("epsilon", eps)];
    let y = t.graph.node_of("LayerNormalization", &[Some(x), Some(weight), bias], &attributes, 1)[0];
    let y = given!(activated(t, y, activation)?)[0];
    Ok(Ok(if has_residual { vec![y, x] } else { vec![y] }))
}

/// `x / sqrt(mean(x^2) + eps) * weight`: the op of ONNX is of a later opset.
fn rms(t: &mut Translation<'_>) -> Result<Found> {
    let (dims, eps) = (given!(t.int("dims")), given!(t.float("eps")));
    let [weight, _] = given!(parameters(t, 1));
    let (x, dtype) = (t.inputs[0], t.x().dtype());
    if t.op.inputs.iter().any(|x| x.dtype() != dtype) {
        unsupported!("its operands have several dtypes");
    }
    let axes = t.graph.ints(&(-dims..0).collect::<Vec<_>>())?;
    let eps = t.graph.scalar(eps, dtype)?;
    let square = t.graph.node("Mul", &[x, x], &[]);
    let mean = t.graph.node("ReduceMean", &[square, axes], &[int("keepdims", 1)]);
    let sum = t.graph.node("Add", &[mean, eps], &[]);
    let root = t.graph.node("Sqrt", &[sum], &[]);
    let y = t.graph.node("Div", &[x, root], &[]);
    Ok(Ok(vec![weight.map_or(y, |weight| t.graph.node("Mul", &[y, weight], &[]))]))
}
