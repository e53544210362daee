//! Graphs: what edges bring to nodes. An edge is a row, and an index says to which node it leads.

use super::embedding::table_gradient;
use super::gather::along;
use super::{Order, Rounding, gradients};
use crate::fused::{Fused, has_kernel, record_fused, run_fused};
use crate::tape::{Gradient, Saved, record};
use crate::tensor::{check_device, check_index, describe};
use crate::{DType, Dims, Error, Result, Shape, Tensor};

/// Where the gradient of a maximum goes if several rows have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TieGrad {
    /// To all of them in equal parts, as PyTorch's `scatter_reduce`. If the maximum is NaN, all rows of the node get NaN.
    #[default]
    Even,
    /// To the first, as torch_scatter.
    First,
}

/// An index expanded to `[E, F]` along F and rows `[E, F]`, strided, to a table `[N, F]` of the rows that are joined by index; zeros
/// for an index without rows. The mean may have a second output, the number of rows (i32, `[N]`). The largest has two more: how
/// many rows have it, none if it is NaN (i32, `[N, F]`), and the first of them (i64, `[N, F]`), or -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowReduction {
    /// How rows are joined.
    pub reduce: IndexReduce,
    /// An index whose rows are left out.
    pub left_out: Option<i64>,
}

/// How rows that have one index are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexReduce {
    /// Their sum.
    Sum,
    /// Their sum divided by how many there are.
    Mean,
    /// The largest of each element; NaN wins.
    Max,
}

/// dy `[N, F]`, an index `[E]` and more inputs to the gradient of rows `[E, F]` that are joined by index: how much of its index's
/// gradient a row gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexGradient {
    /// As much as all others; the input is the number of rows `[N, 1]`.
    Mean,
    /// As much as all that have the largest value; inputs are how many do `[N, F]`, the rows, and the result.
    Even,
    /// All, if it is the first that has the largest value; the input is the first `[N, F]`.
    First,
}

impl Fused for RowReduction {
    fn name(&self) -> &'static str {
        "index_reduce"
    }

    fn composite(&self, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (index, x, nodes) = (inputs[0].narrow(1, 0, 1)?.squeeze(1)?, &inputs[1], before[0].dims()[0]);
        let found = match self.reduce {
            IndexReduce::Max => {
                let (y, first) = largest(x, &index, nodes)?;
                let is_largest = x.eq(&y.index_select(0, &index)?)?;
                let ties = counts(&is_largest, &index, nodes)?;
                vec![y, ties, first]
            }
            _ => {
                let is_mean = self.reduce == IndexReduce::Mean;
                let ones = Tensor::ones(index.shape(), DType::I64, index.device())?;
                vec![table_gradient(x, &index, nodes, self.left_out, is_mean)?, counts(&ones, &index, nodes)?]
            }
        };
        Ok(found.into_iter().take(before.len()).map(Some).collect())
    }
}

impl Fused for IndexGradient {
    fn name(&self) -> &'static str {
        "index_reduce_backward"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (dy, index) = (&inputs[0], &inputs[1]);
        let of_rows = |t: &Tensor| t.index_select(0, index);
        let share = || of_rows(dy)?.div(&of_rows(&inputs[2].cast(dy.dtype())?)?);
        let dx = match self {
            IndexGradient::Mean => share()?,
            IndexGradient::Even => share()?.mul(&inputs[3].eq(&of_rows(&inputs[4])?)?.cast(dy.dtype())?)?,
            IndexGradient::First => {
                let rows = Tensor::arange(index.numel(), index.device())?.unsqueeze(1)?;
                of_rows(&inputs[2])?.eq(&rows)?.where_scalar(&of_rows(dy)?, 0.0)?
            }
        };
        Ok(vec![Some(dx)])
    }
}

impl Tensor {
    /// The sum of the rows `[E, *]` of each node by index `[E]`: `[size, *]`, 0 for a node without rows. Without a `size` it
    /// is the largest index plus 1, which is read back. Errors: `Shape`, `Dtype`; `Index` for an index outside of `0..size`.
    pub fn scatter_sum(&self, index: &Tensor, size: Option<usize>) -> Result<Tensor> {
        let op = "scatter_sum";
        let nodes = nodes(op, self, index, size)?;
        if !has_kernel::<RowReduction>(self) {
            return sum(self, index, nodes).map_err(|e| e.of(op));
        }
        let y = Tensor::allocate(op, &node_shape(self, nodes), self.dtype(), self.device())?;
        index_reduce(op, IndexReduce::Sum, index, self, None, &[&y])?;
        let saved = Saved::input(index);
        record(op, &[self], y, move |t| gradients![t.dy().index_select(0, &t.get(&saved)?)?])
    }

    /// The mean of the rows `[E, *]` of each node by index `[E]`: `[size, *]`, 0 for a node without rows. Integers are
    /// rounded down; a mean whose sum is out of range is infinite. `size` and errors are as for [`scatter_sum`](Tensor::scatter_sum).
    pub fn scatter_mean(&self, index: &Tensor, size: Option<usize>) -> Result<Tensor> {
        let op = "scatter_mean";
        let nodes = nodes(op, self, index, size)?;
        if !has_kernel::<RowReduction>(self) {
            return mean(self, index, nodes).map_err(|e| e.of(op));
        }
        let y = Tensor::allocate(op, &node_shape(self, nodes), self.dtype(), self.device())?;
        let counts = Tensor::allocate(op, &Shape::from(nodes), DType::I32, self.device())?;
        index_reduce(op, IndexReduce::Mean, index, self, None, &[&y, &counts])?;
        let composite = move |x: &[Tensor]| mean(&x[0], &x[1], nodes);
        record_fused(op, &[self, index], y, composite, move |t, x| {
            gradients![index_gradient(IndexGradient::Mean, t.dy(), &x[1], &[&counts], &x[0])?, Gradient::NONE]
        })
    }

    /// The largest of the rows `[E, *]` of each node by index `[E]`, element by element, and the first row that has it (i64),
    /// both `[size, *]`; 0 and -1 for a node without rows. NaN is the largest. `ties` says where the gradient goes. `size`
    /// and errors are as for [`scatter_sum`](Tensor::scatter_sum).
    pub fn scatter_max(&self, index: &Tensor, size: Option<usize>, ties: TieGrad) -> Result<(Tensor, Tensor)> {
        let op = "scatter_max";
        let nodes = nodes(op, self, index, size)?;
        let mut counts = None;
        let (y, first) = if has_kernel::<RowReduction>(self) {
            let shape = node_shape(self, nodes);
            let empty = |dtype| Tensor::allocate(op, &shape, dtype, self.device());
            let (y, many, first) = (empty(self.dtype())?, empty(DType::I32)?, empty(DType::I64)?);
            index_reduce(op, IndexReduce::Max, index, self, None, &[&y, &many, &first])?;
            counts = Some(many);
            (y, first)
        } else {
            largest(&self.detach(), index, nodes).map_err(|e| e.of(op))?
        };
        let (x, result, at, rows) = (Saved::input(self), Saved::output(&y), Saved::input(index), Saved::input(&first));
        let y = record(op, &[self], y, move |t| {
            let (x, y, index, first) = (t.get(&x)?.detach(), t.get(&result)?.detach(), t.get(&at)?, t.get(&rows)?);
            let dx = match (&counts, ties) {
                (Some(counts), TieGrad::Even) if !t.creates_graph() => {
                    index_gradient(IndexGradient::Even, t.dy(), &index, &[counts, &x, &y], &x)?
                }
                (Some(_), TieGrad::First) if !t.creates_graph() => {
                    index_gradient(IndexGradient::First, t.dy(), &index, &[&first], &x)?
                }
                _ => largest_gradient(t.dy(), &x, &index, &y, &first, ties)?,
            };
            gradients![Some(dx)]
        })?;
        Ok((y, first))
    }
}

/// The number of nodes of checked operands.
fn nodes(op: &'static str, x: &Tensor, index: &Tensor, size: Option<usize>) -> Result<usize> {
    check_index(op, index)?;
    check_device(op, &[x, index])?;
    if x.dtype() == DType::Bool {
        return Err(Error::dtype(op, format!("{} was given, expected numbers", describe(&[x]))));
    }
    if x.rank() == 0 || index.rank() != 1 || index.numel() != x.dims()[0] {
        let message = format!("the rows {} and the index {}, expected [E, *] and [E]", x.shape(), index.shape());
        return Err(Error::shape(op, message));
    }
    let nodes = match size {
        Some(size) => size,
        None if index.numel() == 0 => 0,
        None => (index.amax(..)?.item()? + 1.0).max(0.0) as usize,
    };
    if nodes == 0 && x.numel() > 0 {
        return Err(Error::index(op, format!("there are no nodes for the index {}", index.shape())));
    }
    // Positions of a maximum have 8 bytes.
    let row: usize = x.dims()[1..].iter().product();
    let bytes = nodes.checked_mul(row.max(1)).and_then(|n| n.checked_mul(DType::I64.size()));
    if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        let message = format!("{nodes} nodes have more elements than memory can address: {}", describe(&[x, index]));
        return Err(Error::shape(op, message));
    }
    Ok(nodes)
}

/// The shape of what `nodes` nodes get of rows.
fn node_shape(x: &Tensor, nodes: usize) -> Shape {
    let mut dims = Dims::from_slice(x.dims());
    dims[0] = nodes;
    Shape::from(dims)
}

/// How many rows each node has of the `x`-shaped `is_counted`.
fn counts(is_counted: &Tensor, index: &Tensor, nodes: usize) -> Result<Tensor> {
    let zeros = Tensor::zeros(node_shape(is_counted, nodes), DType::I64, index.device())?;
    zeros.index_add(0, index, &is_counted.cast(DType::I64)?, 1)
}

/// What the kernel of `scatter_sum` computes, in tensor ops.
fn sum(x: &Tensor, index: &Tensor, nodes: usize) -> Result<Tensor> {
    Tensor::zeros(node_shape(x, nodes), x.dtype(), x.device())?.index_add(0, index, x, 1)
}

/// What the kernel of `scatter_mean` computes, in tensor ops.
fn mean(x: &Tensor, index: &Tensor, nodes: usize) -> Result<Tensor> {
    if x.numel() == 0 {
        return sum(x, index, nodes);
    }
    let is_float = x.dtype().is_float();
    let acc = if is_float { x.dtype().acc() } else { DType::I64 };
    let sums = sum(&x.cast(acc)?, index, nodes)?;
    let mut column: Dims = x.dims().iter().map(|_| 1).collect();
    column[0] = x.dims()[0];
    let ones = Tensor::ones(Shape::from(column), acc, x.device())?;
    let counts = counts(&ones, index, nodes)?.cast(acc)?;
    let counts = counts.maximum(&counts.ones_like()?)?;
    let y = if is_float { sums.div(&counts)? } else { sums.div_rounded(&counts, Rounding::Floor)? };
    y.cast(x.dtype())
}

/// What the kernel of `scatter_max` computes, in tensor ops: the maximum, and the first row that has it.
fn largest(x: &Tensor, index: &Tensor, nodes: usize) -> Result<(Tensor, Tensor)> {
    let shape = node_shape(x, nodes);
    let none = Tensor::full(&shape, -1, DType::I64, x.device())?;
    if x.numel() == 0 {
        return Ok((Tensor::zeros(&shape, x.dtype(), x.device())?, none));
    }
    // Of several rows the last that is written stays: the first of the largest.
    let back = Tensor::arange(x.dims()[0], x.device())?.rsub_scalar(x.dims()[0] as i64 - 1)?;
    let order = x.argsort(0, Order::Descending)?.index_select(0, &back)?;
    let first = none.scatter(0, &along("scatter_max", x, 0, index)?.gather(0, &order)?, &order)?;
    let is_there = first.ge_scalar(0)?;
    let y = is_there.where_scalar(&x.gather(0, &is_there.where_scalar(&first, 0)?)?, 0)?;
    Ok((y, first))
}

/// The gradient of the rows of a maximum `y`, of which `first` has the first rows.
fn largest_gradient(
    dy: &Tensor,
    x: &Tensor,
    index: &Tensor,
    y: &Tensor,
    first: &Tensor,
    ties: TieGrad,
) -> Result<Tensor> {
    if x.numel() == 0 {
        return dy.index_select(0, index);
    }
    if ties == TieGrad::First {
        let mut column: Dims = x.dims().iter().map(|_| 1).collect();
        column[0] = x.dims()[0];
        let rows = Tensor::arange(x.dims()[0], x.device())?.reshape(Shape::from(column))?;
        return first.index_select(0, index)?.eq(&rows)?.where_scalar(&dy.index_select(0, index)?, 0);
    }
    let is_largest = x.eq(&y.index_select(0, index)?)?;
    // A maximum that is NaN is nobody's, and makes all NaN. What has no rows is divided by 1, which nobody sees.
    let ties = counts(&is_largest, index, y.dims()[0])?.add(&first.lt_scalar(0)?.cast(DType::I64)?)?;
    let acc = x.dtype().acc();
    let part = dy.cast(acc)?.div(&ties.cast(acc)?)?.cast(x.dtype())?;
    part.index_select(0, index)?.mul(&is_largest.cast(x.dtype())?)
}

/// Joins rows `[E, *]` by index `[E]`, leaving out one index, by the kernel; see [`RowReduction`] for the outputs.
pub(super) fn index_reduce(
    op: &'static str,
    reduce: IndexReduce,
    index: &Tensor,
    x: &Tensor,
    left_out: Option<i64>,
    outputs: &[&Tensor],
) -> Result<()> {
    let (x, y) = (flat(&x.detach())?, flat(outputs[0])?);
    let index = along(op, &y, 0, index)?;
    let others = outputs[1..].iter().map(|&t| if t.rank() > 1 { flat(t) } else { Ok(t.clone()) });
    let outputs = [Ok(y)].into_iter().chain(others).collect::<Result<Vec<Tensor>>>()?;
    let outputs: Vec<&Tensor> = outputs.iter().collect();
    run_fused(op, &RowReduction { reduce, left_out }, &[&index, &x], &outputs)
}

/// The gradient of rows like `x` by the kernel; see [`IndexGradient`] for what it reads of the result.
fn index_gradient(kind: IndexGradient, dy: &Tensor, index: &Tensor, of: &[&Tensor], x: &Tensor) -> Result<Tensor> {
    let op = "scatter_backward";
    let dx = Tensor::allocate(op, x.shape(), x.dtype(), x.device())?;
    let inputs = [Ok(flat(dy)?), index.contiguous()].into_iter().chain(of.iter().map(|&t| flat(t)));
    let inputs = inputs.collect::<Result<Vec<Tensor>>>()?;
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    run_fused(op, &kind, &inputs, &[&flat(&dx)?])?;
    Ok(dx)
}

/// `[N, *]` as `[N, F]`, contiguous; it has elements.
fn flat(t: &Tensor) -> Result<Tensor> {
    t.reshape((t.dims()[0], t.numel() / t.dims()[0]))?.contiguous()
}
