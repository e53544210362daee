//! Ops with a kernel of their own. Beside each stands its composite, which is its specification: it runs where the
//! backend has no such kernel, and second derivatives go through it.

use crate::backend::Fused;
use crate::tape::{Backward, BackwardOptions, Gradients, Prologue, gradients_from, record_after};
use crate::{Result, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

/// True if the device of `x` has the kernel for its dtype.
pub(crate) fn has_kernel(kernel: Fused, x: &Tensor) -> bool {
    x.numel() > 0 && x.device().backend().supports(kernel, x.dtype())
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
    let saved: SmallVec<[crate::tape::Saved; 4]> = inputs.iter().map(|t| crate::tape::Saved::input(t)).collect();
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
