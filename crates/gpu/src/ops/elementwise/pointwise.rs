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
use isograd_core::backend::{round_to_odd, value_error};
use isograd_core::ops::elementwise::fused_pointwise::Blocks;
use isograd_core::pointwise::{Domain, Pointwise, c_source};
use isograd_core::{Call, DType, Error, Kernel, Layout, Operand, Result, Scalar};
use smallvec::SmallVec;
use std::fmt::Write;

/// The computation of an element.
#[derive(Clone, Copy)]
pub enum Body {
    Fill,
    Copy,
    Cast,
    Row(Pointwise),
}

/// A kernel before its text is generated: all that the text depends on.
pub struct Plan {
    pub body: Body,
    /// The arithmetic's dtype: f32, f64 or i64.
    pub acc: DType,
    pub inputs: SmallVec<[DType; 8]>,
    pub outputs: SmallVec<[DType; 4]>,
    /// Per operand, inputs first: its stride along the last dimension is 0.
    pub is_still: SmallVec<[bool; 8]>,
    pub rank: usize,
    /// Elements that a thread takes side by side.
    pub vector: usize,
    pub is_wide: bool,
    /// Number of trailing outputs that are summed instead of stored.
    pub sums: usize,
    /// True if their squares are summed.
    pub is_squared: bool,
    /// Definitions of less exact functions for the row, if all results are rounded to 16 bits.
    pub near: &'static str,
}

pub fn run(gpu: &Gpu, call: &Call<'_>) -> Result<()> {
    let Some(order) = memory_order(call.outputs[0].layout) else { return run_in_order(gpu, call) };
    let layouts: SmallVec<[Layout; 8]> =
        call.inputs.iter().chain(call.outputs).map(|operand| operand.layout.permute(&order)).collect();
    let operands: SmallVec<[Operand<'_>; 8]> = call
        .inputs
        .iter()
        .chain(call.outputs)
        .zip(&layouts)
        .map(|(operand, layout)| Operand { layout, ..*operand })
        .collect();
    let (inputs, outputs) = operands.split_at(call.inputs.len());
    run_in_order(gpu, &Call { inputs, outputs, ..*call })
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

fn run_in_order(gpu: &Gpu, call: &Call<'_>) -> Result<()> {
    let body = match call.kernel {
        Kernel::Fill => Body::Fill,
        Kernel::Copy => Body::Copy,
        Kernel::Cast => Body::Cast,
        Kernel::Pointwise(row) => Body::Row(row),
        other => return Err(Error::backend(call.op, format!("{other} is not elementwise"))),
    };
    let operands: SmallVec<[&Operand<'_>; 8]> = call.inputs.iter().chain(call.outputs).collect();
    let mut joint = Joint::new(operands.iter().copied());
    let dtypes = |list: &[Operand<'_>]| list.iter().map(|o| o.dtype).collect::<SmallVec<[DType; 8]>>();
    let (inputs, outputs) = (dtypes(call.inputs), dtypes(call.outputs));
    let acc = acc(call.op, body, inputs.iter().chain(&outputs).copied())?;
    let addresses: SmallVec<[u64; 8]> =
        operands.iter().map(|o| Ok(element_address(address(o.memory)?, o))).collect::<Result<_>>()?;
    let plan = Plan {
        body,
        acc,
        is_still: joint.strides.iter().map(|s| s.last().is_none_or(|&s| s == 0)).collect(),
        rank: joint.rank(),
        vector: vector(&joint, &operands, &addresses),
        is_wide: joint.is_wide(),
        sums: 0,
        is_squared: false,
        near: near(acc, &outputs),
        inputs,
        outputs: outputs.into_iter().collect(),
    };
    let n = joint.numel();
    if plan.vector > 1 && plan.rank > 1 {
        joint.extents[plan.rank - 1] /= plan.vector;
    }
    let named = Integers::new().list("EXTENTS", joint.extents).list("STRIDES", joint.strides.into_iter().flatten());
    let arguments = Arguments::new().pointers(addresses).named(named).int(n);
    let arguments = match body {
        Body::Fill if acc == DType::I64 => arguments.int(call.ints[0]),
        // The kernel rounds an f32 to 16 bits.
        Body::Fill if plan.outputs[0].size() == 2 => arguments.float(round_to_odd(call.floats[0]).into(), acc),
        Body::Fill => arguments.float(call.floats[0], acc),
        Body::Row(_) if acc == DType::I64 => arguments.numbers(call.ints.iter().copied()),
        Body::Row(_) => arguments.floats(call.floats.iter().copied(), acc),
        Body::Copy | Body::Cast => arguments,
    };
    let check = match body {
        Body::Row(Pointwise::NormalizeIndex | Pointwise::NeighborIndex) => Check::RowIndex(call.ints[0]),
        _ => Check::Value,
    };
    let slot = if plan.checks() { Some(gpu.status(call.op, check)?) } else { None };
    let arguments = arguments.pointers(slot.as_ref().map(|slot| slot.address));
    gpu.generated(plan.variant(), "elementwise", &|| plan.text(), each(n.div_ceil(plan.vector)), &arguments)?;
    let Some(slot) = slot else { return Ok(()) };
    gpu.checked(slot, |position| value_error_of(gpu, call.op, call.inputs.iter(), position, acc))
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

/// How many neighbours a thread takes at once: 16 bytes of the largest dtype, where all operands allow it.
fn vector(joint: &Joint, operands: &[&Operand<'_>], addresses: &[u64]) -> usize {
    let Some(&last) = joint.extents.last() else { return 1 };
    let moving = || joint.strides.iter().zip(operands).zip(addresses).filter(|((s, _), _)| s.last() != Some(&0));
    let Some(size) = moving().map(|((_, o), _)| o.dtype.size()).max() else { return 1 };
    let vector = 16 / size;
    let are_contiguous = moving().all(|((strides, _), _)| strides.last() == Some(&1));
    let outer = moving().flat_map(|((strides, _), _)| &strides[..joint.rank() - 1]).copied();
    let steps = outer.chain((joint.rank() > 1).then_some(last));
    let memory = moving().map(|((_, o), &address)| (address, o.dtype.size()));
    if are_contiguous && fits(vector, steps, memory) { vector } else { 1 }
}

impl Plan {
    /// Whether elements may be refused.
    pub fn checks(&self) -> bool {
        matches!(self.body, Body::Row(row) if row.is_checked())
    }

    fn name(&self) -> &'static str {
        match self.body {
            Body::Fill => "fill",
            Body::Copy => "copy",
            Body::Cast => "cast",
            Body::Row(row) => row.name(),
        }
    }

    /// Per operand, the name of its storage type and its size.
    pub fn operands(&self) -> Vec<(&'static str, usize)> {
        let all = self.inputs.iter().chain(&self.outputs);
        all.map(|&d| (if matches!(self.body, Body::Copy) { bits(d) } else { d.name() }, d.size())).collect()
    }

    fn variant(&self) -> Variant {
        self.describe(Variant::new("elementwise").define("THREADS", THREADS))
    }

    /// Adds all that the text depends on.
    pub fn describe(&self, variant: Variant) -> Variant {
        let still = self.is_still.iter().enumerate().map(|(k, &still)| (still as usize) << k).sum::<usize>();
        let variant = variant
            .define("ROW", self.name())
            .define("RANK", self.rank)
            .define("VECTOR", self.vector)
            .define("STILL", still)
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
        if self.sums == 0 {
            text += &format!("typedef {} A;\n", self.acc.name());
        }
        match self.acc {
            DType::I64 => text += INTEGERS,
            _ => text.extend([FLOATS, SATURATE]),
        }
        text += self.near;
        if let Body::Row(row) = self.body {
            text += &c_source(row);
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
        match self.body {
            Body::Fill => 1,
            Body::Row(row) => row.attributes(),
            Body::Copy | Body::Cast => 0,
        }
    }

    /// The name of operand `k` in the text.
    pub fn operand(&self, k: usize) -> String {
        if k < self.inputs.len() { format!("x{k}") } else { format!("y{}", k - self.inputs.len()) }
    }

    fn parameter(&self, k: usize) -> String {
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
        self.compute(indent, &inputs, &read, position, text);
        for (m, &k) in outputs.iter().enumerate() {
            let _ = writeln!(text, "{indent}STORE_{}({}, {}, r{m});", all[k].0, self.operand(k), at(k));
        }
        self.add(indent, text);
    }

    /// `r0, r1, ..` of the values of the inputs; `read` are the values that outputs had.
    fn compute(&self, indent: &str, inputs: &[String], read: &[String], position: &str, text: &mut String) {
        match self.body {
            Body::Fill => {
                let _ = writeln!(text, "{indent}A r0 = k0;");
            }
            Body::Copy => {
                let _ = writeln!(text, "{indent}S_{} r0 = {};", bits(self.inputs[0]), inputs[0]);
            }
            Body::Cast => {
                let (ctype, value) = cast(&inputs[0], self.inputs[0], self.outputs[0]);
                let _ = writeln!(text, "{indent}{ctype} r0 = {value};");
            }
            Body::Row(row) => {
                let read = if row.is_inout() { read } else { &[] };
                let values: Vec<String> = read.iter().chain(inputs).map(|v| format!("(A){v}")).collect();
                let attributes: Vec<String> = (0..row.attributes()).map(|i| format!("k{i}")).collect();
                let names: Vec<String> = (0..values.len()).map(|i| format!("v{i}")).collect();
                for (name, value) in names.iter().zip(&values) {
                    let _ = writeln!(text, "{indent}A {name} = {value};");
                }
                let arguments = [names.clone(), attributes].concat();
                let results: Vec<String> = (0..row.outputs()).map(|m| format!("r{m}")).collect();
                let zeros = results.iter().map(|r| format!("{r} = 0")).collect::<Vec<_>>().join(", ");
                let _ = writeln!(text, "{indent}A {zeros};");
                let pointers: Vec<String> = results.iter().map(|r| format!("&{r}")).collect();
                let evaluate = format!("{}({});", row.name(), [arguments.clone(), pointers].concat().join(", "));
                if row.is_checked() {
                    let check = format!("{}_check({})", row.name(), arguments.join(", "));
                    let _ = writeln!(text, "{indent}if ({check}) {evaluate}");
                    let _ = writeln!(text, "{indent}else note(status, (i64)({position}), 0);");
                } else {
                    let _ = writeln!(text, "{indent}{evaluate}");
                }
            }
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
        let all = self.operands();
        let is_inout = matches!(self.body, Body::Row(row) if row.is_inout());
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
            if k < self.inputs.len() || is_inout {
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
        for (m, k) in (first..all.len()).enumerate() {
            let to = if is_half(all[k].1) { format!("e{k}") } else { format!("w{k}.each") };
            let _ = writeln!(text, "            STORE_{}({to}, j, r{m});", all[k].0);
        }
        self.add("            ", text);
        text.push_str("        }\n");
        for (k, &(_, size)) in all.iter().enumerate().skip(first) {
            let word = word(self.vector * size);
            if is_half(size) {
                let _ =
                    writeln!(text, "#pragma unroll\n        for (int j = 0; j < VECTOR; j++) w{k}.each[j] = e{k}[j];");
            }
            let _ = writeln!(text, "        *(GLOBAL {word} *)({} + o{k}) = w{k}.all;", self.operand(k));
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
