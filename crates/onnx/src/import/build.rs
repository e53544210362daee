//! From the messages of a file to a graph that can run.

use super::attribute::{Attribute, Attributes, assumed};
use super::element::Element;
use super::external::Folder;
use super::fuse::fuse;
use super::graph::{Graph, Node, Slot, Source, described};
use super::ops::{self, Use};
use super::order::in_order;
use super::part::NodePart;
use super::tensor::{Elements, invalid};
use super::value::{Numbers, Value};
use crate::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, attribute_type,
};
use isograd_core::{Device, Error, Result, Tensor};
use isograd_files::Budget;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

/// The domain of ONNX's own operators.
const OWN: &str = "ai.onnx";

/// The versions of ONNX's own operators that are read.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=28;

/// The doc string of constants that the export writes, which are no parameters.
pub const CONSTANT: &str = "constant";

/// The attributes whose integer is a type of elements.
const TYPES: [&str; 6] = ["to", "dtype", "output_dtype", "output_datatype", "softmax_precision", "stash_type"];

/// The doubled bytes of a node, which a budget pays for where functions are called.
const NODE: usize = 2 * size_of::<Node>();

/// The most functions that call each other.
const DEEPEST: usize = 64;

/// A tensor of the state of a model.
#[derive(Clone)]
pub struct State {
    pub name: String,
    /// A leaf of the tape if it is trained.
    pub tensor: Tensor,
    /// The integers that the graph reads on the host, which another state must have as well.
    pub fixed: Option<Vec<i64>>,
}

/// A model as it is built.
pub struct Builder<'a> {
    file: &'a str,
    folder: Folder,
    device: &'a Device,
    functions: HashMap<(String, String, String), &'a FunctionProto>,
    /// The functions within which nodes are.
    within: Vec<(String, String, String)>,
    pub sources: Vec<Option<Source>>,
    /// Whether a value depends on constants alone.
    are_constant: Vec<bool>,
    pub state: Vec<State>,
    names: HashSet<String>,
    pub constants: Vec<Tensor>,
    pub nodes: usize,
    /// The nodes as parts of the module, by their numbers.
    pub parts: Vec<NodePart>,
    named_parts: HashSet<String>,
    /// Whether floats are f64.
    is_wide: bool,
    absent: Vec<String>,
    budget: Budget,
}

/// The versions of operators, by domain.
type Opsets = Rc<HashMap<String, i64>>;

/// The names that nodes see: those of graphs within each other, the innermost last.
struct Scopes {
    names: Vec<HashMap<String, Slot>>,
    opsets: Opsets,
    /// In a function, the attributes of its call.
    attributes: HashMap<String, AttributeProto>,
}

impl Scopes {
    fn find(&self, name: &str) -> Option<Slot> {
        self.names.iter().rev().find_map(|names| names.get(name).copied())
    }
}

fn domain_of(domain: &str) -> &str {
    if domain.is_empty() { OWN } else { domain }
}

fn opsets(imported: &[OperatorSetIdProto]) -> Opsets {
    Rc::new(imported.iter().map(|opset| (domain_of(opset.domain()).to_string(), opset.version())).collect())
}

/// A tensor of a graph, with the name that the graph gives it.
enum Initializer<'a> {
    Dense(&'a TensorProto),
    Sparse(&'a crate::proto::SparseTensorProto),
}

impl Initializer<'_> {
    fn name(&self) -> &str {
        match self {
            Initializer::Dense(tensor) => tensor.name(),
            Initializer::Sparse(sparse) => sparse.values.as_ref().map_or("", |values| values.name()),
        }
    }
}

impl<'a> Builder<'a> {
    /// In a wide model, floats are f64.
    pub fn new(
        file: &'a str,
        folder: Folder,
        device: &'a Device,
        model: &'a ModelProto,
        bytes: usize,
        is_wide: bool,
    ) -> Builder<'a> {
        let key =
            |f: &FunctionProto| (domain_of(f.domain()).to_string(), f.name().to_string(), f.overload().to_string());
        Builder {
            file,
            folder,
            device,
            functions: model.functions.iter().map(|f| (key(f), f)).collect(),
            within: Vec::new(),
            sources: Vec::new(),
            are_constant: Vec::new(),
            state: Vec::new(),
            names: HashSet::new(),
            constants: Vec::new(),
            nodes: 0,
            parts: Vec::new(),
            named_parts: HashSet::new(),
            is_wide,
            absent: Vec::new(),
            budget: Budget::new(bytes),
        }
    }

    /// The graph of the model. Errors: `Format`; `Unsupported`, with all operators that have no counterpart.
    pub fn model(&mut self, model: &'a ModelProto) -> Result<Graph> {
        let graph = model.graph.as_ref().ok_or_else(|| self.wrong("it has no graph"))?;
        let mut scopes = Scopes { names: Vec::new(), opsets: opsets(&model.opset_import), attributes: HashMap::new() };
        let built = self.graph(graph, &mut scopes)?;
        if self.absent.is_empty() {
            return Ok(built);
        }
        let message = format!("the model has operators without a counterpart: {}", self.absent.join("; "));
        Err(Error::unsupported(self.file.to_string(), message))
    }

    fn wrong(&self, why: impl Into<String>) -> Error {
        Error::format(self.file.to_string(), why)
    }

    fn slot(&mut self, source: Option<Source>, is_constant: bool) -> Slot {
        self.sources.push(source);
        self.are_constant.push(is_constant);
        self.sources.len() - 1
    }

    /// Gives a name of the innermost scope a new value.
    fn define(&mut self, scopes: &mut Scopes, name: &str, source: Option<Source>, is_constant: bool) -> Result<Slot> {
        let slot = self.slot(source, is_constant);
        let names = scopes.names.last_mut().expect("a graph has a scope");
        match names.insert(name.to_string(), slot) {
            None => Ok(slot),
            Some(_) => Err(self.wrong(format!("two values have the name {name:?}"))),
        }
    }

    /// A graph within others.
    fn graph(&mut self, graph: &'a GraphProto, scopes: &mut Scopes) -> Result<Graph> {
        scopes.names.push(HashMap::new());
        let tensors = graph.initializer.iter().map(Initializer::Dense);
        let tensors: Vec<Initializer<'a>> =
            tensors.chain(graph.sparse_initializer.iter().map(Initializer::Sparse)).collect();
        let (uses, mut copies) = (uses(&graph.node), HashSet::new());
        for tensor in &tensors {
            let same = self.same(tensor, &graph.node)?;
            for name in [tensor.name()].into_iter().chain(same.iter().copied()) {
                let source = self.initializer(tensor, name, uses.get(name).copied().unwrap_or(Use::Any))?;
                let is_constant = !matches!(source, Source::State(..));
                self.define(scopes, name, Some(source), is_constant)?;
            }
            copies.extend(same);
        }
        // Before the fourth version of the format, inputs had the names of tensors as well.
        let given: HashSet<&str> = tensors.iter().map(Initializer::name).collect();
        let mut inputs = Vec::new();
        for input in graph.input.iter().filter(|input| !given.contains(input.name())) {
            inputs.push(self.define(scopes, input.name(), None, false)?);
        }
        let nodes = self.nodes(&graph.node, &copies, scopes)?;
        let outputs = graph.output.iter().map(|output| self.read(scopes, output.name(), "an output"));
        let mut built = Graph { inputs, outputs: outputs.collect::<Result<_>>()?, nodes };
        fuse(&mut built);
        built.note_last_reads();
        scopes.names.pop();
        Ok(built)
    }

    fn read(&self, scopes: &Scopes, name: &str, reader: &str) -> Result<Slot> {
        scopes.find(name).ok_or_else(|| self.wrong(format!("{reader} reads {name:?}, which nothing computes")))
    }

    /// The other names of a tensor whose elements are all the same number, such as the weight of a new norm. PyTorch's exporter writes equal
    /// tensors once, and the others as what Identity makes of it; but each is a parameter of its own.
    fn same(&self, tensor: &Initializer<'a>, nodes: &'a [NodeProto]) -> Result<Vec<&'a str>> {
        let Initializer::Dense(message) = tensor else { return Ok(Vec::new()) };
        let is_same = |node: &&NodeProto| {
            domain_of(node.domain()) == OWN && node.op_type() == "Identity" && node.input == [message.name()]
        };
        let names: Vec<&str> = nodes.iter().filter(is_same).flat_map(|node| &node.output).map(String::as_str).collect();
        if names.is_empty() {
            return Ok(names);
        }
        let elements = Elements::read(message, &self.folder);
        let elements = elements.map_err(|why| invalid(self.file, message.name(), why))?;
        let is_state = elements.element.dtype().is_float() && !elements.dims.is_empty();
        Ok(if is_state && elements.is_one_number() { names } else { Vec::new() })
    }

    /// Nodes of one scope, in an order in which they can run, except those that copy a tensor to these names.
    fn nodes(&mut self, nodes: &'a [NodeProto], copies: &HashSet<&str>, scopes: &mut Scopes) -> Result<Vec<Node>> {
        let order = in_order(nodes).map_err(|why| self.wrong(why))?;
        let is_copy = |name: &str| copies.contains(name);
        for name in nodes.iter().flat_map(|node| &node.output).filter(|name| !name.is_empty() && !is_copy(name)) {
            self.define(scopes, name, None, false)?;
        }
        let mut built = Vec::with_capacity(nodes.len());
        for i in order.into_iter().filter(|&i| !nodes[i].output.iter().any(|name| is_copy(name))) {
            self.node(&nodes[i], scopes, &mut built)?;
        }
        Ok(built)
    }

    /// Adds a node, or those of the function that it calls.
    fn node(&mut self, node: &'a NodeProto, scopes: &mut Scopes, built: &mut Vec<Node>) -> Result<()> {
        let domain = domain_of(node.domain());
        let key = (domain.to_string(), node.op_type().to_string(), node.overload().to_string());
        if let Some(function) = self.functions.get(&key).copied() {
            return self.call(function, key, node, scopes, built);
        }
        let opset = scopes.opsets.get(domain).copied();
        if let Some(opset) = opset.filter(|opset| domain == OWN && !OPSETS.contains(opset)) {
            let message =
                format!("the model has opset {opset}, of which {} to {} are read", OPSETS.start(), OPSETS.end());
            return Err(Error::unsupported(self.file.to_string(), message));
        }
        let Some(((op_type, op), opset)) =
            ops::find(domain, node.op_type()).zip(opset.or((domain != OWN).then_some(1)))
        else {
            let what = described(node.op_type(), node.name());
            let version = opset.map_or("none".to_string(), |opset| opset.to_string());
            self.absent.push(format!("{what} of the domain {domain}, opset {version}"));
            return Ok(());
        };
        let what = described(node.op_type(), node.name());
        let mut inputs = Vec::new();
        for name in &node.input {
            inputs.push(if name.is_empty() { None } else { Some(self.read(scopes, name, &what)?) });
        }
        let attributes = self.attributes(node, scopes)?;
        let has_graph = attributes.0.values().any(|attribute| matches!(attribute, Attribute::Graph(_)));
        let is_constant =
            !has_graph && op.is_function() && inputs.iter().flatten().all(|&slot| self.are_constant[slot]);
        let output = |name: &String| if name.is_empty() { None } else { scopes.find(name) };
        let outputs: Vec<Option<Slot>> = node.output.iter().map(output).collect();
        outputs.iter().flatten().for_each(|&slot| self.are_constant[slot] = is_constant);
        let (name, number, last_of) = (node.name().to_string(), self.nodes, Vec::new());
        let named = if name.is_empty() { node.output.first().map_or("", String::as_str) } else { &name };
        let origin = described(op_type, named).into();
        let part = self.free_part(named);
        self.parts.push(NodePart::new(part, op_type));
        self.nodes += 1;
        built.push(Node {
            number,
            name,
            op_type,
            origin,
            op,
            opset,
            inputs,
            outputs,
            attributes,
            last_of,
            is_constant,
        });
        Ok(())
    }

    /// Adds the nodes of a function in the place of its call.
    fn call(
        &mut self,
        function: &'a FunctionProto,
        key: (String, String, String),
        node: &'a NodeProto,
        scopes: &mut Scopes,
        built: &mut Vec<Node>,
    ) -> Result<()> {
        let what = described(node.op_type(), node.name());
        if self.within.contains(&key) || self.within.len() == DEEPEST {
            return Err(self.wrong(format!("the function of {what} calls itself, or too many others")));
        }
        if node.input.len() > function.input.len() || node.output.len() > function.output.len() {
            return Err(self.wrong(format!("{what} has more inputs or outputs than its function")));
        }
        self.budget.spend(function.node.len(), NODE).map_err(|why| self.wrong(why))?;
        let mut inner = Scopes {
            names: vec![HashMap::new()],
            opsets: opsets(&function.opset_import),
            attributes: function.attribute_proto.iter().map(|a| (a.name().to_string(), a.clone())).collect(),
        };
        for attribute in &node.attribute {
            if let Some(attribute) = resolved(attribute, scopes) {
                inner.attributes.insert(attribute.name().to_string(), attribute.clone());
            }
        }
        for (formal, name) in function.input.iter().zip(&node.input).filter(|(_, name)| !name.is_empty()) {
            let slot = self.read(scopes, name, &what)?;
            inner.names[0].insert(formal.clone(), slot);
        }
        self.within.push(key);
        let nodes = self.inlined(function, &mut inner)?;
        self.within.pop();
        built.extend(nodes);
        // Names of the caller stand for the results.
        for (formal, name) in function.output.iter().zip(&node.output).filter(|(_, name)| !name.is_empty()) {
            let slot = self.read(&inner, formal, &what)?;
            let names = scopes.names.last_mut().expect("a graph has a scope");
            names.insert(name.clone(), slot);
        }
        Ok(())
    }

    /// The nodes of a function. Inputs of the call that are absent are so for its nodes.
    fn inlined(&mut self, function: &'a FunctionProto, inner: &mut Scopes) -> Result<Vec<Node>> {
        for formal in &function.input {
            if !inner.names[0].contains_key(formal) {
                let slot = self.slot(Some(Source::Host(Value::Absent)), true);
                inner.names[0].insert(formal.clone(), slot);
            }
        }
        self.nodes(&function.node, &HashSet::new(), inner)
    }

    fn attributes(&mut self, node: &'a NodeProto, scopes: &mut Scopes) -> Result<Attributes> {
        let mut all = Attributes::default();
        for message in &node.attribute {
            let given = match resolved(message, scopes) {
                None => continue,
                Some(_) if !refers(message) => Cow::Borrowed(message),
                Some(other) => Cow::Owned(other.clone()),
            };
            let kind = given.r#type.unwrap_or_else(|| assumed(&given));
            let attribute = match kind {
                attribute_type::GRAPH if !refers(message) => {
                    let graph = message.g.as_ref().ok_or_else(|| self.wrong("an attribute has no graph"))?;
                    Attribute::Graph(Arc::new(self.graph(graph, scopes)?))
                }
                attribute_type::TENSOR => {
                    let tensor = given.t.as_ref().ok_or_else(|| self.wrong("an attribute has no tensor"))?;
                    self.constant(tensor)?
                }
                attribute_type::SPARSE_TENSOR => {
                    let tensor =
                        given.sparse_tensor.as_ref().ok_or_else(|| self.wrong("an attribute has no tensor"))?;
                    let elements = Elements::read_sparse(tensor, &self.folder, &mut self.budget);
                    self.kept(elements.map_err(|why| invalid(self.file, given.name(), why))?)?
                }
                _ => match Attribute::plain(&given) {
                    Some(Attribute::Int(number)) if self.is_wide && TYPES.contains(&message.name()) => {
                        Attribute::Int(Element::wide_number(number))
                    }
                    Some(attribute) => attribute,
                    None => {
                        let what = described(node.op_type(), node.name());
                        let message = format!("{what} has the attribute {:?} of the type {kind}", message.name());
                        return Err(Error::unsupported(self.file.to_string(), message));
                    }
                },
            };
            all.0.insert(message.name().to_string(), attribute);
        }
        Ok(all)
    }

    /// A tensor of an attribute.
    fn constant(&mut self, tensor: &TensorProto) -> Result<Attribute> {
        let elements = Elements::read(tensor, &self.folder).map_err(|why| invalid(self.file, tensor.name(), why))?;
        self.kept(elements)
    }

    /// The elements of a wide model: floats are f64.
    fn in_width(&self, elements: Elements) -> Elements {
        if self.is_wide { elements.widened() } else { elements }
    }

    fn kept(&mut self, elements: Elements) -> Result<Attribute> {
        let elements = self.in_width(elements);
        if let Some(host) = elements.host() {
            return Ok(Attribute::Numbers(host.into()));
        }
        self.constants.push(elements.tensor(self.device)?);
        Ok(Attribute::Constant(self.constants.len() - 1))
    }

    /// The source of a tensor of a graph with a name, by its dtype and by what nodes do with it.
    fn initializer(&mut self, tensor: &Initializer<'_>, name: &str, used: Use) -> Result<Source> {
        let (read, is_marked) = match tensor {
            Initializer::Dense(tensor) => {
                (Elements::read(tensor, &self.folder), tensor.doc_string.as_deref() == Some(CONSTANT))
            }
            Initializer::Sparse(sparse) => (Elements::read_sparse(sparse, &self.folder, &mut self.budget), false),
        };
        let elements = self.in_width(read.map_err(|why| invalid(self.file, tensor.name(), why))?);
        let (element, is_float) = (elements.element, elements.element.dtype().is_float());
        if is_marked || (is_float && used == Use::Number) {
            return self.fixed(elements);
        }
        let host = if is_float { None } else { elements.host() };
        let fixed = host.as_ref().and_then(|host| match &host.numbers {
            Numbers::Ints(numbers) => Some(numbers.clone()),
            Numbers::Floats(_) => None,
        });
        let value = elements.tensor(self.device)?;
        let is_trained = is_float && used == Use::Any && !elements.dims.is_empty() && elements.is_finite();
        let is_trained = is_trained && !element.is_float8();
        let value = if is_trained { value.require_grad()? } else { value };
        let name = self.free_name(name);
        self.state.push(State { name, tensor: value, fixed });
        Ok(match host {
            Some(host) => Source::Host(host.into()),
            None => Source::State(self.state.len() - 1, element),
        })
    }

    fn fixed(&mut self, elements: Elements) -> Result<Source> {
        let element = elements.element;
        Ok(match self.kept(elements)? {
            Attribute::Constant(at) => Source::Constant(at, element),
            Attribute::Numbers(value) => Source::Host(value),
            _ => unreachable!("a tensor is kept as a tensor"),
        })
    }

    /// A name that no other tensor of the state has.
    fn free_name(&mut self, name: &str) -> String {
        free(&mut self.names, name)
    }

    /// A name that no other node has.
    fn free_part(&mut self, name: &str) -> String {
        free(&mut self.named_parts, name)
    }
}

/// A name that is not taken, which is taken then.
fn free(taken: &mut HashSet<String>, name: &str) -> String {
    let mut free = name.to_string();
    let mut k = 1;
    while !taken.insert(free.clone()) {
        free = format!("{name}_{k}");
        k += 1;
    }
    free
}

/// The attribute that a node has: that of a function's call where it refers to one.
fn resolved<'s>(message: &'s AttributeProto, scopes: &'s Scopes) -> Option<&'s AttributeProto> {
    if refers(message) { scopes.attributes.get(message.ref_attr_name()) } else { Some(message) }
}

/// True for an attribute that stands for one of a function's call.
fn refers(message: &AttributeProto) -> bool {
    !message.ref_attr_name().is_empty()
}

/// The use of each tensor by the nodes that read it: the first one besides arithmetic.
fn uses(nodes: &[NodeProto]) -> HashMap<&str, Use> {
    let mut found = HashMap::new();
    for node in nodes {
        for (i, name) in node.input.iter().enumerate() {
            let used = ops::use_of(node.op_type(), i);
            if used != Use::Any {
                found.entry(name.as_str()).or_insert(used);
            }
        }
    }
    found
}
