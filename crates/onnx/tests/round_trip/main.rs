//! Exported models, loaded again: outputs and gradients are those of the functions that were exported.

#[path = "../cases/mod.rs"]
mod cases;

use cases::{Case, cpu, fill};
use isograd_core::{DType, Error, Kind, Result, Tensor};
use isograd_cpu as _;
use isograd_nn::Module;
use isograd_onnx::OnnxModel;
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Outputs, and the gradients of inputs and parameters by name; `None` where a function has none.
struct Found {
    outputs: Vec<Tensor>,
    gradients: Option<BTreeMap<String, Tensor>>,
}

fn leaf(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_float() { x.detach().copy()?.require_grad() } else { Ok(x.clone()) }
}

/// The gradients of a sum of all outputs, each with another factor.
fn gradients(
    names: &[String],
    inputs: &[Tensor],
    parameters: &[(String, Tensor)],
    outputs: &[Tensor],
) -> Result<Option<BTreeMap<String, Tensor>>> {
    let mut loss: Option<Tensor> = None;
    for (k, y) in outputs.iter().enumerate().filter(|(_, y)| y.requires_grad()) {
        let part = y.mul(&fill(y.shape(), k + 3, [0.5, 1.5]).cast(y.dtype())?)?.sum(..)?.cast(DType::F32)?;
        loss = Some(loss.map_or(Ok(part.clone()), |loss| loss.add(&part))?);
    }
    let Some(loss) = loss else { return Ok(None) };
    parameters.iter().try_for_each(|(_, t)| t.set_grad(None))?;
    loss.backward()?;
    let inputs = names.iter().cloned().zip(inputs.iter().cloned());
    let all = inputs.chain(parameters.iter().map(|(name, t)| (format!("parameter {name}"), t.clone())));
    Ok(Some(all.filter_map(|(name, t)| Some((name, t.grad()?))).collect()))
}

fn evaluate(
    names: &[String],
    inputs: &[Tensor],
    parameters: &[(String, Tensor)],
    f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Found> {
    let inputs: Vec<Tensor> = inputs.iter().map(leaf).collect::<Result<_>>()?;
    let outputs = f(&inputs)?;
    let gradients = gradients(names, &inputs, parameters, &outputs)?;
    Ok(Found { outputs: outputs.iter().map(Tensor::detach).collect(), gradients })
}

/// Why two tensors differ, to `bound` of an element or of the largest one.
fn difference(got: &Tensor, expected: &Tensor, bound: f64) -> Result<Option<String>> {
    if got.dtype() != expected.dtype() || got.shape() != expected.shape() {
        return Ok(Some(format!(
            "is {} {}, expected {} {}",
            got.dtype(),
            got.shape(),
            expected.dtype(),
            expected.shape()
        )));
    }
    let (a, b) = (got.to_f64_vec()?, expected.to_f64_vec()?);
    let largest = b.iter().filter(|v| v.is_finite()).fold(1.0, |m: f64, v| m.max(v.abs()));
    let is_close = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= bound * largest;
    Ok(a.iter().zip(&b).position(|(a, b)| !is_close(*a, *b)).map(|i| format!("is {} at {i}, expected {}", a[i], b[i])))
}

/// Of outputs, as in onnxruntime; gradients of parts add more roundings.
const BOUNDS: [f64; 2] = [1e-5, 1e-4];

/// True for a function that has no gradient itself: it changes a result in place, or is outside of the tape.
fn has_none(error: &Error) -> bool {
    matches!(error.kind(), Kind::Value | Kind::Unsupported)
}

fn check(case: &Case) -> std::result::Result<(), String> {
    let text = |e: Error| e.to_string();
    let model = OnnxModel::from_bytes(&case.export().and_then(|model| model.to_bytes()).map_err(text)?, &cpu());
    let model = model.map_err(text)?;
    let names = case.names();
    let known: Vec<String> = model.inputs().iter().map(|port| port.name().to_string()).collect();
    if model.state_dict().keys().any(|name| !case.module.state_dict().contains_key(name)) {
        return Err(format!("it has other tensors: {:?}", model.state_dict().keys().collect::<Vec<_>>()));
    }
    let run = |x: &[Tensor]| {
        let at = |name: &str| names.iter().position(|own| own == name).expect("the model has the inputs of the case");
        let given: Vec<(&str, Tensor)> = known.iter().map(|name| (&name[..], x[at(name)].clone())).collect();
        Ok(model.run(&given)?.into_iter().map(|(_, y)| y).collect())
    };
    for (r, inputs) in case.runs.iter().enumerate() {
        let own = case.module.named_parameters();
        let expected = match evaluate(&names, inputs, &own, &case.f) {
            Err(error) if has_none(&error) => {
                let outputs = isograd_core::no_grad(|| (case.f)(inputs)).map_err(text)?;
                Found { outputs, gradients: None }
            }
            found => found.map_err(text)?,
        };
        let got = evaluate(&names, inputs, &model.named_parameters(), run).map_err(text)?;
        for (i, (y, wanted)) in got.outputs.iter().zip(&expected.outputs).enumerate() {
            if let Some(why) = difference(y, wanted, BOUNDS[0]).map_err(text)? {
                return Err(format!("run {r}: output {i} {why}"));
            }
        }
        let (Some(mine), Some(theirs)) = (got.gradients, expected.gradients) else { continue };
        for (name, wanted) in theirs {
            let Some(g) = mine.get(&name) else { return Err(format!("run {r}: {name} has no gradient")) };
            if let Some(why) = difference(g, &wanted, BOUNDS[1]).map_err(text)? {
                return Err(format!("run {r}: the gradient of {name} {why}"));
            }
        }
    }
    Ok(())
}

fn main() {
    let arguments = Arguments::from_args();
    let trial = |case: Case| {
        let case = Arc::new(case);
        Trial::test(case.name.clone(), move || check(&case).map_err(Failed::from))
    };
    libtest_mimic::run(&arguments, cases::all().into_iter().map(trial).collect()).exit();
}
