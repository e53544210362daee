//! The softmax of the entries of each row.

use crate::check::{check_float, describe};
use crate::fused::{AnyFused, FlatFused, has_kernel, run_unnamed};
use crate::ops::sparse::Csr;
use crate::ops::sparse::csr::row_of_positions;
use crate::ops::{TieGrad, gradients, in_acc};
use crate::tape::{Saved, record};
use crate::{Error, Result, Tensor, autocast};

/// Inputs: the start of each row's list of entries `[M + 1]`, x `[E, H]` and, where present, the entry at each position `[E]`. Output: y
/// `[E, H]`, the softmax of the entries of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeSoftmax {
    /// True if entries are not at the positions of their numbers.
    pub is_permuted: bool,
}

/// Inputs: the start of each row's list, dy and y `[E, H]` and, where present, the entry at each position. Output: dx `[E, H]` of
/// [`EdgeSoftmax`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeSoftmaxBackward {
    /// True if entries are not at the positions of their numbers.
    pub is_permuted: bool,
}

impl FlatFused for EdgeSoftmax {
    fn name(&self) -> &'static str {
        "edge_softmax"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (row, rows) = rows_of(&inputs[0], inputs.get(2), inputs[1].dims()[0])?;
        Ok(vec![Some(shares(&inputs[1], &row, rows)?)])
    }
}

impl FlatFused for EdgeSoftmaxBackward {
    fn name(&self) -> &'static str {
        "edge_softmax_backward"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (row, rows) = rows_of(&inputs[0], inputs.get(3), inputs[1].dims()[0])?;
        Ok(vec![Some(gradient(&inputs[1], &inputs[2], &row, rows)?)])
    }
}

impl Tensor {
    /// The softmax of the edges `[E]` or `[E, H]` of each target of a graph, or of the entries of each row of a pattern: `e^(x - max) /
    /// (sum + 1e-16)` over the edges of the same target, for each head. A target whose edges are all `-inf` has NaN. Float dtypes; sums are
    /// in the accumulation dtype, in a fixed order. Errors: `Shape`, `Dtype`, `Device`.
    pub fn edge_softmax(&self, graph: &Csr) -> Result<Tensor> {
        let op = "edge_softmax";
        check_float(op, self)?;
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.edge_softmax(graph);
        }
        if self.device() != graph.device() {
            return Err(Error::device(op, format!("{graph:?} and {} are on two devices", describe(&[self]))));
        }
        if !matches!(self.rank(), 1 | 2) || self.dims()[0] != graph.entries() {
            return Err(Error::shape(
                op,
                format!("{graph:?} and {}, expected [entries] or [entries, H]", describe(&[self])),
            ));
        }
        let (rows, fused) = (graph.rows(), has_kernel::<EdgeSoftmax>(self));
        let y = match fused {
            true => {
                let lists = graph.by_row()?;
                let kernel = EdgeSoftmax { is_permuted: lists.entries.is_some() };
                run_by_lists(op, &kernel, graph, &[&self.detach()])?
            }
            false => in_acc(&self.detach(), |x| shares(x, graph.row_index()?, rows).map_err(|e| e.of(op)))?,
        };
        let (saved, graph) = (Saved::output(&y), graph.clone());
        record(op, &[self], y, move |t| {
            let y = t.get(&saved)?;
            if fused && !t.creates_graph() {
                let kernel = EdgeSoftmaxBackward { is_permuted: graph.by_row()?.entries.is_some() };
                return gradients![Some(run_by_lists("edge_softmax_backward", &kernel, &graph, &[t.dy(), &y])?)];
            }
            gradients![Some(gradient(t.dy(), &y, graph.row_index()?, rows)?)]
        })
    }
}

/// Runs a kernel over the lists of a pattern, with operands `[E]` or `[E, H]`.
fn run_by_lists(op: &'static str, kernel: &dyn AnyFused, graph: &Csr, operands: &[&Tensor]) -> Result<Tensor> {
    let (lists, x) = (graph.by_row()?, operands[0]);
    let shape = (graph.entries(), x.numel() / graph.entries());
    let operands: Vec<Tensor> =
        operands.iter().map(|t| t.detach().contiguous()?.reshape(shape)).collect::<Result<_>>()?;
    let y = Tensor::allocate(op, operands[0].shape(), x.dtype(), x.device())?;
    let inputs: Vec<&Tensor> = [&lists.starts].into_iter().chain(&operands).chain(&lists.entries).collect();
    run_unnamed(op, kernel, &inputs, &[&y])?;
    y.reshape(x.shape())
}

/// The row of each of `count` entries, and the number of rows.
fn rows_of(starts: &Tensor, entries: Option<&Tensor>, count: usize) -> Result<(Tensor, usize)> {
    let (row, rows) = (row_of_positions(starts, count)?, starts.numel() - 1);
    match entries {
        None => Ok((row, rows)),
        Some(entries) => Ok((row.zeros_like()?.scatter(0, entries, &row)?, rows)),
    }
}

fn shares(x: &Tensor, row: &Tensor, rows: usize) -> Result<Tensor> {
    let largest = x.detach().scatter_max(row, Some(rows), TieGrad::First)?.0;
    let powers = x.sub(&largest.index_select(0, row)?)?.exp()?;
    let sums = powers.scatter_sum(row, Some(rows))?.add_scalar(1e-16)?;
    powers.div(&sums.index_select(0, row)?)
}

/// `y (dy - sum of dy y over the entries of the row)`.
fn gradient(dy: &Tensor, y: &Tensor, row: &Tensor, rows: usize) -> Result<Tensor> {
    let acc = y.dtype().acc();
    let (dy, wide) = (dy.cast(acc)?, y.cast(acc)?);
    let sums = dy.mul(&wide)?.scatter_sum(row, Some(rows))?;
    dy.sub(&sums.index_select(0, row)?)?.mul(&wide)?.cast(y.dtype())
}
