//! A call on a view that differs from a result only in dimensions of one element gets the shape of the call that made the result, whose
//! kernel it can then join.

use crate::memory::block::Place;
use crate::step::passes::draft::elementwise;
use crate::step::passes::pointwise::operands;
use crate::step::program::{Entry, Program};
use isograd_core::{Layout, Shape};
use std::collections::HashMap;

/// Gives elementwise calls the shapes of those whose results they read.
pub fn run(program: &mut Program) {
    let mut made: HashMap<Place, Shape> = HashMap::new();
    for entry in &mut program.entries {
        let is_elementwise = elementwise(entry).is_some();
        if is_elementwise {
            let known: Vec<&Shape> = entry.inputs.iter().filter_map(|part| made.get(&part.place)).collect();
            if let Some(layouts) = known.into_iter().find_map(|shape| reshaped(entry, shape)) {
                let parts = entry.inputs.iter_mut().chain(&mut entry.outputs);
                parts.zip(layouts).for_each(|(part, layout)| part.layout = layout);
            }
        }
        for part in &entry.outputs {
            match is_elementwise {
                true => made.insert(part.place, part.layout.shape().clone()),
                false => made.remove(&part.place),
            };
        }
    }
}

/// The layouts of all operands in another shape, if only dimensions of one element are more or fewer there.
fn reshaped(entry: &Entry, shape: &Shape) -> Option<Vec<Layout>> {
    let own = entry.outputs[0].layout.shape();
    let differs = own != shape && longer(own).eq(longer(shape));
    differs.then(|| operands(entry).map(|(part, _)| part.layout.reshape(shape)).collect()).flatten()
}

/// The extents of more than one element.
fn longer(shape: &Shape) -> impl Iterator<Item = usize> + '_ {
    shape.dims().iter().copied().filter(|&extent| extent != 1)
}
