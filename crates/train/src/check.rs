//! The check of the first batch, before a run begins. It finds numbers that are not finite, parameters without gradients, units that are always 0.

use crate::learner::Learner;
use isograd_core::tape::undone;
use isograd_core::{Error, Result, Tensor, Tensors, no_grad};
use isograd_nn::{Called, ForwardHook, Module, Optimizer};
use std::cell::RefCell;
use std::rc::Rc;

/// The number of names that a warning lists.
const LISTED: usize = 8;

/// The result of a part of the model.
struct Returned {
    name: String,
    output: Tensor,
    is_finite: Tensor,
    /// Units that are 0 for all samples, and all.
    dead: Option<(Tensor, usize)>,
}

/// Computes loss and gradients of a batch, and leaves parameters, buffers, generators and gradients as they were. Returns warnings.
/// Errors: `Value` if the loss or a gradient is not finite; those of the model and the loss.
pub(crate) fn check<M: Module + ?Sized, B: Tensors, P>(
    learner: &Learner<'_, M, B, P>,
    batch: &B,
) -> Result<Vec<String>> {
    let parameters = learner.model.named_parameters();
    let gradients: Vec<Option<Tensor>> = parameters.iter().map(|(_, t)| t.grad()).collect();
    parameters.iter().try_for_each(|(_, t)| t.set_grad(None))?;
    let found = undone(|| found(learner, batch, &parameters));
    for ((_, t), grad) in parameters.iter().zip(gradients) {
        t.set_grad(grad)?;
    }
    found
}

fn found<M: Module + ?Sized, B: Tensors, P>(
    learner: &Learner<'_, M, B, P>,
    batch: &B,
    parameters: &[(String, Tensor)],
) -> Result<Vec<String>> {
    let mut not_finite = no_grad(|| inputs(batch))?;
    let returned: Rc<RefCell<Vec<Returned>>> = Rc::default();
    let kept = returned.clone();
    let hook = ForwardHook::register(learner.model, "*", move |call| {
        no_grad(|| note(call, &mut kept.borrow_mut()))?;
        Ok(None)
    })?;
    let trained = || parameters.iter().filter(|(_, t)| t.requires_grad());
    let (loss, gradients) = learner.device()?.put_off(|| {
        let loss = learner.predicted(batch).map_err(in_first_batch)?.1;
        drop(hook);
        loss.backward()?;
        let of =
            |(name, t): &(String, Tensor)| Ok((name.clone(), t.grad().map(|g| is_finite(&g.detach())).transpose()?));
        Ok((loss, trained().map(of).collect::<Result<Vec<_>>>()?))
    })?;
    let mut warnings = Vec::new();
    for part in returned.take() {
        if !part.is_finite.item::<bool>()? {
            not_finite.push(format!("the output of {}", part.name));
        }
        if let Some((dead, units)) = part.dead {
            let dead = dead.item::<i64>()? as usize;
            if dead > 0 && 2 * dead >= units {
                warnings
                    .push(format!("{dead} of {units} units of {} are 0 for all samples of the first batch", part.name));
            }
        }
    }
    let unused: Vec<&str> =
        gradients.iter().filter(|(_, is_finite)| is_finite.is_none()).map(|(name, _)| name.as_str()).collect();
    if !unused.is_empty() {
        warnings.push(format!("the loss does not depend on {}", listed(&unused)));
    }
    let stepped: Vec<_> = learner.optimizer.parameters().iter().map(Tensor::key).collect();
    let left: Vec<&str> =
        trained().filter(|(_, t)| !stepped.contains(&t.key())).map(|(name, _)| name.as_str()).collect();
    if !left.is_empty() {
        warnings.push(format!("the optimizer does not have {}", listed(&left)));
    }
    let mut wrong = Vec::new();
    for (name, is_finite) in &gradients {
        if let Some(is_finite) = is_finite
            && !is_finite.item::<bool>()?
        {
            wrong.push(name.as_str());
        }
    }
    let loss = loss.item::<f64>()?;
    if !loss.is_finite() || !wrong.is_empty() {
        let mut causes = Vec::new();
        for (name, t) in parameters {
            if !no_grad(|| is_finite(&t.detach()))?.item::<bool>()? {
                causes.push(format!("the parameter {name}"));
            }
        }
        causes.extend(not_finite);
        if !wrong.is_empty() {
            causes.push(format!("the gradients of {}", listed(&wrong)));
        }
        let causes: Vec<&str> = causes.iter().map(String::as_str).collect();
        let causes = if causes.is_empty() {
            "only the loss is not finite".into()
        } else {
            format!("not finite are {}", listed(&causes))
        };
        return Err(Error::value("trainer", format!("the loss is {loss} for the first batch: {causes}")));
    }
    if !not_finite.is_empty() {
        let causes: Vec<&str> = not_finite.iter().map(String::as_str).collect();
        warnings.push(format!("not finite in the first batch are {}", listed(&causes)));
    }
    Ok(warnings)
}

/// The tensors of a batch that are not finite, with their rows.
pub(crate) fn inputs<B: Tensors>(batch: &B) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (i, t) in batch.tensors().into_iter().enumerate() {
        if t.dtype().is_float() && t.numel() > 0 && !is_finite(t)?.item::<bool>()? {
            found.push(format!("tensor {} of the batch{}", i + 1, rows_of(t)?));
        }
    }
    Ok(found)
}

/// The rows of a tensor that are not finite, for a warning; nothing for a number.
fn rows_of(t: &Tensor) -> Result<String> {
    if t.rank() == 0 {
        return Ok(String::new());
    }
    let is_finite = t.isfinite()?.reshape((t.dims()[0], t.numel() / t.dims()[0]))?.all(-1)?.to_vec::<bool>()?;
    let rows = is_finite.iter().enumerate().filter(|(_, is_finite)| !**is_finite);
    let rows: Vec<String> = rows.map(|(i, _)| i.to_string()).collect();
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    Ok(format!(" in rows {}", listed(&rows)))
}

fn note(call: &Called<'_>, returned: &mut Vec<Returned>) -> Result<()> {
    let output = call.output().detach();
    let is_known = returned.last().is_some_and(|last| last.output.key() == output.key());
    if !output.dtype().is_float() || output.numel() == 0 || is_known {
        return Ok(());
    }
    let name = if call.name.is_empty() { "the model".to_string() } else { call.name.to_string() };
    let has_units = output.rank() >= 2 && output.dims()[0] > 1 && !call.kind.contains("Dropout");
    let dead = if has_units { Some(dead(&output)?) } else { None };
    returned.push(Returned { name, is_finite: is_finite(&output)?, output, dead });
    Ok(())
}

/// The number of units of `[N, C]`, `[B, T, C]` or `[N, C, ..]` that are 0 for all samples, and of all.
fn dead(output: &Tensor) -> Result<(Tensor, usize)> {
    let unit = if output.rank() < 4 { output.rank() - 1 } else { 1 };
    let axes: Vec<isize> = (0..output.rank()).filter(|axis| *axis != unit).map(|axis| axis as isize).collect();
    let units = output.dims()[unit];
    let living = output.abs()?.amax(&axes[..])?.count_nonzero(..)?;
    Ok((living.neg()?.add_scalar(units as i64)?, units))
}

fn in_first_batch(error: Error) -> Error {
    let message = format!("{} (in the first batch)", error.message());
    Error::new(error.kind(), error.op().to_string(), message).with_source(error)
}

fn is_finite(t: &Tensor) -> Result<Tensor> {
    t.isfinite()?.all(..)
}

fn listed(names: &[&str]) -> String {
    match names.len() > LISTED {
        true => format!("{} and {} more", names[..LISTED].join(", "), names.len() - LISTED),
        false => names.join(", "),
    }
}
