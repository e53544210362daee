//! Import: a file becomes a module, whose graph runs node by node on the tape.

mod attribute;
mod build;
mod call;
mod element;
mod external;
mod fuse;
mod graph;
mod host;
mod ops;
mod order;
mod part;
mod port;
mod run;
mod tensor;
mod value;

pub use self::build::CONSTANT;
pub use self::port::{Port, Size};

use self::build::{Builder, State};
use self::element::Element;
use self::external::{Folder, shared};
use self::graph::{Graph, Node, Source};
use self::part::NodePart;
use self::run::Run;
use self::value::Value;
use crate::proto::ModelProto;
use isograd_core::{DType, Device, Error, Result, Rng, Tensor};
use isograd_files::{Mapped, looks_like};
use isograd_nn::{Forward, LoadOptions, Mode, Module, StateDict, Unmatched, Visitor, VisitorMut, called};
use parking_lot::Mutex;
use prost::Message;
use prost::bytes::Bytes;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Reads a model of ONNX, whose tensors are then on the device. The model is in evaluation.
///
/// Tensors of floats that have a dimension are parameters, with the names that the file gives them. Statistics of normalisations, scales of
/// quantised operators, single numbers, tensors with elements that are not finite, and integers are buffers; integers that nodes read as shapes
/// or places stay as they are. Tensors in other files are read from the folder of the model and those below it.
///
/// Errors: `Io`; `Format` for a file that is no model: a cycle, a value that nothing computes, extents that do not fit the elements, a file
/// outside of the folder; `Unsupported`, naming all nodes whose operators have no counterpart; `OutOfMemory`.
///
/// ```no_run
/// # use isograd_core::{Device, DType, Result, Tensor};
/// # fn main() -> Result<()> {
/// let device = Device::best()?;
/// let model = isograd_onnx::load("resnet50.onnx", &device)?;
/// let image = Tensor::zeros((1, 3, 224, 224), DType::F32, &device)?;
/// let outputs = model.run(&[("data", image)])?;
/// println!("{}: {}", outputs[0].0, outputs[0].1);
/// # Ok(())
/// # }
/// ```
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<OnnxModel> {
    of_path(path.as_ref(), device, Floats::Own)
}

/// [`load`] with all floats in f64, those of the file, of inputs and of casts: the reference with which runs in other dtypes are compared.
pub fn load_in_f64(path: impl AsRef<Path>, device: &Device) -> Result<OnnxModel> {
    of_path(path.as_ref(), device, Floats::Wide)
}

fn of_path(path: &Path, device: &Device, floats: Floats) -> Result<OnnxModel> {
    let bytes = shared(Mapped::open(path)?);
    OnnxModel::of_file(&path.display().to_string(), bytes, Folder::of(Some(path)), device, floats)
}

/// The dtypes of a model's floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Floats {
    /// The dtypes of the file.
    Own,
    /// All f64.
    Wide,
}

/// A model of ONNX.
///
/// It is a module: its parameters train, it is saved and loaded as others, and [`train`](Module::train) switches its dropout and its batch norms
/// to training. These then update their statistics with PyTorch's unbiased variance, unless their parameters are frozen.
pub struct OnnxModel {
    plan: Arc<Plan>,
    state: Vec<State>,
    /// Constants of the graph that are not on the host.
    constants: Vec<Tensor>,
    /// The nodes by number, for hooks.
    parts: Vec<NodePart>,
    /// On the device of the model.
    place: Tensor,
    mode: Mode,
    rng: Rng,
    /// The results of nodes that depend on constants alone.
    known: Mutex<HashMap<usize, Vec<Value>>>,
}

/// The graph of a model, which its clones share.
struct Plan {
    graph: Graph,
    /// The source of each value that no node computes.
    sources: Vec<Option<Source>>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    elements: Vec<Element>,
    about: String,
    floats: Floats,
}

impl OnnxModel {
    /// Reads the bytes of a model, whose tensors are all in it. Errors: as [`load`].
    pub fn from_bytes(bytes: &[u8], device: &Device) -> Result<OnnxModel> {
        OnnxModel::of_file("onnx", Bytes::copy_from_slice(bytes), Folder::of(None), device, Floats::Own)
    }

    fn of_file(file: &str, bytes: Bytes, folder: Folder, device: &Device, floats: Floats) -> Result<OnnxModel> {
        let length = bytes.len();
        let looks = || looks_like(&bytes).map_or(String::new(), |looks| format!("; {looks}"));
        let no_model = |e: &dyn std::fmt::Display| {
            Error::format(file.to_string(), format!("it is no model of ONNX: {e}{}", looks()))
        };
        let message = ModelProto::decode(bytes.clone()).map_err(|e| no_model(&e))?;
        let Some(proto) = &message.graph else { return Err(no_model(&"it has no graph")) };
        let mut builder = Builder::new(file, folder, device, &message, length, floats == Floats::Wide);
        let graph = builder.model(&message)?;
        let given: Vec<&str> = proto.initializer.iter().map(|tensor| tensor.name()).collect();
        let required = proto.input.iter().filter(|input| !given.contains(&input.name()));
        let wide = |port: Port| if floats == Floats::Wide { port.wide() } else { port };
        let inputs: Vec<Port> = required.map(|value| port::of(file, value).map(wide)).collect::<Result<_>>()?;
        let elements = inputs.iter().map(|port| port.element).collect();
        // The declared type of an output is not needed to compute it.
        let outputs = proto.output.iter().map(|value| wide(port::or_unknown(value))).collect();
        let about = port::about(&message);
        let plan = Plan { graph, sources: builder.sources, inputs, outputs, elements, about, floats };
        Ok(OnnxModel {
            plan: Arc::new(plan),
            state: builder.state,
            constants: builder.constants,
            parts: builder.parts,
            place: Tensor::zeros((), DType::U8, device)?,
            mode: evaluating(),
            rng: Rng::new(0),
            known: Mutex::default(),
        })
    }

    /// The inputs, in order.
    pub fn inputs(&self) -> &[Port] {
        &self.plan.inputs
    }

    /// The outputs, in order.
    pub fn outputs(&self) -> &[Port] {
        &self.plan.outputs
    }

    /// The program that wrote the model, and the versions of its operators: `pytorch 2.1, opset 17`.
    pub fn about(&self) -> &str {
        &self.plan.about
    }

    /// The operators of its nodes and their numbers, in the order of names; those of bodies of control operators are not counted.
    pub fn operators(&self) -> Vec<(String, usize)> {
        let mut counts = std::collections::BTreeMap::new();
        for node in &self.plan.graph.nodes {
            *counts.entry(node.op_type.to_string()).or_insert(0) += 1;
        }
        counts.into_iter().collect()
    }

    /// The device of its tensors.
    pub fn device(&self) -> &Device {
        self.place.device()
    }

    /// The generator of random draws: of dropout in training, and of operators that draw.
    pub fn rng(&self) -> &Rng {
        &self.rng
    }

    /// The outputs, with their names, for inputs by name, in any order. Errors: `Value` for names that are not those of the inputs; as
    /// [`forward`](OnnxModel::forward).
    pub fn run(&self, inputs: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>> {
        let names = || self.inputs().iter().map(|port| port.name()).collect::<Vec<_>>().join(", ");
        let unknown = inputs.iter().find(|(name, _)| !self.inputs().iter().any(|port| port.name() == *name));
        if let Some((name, _)) = unknown {
            return Err(Error::value("onnx", format!("there is no input {name:?}; the inputs are {}", names())));
        }
        let of = |port: &Port| match inputs.iter().filter(|(name, _)| *name == port.name()).collect::<Vec<_>>()[..] {
            [(_, tensor)] => Ok(tensor.clone()),
            [] => {
                Err(Error::value("onnx", format!("the input {:?} is missing; the inputs are {}", port.name(), names())))
            }
            _ => Err(Error::value("onnx", format!("the input {:?} is given twice", port.name()))),
        };
        let inputs: Vec<Tensor> = self.inputs().iter().map(of).collect::<Result<_>>()?;
        let names = self.outputs().iter().map(|port| port.name().to_string());
        Ok(names.zip(self.forward(&inputs)?).collect())
    }

    /// The outputs in order, for the inputs in order. Errors: `Value` for another number of inputs; `Dtype`, `Shape` and `Device` for inputs
    /// that the model does not take; those of the operators, with the node's name; `Unsupported` for outputs that are sequences.
    pub fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        if inputs.len() != self.inputs().len() {
            let message = format!("{} inputs were given, the model has {}", inputs.len(), self.inputs().len());
            return Err(Error::value("onnx", message));
        }
        let mut values = Vec::new();
        for ((port, element), x) in self.inputs().iter().zip(&self.plan.elements).zip(inputs) {
            port.check(x, self.device())?;
            values.push(Value::Tensor(x.clone(), *element));
        }
        called(self, &inputs.iter().collect::<Vec<_>>(), || self.outputs_for(values))
    }

    fn outputs_for(&self, inputs: Vec<Value>) -> Result<Vec<Tensor>> {
        let outputs = Run::new(self).graph(&self.plan.graph, inputs)?;
        let tensor = |(port, value): (&Port, &Value)| match value {
            Value::Sequence(_) | Value::Absent => {
                let message = format!("the output {:?} is a sequence or absent, expected a tensor", port.name());
                Err(Error::unsupported("onnx", message))
            }
            value => value.tensor(self.device()),
        };
        self.outputs().iter().zip(&outputs).map(tensor).collect()
    }

    /// The results of a node that depends on constants alone, once it has run.
    fn known(&self, node: &Node) -> Option<Vec<Value>> {
        if node.is_constant { self.known.lock().get(&node.number).cloned() } else { None }
    }

    fn keep(&self, node: &Node, results: &[Value]) {
        self.known.lock().insert(node.number, results.to_vec());
    }
}

fn evaluating() -> Mode {
    let mode = Mode::default();
    mode.eval();
    mode
}

/// A model of one input and one output is a layer.
impl Forward for OnnxModel {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut outputs = OnnxModel::forward(self, std::slice::from_ref(x))?;
        match outputs.len() {
            1 => Ok(outputs.remove(0)),
            n => Err(Error::value("onnx", format!("the model has {n} outputs, a layer has one"))),
        }
    }
}

/// Without the override of [`OnnxModel::load_state_dict_with`].
struct Plain<'a>(&'a OnnxModel);

impl Module for Plain<'_> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.0.visit(visitor);
    }
}

impl Module for OnnxModel {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.state.iter().for_each(|state| visitor.part(&state.name, &state.tensor));
        visitor.part("mode", &self.mode);
        self.parts.iter().for_each(|part| visitor.part(&part.name, part));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.known.get_mut().clear();
        self.state.iter_mut().for_each(|state| visitor.part(&mut state.tensor));
        self.constants.iter_mut().chain([&mut self.place]).for_each(|t| visitor.constant(t));
    }

    fn type_name(&self) -> &'static str {
        "OnnxModel"
    }

    /// Errors: also `Value` for other integers than those of the file, where nodes read them as shapes or places.
    fn load_state_dict_with(&self, state: &StateDict, options: &LoadOptions) -> Result<Unmatched> {
        for own in &self.state {
            if let (Some(fixed), Some(given)) = (&own.fixed, state.get(&own.name))
                && (given.dtype() != own.tensor.dtype() || given.cast(DType::I64)?.to_vec::<i64>()? != *fixed)
            {
                let message =
                    format!("{} has other integers than the graph, which reads them as shapes or places", own.name);
                return Err(Error::value("load_state_dict", message));
            }
        }
        Plain(self).load_state_dict_with(state, options)
    }
}

/// A clone has parameters and buffers of its own. The generator is shared.
impl Clone for OnnxModel {
    fn clone(&self) -> OnnxModel {
        VisitorMut::cloned(|| OnnxModel {
            plan: self.plan.clone(),
            state: self.state.clone(),
            constants: self.constants.clone(),
            parts: self.parts.clone(),
            place: self.place.clone(),
            mode: self.mode.clone(),
            rng: self.rng.clone(),
            known: Mutex::default(),
        })
    }
}

impl std::fmt::Debug for OnnxModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OnnxModel({}, {} nodes)", self.about(), self.plan.graph.nodes.len())
    }
}
