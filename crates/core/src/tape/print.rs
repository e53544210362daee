//! The tape as text and as a Graphviz graph.

use super::{Action, Edge, Node};
use crate::Tensor;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// All nodes that `y` was computed from, by sequence number.
fn nodes(y: &Tensor) -> BTreeMap<u64, Arc<Node>> {
    let mut found = BTreeMap::new();
    let mut open: Vec<Arc<Node>> = y.0.edge.iter().map(|edge| edge.node.clone()).collect();
    while let Some(node) = open.pop() {
        if found.insert(node.sequence, node.clone()).is_none() {
            open.extend(node.inputs.iter().flatten().map(|edge| edge.node.clone()));
        }
    }
    found
}

fn state(node: &Node) -> &'static str {
    match node.state.lock().action {
        Action::Leaf(None) => "leaf",
        Action::Leaf(Some(_)) => "leaf with gradient",
        Action::Rule(_) => "saved",
        Action::Replay(_) => "recomputed",
        Action::Spent => "spent",
    }
}

/// `#4`, or `#4.1` for output 1 of a node that has several.
fn name(edge: &Edge) -> String {
    let Edge { node, output } = edge;
    if node.outputs.len() == 1 { format!("#{}", node.sequence) } else { format!("#{}.{output}", node.sequence) }
}

/// Dtype and shape of each output.
fn outputs(node: &Node, separator: &str) -> String {
    node.outputs.iter().map(|y| format!("{} {}", y.dtype, y.shape)).collect::<Vec<_>>().join(separator)
}

/// One line per node, oldest first: number, op, inputs (`-` for a constant), dtype and shape of each output, state. An input from a
/// node with several outputs also has the number of the output: `#4.1`.
pub fn text(y: &Tensor) -> String {
    let mut out = String::new();
    for (number, node) in nodes(y) {
        let input = |e: &Option<Edge>| e.as_ref().map_or("-".into(), name);
        let inputs: Vec<String> = node.inputs.iter().map(input).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "#{number} {}({}) {} {}", node.op, inputs.join(", "), outputs(&node, ", "), state(&node));
    }
    out
}

/// The tape of `y` in Graphviz's DOT language. Data flows along the arrows. The arrows from a node with several outputs are
/// labelled with the output.
pub fn graphviz(y: &Tensor) -> String {
    let mut out = String::from("digraph tape {\n    rankdir=TB;\n    node [shape=box];\n");
    for (number, node) in nodes(y) {
        let label = format!("{}\\n{}", node.op, outputs(&node, "\\n"));
        let style = if node.inputs.is_empty() { ", style=filled, fillcolor=lightblue" } else { "" };
        let _ = writeln!(out, "    n{number} [label=\"{label}\"{style}];");
        for Edge { node: input, output } in node.inputs.iter().flatten() {
            let label = if input.outputs.len() == 1 { String::new() } else { format!(" [label=\"{output}\"]") };
            let _ = writeln!(out, "    n{} -> n{number}{label};", input.sequence);
        }
    }
    out + "}\n"
}
