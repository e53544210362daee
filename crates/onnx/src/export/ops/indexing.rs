//! Elements by index, and sorting.

use crate::export::graph::{int, text};
use crate::export::translation::{Found, Translation, absent};

pub fn translate(t: &mut Translation<'_>) -> Found {
    let x = t.inputs[0];
    let is_sort = matches!(t.op.name, "sort" | "argsort" | "topk");
    if !is_sort && t.inputs.len() < 2 {
        // The tape knows an op by its operands with gradients, the report that follows by all.
        return absent("its index is not known");
    }
    let y = match t.op.name {
        "gather" => {
            let dim = t.int("dim")?;
            t.graph.node("GatherElements", &[x, t.inputs[1]], &[int("axis", dim)])
        }
        "index_select" => {
            let dim = t.int("dim")?;
            let x = if t.x().rank() == 0 { t.unsqueeze(x, &[0])? } else { x };
            let index = if t.op.inputs[1].rank() == 0 { t.unsqueeze(t.inputs[1], &[0])? } else { t.inputs[1] };
            t.graph.node("Gather", &[x, index], &[int("axis", dim)])
        }
        "embedding" => t.graph.node("Gather", &[x, t.inputs[1]], &[int("axis", 0)]),
        "scatter" | "scatter_add" => return scatter(t),
        _ => return sort(t),
    };
    Ok(vec![y])
}

fn scatter(t: &mut Translation<'_>) -> Found {
    let (dim, adds) = (t.int("dim")?, t.flag("adds")?);
    let (x, index, mut src) = (t.inputs[0], t.inputs[1], t.inputs[2]);
    if t.x_dims(1) != t.x_dims(2) {
        // The part of the source that the index covers.
        let (starts, ends) = (vec![0; t.x().rank()], t.x_dims(1));
        let (starts, ends) = (t.graph.ints(&starts)?, t.graph.extents(&ends)?);
        src = t.graph.node("Slice", &[src, starts, ends], &[]);
    }
    let reduction = text("reduction", if adds { "add" } else { "none" });
    Ok(vec![t.graph.node("ScatterElements", &[x, index, src], &[int("axis", dim), reduction])])
}

fn sort(t: &mut Translation<'_>) -> Found {
    let (dim, descends) = (t.int("dim")?, t.int("descends")?);
    let count = t.graph.extents(&[t.y_dims(0)[dim as usize]])?;
    let attributes = [int("axis", dim), int("largest", descends), int("sorted", 1)];
    let found = t.graph.node_of("TopK", &[Some(t.inputs[0]), Some(count)], &attributes, 2);
    Ok(if t.op.name == "argsort" { vec![found[1]] } else { found })
}
