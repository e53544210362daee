//! Fused ops: one kernel in place of the kernels of a composite.
//!
//! The descriptor of a fused op is a struct of attributes. It stands in the file of its op, and is all that core and the backends
//! share. The composite, in tensor ops, specifies the kernel. It runs on backends without the kernel, and second derivatives are
//! computed through it.

use crate::backend::Kernel;
use crate::pointwise::Pointwise;
use crate::tape::{
    Backward, BackwardOptions, Gradients, Prologue, Saved, enable_grad, grad_with, gradients_from, record_adding,
    record_after, record_outputs, record_stateless,
};
use crate::tensor::{Attributes, run};
use crate::{DType, Result, Tensor};
use smallvec::SmallVec;
use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;

/// The attributes and the composite of a fused kernel. The documentation of each descriptor describes its inputs and outputs.
/// Unless it says otherwise, operands are contiguous. Statistics are in the accumulation dtype.
pub trait Fused: Any + fmt::Debug + Send + Sync {
    /// The kernel's name in logs and reports.
    fn name(&self) -> &'static str;

    /// The row of the pointwise table that the kernel applies, for reports.
    fn row(&self) -> Option<Pointwise> {
        None
    }

    /// The kernel's specification in tensor ops: outputs from contiguous inputs and from the outputs' previous values `before`.
    /// `None` for an output whose values are unspecified. An output may have another shape with the same number of elements.
    /// Devices without the kernel run it instead.
    fn composite(&self, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>>;

    /// For a kernel that adds: for each output, the sums of the absolute values of the terms. Float operands are f64.
    fn companions(&self, _inputs: &[Tensor], _before: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
        Ok(None)
    }

    /// The order in which the terms of [`companions`](Fused::companions) are added.
    fn sum(&self) -> Sum {
        Sum::Tree
    }

    /// The number of times that a 16-bit result may be rounded.
    fn roundings(&self) -> usize {
        1
    }

    /// A mask of the elements of an output that are read later; `None` if all are.
    fn is_read(&self, _inputs: &[Tensor], _output: usize) -> Result<Option<Tensor>> {
        Ok(None)
    }
}

/// The order in which the terms of a sum are added. The bound of its rounding error depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// Pairwise, in a tree. It has at most as many leaves as an input has elements.
    Tree,
    /// One after the other, along the last dimension of the first input, as in a matrix product.
    Product,
}

impl dyn Fused {
    /// The descriptor, if it is an `F`.
    pub fn downcast_ref<F: Fused>(&self) -> Option<&F> {
        (self as &dyn Any).downcast_ref()
    }

    /// The type of the descriptor.
    pub fn id(&self) -> TypeId {
        (self as &dyn Any).type_id()
    }
}

/// True if the device of `x` has the kernel for its dtype.
pub(crate) fn has_kernel<F: Fused>(x: &Tensor) -> bool {
    x.numel() > 0 && has_kernel_for::<F>(x, x.dtype())
}

/// True if the device of `x` has the kernel for a dtype.
pub(crate) fn has_kernel_for<F: Fused>(x: &Tensor, dtype: DType) -> bool {
    x.device().backend().supports(TypeId::of::<F>(), dtype)
}

/// True if the device of `x`, which has the kernel, has room on chip for what this descriptor keeps there.
pub(crate) fn has_room(x: &Tensor, fused: &dyn Fused) -> bool {
    x.device().backend().has_room(fused, x.dtype())
}

/// Runs a fused kernel, which the device must have.
pub(crate) fn run_fused(op: &'static str, fused: &dyn Fused, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()> {
    run(op, Kernel::Fused(fused), inputs, outputs, Attributes::default())
}

/// The gradient of `x` from the gradient `dy` of `f()`. `dy` may have another shape with the same number of elements.
pub(crate) fn gradient_by_ops(
    x: &Tensor,
    dy: &Tensor,
    f: impl FnOnce() -> Result<Tensor>,
) -> Result<Vec<Option<Tensor>>> {
    enable_grad(|| {
        let y = f()?;
        let options = BackwardOptions { gradient: Some(dy.reshape(y.shape())?), ..Default::default() };
        Ok(grad_with(&y, &[x], &options)?.into_iter().map(Some).collect())
    })
}

/// Puts the output of a fused kernel on the tape. `backward` launches the backward kernel. With `create_graph`, the gradient is
/// computed through `composite`, a function of the same inputs.
pub(crate) fn record_fused(
    op: &'static str,
    inputs: &[&Tensor],
    output: Tensor,
    composite: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    backward: impl Fn(&Backward<'_>, &[Tensor]) -> Result<Gradients> + Send + Sync + 'static,
) -> Result<Tensor> {
    record_fused_after(op, inputs, output, None, composite, backward)
}

/// [`record_fused`] with a prologue: `backward` receives `dy` after the prologue.
pub(crate) fn record_fused_after(
    op: &'static str,
    inputs: &[&Tensor],
    output: Tensor,
    prologue: Option<Arc<Prologue>>,
    composite: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    backward: impl Fn(&Backward<'_>, &[Tensor]) -> Result<Gradients> + Send + Sync + 'static,
) -> Result<Tensor> {
    record_after(op, inputs, output, prologue, fused_rule(inputs, composite, backward))
}

/// [`record_fused`] for a kernel that adds up two terms of the gradient, `dy` and [`Backward::further`].
pub(crate) fn record_fused_adding(
    op: &'static str,
    inputs: &[&Tensor],
    output: Tensor,
    composite: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    backward: impl Fn(&Backward<'_>, &[Tensor]) -> Result<Gradients> + Send + Sync + 'static,
) -> Result<Tensor> {
    record_adding(op, inputs, output, fused_rule(inputs, composite, backward))
}

fn fused_rule(
    inputs: &[&Tensor],
    composite: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    backward: impl Fn(&Backward<'_>, &[Tensor]) -> Result<Gradients> + Send + Sync + 'static,
) -> impl Fn(&Backward<'_>) -> Result<Gradients> + Send + Sync + 'static {
    let saved: SmallVec<[Saved; 4]> = inputs.iter().map(|t| Saved::input(t)).collect();
    move |t| {
        let inputs: Vec<Tensor> = saved.iter().map(|s| t.get(s)).collect::<Result<_>>()?;
        if !t.creates_graph() {
            return backward(t, &inputs);
        }
        second_derivatives(t, &inputs, |inputs| Ok(vec![composite(inputs)?]))
    }
}

/// [`record_fused`] for several outputs. `backward` reads the gradient of each by [`Backward::dy_of`].
pub(crate) fn record_fused_outputs(
    op: &'static str,
    inputs: &[&Tensor],
    outputs: Vec<Tensor>,
    composite: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    backward: impl Fn(&Backward<'_>, &[Tensor]) -> Result<Gradients> + Send + Sync + 'static,
) -> Result<Vec<Tensor>> {
    let saved: SmallVec<[Saved; 4]> = inputs.iter().map(|t| Saved::input(t)).collect();
    record_outputs(op, inputs, outputs, move |t| {
        let inputs: Vec<Tensor> = saved.iter().map(|s| t.get(s)).collect::<Result<_>>()?;
        if t.creates_graph() { second_derivatives(t, &inputs, &composite) } else { backward(t, &inputs) }
    })
}

/// The gradients of the inputs through the composite, on the tape.
fn second_derivatives(
    t: &Backward<'_>,
    inputs: &[Tensor],
    composite: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Gradients> {
    let is_needed: SmallVec<[bool; 4]> = (0..inputs.len()).map(|i| t.needs(i)).collect();
    let found = gradients_on_tape(inputs, &is_needed, |output| t.dy_of(output).cloned(), composite)?;
    Ok(found.into_iter().collect())
}

/// The gradients of the needed inputs of a composite, on the tape, from the gradients `dy` of its outputs. One tensor may be several
/// inputs: each input gets a node of its own, so that its gradient is told from the others'.
pub(crate) fn gradients_on_tape(
    inputs: &[Tensor],
    is_needed: &[bool],
    dy: impl Fn(usize) -> Option<Tensor>,
    composite: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<Option<Tensor>>> {
    let own = |x: &Tensor| {
        let same = x.with_layout(x.layout().clone());
        record_stateless("input", &[x], same, |t| Ok([t.dy().clone()]))
    };
    let inputs: Vec<Tensor> = inputs.iter().map(own).collect::<Result<_>>()?;
    let outputs = composite(&inputs)?;
    let roots = outputs.iter().enumerate().filter_map(|(i, y)| Some((y, dy(i)?)));
    let wanted: Vec<&Tensor> = inputs.iter().zip(is_needed).filter(|(_, needed)| **needed).map(|(x, _)| x).collect();
    let options = BackwardOptions { create_graph: true, ..Default::default() };
    let mut found = gradients_from(roots, &wanted, &options)?.into_iter();
    Ok(is_needed.iter().map(|&needed| if needed { found.next().flatten() } else { None }).collect())
}
