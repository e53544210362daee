//! Resize and Upsample: nearest, linear and cubic interpolation of any dimensions.
//!
//! Common cases are our `interpolate`. In others, each dimension is a product with the matrix of its weights.

use super::resample::{Axis, Coordinates, Filter, Nearest};
use super::window::{array, of_rank};
use super::{Op, Table};
use crate::import::call::{Call, axes_of, few, misshapen, sizes, unsupported};
use crate::import::value::Value;
use isograd_core::ops::{Interpolate, Interpolation, Target};
use isograd_core::{DType, Result, Tensor};

pub const OPS: Table = &[("Resize", Op::One(resize)), ("Upsample", Op::One(upsample))];

/// An extent that a dimension gets, and its factor.
#[derive(Clone, Copy, Debug)]
struct Goal {
    extent: usize,
    factor: f64,
}

fn upsample(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    let factors = match c.node.attributes.floats("scales")? {
        Some(factors) => factors.to_vec(),
        None => c.value(1)?.floats()?,
    };
    let goals = by_factors(&x, &(0..x.rank()).collect::<Vec<_>>(), &factors)?;
    let filter = match c.text("mode", "nearest")? {
        "nearest" => Filter::Nearest(Nearest::Floor),
        "linear" | "bilinear" => Filter::Linear,
        other => return unsupported(format!("an interpolation of the mode {other:?}")),
    };
    let axis = Axis {
        filter,
        coordinates: Coordinates::Asymmetric,
        antialias: false,
        excludes_outside: false,
        extrapolated: None,
    };
    resized(c, &x, &goals, &axis, &vec![[0.0, 1.0]; x.rank()], true)
}

fn by_factors(x: &Tensor, axes: &[usize], factors: &[f64]) -> Result<Vec<Goal>> {
    let mut goals: Vec<Goal> = x.dims().iter().map(|&extent| Goal { extent, factor: 1.0 }).collect();
    if factors.len() != axes.len() || factors.iter().any(|f| !(f.is_finite() && *f > 0.0)) {
        return misshapen(format!("the factors are {factors:?} for {} dimensions", axes.len()));
    }
    for (&axis, &factor) in axes.iter().zip(factors) {
        goals[axis] = Goal { extent: (x.dims()[axis] as f64 * factor).floor() as usize, factor };
    }
    Ok(goals)
}

fn by_sizes(c: &Call<'_>, x: &Tensor, axes: &[usize], wanted: &[usize]) -> Result<Vec<Goal>> {
    let mut goals: Vec<Goal> = x.dims().iter().map(|&extent| Goal { extent, factor: 1.0 }).collect();
    if wanted.len() != axes.len() {
        return misshapen(format!("the extents are {wanted:?} for {} dimensions", axes.len()));
    }
    let ratio = |k: usize| wanted[k] as f64 / x.dims()[axes[k]].max(1) as f64;
    let ratios = (0..axes.len()).map(ratio);
    let common = match c.text("keep_aspect_ratio_policy", "stretch")? {
        "stretch" => None,
        "not_larger" => Some(ratios.fold(f64::INFINITY, f64::min)),
        "not_smaller" => Some(ratios.fold(0.0, f64::max)),
        other => return unsupported(format!("keep_aspect_ratio_policy {other:?}")),
    };
    for (k, &axis) in axes.iter().enumerate() {
        goals[axis] = match common {
            None => Goal { extent: wanted[k], factor: ratio(k) },
            Some(factor) => Goal { extent: (x.dims()[axis] as f64 * factor + 0.5).floor() as usize, factor },
        };
    }
    Ok(goals)
}

fn resize(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    // Opset 10 has no region.
    let (at_roi, at_factors) = if c.opset() < 11 { (usize::MAX, 1) } else { (1, 2) };
    let axes = match c.list("axes")? {
        Some(axes) => axes_of(&axes, x.rank())?,
        None => (0..x.rank()).collect(),
    };
    let factors = match c.given(at_factors) {
        Some(factors) => factors.floats()?,
        None => Vec::new(),
    };
    let wanted = if c.opset() < 11 { None } else { c.optional_ints(3)?.filter(|wanted| !wanted.is_empty()) };
    let goals = match &wanted {
        Some(wanted) => by_sizes(c, &x, &axes, &sizes(wanted)?)?,
        None => by_factors(&x, &axes, &factors)?,
    };
    let axis = axis_options(c)?;
    let mut regions = vec![[0.0, 1.0]; x.rank()];
    if axis.coordinates == Coordinates::CropAndResize {
        let roi = c.value(at_roi)?.floats()?;
        if roi.len() != 2 * axes.len() {
            return misshapen(format!("the region is {roi:?} for {} dimensions", axes.len()));
        }
        axes.iter().enumerate().for_each(|(k, &axis)| regions[axis] = [roi[k], roi[axes.len() + k]]);
    }
    resized(c, &x, &goals, &axis, &regions, wanted.is_none())
}

/// The options of all dimensions.
fn axis_options(c: &Call<'_>) -> Result<Axis> {
    let coordinates =
        match c.text("coordinate_transformation_mode", if c.opset() < 11 { "asymmetric" } else { "half_pixel" })? {
            "half_pixel" => Coordinates::HalfPixel,
            "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
            "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
            "align_corners" => Coordinates::AlignCorners,
            "asymmetric" => Coordinates::Asymmetric,
            "tf_half_pixel_for_nn" => Coordinates::TfHalfPixel,
            "tf_crop_and_resize" => Coordinates::CropAndResize,
            other => return unsupported(format!("coordinate_transformation_mode {other:?}")),
        };
    let nearest = match c.text("nearest_mode", if c.opset() < 11 { "floor" } else { "round_prefer_floor" })? {
        "round_prefer_floor" | "" => Nearest::PreferFloor,
        "round_prefer_ceil" => Nearest::PreferCeil,
        "floor" => Nearest::Floor,
        "ceil" => Nearest::Ceil,
        other => return unsupported(format!("nearest_mode {other:?}")),
    };
    let filter = match c.text("mode", "nearest")? {
        "nearest" => Filter::Nearest(nearest),
        "linear" | "bilinear" => Filter::Linear,
        "cubic" => Filter::Cubic(c.float("cubic_coeff_a", -0.75)?),
        other => return unsupported(format!("an interpolation of the mode {other:?}")),
    };
    let is_crop = coordinates == Coordinates::CropAndResize;
    let extrapolated = if is_crop { Some(c.float("extrapolation_value", 0.0)?) } else { None };
    let (antialias, excludes_outside) = (c.flag("antialias")?, c.flag("exclude_outside")?);
    Ok(Axis { filter, coordinates, antialias, excludes_outside, extrapolated })
}

impl Axis {
    /// True if a dimension of this extent has its goal already.
    fn keeps(&self, goal: &Goal, extent: usize) -> bool {
        goal.extent == extent && goal.factor == 1.0 && self.extrapolated.is_none()
    }
}

/// x with the extents of its goals. `has_factors` says that the file gives factors, and not extents.
fn resized(
    c: &Call<'_>,
    x: &Tensor,
    goals: &[Goal],
    axis: &Axis,
    regions: &[[f64; 2]],
    has_factors: bool,
) -> Result<Value> {
    goals.iter().try_for_each(|goal| few(goal.extent).map(drop))?;
    if x.numel() == 0 && goals.iter().any(|goal| goal.extent > 0) {
        return misshapen(format!("{} has no elements", x.shape()));
    }
    if let Filter::Nearest(_) = axis.filter {
        return nearest(c, x, goals, axis, regions, has_factors);
    }
    let wide = if x.dtype().is_float() { x.clone() } else { x.cast(DType::F32)? };
    if let Some(y) = ours(&wide, goals, axis, has_factors)? {
        return c.moved(0, y.cast(x.dtype())?);
    }
    let mut y = wide;
    for (d, (goal, region)) in goals.iter().zip(regions).enumerate() {
        let extent = y.dims()[d];
        if axis.keeps(goal, extent) {
            continue;
        }
        few(extent.saturating_mul(goal.extent))?;
        let (weights, outside) = axis.matrix(extent, goal.extent, goal.factor, *region);
        let weights = Tensor::from_vec(weights, [goal.extent, extent], y.device())?.cast(y.dtype())?;
        let mut moved = y.movedim(d as isize, -1)?.linear(&weights, None)?;
        if let (Some(value), true) = (axis.extrapolated, outside.contains(&true)) {
            let outside = Tensor::from_vec(outside, goal.extent, y.device())?;
            moved = outside.where_cond(&moved.full_like(value)?, &moved)?;
        }
        y = moved.movedim(-1, d as isize)?;
    }
    c.moved(0, y.cast(x.dtype())?)
}

/// Each element is one of x.
fn nearest(
    c: &Call<'_>,
    x: &Tensor,
    goals: &[Goal],
    axis: &Axis,
    regions: &[[f64; 2]],
    has_factors: bool,
) -> Result<Value> {
    if x.dtype().is_float()
        && let Some(y) = ours(x, goals, axis, has_factors)?
    {
        return Ok(y.into());
    }
    let mut y = x.clone();
    for (d, (goal, region)) in goals.iter().zip(regions).enumerate() {
        let extent = y.dims()[d];
        if axis.keeps(goal, extent) {
            continue;
        }
        let (places, outside) = axis.places(extent, goal.extent, goal.factor, *region);
        y = y.index_select(d as isize, &Tensor::from_vec(places, goal.extent, x.device())?)?;
        if let (Some(value), true) = (axis.extrapolated, outside.contains(&true)) {
            let mut dims = vec![1; y.rank()];
            dims[d] = goal.extent;
            let outside = Tensor::from_vec(outside, dims, x.device())?;
            y = outside.where_cond(&y.full_like(super::create::scalar(value, y.dtype()))?, &y)?;
        }
    }
    c.moved(0, y)
}

/// Our interpolation of the last dimensions, where it computes the same.
fn ours(x: &Tensor, goals: &[Goal], axis: &Axis, has_factors: bool) -> Result<Option<Tensor>> {
    fn of<const N: usize>(
        x: &Tensor,
        goals: &[Goal],
        mode: Interpolation,
        corners: bool,
        has_factors: bool,
    ) -> Result<Tensor> {
        let target = match has_factors {
            true => Target::<N>::Scale(std::array::from_fn(|d| goals[d].factor)),
            false => Target::Size(array(&goals.iter().map(|goal| goal.extent).collect::<Vec<_>>())),
        };
        let options = Interpolate::to(target).mode(mode);
        x.interpolate(&if corners { options.align_corners() } else { options })
    }
    if !(3..=5).contains(&x.rank()) || axis.antialias || axis.excludes_outside {
        return Ok(None);
    }
    let is_whole = |goal: &Goal, &extent: &usize| goal.extent == extent && goal.factor == 1.0;
    let volume = &goals[2..];
    // Extents that keep an aspect ratio have a factor of their own.
    let is_plain = |(goal, &extent): (&Goal, &usize)| has_factors || goal.factor == goal.extent as f64 / extent as f64;
    if !goals[..2].iter().zip(x.dims()).all(|(goal, extent)| is_whole(goal, extent))
        || !volume.iter().zip(&x.dims()[2..]).all(is_plain)
        || volume.iter().any(|goal| goal.extent == 0)
    {
        return Ok(None);
    }
    let is_half = axis.coordinates == Coordinates::HalfPixel
        || (axis.coordinates == Coordinates::PytorchHalfPixel && volume.iter().all(|goal| goal.extent > 1));
    let is_corners = axis.coordinates == Coordinates::AlignCorners && !has_factors;
    let is_floor = axis.coordinates == Coordinates::Asymmetric;
    let mode = match axis.filter {
        Filter::Nearest(Nearest::Floor) if is_floor => Interpolation::Nearest,
        Filter::Nearest(Nearest::PreferCeil) if is_half => Interpolation::NearestExact,
        Filter::Linear if is_half || is_corners => Interpolation::Linear,
        Filter::Cubic(a) if (is_half || is_corners) && a == -0.75 && volume.len() == 2 => Interpolation::Cubic,
        _ => return Ok(None),
    };
    Ok(Some(of_rank!(volume.len(), of(x, volume, mode, is_corners, has_factors))?))
}
