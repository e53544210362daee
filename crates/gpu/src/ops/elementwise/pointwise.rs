//! Fill, copy, cast and the rows of the pointwise table. The text of each kernel is generated for its operands' dtypes,
//! and for how they lie in memory.

use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{THREADS, each};
use crate::launch::integers::Integers;
use crate::launch::layout::Joint;
use crate::launch::operands::{address, element_address};
use crate::launch::words::{bits, fits};
use crate::memory::status::Check;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate};
use crate::program::source::{FLOATS, Variant, near, word};
use isograd_core::backend::{Reduce, round_to_odd, value_error};
use isograd_core::ops::elementwise::fused_pointwise::Blocks;
use isograd_core::pointwise::{Domain, Pointwise, c_source};
use isograd_core::{Call, DType, Error, Kernel, Layout, Operand, Result, Scalar};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::LazyLock;

/// Bytes that a device reads from memory together.
const SECTOR: usize = 32;

/// The computation of an element, or of a number of a row of elements.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    Fill,
    Copy,
    Cast,
    Row(Pointwise),
    /// A reduction of the elements of a row, in a kernel of rows.
    Reduce(Reduce),
}

/// An operand of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An input of the kernel.
    Input(usize),
    /// The value that an output had.
    Output(usize),
    /// A result of an earlier step. Results are counted over all steps.
    Result(usize),
}

/// A computation of results from operands and earlier results.
#[derive(Clone, Debug)]
pub struct Step {
    pub body: Body,
    /// Outputs that are read come first.
    pub sources: SmallVec<[Source; 8]>,
    /// The dtypes of the results, to which they are rounded.
    pub results: SmallVec<[DType; 4]>,
    /// Definitions of less exact functions for the row, if all results are rounded to 16 bits.
    pub near: &'static str,
    /// Whether its results are numbers of a row, not of an element, in a kernel of rows.
    pub is_of_rows: bool,
}

/// A kernel before its text is generated: all that the text depends on.
pub struct Generator {
    pub steps: SmallVec<[Step; 1]>,
    /// The value of each output.
    pub stored: SmallVec<[Source; 4]>,
    /// Whether the steps are those of several calls. Their names do not tell what the kernel computes.
    pub is_group: bool,
    /// The arithmetic's dtype: f32, f64 or i64.
    pub acc: DType,
    pub inputs: SmallVec<[DType; 8]>,
    pub outputs: SmallVec<[DType; 4]>,
    /// Per operand, inputs first: its stride along the last dimension is 0.
    pub is_still: SmallVec<[bool; 8]>,
    /// Operands whose elements are moved one by one where others are moved in words.
    pub apart: SmallVec<[usize; 4]>,
    pub rank: usize,
    /// Elements that a thread takes side by side.
    pub vector: usize,
    pub is_wide: bool,
    /// Number of trailing results that are summed instead of stored.
    pub sums: usize,
    /// True if their squares are summed.
    pub is_squared: bool,
}

impl Step {
    /// The step of a call of its own.
    pub fn alone(body: Body, acc: DType, inputs: usize, outputs: &[DType], results: &[DType]) -> Step {
        let is_inout = matches!(body, Body::Row(row) if row.is_inout());
        let read = (0..if is_inout { outputs.len() } else { 0 }).map(Source::Output);
        let sources = read.chain((0..inputs).map(Source::Input)).collect();
        Step { body, sources, results: results.iter().copied().collect(), near: near(acc, results), is_of_rows: false }
    }

    /// How many results there are, with those that are summed.
    fn count(&self) -> usize {
        if let Body::Row(row) = self.body { row.outputs() } else { 1 }
    }
}

/// Whether steps, or outputs that take the bits of an operand, read the value that an output had.
pub fn reads(steps: &[Step], stored: &[Source], output: usize) -> bool {
    stored.iter().chain(steps.iter().flat_map(|step| &step.sources)).any(|source| *source == Source::Output(output))
}

/// A number that a kernel takes.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    Int(i64),
    Float(f64),
}

/// The numbers that a body takes from the attributes of its call, whose output has the dtype `to`.
pub fn numbers(body: Body, acc: DType, ints: &[i64], floats: &[f64], to: DType) -> SmallVec<[Number; 4]> {
    match body {
        Body::Fill if acc == DType::I64 => SmallVec::from_iter([Number::Int(ints[0])]),
        // The kernel rounds an f32 to 16 bits.
        Body::Fill if to.size() == 2 => SmallVec::from_iter([Number::Float(round_to_odd(floats[0]).into())]),
        Body::Fill => SmallVec::from_iter([Number::Float(floats[0])]),
        Body::Row(_) if acc == DType::I64 => ints.iter().map(|&v| Number::Int(v)).collect(),
        Body::Row(_) => floats.iter().map(|&v| Number::Float(v)).collect(),
        Body::Copy | Body::Cast | Body::Reduce(_) => SmallVec::new(),
    }
}

/// The body of an elementwise kernel.
pub fn body(kernel: Kernel<'_>) -> Option<Body> {
    Some(match kernel {
        Kernel::Fill => Body::Fill,
        Kernel::Copy => Body::Copy,
        Kernel::Cast => Body::Cast,
        Kernel::Pointwise(row) => Body::Row(row),
        _ => return None,
    })
}

pub fn run(gpu: &Gpu, call: &Call<'_>) -> Result<()> {
    let not_elementwise = || Error::backend(call.op, format!("{} is not elementwise", call.kernel));
    let body = body(call.kernel).ok_or_else(not_elementwise)?;
    let acc = acc(call.op, body, call.inputs.iter().chain(call.outputs).map(|o| o.dtype))?;
    let outputs: SmallVec<[DType; 4]> = call.outputs.iter().map(|o| o.dtype).collect();
    let check = match body {
        Body::Row(Pointwise::NormalizeIndex | Pointwise::NeighborIndex) => Some(Check::RowIndex(call.ints[0])),
        Body::Row(row) if row.is_checked() => Some(Check::Value),
        _ => None,
    };
    launch(
        gpu,
        &Elements {
            op: call.op,
            steps: SmallVec::from_iter([Step::alone(body, acc, call.inputs.len(), &outputs, &outputs)]),
            stored: (0..outputs.len()).map(Source::Result).collect(),
            is_group: false,
            acc,
            numbers: &numbers(body, acc, call.ints, call.floats, outputs[0]),
            check,
        },
        call.inputs,
        call.outputs,
    )
}

/// Steps over the elements of operands of one shape.
pub struct Elements<'a> {
    pub op: &'static str,
    pub steps: SmallVec<[Step; 1]>,
    pub stored: SmallVec<[Source; 4]>,
    pub is_group: bool,
    pub acc: DType,
    pub numbers: &'a [Number],
    /// The check of a row that is the only step.
    pub check: Option<Check>,
}

/// Launches the kernel of some steps.
pub fn launch(gpu: &Gpu, elements: &Elements<'_>, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    let Some(order) = memory_order(outputs[0].layout) else { return launch_in_order(gpu, elements, inputs, outputs) };
    let all = || inputs.iter().chain(outputs);
    let layouts: SmallVec<[Layout; 8]> = all().map(|operand| operand.layout.permute(&order)).collect();
    let operands: SmallVec<[Operand<'_>; 8]> =
        all().zip(&layouts).map(|(operand, layout)| Operand { layout, ..*operand }).collect();
    let (inputs, outputs) = operands.split_at(inputs.len());
    launch_in_order(gpu, elements, inputs, outputs)
}

/// The dimensions of an output by descending strides; none if that is their order.
fn memory_order(layout: &Layout) -> Option<SmallVec<[usize; 8]>> {
    let strides = layout.strides();
    if strides.is_sorted_by(|a, b| a >= b) {
        return None;
    }
    let mut order: SmallVec<[usize; 8]> = (0..strides.len()).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(strides[d]));
    Some(order)
}

fn launch_in_order(gpu: &Gpu, elements: &Elements<'_>, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    let &Elements { op, acc, check, .. } = elements;
    let operands: SmallVec<[&Operand<'_>; 8]> = inputs.iter().chain(outputs).collect();
    let mut joint = Joint::new(operands.iter().copied());
    let addresses: SmallVec<[u64; 8]> =
        operands.iter().map(|o| Ok(element_address(address(o.memory)?, o))).collect::<Result<_>>()?;
    let vector = vector(&joint, &operands, &addresses);
    let apart = |k: &usize| vector > 1 && joint.strides[*k].last().is_some_and(|&stride| stride > 1);
    let apart = (0..operands.len()).filter(apart).collect();
    let generator = Generator {
        steps: elements.steps.clone(),
        stored: elements.stored.clone(),
        is_group: elements.is_group,
        acc,
        is_still: joint.strides.iter().map(|s| s.last().is_none_or(|&s| s == 0)).collect(),
        rank: joint.rank(),
        vector,
        apart,
        is_wide: joint.is_wide(),
        sums: 0,
        is_squared: false,
        inputs: inputs.iter().map(|o| o.dtype).collect(),
        outputs: outputs.iter().map(|o| o.dtype).collect(),
    };
    let n = joint.numel();
    if generator.vector > 1 && generator.rank > 1 {
        joint.extents[generator.rank - 1] /= generator.vector;
    }
    let named = Integers::new().list("EXTENTS", joint.extents).list("STRIDES", joint.strides.into_iter().flatten());
    let arguments = Arguments::new().pointers(addresses).named(named).int(n);
    let arguments = elements.numbers.iter().fold(arguments, |arguments, number| match *number {
        Number::Int(v) => arguments.int(v),
        Number::Float(v) => arguments.float(v, acc),
    });
    let slot = check.map(|check| gpu.status(op, check)).transpose()?;
    let arguments = arguments.pointers(slot.as_ref().map(|slot| slot.address));
    gpu.generated(
        generator.variant(),
        "elementwise",
        &|| generator.text(),
        each(n.div_ceil(generator.vector)),
        &arguments,
    )?;
    let Some(slot) = slot else { return Ok(()) };
    gpu.checked(slot, |position| value_error_of(gpu, op, inputs.iter(), position, acc))
}

/// The error of a refused element, at `position` of operands of one shape or of rank 0.
pub fn value_error_of<'a>(
    gpu: &Gpu,
    op: &'static str,
    operands: impl Iterator<Item = &'a Operand<'a>>,
    position: usize,
    acc: DType,
) -> Result<Error> {
    let value = |x: &Operand<'_>| Ok(shown(gpu.element(x, x.layout.shape().rank(), position)?, acc));
    let values: Vec<String> = operands.map(value).collect::<Result<_>>()?;
    Ok(value_error(op, position, &values.join(", ")))
}

pub const FAMILY: Family = Family { launchers: &[Launcher::of::<Blocks>()], examples: EXAMPLES };

impl FusedLaunch for Blocks {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let layouts: SmallVec<[(usize, Layout); 8]> =
            self.counts.iter().enumerate().flat_map(|(k, &n)| blocks(k, call.outputs[k].layout, n)).collect();
        let outputs: SmallVec<[Operand<'_>; 8]> =
            layouts.iter().map(|(k, layout)| Operand { layout, ..call.outputs[*k] }).collect();
        run(gpu, &Call { kernel: Kernel::Pointwise(self.row), outputs: &outputs, floats: self.attributes, ..*call })
    }
}

/// The parts of output `k`, `count` of them side by side along its last dimension.
fn blocks(k: usize, layout: &Layout, count: usize) -> impl Iterator<Item = (usize, Layout)> + '_ {
    let last = layout.shape().rank() - 1;
    let width = layout.shape()[last] / count;
    (0..count).map(move |i| (k, layout.narrow(last, i * width, width, 1)))
}

/// A number of the arithmetic as the CPU shows it.
fn shown(value: Scalar, acc: DType) -> String {
    match value {
        Scalar::Float(v) if acc == DType::F64 => format!("{v:?}"),
        Scalar::Float(v) => format!("{:?}", v as f32),
        Scalar::Int(v) => v.to_string(),
    }
}

/// The arithmetic of a body on operands of these dtypes. Errors: `Unsupported` if a row does not run in it.
pub fn acc(op: &'static str, body: Body, mut dtypes: impl Iterator<Item = DType> + Clone) -> Result<DType> {
    let acc = match body {
        Body::Copy => DType::I64,
        _ if dtypes.clone().any(|d| d == DType::F64) => DType::F64,
        _ if dtypes.any(DType::is_float) => DType::F32,
        _ => DType::I64,
    };
    if let Body::Row(row) = body
        && (acc == DType::I64) != (row.domain() == Domain::Integer)
        && row.domain() != Domain::Any
    {
        return Err(Error::unsupported(op, format!("`{}` does not run on {acc}", row.name())));
    }
    Ok(acc)
}

/// How many neighbours a thread takes at once: 16 bytes of the largest dtype, where all operands allow it. Neighbours may lie apart within a
/// sector.
fn vector(joint: &Joint, operands: &[&Operand<'_>], addresses: &[u64]) -> usize {
    let Some(&last) = joint.extents.last() else { return 1 };
    let moving = || joint.strides.iter().zip(operands).zip(addresses).filter(|((s, _), _)| s.last() != Some(&0));
    let Some(size) = moving().map(|((_, o), _)| o.dtype.size()).max() else { return 1 };
    let vector = 16 / size;
    let is_near = |stride: usize, o: &Operand<'_>| stride == 1 || joint.rank() > 1 && stride * o.dtype.size() <= SECTOR;
    let are_near = moving().all(|((strides, o), _)| strides.last().is_some_and(|&stride| is_near(stride, o)));
    let in_words = || moving().filter(|((strides, _), _)| strides.last() == Some(&1));
    let outer = in_words().flat_map(|((strides, _), _)| &strides[..joint.rank() - 1]).copied();
    let steps = outer.chain((joint.rank() > 1).then_some(last));
    let memory = in_words().map(|((_, o), &address)| (address, o.dtype.size()));
    if are_near && fits(vector, steps, memory) { vector } else { 1 }
}

impl Body {
    /// Its name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Body::Fill => "fill",
            Body::Copy => "copy",
            Body::Cast => "cast",
            Body::Row(row) => row.name(),
            Body::Reduce(_) => "reduce",
        }
    }

    /// About how many instructions it takes.
    pub fn operations(self) -> usize {
        static KNOWN: LazyLock<Mutex<HashMap<Pointwise, usize>>> = LazyLock::new(Mutex::default);
        let Body::Row(row) = self else { return 1 };
        *KNOWN.lock().entry(row).or_insert_with(|| operations(&c_source(row)))
    }

    /// How many numbers it takes as arguments.
    pub fn attributes(self) -> usize {
        match self {
            Body::Fill => 1,
            Body::Row(row) => row.attributes(),
            Body::Copy | Body::Cast | Body::Reduce(_) => 0,
        }
    }
}

/// About how many instructions the text of a row takes: one a statement, more for functions.
fn operations(text: &str) -> usize {
    const FUNCTION: usize = 16;
    const QUOTIENT: usize = 8;
    let of_line = |line: &str| match line.split_once(" = ") {
        Some((_, value)) if value.contains("divide_(") || value.contains("quotient_(") => QUOTIENT,
        Some((_, value)) if value.contains("_(") && !value.contains("abs_(") => FUNCTION,
        _ => 1,
    };
    text.lines().filter(|line| line.contains(" = ")).map(of_line).sum()
}

/// The name of a row's function that calls less exact ones, beside other functions.
fn near_name(row: Pointwise) -> String {
    format!("{}_near", row.name())
}

impl Generator {
    /// Whether elements may be refused.
    pub fn checks(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.body, Body::Row(row) if row.is_checked()))
    }

    pub fn name(&self) -> &'static str {
        if self.is_group { "group" } else { self.steps[0].body.name() }
    }

    /// Whether this is a copy, which moves bits.
    fn is_copy(&self) -> bool {
        !self.is_group && matches!(self.steps[0].body, Body::Copy)
    }

    /// Whether the steps read the value that an output had.
    pub fn reads(&self, output: usize) -> bool {
        reads(&self.steps, &self.stored, output)
    }

    /// Per operand, the name of its storage type and its size.
    pub fn operands(&self) -> Vec<(&'static str, usize)> {
        let all = self.inputs.iter().chain(&self.outputs);
        all.map(|&d| (if self.is_copy() { bits(d) } else { d.name() }, d.size())).collect()
    }

    fn variant(&self) -> Variant {
        let variant = self.describe(Variant::new("elementwise").define("THREADS", THREADS));
        if !self.is_group {
            return variant;
        }
        variant.of_text(&self.text())
    }

    /// Adds all that the text depends on.
    pub fn describe(&self, variant: Variant) -> Variant {
        let still = self.is_still.iter().enumerate().map(|(k, &still)| (still as usize) << k).sum::<usize>();
        let variant = variant
            .define("ROW", self.name())
            .define("RANK", self.rank)
            .define("VECTOR", self.vector)
            .define("STILL", still)
            .optional("APART", (!self.apart.is_empty()).then(|| self.apart.iter().map(|k| 1 << k).sum::<usize>()))
            .flags([("NEEDS_F64", self.acc == DType::F64), ("WIDE", self.is_wide)]);
        const NAMES: [&str; 16] =
            ["T0", "T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8", "T9", "T10", "T11", "T12", "T13", "T14", "T15"];
        let operands = NAMES.into_iter().zip(self.operands());
        operands.fold(variant, |variant, (name, (dtype, _))| variant.define(name, dtype))
    }

    /// The arithmetic and the row that the kernel calls. Nothing is contracted, so that elements have the same bits whether
    /// they are computed alone or side by side, in one tensor or in many.
    pub fn functions(&self) -> String {
        let mut text = String::from("CONTRACT_OFF\n");
        // With sums it is the type of joins, which have it already.
        if self.sums == 0 && !self.steps.iter().any(|step| matches!(step.body, Body::Reduce(_))) {
            text += &format!("typedef {} A;\n", self.acc.name());
        }
        match self.acc {
            DType::I64 => text += INTEGERS,
            _ => text.extend([FLOATS, SATURATE]),
        }
        let mut known: SmallVec<[(Pointwise, bool); 4]> = SmallVec::new();
        let steps = |is_near: bool| self.steps.iter().filter(move |step| step.near.is_empty() != is_near);
        for step in steps(false).chain(steps(true)) {
            let is_near = !step.near.is_empty();
            if is_near && known.iter().all(|(_, known)| !known) {
                text += step.near;
            }
            let Body::Row(row) = step.body else {
                continue;
            };
            if known.contains(&(row, is_near)) {
                continue;
            }
            known.push((row, is_near));
            text += &match is_near && self.is_group {
                true => {
                    c_source(row).replacen(&format!("void {}(", row.name()), &format!("void {}(", near_name(row)), 1)
                }
                false => c_source(row),
            };
        }
        text
    }

    fn text(&self) -> String {
        let mut text = self.functions();
        let operands: Vec<String> = (0..self.is_still.len()).map(|k| self.parameter(k)).collect();
        let attributes: String = (0..self.attributes()).map(|i| format!(", A k{i}")).collect();
        let status = if self.checks() { ", GLOBAL i64 *status" } else { "" };
        // Writing to a String cannot fail.
        let index = if self.is_wide { "i64" } else { "u32" };
        let _ = writeln!(
            text,
            "KERNEL(elementwise)({}, Ints p, i64 count{attributes}{status}) {{\n    \
             {index} n = ({index})count, first = ({index})(GROUP * THREADS + LANE), threads = ({index})(GROUPS * THREADS);",
            operands.join(", ")
        );
        let vector = self.vector;
        let (count, unit) = if vector > 1 { ("n / VECTOR", "vector") } else { ("n", "element") };
        let _ = writeln!(text, "    // One {unit} a turn.\n    for ({index} g = first; g < {count}; g += threads) {{");
        self.positions(&mut text);
        if vector > 1 {
            self.vector_body(&mut text);
        } else {
            self.element("        ", &|k| format!("o{k}"), "g", &mut text);
        }
        text += "    }\n";
        if vector > 1 && self.rank == 1 {
            let _ = writeln!(text, "    for ({index} g = n / VECTOR * VECTOR + first; g < n; g += threads) {{");
            let at = |k: usize| if self.is_still[k] { "0".to_string() } else { "g".to_string() };
            self.element("        ", &at, "g", &mut text);
            text += "    }\n";
        }
        text + "}\n"
    }

    /// How many numbers the kernel takes as arguments.
    pub fn attributes(&self) -> usize {
        self.steps.iter().map(|step| step.body.attributes()).sum()
    }

    /// The name of operand `k` in the text.
    pub fn operand(&self, k: usize) -> String {
        if k < self.inputs.len() { format!("x{k}") } else { format!("y{}", k - self.inputs.len()) }
    }

    pub fn parameter(&self, k: usize) -> String {
        let is_constant = if k < self.inputs.len() { "const " } else { "" };
        format!("GLOBAL {is_constant}S_{} *{}", self.operands()[k].0, self.operand(k))
    }

    /// `o0, o1, ..`: where the operands' elements of turn `g` lie.
    fn positions(&self, text: &mut String) {
        let operands = self.is_still.len();
        if self.rank <= 1 {
            for k in 0..operands {
                let stride = if self.rank == 0 || self.is_still[k] { "0".to_string() } else { self.stride(k, 0) };
                let at = if self.vector > 1 { "g * VECTOR".to_string() } else { format!("g * {stride}") };
                let at = if stride == "0" { "0".to_string() } else { at };
                let _ = writeln!(text, "        idx o{k} = (idx)({at});");
            }
            return;
        }
        text.push_str("        idx rest = (idx)g, c;\n");
        (0..operands).for_each(|k| text.push_str(&format!("        idx o{k} = 0;\n")));
        for d in (0..self.rank).rev() {
            let extent = format!("(idx)EXTENTS({d})");
            match d {
                0 => text.push_str("        c = rest;\n"),
                _ => text.push_str(&format!("        c = rest % {extent};\n        rest /= {extent};\n")),
            }
            let unit = if d + 1 == self.rank && self.vector > 1 { " * VECTOR" } else { "" };
            for k in 0..operands {
                text.push_str(&format!("        o{k} += c{unit} * (idx){};\n", self.stride(k, d)));
            }
        }
    }

    fn stride(&self, operand: usize, dim: usize) -> String {
        format!("STRIDES({})", self.rank * operand + dim)
    }

    /// One element: operand `k` at `at(k)`.
    pub fn element(&self, indent: &str, at: &dyn Fn(usize) -> String, position: &str, text: &mut String) {
        let all = self.operands();
        let load = |k: usize| format!("LOAD_{}({}, {})", all[k].0, self.operand(k), at(k));
        let inputs: Vec<String> = (0..self.inputs.len()).map(load).collect();
        let first = self.inputs.len();
        let outputs: Vec<usize> = (first..all.len()).collect();
        let read: Vec<String> = outputs.iter().map(|&k| load(k)).collect();
        let raw = |k: usize| format!("{}[{}]", self.operand(k), at(k));
        self.compute(indent, &inputs, &read, position, text);
        self.moved(indent, &raw, text);
        for (m, &k) in outputs.iter().enumerate() {
            let _ = writeln!(text, "{indent}{}", self.store(m, &self.operand(k), &at(k)));
        }
        self.add(indent, text);
    }

    /// The statement that stores what output `m` becomes.
    pub fn store(&self, m: usize, to: &str, at: &str) -> String {
        let storage = self.operands()[self.inputs.len() + m].0;
        match self.stored[m] {
            Source::Result(n) if self.is_read(n) => format!("KEEP_{storage}({to}, {at}, s{n});"),
            Source::Result(n) => format!("STORE_{storage}({to}, {at}, r{n});"),
            _ => format!("{to}[{at}] = c{m};"),
        }
    }

    /// `c0, c1, ..`: the bits that outputs take from operands, which are read before anything is stored.
    fn moved(&self, indent: &str, raw: &dyn Fn(usize) -> String, text: &mut String) {
        (0..self.stored.len()).for_each(|m| self.moved_to(m, indent, raw, text));
    }

    /// The bits that output `m` takes from an operand, if it does.
    pub fn moved_to(&self, m: usize, indent: &str, raw: &dyn Fn(usize) -> String, text: &mut String) {
        let k = match self.stored[m] {
            Source::Input(k) => k,
            Source::Output(m) => self.inputs.len() + m,
            Source::Result(_) => return,
        };
        let _ = writeln!(text, "{indent}S_{} c{m} = {};", self.operands()[k].0, raw(k));
    }

    /// Whether a later step reads a result.
    pub fn is_read(&self, result: usize) -> bool {
        self.steps.iter().any(|step| step.sources.contains(&Source::Result(result)))
    }

    /// `r0, r1, ..` of the values of the inputs; `read` are the values that outputs had. Results that later steps read are rounded as
    /// in memory, `s0, s1, ..`.
    fn compute(&self, indent: &str, inputs: &[String], read: &[String], position: &str, text: &mut String) {
        let value = |source: &Source| match *source {
            Source::Input(k) => inputs[k].clone(),
            Source::Output(m) => read[m].clone(),
            Source::Result(n) => format!("s{n}"),
        };
        (0..self.steps.len()).for_each(|s| self.step(s, indent, &value, position, text));
    }

    /// The dtypes of all results.
    pub fn result_dtypes(&self) -> SmallVec<[DType; 8]> {
        self.steps.iter().flat_map(|step| step.results.iter().copied()).collect()
    }

    /// The results of step `s`, of the values of its sources.
    pub fn step(&self, s: usize, indent: &str, value: &dyn Fn(&Source) -> String, position: &str, text: &mut String) {
        let (step, dtypes) = (&self.steps[s], self.result_dtypes());
        let before = &self.steps[..s];
        let first = before.iter().map(Step::count).sum::<usize>();
        let values = before.iter().map(|step| step.sources.len()).sum::<usize>();
        let attributes = before.iter().map(|step| step.body.attributes()).sum::<usize>();
        let dtype = |source: &Source| match *source {
            Source::Input(k) => self.inputs[k],
            Source::Output(m) => self.outputs[m],
            Source::Result(n) => dtypes[n],
        };
        let results: Vec<String> = (first..first + step.count()).map(|n| format!("r{n}")).collect();
        match step.body {
            Body::Fill => {
                let _ = writeln!(text, "{indent}A {} = k{attributes};", results[0]);
            }
            Body::Copy => {
                let source = &step.sources[0];
                let _ = writeln!(text, "{indent}S_{} {} = {};", bits(dtype(source)), results[0], value(source));
            }
            Body::Cast => {
                let source = &step.sources[0];
                let (ctype, value) = cast(&value(source), dtype(source), step.results[0]);
                let _ = writeln!(text, "{indent}{ctype} {} = {value};", results[0]);
            }
            Body::Row(row) => {
                let names: Vec<String> = (values..values + step.sources.len()).map(|i| format!("v{i}")).collect();
                for (name, source) in names.iter().zip(&step.sources) {
                    let _ = writeln!(text, "{indent}A {name} = (A){};", value(source));
                }
                let numbers = (attributes..attributes + row.attributes()).map(|i| format!("k{i}"));
                let arguments: Vec<String> = names.into_iter().chain(numbers).collect();
                let zeros = results.iter().map(|r| format!("{r} = 0")).collect::<Vec<_>>().join(", ");
                let _ = writeln!(text, "{indent}A {zeros};");
                let pointers: Vec<String> = results.iter().map(|r| format!("&{r}")).collect();
                let name = if self.is_group && !step.near.is_empty() { near_name(row) } else { row.name().to_string() };
                let evaluate = format!("{name}({});", [arguments.clone(), pointers].concat().join(", "));
                if row.is_checked() {
                    let check = format!("{}_check({})", row.name(), arguments.join(", "));
                    let _ = writeln!(text, "{indent}if ({check}) {evaluate}");
                    let _ = writeln!(text, "{indent}else note(status, (i64)({position}), 0);");
                } else {
                    let _ = writeln!(text, "{indent}{evaluate}");
                }
            }
            // A kernel of rows joins what its threads have added up, before this.
            Body::Reduce(_) => (),
        }
        for n in (first..first + step.count()).filter(|&n| self.is_read(n)) {
            let dtype = dtypes[n].name();
            let _ = writeln!(text, "{indent}R_{dtype} s{n} = ROUND_{dtype}(r{n});");
        }
    }

    /// Adds up the results that are not stored: as shares of a mean, or as squares. Squares are summed at three scales, so that one
    /// of the sums is in range.
    fn add(&self, indent: &str, text: &mut String) {
        for i in 0..self.sums {
            let r = format!("r{}", self.outputs.len() + i);
            let _ = match self.is_squared {
                true => writeln!(text, "{indent}add_squares(squares + {i}, {r});"),
                false => writeln!(text, "{indent}sums[{i}] += {r} * share;"),
            };
        }
    }

    /// A vector: whole words are moved, and their elements are computed one by one in registers.
    pub fn vector_body(&self, text: &mut String) {
        const EACH: &str = "#pragma unroll\n        for (int j = 0; j < VECTOR; j++) ";
        let all = self.operands();
        // A branch between the stores of a word's halves would keep the word in memory instead of a register.
        let is_half = |size: usize| size == 2;
        for (k, &(storage, size)) in all.iter().enumerate() {
            let (name, word) = (self.operand(k), word(self.vector * size));
            if self.is_still[k] {
                let _ = writeln!(text, "        S_{storage} w{k} = {name}[o{k}];");
                continue;
            }
            let _ = writeln!(text, "        union {{ {word} all; S_{storage} each[VECTOR]; }} w{k};");
            if k >= self.inputs.len() && is_half(size) {
                let _ = writeln!(text, "        S_{storage} e{k}[VECTOR];");
            }
            let is_read = k < self.inputs.len() || self.reads(k - self.inputs.len());
            if self.apart.contains(&k) {
                if is_read {
                    let from = format!("{name}[o{k} + j * (idx){}]", self.stride(k, self.rank - 1));
                    let _ = writeln!(text, "{EACH}w{k}.each[j] = {from};");
                }
            } else if is_read {
                let is_constant = if k < self.inputs.len() { "const " } else { "" };
                let _ = writeln!(text, "        w{k}.all = *(GLOBAL {is_constant}{word} *)({name} + o{k});");
            }
        }
        let part = |k: usize| if self.is_still[k] { format!("&w{k}, 0") } else { format!("w{k}.each, j") };
        let load = |k: usize| format!("LOAD_{}({})", all[k].0, part(k));
        text.push_str("#pragma unroll\n        for (int j = 0; j < VECTOR; j++) {\n");
        let first = self.inputs.len();
        let inputs: Vec<String> = (0..first).map(load).collect();
        let read: Vec<String> = (first..all.len()).map(load).collect();
        self.compute("            ", &inputs, &read, "g * VECTOR + j", text);
        let raw = |k: usize| if self.is_still[k] { format!("w{k}") } else { format!("w{k}.each[j]") };
        self.moved("            ", &raw, text);
        for (m, k) in (first..all.len()).enumerate() {
            let to = if is_half(all[k].1) { format!("e{k}") } else { format!("w{k}.each") };
            let _ = writeln!(text, "            {}", self.store(m, &to, "j"));
        }
        self.add("            ", text);
        text.push_str("        }\n");
        for (k, &(_, size)) in all.iter().enumerate().skip(first) {
            let word = word(self.vector * size);
            if is_half(size) {
                let _ = writeln!(text, "{EACH}w{k}.each[j] = e{k}[j];");
            }
            let name = self.operand(k);
            let _ = match self.apart.contains(&k) {
                true => {
                    let to = format!("{name}[o{k} + j * (idx){}]", self.stride(k, self.rank - 1));
                    writeln!(text, "{EACH}{to} = w{k}.each[j];")
                }
                false => writeln!(text, "        *(GLOBAL {word} *)({name} + o{k}) = w{k}.all;"),
            };
        }
    }
}

/// The type and the value of `x` converted: floats to integers are cut off and saturate, NaN becomes 0. A value for
/// 16 bits keeps the bits that decide its rounding.
fn cast(x: &str, from: DType, to: DType) -> (&'static str, String) {
    match (from.is_float(), to) {
        (_, DType::F64) => ("f64", format!("(f64){x}")),
        (true, DType::F16 | DType::BF16) if from == DType::F64 => ("f64", x.to_string()),
        (false, DType::F16 | DType::BF16) => ("f32", format!("integer_to_odd({x})")),
        (_, to) if to.is_float() => ("f32", format!("(f32){x}")),
        (true, DType::Bool) => ("int", format!("{x} != 0")),
        (true, DType::I64) => ("i64", format!("saturate({x}, -9223372036854775808.0, 9223372036854775807)")),
        (true, DType::I32) => ("i64", format!("saturate({x}, -2147483648.0, 2147483647)")),
        (true, _) => ("i64", format!("saturate({x}, 0.0, 255)")),
        (false, _) => ("i64", format!("(i64){x}")),
    }
}

const SATURATE: &str = "\
FUNCTION i64 saturate(A x, A low, i64 high) {
    return x != x ? 0 : x <= low ? (i64)low : x >= (A)high ? high : (i64)x;
}
";

/// Integer arithmetic that C leaves open: it wraps here, as everywhere in the table.
const INTEGERS: &str = "\
#define abs_(x) ((x) < 0 ? -(x) : (x))
#define pow_ int_pow_
FUNCTION A div_trunc_(A a, A b) { return b == -1 ? (A)(0 - (u64)a) : a / b; }
FUNCTION A div_floor_(A a, A b) {
    A q = div_trunc_(a, b);
    return b != -1 && a - q * b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}
#define and_(a, b) ((a) & (b))
#define or_(a, b) ((a) | (b))
#define xor_(a, b) ((a) ^ (b))
FUNCTION A shift_left_(A a, A b) { return b < 0 || b > 63 ? 0 : (A)((u64)a << b); }
FUNCTION A shift_right_(A a, A b) { return a >> (b < 0 || b > 63 ? 63 : b); }
FUNCTION A int_pow_(A a, A b) {
    if (b < 0) return a == 1 ? 1 : a == -1 ? ((b & 1) ? -1 : 1) : 0;
    u64 y = 1, base = (u64)a;
    for (; b > 0; b >>= 1, base *= base)
        if (b & 1) y *= base;
    return (A)y;
}
";

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[|d, t| differentiate(d, t, &[&[4096, 2048]], |x| x[0].silu_and_mul())];
