//! Cases with several calls: models, training curves, second derivatives.

use super::{Checked, Computed, Fallible, Given, Recorded, both, called, find, lazily, unknown, waited};
use crate::compare::Distance;
use crate::registry::{Attributes, Op};
use crate::tolerance::stage_bounds;
use isograd_core::tape::{BackwardOptions, grad_from};
use isograd_core::{DType, Device, Error, Result, Tensor};
use isograd_nn::Layer;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A sequence of calls. Each may read the inputs of the case and the results of earlier calls, by name.
#[derive(Debug)]
pub(super) struct Chain {
    pub steps: Vec<Step>,
    /// The expected results, by name.
    pub outputs: Vec<(String, Given)>,
}

/// A call of a chain, and the names of its results.
#[derive(Debug)]
pub(super) struct Step {
    pub pass: Pass,
    pub outputs: Vec<Option<String>>,
}

/// The kind of a call.
#[derive(Debug)]
pub(super) enum Pass {
    /// Runs an op, or builds a module and runs it. A module with a name is kept. `inputs` has pairs: the op's name of the input,
    /// and the name of a tensor.
    Op { op: String, attributes: Map<String, Value>, inputs: Vec<(String, String)>, module: Option<String> },
    /// Runs a module again. Attributes and inputs default to those of its first call.
    Module { module: String, attributes: Map<String, Value>, inputs: Vec<(String, String)> },
    /// Turns tensors into leaves of the tape, under the same names.
    Leaves { names: Vec<String> },
    /// Adds the gradients of some tensors to the gradients of the leaves.
    Backward { of: Arriving },
    /// Returns the gradients of leaves.
    Gradients { of: Vec<String> },
    /// Returns the summed gradients of some tensors with respect to others.
    Grad { of: Arriving, with_respect_to: Vec<String>, create_graph: bool },
}

/// Tensors with the names of their incoming gradients. The default gradient is 1.
pub(super) type Arriving = Vec<(String, Option<String>)>;

impl Pass {
    /// The names of the tensors that the call reads.
    pub fn reads(&self) -> Vec<&String> {
        match self {
            Pass::Op { inputs, .. } | Pass::Module { inputs, .. } => inputs.iter().map(|(_, name)| name).collect(),
            Pass::Leaves { names } | Pass::Gradients { of: names } => names.iter().collect(),
            Pass::Backward { of } => arriving(of).collect(),
            Pass::Grad { of, with_respect_to, .. } => arriving(of).chain(with_respect_to).collect(),
        }
    }

    /// The call's name in messages.
    fn name(&self) -> &str {
        match self {
            Pass::Op { op, .. } => op,
            Pass::Module { module, .. } => module,
            Pass::Leaves { .. } => "leaves",
            Pass::Backward { .. } => "backward",
            Pass::Gradients { .. } => "gradients",
            Pass::Grad { .. } => "grad",
        }
    }
}

fn arriving(gradients: &Arriving) -> impl Iterator<Item = &String> {
    gradients.iter().flat_map(|(y, gradient)| [Some(y), gradient.as_ref()]).flatten()
}

impl Chain {
    /// The ops of the calls.
    pub fn ops(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().filter_map(|step| match &step.pass {
            Pass::Op { op, .. } => Some(&**op),
            _ => None,
        })
    }

    /// Checks the results on a device.
    pub fn check(&self, case: &Recorded, device: &Device, computed: Computed<'_>) -> Checked {
        let got = self.run(case.inputs(|_, t| t.to_device(device))?, device)?;
        let names = self.steps.iter().flat_map(|step| step.outputs.iter().flatten());
        names.for_each(|name| computed(&format!("out/{name}"), &got[name]));
        let mut limits = None;
        let mut found = Ok(Distance::default());
        for (name, given) in &self.outputs {
            let limits = || Ok(lazily(&mut limits, || self.bounds(case))?[name].clone());
            found = both(found, || case.compare(name, &got[name], given, limits));
        }
        found
    }

    /// The bounds of all float results: those of an op with as many stages as there are calls.
    fn bounds(&self, case: &Recorded) -> Fallible<BTreeMap<String, Vec<f64>>> {
        let cpu = Device::cpu()?;
        let wide = |t: &Tensor| if t.dtype().is_float() { t.cast(DType::F64) } else { Ok(t.clone()) };
        let near = self.run(case.inputs(|_, t| Ok(t.clone()))?, &cpu)?;
        let exact = self.run(case.inputs(|_, t| wide(t))?, &cpu)?;
        let floats = self.outputs.iter().filter(|(name, _)| near[name].dtype().is_float());
        let of = |(name, _): &(String, Given)| {
            let (near, exact) = (&near[name], exact[name].to_f64_vec()?);
            let bounds = stage_bounds(&exact, &near.to_f64_vec()?, near.dtype(), self.steps.len());
            Ok((name.clone(), bounds))
        };
        floats.map(of).collect()
    }

    /// Runs all calls, and returns the tensors by name.
    fn run(&self, inputs: Vec<(String, Tensor)>, device: &Device) -> Fallible<BTreeMap<String, Tensor>> {
        let mut state = State { tensors: inputs.into_iter().collect(), modules: BTreeMap::new(), device };
        for (number, step) in self.steps.iter().enumerate() {
            let place = format!("call {} ({})", number + 1, step.pass.name());
            state.call(step).map_err(|fault| fault.at(&place))?;
        }
        device.synchronize()?;
        Ok(state.tensors)
    }
}

/// The tensors and modules made by the calls of a chain.
struct State<'a> {
    tensors: BTreeMap<String, Tensor>,
    modules: BTreeMap<String, Built>,
    device: &'a Device,
}

/// A module, and the call that built it.
struct Built {
    op: &'static Op,
    layer: Box<dyn Layer>,
    attributes: Map<String, Value>,
    inputs: Vec<(String, Tensor)>,
}

impl State<'_> {
    fn call(&mut self, step: &Step) -> Fallible<()> {
        let found = self.run(&step.pass)?;
        if step.outputs.len() > found.len() {
            return Err(format!("{} results, expected {}", found.len(), step.outputs.len()).into());
        }
        let named = step.outputs.iter().zip(found).filter_map(|(name, t)| Some((name.clone()?, t)));
        self.tensors.extend(named);
        Ok(())
    }

    fn run(&mut self, pass: &Pass) -> Fallible<Vec<Tensor>> {
        match pass {
            Pass::Op { op, attributes, inputs, module: None } => {
                Ok(called(op, &Value::Object(attributes.clone()), &self.named(inputs), self.device)??)
            }
            Pass::Op { op, attributes, inputs, module: Some(module) } => self.build(module, op, attributes, inputs),
            Pass::Module { module, attributes, inputs } => self.run_again(module, attributes, inputs),
            Pass::Leaves { names } => {
                for name in names {
                    let leaf = self.tensors[name].detach().require_grad()?;
                    self.tensors.insert(name.clone(), leaf);
                }
                Ok(Vec::new())
            }
            Pass::Backward { of } => {
                for (y, gradient) in of.iter().map(|(y, g)| (&self.tensors[y], g)).filter(|(y, _)| y.requires_grad()) {
                    let gradient = Some(self.arriving(y, gradient)?);
                    y.backward_with(&BackwardOptions { gradient, retain: true, create_graph: false })?;
                }
                Ok(Vec::new())
            }
            Pass::Gradients { of } => {
                // A copy, because the next pass adds to the gradients of leaves in place.
                let of_one = |x: &Tensor| x.grad().map_or_else(|| x.detach().zeros_like(), |g| g.copy());
                Ok(of.iter().map(|name| of_one(&self.tensors[name])).collect::<Result<_>>()?)
            }
            Pass::Grad { of, with_respect_to, create_graph } => {
                Ok(with_respect_to.iter().map(|x| self.grad(of, x, *create_graph)).collect::<Result<_>>()?)
            }
        }
    }

    /// The inputs of a call, by the op's names.
    fn named(&self, inputs: &[(String, String)]) -> Vec<(String, Tensor)> {
        inputs.iter().map(|(input, name)| (input.clone(), self.tensors[name].clone())).collect()
    }

    /// Builds a module, keeps it and runs it.
    fn build(
        &mut self,
        module: &str,
        op: &str,
        attributes: &Map<String, Value>,
        inputs: &[(String, String)],
    ) -> Fallible<Vec<Tensor>> {
        let (op, attributes, inputs) = (find(op)?, attributes.clone(), self.named(inputs));
        let given = Attributes::new(&Value::Object(attributes.clone())).on(self.device);
        let layer = op.build(&given, &inputs)?;
        let result = waited(op.forward(&*layer, &given, &inputs), self.device);
        if let Some(fault) = unknown(op, &given, &inputs, result.is_err()).next() {
            return Err(fault);
        }
        self.modules.insert(module.into(), Built { op, layer, attributes, inputs });
        Ok(result?)
    }

    /// Runs a module again.
    fn run_again(
        &mut self,
        module: &str,
        attributes: &Map<String, Value>,
        inputs: &[(String, String)],
    ) -> Fallible<Vec<Tensor>> {
        let built = &self.modules[module];
        let (mut all, own) = (built.attributes.clone(), self.named(inputs));
        all.extend(attributes.clone());
        let first = built.inputs.iter().filter(|(name, _)| !own.iter().any(|(other, _)| other == name));
        let inputs: Vec<_> = own.iter().chain(first).cloned().collect();
        let given = Attributes::new(&Value::Object(all)).on(self.device);
        let result = waited(built.op.forward(&*built.layer, &given, &inputs), self.device);
        // The other names were read when the module was built.
        let is_own = |name: &str| attributes.contains_key(name) || own.iter().any(|(other, _)| other == name);
        match unknown(built.op, &given.only(is_own), &own, result.is_err()).next() {
            Some(fault) => Err(fault),
            None => Ok(result?),
        }
    }

    /// The incoming gradient of a tensor, in its dtype.
    fn arriving(&self, y: &Tensor, gradient: &Option<String>) -> Result<Tensor> {
        match gradient {
            Some(name) => self.tensors[name].cast(y.dtype()),
            None => Tensor::ones(y.shape(), y.dtype(), y.device()),
        }
    }

    /// The summed gradients of some tensors with respect to `x`; zeros if none depends on it.
    fn grad(&self, arriving: &Arriving, x: &str, create_graph: bool) -> Result<Tensor> {
        let x = &self.tensors[x];
        if !x.requires_grad() {
            return Err(Error::value("grad", "the tensor is no leaf and not on the tape: name it in `leaves` before"));
        }
        // x itself is a root too, so that every pass reaches it.
        let mut roots = vec![(x, x.detach().zeros_like()?)];
        for (y, gradient) in arriving.iter().map(|(y, g)| (&self.tensors[y], g)).filter(|(y, _)| y.requires_grad()) {
            roots.push((y, self.arriving(y, gradient)?));
        }
        let options = BackwardOptions { gradient: None, retain: true, create_graph };
        Ok(grad_from(&roots, &[x], &options)?.swap_remove(0))
    }
}
