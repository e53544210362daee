//! The ops, one file per family. The gradient of an op stands under its forward function.

pub mod attention;
pub mod conv;
pub mod elementwise;
pub mod graph;
pub mod image;
pub mod indexing;
pub mod loss;
pub mod matrix;
pub mod normalization;
pub mod random;
pub mod recurrent;
pub mod reduction;
pub mod sequence;
pub mod shape;
pub mod sparse;

pub use attention::{Attention, Causal, MultiHead, Projection};
pub use conv::{Conv, ConvTranspose, Padding, Unfold};
pub use elementwise::binary::Rounding;
pub use elementwise::each::{Update, cast_each, update_each_, update_each_norms_};
pub use elementwise::fused_pointwise::Swiglu;
pub use elementwise::in_place::update_;
pub use elementwise::unary::{Approximate, NanToNum};
pub use elementwise::unscale::unscale_;
pub use graph::diffusion::{Spectrum, Times};
pub use graph::mesh::Neighbors;
pub use graph::messages::{Message, MessageMlp, Messages};
pub use image::grid::{GridEnds, GridMode, GridPadding, GridSample};
pub use image::interpolate::{Interpolate, Interpolation, Target};
pub use image::pool::{AvgPool, KEEP, LpPool, MaxPool};
pub use indexing::bag::{Bag, BagMode};
pub use indexing::embedding::EmbeddingOptions;
pub use indexing::index::{Index, Indices, Put};
pub use indexing::scatter_reduce::{Own, ScatterReduce};
pub use indexing::search::{Side, Unique};
pub use indexing::segment::{IndexReduce, TieGrad};
pub use indexing::sort::Order;
pub use matrix::gemm_bias::{Activation, GemmBias, Transpose};
pub use matrix::matmul::Gemm;
pub use normalization::channel_norm::{Running, Statistics};
pub use normalization::normalize::LocalResponse;
pub use random::draw::Replacement;
pub use recurrent::{ConvLstmWeights, Nonlinearity, RecurrentSteps, RecurrentWeights, TimeOrder};
pub use reduction::reduce::{Axes, Tie};
pub use reduction::scan::ScanOptions;
pub use reduction::statistics::Quantile;
pub use reduction::total::{Total, total};
pub use sequence::rotary::{Direction, Rotary, RotaryStyle};
pub use sequence::sample::Sampling;
pub use shape::factory::INFER;
pub use shape::pad::Pad;
pub use sparse::Csr;

use crate::backend::Kernel;
use crate::check::check_same;
use crate::fused::has_kernel;
use crate::ops::elementwise::pointwise_sum::{PointwiseSum, can_sum, pointwise_sum};
use crate::pointwise::Pointwise;
use crate::tape::{Backward, Gradients, check_finite, report};
use crate::tensor::{Attributes, run};
use crate::thread::within;
use crate::{DType, Error, Kind, Layout, Result, Shape, Tensor};
use smallvec::SmallVec;
use std::iter;

/// One output of a row, with inputs expanded to `shape`.
pub(crate) fn pointwise_one(
    op: &'static str,
    row: Pointwise,
    inputs: &[&Tensor],
    attributes: Attributes<'_>,
    shape: &Shape,
    dtype: DType,
) -> Result<Tensor> {
    let y = Tensor::allocate(op, shape, dtype, inputs[0].device())?.ordered_as(inputs);
    if y.numel() > 0 {
        run_expanded(op, row, inputs, &[&y], attributes)?;
    }
    Ok(y)
}

/// All outputs of a float row in the dtype and common shape of its inputs.
pub(crate) fn pointwise(op: &'static str, row: Pointwise, inputs: &[&Tensor], floats: &[f64]) -> Result<Vec<Tensor>> {
    let shape = common_shape(op, inputs)?;
    let dtype = inputs[0].dtype();
    let outputs =
        (0..row.outputs()).map(|_| Ok(Tensor::allocate(op, &shape, dtype, inputs[0].device())?.ordered_as(inputs)));
    let outputs: Vec<Tensor> = outputs.collect::<Result<_>>()?;
    let references: Vec<&Tensor> = outputs.iter().collect();
    if outputs[0].numel() > 0 {
        run_expanded(op, row, inputs, &references, Attributes::floats(floats))?;
    }
    Ok(outputs)
}

impl Tensor {
    /// This new tensor, with channels last in memory where an input of its shape has them there, or is a part of a tensor that has.
    fn ordered_as(self, inputs: &[&Tensor]) -> Tensor {
        let has_last = |x: &Tensor| x.is_channels_last() || x.layout().has_adjacent_channels();
        let is_last = inputs.iter().any(|x| x.shape() == self.shape() && has_last(x));
        if is_last { self.with_layout(Layout::channels_last(self.shape().clone())) } else { self }
    }
}

/// An operand that broadcasts: its shape, the row of its gradient, and the tensors that the row reads besides dy.
pub(crate) type OperandGradient<'a> = (&'a Shape, Pointwise, &'a [&'a Tensor]);

/// The gradients of an op's operands from input `first` on. If all are wanted, they may come from `row`, with inputs dy and
/// `inputs` and one output per operand; otherwise each comes from a row of its own.
pub(crate) fn all_or_each(
    t: &Backward<'_>,
    first: usize,
    (row, inputs): (Pointwise, &[&Tensor]),
    attributes: &[f64],
    parts: &[OperandGradient<'_>],
) -> Result<Gradients> {
    let needs_all = (0..parts.len()).all(|i| t.needs(first + i));
    let shapes: SmallVec<[&Shape; 4]> = parts.iter().map(|(shape, ..)| *shape).collect();
    if needs_all && !t.creates_graph() && is_cheaper_at_once(t.dy(), inputs, &shapes, parts)? {
        return Ok(gradients_of(t, row, inputs, attributes, &shapes)?.into_iter().collect());
    }
    let one = |(i, &(shape, row, of)): (usize, &OperandGradient<'_>)| {
        t.want(first + i, || gradient_of(t, row, of, attributes, shape))
    };
    parts.iter().enumerate().map(one).collect()
}

/// True if one row for all operands moves no more memory than a row for each. Single rows are better if they allow dy to be summed
/// further for at least half of the operands, or if several gradients are summed, each in the pass that computes it.
fn is_cheaper_at_once(
    dy: &Tensor,
    inputs: &[&Tensor],
    shapes: &[&Shape],
    parts: &[OperandGradient<'_>],
) -> Result<bool> {
    let least = extent(dy, inputs, shapes)?;
    let mut further = 0;
    for (shape, _, of) in parts {
        further += usize::from(extent(dy, of, &[shape])? != least);
    }
    let mut summed = parts.iter().filter(|(shape, ..)| shape.numel() < least.numel());
    let is_one_pass =
        |(shape, _, of): &OperandGradient<'_>| can_sum(dy, of, &[shape]) && has_kernel::<PointwiseSum>(dy);
    let are_passes = summed.clone().count() > 1 && summed.all(is_one_pass);
    Ok(2 * further < parts.len() && !are_passes)
}

/// [`gradients_of`] a row with one output.
pub(crate) fn gradient_of(
    t: &Backward<'_>,
    row: Pointwise,
    inputs: &[&Tensor],
    attributes: &[f64],
    shape: &Shape,
) -> Result<Tensor> {
    Ok(gradients_of(t, row, inputs, attributes, &[shape])?.swap_remove(0))
}

/// The gradients of operands that broadcast from `shapes`: sums of the outputs of a row that is linear in dy, its first input.
/// Along dimensions in which the operands and the other inputs are constant, dy itself is summed, in the accumulation dtype.
fn gradients_of(
    t: &Backward<'_>,
    row: Pointwise,
    others: &[&Tensor],
    attributes: &[f64],
    shapes: &[&Shape],
) -> Result<SmallVec<[Tensor; 4]>> {
    let (dy, dtype) = (t.dy(), t.dy().dtype());
    let extent = extent(dy, others, shapes)?;
    let g = if extent == *dy.shape() { dy.clone() } else { dy.sum_to_size_as(&extent, dtype.acc())? };
    let d = if t.creates_graph() {
        // Tensor ops need the same dtype.
        let wide = |&x: &&Tensor| if x.dtype().is_float() { x.cast(g.dtype()) } else { Ok(x.clone()) };
        let others = others.iter().map(wide).collect::<Result<SmallVec<[Tensor; 4]>>>()?;
        let inputs: SmallVec<[&Tensor; 4]> = iter::once(&g).chain(&others).collect();
        t.rows(row, &inputs, attributes)?
    } else if can_sum(&g, others, shapes) && has_kernel::<PointwiseSum>(&g) {
        pointwise_sum(row, &g, others, attributes, shapes, dtype)?
    } else {
        let rounded = |shape: &&Shape| if shape.numel() == g.numel() { dtype } else { dtype.acc() };
        let empty = |shape| Ok(Tensor::allocate(row.name(), g.shape(), rounded(shape), g.device())?.ordered_as(&[&g]));
        let d = shapes.iter().map(empty).collect::<Result<Vec<_>>>()?;
        if g.numel() > 0 {
            let inputs: SmallVec<[&Tensor; 4]> = iter::once(&g).chain(others.iter().copied()).collect();
            let outputs: SmallVec<[&Tensor; 4]> = d.iter().collect();
            run_expanded(row.name(), row, &inputs, &outputs, Attributes::floats(attributes))?;
        }
        d
    };
    d.iter().zip(shapes).map(|(d, shape)| d.sum_to_size_as(shape, dtype)).collect()
}

/// The common shape of tensors and operands, or dy's if it has no more elements.
fn extent(dy: &Tensor, tensors: &[&Tensor], shapes: &[&Shape]) -> Result<Shape> {
    let mut all = shapes.iter().copied().chain(tensors.iter().map(|x| x.shape()));
    let extent = all.try_fold(Shape::from(()), |extent, shape| extent.broadcast_for("sum_to_size", shape))?;
    Ok(if extent.numel() == dy.numel() { dy.shape().clone() } else { extent })
}

/// Runs a row with its inputs expanded to the outputs' shape.
pub(crate) fn run_expanded(
    op: &'static str,
    row: Pointwise,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
    attributes: Attributes<'_>,
) -> Result<()> {
    run_elementwise(op, Kernel::Pointwise(row), inputs, outputs, attributes)
}

/// Runs an elementwise kernel with its inputs expanded to the outputs' shape. Elements are taken in the order in which the outputs lie
/// in memory.
fn run_elementwise(
    op: &'static str,
    kernel: Kernel<'_>,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
    attributes: Attributes<'_>,
) -> Result<()> {
    let shape = outputs[0].shape();
    let is_last = outputs[0].is_channels_last();
    if !is_last && inputs.iter().all(|t| t.shape() == shape) {
        run(op, kernel, inputs, outputs, attributes)?;
        report_elementwise(op, kernel, inputs, outputs, attributes);
        return Ok(());
    }
    let order: SmallVec<[usize; 8]> = [0].into_iter().chain(2..shape.rank()).chain([1]).collect();
    let ordered = |layout: &Layout| if is_last { layout.permute(&order) } else { layout.clone() };
    let expand = |t: &&Tensor| t.with_layout(ordered(&t.layout().expand(shape)));
    let expanded: SmallVec<[Tensor; 4]> = inputs.iter().map(expand).collect();
    let permuted: SmallVec<[Tensor; 4]> = outputs.iter().map(|t| t.with_layout(ordered(t.layout()))).collect();
    let (read, written): (SmallVec<[&Tensor; 4]>, SmallVec<[&Tensor; 4]>) =
        (expanded.iter().collect(), permuted.iter().collect());
    run(op, kernel, &read, &written, attributes)?;
    report_elementwise(op, kernel, inputs, outputs, attributes);
    Ok(())
}

/// Reports an elementwise kernel to a trace, with its inputs as they were before they were expanded.
fn report_elementwise(
    op: &'static str,
    kernel: Kernel<'_>,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
    Attributes { ints, floats }: Attributes<'_>,
) {
    match kernel {
        Kernel::Pointwise(row) => report(op, inputs, outputs, || {
            [("row", row.name().into()), ("floats", floats.into()), ("ints", ints.into())]
        }),
        _ => report(op, inputs, outputs, || []),
    }
}

/// The results of a row whose inputs broadcast, each with the shape and dtype of a tensor of `like`. An `inout` row works on
/// copies.
pub(crate) fn row_like(row: Pointwise, inputs: &[Tensor], like: &[Tensor], floats: &[f64]) -> Result<Vec<Tensor>> {
    let outputs = like.iter().map(|t| t.detach().copy()).collect::<Result<Vec<_>>>()?;
    let (read, written): (Vec<&Tensor>, Vec<&Tensor>) = (inputs.iter().collect(), outputs.iter().collect());
    if outputs.iter().all(|y| y.numel() > 0) {
        run_expanded(row.name(), row, &read, &written, Attributes::floats(floats))?;
    }
    Ok(outputs)
}

/// The shape to which all operands broadcast. Errors: `Shape`, naming all shapes.
pub(crate) fn common_shape(op: &'static str, operands: &[&Tensor]) -> Result<Shape> {
    let first = operands[0].shape().clone();
    operands[1..].iter().try_fold(first, |shape, t| shape.broadcast(t.shape())).map_err(|_| {
        let shapes: Vec<String> = operands.iter().map(|t| t.shape().to_string()).collect();
        Error::shape(op, format!("{} do not broadcast", shapes.join(" and ")))
    })
}

/// Runs `f`; its shape errors list the shapes of all operands.
pub(crate) fn with_shapes<T>(
    op: &'static str,
    operands: &[Option<&Tensor>],
    f: impl FnOnce() -> Result<T>,
) -> Result<T> {
    f().map_err(|e| match e.kind() {
        Kind::Shape => {
            let shapes: Vec<String> = operands.iter().flatten().map(|t| t.shape().to_string()).collect();
            Error::shape(op, format!("{}; the operands are {}", e.message(), shapes.join(", ")))
        }
        _ => e,
    })
}

/// Runs the ops of a composite: their errors name the composite, and errors of shapes list the shapes of all operands.
pub(crate) fn named<T: Made>(op: &'static str, operands: &[&Tensor], f: impl FnOnce() -> Result<T>) -> Result<T> {
    let operands: SmallVec<[Option<&Tensor>; 4]> = operands.iter().map(|t| Some(*t)).collect();
    parts(op, || with_shapes(op, &operands, f))
}

/// Runs the parts of an op. Their errors name the op, and anomaly detection looks at its results alone.
pub(crate) fn parts<T: Made>(op: &'static str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    let made = within(op, f).map_err(|e| e.of(op))?;
    made.look(op)?;
    Ok(made)
}

/// The results of an op.
pub(crate) trait Made {
    /// In anomaly detection, returns an error if a result is not finite.
    fn look(&self, op: &'static str) -> Result<()>;
}

impl Made for Tensor {
    fn look(&self, op: &'static str) -> Result<()> {
        check_finite(op, "the output", self)
    }
}

impl Made for () {
    fn look(&self, _op: &'static str) -> Result<()> {
        Ok(())
    }
}

impl<T: Made> Made for Option<T> {
    fn look(&self, op: &'static str) -> Result<()> {
        self.iter().try_for_each(|t| t.look(op))
    }
}

impl<T: Made> Made for Vec<T> {
    fn look(&self, op: &'static str) -> Result<()> {
        self.iter().try_for_each(|t| t.look(op))
    }
}

impl<T: Made, const N: usize> Made for [T; N] {
    fn look(&self, op: &'static str) -> Result<()> {
        self.iter().try_for_each(|t| t.look(op))
    }
}

impl<A: Made, B: Made> Made for (A, B) {
    fn look(&self, op: &'static str) -> Result<()> {
        self.0.look(op)?;
        self.1.look(op)
    }
}

impl<A: Made, B: Made, C: Made> Made for (A, B, C) {
    fn look(&self, op: &'static str) -> Result<()> {
        self.0.look(op)?;
        self.1.look(op)?;
        self.2.look(op)
    }
}

/// Computes a composite in the accumulation dtype, and rounds once at the end.
pub(crate) fn in_acc(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let acc = x.dtype().acc();
    if acc == x.dtype() { f(x) } else { f(&x.cast(acc)?)?.cast(x.dtype()) }
}

/// [`in_acc`] of several tensors of one dtype.
pub(crate) fn in_acc_of<const N: usize>(
    op: &'static str,
    x: [&Tensor; N],
    f: impl FnOnce([&Tensor; N]) -> Result<Tensor>,
) -> Result<Tensor> {
    check_same(op, &x)?;
    let dtype = x[0].dtype();
    if dtype.acc() == dtype {
        return f(x);
    }
    let wide: Vec<Tensor> = x.iter().map(|t| t.cast(dtype.acc())).collect::<Result<_>>()?;
    f(std::array::from_fn(|i| &wide[i]))?.cast(dtype)
}

/// The gradients that a rule returns.
macro_rules! gradients {
    ($($g:expr),* $(,)?) => {{
        #[allow(unused_mut)]
        let mut found = $crate::tape::Gradients::default();
        $(found.push($g);)*
        Ok(found)
    }};
}
pub(crate) use gradients;
