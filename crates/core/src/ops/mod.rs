//! The ops, one file a family: what is computed, and under it the gradient.

mod binary;
mod channel_norm;
mod compare;
mod concat;
mod dropout;
mod each;
mod embedding;
mod factory;
mod fused;
mod fused_pointwise;
mod gather;
mod gemm_bias;
mod graph;
mod in_place;
mod index;
pub mod loss;
mod matmul;
mod norm;
mod operators;
mod pool;
mod random;
mod reduce;
mod rotary;
mod sample;
mod scan;
mod softmax;
mod sort;
mod total;
mod unary;
mod unscale;
mod view;

pub use binary::Rounding;
pub use channel_norm::{Running, Statistics};
pub use each::{Update, update_each_, update_each_norms_};
pub use embedding::EmbeddingOptions;
pub use factory::INFER;
pub use gemm_bias::{Activation, GemmBias, Transpose};
pub use graph::TieGrad;
pub use in_place::update_;
pub use index::{Index, Put};
pub use matmul::Gemm;
pub use pool::{AvgPool, KEEP, MaxPool};
pub use reduce::Axes;
pub use rotary::{Direction, Rotary, RotaryStyle};
pub use sample::Sampling;
pub use sort::Order;
pub use total::total;
pub use unary::Approximate;
pub use unscale::unscale_;

use crate::backend::Kernel;
use crate::pointwise::Pointwise;
use crate::tape::{Backward, Gradients};
use crate::tensor::{Attributes, run};
use crate::{DType, Error, Result, Shape, Tensor};
use smallvec::SmallVec;

/// One output of a row, with inputs expanded to `shape`.
pub(crate) fn pointwise_one(
    op: &'static str,
    row: Pointwise,
    inputs: &[&Tensor],
    attributes: Attributes<'_>,
    shape: &Shape,
    dtype: DType,
) -> Result<Tensor> {
    let y = Tensor::empty(op, shape, dtype, inputs[0].device())?;
    if y.numel() > 0 {
        run_expanded(op, row, inputs, &[&y], attributes)?;
    }
    Ok(y)
}

/// All outputs of a float row in the dtype and common shape of its inputs.
pub(crate) fn pointwise(op: &'static str, row: Pointwise, inputs: &[&Tensor], floats: &[f64]) -> Result<Vec<Tensor>> {
    let shape = common_shape(op, inputs)?;
    let dtype = inputs[0].dtype();
    let outputs: Vec<Tensor> =
        (0..row.outputs()).map(|_| Tensor::empty(op, &shape, dtype, inputs[0].device())).collect::<Result<_>>()?;
    let references: Vec<&Tensor> = outputs.iter().collect();
    if outputs[0].numel() > 0 {
        run_expanded(op, row, inputs, &references, Attributes::floats(floats))?;
    }
    Ok(outputs)
}

/// The gradients of the operands of an op from number `first` on, which broadcast from `shapes`: by a row with an output for each
/// if all are wanted, else each by itself.
pub(crate) fn all_or_each(
    t: &Backward<'_>,
    first: usize,
    (row, inputs, attributes): (Pointwise, &[&Tensor], &[f64]),
    shapes: &[&Shape],
    each: impl Fn(usize) -> Result<Tensor>,
) -> Result<Gradients> {
    let mut found: Gradients = (0..first).map(|_| None).collect();
    let needs_all = (0..shapes.len()).all(|i| t.needs(first + i));
    if needs_all && !t.creates_graph() {
        for (d, shape) in t.rows(row, inputs, attributes)?.into_iter().zip(shapes) {
            found.push(Some(d.sum_to_size(*shape)?));
        }
        return Ok(found);
    }
    for (i, shape) in shapes.iter().enumerate() {
        found.push(t.want(first + i, || each(i)?.sum_to_size(*shape))?);
    }
    Ok(found)
}

/// Runs a row with its inputs expanded to the outputs' shape.
pub(crate) fn run_expanded(
    op: &'static str,
    row: Pointwise,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
    attributes: Attributes<'_>,
) -> Result<()> {
    let shape = outputs[0].shape();
    if inputs.iter().all(|t| t.shape() == shape) {
        return run(op, Kernel::Pointwise(row), inputs, outputs, attributes);
    }
    let expanded: SmallVec<[Tensor; 4]> = inputs.iter().map(|t| t.with_layout(t.layout().expand(shape))).collect();
    let references: SmallVec<[&Tensor; 4]> = expanded.iter().collect();
    run(op, Kernel::Pointwise(row), &references, outputs, attributes)
}

/// The shape to which all operands broadcast; `Shape` error naming all of theirs.
pub(crate) fn common_shape(op: &'static str, operands: &[&Tensor]) -> Result<Shape> {
    let first = operands[0].shape().clone();
    operands[1..].iter().try_fold(first, |shape, t| shape.broadcast(t.shape(), op)).map_err(|_| {
        let shapes: Vec<String> = operands.iter().map(|t| t.shape().to_string()).collect();
        Error::shape(op, format!("{} do not broadcast", shapes.join(" and ")))
    })
}

/// Computes in the accumulation dtype what a composite computes in several steps, and rounds once at the end.
pub(crate) fn in_acc(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let acc = x.dtype().acc();
    if acc == x.dtype() { f(x) } else { f(&x.cast(acc)?)?.cast(x.dtype()) }
}

/// Gradients as a rule returns them.
macro_rules! gradients {
    ($($g:expr),* $(,)?) => { Ok(smallvec::smallvec![$($g),*]) };
}
pub(crate) use gradients;
