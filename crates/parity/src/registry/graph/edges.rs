//! The softmax over the edges of a graph, and diffusion between points.

use crate::bench::{Action, Bench, Call, Cost, STORED, Work};
use crate::case::{Case, Domain, Gen};
use crate::registry::common::one;
use crate::registry::indexing::segment::{edges, size};
use crate::registry::invocation::Invocation;
use crate::registry::op::{Class, Op};
use isograd_core::ops::{Csr, Spectrum, Times};
use isograd_core::{Error, Kind, Result, Tensor};
use serde_json::json;

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

pub(crate) fn ops() -> Vec<Op> {
    vec![
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
