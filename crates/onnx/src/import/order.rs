//! An order of nodes in which each comes after those that it reads.

use crate::proto::{GraphProto, NodeProto};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

/// The positions of nodes in such an order, which is that of the file where it is one. Errors: a value that two nodes compute; a cycle.
pub fn in_order(nodes: &[NodeProto]) -> Result<Vec<usize>, String> {
    let mut makers: HashMap<&str, usize> = HashMap::new();
    for (i, node) in nodes.iter().enumerate() {
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            if makers.insert(name, i).is_some() {
                return Err(format!("two nodes compute {name:?}"));
            }
        }
    }
    let (mut readers, mut missing) = (vec![Vec::new(); nodes.len()], vec![0; nodes.len()]);
    for (i, node) in nodes.iter().enumerate() {
        let mut read = HashSet::new();
        free_names(node, &mut read);
        let before: HashSet<usize> = read.iter().filter_map(|name| makers.get(name).copied()).collect();
        missing[i] = before.len();
        before.into_iter().for_each(|maker| readers[maker].push(i));
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        missing.iter().enumerate().filter(|(_, n)| **n == 0).map(|(i, _)| Reverse(i)).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for &reader in &readers[i] {
            missing[reader] -= 1;
            if missing[reader] == 0 {
                ready.push(Reverse(reader));
            }
        }
    }
    if order.len() == nodes.len() {
        return Ok(order);
    }
    let first = missing.iter().position(|&n| n > 0).map_or("", |i| nodes[i].output.first().map_or("", String::as_str));
    Err(format!("its nodes form a cycle, in which {first:?} depends on itself or on values that do"))
}

/// The names that a node reads from outside, also within its bodies.
fn free_names<'a>(node: &'a NodeProto, found: &mut HashSet<&'a str>) {
    found.extend(node.input.iter().map(String::as_str));
    for graph in node.attribute.iter().filter_map(|attribute| attribute.g.as_deref()) {
        free_names_of(graph, found);
    }
}

fn free_names_of<'a>(graph: &'a GraphProto, found: &mut HashSet<&'a str>) {
    let mut read: HashSet<&str> = graph.output.iter().map(|output| output.name()).collect();
    graph.node.iter().for_each(|node| free_names(node, &mut read));
    let inputs = graph.input.iter().map(|input| input.name());
    let tensors = graph.initializer.iter().map(|tensor| tensor.name());
    let made = graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str));
    let own: HashSet<&str> = inputs.chain(tensors).chain(made).collect();
    found.extend(read.difference(&own));
}
