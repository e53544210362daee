//! The tape as text and as a Graphviz graph.

use super::{Action, Edge};
use crate::Tensor;
use std::collections::BTreeMap;
use std::fmt::Write;

/// All nodes that `y` was computed from, by sequence number.
fn nodes(y: &Tensor) -> BTreeMap<u64, Edge> {
    let mut found = BTreeMap::new();
    let mut open: Vec<Edge> = y.0.edge.iter().cloned().collect();
    while let Some(node) = open.pop() {
        if found.insert(node.sequence, node.clone()).is_none() {
            open.extend(node.inputs.iter().flatten().cloned());
        }
    }
    found
}

fn state(node: &Edge) -> &'static str {
    match node.state.lock().action {
        Action::Leaf(None) => "leaf",
        Action::Leaf(Some(_)) => "leaf with gradient",
        Action::Rule(_) => "saved",
        Action::Replay(_) => "recomputed",
        Action::Spent => "spent",
    }
}

/// One line a node, oldest first: number, op, its inputs' numbers (`-` for a constant), dtype, shape, state.
pub fn text(y: &Tensor) -> String {
    let mut out = String::new();
    for (number, node) in nodes(y) {
        let input = |e: &Option<Edge>| e.as_ref().map_or("-".into(), |e| format!("#{}", e.sequence));
        let inputs: Vec<String> = node.inputs.iter().map(input).collect();
        let (dtype, shape) = (node.output.dtype, &node.output.shape);
        // Writing to a String cannot fail.
        let _ = writeln!(out, "#{number} {}({}) {dtype} {shape} {}", node.op, inputs.join(", "), state(&node));
    }
    out
}

/// The tape of `y` in Graphviz's DOT language; data flows along the arrows.
pub fn graphviz(y: &Tensor) -> String {
    let mut out = String::from("digraph tape {\n    rankdir=TB;\n    node [shape=box];\n");
    for (number, node) in nodes(y) {
        let label = format!("{}\\n{} {}", node.op, node.output.dtype, node.output.shape);
        let style = if node.inputs.is_empty() { ", style=filled, fillcolor=lightblue" } else { "" };
        let _ = writeln!(out, "    n{number} [label=\"{label}\"{style}];");
        for input in node.inputs.iter().flatten() {
            let _ = writeln!(out, "    n{} -> n{number};", input.sequence);
        }
    }
    out + "}\n"
}
