//! A graph that can run: values have numbers in place of names, and nodes an order.

use super::attribute::{Attribute, Attributes};
use super::element::Element;
use super::ops::Op;
use super::value::Value;
use std::collections::HashSet;
use std::sync::Arc;

/// The place of a value in a run. Each name of each scope has one.
pub type Slot = usize;

/// A graph, or the body of a control operator.
#[derive(Debug, Default)]
pub struct Graph {
    /// The places of the inputs that a body gets.
    pub inputs: Vec<Slot>,
    pub outputs: Vec<Slot>,
    /// Each after those that it reads.
    pub nodes: Vec<Node>,
}

/// A call of an operator.
#[derive(Debug)]
pub struct Node {
    /// Its number in the model, at which its results are kept if they are constants.
    pub number: usize,
    pub name: String,
    pub op_type: &'static str,
    /// The operator, and the name of the node or else of its first result: the origin of ops in profiles and tape diffs.
    pub origin: Arc<str>,
    pub op: Op,
    /// The version of the operators of its domain.
    pub opset: i64,
    pub inputs: Vec<Option<Slot>>,
    pub outputs: Vec<Option<Slot>>,
    pub attributes: Attributes,
    /// The values that no later node reads.
    pub last_of: Vec<Slot>,
    /// True if it depends on constants alone.
    pub is_constant: bool,
}

/// The source of a value that no node computes.
#[derive(Clone, Debug)]
pub enum Source {
    /// A tensor of the state, by its position.
    State(usize, Element),
    /// A constant tensor on the device, by its position.
    Constant(usize, Element),
    /// Numbers on the host.
    Host(Value),
}

impl Node {
    /// The node for errors: its operator, and its name if it has one.
    pub fn described(&self) -> String {
        described(self.op_type, &self.name)
    }

    /// The values that it reads, also within its bodies.
    fn reads(&self, found: &mut Vec<Slot>) {
        found.extend(self.inputs.iter().flatten());
        for attribute in self.attributes.0.values() {
            if let Attribute::Graph(graph) = attribute {
                graph.reads(found);
            }
        }
    }
}

/// A node by operator and name.
pub fn described(op: &str, name: &str) -> String {
    if name.is_empty() { op.to_string() } else { format!("{op} {name:?}") }
}

impl Graph {
    /// The values that nodes and outputs read.
    fn reads(&self, found: &mut Vec<Slot>) {
        found.extend(&self.outputs);
        self.nodes.iter().for_each(|node| node.reads(found));
    }

    /// The values that nodes, bodies and outputs read, each as often as it is read.
    pub fn all_reads(&self) -> Vec<Slot> {
        let mut found = Vec::new();
        self.reads(&mut found);
        found
    }

    /// Notes for each node the values of this graph that no later node reads.
    pub fn note_last_reads(&mut self) {
        let mut own: HashSet<Slot> = self.inputs.iter().copied().collect();
        own.extend(self.nodes.iter().flat_map(|node| node.outputs.iter().flatten().copied()));
        let mut read_later: HashSet<Slot> = self.outputs.iter().copied().collect();
        for node in self.nodes.iter_mut().rev() {
            let mut found: Vec<Slot> = node.outputs.iter().flatten().copied().collect();
            node.reads(&mut found);
            node.last_of = found.into_iter().filter(|slot| own.contains(slot) && read_later.insert(*slot)).collect();
        }
    }
}
