//! A pointwise row with a summed result: the gradients of operands that broadcast.

use crate::fused::{Fused, run_fused};
use crate::operands::List;
use crate::ops::row_like;
use crate::pointwise::Pointwise;
use crate::{DType, Dims, Result, Shape, Tensor};
use smallvec::SmallVec;
use std::iter;

/// A row with one summed result. It is summed over all dimensions in which its output has extent 1, and rounded once. The other
/// results have the shape of the first input. Every other input expands to this shape. It has all elements, one element, or extent
/// 1 along all summed dimensions, or along all others.
#[derive(Clone, Debug)]
pub struct PointwiseSum {
    /// The row.
    pub row: Pointwise,
    /// Its attributes.
    pub attributes: Vec<f64>,
}

impl PointwiseSum {
    /// The results of the row in the shape of its first input, before the sum.
    fn results(&self, inputs: &[&Tensor], count: usize) -> Result<Vec<Tensor>> {
        let inputs: Vec<Tensor> = inputs.iter().map(|&t| t.clone()).collect();
        let empty = inputs[0].zeros_like()?;
        row_like(self.row, &inputs, &vec![empty; count], &self.attributes)
    }
}

impl Fused for PointwiseSum {
    type Inputs<T> = List<T>;
    type Outputs<T> = List<T>;

    fn name(&self) -> &'static str {
        "pointwise_sum"
    }

    fn row(&self) -> Option<Pointwise> {
        Some(self.row)
    }

    fn composite(&self, inputs: List<&Tensor>, before: List<&Tensor>) -> Result<List<Option<Tensor>>> {
        let found = self.results(&inputs, before.len())?;
        found.iter().zip(before).map(|(y, before)| y.sum_to_size(before.shape()).map(Some)).collect()
    }

    fn companions(&self, inputs: List<&Tensor>, before: List<&Tensor>) -> Result<Option<List<Tensor>>> {
        let found = self.results(&inputs, before.len())?;
        found
            .iter()
            .zip(before)
            .map(|(y, before)| y.abs()?.sum_to_size(before.shape()))
            .collect::<Result<_>>()
            .map(Some)
    }
}

/// True if [`PointwiseSum`] supports these operands: one of `shapes` is smaller than dy, and every other smaller shape has extent 1
/// along the same dimensions, or along all others.
pub(crate) fn can_sum(dy: &Tensor, others: &[&Tensor], shapes: &[&Shape]) -> bool {
    let mut smaller = shapes.iter().filter(|shape| shape.numel() != dy.numel());
    let (Some(sum), None) = (smaller.next(), smaller.next()) else { return false };
    // The extent of a shape along dimension d of dy.
    let along = |shape: &Shape, d: usize| (d + shape.rank()).checked_sub(dy.rank()).map_or(1, |d| shape[d]);
    let dims = || (0..dy.rank()).filter(|&d| dy.dims()[d] > 1);
    let is_along =
        |x: &Tensor, is_summed: bool| dims().all(|d| (along(x.shape(), d) > 1) == ((along(sum, d) == 1) == is_summed));
    let fits = |x: &&Tensor| [1, dy.numel()].contains(&x.numel()) || is_along(x, true) || is_along(x, false);
    others.iter().all(fits)
}

/// The results of a row in these shapes. One shape is smaller than dy, and its result is summed. The bits do not depend on the
/// memory layout of the operands.
pub(crate) fn pointwise_sum(
    row: Pointwise,
    dy: &Tensor,
    others: &[&Tensor],
    attributes: &[f64],
    shapes: &[&Shape],
    dtype: DType,
) -> Result<Vec<Tensor>> {
    let expand = |t: &Tensor| t.contiguous().map(|t| t.with_layout(t.layout().expand(dy.shape())));
    let inputs = iter::once(dy).chain(others.iter().copied()).map(expand).collect::<Result<SmallVec<[Tensor; 4]>>>()?;
    let inputs: SmallVec<[&Tensor; 4]> = inputs.iter().collect();
    let empty = |shape: &&Shape| {
        let ones = iter::repeat_n(1, dy.rank() - shape.rank());
        Tensor::allocate(
            row.name(),
            &Shape::from(ones.chain(shape.iter().copied()).collect::<Dims>()),
            dtype,
            dy.device(),
        )
    };
    let outputs = shapes.iter().map(empty).collect::<Result<Vec<_>>>()?;
    let references: SmallVec<[&Tensor; 4]> = outputs.iter().collect();
    let fused = PointwiseSum { row, attributes: attributes.to_vec() };
    run_fused(row.name(), &fused, &inputs, &references)?;
    outputs.iter().zip(shapes).map(|(y, shape)| y.reshape((*shape).clone())).collect()
}
