//! A graph under construction: values, the nodes that compute them, and the conversion to messages.

use crate::import::CONSTANT;
use crate::proto::{
    AttributeProto, DimensionProto, GraphProto, NodeProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto,
    ValueInfoProto, attribute_type,
};
use isograd_core::{DType, Device, Error, Result, Scalar, Tensor};
use std::collections::{HashMap, HashSet};

/// The name of the batch size in a model.
pub const BATCH: &str = "N";

/// An extent: `scale N + shift` for a batch of size N.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    pub scale: i64,
    pub shift: i64,
}

/// The batch sizes of the two traces from which extents are derived.
pub const SIZES: [usize; 2] = [2, 3];

impl Dim {
    /// The extent that is `a` and `b` for the two batch sizes.
    pub fn new([a, b]: [usize; 2]) -> Dim {
        let scale = (b as i64 - a as i64) / (SIZES[1] as i64 - SIZES[0] as i64);
        Dim { scale, shift: a as i64 - scale * SIZES[0] as i64 }
    }

    pub fn fixed(extent: usize) -> Dim {
        Dim { scale: 0, shift: extent as i64 }
    }

    /// The extent, unless it depends on the batch size.
    pub fn known(self) -> Option<i64> {
        (self.scale == 0).then_some(self.shift)
    }

    fn message(self) -> DimensionProto {
        match (self.scale, self.shift) {
            (0, extent) => DimensionProto { dim_value: Some(extent), dim_param: None },
            (1, 0) => DimensionProto { dim_value: None, dim_param: Some(BATCH.into()) },
            (1, shift) => DimensionProto { dim_value: None, dim_param: Some(format!("{BATCH} + {shift}")) },
            (scale, 0) => DimensionProto { dim_value: None, dim_param: Some(format!("{scale} {BATCH}")) },
            (scale, shift) => DimensionProto { dim_value: None, dim_param: Some(format!("{scale} {BATCH} + {shift}")) },
        }
    }
}

/// A value of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value(usize);

enum Source {
    Input,
    /// A tensor of the module, by its name.
    State(String, Tensor),
    Constant(Tensor),
    /// An output of this node.
    Node(usize),
    /// No value, with the reason.
    Failed(String, Vec<Value>),
}

struct Node {
    op: &'static str,
    inputs: Vec<Option<Value>>,
    attributes: Vec<AttributeProto>,
    outputs: Vec<Value>,
}

/// An attribute of a node.
pub fn int(name: &str, v: i64) -> AttributeProto {
    AttributeProto { i: Some(v), ..attribute(name, attribute_type::INT) }
}

/// An attribute of several numbers.
pub fn ints(name: &str, v: impl IntoIterator<Item = i64>) -> AttributeProto {
    AttributeProto { ints: v.into_iter().collect(), ..attribute(name, attribute_type::INTS) }
}

/// An attribute that is a real number.
pub fn float(name: &str, v: f64) -> AttributeProto {
    AttributeProto { f: Some(v as f32), ..attribute(name, attribute_type::FLOAT) }
}

/// An attribute that is text.
pub fn text(name: &str, v: &str) -> AttributeProto {
    AttributeProto { s: Some(v.as_bytes().to_vec()), ..attribute(name, attribute_type::STRING) }
}

/// An attribute of several texts.
pub fn texts(name: &str, v: &[&str]) -> AttributeProto {
    AttributeProto {
        strings: v.iter().map(|v| v.as_bytes().to_vec()).collect(),
        ..attribute(name, attribute_type::STRINGS)
    }
}

fn attribute(name: &str, r#type: i32) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(r#type), ..Default::default() }
}

/// The number of a dtype in `TensorProto.DataType`.
pub fn data_type(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::BF16 => 16,
    }
}

/// A tensor in the two traces, for two batch sizes; or twice the same one.
#[derive(Clone, Copy)]
pub struct Pair<'a>(pub &'a Tensor, pub &'a Tensor);

impl Pair<'_> {
    pub fn dims(&self) -> Vec<Dim> {
        self.0.dims().iter().zip(self.1.dims()).map(|(&a, &b)| Dim::new([a, b])).collect()
    }
}

/// A graph under construction. Nodes are in the order of their construction, each after those that it reads.
pub struct Graph {
    values: Vec<Source>,
    /// Whether a value depends on no failed one.
    are_sound: Vec<bool>,
    nodes: Vec<Node>,
    scalars: HashMap<(DType, Vec<usize>, Vec<u8>), Value>,
    /// The input and its dimension that has the batch size.
    batch: Option<(Value, i64)>,
    /// The batch size at run time, `[1]`, once it was asked for.
    size: Option<Value>,
    device: Device,
}

impl Graph {
    pub fn new(device: &Device) -> Graph {
        Graph {
            values: Vec::new(),
            are_sound: Vec::new(),
            nodes: Vec::new(),
            scalars: HashMap::new(),
            batch: None,
            size: None,
            device: device.clone(),
        }
    }

    fn push(&mut self, source: Source, is_sound: bool) -> Value {
        self.values.push(source);
        self.are_sound.push(is_sound);
        Value(self.values.len() - 1)
    }

    /// An input, with its dimension that has the batch size.
    pub fn input(&mut self, batch: Option<usize>) -> Value {
        let value = self.push(Source::Input, true);
        self.batch = self.batch.or(batch.map(|axis| (value, axis as i64)));
        value
    }

    pub fn state(&mut self, name: &str, tensor: &Tensor) -> Value {
        self.push(Source::State(name.into(), tensor.clone()), true)
    }

    pub fn constant(&mut self, tensor: &Tensor) -> Value {
        self.push(Source::Constant(tensor.clone()), true)
    }

    /// A value that cannot be computed. It makes the export fail if the outputs depend on it.
    pub fn failed(&mut self, message: String, inputs: &[Value]) -> Value {
        self.push(Source::Failed(message, inputs.to_vec()), false)
    }

    /// True if the value depends on no failed one.
    pub fn is_sound(&self, value: Value) -> bool {
        self.are_sound[value.0]
    }

    /// The output of a node with one.
    pub fn node(&mut self, op: &'static str, inputs: &[Value], attributes: &[AttributeProto]) -> Value {
        let inputs: Vec<Option<Value>> = inputs.iter().map(|&v| Some(v)).collect();
        self.node_of(op, &inputs, attributes, 1)[0]
    }

    /// The outputs of a node. Optional inputs may be absent.
    pub fn node_of(
        &mut self,
        op: &'static str,
        inputs: &[Option<Value>],
        attributes: &[AttributeProto],
        outputs: usize,
    ) -> Vec<Value> {
        let is_sound = inputs.iter().flatten().all(|&v| self.is_sound(v));
        let node = self.nodes.len();
        let outputs: Vec<Value> = (0..outputs).map(|_| self.push(Source::Node(node), is_sound)).collect();
        let (inputs, attributes) = (inputs.to_vec(), attributes.to_vec());
        self.nodes.push(Node { op, inputs, attributes, outputs: outputs.clone() });
        outputs
    }

    /// A small constant; equal ones are one.
    fn small(&mut self, tensor: Tensor) -> Result<Value> {
        let key = (tensor.dtype(), tensor.dims().to_vec(), tensor.to_bytes()?);
        if let Some(&known) = self.scalars.get(&key) {
            return Ok(known);
        }
        let value = self.constant(&tensor);
        self.scalars.insert(key, value);
        Ok(value)
    }

    /// A constant of rank 0.
    pub fn scalar(&mut self, v: impl Into<Scalar>, dtype: DType) -> Result<Value> {
        let tensor = Tensor::full((), v, dtype, &self.device)?;
        self.small(tensor)
    }

    /// A constant of one number in all places.
    pub fn full(&mut self, shape: &[usize], v: f64, dtype: DType) -> Result<Value> {
        let tensor = Tensor::full(shape, v, dtype, &self.device)?;
        self.small(tensor)
    }

    /// A constant vector of i64.
    pub fn ints(&mut self, v: &[i64]) -> Result<Value> {
        let tensor = Tensor::from_slice(v, v.len(), &self.device)?;
        self.small(tensor)
    }

    /// The device of constants.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Extents as a vector of i64.
    pub fn extents(&mut self, dims: &[Dim]) -> Result<Value> {
        let known: Option<Vec<i64>> = dims.iter().map(|dim| dim.known()).collect();
        if let Some(known) = known {
            return self.ints(&known);
        }
        let parts: Vec<Value> = dims.iter().map(|&dim| self.extent(dim)).collect::<Result<_>>()?;
        Ok(if parts.len() == 1 { parts[0] } else { self.node("Concat", &parts, &[int("axis", 0)]) })
    }

    /// An extent, `[1]`.
    fn extent(&mut self, dim: Dim) -> Result<Value> {
        if dim.scale == 0 {
            return self.ints(&[dim.shift]);
        }
        let mut value = self.batch_size()?;
        if dim.scale != 1 {
            let scale = self.ints(&[dim.scale])?;
            value = self.node("Mul", &[value, scale], &[]);
        }
        if dim.shift != 0 {
            let shift = self.ints(&[dim.shift])?;
            value = self.node("Add", &[value, shift], &[]);
        }
        Ok(value)
    }

    fn batch_size(&mut self) -> Result<Value> {
        if let Some(size) = self.size {
            return Ok(size);
        }
        let (input, axis) = self.batch.ok_or_else(|| Error::value("onnx", "no input has the batch size"))?;
        let size = self.node("Shape", &[input], &[int("start", axis), int("end", axis + 1)]);
        self.size = Some(size);
        Ok(size)
    }

    /// x with these extents, which has `from`.
    pub fn reshape(&mut self, x: Value, from: &[Dim], to: &[Dim]) -> Result<Value> {
        if from == to {
            return Ok(x);
        }
        // 0 stands for the extent of x at the same place, -1 for what remains.
        let mut wanted: Vec<Option<i64>> = to
            .iter()
            .enumerate()
            .map(|(d, dim)| dim.known().filter(|&v| v != 0).or((from.get(d) == Some(dim)).then_some(0)))
            .collect();
        if wanted.iter().filter(|v| v.is_none()).count() == 1 {
            wanted.iter_mut().filter(|v| v.is_none()).for_each(|v| *v = Some(-1));
        }
        let shape = match wanted.into_iter().collect::<Option<Vec<i64>>>() {
            Some(known) => self.ints(&known)?,
            None => self.extents(to)?,
        };
        Ok(self.node("Reshape", &[x, shape], &[]))
    }
}

/// An input or output of a finished graph.
pub struct Port {
    pub name: String,
    pub dtype: DType,
    pub dims: Vec<Dim>,
    pub value: Value,
}

impl Port {
    fn message(&self) -> ValueInfoProto {
        let shape = TensorShapeProto { dim: self.dims.iter().map(|dim| dim.message()).collect() };
        let tensor = TensorTypeProto { elem_type: Some(data_type(self.dtype)), shape: Some(shape) };
        ValueInfoProto {
            name: Some(self.name.clone()),
            r#type: Some(TypeProto { tensor_type: Some(tensor), ..Default::default() }),
        }
    }
}

/// The nodes and initializers on which the outputs of a graph depend.
#[derive(Default)]
struct Needed {
    values: HashSet<Value>,
    nodes: HashSet<usize>,
    /// Why values cannot be computed, in order.
    failures: Vec<String>,
}

impl Graph {
    fn needed(&self, outputs: impl Iterator<Item = Value>) -> Needed {
        let (mut found, mut open) = (Needed::default(), outputs.collect::<Vec<_>>());
        let mut failures: Vec<(usize, &String)> = Vec::new();
        while let Some(value) = open.pop() {
            if !found.values.insert(value) {
                continue;
            }
            match &self.values[value.0] {
                &Source::Node(node) => {
                    found.nodes.insert(node);
                    open.extend(self.nodes[node].inputs.iter().flatten());
                }
                Source::Failed(message, inputs) => {
                    failures.push((value.0, message));
                    open.extend(inputs);
                }
                Source::Input | Source::State(..) | Source::Constant(_) => {}
            }
        }
        failures.sort();
        for (_, message) in failures {
            if !found.failures.contains(message) {
                found.failures.push(message.clone());
            }
        }
        found
    }

    /// The message of the graph. Errors: `Unsupported`, listing why outputs cannot be computed.
    pub fn finish(mut self, name: &str, inputs: &[Port], mut outputs: Vec<Port>) -> Result<GraphProto> {
        // An output is the result of a node of its own.
        let mut seen = HashSet::new();
        for port in &mut outputs {
            let is_result = matches!(self.values[port.value.0], Source::Node(..));
            if !seen.insert(port.value) || !is_result {
                port.value = self.node("Identity", &[port.value], &[]);
            }
        }
        let needed = self.needed(outputs.iter().map(|port| port.value));
        if !needed.failures.is_empty() {
            let message = format!("the model cannot be exported:\n  {}", needed.failures.join("\n  "));
            return Err(Error::unsupported("onnx", message));
        }
        let names = self.names(&needed, inputs, &outputs);
        let mut graph = GraphProto { name: Some(name.into()), ..Default::default() };
        for (i, node) in self.nodes.iter().enumerate().filter(|(i, _)| needed.nodes.contains(i)) {
            let mut input: Vec<String> =
                node.inputs.iter().map(|v| v.map(|v| names[&v].clone()).unwrap_or_default()).collect();
            while input.last().is_some_and(String::is_empty) {
                input.pop();
            }
            let output = node.outputs.iter().map(|v| names[v].clone()).collect();
            graph.node.push(NodeProto {
                input,
                output,
                name: Some(format!("{}_{i}", node.op)),
                op_type: Some(node.op.into()),
                attribute: node.attributes.clone(),
                ..Default::default()
            });
        }
        for (i, source) in self.values.iter().enumerate().filter(|(i, _)| needed.values.contains(&Value(*i))) {
            if let Source::State(_, tensor) | Source::Constant(tensor) = source {
                let mut message = initializer(&names[&Value(i)], tensor)?;
                // A reader of the model trains the tensors of the module alone.
                message.doc_string = matches!(source, Source::Constant(_)).then(|| CONSTANT.into());
                graph.initializer.push(message);
            }
        }
        graph.input = inputs.iter().map(Port::message).collect();
        graph.output = outputs.iter().map(Port::message).collect();
        Ok(graph)
    }

    fn names(&self, needed: &Needed, inputs: &[Port], outputs: &[Port]) -> HashMap<Value, String> {
        let ports = inputs.iter().chain(outputs);
        let mut names: HashMap<Value, String> = ports.map(|port| (port.value, port.name.clone())).collect();
        let mut taken: HashSet<String> = names.values().cloned().collect();
        let mut free = |name: String| {
            let mut other = name.clone();
            for k in 1.. {
                if taken.insert(other.clone()) {
                    break;
                }
                other = format!("{name}_{k}");
            }
            other
        };
        // Some operators have all their outputs, also those that nobody reads.
        let has_name = |value: Value| match &self.values[value.0] {
            Source::Node(node) => needed.nodes.contains(node),
            _ => needed.values.contains(&value),
        };
        let sources = self.values.iter().enumerate().filter(|(i, _)| has_name(Value(*i)));
        let sources: Vec<(Value, &Source)> = sources.map(|(i, source)| (Value(i), source)).collect();
        // Tensors of the module keep their names.
        for (value, source) in &sources {
            if let Source::State(name, _) = source {
                names.insert(*value, free(name.clone()));
            }
        }
        for (value, source) in sources {
            let name = match source {
                &Source::Node(node) => self.nodes[node].op.to_lowercase(),
                _ => "constant".into(),
            };
            names.entry(value).or_insert_with(|| free(format!("{name}_{}", value.0)));
        }
        names
    }
}

fn initializer(name: &str, tensor: &Tensor) -> Result<TensorProto> {
    let mut bytes = tensor.to_bytes()?;
    if cfg!(target_endian = "big") {
        bytes.chunks_mut(tensor.dtype().size()).for_each(<[u8]>::reverse);
    }
    Ok(TensorProto {
        dims: tensor.dims().iter().map(|&d| d as i64).collect(),
        data_type: Some(data_type(tensor.dtype())),
        name: Some(name.into()),
        raw_data: Some(bytes.into()),
        ..Default::default()
    })
}
