//! The evaluation of a graph, node after node.

use super::call::Call;
use super::element::Element;
use super::graph::{Graph, Node, Slot, Source};
use super::host;
use super::value::Value;
use super::{Floats, OnnxModel};
use isograd_core::{DType, Device, Error, Result, Rng, Tensor, is_in_step, origin};
use isograd_nn::{called, is_hooked};
use std::cell::RefCell;

/// A run of a model.
pub struct Run<'a> {
    model: &'a OnnxModel,
    values: RefCell<Vec<Option<Value>>>,
}

impl<'a> Run<'a> {
    pub fn new(model: &'a OnnxModel) -> Run<'a> {
        let value = |source: &Option<Source>| {
            source.as_ref().map(|source| match source {
                Source::State(at, element) => Value::Tensor(model.state[*at].tensor.clone(), *element),
                Source::Constant(at, element) => Value::Tensor(model.constants[*at].clone(), *element),
                Source::Host(value) => value.clone(),
            })
        };
        Run { model, values: RefCell::new(model.plan.sources.iter().map(value).collect()) }
    }

    pub fn device(&self) -> &Device {
        self.model.device()
    }

    pub fn is_training(&self) -> bool {
        self.model.mode.is_training()
    }

    pub fn rng(&self) -> &Rng {
        &self.model.rng
    }

    /// The type of floats whose type nothing says.
    pub fn floats(&self) -> Element {
        if self.model.plan.floats == Floats::Wide { Element::of(DType::F64) } else { Element::F32 }
    }

    /// True for a value that is a tensor of the state.
    pub fn is_state(&self, slot: Slot) -> bool {
        matches!(self.model.plan.sources[slot], Some(Source::State(..)))
    }

    /// A constant tensor of the model.
    pub fn constant(&self, at: usize) -> Tensor {
        self.model.constants[at].clone()
    }

    /// The outputs of a graph for these inputs. The values of graphs around it are known.
    pub fn graph(&self, graph: &Graph, inputs: Vec<Value>) -> Result<Vec<Value>> {
        if inputs.len() != graph.inputs.len() {
            let message = format!("{} inputs were given, the graph has {}", inputs.len(), graph.inputs.len());
            return Err(Error::value("onnx", message));
        }
        graph.inputs.iter().zip(inputs).for_each(|(&slot, value)| self.set(slot, value));
        graph.nodes.iter().try_for_each(|node| self.node(node))?;
        graph.outputs.iter().map(|&slot| self.get(slot)).collect()
    }

    fn set(&self, slot: Slot, value: Value) {
        self.values.borrow_mut()[slot] = Some(value);
    }

    fn get(&self, slot: Slot) -> Result<Value> {
        let known = self.values.borrow()[slot].clone();
        known.ok_or_else(|| Error::value("onnx", "a value is read that was not computed"))
    }

    fn node(&self, node: &Node) -> Result<()> {
        let results = match self.model.known(node) {
            Some(known) => known,
            None => origin::named(&node.origin, || self.evaluate(node)).map_err(|e| at(node, e))?,
        };
        let mut results = results.into_iter();
        for output in &node.outputs {
            let result = results.next();
            let Some(slot) = output else { continue };
            let missing = || at(node, Error::unsupported("onnx", "it has fewer results than the node names"));
            self.set(*slot, result.ok_or_else(missing)?);
        }
        let mut values = self.values.borrow_mut();
        node.last_of.iter().for_each(|&slot| values[slot] = None);
        Ok(())
    }

    fn evaluate(&self, node: &Node) -> Result<Vec<Value>> {
        let inputs = node.inputs.iter().map(|slot| slot.map(|slot| self.get(slot)).transpose());
        let call = Call { node, inputs: inputs.collect::<Result<_>>()?, run: self };
        let results = match host::evaluate(&call)? {
            Some(results) => results,
            None if is_hooked() => self.hooked(&call)?,
            None => node.op.run(&call)?,
        };
        // The memory of a captured step is its own.
        if node.is_constant && !is_in_step() {
            self.model.keep(node, &results);
        }
        Ok(results)
    }
}

impl Run<'_> {
    /// The results of a node after the hooks of its part, which may replace the first.
    fn hooked(&self, call: &Call<'_>) -> Result<Vec<Value>> {
        let tensors = |value: &Value| if let Value::Tensor(t, _) = value { Some(t.clone()) } else { None };
        let inputs: Vec<Tensor> = call.inputs.iter().flatten().filter_map(tensors).collect();
        let mut results = Vec::new();
        let part = &self.model.parts[call.node.number];
        let outputs = called(part, &inputs.iter().collect::<Vec<_>>(), || {
            results = call.node.op.run(call)?;
            Ok(results.iter().filter_map(tensors).collect::<Vec<Tensor>>())
        })?;
        let mut outputs = outputs.into_iter();
        for result in &mut results {
            if let Value::Tensor(t, _) = result {
                *t = outputs.next().unwrap_or_else(|| t.clone());
            }
        }
        Ok(results)
    }
}

/// The error of a node.
fn at(node: &Node, error: Error) -> Error {
    // Nodes of a body have told theirs.
    if error.op().starts_with("onnx: ") {
        return error;
    }
    let op = if error.op() == "onnx" { String::new() } else { format!("{}: ", error.op()) };
    Error::new(error.kind(), format!("onnx: {}", node.described()), format!("{op}{}", error.message()))
}
