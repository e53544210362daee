//! Fused ops: one kernel in place of the kernels of a composite.
//!
//! The descriptor of a fused op is a struct of attributes. It stands in the file of its op, and is all that core and the backends
//! share. The composite, in tensor ops, specifies the kernel. It runs on backends without the kernel, and second derivatives are
//! computed through it.

use crate::backend::{Call, Kernel, Operand};
use crate::operands::{List, Mask, Operands, Output};
use crate::pointwise::Pointwise;
use crate::tape::{
    Backward, BackwardOptions, Gradients, Outputs, Record, Saved, enable_grad, grad_with, gradients_from,
};
use crate::tensor::{Attributes, run};
use crate::thread::{KERNELS, Kernels};
use crate::{DType, Result, Tensor};
use smallvec::SmallVec;
use std::any::{Any, TypeId};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The attributes and the composite of a fused kernel. Unless the documentation of its operands says otherwise, they are contiguous.
/// Statistics are in the accumulation dtype.
pub trait Fused: Any + Clone + fmt::Debug + Send + Sync {
    /// The operands that are read: a struct of [`operands!`](crate::operands!), or a [`List`] of any number.
    type Inputs<T>: Operands<T>;

    /// The operands that are written.
    type Outputs<T>: Operands<T>;

    /// The kernel's name in logs and reports.
    fn name(&self) -> &'static str;

    /// The row of the pointwise table that the kernel applies, for reports.
    fn row(&self) -> Option<Pointwise> {
        None
    }

    /// The kernel's specification in tensor ops: outputs from contiguous inputs and from the outputs' previous values `before`.
    /// `None` for an output whose values are unspecified. An output may have another shape with the same number of elements.
    /// Devices without the kernel run it instead.
    fn composite(
        &self,
        inputs: Self::Inputs<&Tensor>,
        before: Self::Outputs<&Tensor>,
    ) -> Result<Self::Outputs<Option<Tensor>>>;

    /// For a kernel that adds: for each output, the sums of the absolute values of the terms. Float operands are f64.
    fn companions(
        &self,
        _inputs: Self::Inputs<&Tensor>,
        _before: Self::Outputs<&Tensor>,
    ) -> Result<Option<Self::Outputs<Tensor>>> {
        Ok(None)
    }

    /// The order in which the terms of [`companions`](Fused::companions) are added.
    fn sum(&self) -> Sum {
        Sum::Tree
    }

    /// The number of times that a 16-bit result may be rounded.
    fn roundings(&self, _inputs: Self::Inputs<()>) -> usize {
        1
    }

    /// For each output, a mask of the elements that are read later; `None` if all are.
    fn are_read(&self, _inputs: Self::Inputs<&Tensor>) -> Result<List<Option<Tensor>>> {
        Ok(List::default())
    }

    /// The operands that a call of this kernel reads.
    fn inputs<'a>(&self, call: &'a Call<'_>) -> Self::Inputs<&'a Operand<'a>> {
        Self::Inputs::of(call.kernel.masks()[0], &mut call.inputs.iter())
    }

    /// The operands that a call of this kernel writes.
    fn outputs<'a>(&self, call: &'a Call<'_>) -> Self::Outputs<&'a Operand<'a>> {
        Self::Outputs::of(call.kernel.masks()[1], &mut call.outputs.iter())
    }
}

/// [`Fused`] for descriptors whose type is not known. Operands are slices without the absent ones, which the masks of a [`FusedCall`]
/// name.
pub trait AnyFused: Any + fmt::Debug + Send + Sync {
    /// A copy of the descriptor.
    fn kept(&self) -> Arc<dyn AnyFused>;

    #[doc(hidden)]
    fn any_name(&self) -> &'static str;

    #[doc(hidden)]
    fn any_row(&self) -> Option<Pointwise>;

    #[doc(hidden)]
    fn any_sum(&self) -> Sum;

    #[doc(hidden)]
    fn composite_of(&self, masks: [Mask; 2], inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>>;

    #[doc(hidden)]
    fn companions_of(&self, masks: [Mask; 2], inputs: &[Tensor], before: &[Tensor]) -> Result<Option<Vec<Tensor>>>;

    #[doc(hidden)]
    fn roundings_of(&self, mask: Mask) -> usize;

    #[doc(hidden)]
    fn are_read_of(&self, mask: Mask, inputs: &[Tensor]) -> Result<List<Option<Tensor>>>;
}

impl<F: Fused> AnyFused for F {
    fn kept(&self) -> Arc<dyn AnyFused> {
        Arc::new(self.clone())
    }

    fn any_name(&self) -> &'static str {
        Fused::name(self)
    }

    fn any_row(&self) -> Option<Pointwise> {
        Fused::row(self)
    }

    fn any_sum(&self) -> Sum {
        Fused::sum(self)
    }

    fn composite_of(
        &self,
        [read, written]: [Mask; 2],
        inputs: &[Tensor],
        before: &[Tensor],
    ) -> Result<Vec<Option<Tensor>>> {
        let (inputs, before) = (F::Inputs::of(read, &mut inputs.iter()), F::Outputs::of(written, &mut before.iter()));
        Ok(self.composite(inputs, before)?.present().into_iter().collect())
    }

    fn companions_of(
        &self,
        [read, written]: [Mask; 2],
        inputs: &[Tensor],
        before: &[Tensor],
    ) -> Result<Option<Vec<Tensor>>> {
        let (inputs, before) = (F::Inputs::of(read, &mut inputs.iter()), F::Outputs::of(written, &mut before.iter()));
        Ok(self.companions(inputs, before)?.map(|found| found.present().into_iter().collect()))
    }

    fn roundings_of(&self, mask: Mask) -> usize {
        self.roundings(F::Inputs::of(mask, &mut std::iter::repeat_n((), 32)))
    }

    fn are_read_of(&self, mask: Mask, inputs: &[Tensor]) -> Result<List<Option<Tensor>>> {
        self.are_read(F::Inputs::of(mask, &mut inputs.iter()))
    }
}

/// A fused op as the kernel of a call: its descriptor, and which of its operands are present.
#[derive(Clone, Copy, Debug)]
pub struct FusedCall<'a> {
    fused: &'a dyn AnyFused,
    inputs: Mask,
    outputs: Mask,
}

impl<'a> FusedCall<'a> {
    /// The call of a descriptor with these operands.
    pub fn new<F: Fused, T, U>(fused: &'a F, inputs: &F::Inputs<T>, outputs: &F::Outputs<U>) -> FusedCall<'a> {
        FusedCall { fused, inputs: inputs.mask(), outputs: outputs.mask() }
    }

    /// The call of a descriptor whose type is not known, with the operands of [`masks`](FusedCall::masks).
    pub fn of(fused: &'a dyn AnyFused, [inputs, outputs]: [Mask; 2]) -> FusedCall<'a> {
        FusedCall { fused, inputs, outputs }
    }

    /// The descriptor.
    pub fn fused(&self) -> &'a dyn AnyFused {
        self.fused
    }

    /// The masks of the operands that are read and written.
    pub fn masks(&self) -> [Mask; 2] {
        [self.inputs, self.outputs]
    }

    /// [`Fused::composite`] of the operands that are present.
    pub fn composite(&self, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        self.fused.composite_of(self.masks(), inputs, before)
    }

    /// [`Fused::companions`] of the operands that are present.
    pub fn companions(&self, inputs: &[Tensor], before: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
        self.fused.companions_of(self.masks(), inputs, before)
    }

    /// [`Fused::roundings`].
    pub fn roundings(&self) -> usize {
        self.fused.roundings_of(self.inputs)
    }

    /// [`Fused::are_read`] for the output at a position of those that are present.
    pub fn is_read(&self, inputs: &[Tensor], output: usize) -> Result<Option<Tensor>> {
        Ok(self.fused.are_read_of(self.inputs, inputs)?.into_iter().nth(output).flatten())
    }
}

impl<'a> Deref for FusedCall<'a> {
    type Target = dyn AnyFused;

    fn deref(&self) -> &Self::Target {
        self.fused
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

impl dyn AnyFused {
    /// [`Fused::name`].
    pub fn name(&self) -> &'static str {
        self.any_name()
    }

    /// [`Fused::row`].
    pub fn row(&self) -> Option<Pointwise> {
        self.any_row()
    }

    /// [`Fused::sum`].
    pub fn sum(&self) -> Sum {
        self.any_sum()
    }

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
    KERNELS.get() == Kernels::All && x.device().backend().supports(TypeId::of::<F>(), dtype)
}

/// True if the device of `x`, which has the kernel, has room on chip for what this descriptor keeps there.
pub(crate) fn has_room(x: &Tensor, fused: &dyn AnyFused) -> bool {
    x.device().backend().has_room(fused, x.dtype())
}

/// Runs a fused kernel, which the device must have.
pub(crate) fn run_fused<'i, 'o, F: Fused>(
    op: &'static str,
    fused: &F,
    inputs: impl Into<F::Inputs<&'i Tensor>>,
    outputs: impl Into<F::Outputs<&'o Tensor>>,
) -> Result<()> {
    let (inputs, outputs) = (inputs.into(), outputs.into());
    let kernel = Kernel::Fused(FusedCall::new(fused, &inputs, &outputs));
    run(op, kernel, &inputs.present(), &outputs.present(), Attributes::default())
}

/// The outputs of a composite for the absolute values of its float inputs: the companions of a kernel that adds products of these.
pub(crate) fn of_sizes<F: Fused>(
    fused: &F,
    inputs: F::Inputs<&Tensor>,
    before: F::Outputs<&Tensor>,
) -> Result<Option<F::Outputs<Tensor>>> {
    let (read, written) = (inputs.mask(), before.mask());
    let size = |x: &Tensor| if x.dtype().is_float() { x.abs() } else { Ok(x.clone()) };
    let sizes: Vec<Tensor> = inputs.present().into_iter().map(size).collect::<Result<_>>()?;
    let found = fused.composite(F::Inputs::of(read, &mut sizes.iter()), before)?;
    Ok(Some(F::Outputs::of(written, &mut found.present().into_iter().flatten())))
}

/// The gradient of `x` from the gradient `dy` of `f()`. `dy` may have another shape with the same number of elements.
pub(crate) fn gradient_by_ops(
    x: &Tensor,
    dy: &Tensor,
    f: impl FnOnce() -> Result<Tensor>,
) -> Result<Output<Option<Tensor>>> {
    enable_grad(|| {
        let y = f()?;
        let options = BackwardOptions { gradient: Some(dy.reshape(y.shape())?), ..Default::default() };
        Ok(Output { y: grad_with(&y, &[x], &options)?.pop() })
    })
}

impl Record<'_> {
    /// Records the outputs of a fused kernel. `backward` launches the backward kernel. With `create_graph`, the gradients are computed
    /// through `composite`, a function of the same inputs.
    pub fn fused<O: Outputs>(
        self,
        outputs: O,
        composite: impl Fn(&[Tensor]) -> Result<O> + Send + Sync + 'static,
        backward: impl Fn(&Backward<'_>, &[Tensor]) -> Result<Gradients> + Send + Sync + 'static,
    ) -> Result<O> {
        let saved: SmallVec<[Saved; 4]> = self.inputs.iter().map(|t| Saved::input(t)).collect();
        self.rule(outputs, move |t| {
            let inputs: Vec<Tensor> = saved.iter().map(|s| t.get(s)).collect::<Result<_>>()?;
            if !t.creates_graph() {
                return backward(t, &inputs);
            }
            let is_needed: SmallVec<[bool; 4]> = (0..inputs.len()).map(|i| t.needs(i)).collect();
            Ok(gradients_on_tape(&inputs, &is_needed, |y| t.dy_of(y).cloned(), &composite)?.into_iter().collect())
        })
    }
}

/// The gradients of the needed inputs of a composite, on the tape, from the gradients `dy` of its outputs. One tensor may be several
/// inputs: each input gets a node of its own, so that its gradient is told from the others'.
pub(crate) fn gradients_on_tape<O: Outputs>(
    inputs: &[Tensor],
    is_needed: &[bool],
    dy: impl Fn(usize) -> Option<Tensor>,
    composite: impl FnOnce(&[Tensor]) -> Result<O>,
) -> Result<Vec<Option<Tensor>>> {
    let own = |x: &Tensor| {
        let same = x.with_layout(x.layout().clone());
        Record::new("input", &[x]).stateless().rule(same, |t| Ok([t.dy().clone()]))
    };
    let inputs: Vec<Tensor> = inputs.iter().map(own).collect::<Result<_>>()?;
    let outputs = composite(&inputs)?.into_each();
    let roots = outputs.iter().enumerate().filter_map(|(i, y)| Some((y, dy(i)?)));
    let wanted: Vec<&Tensor> = inputs.iter().zip(is_needed).filter(|(_, needed)| **needed).map(|(x, _)| x).collect();
    let options = BackwardOptions { create_graph: true, ..Default::default() };
    let mut found = gradients_from(roots, &wanted, &options)?.into_iter();
    Ok(is_needed.iter().map(|&needed| if needed { found.next().flatten() } else { None }).collect())
}
