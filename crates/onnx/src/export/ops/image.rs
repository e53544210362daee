//! Pooling and interpolation.

use crate::export::graph::{Value, float, int, ints, text};
use crate::export::translation::{Found, Translation, absent};
use isograd_core::DType;
use isograd_core::operands::Input;
use isograd_core::ops::image::pool::{Divisor, Pool};

pub fn translate(t: &mut Translation<'_>) -> Found {
    let (pool, Input { x }) = t.described::<Pool>()?;
    if pool.is_adaptive {
        return adaptive(t, &pool, x);
    }
    let last = |of: [usize; 3]| of.into_iter().skip(3 - pool.rank).map(|v| v as i64);
    let window = pool.window;
    let mut attributes = vec![
        ints("kernel_shape", last(window.kernel)),
        ints("strides", last(window.stride)),
        ints("pads", last(window.low).chain(last(window.high))),
        ints("dilations", last(window.dilation)),
        int("ceil_mode", pool.is_cut.into()),
    ];
    let Some(divisor) = pool.divisor else { return pooled(t, "MaxPool", x, pool.rank, &attributes) };
    if let Divisor::Number(_) = divisor {
        return absent("ONNX has no average with a given divisor");
    }
    if pool.is_cut {
        return absent("the divisors of windows that the input cuts off differ");
    }
    attributes.push(int("count_include_pad", (divisor == Divisor::Window).into()));
    pooled(t, "AveragePool", x, pool.rank, &attributes)
}

/// The results of a pooling of `[N, C, ..]`, or of a sample without a batch dimension.
fn pooled(
    t: &mut Translation<'_>,
    op: &'static str,
    x: Value,
    dims: usize,
    attributes: &[crate::proto::AttributeProto],
) -> Found {
    let is_sample = t.x().rank() == dims + 1;
    let x = if is_sample { t.unsqueeze(x, &[0])? } else { x };
    let count = t.op.outputs.len();
    let mut found = t.graph.node_of(op, &[Some(x)], attributes, count);
    if let Some(index) = found.get_mut(1) {
        // ONNX counts positions in the whole tensor, we do within each plane.
        let volume: usize = t.x().dims()[t.x().rank() - dims..].iter().product();
        let volume = t.graph.scalar(volume as i64, DType::I64)?;
        *index = t.graph.node("Mod", &[*index, volume], &[]);
    }
    if is_sample {
        for value in &mut found {
            *value = t.squeeze(*value, &[0])?;
        }
    }
    Ok(found)
}

/// Adaptive windows are even where the extents of the output divide those of the input.
fn adaptive(t: &mut Translation<'_>, pool: &Pool, x: Value) -> Found {
    let (dims, is_max) = (pool.rank, pool.divisor.is_none());
    let last = |dims_of: Vec<crate::export::graph::Dim>| -> Option<Vec<i64>> {
        dims_of[dims_of.len() - dims..].iter().map(|dim| dim.known()).collect()
    };
    let (Some(from), Some(to)) = (last(t.x_dims(0)), last(t.y_dims(0))) else {
        return absent("its extents depend on the batch size");
    };
    if to.iter().all(|&extent| extent == 1) && t.op.outputs.len() == 1 {
        return pooled(t, if is_max { "GlobalMaxPool" } else { "GlobalAveragePool" }, x, dims, &[]);
    }
    if from.iter().zip(&to).any(|(from, to)| from % to != 0) {
        return absent("its windows have several extents");
    }
    let windows: Vec<i64> = from.iter().zip(&to).map(|(from, to)| from / to).collect();
    let attributes = [ints("kernel_shape", windows.clone()), ints("strides", windows)];
    pooled(t, if is_max { "MaxPool" } else { "AveragePool" }, x, dims, &attributes)
}

pub fn interpolate(t: &mut Translation<'_>) -> Found {
    let (dims, mode) = (t.int("dims")?, t.text("mode")?);
    let (scale, corners) = (t.floats("scale")?, t.flag("align_corners")?);
    let rank = t.x().rank() as i64;
    let positions = if corners { "align_corners" } else { "half_pixel" };
    let (mode, positions, nearest) = match mode {
        "nearest" => ("nearest", "asymmetric", "floor"),
        "nearest_exact" => ("nearest", "half_pixel", "round_prefer_ceil"),
        "linear" => ("linear", positions, "floor"),
        "cubic" => ("cubic", positions, "floor"),
        _ => return absent("ONNX has no interpolation by averages"),
    };
    let mut attributes = vec![
        ints("axes", rank - dims..rank),
        text("mode", mode),
        text("coordinate_transformation_mode", positions),
        text("nearest_mode", nearest),
    ];
    if mode == "cubic" {
        attributes.push(float("cubic_coeff_a", t.float("cubic_a")?));
    }
    for (name, given) in [("antialias", "antialias"), ("exclude_outside", "excludes_outside")] {
        if t.flag(given)? {
            attributes.push(int(name, 1));
        }
    }
    let policy = t.text("policy")?;
    if policy != "stretch" {
        attributes.push(text("keep_aspect_ratio_policy", policy));
        let size = t.ints("size")?;
        let size = t.graph.ints(&size)?;
        return Ok(t.graph.node_of("Resize", &[Some(t.inputs[0]), None, None, Some(size)], &attributes, 1));
    }
    let first = (rank - dims) as usize;
    let (scales, sizes) = if scale.is_empty() {
        let to = t.y_dims(0);
        (None, Some(t.graph.extents(&to[first..])?))
    } else {
        let scale: Vec<f32> = scale.iter().map(|&factor| factor as f32).collect();
        let scales = isograd_core::Tensor::from_slice(&scale, scale.len(), t.graph.device())?;
        (Some(t.graph.constant(&scales)), None)
    };
    Ok(t.graph.node_of("Resize", &[Some(t.inputs[0]), None, scales, sizes], &attributes, 1))
}
