//! Nodes that spell an activation out become one node.

use super::attribute::Attributes;
use super::graph::{Graph, Slot};
use super::ops;
use std::collections::{HashMap, HashSet};

/// Makes one node of `x * sigmoid(x)`, whose sigmoid nothing else reads.
pub fn fuse(graph: &mut Graph) {
    let (mut reads, mut makers) = (HashMap::<Slot, usize>::new(), HashMap::<Slot, usize>::new());
    graph.all_reads().into_iter().for_each(|slot| *reads.entry(slot).or_default() += 1);
    for (i, node) in graph.nodes.iter().enumerate() {
        makers.extend(node.outputs.iter().flatten().map(|&slot| (slot, i)));
    }
    let mut gone = HashSet::new();
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        let ("Mul", &[Some(a), Some(b)]) = (node.op_type, &node.inputs[..]) else { continue };
        let is_sigmoid = |x: Slot, y: Slot| {
            let maker = makers.get(&y).copied()?;
            let sigmoid = &graph.nodes[maker];
            let is = sigmoid.op_type == "Sigmoid" && sigmoid.inputs == [Some(x)] && reads.get(&y) == Some(&1);
            is.then_some((x, maker))
        };
        let Some((x, sigmoid)) = is_sigmoid(a, b).or_else(|| is_sigmoid(b, a)) else { continue };
        let Some((op_type, op)) = ops::find("ai.onnx", "Swish") else { continue };
        let node = &mut graph.nodes[i];
        (node.op_type, node.op, node.inputs) = (op_type, op, vec![Some(x)]);
        node.attributes = Attributes::default();
        gone.insert(sigmoid);
    }
    let mut at = 0..;
    graph.nodes.retain(|_| at.next().is_some_and(|i| !gone.contains(&i)));
}
