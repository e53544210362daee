//! Sums, means and maxima of rows by index.

use super::index::{of_graph, reads};
use crate::bench::{Bench, Call, Cost, INDEX, call};
use crate::case::{Case, Domain, Gen};
use crate::registry::common::{absolute, one, two};
use crate::registry::invocation::Invocation;
use crate::registry::op::{Class, Op};
use isograd_core::ops::TieGrad;
use isograd_core::{Result, Tensor};
use serde_json::json;

/// `size`, and rows of the case's shape with an index below it.
pub(crate) fn edges(g: &mut Gen, domain: Domain) -> Case {
    g.at_least_rank(1);
    let (rows, size) = (g.shape[..1].to_vec(), 1 + g.side());
    let index = g.indices(size, &rows);
    Case::new(json!({"size": size}), vec![("src", g.x(domain)), ("index", index)])
}

pub(crate) fn size(c: &Invocation<'_>) -> Result<Option<usize>> {
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
    ]
}

/// Reduces edges to nodes: rows `[n, C]` of a shape `[R, n, C]`, with an index of n rows below R.
fn joins(f: fn(&Call, &[Tensor]) -> Result<Tensor>) -> Bench {
    let inputs = |c: &Call| Ok(vec![c.normal(&c.dims[1..])?, c.indices(c.dims[0], &c.dims[1..2])?]);
    let joined = |c: &Call| Cost::bytes(c.bytes((c.dims[0] + c.dims[1]) * c.dims[2]) + c.dims[1] * INDEX);
    of_graph(call(inputs, f), joined).backward(|c| reads(c, c.dims[1]))
}
