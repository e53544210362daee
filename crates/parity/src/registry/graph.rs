//! Graphs: reductions of edges to nodes.

use super::common::{absolute, one, two};
use super::indexing::{of_graph, reads};
use super::{Class, Invocation, Op};
use crate::bench::{Bench, Call, Cost, INDEX, call};
use crate::case::{Case, Domain, Gen};
use isograd_core::ops::{Spectrum, TieGrad, Times};
use isograd_core::{Result, Tensor};
use serde_json::json;

/// `size`, and rows of the case's shape with an index below it.
fn edges(g: &mut Gen, domain: Domain) -> Case {
    g.at_least_rank(1);
    let (rows, size) = (g.shape[..1].to_vec(), 1 + g.side());
    let index = g.indices(size, &rows);
    Case::new(json!({"size": size}), vec![("src", g.x(domain)), ("index", index)])
}

/// Logits of edges, with or without heads.
fn logits(g: &mut Gen) -> Case {
    if g.timed().is_none() {
        g.at_least_rank(1);
        g.shape.truncate(2);
    }
    edges(g, Domain::Real)
}

fn diffusion_conv(c: &Invocation<'_>) -> Result<Tensor> {
    let spectrum = Spectrum { values: c.input("evals")?, vectors: c.input("evecs")?, mass: c.optional("mass") };
    let times = if c.flag("log_times")? { Times::Log(c.input("times")?) } else { Times::Plain(c.input("times")?) };
    c.input("x")?.diffusion_conv(spectrum, times, c.input("weight")?, c.optional("bias"))
}

/// Features of points, with a few eigenvectors and times.
fn points(g: &mut Gen) -> Case {
    let [points, kept] = [g.side(), 1 + g.below(3)];
    let [features, times, outputs] = [(); 3].map(|()| 1 + g.below(3));
    let x = if g.coin() { vec![points, features] } else { vec![2, points, features] };
    let mut inputs = vec![
        ("x", g.tensor(Domain::Real, &x)),
        ("evals", g.tensor(Domain::Unit, &[kept])),
        ("evecs", g.tensor(Domain::Unit, &[points, kept])),
        ("times", g.tensor(Domain::Unit, &[times])),
        ("weight", g.tensor(Domain::Real, &[outputs, times * features])),
    ];
    if g.coin() {
        inputs.push(("mass", g.tensor(Domain::Unit, &[points])));
    }
    if g.coin() {
        inputs.push(("bias", g.tensor(Domain::Real, &[outputs])));
    }
    Case::new(json!({"log_times": g.coin()}), inputs)
}

fn size(c: &Invocation<'_>) -> Result<Option<usize>> {
    c.optional_of("size", Invocation::size)
}

pub(super) fn ops() -> Vec<Op> {
    vec![
        Op::new(
            "scatter_sum",
            |c| one(c.input("src")?.scatter_sum(c.input("index")?, size(c)?)),
            |g| edges(g, Domain::Real),
        )
        .class(Class::Reduction)
        .companion(absolute)
        .linear()
        .collects()
        .fused()
        .kernels(&["scatter_add"])
        .also(&["scatter_add", "index_add"])
        .launches(2, 1)
        .bench([joins(|c, x| x[0].scatter_sum(&x[1], Some(c.dims[0])))]),
        Op::new(
            "scatter_mean",
            |c| one(c.input("src")?.scatter_mean(c.input("index")?, size(c)?)),
            |g| edges(g, Domain::Real),
        )
        .class(Class::Reduction)
        .companion(absolute)
        .linear()
        .collects()
        .fused()
        .also(&["scatter_add", "index_add"])
        .launches(2, 1)
        .bench([joins(|c, x| x[0].scatter_mean(&x[1], Some(c.dims[0])))]),
        Op::new(
            "scatter_max",
            |c| {
                let ties = c.choice_or_first("ties", &[("even", TieGrad::Even), ("first", TieGrad::First)])?;
                two(c.input("src")?.scatter_max(c.input("index")?, size(c)?, ties))
            },
            |g| {
                let first = g.coin();
                let mut case = edges(g, Domain::Distinct);
                case.attributes["ties"] = if first { "first" } else { "even" }.into();
                case
            },
        )
        .fused()
        .also(&["scatter", "gather", "index_select"])
        .launches(2, 1)
        .bench([
            joins(|c, x| Ok(x[0].scatter_max(&x[1], Some(c.dims[0]), TieGrad::Even)?.0)),
            joins(|c, x| Ok(x[0].scatter_max(&x[1], Some(c.dims[0]), TieGrad::First)?.0)).variant("first"),
        ]),
        Op::new("edge_softmax", |c| one(c.input("src")?.edge_softmax(c.input("index")?, size(c)?)), logits)
            .class(Class::Stages)
            .collects()
            .fused()
            .also(&["scatter_max", "scatter_add", "index_add", "gather", "scatter", "index_select"])
            // The maximum, the powers, their sum and the quotients. The kernels are those of the reductions.
            .launches(10, 7),
        Op::new("diffusion_conv", |c| one(diffusion_conv(c)), points)
            .class(Class::Stages)
            .constant(&["evals", "evecs", "mass"])
            .fused()
            .kernels(&["diffusion_conv_forward"])
            .also(&["matmul", "linear"])
            .launches(14, 24),
    ]
}

/// Reduces edges to nodes: rows `[n, C]` of a shape `[R, n, C]`, with an index of n rows below R.
fn joins(f: fn(&Call, &[Tensor]) -> Result<Tensor>) -> Bench {
    let inputs = |c: &Call| Ok(vec![c.normal(&c.dims[1..])?, c.indices(c.dims[0], &c.dims[1..2])?]);
    let joined = |c: &Call| Cost::bytes(c.bytes((c.dims[0] + c.dims[1]) * c.dims[2]) + c.dims[1] * INDEX);
    of_graph(call(inputs, f), joined).backward(|c| reads(c, c.dims[1]))
}
