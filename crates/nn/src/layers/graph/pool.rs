//! Reductions of the nodes of each graph of a batch.

use super::Graph;
use isograd_core::ops::TieGrad;
use isograd_core::{Result, Tensor};

/// The sum of the features x `[N, *]` of each part of a graph: `[G, *]`. Errors: `Shape`, `Dtype`, `Device`.
pub fn global_add_pool(x: &Tensor, graph: &Graph) -> Result<Tensor> {
    x.scatter_sum(graph.batch_index()?, Some(graph.graphs())).map_err(|e| e.of("global_add_pool"))
}

/// The mean of the features x `[N, *]` of each part of a graph: `[G, *]`, 0 for a part without nodes. Errors: `Shape`, `Dtype`, `Device`.
pub fn global_mean_pool(x: &Tensor, graph: &Graph) -> Result<Tensor> {
    x.scatter_mean(graph.batch_index()?, Some(graph.graphs())).map_err(|e| e.of("global_mean_pool"))
}

/// The maximum of the features x `[N, *]` of each part of a graph: `[G, *]`, 0 for a part without nodes. Equal maxima share the gradient.
/// Errors: `Shape`, `Dtype`, `Device`.
pub fn global_max_pool(x: &Tensor, graph: &Graph) -> Result<Tensor> {
    let y = x.scatter_max(graph.batch_index()?, Some(graph.graphs()), TieGrad::Even);
    y.map(|(y, _)| y).map_err(|e| e.of("global_max_pool"))
}
