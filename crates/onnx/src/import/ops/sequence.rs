//! Sequences of tensors, and values that may be absent.

use super::{Op, Table};
use crate::import::call::{Call, axis_of, misshapen, sizes};
use crate::import::value::Value;
use isograd_core::{Error, Result, Tensor};
use std::sync::Arc;

pub const OPS: Table = &[
    (
        "SequenceConstruct",
        Op::One(|c| Ok(sequence((0..c.inputs.len()).map(|i| c.value(i).cloned()).collect::<Result<_>>()?))),
    ),
    ("SequenceEmpty", Op::One(|_| Ok(sequence(Vec::new())))),
    ("SequenceLength", Op::One(|c| Ok(Value::int(elements(c)?.len() as i64)))),
    ("SequenceAt", Op::One(|c| Ok(elements(c)?[place(c, 1, 0)?].clone()))),
    ("SequenceInsert", Op::One(insert)),
    ("SequenceErase", Op::One(erase)),
    ("SplitToSequence", Op::One(split)),
    ("ConcatFromSequence", Op::One(concat)),
    ("SequenceMap", Op::Many(map)),
    ("Optional", Op::One(|c| Ok(c.given(0).cloned().unwrap_or(Value::Absent)))),
    ("OptionalHasElement", Op::One(|c| Ok(Value::bool(c.given(0).is_some())))),
    ("OptionalGetElement", Op::One(|c| c.value(0).cloned())),
];

fn sequence(values: Vec<Value>) -> Value {
    Value::Sequence(Arc::new(values))
}

fn elements<'a>(c: &'a Call<'_>) -> Result<&'a [Value]> {
    match c.value(0)? {
        Value::Sequence(values) => Ok(values),
        _ => Err(Error::dtype("onnx", "a tensor was given, expected a sequence")),
    }
}

/// The place that input `i` names, of those of a sequence and `more`. Without the input, the last one.
fn place(c: &Call<'_>, i: usize, more: usize) -> Result<usize> {
    let count = elements(c)?.len() + more;
    if c.given(i).is_none() {
        return count.checked_sub(1).ok_or_else(|| Error::index("onnx", "the sequence is empty"));
    }
    let at = c.int_of(i)?;
    let counted = if at < 0 { at.saturating_add(count as i64 - more as i64) } else { at };
    let found = usize::try_from(counted).ok().filter(|&at| at < count);
    found.ok_or_else(|| Error::index("onnx", format!("the place is {at}, the sequence has {} values", count - more)))
}

fn insert(c: &Call<'_>) -> Result<Value> {
    let (mut values, at) = (elements(c)?.to_vec(), place(c, 2, 1)?);
    values.insert(at, c.value(1)?.clone());
    Ok(sequence(values))
}

fn erase(c: &Call<'_>) -> Result<Value> {
    let (mut values, at) = (elements(c)?.to_vec(), place(c, 1, 0)?);
    values.remove(at);
    Ok(sequence(values))
}

fn split(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    let axis = c.axis("axis", 0, x.rank())?;
    let extent = x.dims()[axis];
    let (is_whole, keeps) = (c.given(1).is_none(), c.int("keepdims", 1)? != 0);
    let lengths = match c.optional_ints(1)? {
        None => vec![1; extent],
        Some(each) if c.value(1)?.dims()?.is_empty() => {
            let each = sizes(&each)?[0];
            if each == 0 {
                return misshapen("parts of 0 elements");
            }
            (0..extent.div_ceil(each)).map(|i| each.min(extent - i * each)).collect()
        }
        Some(lengths) => sizes(&lengths)?,
    };
    let parts = x.split_with_sizes(&lengths, axis as isize)?.into_iter();
    let shaped = |part: Tensor| if is_whole && !keeps { part.squeeze(axis as isize) } else { Ok(part) };
    Ok(sequence(parts.map(|part| c.moved(0, shaped(part)?)).collect::<Result<_>>()?))
}

fn concat(c: &Call<'_>) -> Result<Value> {
    let values = elements(c)?;
    let Some(first) = values.first() else { return misshapen("the sequence is empty") };
    let parts: Vec<Tensor> = values.iter().map(|value| value.tensor(c.device())).collect::<Result<_>>()?;
    let parts: Vec<&Tensor> = parts.iter().collect();
    let is_new = c.flag("new_axis")?;
    let axis = axis_of(c.needed("axis")?, parts[0].rank() + usize::from(is_new))? as isize;
    let y = if is_new { Tensor::stack(&parts, axis)? } else { Tensor::concat(&parts, axis)? };
    Ok(Value::Tensor(y, first.element()?))
}

/// The results of the body for each value of a sequence; other sequences go along, and tensors are the same for all.
fn map(c: &Call<'_>) -> Result<Vec<Value>> {
    let body = c.node.attributes.graph("body")?;
    let mut results: Vec<Vec<Value>> = vec![Vec::new(); body.outputs.len()];
    for i in 0..elements(c)?.len() {
        let input = |k: usize| match c.value(k)? {
            Value::Sequence(values) => {
                values.get(i).cloned().ok_or_else(|| Error::shape("onnx", "sequences of several lengths are mapped"))
            }
            other => Ok(other.clone()),
        };
        let inputs = (0..c.inputs.len()).map(input).collect::<Result<_>>()?;
        results.iter_mut().zip(c.run.graph(body, inputs)?).for_each(|(all, value)| all.push(value));
    }
    Ok(results.into_iter().map(sequence).collect())
}
