//! Messages along the edges of graphs.

use crate::bench::{Bench, Call, Work};
use crate::case::{Case, Domain, Gen};
use crate::registry::common::{absolute, one};
use crate::registry::invocation::Invocation;
use crate::registry::op::{Class, Op};
use crate::registry::sparse::{cost, graph, of_graph};
use isograd_core::ops::{Csr, IndexReduce, Message, MessageMlp, Messages};
use isograd_core::{Error, Kind, Result, Tensor};
use serde_json::json;

const REDUCTIONS: [(&str, IndexReduce); 3] =
    [("sum", IndexReduce::Sum), ("mean", IndexReduce::Mean), ("max", IndexReduce::Max)];

fn message_passing(c: &Invocation<'_>) -> Result<Tensor> {
    let (x, edges) = (c.input("x")?, c.input("edge_index")?);
    if edges.rank() != 2 || edges.dims()[0] != 2 {
        let message = format!("edge_index is {}, expected [2, E], with x {}", edges.shape(), x.shape());
        return Err(Error::shape("message_passing", message));
    }
    let sources = x.dims().first().copied().unwrap_or(0);
    let targets = c.optional_of("nodes", Invocation::size)?.unwrap_or(sources);
    // The op has the graph; a case has the edges.
    let shown = |e: Error| match e.kind() {
        Kind::Shape => {
            let given = format!("{}; x is {} and edge_index {}", e.message(), x.shape(), edges.shape());
            Error::shape("message_passing", given)
        }
        _ => e,
    };
    let graph = Csr::from_entries(&edges.select(0, 1)?, &edges.select(0, 0)?, [targets, sources]).map_err(shown)?;
    let edge_weight = c.optional("edge_weight");
    let kind = c.choice_or_first("message", &["copy", "mul_w", "add_e", "mlp"].map(|name| (name, name)))?;
    let message = match kind {
        "add_e" => Message::Add(c.input("edge_attr")?),
        "mlp" => Message::Mlp(MessageMlp {
            x_dst: c.optional("x_dst"),
            edge_attr: c.optional("edge_attr"),
            w1: c.input("w1")?,
            b1: c.optional("b1"),
            w2: c.input("w2")?,
            b2: c.optional("b2"),
        }),
        "mul_w" => c.input("edge_weight").map(|_| Message::Copy)?,
        _ => Message::Copy,
    };
    let reduce = c.choice_or_first("reduce", &REDUCTIONS)?;
    x.message_passing(&graph, &Messages { message, edge_weight, reduce }).map_err(shown)
}

/// A graph of as many edges as the shape has rows; in a timed case, of as many nodes.
fn messages(g: &mut Gen) -> Case {
    g.at_least_rank(2);
    let (count, features, is_timed) = (g.shape[0], g.shape[g.shape.len() - 1], g.timed().is_some());
    let (edges, sources) = if is_timed { (4 * count, count) } else { (count, 1 + g.side()) };
    let targets = if is_timed || g.coin() { sources } else { 1 + g.side() };
    let message = if is_timed { "mul_w" } else { g.pick(&["copy", "mul_w", "add_e", "mlp"]) };
    let reduce = if is_timed { "sum" } else { g.pick(&["sum", "mean", "max"]) };
    let ends = [g.indices(sources, &[edges]), g.indices(targets, &[edges])];
    let edge_index = Tensor::stack(&[&ends[0], &ends[1]], 0).expect("of one shape");
    let heads = if !is_timed && message != "mlp" && g.coin() { vec![2] } else { Vec::new() };
    let shape = |first: usize, last: &[usize]| [&[first], &heads[..], last].concat();
    let mut inputs = vec![("x", g.tensor(Domain::Real, &shape(sources, &[features]))), ("edge_index", edge_index)];
    if message == "mul_w" || (message != "copy" && g.coin()) {
        inputs.push(("edge_weight", g.tensor(Domain::Real, &shape(edges, &[]))));
    }
    match message {
        "add_e" => inputs.push(("edge_attr", g.tensor(Domain::Real, &shape(edges, &[features])))),
        "mlp" => inputs.extend(network(g, [sources, targets, edges, features])),
        _ => {}
    }
    let attributes = json!({"message": message, "reduce": reduce, "nodes": targets});
    Case::new(attributes, inputs)
}

/// The network of a message, for `[sources, targets, edges, features]`.
fn network(g: &mut Gen, [sources, targets, edges, features]: [usize; 4]) -> Vec<(&'static str, Tensor)> {
    let (hidden, attributes) = (1 + g.below(3), if g.coin() { 2 } else { 0 });
    let width = 2 * features + attributes;
    let mut inputs = vec![
        ("w1", g.tensor(Domain::Real, &[hidden, width])),
        ("w2", g.tensor(Domain::Real, &[hidden, hidden])),
        ("b2", g.tensor(Domain::Real, &[hidden])),
    ];
    // A bias that determines the sign, away from the kink: a product of elements is at most 4.
    let bias = g.tensor(Domain::Real, &[hidden]).sign().and_then(|sign| sign.mul_scalar((4 * width + 4) as f64));
    inputs.push(("b1", bias.expect("floats have a sign")));
    if targets != sources {
        inputs.push(("x_dst", g.tensor(Domain::Real, &[targets, features])));
    }
    if attributes > 0 {
        inputs.push(("edge_attr", g.tensor(Domain::Real, &[edges, attributes])));
    }
    inputs
}

pub(crate) fn ops() -> Vec<Op> {
    vec![
        Op::new("message_passing", |c| one(message_passing(c)), messages)
            .class(Class::Product)
            .companion(absolute)
            .kernels(&["message_passing_forward"])
            .also(&[
                "csr",
                "zeros",
                "linear",
                "add",
                "select",
                "index_select",
                "scatter_sum",
                "scatter_mean",
                "scatter_max",
            ])
            .fused()
            .launches(50, 29)
            .bench(passes()),
    ]
}

/// Means and maxima of neighbours.
fn passes() -> [Bench; 2] {
    fn work(c: &Call, reduce: IndexReduce) -> Result<Work> {
        let (pattern, x, _) = graph(c)?;
        Ok(Box::new(move || x.message_passing(&pattern, &Messages { reduce, ..Default::default() }).map(drop)))
    }
    [
        of_graph(|c| work(c, IndexReduce::Mean), cost).variant("mean"),
        of_graph(|c| work(c, IndexReduce::Max), cost).variant("max"),
    ]
}
