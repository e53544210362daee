//! Elements in other places: joined, sliced, split, repeated, padded.

use super::{Op, Table};
use crate::import::call::{Call, axes_of, axis_of, few, misshapen, sizes, unsupported, wrong};
use crate::import::value::{Numbers, Value};
use isograd_core::ops::Pad;
use isograd_core::{DType, Result, Scalar, Tensor};

pub const OPS: Table = &[
    ("Concat", Op::One(concat)),
    ("Slice", Op::One(slice)),
    ("Split", Op::Many(split)),
    ("Expand", Op::One(expand)),
    ("Tile", Op::One(tile)),
    ("Pad", Op::One(pad)),
    ("Trilu", Op::One(trilu)),
    ("CenterCropPad", Op::One(center_crop_pad)),
];

fn concat(c: &Call<'_>) -> Result<Value> {
    let parts = c.all()?;
    let axis = c.axis("axis", 1, parts[0].rank())?;
    c.moved(0, Tensor::concat(&parts.iter().collect::<Vec<_>>(), axis as isize)?)
}

/// Elements of a dimension: `len` of them, `step` apart.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    start: i64,
    step: i64,
    pub len: usize,
}

impl Places {
    /// The place of element `i`.
    pub fn at(&self, i: usize) -> usize {
        (self.start + i as i64 * self.step) as usize
    }

    /// From `start` to `end`, which is not included, in an extent to which both are clamped.
    fn new(extent: usize, start: i64, end: i64, step: i64) -> Result<Places> {
        let extent = extent as i64;
        let counted = |v: i64| if v < 0 { v.saturating_add(extent) } else { v };
        let (low, high) = if step > 0 { (0, extent) } else { (-1, extent - 1) };
        let start = counted(start).clamp(low.max(0).min(high.max(0)), high.max(0));
        let end = counted(end).clamp(low, high.max(low));
        let distance = if step > 0 { end - start } else { start - end };
        let len = match step {
            0 => return wrong("the step of a slice is 0"),
            _ if extent == 0 || distance <= 0 => 0,
            _ => (distance as u64).div_ceil(step.unsigned_abs()) as usize,
        };
        Ok(Places { start, step, len })
    }

    fn whole(extent: usize) -> Places {
        Places { start: 0, step: 1, len: extent }
    }
}

/// The elements of each dimension that a slice has.
pub fn slice_places(c: &Call<'_>, dims: &[usize]) -> Result<Vec<Places>> {
    let [starts, ends] = [("starts", 1), ("ends", 2)].map(|(name, i)| c.moved_ints(name, i));
    let (starts, ends) = (starts?.unwrap_or_default(), ends?.unwrap_or_default());
    let axes = c.moved_ints("axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = c.optional_ints(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()].iter().any(|&n| n != starts.len()) {
        return misshapen(format!("a slice from {starts:?} to {ends:?} has the axes {axes:?} and the steps {steps:?}"));
    }
    let mut places: Vec<Places> = dims.iter().map(|&extent| Places::whole(extent)).collect();
    for (i, axis) in axes_of(&axes, dims.len())?.into_iter().enumerate() {
        places[axis] = Places::new(dims[axis], starts[i], ends[i], steps[i])?;
    }
    Ok(places)
}

fn slice(c: &Call<'_>) -> Result<Value> {
    let mut x = c.x(0)?;
    for (d, places) in slice_places(c, x.dims())?.into_iter().enumerate() {
        let (dim, Places { start, step, len }) = (d as isize, places);
        if (start, step, len) == (0, 1, x.dims()[d]) {
            continue;
        }
        let last = if len == 0 { 0 } else { places.at(len - 1) };
        x = match step {
            _ if len == 0 => x.narrow(dim, 0, 0)?,
            1.. => x.slice(dim, start as usize, last + 1, step as usize)?,
            _ => x.slice(dim, last, start as usize + 1, step.unsigned_abs() as usize)?.flip(&[dim])?,
        };
    }
    c.moved(0, x)
}

/// The axis and the extents of the parts of a split.
pub fn split_sizes(c: &Call<'_>, dims: &[usize]) -> Result<(usize, Vec<usize>)> {
    let axis = c.axis("axis", 0, dims.len())?;
    let lengths = match c.moved_ints("split", 1)? {
        Some(lengths) => sizes(&lengths)?,
        None => {
            let count = few(c.int("num_outputs", c.node.outputs.len() as i64)?.max(1) as usize)?;
            let each = dims[axis].div_ceil(count);
            (0..count).map(|i| dims[axis].saturating_sub(i * each).min(each)).collect()
        }
    };
    if lengths.iter().sum::<usize>() != dims[axis] {
        return misshapen(format!("dimension {axis} of {dims:?} is no sum of {lengths:?}"));
    }
    Ok((axis, lengths))
}

fn split(c: &Call<'_>) -> Result<Vec<Value>> {
    let x = c.x(0)?;
    let (axis, lengths) = split_sizes(c, x.dims())?;
    x.split_with_sizes(&lengths, axis as isize)?.into_iter().map(|part| c.moved(0, part)).collect()
}

/// The extents to which two shapes broadcast.
pub fn common(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |dims: &[usize], d: usize| (d + dims.len()).checked_sub(rank).map_or(1, |d| dims[d]);
    let extent = |d: usize| match (at(a, d), at(b, d)) {
        (1, other) | (other, 1) => Ok(other),
        (one, other) if one == other => Ok(one),
        _ => misshapen(format!("{a:?} and {b:?} do not broadcast")),
    };
    (0..rank).map(extent).collect()
}

fn expand(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    let dims = common(x.dims(), &sizes(&c.ints(1)?)?)?;
    c.moved(0, x.broadcast_to(dims)?)
}

fn tile(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    c.moved(0, x.repeat(&sizes(&c.ints(1)?)?)?)
}

/// Numbers of elements that are added before and after each dimension, of which a negative one removes elements.
fn pads(c: &Call<'_>, rank: usize) -> Result<Vec<[isize; 2]>> {
    let all = c.moved_ints("pads", 1)?.unwrap_or_default();
    let axes = match c.optional_ints(3)? {
        Some(axes) => axes_of(&axes, rank)?,
        None => (0..rank).collect(),
    };
    if all.len() != 2 * axes.len() {
        return misshapen(format!("{} pads are given for {} dimensions", all.len(), axes.len()));
    }
    let mut ends = vec![[0; 2]; rank];
    for (i, &axis) in axes.iter().enumerate() {
        ends[axis] = [all[i] as isize, all[axes.len() + i] as isize];
    }
    Ok(ends)
}

fn pad(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    let ends = pads(c, x.rank())?;
    let copies = match c.text("mode", "constant")? {
        "constant" => return c.moved(0, x.pad(&ends, Pad::Constant(padding_value(c, x.dtype())?))?),
        "reflect" => Pad::Reflect,
        "edge" => Pad::Replicate,
        "wrap" => Pad::Circular,
        other => return unsupported(format!("a padding of the mode {other:?}")),
    };
    let first = ends.iter().position(|ends| *ends != [0; 2]).unwrap_or(x.rank());
    let reach = |d: usize| x.dims()[d] as isize - (copies == Pad::Reflect) as isize;
    let fits = |d: usize| ends[d].iter().all(|&n| (0..=reach(d)).contains(&n));
    if x.rank() - first <= 3 && (first..x.rank()).all(fits) {
        return c.moved(0, x.pad(&ends[first..], copies)?);
    }
    let mut y = x;
    for (d, ends) in ends.into_iter().enumerate().filter(|(_, ends)| *ends != [0; 2]) {
        let index = copied_places(y.dims()[d], ends, copies)?;
        y = y.index_select(d as isize, &Tensor::from_slice(&index, index.len(), y.device())?)?;
    }
    c.moved(0, y)
}

/// The places of a dimension whose elements stand in one that is padded.
fn copied_places(extent: usize, [low, high]: [isize; 2], copies: Pad) -> Result<Vec<i64>> {
    let (n, low, high) = (extent as i64, low as i64, high as i64);
    let extent = n.saturating_add(low).saturating_add(high);
    if n == 0 || extent < 0 {
        return misshapen(format!("{low} and {high} elements cannot be added to {n}"));
    }
    few(extent as usize)?;
    let place = |i: i64| match copies {
        Pad::Replicate => i.clamp(0, n - 1),
        Pad::Circular => i.rem_euclid(n),
        _ if n == 1 => 0,
        _ => {
            let i = i.rem_euclid(2 * (n - 1));
            i.min(2 * (n - 1) - i)
        }
    };
    Ok((-low..n + high).map(place).collect())
}

/// The constant of a padding.
fn padding_value(c: &Call<'_>, dtype: DType) -> Result<Scalar> {
    let numbers = match (c.given(2), c.node.attributes.float("value")?) {
        (Some(value), _) => value.numbers()?,
        (None, Some(value)) => Numbers::Floats(vec![value]),
        (None, None) => Numbers::Ints(vec![0]),
    };
    Ok(match numbers {
        Numbers::Ints(v) if !dtype.is_float() => v.first().copied().unwrap_or(0).into(),
        Numbers::Ints(v) => (v.first().copied().unwrap_or(0) as f64).into(),
        Numbers::Floats(v) if dtype.is_float() => v.first().copied().unwrap_or(0.0).into(),
        Numbers::Floats(v) => (v.first().copied().unwrap_or(0.0) as i64).into(),
    })
}

fn trilu(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    let offset = if c.given(1).is_some() { c.int_of(1)? } else { 0 };
    // Diagonals beyond the matrix are all alike.
    let offset = offset.clamp(-(1 << 31), 1 << 31) as isize;
    c.moved(0, if c.int("upper", 1)? != 0 { x.triu(offset)? } else { x.tril(offset)? })
}

fn center_crop_pad(c: &Call<'_>) -> Result<Value> {
    let (x, target) = (c.x(0)?, sizes(&c.ints(1)?)?);
    let axes = match c.list("axes")? {
        Some(axes) => axes.iter().map(|&axis| axis_of(axis, x.rank())).collect::<Result<_>>()?,
        None => (0..x.rank()).collect::<Vec<_>>(),
    };
    if axes.len() != target.len() {
        return misshapen(format!("{target:?} was asked for {} dimensions", axes.len()));
    }
    let mut ends = vec![[0isize; 2]; x.rank()];
    for (&axis, &extent) in axes.iter().zip(&target) {
        let (from, to) = (x.dims()[axis] as isize, extent as isize);
        // An odd element is removed and added at the end.
        let low = if to < from { -((from - to) / 2) } else { (to - from) / 2 };
        ends[axis] = [low, to - from - low];
    }
    c.moved(0, x.pad(&ends, Pad::ZEROS)?)
}
