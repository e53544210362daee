//! Numbers of the host in other places: slices, gathers, joins, and reductions to few.

use super::{Operands, broadcast_dims, place, rounded, small};
use crate::import::call::{axes_of, axis_of, sizes};
use crate::import::ops::arrange::{slice_places, split_sizes};
use crate::import::ops::create::{Range, range_of};
use crate::import::ops::shape::{infer, squeezed, unsqueezed};
use crate::import::value::{Host, Numbers};
use isograd_core::{Error, Result};

/// The results of a call; `None` for an operator that is not here.
pub fn evaluate(operands: &Operands<'_>) -> Result<Option<Vec<Host>>> {
    let call = operands.call;
    let found = match call.node.op_type {
        "Identity" => operands.given(0).map(|x| x.reshaped(x.dims.clone())),
        "Reshape" => {
            let x = operands.x(0)?;
            Some(x.reshaped(infer(&x.dims, &call.ints(1)?, call.flag("allowzero")?)?))
        }
        "Squeeze" => Some(operands.x(0)?.reshaped(squeezed(&operands.x(0)?.dims, call.moved_ints("axes", 1)?)?)),
        "Unsqueeze" => {
            let axes = call.moved_ints("axes", 1)?.unwrap_or_default();
            Some(operands.x(0)?.reshaped(unsqueezed(&operands.x(0)?.dims, &axes)?))
        }
        "Transpose" if operands.x(0)?.dims.len() <= 1 => Some(operands.x(0)?.reshaped(operands.x(0)?.dims.clone())),
        "Concat" => concat(operands)?,
        "Gather" => Some(gather(operands)?),
        "Slice" => Some(slice(operands)?),
        "Split" => return split(operands).map(Some),
        "Expand" => expand(operands)?,
        "Range" => range(operands)?,
        "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" => reduce(operands)?,
        _ => None,
    };
    Ok(found.map(|found| vec![found]))
}

fn concat(operands: &Operands<'_>) -> Result<Option<Host>> {
    let Some(parts) = operands.each() else { return Ok(None) };
    let rank = parts[0].dims.len();
    let axis = axis_of(operands.call.needed("axis")?, rank)?;
    let is_alike = |part: &&Host| {
        let is_same = |d: usize| d == axis || part.dims.get(d) == parts[0].dims.get(d);
        part.dims.len() == rank && part.element == parts[0].element && (0..rank).all(is_same)
    };
    let total: usize = parts.iter().map(|part| part.dims.get(axis).copied().unwrap_or(0)).sum();
    let mut dims = parts[0].dims.clone();
    dims[axis] = total;
    if !parts.iter().all(is_alike) || small(&dims).is_none() {
        // The op of tensors has the words for it.
        return Ok(None);
    }
    let outer: usize = dims[..axis].iter().product();
    fn joined<T: Copy>(parts: &[(&[T], usize)], outer: usize) -> Vec<T> {
        let rows = |o: usize| parts.iter().flat_map(move |(v, n)| v[o * n..(o + 1) * n].iter().copied());
        (0..outer).flat_map(rows).collect()
    }
    let row = |part: &Host| part.dims[axis..].iter().product::<usize>();
    let ints: Option<Vec<(&[i64], usize)>> = parts
        .iter()
        .map(|part| if let Numbers::Ints(v) = &part.numbers { Some((&v[..], row(part))) } else { None })
        .collect();
    let numbers = match ints {
        Some(ints) => Numbers::Ints(joined(&ints, outer)),
        None => {
            let floats: Vec<(Vec<f64>, usize)> = parts.iter().map(|part| (part.to_floats(), row(part))).collect();
            let floats: Vec<(&[f64], usize)> = floats.iter().map(|(v, n)| (&v[..], *n)).collect();
            Numbers::Floats(joined(&floats, outer))
        }
    };
    Ok(Some(Host::new(parts[0].element, dims, numbers)))
}

fn gather(operands: &Operands<'_>) -> Result<Host> {
    let (x, index) = (operands.x(0)?, operands.call.ints(1)?);
    let axis = operands.call.axis("axis", 0, x.dims.len())?;
    let extent = x.dims[axis];
    let (inner, outer) = (x.dims[axis + 1..].iter().product::<usize>(), x.dims[..axis].iter().product::<usize>());
    let at = |&i: &i64| {
        let counted = if i < 0 { i.saturating_add(extent as i64) } else { i };
        let found = usize::try_from(counted).ok().filter(|&i| i < extent);
        found.ok_or_else(|| Error::index("onnx", format!("the index is {i}, the extent {extent}")))
    };
    let index_dims = &operands.x(1)?.dims;
    let index: Vec<usize> = index.iter().map(at).collect::<Result<_>>()?;
    let index = &index;
    let places =
        (0..outer).flat_map(|o| index.iter().flat_map(move |i| (0..inner).map(move |k| (o * extent + i) * inner + k)));
    let dims = [&x.dims[..axis], index_dims, &x.dims[axis + 1..]].concat();
    Ok(x.at(dims, places))
}

fn slice(operands: &Operands<'_>) -> Result<Host> {
    let x = operands.x(0)?;
    let mut strides = vec![1; x.dims.len()];
    for d in (1..x.dims.len()).rev() {
        strides[d - 1] = strides[d] * x.dims[d];
    }
    let places = slice_places(operands.call, &x.dims)?;
    let dims: Vec<usize> = places.iter().map(|range| range.len).collect();
    let of_element = |mut i: usize| {
        let mut at = 0;
        for (d, range) in places.iter().enumerate().rev() {
            at += range.at(i % range.len) * strides[d];
            i /= range.len;
        }
        at
    };
    Ok(x.at(dims.clone(), (0..dims.iter().product()).map(of_element)))
}

fn split(operands: &Operands<'_>) -> Result<Vec<Host>> {
    let x = operands.x(0)?;
    let (axis, lengths) = split_sizes(operands.call, &x.dims)?;
    let (inner, outer) = (x.dims[axis + 1..].iter().product::<usize>(), x.dims[..axis].iter().product::<usize>());
    let (mut start, mut found) = (0, Vec::new());
    for length in lengths {
        let mut dims = x.dims.clone();
        dims[axis] = length;
        let row = move |o: usize| {
            let first = (o * x.dims[axis] + start) * inner;
            first..first + length * inner
        };
        found.push(x.at(dims, (0..outer).flat_map(row)));
        start += length;
    }
    Ok(found)
}

fn expand(operands: &Operands<'_>) -> Result<Option<Host>> {
    let x = operands.x(0)?;
    let dims = broadcast_dims(&[&x.dims, &sizes(&operands.call.ints(1)?)?])?;
    Ok(small(&dims).map(|_| x.broadcast(&dims)))
}

fn range(operands: &Operands<'_>) -> Result<Option<Host>> {
    let (Some(range), element) = (range_of(operands.call)?, operands.x(0)?.element) else { return Ok(None) };
    Ok(match range {
        Range::Ints { start, step, len } if small(&[len]).is_some() => {
            let numbers = (0..len as i64).map(|i| start.wrapping_add(i.wrapping_mul(step))).collect();
            Some(Host::ints(element, vec![len], numbers))
        }
        Range::Floats { start, step, len } if small(&[len]).is_some() => {
            let numbers = (0..len).map(|i| rounded(element, start + i as f64 * step)).collect();
            Some(Host::floats(element, vec![len], numbers))
        }
        _ => None,
    })
}

/// A reduction over all or some dimensions, of integers.
fn reduce(operands: &Operands<'_>) -> Result<Option<Host>> {
    let x = operands.x(0)?;
    let Numbers::Ints(numbers) = &x.numbers else { return Ok(None) };
    let axes = operands.call.moved_ints("axes", 1)?.unwrap_or_default();
    if axes.is_empty() && operands.call.flag("noop_with_empty_axes")? {
        return Ok(None);
    }
    let rank = x.dims.len();
    let axes = if axes.is_empty() { (0..rank).collect() } else { axes_of(&axes, rank)? };
    let name = operands.call.node.op_type;
    if numbers.is_empty() && matches!(name, "ReduceMax" | "ReduceMin") {
        return Ok(None);
    }
    let kept: Vec<usize> = (0..rank).map(|d| if axes.contains(&d) { 1 } else { x.dims[d] }).collect();
    let mut strides = vec![0; rank];
    let mut stride = 1;
    for d in (0..rank).rev().filter(|d| !axes.contains(d)) {
        strides[d] = stride;
        stride *= x.dims[d];
    }
    let mut found: Vec<Option<i64>> = vec![None; stride];
    for (i, &v) in numbers.iter().enumerate() {
        let to = &mut found[place(i, &x.dims, &strides)];
        *to = Some(to.map_or(v, |known| match name {
            "ReduceProd" => known.wrapping_mul(v),
            "ReduceSum" => known.wrapping_add(v),
            "ReduceMax" => known.max(v),
            _ => known.min(v),
        }));
    }
    let empty = (name == "ReduceProd") as i64;
    let numbers = found.into_iter().map(|v| x.element.wrap_number(v.unwrap_or(empty))).collect();
    let is_kept = operands.call.int("keepdims", 1)? != 0;
    let dims = (0..rank).filter(|d| is_kept || !axes.contains(d)).map(|d| kept[d]).collect();
    Ok(Some(Host::ints(x.element, dims, numbers)))
}
