//! Unscaling of gradients after loss scaling.

use crate::check::check_float;
use crate::fused::{Fused, has_kernel, run_fused};
use crate::operands;
use crate::operands::List;
use crate::ops::elementwise::each::{Update, are_apart, update_each_for};
use crate::ops::elementwise::in_place::check_update;
use crate::ops::indexing::gather::check_apart;
use crate::ops::reduction::total::{Total, total, total_for};
use crate::pointwise::Pointwise;
use crate::{DType, Error, Result, Tensor};

/// Multiplies the outputs except the last by the f32 inverse of the scale. These outputs are contiguous, have the same dtype
/// and are not empty. The last output is set to 1 if an element was NaN or infinite before, and is otherwise unchanged. The last
/// output is f32 and has one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unscale;

operands! {
    /// The input of [`Unscale`].
    pub struct UnscaleInputs {
        /// One element, f32.
        scale,
    }
}

impl Fused for Unscale {
    type Inputs<T> = UnscaleInputs<T>;
    type Outputs<T> = List<T>;

    fn name(&self) -> &'static str {
        "unscale"
    }

    fn composite(&self, inputs: UnscaleInputs<&Tensor>, before: List<&Tensor>) -> Result<List<Option<Tensor>>> {
        let (targets, found) = before.split_at(before.len() - 1);
        let is_bad = total(Total::NotFinite, targets)?;
        let found = found[0].maximum(&is_bad.cast(found[0].dtype())?)?;
        let scaled = targets.iter().map(|t| t.div(&inputs.scale.cast(t.dtype())?).map(Some));
        scaled.chain([Ok(Some(found))]).collect()
    }
}

/// Divides float tensors by `scale` in place, as a product with its f32 inverse. Sets `found_inf` to 1 if an element of a tensor
/// was NaN or infinite before; otherwise it is unchanged. `scale` and `found_inf` are f32 and of rank 0. Some devices run all
/// tensors of a dtype in one launch, which reads them once. A quotient that a tensor's dtype does not hold is 0: gradients in f16 are cast to
/// f32 first.
///
/// Errors: `Shape` or `Dtype` for `scale` and `found_inf`; `Dtype` or `Device` for the tensors; `Value` on the tape, if a tensor
/// shares memory with `scale` or `found_inf`, or if several elements of a tensor share a position.
pub fn unscale_(tensors: &[&Tensor], scale: &Tensor, found_inf: &Tensor) -> Result<()> {
    let op = "unscale_";
    for (name, t) in [("scale", scale), ("found_inf", found_inf)] {
        if t.rank() != 0 {
            return Err(Error::shape(op, format!("{name} has shape {}, expected rank 0", t.shape())));
        }
        if t.dtype() != DType::F32 {
            return Err(Error::dtype(op, format!("{name} is {}, expected f32", t.dtype())));
        }
    }
    let set = |t| Update { targets: vec![t], inputs: Vec::new(), numbers: Vec::new() };
    let sets: Vec<Update<'_>> = tensors.iter().copied().map(set).collect();
    check_update(op, Pointwise::ScaleInPlace, &[found_inf], &[scale], &[])?;
    check_apart(op, found_inf, tensors)?;
    for t in tensors {
        check_float(op, t)?;
        check_update(op, Pointwise::ScaleInPlace, &[t], &[scale], &[])?;
    }
    let is_simple = |t: &&Tensor| t.layout().is_dense() && has_kernel::<Unscale>(t);
    let (simple, others): (Vec<&Tensor>, Vec<&Tensor>) = match are_apart(&sets) {
        true => tensors.iter().filter(|t| t.numel() > 0).partition(|t| is_simple(t)),
        false => (Vec::new(), tensors.to_vec()),
    };
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let group: Vec<&Tensor> = simple.iter().copied().filter(|t| t.dtype() == dtype).collect();
        if !group.is_empty() {
            let outputs: Vec<&Tensor> = group.iter().copied().chain([found_inf]).collect();
            run_fused(op, &Unscale, UnscaleInputs { scale }, &outputs)?;
            outputs.iter().for_each(|t| t.touch());
        }
    }
    if others.is_empty() {
        return Ok(());
    }
    let found = total_for(op, Total::NotFinite, &others)?.cast(DType::F32)?;
    found_inf.copy_(&found_inf.maximum(&found)?)?;
    let sets: Vec<Update<'_>> = others.into_iter().map(set).collect();
    update_each_for(op, Pointwise::ScaleInPlace, &sets, &[&scale.reciprocal()?], &[])
}
