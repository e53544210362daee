//! Reductions, extrema and scans.

use super::common::{NO_GRADIENT, absolute, at, none, one, ordered, two, with};
use super::invocation::Invocation;
use super::op::Class::{Factors, Reduction, Stages};
use super::op::Op;
use crate::bench::{self, Bench, Call, MANY, STORED, call};
use crate::case::{Domain, Gen};
use isograd_core::ops::{Axes, Quantile, ScanOptions, Tie};
use isograd_core::{Result, Tensor};
use serde_json::{Value, json};

/// All dimensions by default; the last one for an op with that in its name.
fn axes(c: &Invocation<'_>) -> Result<Axes> {
    match (c.optional_of("dims", Invocation::dims)?.filter(|dims| !dims.is_empty()), c.op.name) {
        (Some(dims), _) => Ok(dims.into()),
        (None, "l2_norm") => Ok((-1).into()),
        (None, _) => Ok((..).into()),
    }
}

/// A reduction over `dims`, with `keepdim`.
fn reduce(
    name: &'static str,
    run: fn(&Invocation<'_>, &Tensor, Axes) -> Result<Tensor>,
    domain: Domain,
    prepare: fn(&mut Gen),
) -> Op {
    let run = move |c: &Invocation<'_>| {
        let (x, axes) = (c.input("x")?, axes(c)?);
        one(if c.flag("keepdim")? { x.keepdim(axes, |x, axes| run(c, x, axes)) } else { run(c, x, axes) })
    };
    Op::new(name, run, move |g| {
        prepare(g);
        let attributes = json!({"dims": g.dims(), "keepdim": g.coin()});
        at(attributes, g.x(domain))
    })
    .also(&["keepdim"])
}

fn any_shape(_: &mut Gen) {}

fn arg(name: &'static str, run: fn(&Tensor, Axes, Tie) -> Result<Tensor>) -> Op {
    Op::new(
        name,
        move |c| {
            let x = c.input("x")?;
            let axes = c.optional_of("dim", Invocation::dim)?.map_or((..).into(), Axes::from);
            let tie = if c.flag("last")? { Tie::Last } else { Tie::First };
            let run = |x: &Tensor, axes: Axes| run(x, axes, tie);
            one(if c.flag("keepdim")? { x.keepdim(axes, run) } else { run(x, axes) })
        },
        |g| {
            g.not_empty();
            let of_all = if g.coin() { json!({"dim": g.dim()}) } else { json!({"keepdim": g.coin()}) };
            let attributes = if g.below(4) == 0 { json!({"dim": g.dim(), "last": true}) } else { of_all };
            at(attributes, ordered(g))
        },
    )
    .derivative(NO_GRADIENT)
    .also(&["keepdim"])
}

/// Extrema along `dim` with their positions; without `dim`, over all elements.
fn with_position(
    name: &'static str,
    along: fn(&Tensor, isize) -> Result<(Tensor, Tensor)>,
    of_all: fn(&Tensor, Axes) -> Result<Tensor>,
    also: &'static [&'static str],
) -> Op {
    let run = move |c: &Invocation<'_>| {
        let x = c.input("x")?;
        let keeps = c.flag("keepdim")?;
        let Some(dim) = c.optional_of("dim", Invocation::dim)? else {
            let all: Axes = (..).into();
            return one(if keeps { x.keepdim(all, of_all) } else { of_all(x, all) });
        };
        let (values, positions) = along(x, dim)?;
        if !keeps {
            return Ok(vec![values, positions]);
        }
        let kept = |t: Tensor| x.keepdim(dim, |_, _| Ok(t));
        Ok(vec![kept(values)?, kept(positions)?])
    };
    Op::new(name, run, |g| {
        g.not_empty();
        let attributes = if g.coin() { json!({"dim": g.dim(), "keepdim": g.coin()}) } else { none() };
        at(attributes, ordered(g))
    })
    .also(also)
}

fn scan(c: &Invocation<'_>) -> Result<ScanOptions> {
    Ok(ScanOptions { exclusive: c.flag("exclusive")?, reverse: c.flag("reverse")? })
}

fn scanned(g: &mut Gen) -> Value {
    json!({"dim": g.dim(), "exclusive": g.coin(), "reverse": g.coin()})
}

/// A reduction over `dims` to two tensors.
fn statistics(name: &'static str, run: fn(&Tensor, Axes, f64) -> Result<(Tensor, Tensor)>) -> Op {
    let run = move |c: &Invocation<'_>| two(run(c.input("x")?, axes(c)?, c.float_or("correction", 0.0)?));
    Op::new(name, run, |g| {
        g.not_empty();
        let attributes = json!({"dims": g.dims()});
        at(attributes, g.x(Domain::Distinct))
    })
    .class(Stages)
    .fused()
}

/// Elements along `dim` by their order, with their positions.
fn by_order(
    name: &'static str,
    run: fn(&Invocation<'_>, &Tensor, isize) -> Result<(Tensor, Tensor)>,
    attributes: fn(&mut Gen) -> Value,
) -> Op {
    Op::new(
        name,
        move |c| two(run(c, c.input("x")?, c.dim("dim")?)),
        move |g| {
            g.not_empty();
            let attributes = attributes(g);
            at(attributes, ordered(g))
        },
    )
}

fn dim(g: &mut Gen) -> Value {
    json!({"dim": g.dim()})
}

/// A dimension, and k within its extent.
fn kth(g: &mut Gen) -> Value {
    let dim = g.dim();
    let d = if dim < 0 { dim + g.shape.len().max(1) as isize } else { dim };
    let extent = g.shape.get(d as usize).copied().unwrap_or(1);
    json!({"dim": dim, "k": 1 + g.below(extent)})
}

const BETWEEN: [(&str, Quantile); 5] = [
    ("linear", Quantile::Linear),
    ("lower", Quantile::Lower),
    ("higher", Quantile::Higher),
    ("midpoint", Quantile::Midpoint),
    ("nearest", Quantile::Nearest),
];

/// Statistics, orders and scans, which are composites.
fn composites() -> Vec<Op> {
    let (real, positive) = (Domain::Real, Domain::Positive);
    vec![
        reduce("std", |c, x, axes| x.std(axes, c.float_or("correction", 0.0)?), Domain::Distinct, Gen::not_empty)
            .class(Stages)
            .fused()
            .also(&["keepdim"])
            .launches(5, 6),
        statistics("var_mean", Tensor::var_mean).launches(2, 4),
        statistics("std_mean", Tensor::std_mean).launches(6, 8),
        Op::new(
            "norm",
            |c| one(c.input("x")?.norm(c.float("p")?, axes(c)?)),
            |g| {
                g.not_empty();
                let p = g.pick(&["1", "2", "3", "0.5", "-1", "inf", "-inf"]);
                let attributes = json!({"p": p, "dims": g.dims()});
                at(attributes, g.x(Domain::Distinct).abs().and_then(|x| x.add_scalar(0.1)).expect("floats"))
            },
        )
        .class(Stages)
        .launches(22, 20),
        reduce("l1_norm", |_, x, axes| x.l1_norm(axes), Domain::Away(&[0.0]), any_shape).class(Reduction).launches(2, 2),
        reduce("log_sum", |_, x, axes| x.log_sum(axes), positive, Gen::not_empty)
            .class(Stages)
            .launches(3, 2),
        reduce("sum_square", |_, x, axes| x.sum_square(axes), real, any_shape).class(Reduction).launches(2, 2),
        reduce("nansum", |_, x, axes| x.nansum(axes), real, any_shape).class(Reduction).companion(absolute).launches(3, 2),
        reduce("nanmean", |_, x, axes| x.nanmean(axes), real, Gen::not_empty)
            .class(Reduction)
            .companion(absolute)
            .launches(6, 4),
        reduce("all", |_, x, axes| x.all(axes), Domain::Grid(0.0), any_shape).derivative(NO_GRADIENT).launches(3, 0),
        reduce("any", |_, x, axes| x.any(axes), Domain::Grid(0.0), any_shape).derivative(NO_GRADIENT).launches(4, 0),
        reduce("count_nonzero", |_, x, axes| x.count_nonzero(axes), Domain::Grid(0.0), any_shape)
            .derivative(NO_GRADIENT)
            .launches(3, 0),
        by_order("kthvalue", |c, x, dim| x.kthvalue(c.size("k")?, dim), kth).launches(6, 6),
        by_order("median", |_, x, dim| x.median(dim), dim).launches(8, 6),
        by_order("mode", |_, x, dim| x.mode(dim), dim).launches(90, 6),
        with(
            "quantile",
            |c, x| x.quantile(c.float("q")?, c.dim("dim")?, c.choice_or_first("between", &BETWEEN)?),
            Domain::Distinct,
            |g| {
                g.not_empty();
                json!({"dim": g.dim(), "q": g.pick(&[0.0, 0.3, 0.5, 1.0]), "between": g.pick(&BETWEEN.map(|(name, _)| name))})
            },
        )
        .class(Stages)
        .launches(16, 16),
        with("cumprod", |c, x| x.cumprod_with(c.dim("dim")?, &scan(c)?), positive, scanned)
            .class(Factors)
            .collects()
            .launches(2, 100),
        by_order("cummax", |_, x, dim| x.cummax(dim), dim).launches(140, 6),
        by_order("cummin", |_, x, dim| x.cummin(dim), dim).launches(140, 6),
        with("logcumsumexp", |c, x| x.logcumsumexp(c.dim("dim")?), real, dim).class(Stages).launches(40, 140),
    ]
}

pub(super) fn ops() -> Vec<Op> {
    kernels().into_iter().chain(composites()).collect()
}

fn kernels() -> Vec<Op> {
    let distinct = Domain::Distinct;
    vec![
        reduce("sum", |_, x, axes| x.sum(axes), Domain::Real, any_shape)
            .class(Reduction)
            .companion(absolute)
            .linear()
            .kernels(&["reduce_sum"])
            .bench([reduced("of all", |_, x| x[0].sum(..)), reduced("of rows", |_, x| x[0].sum(-1))]),
        reduce("mean", |_, x, axes| x.mean(axes), Domain::Real, any_shape)
            .class(Reduction)
            .companion(absolute)
            .linear()
            .launches(1, 2)
            .bench([reduced("of all", |_, x| x[0].mean(..)), reduced("of rows", |_, x| x[0].mean(-1))]),
        reduce("l2_norm", |_, x, axes| x.l2_norm(axes), Domain::Positive, any_shape)
            .class(Reduction)
            .kernels(&["rowwise_l2_norm"]),
        reduce("amax", |_, x, axes| x.amax(axes), distinct, Gen::not_empty).kernels(&["reduce_max"]).bench([
            reduced("of all", |_, x| x[0].amax(..)),
            reduced("of rows", |_, x| x[0].amax(-1)).backward(|c| c.whole(2)),
        ]),
        reduce("amin", |_, x, axes| x.amin(axes), distinct, Gen::not_empty),
        reduce("prod", |_, x, axes| x.prod(axes), Domain::Positive, any_shape)
            .class(Factors)
            .fused()
            // The gradient of rows that exceed a group: two scans and products.
            .launches(1, 8),
        reduce("var", |c, x, axes| x.var(axes, c.float_or("correction", 0.0)?), Domain::Real, Gen::not_empty)
            .class(Stages)
            .fused()
            .also(&["keepdim", "mean"]),
        reduce("logsumexp", |_, x, axes| x.logsumexp(axes), Domain::Real, any_shape)
            .class(Stages)
            .fused()
            // The composite, which runs for empty inputs.
            .launches(2, 1),
        with_position("max", Tensor::max, |x, axes| x.amax(axes), &["argmax", "amax", "keepdim"]).launches(2, 2),
        with_position("min", Tensor::min, |x, axes| x.amin(axes), &["argmin", "amin", "keepdim"]).launches(2, 2),
        arg("argmax", Tensor::argmax_with)
            .kernels(&["argmax_axis"])
            // The last of equal elements is found in a flipped copy.
            .launches(6, 0)
            .bench([reduced("of rows", |_, x| x[0].argmax(-1))]),
        arg("argmin", Tensor::argmin_with).kernels(&["argmin_axis"]).launches(6, 0),
        with("cumsum", |c, x| x.cumsum_with(c.dim("dim")?, &scan(c)?), Domain::Real, scanned)
            .class(Reduction)
            .collects()
            .companion(absolute)
            .linear()
            .launches(1, 2)
            .bench([1 << 20, MANY].map(|n| Bench::new(&[n], call(bench::one, |_, x| x[0].cumsum(0)), |c| c.whole(2)))),
    ]
}

/// Reductions of rows of 1024 elements.
fn reduced(variant: &'static str, f: fn(&Call, &[Tensor]) -> Result<Tensor>) -> Bench {
    let dims = [MANY / 1024, 1024];
    Bench::new(&dims, call(bench::one, f), |c| c.whole(1)).dtypes(STORED).variant(variant)
}
