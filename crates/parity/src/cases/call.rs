//! Cases with one call.

use super::{Checked, Computed, Fallible, Given, Recorded, both, called, find, lazily};
use crate::case::Case;
use crate::check::narrow;
use crate::compare::Distance;
use crate::registry::{Class, Op};
use crate::tolerance::{Arriving, Measures, Slices, bounds, gradient_bounds};
use isograd_core::tape::BackwardOptions;
use isograd_core::{DType, Device, Kind, Result, Tensor};
use serde_json::Value;

/// A call of an op with its expected results and gradients, or its expected error.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub op: String,
    pub attributes: Value,
    pub error: Option<Kind>,
    /// The number of results, if the file has it.
    pub count: Option<usize>,
    /// The expected results, with their numbers.
    pub outputs: Vec<(usize, Given)>,
    pub cotangents: Vec<(usize, Tensor)>,
    /// The expected gradients, by the names of their inputs.
    pub grads: Vec<(String, Given)>,
}

type Inputs = Vec<(String, Tensor)>;

/// The gradient of an input; zeros if it receives none.
struct Gradient {
    value: Tensor,
    arrives: bool,
}

impl Call {
    /// True if all expected tensors have a tolerance of their own.
    pub fn has_tolerance(&self) -> bool {
        let all = self.outputs.iter().map(|(_, y)| y).chain(self.grads.iter().map(|(_, g)| g));
        { all }.all(|given| given.tolerance.is_some())
    }

    /// Checks the results, or the expected error.
    pub fn forward(&self, case: &Recorded, device: &Device, computed: Computed<'_>) -> Checked {
        let result = called(&self.op, &self.attributes, &case.inputs(|_, t| t.to_device(device))?, device)?;
        let got = match (self.error, result) {
            (None, result) => result?,
            (Some(kind), Err(e)) if e.kind() == kind => return Ok(Distance::default()),
            (Some(kind), Err(e)) => return Err(format!("expected an error of kind {kind:?}, got {e}").into()),
            (Some(kind), Ok(_)) => return Err(format!("expected an error of kind {kind:?}").into()),
        };
        got.iter().enumerate().for_each(|(k, y)| computed(&format!("out/{k}"), y));
        let least = self.outputs.iter().map(|(k, _)| k + 1).max().unwrap_or(0);
        let count = self.count.unwrap_or(got.len().max(least));
        if got.len() != count {
            return Err(format!("{} outputs, expected {count}", got.len()).into());
        }
        let mut limits = None;
        let mut found = Ok(Distance::default());
        for (k, given) in &self.outputs {
            let limits = || Ok(lazily(&mut limits, || self.bounds(case, &got, device))?[*k].clone());
            found = both(found, || case.compare(&format!("output {k}"), &got[*k], given, limits));
        }
        found
    }

    /// Checks the gradients.
    pub fn backward(&self, case: &Recorded, device: &Device, computed: Computed<'_>) -> Checked {
        if self.grads.is_empty() {
            return Ok(Distance::default());
        }
        let inputs = case.inputs(|name, t| self.leaf(name, t.to_device(device)?))?;
        let got = self.gradients(case, &inputs, device)?;
        self.grads.iter().zip(&got).for_each(|((name, _), g)| computed(&format!("grad/{name}"), &g.value));
        let (mut limits, mut found) = (None, Ok(Distance::default()));
        for (k, ((name, given), g)) in self.grads.iter().zip(&got).enumerate() {
            let limits = || Ok(lazily(&mut limits, || self.bounds_of_gradients(case))?[k].clone());
            let absent = if g.arrives { "" } else { " (which none arrives at)" };
            found = both(found, || case.compare(&format!("the gradient of `{name}`{absent}"), &g.value, given, limits));
        }
        found
    }

    /// An input. It is a leaf of the tape if its gradient is expected.
    fn leaf(&self, name: &str, t: Tensor) -> Result<Tensor> {
        if self.grads.iter().any(|(leaf, _)| leaf == name) { t.require_grad() } else { Ok(t) }
    }

    /// The expected gradients of these inputs, which are leaves.
    fn gradients(&self, case: &Recorded, inputs: &Inputs, device: &Device) -> Fallible<Vec<Gradient>> {
        let outputs = called(&self.op, &self.attributes, inputs, device)??;
        for (i, (k, g)) in self.cotangents.iter().enumerate() {
            // A result outside of the tape contributes no gradient.
            let Some(y) = outputs.get(*k).filter(|y| y.requires_grad()) else { continue };
            if g.dtype() != y.dtype() && !case.exact && y.dtype() != DType::F64 {
                return Err(format!("a cotangent is {}, expected {}", g.dtype(), y.dtype()).into());
            }
            let gradient = Some(g.to_device(device)?.cast(y.dtype())?);
            // One node may have several of the results.
            let retain = i + 1 < self.cotangents.len();
            y.backward_with(&BackwardOptions { gradient, retain, ..Default::default() })?;
        }
        let of = |(name, _): &(String, Given)| {
            let (_, x) = inputs.iter().find(|(input, _)| input == name).expect("gradients are of inputs");
            let gradient = x.grad();
            let arrives = gradient.is_some();
            Ok(Gradient { value: gradient.map_or_else(|| x.detach().zeros_like(), Ok)?, arrives })
        };
        self.grads.iter().map(of).collect()
    }

    /// The call with its inputs on the CPU.
    pub fn case(&self, case: &Recorded) -> Result<Case> {
        Ok(Case { attributes: self.attributes.clone(), inputs: case.inputs.clone(), device: Some(Device::cpu()?) })
    }

    /// The bounds of the results, from runs of the same call on the CPU, in f64 and in its own dtype.
    fn bounds(&self, case: &Recorded, got: &[Tensor], device: &Device) -> Fallible<Vec<Vec<f64>>> {
        let (op, case) = (find(&self.op)?, self.case(case)?);
        let wide = narrow(&case, DType::F64)?;
        let (exact, companions) = (op.call(&wide)?, op.companion_of(&wide)?);
        let yardsticks = if op.class == Class::Stages { Some(op.call(&case)?) } else { None };
        let of = |(k, y): (usize, &Tensor)| {
            if !y.dtype().is_float() {
                return Ok(Vec::new());
            }
            let errors = yardsticks.as_ref().map(|all| errors(&all[k], &exact[k])).transpose()?;
            let measures = Measures { companion: companions[k].to_f64_vec()?, errors };
            Ok(bounds(op, &wide, &exact[k], &measures, y.dtype(), device)?)
        };
        got.iter().enumerate().map(of).collect()
    }

    fn bounds_of_gradients(&self, case: &Recorded) -> Fallible<Vec<Vec<f64>>> {
        let (op, cpu): (&Op, _) = (find(&self.op)?, Device::cpu()?);
        let mut arriving: f64 = 0.0;
        for (_, g) in &self.cotangents {
            arriving = g.to_f64_vec()?.into_iter().map(f64::abs).fold(arriving, f64::max);
        }
        let wide = |t: &Tensor| if t.dtype().is_float() { t.cast(DType::F64) } else { Ok(t.clone()) };
        let own = case.inputs(|name, t| self.leaf(name, t.clone()))?;
        let wide = case.inputs(|name, t| self.leaf(name, wide(t)?))?;
        let call = narrow(&self.case(case)?, DType::F64)?;
        let arriving = Arriving::new(op, &call, arriving)?;
        let (exact, yardstick) = (self.gradients(case, &wide, &cpu)?, self.gradients(case, &own, &cpu)?);
        let shapes: Vec<_> = exact.iter().map(|g| g.value.shape()).collect();
        let slices = Slices::of_gradients(op, &call, &shapes)?;
        let of = |((exact, yardstick), slices): ((&Gradient, &Gradient), &Slices)| {
            let (exact, yardstick) = (&exact.value, &yardstick.value);
            let errors = errors(yardstick, exact)?;
            Ok(gradient_bounds(op, &exact.to_f64_vec()?, &errors, None, arriving, slices, yardstick.dtype()))
        };
        exact.iter().zip(&yardstick).zip(&slices).map(of).collect()
    }
}

/// The distances between the elements of two tensors.
fn errors(y: &Tensor, exact: &Tensor) -> Result<Vec<f64>> {
    Ok(y.to_f64_vec()?.iter().zip(exact.to_f64_vec()?).map(|(y, r)| (y - r).abs()).collect())
}
