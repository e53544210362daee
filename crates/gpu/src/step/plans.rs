//! Programs that were planned before. A closure that is put off again and again, such as a function as one op, makes the same calls on other
//! memory: what the passes made of them the first time is taken again, and its kernels are compiled.

use super::program::{Entry, KeptOperand, Program, Work};
use crate::driver::Address;
use crate::launch::device::Gpu;
use crate::memory::block::Place;
use isograd_core::Kernel;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

/// Kernels that read words look at the last bits of an address.
const ALIGNED: Address = 256;
/// Plans that a device keeps.
const MOST: usize = 256;

/// A program after the passes. A place is a number: that of a place of the [`Form`], or, behind these, of a memory that the passes asked for.
struct Plan {
    entries: Vec<Entry>,
    further: Vec<usize>,
}

/// The calls of a program in words, in which places have numbers in the order in which they occur.
pub struct Form {
    text: String,
    places: Vec<Place>,
}

impl Form {
    /// None for a program that copies from the host.
    pub fn of(program: &Program) -> Option<Form> {
        let survivors = program.survivors();
        let mut form = Form { text: String::new(), places: Vec::new() };
        let mut numbers = HashMap::new();
        for Entry { op, whole, work, inputs, outputs } in &program.entries {
            let Work::Call { kernel, ints, floats } = work else { return None };
            // Two ops of one's own may have one name.
            let own = if let Kernel::Custom(op) = kernel.kernel() { Some(std::ptr::from_ref(op)) } else { None };
            write!(form.text, "{op} {whole} {:?} {own:?} {ints:?} {floats:?}", kernel.kernel()).ok()?;
            for KeptOperand { place, layout, dtype } in inputs.iter().chain(outputs) {
                let number = *numbers.entry(*place).or_insert_with(|| {
                    form.places.push(*place);
                    form.places.len() - 1
                });
                let (shape, strides, offset) = (layout.shape().dims(), layout.strides(), layout.offset());
                write!(form.text, " {number} {dtype} {shape:?} {strides:?} {offset}").ok()?;
            }
            form.text.push('\n');
        }
        for place in &form.places {
            let memory = match place {
                Place::At(address) => format!("outside {}", address % ALIGNED),
                Place::Later(n) => format!("{} {}", program.memory[*n].bytes, survivors[*n]),
            };
            writeln!(form.text, "{memory}").ok()?;
        }
        Some(form)
    }
}

/// Replaces the calls of a program by those of a plan, if there is one for its form.
pub fn take(gpu: &Gpu, form: &Form, program: &mut Program) -> bool {
    let Some(plan) = gpu.planned.lock().get(&form.text).cloned() else { return false };
    let plan = plan.downcast_ref::<Plan>().expect("the device keeps plans of this type");
    let further = plan.further.iter().map(|&bytes| Place::Later(program.allocate(bytes).number));
    let places = form.places.iter().copied().chain(further).collect::<Vec<_>>();
    program.entries = plan.entries.iter().map(|entry| entry.at(|place| number_of(place).map(|n| places[n]))).collect();
    true
}

/// Keeps what the passes made of a program that had `before` memories before them.
pub fn keep(gpu: &Gpu, form: Form, program: &Program, before: usize) {
    let further = program.memory[before..].iter().map(|later| later.bytes).collect::<Vec<_>>();
    let known = form.places.iter().copied().chain((before..program.memory.len()).map(Place::Later));
    let numbers = known.enumerate().map(|(number, place)| (place, Place::Later(number))).collect::<HashMap<_, _>>();
    let entries = program.entries.iter().map(|entry| entry.at(|place| numbers.get(&place).copied())).collect();
    let mut plans = gpu.planned.lock();
    if plans.len() >= MOST {
        plans.clear();
    }
    plans.insert(form.text, Arc::new(Plan { entries, further }));
}

fn number_of(place: Place) -> Option<usize> {
    match place {
        Place::Later(number) => Some(number),
        Place::At(_) => None,
    }
}

impl Entry {
    /// The entry on other memory.
    fn at(&self, to: impl Fn(Place) -> Option<Place>) -> Entry {
        let moved = |part: &KeptOperand| KeptOperand { place: to(part.place).unwrap_or(part.place), ..part.clone() };
        let Entry { op, whole, ref work, ref inputs, ref outputs } = *self;
        Entry {
            op,
            whole,
            work: work.clone(),
            inputs: inputs.iter().map(moved).collect(),
            outputs: outputs.iter().map(moved).collect(),
        }
    }
}
