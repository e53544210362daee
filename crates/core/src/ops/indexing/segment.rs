//! Reductions of edges to the nodes of a graph. An edge is a row; the index gives its node.

use crate::check::{check_device, check_index, describe};
use crate::fused::{Fused, has_kernel, run_fused};
use crate::operands;
use crate::operands::Output;
use crate::ops::indexing::embedding::table_gradient;
use crate::ops::indexing::gather::along;
use crate::ops::{Order, Rounding, gradients, parts};
use crate::tape::{Gradient, Record, Saved, record};
use crate::{DType, Dims, Error, Result, Shape, Tensor};

/// The gradient of a maximum that several rows share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TieGrad {
    /// In equal parts to all of these rows, as PyTorch's `scatter_reduce`. If the maximum is NaN, all rows of the node get NaN.
    #[default]
    Even,
    /// To the first of these rows, as torch_scatter.
    First,
}

/// Rows reduced by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowReduction {
    /// The reduction.
    pub reduce: IndexReduce,
    /// An index whose rows are ignored.
    pub left_out: Option<i64>,
}

operands! {
    /// The inputs of [`RowReduction`], strided.
    pub struct RowReductionInputs {
        /// The index, expanded to `[E, F]` along F.
        index,
        /// The rows, `[E, F]`.
        x,
    }
}

operands! {
    /// The outputs of [`RowReduction`].
    pub struct RowReductionOutputs {
        /// The table of reduced rows, `[N, F]`; zeros for an index without rows.
        y,
        /// For a mean, the number of rows, `[N]` (i32).
        counts?,
        /// For a maximum, the number of rows that have it, `[N, F]` (i32); 0 if it is NaN.
        ties?,
        /// For a maximum, the first of these rows, `[N, F]` (i64), or -1.
        first?,
    }
}

/// The reduction of rows with the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum IndexReduce {
    /// Their sum.
    Sum,
    /// Their sum divided by their number.
    Mean,
    /// The maximum, for each element; NaN wins.
    Max,
}

/// The gradient of rows that were reduced by index: a row's share of the gradient of its index. Output: dx `[E, F]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexGradient {
    /// Equal shares for all rows.
    Mean,
    /// Equal shares for all rows that have the maximum.
    Even,
    /// All of it for the first row that has the maximum.
    First,
}

operands! {
    /// The inputs of [`IndexGradient`].
    pub struct IndexGradientInputs {
        /// The gradient of the table, `[N, F]`.
        dy,
        /// `[E]`.
        index,
        /// For `Mean` the number of rows, `[N, 1]`; for `Even` that of rows that have the maximum, `[N, F]`.
        counts?,
        /// For `Even`, the rows, `[E, F]`.
        x?,
        /// For `Even`, the maxima, `[N, F]`.
        y?,
        /// For `First`, the first row that has the maximum, `[N, F]`.
        first?,
    }
}

impl Fused for RowReduction {
    type Inputs<T> = RowReductionInputs<T>;
    type Outputs<T> = RowReductionOutputs<T>;

    fn name(&self) -> &'static str {
        "index_reduce"
    }

    fn composite(
        &self,
        RowReductionInputs { index, x }: RowReductionInputs<&Tensor>,
        before: RowReductionOutputs<&Tensor>,
    ) -> Result<RowReductionOutputs<Option<Tensor>>> {
        let (index, nodes) = (index.narrow(1, 0, 1)?.squeeze(1)?, before.y.dims()[0]);
        if self.reduce == IndexReduce::Max {
            let (y, first) = largest(x, &index, nodes)?;
            let is_largest = x.eq(&y.index_select(0, &index)?)?;
            let ties = before.ties.map(|_| counts(&is_largest, &index, nodes)).transpose()?;
            let first = before.first.map(|_| Some(first));
            return Ok(RowReductionOutputs { y: Some(y), counts: None, ties: ties.map(Some), first });
        }
        let ones = Tensor::ones(index.shape(), DType::I64, index.device())?;
        let counts = before.counts.map(|_| counts(&ones, &index, nodes)).transpose()?.map(Some);
        let y = table_gradient(x, &index, nodes, self.left_out, self.reduce == IndexReduce::Mean)?;
        Ok(RowReductionOutputs { y: Some(y), counts, ties: None, first: None })
    }
}

impl Fused for IndexGradient {
    type Inputs<T> = IndexGradientInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "index_reduce_backward"
    }

    fn composite(
        &self,
        IndexGradientInputs { dy, index, counts, x, y, first }: IndexGradientInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        let of_rows = |t: &Tensor| t.index_select(0, index);
        let mut dx = of_rows(dy)?;
        if let Some(counts) = counts {
            dx = dx.div(&of_rows(&counts.cast(dy.dtype())?)?)?;
        }
        if let (Some(x), Some(y)) = (x, y) {
            dx = dx.mul(&x.eq(&of_rows(y)?)?.cast(dy.dtype())?)?;
        }
        if let Some(first) = first {
            let rows = Tensor::arange(index.numel(), index.device())?.unsqueeze(1)?;
            dx = of_rows(first)?.eq(&rows)?.where_scalar(&dx, 0.0)?;
        }
        Ok(Output { y: Some(dx) })
    }
}

/// # Reductions of segments
impl Tensor {
    /// The sum of the rows `[E, *]` of each node by index `[E]`: `[size, *]`, 0 for a node without rows. The default `size` is the
    /// largest index plus 1, which is read back. Errors: `Shape`, `Dtype`; `Index` for an index outside of `0..size`.
    pub fn scatter_sum(&self, index: &Tensor, size: Option<usize>) -> Result<Tensor> {
        let op = "scatter_sum";
        let nodes = nodes(op, self, index, size)?;
        if !has_kernel::<RowReduction>(self) {
            return parts(op, || sum(self, index, nodes));
        }
        let y = Tensor::allocate(op, &node_shape(self, nodes), self.dtype(), self.device())?;
        index_reduce(op, IndexReduce::Sum, index, self, None, only(&y))?;
        let saved = Saved::input(index);
        record(op, &[self], y, move |t| gradients![t.dy().index_select(0, &t.get(&saved)?)?])
    }

    /// The mean of the rows `[E, *]` of each node by index `[E]`: `[size, *]`, 0 for a node without rows. Integer means are rounded
    /// down. A mean whose sum overflows is infinite. `size` and errors are as for [`scatter_sum`](Tensor::scatter_sum).
    pub fn scatter_mean(&self, index: &Tensor, size: Option<usize>) -> Result<Tensor> {
        let op = "scatter_mean";
        let nodes = nodes(op, self, index, size)?;
        if !has_kernel::<RowReduction>(self) {
            return parts(op, || mean(self, index, nodes));
        }
        let y = Tensor::allocate(op, &node_shape(self, nodes), self.dtype(), self.device())?;
        let counts = Tensor::allocate(op, &Shape::from(nodes), DType::I32, self.device())?;
        let outputs = RowReductionOutputs { counts: Some(&counts), ..only(&y) };
        index_reduce(op, IndexReduce::Mean, index, self, None, outputs)?;
        let composite = move |x: &[Tensor]| mean(&x[0], &x[1], nodes);
        Record::new(op, &[self, index]).fused(y, composite, move |t, x| {
            let inputs = IndexGradientInputs { counts: Some(&counts), ..of_index(t.dy(), &x[1]) };
            gradients![index_gradient(IndexGradient::Mean, inputs, &x[0])?, Gradient::NONE]
        })
    }

    /// The maximum of the rows `[E, *]` of each node by index `[E]`, for each element, and the first row that has it (i64). Both
    /// are `[size, *]`; a node without rows has 0 and -1. NaN is the largest. `ties` selects the rows that get the gradient. `size`
    /// and errors are as for [`scatter_sum`](Tensor::scatter_sum).
    pub fn scatter_max(&self, index: &Tensor, size: Option<usize>, ties: TieGrad) -> Result<(Tensor, Tensor)> {
        let op = "scatter_max";
        let nodes = nodes(op, self, index, size)?;
        let mut counts = None;
        let (y, first) = if has_kernel::<RowReduction>(self) {
            let shape = node_shape(self, nodes);
            let empty = |dtype| Tensor::allocate(op, &shape, dtype, self.device());
            let (y, many, first) = (empty(self.dtype())?, empty(DType::I32)?, empty(DType::I64)?);
            let outputs = RowReductionOutputs { ties: Some(&many), first: Some(&first), ..only(&y) };
            index_reduce(op, IndexReduce::Max, index, self, None, outputs)?;
            counts = Some(many);
            (y, first)
        } else {
            parts(op, || largest(&self.detach(), index, nodes))?
        };
        let (x, result, at, rows) = (Saved::input(self), Saved::output(&y), Saved::input(index), Saved::input(&first));
        let y = record(op, &[self], y, move |t| {
            let (x, y, index, first) = (t.get(&x)?.detach(), t.get(&result)?.detach(), t.get(&at)?, t.get(&rows)?);
            let dx = match (&counts, ties) {
                (Some(counts), TieGrad::Even) if !t.creates_graph() => {
                    let (counts, x_of, y) = (Some(counts), Some(&x), Some(&y));
                    let inputs = IndexGradientInputs { counts, x: x_of, y, ..of_index(t.dy(), &index) };
                    index_gradient(IndexGradient::Even, inputs, &x)?
                }
                (Some(_), TieGrad::First) if !t.creates_graph() => {
                    let inputs = IndexGradientInputs { first: Some(&first), ..of_index(t.dy(), &index) };
                    index_gradient(IndexGradient::First, inputs, &x)?
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
        None => (index.amax(..)?.item::<f64>()? + 1.0).max(0.0) as usize,
    };
    if nodes == 0 && x.numel() > 0 {
        return Err(Error::index(op, format!("there are no nodes for the index {}", index.shape())));
    }
    // The position of a maximum takes 8 bytes.
    let row: usize = x.dims()[1..].iter().product();
    let bytes = nodes.checked_mul(row.max(1)).and_then(|n| n.checked_mul(DType::I64.size()));
    if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        let message = format!("{nodes} nodes have more elements than memory can address: {}", describe(&[x, index]));
        return Err(Error::shape(op, message));
    }
    Ok(nodes)
}

/// The shape of rows reduced to `nodes` nodes.
fn node_shape(x: &Tensor, nodes: usize) -> Shape {
    let mut dims = Dims::from_slice(x.dims());
    dims[0] = nodes;
    Shape::from(dims)
}

/// The number of true rows of the `x`-shaped `is_counted`, for each node.
fn counts(is_counted: &Tensor, index: &Tensor, nodes: usize) -> Result<Tensor> {
    let zeros = Tensor::zeros(node_shape(is_counted, nodes), DType::I64, index.device())?;
    zeros.index_add(0, index, &is_counted.cast(DType::I64)?, 1)
}

/// The composite of `scatter_sum`.
fn sum(x: &Tensor, index: &Tensor, nodes: usize) -> Result<Tensor> {
    Tensor::zeros(node_shape(x, nodes), x.dtype(), x.device())?.index_add(0, index, x, 1)
}

/// The composite of `scatter_mean`.
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

/// The composite of `scatter_max`: the maximum, and the first row that has it.
fn largest(x: &Tensor, index: &Tensor, nodes: usize) -> Result<(Tensor, Tensor)> {
    let shape = node_shape(x, nodes);
    let none = Tensor::full(&shape, -1, DType::I64, x.device())?;
    if x.numel() == 0 {
        return Ok((Tensor::zeros(&shape, x.dtype(), x.device())?, none));
    }
    // A scatter keeps the last row that it writes; in reverse order this is the first row that has the maximum.
    let back = Tensor::arange(x.dims()[0], x.device())?.rsub_scalar(x.dims()[0] as i64 - 1)?;
    let order = x.argsort(0, Order::Descending)?.index_select(0, &back)?;
    let first = none.scatter(0, &along("scatter_max", x, 0, index)?.gather(0, &order)?, &order)?;
    let is_there = first.ge_scalar(0)?;
    let y = is_there.where_scalar(&x.gather(0, &is_there.where_scalar(&first, 0)?)?, 0)?;
    Ok((y, first))
}

/// The gradient of the rows of a maximum `y`; `first` is the first row that has it.
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
    // A NaN maximum equals no row, and makes all gradients NaN. A node without rows divides by 1, and the quotient is not read.
    let ties = counts(&is_largest, index, y.dims()[0])?.add(&first.lt_scalar(0)?.cast(DType::I64)?)?;
    let acc = x.dtype().acc();
    let part = dy.cast(acc)?.div(&ties.cast(acc)?)?.cast(x.dtype())?;
    part.index_select(0, index)?.mul(&is_largest.cast(x.dtype())?)
}

/// Reduces rows `[E, *]` by index `[E]`, without the rows of one index, by the kernel. See [`RowReduction`] for the outputs.
pub(crate) fn index_reduce(
    op: &'static str,
    reduce: IndexReduce,
    index: &Tensor,
    x: &Tensor,
    left_out: Option<i64>,
    RowReductionOutputs { y, counts, ties, first }: RowReductionOutputs<&Tensor>,
) -> Result<()> {
    let (x, y) = (flat(&x.detach())?, flat(y)?);
    let index = along(op, &y, 0, index)?;
    let flat_if = |t: Option<&Tensor>| t.map(|t| if t.rank() > 1 { flat(t) } else { Ok(t.clone()) }).transpose();
    let outputs = RowReductionOutputs { y, counts: counts.cloned(), ties: flat_if(ties)?, first: flat_if(first)? };
    let inputs = RowReductionInputs { index: &index, x: &x };
    run_fused(op, &RowReduction { reduce, left_out }, inputs, outputs.as_ref())
}

/// The table alone.
pub(crate) fn only(y: &Tensor) -> RowReductionOutputs<&Tensor> {
    RowReductionOutputs { y, counts: None, ties: None, first: None }
}

/// The inputs that every [`IndexGradient`] has.
fn of_index<'a>(dy: &'a Tensor, index: &'a Tensor) -> IndexGradientInputs<&'a Tensor> {
    IndexGradientInputs { dy, index, counts: None, x: None, y: None, first: None }
}

/// The gradient of rows like `like`, by the kernel, whose inputs may have more dimensions than it takes.
fn index_gradient(kind: IndexGradient, inputs: IndexGradientInputs<&Tensor>, like: &Tensor) -> Result<Tensor> {
    let op = "scatter_backward";
    let dx = Tensor::allocate(op, like.shape(), like.dtype(), like.device())?;
    let IndexGradientInputs { dy, index, counts, x, y, first } = inputs;
    let flat_if = |t: Option<&Tensor>| t.map(flat).transpose();
    let inputs = IndexGradientInputs {
        dy: flat(dy)?,
        index: index.contiguous()?,
        counts: flat_if(counts)?,
        x: flat_if(x)?,
        y: flat_if(y)?,
        first: flat_if(first)?,
    };
    run_fused(op, &kind, inputs.as_ref(), Output { y: &flat(&dx)? })?;
    Ok(dx)
}

/// `[N, *]` as `[N, F]`, contiguous. It must not be empty.
fn flat(t: &Tensor) -> Result<Tensor> {
    t.reshape((t.dims()[0], t.numel() / t.dims()[0]))?.contiguous()
}
