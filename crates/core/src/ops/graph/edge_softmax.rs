//! The softmax of the entries of each row.

use crate::check::{check_float, describe};
use crate::fused::{Fused, has_kernel, run_fused};
use crate::operands;
use crate::operands::Output;
use crate::ops::sparse::csr::row_of_positions;
use crate::ops::sparse::{Csr, EntryLists};
use crate::ops::{TieGrad, gradients, in_acc};
use crate::tape::{Saved, record};
use crate::{Error, Result, Tensor, autocast};

/// The softmax of the entries of each row. Output: y `[E, H]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeSoftmax;

operands! {
    /// The inputs of [`EdgeSoftmax`].
    pub struct EdgeSoftmaxInputs {
        /// The start of each row's list of entries, `[M + 1]`.
        starts,
        /// `[E, H]`.
        x,
        /// The entry at each position, `[E]`, unless entries are at the positions of their numbers.
        entries?,
    }
}

/// The gradient of [`EdgeSoftmax`]. Output: dx `[E, H]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeSoftmaxBackward;

operands! {
    /// The inputs of [`EdgeSoftmaxBackward`].
    pub struct EdgeSoftmaxBackwardInputs {
        /// The start of each row's list of entries, `[M + 1]`.
        starts,
        /// The gradient of y, `[E, H]`.
        dy,
        /// The result of [`EdgeSoftmax`], `[E, H]`.
        y,
        /// The entry at each position, `[E]`, unless entries are at the positions of their numbers.
        entries?,
    }
}

impl Fused for EdgeSoftmax {
    type Inputs<T> = EdgeSoftmaxInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "edge_softmax"
    }

    fn composite(
        &self,
        EdgeSoftmaxInputs { starts, x, entries }: EdgeSoftmaxInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        let (row, rows) = rows_of(starts, entries, x.dims()[0])?;
        Ok(Output { y: Some(shares(x, &row, rows)?) })
    }
}

impl Fused for EdgeSoftmaxBackward {
    type Inputs<T> = EdgeSoftmaxBackwardInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "edge_softmax_backward"
    }

    fn composite(
        &self,
        EdgeSoftmaxBackwardInputs { starts, dy, y, entries }: EdgeSoftmaxBackwardInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        let (row, rows) = rows_of(starts, entries, dy.dims()[0])?;
        Ok(Output { y: Some(gradient(dy, y, &row, rows)?) })
    }
}

/// # Softmax over edges
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
                let (EntryLists { starts, entries, .. }, x) = (graph.by_row()?, with_heads(self, graph)?);
                let inputs = EdgeSoftmaxInputs { starts, x: &x, entries: entries.as_ref() };
                let y = Tensor::allocate(op, x.shape(), x.dtype(), x.device())?;
                run_fused(op, &EdgeSoftmax, inputs, Output { y: &y })?;
                y.reshape(self.shape())?
            }
            false => in_acc(&self.detach(), |x| shares(x, graph.row_index()?, rows).map_err(|e| e.of(op)))?,
        };
        let (saved, graph) = (Saved::output(&y), graph.clone());
        record(op, &[self], y, move |t| {
            let y = t.get(&saved)?;
            if fused && !t.creates_graph() {
                let EntryLists { starts, entries, .. } = graph.by_row()?;
                let (dy, y) = (with_heads(t.dy(), &graph)?, with_heads(&y, &graph)?);
                let inputs = EdgeSoftmaxBackwardInputs { starts, dy: &dy, y: &y, entries: entries.as_ref() };
                let op = "edge_softmax_backward";
                let dx = Tensor::allocate(op, dy.shape(), dy.dtype(), dy.device())?;
                run_fused(op, &EdgeSoftmaxBackward, inputs, Output { y: &dx })?;
                return gradients![Some(dx.reshape(t.dy().shape())?)];
            }
            gradients![Some(gradient(t.dy(), &y, graph.row_index()?, rows)?)]
        })
    }
}

/// An operand `[E]` or `[E, H]` as `[E, H]`, outside of the tape.
fn with_heads(x: &Tensor, graph: &Csr) -> Result<Tensor> {
    x.detach().contiguous()?.reshape((graph.entries(), x.numel() / graph.entries()))
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
