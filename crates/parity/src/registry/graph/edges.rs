//! Graphs: reductions of edges to nodes.

use crate::bench::{Action, Bench, Call, Cost, INDEX, STORED, Work, call};
use crate::case::{Case, Domain, Gen};
use crate::registry::common::{absolute, one, two};
use crate::registry::indexing::index::{of_graph, reads};
use crate::registry::{Class, Invocation, Op};
use isograd_core::ops::{Csr, Spectrum, TieGrad, Times};
use isograd_core::{Error, Kind, Result, Tensor};
use serde_json::json;

/// `size`, and rows of the case's shape with an index below it.
fn edges(g: &mut Gen, domain: Domain) -> Case {
    g.at_least_rank(1);
    let (rows, size) = (g.shape[..1].to_vec(), 1 + g.side());
    let index = g.indices(size, &rows);
    Case::new(json!({"size": size}), vec![("src", g.x(domain)), ("index", index)])
}

fn edge_softmax(c: &Invocation<'_>) -> Result<Tensor> {
    let (x, index) = (c.input("src")?, c.input("index")?);
    let nodes = match size(c)? {
        Some(nodes) => nodes,
        None if index.numel() == 0 => 0,
        None => (index.amax(..)?.item::<f64>()? + 1.0).max(0.0) as usize,
    };
    // The op has the graph; a case has the targets.
    let shown = |e: Error| match e.kind() {
        Kind::Shape => {
            let given = format!("{}; src is {} and index {}", e.message(), x.shape(), index.shape());
            Error::shape("edge_softmax", given)
        }
        _ => e.of("edge_softmax"),
    };
    let graph = Csr::from_entries(index, index, [nodes, nodes]).map_err(shown)?;
    x.edge_softmax(&graph).map_err(shown)
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

pub(crate) fn ops() -> Vec<Op> {
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
        Op::new("edge_softmax", |c| one(edge_softmax(c)), logits)
            .class(Class::Stages)
            .collects()
            .fused()
            .also(&["csr", "scatter_max", "scatter_add", "index_add", "gather", "scatter", "index_select"])
            // The graph is checked and sorted once; then it is one launch each way.
            .launches(24, 2)
            .bench(softmaxes()),
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

/// The softmax of edges in the order of their targets, and in any order, for a shape `[nodes, edges, heads]`. The graph is made before.
fn softmaxes() -> Vec<Bench> {
    fn of_heads(
        heads: usize,
        work: fn(&Call) -> Result<Work>,
        cost: fn(&Call) -> Cost,
        variant: &'static str,
    ) -> Bench {
        let bench = Bench::new(&[100_000, 1_600_000, heads], Action::Work(work), cost);
        bench.dtypes(STORED).shrinks(2).variant(variant)
    }
    fn work(c: &Call, is_sorted: bool, is_backward: bool) -> Result<Work> {
        let &[nodes, edges, heads] = &c.dims[..] else { return Ok(Box::new(|| Ok(()))) };
        let index = c.indices(nodes, &[edges])?;
        let graph = match is_sorted {
            false => Csr::from_entries(&index, &index, [nodes, nodes])?,
            true => {
                let counts = index.ones_like()?.scatter_sum(&index, Some(nodes))?.cumsum(0)?;
                let first = counts.narrow(0, 0, 1)?.mul_scalar(0)?;
                Csr::new(&Tensor::concat(&[&first, &counts], 0)?, &index, nodes)?
            }
        };
        let x = c.normal(&[edges, heads])?;
        if !is_backward {
            return Ok(Box::new(move || x.edge_softmax(&graph).map(drop)));
        }
        let (x, dy) = (x.require_grad()?, c.normal(&[edges, heads])?);
        let y = x.edge_softmax(&graph)?;
        Ok(Box::new(move || {
            let (gradient, retain) = (Some(dy.clone()), true);
            let options = isograd_core::tape::BackwardOptions { gradient, retain, ..Default::default() };
            isograd_core::tape::grad_with(&y, &[&x], &options).map(drop)
        }))
    }
    // Lists of 4 bytes a node, and for edges in any order 4 bytes an edge.
    fn tensors(c: &Call, tensors: usize, is_sorted: bool) -> Cost {
        let (nodes, edges) = (c.dims[0], c.dims[1]);
        Cost::bytes(c.bytes(tensors * edges * c.dims[2]) + 4 * (nodes + 1) + if is_sorted { 0 } else { 4 * edges })
    }
    let of = |heads| {
        [
            of_heads(heads, |c| work(c, true, false), |c| tensors(c, 2, true), "sorted"),
            of_heads(heads, |c| work(c, true, true), |c| tensors(c, 3, true), "sorted, gradient"),
            of_heads(heads, |c| work(c, false, false), |c| tensors(c, 2, false), "any order"),
            of_heads(heads, |c| work(c, false, true), |c| tensors(c, 3, false), "any order, gradient"),
        ]
    };
    [8, 64].into_iter().flat_map(of).collect()
}
