//! Branches and loops, whose bodies are graphs.

use super::{Op, Table};
use crate::import::call::{Call, axis_of, misshapen, sizes, wrong};
use crate::import::value::Value;
use isograd_core::{DType, Error, Result, Tensor};

pub const OPS: Table = &[("If", Op::Many(branch)), ("Loop", Op::Many(repeat)), ("Scan", Op::Many(scan))];

fn branch(c: &Call<'_>) -> Result<Vec<Value>> {
    let name = if c.is_true(0)? { "then_branch" } else { "else_branch" };
    c.run.graph(c.node.attributes.graph(name)?, Vec::new())
}

/// The body runs while its condition holds, and at most as often as is said. Inputs: the number, the condition, and the values that a run
/// hands to the next. Outputs: these values, and those that are collected from all runs.
fn repeat(c: &Call<'_>) -> Result<Vec<Value>> {
    let body = c.node.attributes.graph("body")?;
    let most = match c.given(0) {
        Some(_) => c.int_of(0)?,
        None => i64::MAX,
    };
    let mut goes_on = c.given(1).is_none() || c.is_true(1)?;
    let mut carried: Vec<Value> = (2..c.inputs.len()).map(|i| c.inputs[i].clone().unwrap_or(Value::Absent)).collect();
    let Some(collected) = body.outputs.len().checked_sub(carried.len() + 1) else {
        return wrong(format!("the body has {} outputs for {} values", body.outputs.len(), carried.len()));
    };
    let mut parts: Vec<Vec<Value>> = vec![Vec::new(); collected];
    let mut i = 0;
    while i < most && goes_on {
        let inputs = [vec![Value::int(i), Value::bool(goes_on)], carried].concat();
        let mut outputs = c.run.graph(body, inputs)?.into_iter();
        let condition = outputs.next().ok_or_else(|| Error::value("onnx", "the body has no condition"))?;
        goes_on = condition.ints()?.first().is_some_and(|&v| v != 0);
        carried = outputs.by_ref().take(c.inputs.len().max(2) - 2).collect();
        parts.iter_mut().zip(outputs).for_each(|(part, value)| part.push(value));
        i += 1;
    }
    for part in &parts {
        carried.push(stacked(c, part, 0, false)?);
    }
    Ok(carried)
}

/// The values of all runs along a new dimension.
fn stacked(c: &Call<'_>, parts: &[Value], axis: i64, is_reversed: bool) -> Result<Value> {
    let Some(first) = parts.first() else {
        return Ok(Tensor::zeros(0, DType::F32, c.device())?.into());
    };
    let mut tensors: Vec<Tensor> = parts.iter().map(|part| part.tensor(c.device())).collect::<Result<_>>()?;
    if is_reversed {
        tensors.reverse();
    }
    let axis = axis_of(axis, tensors[0].rank() + 1)?;
    Ok(Value::Tensor(Tensor::stack(&tensors.iter().collect::<Vec<_>>(), axis as isize)?, first.element()?))
}

/// The body runs for each element of its sequences. Outputs: the states after the last run, and sequences of the others.
fn scan(c: &Call<'_>) -> Result<Vec<Value>> {
    let body = c.node.attributes.graph("body")?;
    let count = sizes(&[c.needed("num_scan_inputs")?])?[0];
    if c.opset() < 9 {
        return scan_batches(c);
    }
    let Some(states) = c.inputs.len().checked_sub(count).filter(|_| count > 0) else {
        return wrong(format!("{count} of {} inputs are sequences", c.inputs.len()));
    };
    let state = (0..states).map(|i| c.value(i).cloned()).collect::<Result<Vec<_>>>()?;
    let sequences = (states..c.inputs.len()).map(|i| c.x(i)).collect::<Result<Vec<_>>>()?;
    let list = |name: &str, n: usize| match c.list(name)? {
        Some(list) if list.len() == n => Ok(list),
        Some(list) => misshapen(format!("{name} is {list:?} for {n} sequences")),
        None => Ok(vec![0; n]),
    };
    let axes = list("scan_input_axes", count)?;
    let axes = axes.iter().zip(&sequences).map(|(&axis, x)| axis_of(axis, x.rank())).collect::<Result<Vec<_>>>()?;
    let directions = list("scan_input_directions", count)?;
    let collected = body.outputs.len().saturating_sub(states);
    let (out_axes, out_directions) = (list("scan_output_axes", collected)?, list("scan_output_directions", collected)?);
    let length = sequences[0].dims()[axes[0]];
    if sequences.iter().zip(&axes).any(|(x, &axis)| x.dims()[axis] != length) {
        return misshapen("the sequences of a scan have several lengths");
    }
    let elements = (states..c.inputs.len()).map(|i| c.element(i)).collect::<Result<Vec<_>>>()?;
    let mut carried = state;
    let mut parts: Vec<Vec<Value>> = vec![Vec::new(); collected];
    for i in 0..length {
        let mut inputs = carried;
        for (k, x) in sequences.iter().enumerate() {
            let at = if directions[k] == 0 { i } else { length - 1 - i };
            inputs.push(Value::Tensor(x.select(axes[k] as isize, at as isize)?, elements[k]));
        }
        let mut outputs = c.run.graph(body, inputs)?.into_iter();
        carried = outputs.by_ref().take(states).collect();
        parts.iter_mut().zip(outputs).for_each(|(part, value)| part.push(value));
    }
    for ((part, &axis), &direction) in parts.iter().zip(&out_axes).zip(&out_directions) {
        carried.push(stacked(c, part, axis, direction != 0)?);
    }
    Ok(carried)
}

/// A scan of opset 8, whose states and sequences have a first dimension of samples, each of which is scanned alone.
fn scan_batches(c: &Call<'_>) -> Result<Vec<Value>> {
    let body = c.node.attributes.graph("body")?;
    let count = sizes(&[c.needed("num_scan_inputs")?])?[0];
    if c.given(0).is_some() {
        return crate::import::call::unsupported("a scan of opset 8 over sequences of several lengths");
    }
    let directions = c.list("directions")?.unwrap_or_else(|| vec![0; count]);
    let all = (1..c.inputs.len()).map(|i| c.x(i)).collect::<Result<Vec<_>>>()?;
    let Some(states) = all.len().checked_sub(count).filter(|_| count > 0 && directions.len() == count) else {
        return wrong(format!("{count} of {} inputs are sequences", all.len()));
    };
    if all.iter().any(|x| x.rank() == 0 || x.dims()[0] != all[0].dims()[0])
        || all[states..].iter().any(|x| x.rank() < 2)
    {
        return misshapen("the states and sequences of a scan have several numbers of samples");
    }
    let collected = body.outputs.len().saturating_sub(states);
    let mut results: Vec<Vec<Value>> = vec![Vec::new(); states + collected];
    for sample in 0..all[0].dims()[0] {
        let of = |x: &Tensor| x.select(0, sample as isize);
        let mut carried = all[..states].iter().map(|x| Ok(of(x)?.into())).collect::<Result<Vec<Value>>>()?;
        let sequences = all[states..].iter().map(of).collect::<Result<Vec<_>>>()?;
        let length = sequences[0].dims()[0];
        let mut parts: Vec<Vec<Value>> = vec![Vec::new(); collected];
        for i in 0..length {
            let mut inputs = carried;
            for (x, &direction) in sequences.iter().zip(&directions) {
                let at = if direction == 0 { i } else { length - 1 - i };
                inputs.push(x.select(0, at as isize)?.into());
            }
            let mut outputs = c.run.graph(body, inputs)?.into_iter();
            carried = outputs.by_ref().take(states).collect();
            parts.iter_mut().zip(outputs).for_each(|(part, value)| part.push(value));
        }
        let parts = parts.iter().map(|part| stacked(c, part, 0, false)).collect::<Result<Vec<_>>>()?;
        results.iter_mut().zip(carried.into_iter().chain(parts)).for_each(|(all, value)| all.push(value));
    }
    results.iter().map(|all| stacked(c, all, 0, false)).collect()
}
