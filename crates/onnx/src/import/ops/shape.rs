//! Other shapes over the same elements, and what they are.

use super::{Op, Table};
use crate::import::call::{Call, axes_of, axis_of, misshapen, signed, wrong};
use crate::import::value::Value;
use isograd_core::Result;

pub const OPS: Table = &[
    ("Shape", Op::One(shape)),
    ("Size", Op::One(|c| Ok(Value::int(c.value(0)?.dims()?.iter().product::<usize>() as i64)))),
    ("Identity", Op::One(|c| c.value(0).cloned())),
    ("Reshape", Op::One(reshape)),
    ("Squeeze", Op::One(squeeze)),
    ("Unsqueeze", Op::One(unsqueeze)),
    ("Flatten", Op::One(flatten)),
    ("Transpose", Op::One(transpose)),
    ("DepthToSpace", Op::One(depth_to_space)),
    ("SpaceToDepth", Op::One(space_to_depth)),
];

/// The extents, from `start` to `end`.
fn shape(c: &Call<'_>) -> Result<Value> {
    let dims = c.value(0)?.dims()?;
    let rank = dims.len() as i64;
    let at = |v: i64| (if v < 0 { v.saturating_add(rank) } else { v }).clamp(0, rank) as usize;
    let (start, end) = (at(c.int("start", 0)?), at(c.int("end", rank)?));
    Ok(Value::extents(&dims[start..end.max(start)]))
}

/// The extents that a reshape asks for: -1 is what remains, and 0 the extent of x there, unless zeros are allowed.
pub fn infer(dims: &[usize], shape: &[i64], allow_zero: bool) -> Result<Vec<usize>> {
    let failed = || misshapen(format!("{dims:?} cannot have the shape {shape:?}"));
    let (mut found, mut open) = (Vec::new(), None);
    for (d, &extent) in shape.iter().enumerate() {
        found.push(match extent {
            -1 if open.is_none() => {
                open = Some(d);
                1
            }
            0 if !allow_zero => match dims.get(d) {
                Some(&extent) => extent,
                None => return failed(),
            },
            extent => match usize::try_from(extent) {
                Ok(extent) => extent,
                Err(_) => return failed(),
            },
        });
    }
    let count: usize = dims.iter().product();
    let Some(all) = found.iter().try_fold(1usize, |n, &d| n.checked_mul(d)) else { return failed() };
    match open {
        Some(d) if all > 0 && count.is_multiple_of(all) => found[d] = count / all,
        None if all == count => {}
        _ => return failed(),
    }
    Ok(found)
}

fn reshape(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    let shape = c.moved_ints("shape", 1)?.unwrap_or_default();
    c.moved(0, x.reshape(infer(x.dims(), &shape, c.flag("allowzero")?)?)?)
}

/// The extents without those of 1 at some axes, or without all of them.
pub fn squeezed(dims: &[usize], axes: Option<Vec<i64>>) -> Result<Vec<usize>> {
    let axes = match axes {
        Some(axes) => axes_of(&axes, dims.len())?,
        None => (0..dims.len()).filter(|&d| dims[d] == 1).collect(),
    };
    match axes.iter().find(|&&d| dims[d] != 1) {
        Some(d) => misshapen(format!("dimension {d} of {dims:?} is not 1")),
        None => Ok((0..dims.len()).filter(|d| !axes.contains(d)).map(|d| dims[d]).collect()),
    }
}

fn squeeze(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    c.moved(0, x.reshape(squeezed(x.dims(), c.moved_ints("axes", 1)?)?)?)
}

/// The extents with 1 at these axes of the result.
pub fn unsqueezed(dims: &[usize], axes: &[i64]) -> Result<Vec<usize>> {
    let rank = dims.len() + axes.len();
    let mut axes = axes_of(axes, rank)?;
    axes.sort_unstable();
    if axes.windows(2).any(|pair| pair[0] == pair[1]) {
        return wrong(format!("an axis is named twice: {axes:?}"));
    }
    let mut found = dims.to_vec();
    axes.into_iter().for_each(|axis| found.insert(axis, 1));
    Ok(found)
}

fn unsqueeze(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    let axes = c.moved_ints("axes", 1)?.unwrap_or_default();
    c.moved(0, x.reshape(unsqueezed(x.dims(), &axes)?)?)
}

fn flatten(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    let (axis, rank) = (c.int("axis", 1)?, x.rank());
    let axis = if axis == rank as i64 { rank } else { axis_of(axis, rank)? };
    let [rows, columns] = [&x.dims()[..axis], &x.dims()[axis..]].map(|dims| dims.iter().product::<usize>());
    c.moved(0, x.reshape([rows, columns])?)
}

fn transpose(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    let order = match c.list("perm")? {
        Some(perm) => axes_of(&perm, x.rank())?,
        None => (0..x.rank()).rev().collect(),
    };
    c.moved(0, x.permute(&signed(&order))?)
}

/// The blocks of a space of `[N, C, H, W]`.
fn blocks(c: &Call<'_>, x: &[usize]) -> Result<([usize; 4], usize)> {
    let size = usize::try_from(c.needed("blocksize")?).ok().filter(|&size| size > 0);
    match (x, size) {
        (&[n, channels, h, w], Some(size)) => Ok(([n, channels, h, w], size)),
        _ => misshapen(format!("{x:?} was given, expected [N, C, H, W] and blocks")),
    }
}

fn depth_to_space(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    let ([n, channels, h, w], b) = blocks(c, x.dims())?;
    if b > 1 << 16 || channels % (b * b) != 0 {
        return misshapen(format!("{channels} channels are no multiple of blocks of {b} x {b}"));
    }
    let depth = channels / (b * b);
    let y = match c.text("mode", "DCR")? {
        "CRD" => x.reshape([n, depth, b, b, h, w])?.permute(&[0, 1, 4, 2, 5, 3])?,
        _ => x.reshape([n, b, b, depth, h, w])?.permute(&[0, 3, 4, 1, 5, 2])?,
    };
    c.moved(0, y.reshape([n, depth, h * b, w * b])?)
}

fn space_to_depth(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    let ([n, channels, h, w], b) = blocks(c, x.dims())?;
    if h % b != 0 || w % b != 0 {
        return misshapen(format!("{h} x {w} is no multiple of blocks of {b}"));
    }
    let y = x.reshape([n, channels, h / b, b, w / b, b])?;
    let y = match c.text("mode", "DCR")? {
        "CRD" => y.permute(&[0, 1, 3, 5, 2, 4])?,
        _ => y.permute(&[0, 3, 5, 1, 2, 4])?,
    };
    c.moved(0, y.reshape([n, channels * b * b, h / b, w / b])?)
}
