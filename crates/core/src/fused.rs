//! Fused ops: one kernel in place of the many of a composite.
//!
//! The descriptor of a fused op is a struct of its attributes in the file of its op. Core and the backends share nothing else. The
//! composite, in tensor ops, is the kernel's specification: it runs where a backend has no such kernel, and second derivatives go
//! through it.

use crate::backend::Kernel;
use crate::pointwise::Pointwise;
use crate::tape::{
    Backward, BackwardOptions, Gradients, Prologue, Saved, enable_grad, grad_with, gradients_from, record_after,
};
use crate::tensor::{Attributes, run};
use crate::{DType, Result, Tensor};
use smallvec::SmallVec;
use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;

/// The attributes of a fused kernel, and what the kernel computes. The documentation of each says what its inputs and outputs
/// are; operands are contiguous unless it says otherwise, and statistics are in the accumulation dtype.
pub trait Fused: Any + fmt::Debug + Send + Sync {
    /// The kernel's name in logs and reports.
    fn name(&self) -> &'static str;

    /// The row of the pointwise table that the kernel applies, for reports.
    fn row(&self) -> Option<Pointwise> {
        None
    }

    /// What the kernel computes, in tensor ops: its outputs from its inputs, all contiguous, and from the values that the
    /// outputs had before. `None` for an output whose values have no meaning. Shapes may differ from those of the outputs, with
    /// as many elements. It is a reference on devices that do not have the kernel.
    fn composite(&self, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>>;

    /// For a kernel that adds, the sums of the absolute values of the terms, for each output; floats among the operands are f64.
    fn companions(&self, _inputs: &[Tensor], _before: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
        Ok(None)
    }

    /// How the terms of [`companions`](Fused::companions) are added.
    fn sum(&self) -> Sum {
        Sum::Tree
    }

    /// How often a result of 16 bits may be rounded.
    fn roundings(&self) -> usize {
        1
    }

    /// A mask of the elements of an output that are read later; `None` if all are.
    fn is_read(&self, _inputs: &[Tensor], _output: usize) -> Result<Option<Tensor>> {
        Ok(None)
    }
}

/// How the terms of a sum are added, on which its rounding errors depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// Pairwise, in a tree over at most all elements of an input.
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

/// Runs a fused kernel, which the device must have.
pub(crate) fn run_fused(op: &'static str, fused: &dyn Fused, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()> {
    run(op, Kernel::Fused(fused), inputs, outputs, Attributes::default())
}

/// The gradient of `x` from the gradient `dy` of `f()`, which may have another shape of as many elements.
pub(crate) fn gradient_by_ops(
    x: &Tensor,
    dy: &Tensor,
    f: impl FnOnce() -> Result<Tensor>,
) -> Result<Vec<Option<Tensor>>> {
    enable_grad(|| {
        let y = f()?;
        let options = BackwardOptions { gradient: Some(dy.reshape(y.shape())?), ..Default::default() };
        Ok(grad_with(&y, &[x], options)?.into_iter().map(Some).collect())
    })
}

/// Puts what a fused kernel computed on the tape. `backward` launches the backward kernel; a pass that is itself recorded
/// goes through `composite`, a function of the same inputs.
pub(crate) fn record_fused(
    op: &'static str,
    inputs: &[&Tensor],
    output: Tensor,
    composite: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    backward: impl Fn(&Backward<'_>, &[Tensor]) -> Result<Gradients> + Send + Sync + 'static,
) -> Result<Tensor> {
    record_fused_after(op, inputs, output, None, composite, backward)
}

/// [`record_fused`] with a prologue: `backward` is given `dy` after it.
pub(crate) fn record_fused_after(
    op: &'static str,
    inputs: &[&Tensor],
    output: Tensor,
    prologue: Option<Arc<Prologue>>,
    composite: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    backward: impl Fn(&Backward<'_>, &[Tensor]) -> Result<Gradients> + Send + Sync + 'static,
) -> Result<Tensor> {
    let saved: SmallVec<[Saved; 4]> = inputs.iter().map(|t| Saved::input(t)).collect();
    record_after(op, inputs, output, prologue, move |t| {
        let inputs: Vec<Tensor> = saved.iter().map(|s| t.get(s)).collect::<Result<_>>()?;
        if !t.creates_graph() {
            return backward(t, &inputs);
        }
        let y = composite(&inputs)?;
        let wanted: Vec<&Tensor> = inputs.iter().enumerate().filter(|(i, _)| t.needs(*i)).map(|(_, x)| x).collect();
        let options = BackwardOptions { create_graph: true, ..Default::default() };
        let mut found = gradients_from([(&y, t.dy().clone())], &wanted, &options)?.into_iter();
        Ok((0..inputs.len()).map(|i| if t.needs(i) { found.next().flatten() } else { None }).collect())
    })
}
