//! Export: a function is called on example inputs, and the ops that it takes become the nodes of a graph.

mod algebra;
mod graph;
mod ops;
mod trace;
mod translation;

use self::graph::{Graph, Pair, Port, SIZES, Value};
use self::trace::{Exporter, Scope, State};
use crate::proto::{self, ModelProto, OperatorSetIdProto};
use isograd_core::tape::{Step, trace as traced};
use isograd_core::{Error, Result, Tensor, no_grad, replace_file};
use isograd_nn::Module;
use prost::Message;
use std::path::Path;

/// The version of ONNX's operators.
pub const OPSET: i64 = 21;

/// The version of the format of files, of ONNX 1.16, the first with this opset.
const IR_VERSION: i64 = 10;

/// The bytes that a message of Protocol Buffers may have.
const LARGEST: usize = i32::MAX as usize;

/// An input of a model.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    name: &'a str,
    example: &'a Tensor,
    batch: Option<usize>,
}

impl<'a> Input<'a> {
    /// An input of the dtype and the shape of an example. The size of its dimension 0 is that of the batch.
    pub fn new(name: &'a str, example: &'a Tensor) -> Input<'a> {
        Input { name, example, batch: Some(0) }
    }

    /// Another dimension that has the size of the batch, such as 1 for sequences `[T, B, ..]`.
    pub fn batch_at(self, dim: usize) -> Input<'a> {
        Input { batch: Some(dim), ..self }
    }

    /// An input whose shape does not depend on the batch.
    pub fn fixed(self) -> Input<'a> {
        Input { batch: None, ..self }
    }

    /// The example with another batch size: its elements, repeated.
    fn with_batch(&self, size: usize) -> Result<Tensor> {
        let Some(dim) = self.batch else { return Ok(self.example.clone()) };
        let wrong = |why: &str| {
            let message = format!("the input {:?} is {}, {why} dimension {dim}", self.name, self.example.shape());
            Error::shape("onnx", format!("{message}, that of the batch"))
        };
        let extent = *self.example.dims().get(dim).ok_or_else(|| wrong("it has no"))?;
        if extent == 0 {
            return Err(wrong("it has no elements in"));
        }
        let index = (0..size).map(|i| (i % extent) as i64).collect();
        let index = Tensor::from_vec(index, size, self.example.device())?;
        self.example.detach().index_select(dim as isize, &index)
    }
}

/// The size of a batch in a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Batch {
    /// Any, with the name N.
    #[default]
    Any,
    /// That of the examples.
    Fixed,
}

/// The export of a function of a module.
pub struct Export<'a> {
    state: Vec<(String, Tensor)>,
    inputs: Vec<Input<'a>>,
    outputs: Vec<&'a str>,
    batch: Batch,
}

impl<'a> Export<'a> {
    /// For a function of this module, which must be in evaluation ([`Module::eval`]).
    pub fn new(module: &(impl Module + ?Sized)) -> Export<'a> {
        let state = module.state_dict().into_iter().collect();
        Export { state, inputs: Vec::new(), outputs: Vec::new(), batch: Batch::Any }
    }

    /// Adds an input.
    pub fn input(mut self, input: Input<'a>) -> Export<'a> {
        self.inputs.push(input);
        self
    }

    /// Names the outputs. By default they are `output`, or `output0`, `output1` ..
    pub fn outputs(mut self, names: &[&'a str]) -> Export<'a> {
        self.outputs = names.to_vec();
        self
    }

    /// Says which batch sizes the model takes. For [`Batch::Any`] the function is called twice, for batches of two and three samples, made
    /// of those of the examples.
    pub fn batch(self, batch: Batch) -> Export<'a> {
        Export { batch, ..self }
    }

    /// The model of `f`, which is called outside of the tape. Errors: those of `f`; `Value` without inputs, for another number of names
    /// than outputs, and where `f` changes the module; `Shape` for an example without the dimension of the batch; `Unsupported`, listing
    /// all ops that ONNX does not have, and what depends on the batch size.
    pub fn run(self, f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>) -> Result<Model> {
        let Some(first) = self.inputs.first() else { return Err(Error::value("onnx", "there are no inputs")) };
        let device = first.example.device().clone();
        let is_any = self.batch == Batch::Any && self.inputs.iter().any(|input| input.batch.is_some());
        let one = Trace::new(&self.inputs, is_any.then_some(SIZES[0]), &f)?;
        let other = if is_any { Some(Trace::new(&self.inputs, Some(SIZES[1]), &f)?) } else { None };
        let two = other.as_ref().unwrap_or(&one);
        if one.outputs.len() != two.outputs.len() {
            return Err(Error::unsupported("onnx", "the number of outputs depends on the batch size"));
        }
        let mut graph = Graph::new(&device);
        let mut inputs = Vec::new();
        for (i, input) in self.inputs.iter().enumerate() {
            let value = graph.input(input.batch.filter(|_| is_any));
            inputs.push(port(input.name.to_string(), Pair(&one.inputs[i], &two.inputs[i]), value));
        }
        let state = State::new(self.state);
        let keys = one.inputs.iter().map(Tensor::key).zip(inputs.iter().map(|port| port.value));
        let mut scope = Scope::new(keys, &state);
        let mut exporter = Exporter { graph, state, changed: None };
        exporter.run(&mut scope, [&one.steps, &two.steps])?;
        if let Some((name, op)) = exporter.changed {
            let message = format!("{op} changes {name} of the module; call its `eval` before the export");
            return Err(Error::value("onnx", message));
        }
        let names = names(&self.outputs, one.outputs.len())?;
        let mut outputs = Vec::new();
        for (name, (a, b)) in names.into_iter().zip(one.outputs.iter().zip(&two.outputs)) {
            let pair = Pair(a, b);
            let value = exporter.lookup(&mut scope, pair)?;
            outputs.push(port(name, pair, value));
        }
        let graph = exporter.graph.finish("isograd", &inputs, outputs)?;
        Ok(Model(ModelProto {
            ir_version: Some(IR_VERSION),
            producer_name: Some("isograd".into()),
            producer_version: Some(env!("CARGO_PKG_VERSION").into()),
            graph: Some(graph),
            opset_import: vec![OperatorSetIdProto { domain: Some(String::new()), version: Some(OPSET) }],
            ..Default::default()
        }))
    }
}

fn port(name: String, pair: Pair<'_>, value: Value) -> Port {
    Port { name, dtype: pair.0.dtype(), dims: pair.dims(), value }
}

fn names(given: &[&str], count: usize) -> Result<Vec<String>> {
    match (given.len(), count) {
        (0, 1) => Ok(vec!["output".into()]),
        (0, _) => Ok((0..count).map(|i| format!("output{i}")).collect()),
        (names, _) if names == count => Ok(given.iter().map(|name| name.to_string()).collect()),
        (names, _) => Err(Error::value("onnx", format!("there are {count} outputs and {names} names for them"))),
    }
}

/// A call of a function: what it read and returned, and its steps.
struct Trace {
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    steps: Vec<Step>,
}

impl Trace {
    /// For a batch of this size, or for the examples as they are.
    fn new(inputs: &[Input<'_>], size: Option<usize>, f: &impl Fn(&[Tensor]) -> Result<Vec<Tensor>>) -> Result<Trace> {
        // Copies, so that no two inputs are one tensor.
        let of = |input: &Input<'_>| {
            size.map_or_else(|| Ok(input.example.clone()), |n| input.with_batch(n))?.detach().copy()
        };
        let inputs: Vec<Tensor> = inputs.iter().map(of).collect::<Result<_>>()?;
        let (outputs, steps) = traced(|| no_grad(|| f(&inputs)));
        Ok(Trace { outputs: outputs?.iter().map(Tensor::detach).collect(), inputs, steps })
    }
}

/// A model in the format of ONNX.
#[derive(Clone, Debug, PartialEq)]
pub struct Model(ModelProto);

impl Model {
    /// The bytes of its file. Errors: `Unsupported` for more than 2 GiB, which Protocol Buffers cannot hold.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let length = self.0.encoded_len();
        if length > LARGEST {
            let message = format!("the model has {length} bytes, and a file of ONNX at most {LARGEST}");
            return Err(Error::unsupported("onnx", message));
        }
        Ok(self.0.encode_to_vec())
    }

    /// Writes the file, as a whole or not at all. Errors: as [`to_bytes`](Model::to_bytes); `Io`.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        replace_file(path, &[&self.to_bytes()?])
    }

    /// The operators of its nodes, in order.
    pub fn operators(&self) -> Vec<&str> {
        let nodes = self.0.graph.iter().flat_map(|graph| &graph.node);
        nodes.map(|node| node.op_type()).collect()
    }

    /// The names of its parameters and constants.
    pub fn initializers(&self) -> Vec<&str> {
        let tensors = self.0.graph.iter().flat_map(|graph| &graph.initializer);
        tensors.map(|tensor| tensor.name()).collect()
    }

    /// The names and shapes of its inputs, such as `image [N, 3, 32, 32]`.
    pub fn inputs(&self) -> Vec<String> {
        self.0.graph.iter().flat_map(|graph| &graph.input).map(proto::ValueInfoProto::describe).collect()
    }

    /// The names and shapes of its outputs.
    pub fn outputs(&self) -> Vec<String> {
        self.0.graph.iter().flat_map(|graph| &graph.output).map(proto::ValueInfoProto::describe).collect()
    }
}

impl proto::ValueInfoProto {
    fn describe(&self) -> String {
        let shape = self.r#type.iter().flat_map(|t| &t.tensor_type).flat_map(|t| &t.shape).flat_map(|shape| &shape.dim);
        let extent = |dim: &proto::DimensionProto| match &dim.dim_param {
            Some(name) => name.clone(),
            None => dim.dim_value().to_string(),
        };
        format!("{} [{}]", self.name(), shape.map(extent).collect::<Vec<_>>().join(", "))
    }
}
