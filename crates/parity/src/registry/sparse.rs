//! Sparse matrices.

use super::common::{absolute, one};
use super::invocation::Invocation;
use super::op::{Class, Op};
use crate::bench::{Action, Bench, Call, Cost, STORED, Work};
use crate::case::{Case, Domain, Gen};
use isograd_core::ops::Csr;
use isograd_core::{Result, Tensor};
use serde_json::json;

fn sparse_mm(c: &Invocation<'_>) -> Result<Tensor> {
    let pattern = Csr::new(c.input("row_ptr")?, c.input("col")?, c.size("columns")?)?;
    c.input("x")?.sparse_mm(&pattern, c.optional("val"))
}

/// A matrix of as many entries as the shape has rows, in lists of random lengths; in a timed case, of as many rows.
fn matrix(g: &mut Gen) -> Case {
    g.at_least_rank(2);
    let (count, features) = (g.shape[0], g.shape[g.shape.len() - 1]);
    let (entries, rows, columns) = match g.timed() {
        Some(_) => (4 * count, count, count),
        None => (count, g.side(), 1 + g.side()),
    };
    // Without rows there are no entries.
    let entries = if rows == 0 { 0 } else { entries };
    let mut ends: Vec<i64> = (1..rows.max(1)).map(|_| g.below(entries + 1) as i64).collect();
    ends.sort_unstable();
    let row_ptr = [0].into_iter().chain(ends).chain((rows > 0).then_some(entries as i64)).collect::<Vec<i64>>();
    let row_ptr = Tensor::from_vec(row_ptr, rows + 1, g.device()).expect("as many values as the shape has");
    let heads = if g.timed().is_none() && g.coin() { vec![2] } else { Vec::new() };
    let shape = |first: usize, last: &[usize]| [&[first], &heads[..], last].concat();
    let (x, val) = (shape(columns, &[features]), shape(entries, &[]));
    let mut inputs =
        vec![("row_ptr", row_ptr), ("col", g.indices(columns, &[entries])), ("x", g.tensor(Domain::Real, &x))];
    if g.timed().is_some() || g.coin() {
        inputs.push(("val", g.tensor(Domain::Real, &val)));
    }
    Case::new(json!({"columns": columns}), inputs)
}

pub(super) fn ops() -> Vec<Op> {
    vec![
        Op::new("sparse_mm", |c| one(sparse_mm(c)), matrix)
            .class(Class::Product)
            .companion(absolute)
            .kernels(&["sparse_mm_forward"])
            .also(&["csr", "zeros", "scatter_sum", "index_select"])
            .fused()
            // The pattern is checked once; the gradient of x sorts its entries by column.
            .launches(19, 19)
            .bench(products()),
    ]
}

/// A random graph `[nodes, edges, features]` for measurements: the pattern, features of nodes and weights of edges.
pub(super) fn graph(c: &Call) -> Result<(Csr, Tensor, Tensor)> {
    let [nodes, edges, features] = [c.dims[0], c.dims[1], c.dims[2]];
    let [source, target] = [c.indices(nodes, &[edges])?, c.indices(nodes, &[edges])?];
    let pattern = Csr::from_entries(&target, &source, [nodes, nodes])?;
    Ok((pattern, c.normal(&[nodes, features])?, c.normal(&[edges])?))
}

/// Indices, weights and the features of both ends, in 4 bytes an index.
pub(super) fn cost(c: &Call) -> Cost {
    let [nodes, edges, features] = [c.dims[0], c.dims[1], c.dims[2]];
    let bytes = c.bytes(edges + 2 * nodes * features) + 4 * (edges + nodes + 1);
    Cost { bytes, flops: 2.0 * edges as f64 * features as f64 }
}

/// [`cost`], and that of both gradients.
fn cost_with_gradients(c: &Call) -> Cost {
    let once = cost(c);
    Cost { bytes: 3 * once.bytes, flops: 3.0 * once.flops }
}

pub(super) fn of_graph(work: fn(&Call) -> Result<Work>, cost: fn(&Call) -> Cost) -> Bench {
    Bench::new(&[100_000, 1_600_000, 128], Action::Work(work), cost).dtypes(STORED).shrinks(2)
}

/// The product, and the product with its gradients. The pattern is made before.
fn products() -> [Bench; 2] {
    let forward = |c: &Call| -> Result<Work> {
        let (pattern, x, val) = graph(c)?;
        Ok(Box::new(move || x.sparse_mm(&pattern, Some(&val)).map(drop)))
    };
    let all = |c: &Call| -> Result<Work> {
        let (pattern, x, val) = graph(c)?;
        let (x, val, dy) = (x.require_grad()?, val.require_grad()?, x.ones_like()?);
        Ok(Box::new(move || {
            let y = x.sparse_mm(&pattern, Some(&val))?;
            let options = isograd_core::tape::BackwardOptions { gradient: Some(dy.clone()), ..Default::default() };
            isograd_core::tape::grad_with(&y, &[&x, &val], &options).map(drop)
        }))
    };
    [of_graph(forward, cost), of_graph(all, cost_with_gradients).variant("with gradients")]
}
