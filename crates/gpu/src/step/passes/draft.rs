//! Elementwise calls as the steps of one kernel.

use crate::memory::block::Place;
use crate::ops::elementwise::group::Group;
use crate::ops::elementwise::pointwise::{Body, Number, Source, Step, acc, body, numbers};
use crate::program::source::near;
use crate::step::program::{Entry, KeptOperand, Work};
use isograd_core::{DType, Layout};
use smallvec::SmallVec;
use std::collections::HashMap;

/// Instructions of f32 in the time in which a device moves a byte: some 7 on an H200, more on those before it.
const OPERATIONS_PER_BYTE: usize = 6;
/// Instructions that round a result to 16 bits, and convert it back.
const ROUNDING: usize = 3;

/// An elementwise call.
#[derive(Clone, Copy, Debug)]
pub struct Elementwise {
    pub body: Body,
    /// The dtype of its arithmetic; `None` for one that only moves bits.
    pub acc: Option<DType>,
}

/// The elementwise call of an entry, if it can be one of several.
pub fn elementwise(entry: &Entry) -> Option<Elementwise> {
    let Work::Call { kernel, .. } = &entry.work else { return None };
    let body = body(kernel.kernel())?;
    if matches!(body, Body::Row(row) if row.is_checked()) {
        return None;
    }
    let mut dtypes = entry.inputs.iter().chain(&entry.outputs).map(|part| part.dtype);
    let acc = match body {
        // A device may move f64 that it does not compute with.
        Body::Copy if dtypes.any(|dtype| dtype == DType::F64) => return None,
        Body::Copy => None,
        _ => Some(acc(entry.op, body, dtypes).ok()?),
    };
    let shape = entry.outputs[0].layout.shape();
    let same = entry.inputs.iter().chain(&entry.outputs).all(|part| part.layout.shape() == shape);
    same.then_some(Elementwise { body, acc })
}

/// The elements of an operand in memory. Two operands with equal regions have the same elements; strides along dimensions of one element are 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    place: Place,
    offset: usize,
    strides: SmallVec<[usize; 6]>,
    dtype: DType,
}

impl Region {
    pub fn new(part: &KeptOperand) -> Region {
        let KeptOperand { place, layout, dtype } = part;
        let dims = layout.strides().iter().zip(layout.shape().dims());
        let strides = dims.map(|(&stride, &extent)| if extent == 1 { 0 } else { stride }).collect();
        Region { place: *place, offset: layout.offset(), strides, dtype: *dtype }
    }
}

/// Whether two parts of one memory have no byte in common.
pub fn are_apart(a: &KeptOperand, b: &KeptOperand) -> bool {
    let range = |part: &KeptOperand| {
        let size = part.dtype.size();
        (part.layout.offset() * size, part.layout.end() * size)
    };
    let ((a, a_end), (b, b_end)) = (range(a), range(b));
    a_end <= b || b_end <= a
}

/// Bytes of memory that moving an operand takes.
pub fn traffic(part: &KeptOperand) -> usize {
    let KeptOperand { layout, dtype, .. } = part;
    let dims = layout.shape().dims().iter().zip(layout.strides());
    dims.map(|(&extent, &stride)| if stride == 0 { 1 } else { extent }).product::<usize>() * dtype.size()
}

/// Whether a kernel makes a call for itself, or for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    Once,
    Again,
}

/// The kernel of some calls.
pub struct Draft {
    pub inputs: Vec<KeptOperand>,
    pub outputs: Vec<KeptOperand>,
    pub steps: Vec<Step>,
    stored: Vec<Source>,
    numbers: Vec<SmallVec<[Number; 4]>>,
    acc: DType,
}

impl Draft {
    /// The kernel of calls in this order. `is_local` says of memory whether nobody else reads it. The results of calls that are made again
    /// are not stored.
    pub fn new<'a>(
        members: impl Iterator<Item = (&'a Entry, Elementwise, Made)>,
        acc: DType,
        is_local: impl Fn(Place) -> bool,
    ) -> Draft {
        let (mut inputs, mut steps, mut all_numbers) = (Vec::new(), Vec::new(), Vec::new());
        let mut values: HashMap<Region, Source> = HashMap::new();
        let mut written: Vec<(Region, &KeptOperand)> = Vec::new();
        let mut results = 0;
        for (entry, Elementwise { body, .. }, made) in members {
            let Work::Call { ints, floats, .. } = &entry.work else { continue };
            let mut source = |part: &KeptOperand| {
                *values.entry(Region::new(part)).or_insert_with(|| {
                    inputs.push(part.clone());
                    Source::Input(inputs.len() - 1)
                })
            };
            let before = if entry.is_inout() { &entry.outputs[..] } else { &[] };
            let sources: SmallVec<[Source; 8]> = before.iter().chain(&entry.inputs).map(&mut source).collect();
            for (m, part) in entry.outputs.iter().enumerate() {
                let elements = Region::new(part);
                let value = if matches!(body, Body::Copy) { sources[0] } else { Source::Result(results + m) };
                values.insert(elements.clone(), value);
                if made == Made::Once && written.iter().all(|(known, _)| *known != elements) {
                    written.push((elements, part));
                }
            }
            if matches!(body, Body::Copy) {
                continue;
            }
            let dtypes: SmallVec<[DType; 4]> = entry.outputs.iter().map(|part| part.dtype).collect();
            results += dtypes.len();
            all_numbers.push(numbers(body, acc, ints, floats, dtypes[0]));
            steps.push(Step { body, sources, near: near(acc, &dtypes), results: dtypes });
        }
        let outputs = written.iter().filter(|(_, part)| !is_local(part.place));
        let (outputs, stored) = outputs.map(|(elements, part)| ((*part).clone(), values[elements])).unzip();
        let mut draft = Draft { inputs, outputs, steps, stored, numbers: all_numbers, acc };
        draft.leave_out();
        draft
    }

    /// Leaves out steps whose results are neither stored nor read, and inputs that no step reads. An input that is an output as well is
    /// read from there.
    fn leave_out(&mut self) {
        let firsts: Vec<usize> = self
            .steps
            .iter()
            .scan(0, |next, step| {
                *next += step.results.len();
                Some(*next - step.results.len())
            })
            .collect();
        let of: Vec<usize> =
            self.steps.iter().enumerate().flat_map(|(s, step)| std::iter::repeat_n(s, step.results.len())).collect();
        let mut is_needed = vec![false; self.steps.len()];
        let need = |source: &Source, is_needed: &mut Vec<bool>| {
            if let Source::Result(n) = *source {
                is_needed[of[n]] = true;
            }
        };
        self.stored.iter().for_each(|source| need(source, &mut is_needed));
        for s in (0..self.steps.len()).rev() {
            if is_needed[s] {
                self.steps[s].sources.iter().for_each(|source| need(source, &mut is_needed));
            }
        }
        let mut next = 0;
        let renumbered: Vec<usize> = (0..self.steps.len())
            .map(|s| {
                let first = next;
                next += if is_needed[s] { self.steps[s].results.len() } else { 0 };
                first
            })
            .collect();
        let mut keeps = is_needed.iter();
        self.steps.retain(|_| *keeps.next().unwrap_or(&true));
        let mut keeps = is_needed.iter();
        self.numbers.retain(|_| *keeps.next().unwrap_or(&true));
        let known: Vec<Region> = self.outputs.iter().map(Region::new).collect();
        let mut inputs = Vec::new();
        let mut places: Vec<Option<Source>> = vec![None; self.inputs.len()];
        let mut place = |source: &mut Source| match *source {
            Source::Result(n) => *source = Source::Result(renumbered[of[n]] + n - firsts[of[n]]),
            Source::Output(_) => (),
            Source::Input(k) => {
                *source = *places[k].get_or_insert_with(|| {
                    let elements = Region::new(&self.inputs[k]);
                    match known.iter().position(|known| *known == elements) {
                        Some(m) => Source::Output(m),
                        None => {
                            inputs.push(self.inputs[k].clone());
                            Source::Input(inputs.len() - 1)
                        }
                    }
                });
            }
        };
        self.steps.iter_mut().flat_map(|step| &mut step.sources).for_each(&mut place);
        self.stored.iter_mut().for_each(&mut place);
        self.inputs = inputs;
    }

    /// The number of operands.
    pub fn operands(&self) -> usize {
        self.inputs.len() + self.outputs.len()
    }

    /// Bytes that the kernel moves.
    pub fn traffic(&self) -> usize {
        let read = self.stored.iter().chain(self.steps.iter().flat_map(|step| &step.sources));
        let mut old: Vec<usize> =
            read.filter_map(|s| if let Source::Output(m) = s { Some(*m) } else { None }).collect();
        old.sort_unstable();
        old.dedup();
        let old: usize = old.iter().map(|&m| traffic(&self.outputs[m])).sum();
        old + self.inputs.iter().chain(&self.outputs).map(traffic).sum::<usize>()
    }

    /// Bytes that a device moves in the time of the kernel, which is that of its traffic or that of its arithmetic.
    pub fn cost(&self) -> usize {
        let of_step =
            |step: &Step| step.body.operations() + step.results.iter().filter(|d| d.size() == 2).count() * ROUNDING;
        let operations: usize = self.steps.iter().map(of_step).sum();
        let elements = self.outputs.first().or(self.inputs.first()).map_or(0, |part| part.layout.shape().numel());
        self.traffic().max(operations.saturating_mul(elements) / OPERATIONS_PER_BYTE)
    }

    /// The kernel, of calls of these ops.
    pub fn group(self, ops: Vec<String>) -> (Group, Vec<KeptOperand>, Vec<KeptOperand>) {
        let Draft { inputs, outputs, steps, stored, numbers, acc } = self;
        let group = Group {
            steps: steps.into_iter().collect(),
            stored: stored.into_iter().collect(),
            acc,
            numbers: numbers.into_iter().flatten().collect(),
            ops,
        };
        (group, inputs, outputs)
    }
}

/// The order of the dimensions in which elements lie in memory, and whether all operands lie in words along the last of them.
pub fn walk(entry: &Entry) -> (SmallVec<[usize; 6]>, bool) {
    let layout = &entry.outputs[0].layout;
    let mut order: SmallVec<[usize; 6]> = (0..layout.shape().rank()).filter(|&d| layout.shape()[d] != 1).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(layout.strides()[d]));
    let in_words = |layout: &Layout| order.last().is_none_or(|&d| layout.strides()[d] <= 1);
    let all = entry.inputs.iter().chain(&entry.outputs).all(|part| in_words(&part.layout));
    (order, all)
}
