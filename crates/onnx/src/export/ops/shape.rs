//! Other shapes over the same elements, and elements in other places.

use crate::export::graph::{Dim, int, text};
use crate::export::translation::{Found, Translation, absent};
use isograd_core::Result;

pub fn translate(t: &mut Translation<'_>) -> Found {
    let x = t.inputs[0];
    let rank = t.x().rank() as i64;
    if t.op.name.starts_with("split") {
        return split(t);
    }
    let y = match t.op.name {
        "copy" => x,
        "reshape" => reshape(t)?,
        "transpose" => {
            let axes = t.ints("axes")?;
            let mut order: Vec<i64> = (0..rank).collect();
            order.swap(axes[0] as usize, axes[1] as usize);
            t.transpose(x, order)
        }
        "permute" => {
            let order = t.ints("permutation")?;
            t.transpose(x, order)
        }
        "narrow" => {
            let (dim, start, step) = (t.int("dim")?, t.int("start")?, t.int("step")?);
            let (from, to) = (t.x_dims(0)[dim as usize], t.y_dims(0)[dim as usize]);
            // The last element is at start + (length - 1) step.
            let end = Dim { scale: to.scale * step, shift: start + (to.shift - 1) * step + 1 };
            let ends = if end == from { t.graph.ints(&[i64::MAX])? } else { t.graph.extents(&[end])? };
            let (starts, axes, steps) = (t.graph.ints(&[start])?, t.graph.ints(&[dim])?, t.graph.ints(&[step])?);
            t.graph.node("Slice", &[x, starts, ends, axes, steps], &[])
        }
        "select" => {
            let (dim, index) = (t.int("dim")?, t.int("index")?);
            let index = t.graph.scalar(index, isograd_core::DType::I64)?;
            t.graph.node("Gather", &[x, index], &[int("axis", dim)])
        }
        "windows" => {
            let (dim, size, step) = (t.int("dim")?, t.int("size")?, t.int("step")?);
            let (from, to) = (t.x_dims(0), t.y_dims(0));
            let Some(count) = to[dim as usize].known() else {
                return absent("the number of windows depends on the batch size");
            };
            // The elements of all windows, one after the other; then a window at the end.
            let places: Vec<i64> = (0..count).flat_map(|w| (0..size).map(move |i| w * step + i)).collect();
            let places = t.graph.ints(&places)?;
            let all = t.graph.node("Gather", &[x, places], &[int("axis", dim)]);
            let (before, after) = (&from[..dim as usize], &from[dim as usize + 1..]);
            let joined = [before, &[Dim::fixed((count * size) as usize)], after].concat();
            let apart = [before, &[Dim::fixed(count as usize), Dim::fixed(size as usize)], after].concat();
            let apart = t.graph.reshape(all, &joined, &apart)?;
            t.transpose(apart, (0..=rank).filter(|&d| d != dim + 1).chain([dim + 1]))
        }
        "broadcast_to" => {
            let (from, to) = (t.x_dims(0), t.y_dims(0));
            let new = to.len() - from.len();
            // An extent of 1 leaves that of x as it is.
            let wanted = |(d, &to): (usize, &Dim)| {
                let is_same = d >= new && from[d - new] == to;
                if is_same { Dim::fixed(1) } else { to }
            };
            let wanted: Vec<Dim> = to.iter().enumerate().map(wanted).collect();
            let extents = t.graph.extents(&wanted)?;
            t.graph.node("Expand", &[x, extents], &[])
        }
        "concat" => {
            let dim = t.int("dim")?;
            let inputs = t.inputs.clone();
            t.graph.node("Concat", &inputs, &[int("axis", dim)])
        }
        "flip" => {
            let axes = t.ints("axes")?;
            let each = |v: i64| vec![v; axes.len()];
            let (starts, ends, steps) =
                (t.graph.ints(&each(-1))?, t.graph.ints(&each(i64::MIN))?, t.graph.ints(&each(-1))?);
            let axes = t.graph.ints(&axes)?;
            t.graph.node("Slice", &[x, starts, ends, axes, steps], &[])
        }
        "pad" => {
            let (low, high) = (t.ints("low")?, t.ints("high")?);
            let (mode, value) = (t.text("mode")?, t.float("value")?);
            if mode != "constant" && low.iter().chain(&high).any(|&n| n < 0) {
                return absent("elements are removed and copied at once");
            }
            let first = rank as usize - low.len();
            let all = |ends: &[i64]| [&vec![0; first], ends].concat();
            let pads = t.graph.ints(&[all(&low), all(&high)].concat())?;
            let dtype = t.x().dtype();
            match mode {
                "constant" => {
                    let value = match dtype.is_float() {
                        true => t.graph.scalar(value, dtype)?,
                        false => t.graph.scalar(value as i64, dtype)?,
                    };
                    t.graph.node("Pad", &[x, pads, value], &[text("mode", mode)])
                }
                _ => t.graph.node("Pad", &[x, pads], &[text("mode", mode)]),
            }
        }
        "tril" | "triu" => {
            let offset = t.int("offset")?;
            let offset = t.graph.scalar(offset, isograd_core::DType::I64)?;
            t.graph.node("Trilu", &[x, offset], &[int("upper", (t.op.name == "triu").into())])
        }
        _ => return absent("ONNX has no such op"),
    };
    Ok(vec![y])
}

/// Parts, one after the other.
fn split(t: &mut Translation<'_>) -> Found {
    let (x, dim, count) = (t.inputs[0], t.int("dim")?, t.op.outputs.len());
    if t.other.outputs.len() != count {
        return absent("the number of its parts depends on the batch size");
    }
    let sizes: Vec<Dim> = (0..count).map(|i| t.y_dims(i)[dim as usize]).collect();
    let sizes = t.graph.extents(&sizes)?;
    Ok(t.graph.node_of("Split", &[Some(x), Some(sizes)], &[int("axis", dim)], count))
}

fn reshape(t: &mut Translation<'_>) -> Result<crate::export::graph::Value> {
    let (x, from, to) = (t.inputs[0], t.x_dims(0), t.y_dims(0));
    if let Some(axes) = ones_between(&from, &to) {
        return t.unsqueeze(x, &axes);
    }
    if let Some(axes) = ones_between(&to, &from) {
        return t.squeeze(x, &axes);
    }
    t.graph.reshape(x, &from, &to)
}

/// The places in `more` of extents of 1 without which it is `fewer`.
fn ones_between(fewer: &[Dim], more: &[Dim]) -> Option<Vec<i64>> {
    if more.len() <= fewer.len() {
        return None;
    }
    let (mut rest, mut ones) = (fewer.iter().peekable(), Vec::new());
    for (d, dim) in more.iter().enumerate() {
        let is_kept = rest.peek() == Some(&dim);
        let missing = more.len() - d > rest.len();
        match (is_kept, *dim == Dim::fixed(1) && missing) {
            (_, true) => ones.push(d as i64),
            (true, false) => drop(rest.next()),
            (false, false) => return None,
        }
    }
    rest.next().is_none().then_some(ones)
}
