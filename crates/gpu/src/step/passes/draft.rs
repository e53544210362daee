//! Elementwise calls, and reductions of rows, as the steps of one kernel.

use crate::driver::{Address, Limits};
use crate::launch::layout::Joint;
use crate::launch::words::fits;
use crate::memory::block::Place;
use crate::ops::elementwise::group::{Group, Reduces};
use crate::ops::elementwise::pointwise::{Body, Number, Source, Step, acc, body, numbers};
use crate::ops::elementwise::rows::is_kept;
use crate::ops::reduction::reduce::{self, Order, Team};
use crate::ops::reduction::reduce_prologue::{Found, Prologue};
use crate::program::source::near;
use crate::step::program::{self, Entry, KeptOperand, Work};
use isograd_core::backend::Reduce;
use isograd_core::ops::elementwise::pointwise_sum::PointwiseSum;
use isograd_core::{DType, Dims, Kernel, Layout, Shape};
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap};
use std::iter;

/// Instructions of f32 in the time in which a device moves a byte: some 7 on an H200, more on those before it.
const OPERATIONS_PER_BYTE: usize = 6;
/// Instructions that round a result to 16 bits, and convert it back.
const ROUNDING: usize = 2;
/// Operands of a kernel, for which there are names.
const MOST_OPERANDS: usize = 16;

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

/// The rows of a shape: its last `dims` dimensions, which a team of threads has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    pub shape: Shape,
    pub dims: usize,
    pub team: Team,
}

impl Rows {
    /// An operand in the shape, one that has a number a row repeated within it. None if it has another shape, or if elements of a row lie
    /// apart.
    pub fn within(&self, part: &KeptOperand) -> Option<KeptOperand> {
        let (kept, shape) = (&self.shape.dims()[..self.shape.rank() - self.dims], part.layout.shape());
        let layout = if *shape == self.shape {
            part.layout.clone()
        } else {
            let rest = shape.dims().strip_prefix(kept)?;
            if !(rest.is_empty() || rest.len() == self.dims && rest.iter().all(|&d| d == 1)) {
                return None;
            }
            let ones: Dims = kept.iter().copied().chain(iter::repeat_n(1, self.dims)).collect();
            part.layout.reshape(&Shape::from(ones))?.expand(&self.shape)
        };
        let row = row_of(&layout, self.dims);
        let is_side_by_side = row.rank() == 0 || row.rank() == 1 && row.strides[0][0] <= 1;
        is_side_by_side.then(|| KeptOperand { layout, ..part.clone() })
    }

    /// Whether an operand has elements of its own for each row.
    fn is_moving(&self, part: &KeptOperand) -> bool {
        let steps = part.layout.strides().iter().zip(self.shape.dims());
        let (outer, inner): (Vec<_>, Vec<_>) = steps.enumerate().partition(|(d, _)| *d < self.shape.rank() - self.dims);
        let moves = |of: Vec<(usize, (&usize, &usize))>| of.iter().any(|(_, (s, d))| **s > 0 && **d > 1);
        moves(outer) && moves(inner)
    }

    /// Elements of a row.
    fn count(&self) -> usize {
        self.shape.dims()[self.shape.rank() - self.dims..].iter().product()
    }
}

/// A sum of what elementwise calls make of operands of one shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    pub shape: Shape,
    /// The shape of the sum, with one element in the dimensions over which it goes.
    pub to: Shape,
    /// The order in which a launch of its own adds up.
    order: Order,
}

/// The dimensions that the calls of a kernel reduce, and the order in which threads add up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Rows(Rows),
    Sum(Sum),
}

impl Frame {
    /// The shape of what is reduced.
    pub fn shape(&self) -> &Shape {
        match self {
            Frame::Rows(rows) => &rows.shape,
            Frame::Sum(sum) => &sum.shape,
        }
    }

    /// An operand as the kernel has it; none if it does not fit.
    pub fn within(&self, part: &KeptOperand) -> Option<KeptOperand> {
        match self {
            Frame::Rows(rows) => rows.within(part),
            Frame::Sum(sum) => [&sum.shape, &sum.to].contains(&part.layout.shape()).then(|| part.clone()),
        }
    }

    fn rows(&self) -> Option<&Rows> {
        if let Frame::Rows(rows) = self { Some(rows) } else { None }
    }
}

/// The last dimensions of a layout, as few as there can be.
fn row_of(layout: &Layout, dims: usize) -> Joint {
    let at = layout.shape().rank() - dims;
    Joint::of(&layout.shape().dims()[at..], [&layout.strides()[at..]].into_iter())
}

/// A reduction that can be one of the calls of a kernel.
#[derive(Clone, Debug)]
pub struct Reduction<'a> {
    kind: Reduce,
    pub frame: Frame,
    pub acc: DType,
    /// The row of the pointwise table whose result is reduced.
    pub of: Option<&'a PointwiseSum>,
}

/// An operand as it will be in memory, where it begins at a word.
fn found(part: &KeptOperand) -> Found {
    let start = if let Place::At(address) = part.place { address } else { 0 };
    (start + (part.layout.offset() * part.dtype.size()) as Address, part.dtype, part.layout.clone())
}

/// The reduction of an entry, if it can be one of several calls.
pub fn reduction<'a>(entry: &'a Entry, limits: &Limits) -> Option<Reduction<'a>> {
    if let Work::Reduce(program::Reduction { kind, dims, layouts: [of_x, of_y] }) = &entry.work {
        let (x, y) = (&entry.inputs[0], &entry.outputs[0]);
        let [found_x, found_y] =
            [(x, of_x), (y, of_y)].map(|(part, layout)| found(&KeptOperand { layout: layout.clone(), ..part.clone() }));
        let order = reduce::order_alone(limits, *kind, &found_x, &found_y, *dims)?;
        let [shape, to] = [x, y].map(|part| part.layout.shape().clone());
        let frame = Frame::Sum(Sum { shape, to, order });
        return Some(Reduction { kind: *kind, frame, acc: x.dtype.acc(), of: None });
    }
    let Work::Call { kernel, ints, .. } = &entry.work else { return None };
    let x = entry.inputs.first()?;
    let (shape, acc) = (x.layout.shape(), x.dtype.acc());
    let size = |dims: usize| {
        let (kept, row) = shape.dims().split_at(shape.rank() - dims);
        [kept.iter().product(), row.iter().product()]
    };
    let rows = |dims, team| {
        let rows = Rows { shape: shape.clone(), dims, team };
        let mut all = entry.inputs.iter().chain(&entry.outputs);
        (rows.count() > 1 && all.all(|part| rows.within(part).is_some())).then_some(Frame::Rows(rows))
    };
    match kernel.kernel() {
        Kernel::Reduce(kind @ (Reduce::Sum | Reduce::Mean | Reduce::Max | Reduce::Min))
            if x.dtype.is_float() && entry.outputs.len() == 1 =>
        {
            let dims = usize::try_from(ints[0]).ok()?;
            let team = reduce::team(limits, kind, x.dtype, None, size(dims))?;
            let (outer, row) = (&x.layout.strides()[..shape.rank() - dims], row_of(&x.layout, dims));
            let begins_at_words = fits(team.vector, outer.iter().copied(), [(found(x).0, x.dtype.size())]);
            let is_row = begins_at_words && row.rank() == 1 && row.strides[0][0] == 1;
            let frame = is_row.then(|| rows(dims, team)).flatten()?;
            Some(Reduction { kind, frame, acc, of: None })
        }
        Kernel::Fused(fused) => {
            let of = fused.fused().downcast_ref::<PointwiseSum>()?;
            if of.row.is_inout() || of.row.is_checked() || !acc.is_float() {
                return None;
            }
            let y = entry.outputs.iter().find(|y| y.layout.shape() != shape)?;
            let to = y.layout.shape();
            let first = shape.iter().zip(to.iter()).position(|(d, y)| d != y)?;
            let all = |parts: &[KeptOperand]| parts.iter().map(found).collect::<Vec<_>>();
            let prologue = Prologue::of(of, &all(&entry.inputs), &all(&entry.outputs));
            let order = reduce::order(limits, &prologue, acc, &found(x), &found(y));
            let sum = || Frame::Sum(Sum { shape: shape.clone(), to: to.clone(), order });
            let dims = shape.rank() - first;
            let frame = match to.dims()[first..].iter().all(|&d| d == 1) {
                true => reduce::team(limits, Reduce::Sum, x.dtype, Some(&prologue), size(dims))
                    .and_then(|team| rows(dims, team))
                    .unwrap_or_else(sum),
                false => sum(),
            };
            Some(Reduction { kind: Reduce::Sum, frame, acc, of: Some(of) })
        }
        _ => None,
    }
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

/// Whether two parts of one memory are known to have no byte in common.
pub fn are_apart(a: &KeptOperand, b: &KeptOperand) -> bool {
    let range = |part: &KeptOperand| {
        let size = part.dtype.size();
        (part.layout.offset() * size, part.layout.end() * size)
    };
    let ((a_start, a_end), (b_start, b_end)) = (range(a), range(b));
    a_end <= b_start || b_end <= a_start || a.dtype.size() == b.dtype.size() && are_strided_apart(&a.layout, &b.layout)
}

/// Whether two views with the same strides have no element in common, such as two slices of rows.
fn are_strided_apart(a: &Layout, b: &Layout) -> bool {
    let extents = a.shape().iter().zip(b.shape().iter());
    let mut dims: Vec<[i64; 3]> =
        a.strides().iter().zip(extents).map(|(&s, (&a, &b))| [s as i64, a as i64, b as i64]).collect();
    dims.retain(|[stride, a, b]| *stride > 0 && a.max(b) > &1);
    dims.sort_unstable_by_key(|[stride, ..]| std::cmp::Reverse(*stride));
    a.strides() == b.strides() && !have_equal(a.offset() as i64 - b.offset() as i64, &dims)
}

/// Whether `ahead` and the positions of an element of each of two views may be equal: strides from the largest on, with the views' extents.
fn have_equal(ahead: i64, dims: &[[i64; 3]]) -> bool {
    let Some((&[stride, a, b], rest)) = dims.split_first() else { return ahead == 0 };
    let span = rest.iter().map(|[stride, a, b]| (a.max(b) - 1) * stride).sum::<i64>();
    if span >= stride {
        return true;
    }
    // The other dimensions make up for less than a stride.
    let near = ahead.div_euclid(stride);
    [near, near + 1].into_iter().any(|steps| -steps < a && steps < b && have_equal(ahead - steps * stride, rest))
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
#[derive(Clone)]
pub struct Draft {
    pub inputs: Vec<KeptOperand>,
    pub outputs: Vec<KeptOperand>,
    pub steps: Vec<Step>,
    stored: Vec<Source>,
    numbers: Vec<SmallVec<[Number; 4]>>,
    acc: DType,
    frame: Option<Frame>,
}

impl Draft {
    /// The kernel of calls in this order. `is_local` says of memory whether nobody else reads it. The results of calls that are made again
    /// are not stored.
    pub fn new<'a>(
        members: impl Iterator<Item = (&'a Entry, Made)>,
        acc: DType,
        frame: Option<&Frame>,
        limits: &Limits,
        is_local: impl Fn(Place) -> bool,
    ) -> Draft {
        let (mut inputs, mut steps, mut all_numbers) = (Vec::new(), Vec::<Step>::new(), Vec::new());
        let mut values: HashMap<Region, Source> = HashMap::new();
        let mut written: Vec<(Region, KeptOperand)> = Vec::new();
        let mut results = 0;
        let placed = |part: &KeptOperand| frame.and_then(|frame| frame.within(part)).unwrap_or_else(|| part.clone());
        let rows = frame.and_then(Frame::rows);
        for (entry, made) in members {
            let (ints, floats) = match &entry.work {
                Work::Call { ints, floats, .. } => (&ints[..], &floats[..]),
                Work::Reduce(_) => (&[][..], &[][..]),
                _ => continue,
            };
            let mut source = |part: &KeptOperand| {
                let part = placed(part);
                *values.entry(Region::new(&part)).or_insert_with(|| {
                    inputs.push(part);
                    Source::Input(inputs.len() - 1)
                })
            };
            let before = if entry.is_inout() { &entry.outputs[..] } else { &[] };
            let sources: SmallVec<[Source; 8]> = before.iter().chain(&entry.inputs).map(&mut source).collect();
            let mut step = |body, sources, dtypes: SmallVec<[DType; 4]>, near, is_of_rows, numbers| {
                let first = results;
                results += dtypes.len();
                steps.push(Step { body, sources, results: dtypes, near, is_of_rows });
                all_numbers.push(numbers);
                first
            };
            let dtypes: SmallVec<[DType; 4]> = entry.outputs.iter().map(|part| part.dtype).collect();
            let made_of: SmallVec<[Source; 4]> = if let Some(Elementwise { body, .. }) = elementwise(entry) {
                let is_of_rows = rows.is_some_and(|rows| *entry.outputs[0].layout.shape() != rows.shape);
                match body {
                    Body::Copy => SmallVec::from_iter([sources[0]]),
                    _ => {
                        let numbers = numbers(body, acc, ints, floats, dtypes[0]);
                        let (near, count) = (near(acc, &dtypes), dtypes.len());
                        let first = step(body, sources, dtypes, near, is_of_rows, numbers);
                        (first..first + count).map(Source::Result).collect()
                    }
                }
            } else if let Some(Reduction { kind, of, .. }) = reduction(entry, limits) {
                let reduce = Body::Reduce(kind);
                match of {
                    None => {
                        let first = step(reduce, sources, dtypes, "", true, SmallVec::new());
                        SmallVec::from_iter([Source::Result(first)])
                    }
                    Some(of) => {
                        // The terms of the sum are not rounded.
                        let summed =
                            entry.outputs.iter().position(|y| *y.layout.shape() != *entry.inputs[0].layout.shape());
                        let summed = summed.unwrap_or(0);
                        let (mut own, near, count) = (dtypes.clone(), near(acc, &dtypes), dtypes.len());
                        own[summed] = acc;
                        let numbers = of.attributes.iter().map(|&v| Number::Float(v)).collect();
                        let first = step(Body::Row(of.row), sources, own, near, false, numbers);
                        let terms = SmallVec::from_iter([Source::Result(first + summed)]);
                        let sum = step(reduce, terms, SmallVec::from_iter([dtypes[summed]]), "", true, SmallVec::new());
                        (0..count).map(|m| Source::Result(if m == summed { sum } else { first + m })).collect()
                    }
                }
            } else {
                continue;
            };
            for (part, value) in entry.outputs.iter().map(placed).zip(made_of) {
                let elements = Region::new(&part);
                values.insert(elements.clone(), value);
                if made == Made::Once && written.iter().all(|(known, _)| *known != elements) {
                    written.push((elements, part));
                }
            }
        }
        let outputs = written.into_iter().filter(|(_, part)| !is_local(part.place));
        let (outputs, stored) = outputs.map(|(elements, part)| (part, values[&elements])).unzip();
        let mut draft = Draft { inputs, outputs, steps, stored, numbers: all_numbers, acc, frame: frame.cloned() };
        draft.leave_out();
        draft
    }

    /// Why there cannot be such a kernel, if there cannot.
    pub fn refusal(&self, limits: &Limits) -> Option<&'static str> {
        if self.inputs.len() + self.outputs.len() > MOST_OPERANDS {
            return Some("as the kernel has no room for its operands");
        }
        let frame = self.frame.as_ref()?;
        match frame {
            // Threads of a row keep what they read, and so can write there later.
            Frame::Rows(rows) => {
                let mut old = self.old().into_iter().map(|m| &self.outputs[m]);
                let is_bad = |part: &KeptOperand| !rows.is_moving(part) || !self.is_kept(rows);
                old.any(is_bad).then_some("as the kernel would read again what it has written")
            }
            Frame::Sum(_) if !self.old().is_empty() => Some("as a sum does not read what it writes"),
            Frame::Sum(sum) => (!self.takes(limits, sum.order)).then_some("as the sum would be in another order"),
        }
    }

    /// Whether the kernel's sums can be added up in an order.
    fn takes(&self, limits: &Limits, order: Order) -> bool {
        let (group, inputs, outputs) = self.clone().group(Vec::new());
        let all = |parts: &[KeptOperand]| parts.iter().map(found).collect::<Vec<_>>();
        let (inputs, outputs) = (all(&inputs), all(&outputs));
        let Some(prologue) = Prologue::of_group(&group, &inputs, &outputs) else { return false };
        let summed: Vec<&Found> = group.reduced().into_iter().flatten().map(|m| &outputs[m]).collect();
        reduce::takes(limits, &prologue, self.acc, &inputs[prologue.first()], &summed, order)
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

    /// The outputs whose old values are read.
    fn old(&self) -> BTreeSet<usize> {
        let read = self.stored.iter().chain(self.steps.iter().flat_map(|step| &step.sources));
        read.filter_map(|source| if let Source::Output(m) = source { Some(*m) } else { None }).collect()
    }

    /// Bytes that the kernel moves.
    pub fn traffic(&self) -> usize {
        let old: usize = self.old().into_iter().map(|m| traffic(&self.outputs[m])).sum();
        let all = self.inputs.iter().chain(&self.outputs).map(traffic).sum::<usize>();
        old + all + self.read_again()
    }

    /// Bytes that are read again by turns over long rows, which threads do not keep.
    fn read_again(&self) -> usize {
        let Some(Frame::Rows(rows)) = &self.frame else { return 0 };
        if self.is_kept(rows) {
            return 0;
        }
        let turns = self.steps.iter().filter(|step| matches!(step.body, Body::Reduce(_))).count();
        let moving = self.inputs.iter().filter(|part| rows.is_moving(part));
        turns * moving.map(traffic).sum::<usize>()
    }

    /// Whether threads keep what they read of a row.
    fn is_kept(&self, rows: &Rows) -> bool {
        let old = self.old().into_iter().map(|m| &self.outputs[m]);
        let moving = self.inputs.iter().chain(old).filter(|part| rows.is_moving(part));
        is_kept(rows.team, rows.count(), moving.map(|part| part.dtype.size()))
    }

    /// Bytes that a device moves in the time of the kernel, which is that of its traffic or that of its arithmetic.
    pub fn cost(&self) -> usize {
        let of_step =
            |step: &Step| step.body.operations() + step.results.iter().filter(|d| d.size() == 2).count() * ROUNDING;
        let operations: usize = self.steps.iter().map(of_step).sum();
        let all = self.outputs.iter().chain(&self.inputs);
        let elements = all.map(|part| part.layout.shape().numel()).max().unwrap_or(0);
        self.traffic().max(operations.saturating_mul(elements) / OPERATIONS_PER_BYTE)
    }

    /// The kernel, of calls of these ops.
    pub fn group(self, ops: Vec<String>) -> (Group, Vec<KeptOperand>, Vec<KeptOperand>) {
        let Draft { inputs, outputs, steps, stored, numbers, acc, frame } = self;
        let group = Group {
            steps: steps.into_iter().collect(),
            stored: stored.into_iter().collect(),
            acc,
            numbers: numbers.into_iter().flatten().collect(),
            reduces: match frame {
                None => Reduces::Nothing,
                Some(Frame::Rows(rows)) => Reduces::Rows(rows.dims, rows.team),
                Some(Frame::Sum(sum)) => Reduces::Sums(sum.order),
            },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_apart_if_they_have_no_element_in_common() {
        let of = |layout: Layout| KeptOperand { place: Place::Later(0), layout, dtype: DType::F32 };
        let whole = Layout::contiguous(Shape::from((3, 4, 6)));
        let mut views = vec![whole.clone(), whole.transpose(0, 2)];
        for dim in 0..3 {
            for (start, length, step) in [(0, 1, 1), (1, 2, 1), (0, 2, 2), (1, 2, 2), (0, 3, 1), (2, 1, 1), (1, 1, 1)] {
                if start + (length - 1) * step < whole.shape()[dim] {
                    let narrowed = whole.narrow(dim, start, length, step);
                    views.extend([narrowed.select((dim + 1) % 3, 1), narrowed]);
                }
            }
        }
        let elements = |layout: &Layout| -> BTreeSet<usize> {
            let mut all = BTreeSet::from([layout.offset()]);
            for (&stride, &extent) in layout.strides().iter().zip(layout.shape().dims()) {
                all = all.iter().flat_map(|at| (0..extent).map(move |i| at + i * stride)).collect();
            }
            all
        };
        for (a, b) in views.iter().flat_map(|a| views.iter().map(move |b| (a, b))) {
            let is_known = are_apart(&of(a.clone()), &of(b.clone()));
            let is_true = elements(a).is_disjoint(&elements(b));
            // Layouts of equal strides are known to be apart or not.
            let is_exact = a.strides() == b.strides();
            assert!(if is_exact { is_known == is_true } else { !is_known || is_true }, "{a:?} {b:?}");
        }
    }
}
