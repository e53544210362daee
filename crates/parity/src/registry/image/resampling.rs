//! Interpolation, and other orders of pixels and channels.

use crate::case::{Case, Domain, Gen};
use crate::registry::common::{one, with};
use crate::registry::image::pooling::input;
use crate::registry::invocation::Invocation;
use crate::registry::op::Class::Stages;
use crate::registry::op::Op;
use isograd_core::ops::{GridEnds, GridMode, GridPadding, GridSample, Interpolate, Interpolation, Target};
use isograd_core::{Result, Tensor};
use serde_json::{Value, json};

pub(crate) fn ops() -> Vec<Op> {
    let real = Domain::Real;
    vec![
        Op::new("interpolate", |c| one(interpolated(c, c.input("x")?)), interpolate_case)
            .class(Stages)
            .linear()
            .fused()
            // The launches of `adaptive_avg_pool2d`, for areas.
            .launches(1, 2),
        // The case of the kernel table.
        Op::new("upsample3d_nearest", |c| one(c.input("x")?.interpolate(&interpolate_of::<3>(c, "")?)), nearest_case)
            .also(&["interpolate"])
            .linear()
            .fused(),
        with(
            "pixel_shuffle",
            |c, x| x.pixel_shuffle(c.size("upscale_factor")?),
            real,
            |g| shuffle_case(g, [true, false]),
        )
        .linear(),
        with(
            "pixel_unshuffle",
            |c, x| x.pixel_unshuffle(c.size("downscale_factor")?),
            real,
            |g| shuffle_case(g, [false, true]),
        )
        .linear(),
        Op::new(
            "grid_sample",
            |c| one(c.input("x")?.grid_sample(c.input("grid")?, &grid_of(c)?)),
            |g| {
                let n = 2 + g.below(2);
                let side = |g: &mut Gen| 1 + g.below(4);
                let (batch, channels) = (g.below(3), side(g));
                let image: Vec<usize> = [batch, channels].into_iter().chain((0..n).map(|_| side(g))).collect();
                let points: Vec<usize> = [batch].into_iter().chain((0..n).map(|_| side(g))).chain([n]).collect();
                let mode =
                    if n == 2 { g.pick(&["bilinear", "nearest", "bicubic"]) } else { g.pick(&["bilinear", "nearest"]) };
                let attributes = json!({
                    "mode": mode,
                    "padding_mode": g.pick(&PADDINGS.map(|(name, _)| name)),
                    "align_corners": g.coin(),
                });
                let (x, grid) = (g.tensor(Domain::Real, &image), g.tensor(Domain::Real, &points));
                Case::new(attributes, vec![("x", x), ("grid", grid)])
            },
        )
        .class(Stages)
        .companion(sampled_sizes)
        .fused()
        .launches(500, 900)
        .wide("a point that is rounded may lie between other elements")
        .finite(&["grid"]),
        Op::new(
            "affine_grid",
            |c| one(c.input("theta")?.affine_grid(&c.shape("size")?, grid_ends(c)?)),
            |g| {
                let n = 2 + g.below(2);
                let size: Vec<usize> = (0..n).map(|_| g.below(4)).collect();
                let theta = [g.below(3), n, n + 1];
                let attributes = json!({"size": size, "align_corners": g.coin()});
                Case::new(attributes, vec![("theta", g.tensor(Domain::Real, &theta))])
            },
        )
        .class(Stages)
        .linear()
        .also(&["matmul"])
        .launches(14, 4),
        with("channel_shuffle", |c, x| x.channel_shuffle(c.size("groups")?), real, channels_case).linear(),
    ]
}

const GRID_MODES: [(&str, GridMode); 3] =
    [("bilinear", GridMode::Linear), ("nearest", GridMode::Nearest), ("bicubic", GridMode::Cubic)];

const PADDINGS: [(&str, GridPadding); 3] =
    [("zeros", GridPadding::Zeros), ("border", GridPadding::Border), ("reflection", GridPadding::Reflection)];

fn grid_of(c: &Invocation<'_>) -> Result<GridSample> {
    Ok(GridSample {
        mode: c.choice_or_first("mode", &GRID_MODES)?,
        padding: c.choice_or_first("padding_mode", &PADDINGS)?,
        ends: grid_ends(c)?,
    })
}

fn grid_ends(c: &Invocation<'_>) -> Result<GridEnds> {
    Ok(if c.flag("align_corners")? { GridEnds::Centers } else { GridEnds::Edges })
}

/// The values of `|x|`, of which none is smaller than its share of a sum.
fn sampled_sizes(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    one(c.input("x")?.abs()?.grid_sample(c.input("grid")?, &grid_of(c)?)?.abs())
}

const MODES: [(&str, Interpolation); 7] = [
    ("nearest", Interpolation::Nearest),
    ("nearest-exact", Interpolation::NearestExact),
    ("linear", Interpolation::Linear),
    ("bilinear", Interpolation::Linear),
    ("trilinear", Interpolation::Linear),
    ("bicubic", Interpolation::Cubic),
    ("area", Interpolation::Area),
];

/// How many dimensions the size or the factors have.
pub(crate) fn interpolated_dims(c: &Invocation<'_>, at: &str) -> Result<usize> {
    let [factors, size] = ["scale_factor", "size"].map(|name| format!("{at}{name}"));
    let name = if c.has(&factors) { factors } else { size };
    let count = |v: &Value| v.as_array().map(Vec::len).filter(|n| (1..=3).contains(n));
    c.get(&name, "a list of 1 to 3 numbers", count)
}

fn interpolated(c: &Invocation<'_>, x: &Tensor) -> Result<Tensor> {
    match interpolated_dims(c, "")? {
        1 => x.interpolate(&interpolate_of::<1>(c, "")?),
        2 => x.interpolate(&interpolate_of::<2>(c, "")?),
        _ => x.interpolate(&interpolate_of::<3>(c, "")?),
    }
}

/// The target of a size.
type Policy<const N: usize> = fn([usize; N]) -> Target<N>;

/// An interpolation, from attributes with the prefix `at`.
pub(crate) fn interpolate_of<const N: usize>(c: &Invocation<'_>, at: &str) -> Result<Interpolate<N>> {
    let of = |name: &str| format!("{at}{name}");
    let factors = |v: &Value| v.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>()?.try_into().ok();
    let scale = c.optional_of(&of("scale_factor"), |c, name| c.get(name, "a factor for each dimension", factors))?;
    let size = |v: &Value| v.as_array()?.iter().map(|v| Some(v.as_u64()? as usize)).collect::<Option<Vec<_>>>();
    let size = |c: &Invocation<'_>, name: &str| c.get(name, "a size for each dimension", |v| size(v)?.try_into().ok());
    let policies: [(&str, Policy<N>); 3] =
        [("stretch", Target::Size), ("not_larger", Target::NotLarger), ("not_smaller", Target::NotSmaller)];
    let target = match scale {
        Some(factors) => Target::Scale(factors),
        None => c.choice_or_first(&of("policy"), &policies)?(size(c, &of("size"))?),
    };
    Ok(Interpolate {
        target,
        mode: c.choice_or_first(&of("mode"), &MODES)?,
        align_corners: c.flag(&of("align_corners"))?,
        antialias: c.flag(&of("antialias"))?,
        cubic_a: c.optional_of(&of("cubic_a"), |c, name| c.float(name))?,
        excludes_outside: c.flag(&of("excludes_outside"))?,
    })
}

/// Small images: fewer elements for more dimensions.
fn images<const N: usize>(g: &mut Gen) -> Tensor {
    let most = [9, 5, 3][N - 1];
    let batch = g.pick(&[Some(0), Some(1), Some(2), None]);
    let last: Vec<usize> = (0..N).map(|_| 1 + g.below(most)).collect();
    let shape: Vec<usize> = batch.into_iter().chain([1 + g.below(3)]).chain(last).collect();
    g.tensor(Domain::Real, &shape)
}

fn interpolate_case(g: &mut Gen) -> Case {
    match g.below(3) {
        0 => interpolation::<1>(g, &["nearest", "nearest-exact", "linear", "area"]),
        1 => interpolation::<2>(g, &["nearest", "nearest-exact", "bilinear", "bicubic", "area"]),
        _ => interpolation::<3>(g, &["nearest", "nearest-exact", "trilinear", "area"]),
    }
}

fn interpolation<const N: usize>(g: &mut Gen, modes: &[&str]) -> Case {
    let (x, mode) = (images::<N>(g), g.pick(modes));
    let has_corners = mode.contains("linear") || mode == "bicubic";
    let mut attributes = match g.coin() {
        true => json!({"size": (0..N).map(|_| 1 + g.below(7)).collect::<Vec<_>>()}),
        // A factor below 1 keeps at least one element.
        false => json!({"scale_factor": (0..N).map(|_| g.pick(&[1.0, 1.5, 2.0, 2.7])).collect::<Vec<_>>()}),
    };
    attributes["mode"] = mode.into();
    let antialias = has_corners && g.coin();
    attributes["antialias"] = antialias.into();
    attributes["align_corners"] = (has_corners && !antialias && g.coin()).into();
    if mode == "bicubic" {
        attributes["excludes_outside"] = g.coin().into();
    }
    Case::new(attributes, vec![("x", x)])
}

fn nearest_case(g: &mut Gen) -> Case {
    let x = input::<3>(g, Domain::Real);
    let attributes = match g.coin() {
        true => json!({"size": (0..3).map(|_| 1 + g.below(5)).collect::<Vec<_>>()}),
        false => json!({"scale_factor": (0..3).map(|_| 1 + g.below(3)).collect::<Vec<_>>()}),
    };
    Case::new(attributes, vec![("x", x)])
}

/// Channels that are squares of pixels, or images of such squares.
fn shuffle_case(g: &mut Gen, [of_channels, of_pixels]: [bool; 2]) -> Value {
    g.at_least_rank(3);
    let (r, n) = (1 + g.below(3), g.shape.len());
    let [channels, pixels] = [(of_channels, r * r), (of_pixels, r)].map(|(is_split, n)| if is_split { n } else { 1 });
    g.shape[n - 3] = channels * (1 + g.below(2));
    g.shape[n - 2] = pixels * (1 + g.below(3));
    g.shape[n - 1] = pixels * (1 + g.below(3));
    json!({if of_channels { "upscale_factor" } else { "downscale_factor" }: r})
}

fn channels_case(g: &mut Gen) -> Value {
    g.at_least_rank(2);
    let groups = 1 + g.below(3);
    g.shape[1] = groups * (1 + g.below(3));
    json!({"groups": groups})
}
