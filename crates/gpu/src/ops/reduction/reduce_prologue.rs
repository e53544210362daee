//! A row in front of a reduction: one of its results is summed and the others are written, in one pass over its operands.

use crate::driver::Address;
use crate::launch::arguments::Arguments;
use crate::launch::operands::start_of;
use crate::program::source::{FLOATS, Variant, near, word};
use isograd_core::ops::elementwise::pointwise_sum::PointwiseSum;
use isograd_core::pointwise::{Pointwise, c_source};
use isograd_core::{Call, DType, Layout, Operand, Result};
use smallvec::SmallVec;
use std::fmt::Write;

/// Where an operand's element for an element of the first input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// At the same place.
    Same,
    /// At the number of the result.
    Kept,
    /// At the number of the element within its result.
    Summed,
    /// There is only one.
    One,
}

/// An operand in memory.
#[derive(Clone, Copy, Debug)]
struct Part {
    address: Address,
    dtype: DType,
    at: At,
}

/// A row with its operands.
pub struct Prologue {
    row: Pointwise,
    /// The first is the operand of the reduction.
    inputs: SmallVec<[Part; 4]>,
    /// None is the result that is summed.
    outputs: SmallVec<[Option<Part>; 4]>,
    floats: SmallVec<[f64; 4]>,
    acc: DType,
    /// Definitions of less exact functions, if all results are rounded to 16 bits.
    near: &'static str,
}

impl Prologue {
    /// Of a call.
    pub fn new(call: &Call<'_>, sum: &PointwiseSum) -> Result<Prologue> {
        let find = |operand: &&Operand<'_>| -> Result<(Address, DType, Layout)> {
            Ok((start_of(operand)?, operand.dtype, operand.layout.clone()))
        };
        let all = |operands: &[Operand<'_>]| operands.iter().map(|o| find(&o)).collect::<Result<SmallVec<[_; 4]>>>();
        Ok(Prologue::of(sum, &all(call.inputs)?, &all(call.outputs)?))
    }

    /// Of operands with these addresses.
    pub fn of(
        sum: &PointwiseSum,
        inputs: &[(Address, DType, Layout)],
        outputs: &[(Address, DType, Layout)],
    ) -> Prologue {
        let (shape, acc) = (inputs[0].2.shape(), inputs[0].1.acc());
        let summed = outputs.iter().map(|y| y.2.shape()).find(|y| *y != shape).unwrap_or(shape);
        let at = |layout: &Layout| {
            let strides = layout.strides().iter().zip(shape.dims()).zip(summed.dims());
            let steps = strides.filter(|((_, d), _)| **d > 1).map(|((stride, d), y)| (*stride, d != y));
            let moves = |is_summed: bool| steps.clone().any(|(stride, is)| is == is_summed && stride > 0);
            match (steps.clone().all(|(stride, _)| stride > 0), moves(false), moves(true)) {
                (true, ..) => At::Same,
                (_, true, _) => At::Kept,
                (_, _, true) => At::Summed,
                _ => At::One,
            }
        };
        let part = |(address, dtype, layout): &(Address, DType, Layout)| Part {
            address: *address,
            dtype: *dtype,
            at: at(layout),
        };
        let written = |y: &(Address, DType, Layout)| (y.2.shape() == shape).then(|| Part { at: At::Same, ..part(y) });
        let results: SmallVec<[DType; 4]> = outputs.iter().map(|y| y.1).collect();
        Prologue {
            row: sum.row,
            inputs: inputs.iter().map(part).collect(),
            outputs: outputs.iter().map(written).collect(),
            floats: sum.attributes.iter().copied().collect(),
            acc,
            near: near(acc, &results),
        }
    }

    /// Operands that are read or written at the place of the first input, by their names.
    fn moving(&self) -> impl Iterator<Item = (String, &Part)> {
        let inputs = self.inputs.iter().enumerate().filter(|(_, part)| part.at == At::Same);
        let outputs = self.outputs.iter().enumerate().filter_map(|(m, part)| Some((m, part.as_ref()?)));
        inputs.map(|(k, part)| (format!("x{k}"), part)).chain(outputs.map(|(m, part)| (format!("y{m}"), part)))
    }

    /// The size of the largest elements that are read or written side by side.
    pub fn size(&self) -> usize {
        self.moving().map(|(_, part)| part.dtype.size()).max().unwrap_or(1)
    }

    /// The operands that are read or written at the place of the first input, with the sizes of their elements.
    pub fn moved(&self) -> SmallVec<[(Address, usize); 4]> {
        self.moving().map(|(_, part)| (part.address, part.dtype.size())).collect()
    }

    /// The program of a reduction with this in front of it.
    pub fn variant(&self, reduction: Variant) -> Variant {
        let starts = self.inputs.iter().rev().fold(0, |all, part| 4 * all + part.at as usize);
        let written = self.outputs.iter().rev().fold(0, |all, part| 2 * all + part.is_some() as usize);
        let variant = Variant { file: "prologue", ..reduction }.define("ROW", self.row.name());
        let variant = variant.define("PLACES", starts).define("WRITTEN", written);
        const NAMES: [&str; 8] = ["T0", "T1", "T2", "T3", "T4", "T5", "T6", "T7"];
        let parts = NAMES.into_iter().zip(self.inputs.iter().chain(self.outputs.iter().flatten()));
        parts.fold(variant, |variant, (name, part)| variant.define(name, part.dtype))
    }

    /// Adds the row's operands and attributes, which follow the arguments of the reduction.
    pub fn arguments(&self, arguments: Arguments) -> Arguments {
        let pointers = self.inputs.iter().skip(1).chain(self.outputs.iter().flatten()).map(|part| part.address);
        arguments.pointers(pointers).floats(self.floats.iter().copied(), self.acc)
    }

    /// The functions that `reduce.c` calls for each word of operands, then that file.
    pub fn text(&self, vector: usize, is_columns: bool) -> String {
        // Not contracted, as elementwise kernels are not: a result has the same bits there.
        let mut text = format!("CONTRACT_OFF\n{FLOATS}{}{}", self.near, c_source(self.row));
        let storage = |part: &Part| format!("S_{}", part.dtype.name());
        let inputs = || self.inputs.iter().enumerate();
        let outputs = || self.outputs.iter().enumerate().filter_map(|(m, part)| Some((m, part.as_ref()?)));
        let same = || inputs().filter(|(_, part)| part.at == At::Same);
        let fixed = || inputs().filter(|(_, part)| matches!(part.at, At::Kept | At::One));
        let mut parameters: Vec<(String, String)> = Vec::new();
        let pointer =
            |constant: &str, part: &Part, name: String| (format!("GLOBAL {constant}{} *", storage(part)), name);
        parameters.extend(inputs().skip(1).map(|(k, part)| pointer("const ", part, format!("x{k}"))));
        parameters.extend(outputs().map(|(m, part)| pointer("", part, format!("y{m}"))));
        parameters.extend((0..self.floats.len()).map(|i| ("A ".to_string(), format!("k{i}"))));
        let declared: String = parameters.iter().map(|(of, name)| format!(", {of}{name}")).collect();
        let given: String = parameters.iter().map(|(_, name)| format!(", {name}")).collect();
        let word = |part: &Part| word(vector * part.dtype.size());
        // Writing to a String cannot fail.
        let _ = writeln!(text, "#define ROW_PARAMETERS {declared}\n#define ROW_ARGUMENTS {given}");
        text += "typedef struct {\n";
        for (k, part) in same() {
            let _ = writeln!(text, "    union {{ {} all; {} each[VECTOR]; }} x{k};", word(part), storage(part));
        }
        text += "} Read;\n#define READ(w, x, at) do {";
        for (k, part) in same() {
            let from = if k == 0 { "(x)".to_string() } else { format!("x{k}") };
            let _ = write!(text, " (w).x{k}.all = *(GLOBAL const {} *)({from} + (at));", word(part));
        }
        // Operands that are the same for all elements of a result, or of neighbouring results.
        let side_by_side = if is_columns { vector } else { 1 };
        let _ = writeln!(text, " }} while (0)\n#define SIDE_BY_SIDE {side_by_side}\ntypedef struct {{\n    int none;");
        for (k, _) in fixed() {
            let _ = writeln!(text, "    A x{k}[SIDE_BY_SIDE];");
        }
        text +=
            "} Fixed;\nFUNCTION Fixed fixed_of(idx number ROW_PARAMETERS) {\n    Fixed fixed;\n    fixed.none = 0;\n";
        text += "#pragma unroll\n    for (int j = 0; j < SIDE_BY_SIDE; j++) {\n";
        for (k, part) in fixed() {
            let at = if part.at == At::One { "0" } else { "number * SIDE_BY_SIDE + j" };
            let _ = writeln!(text, "        fixed.x{k}[j] = (A)LOAD_{}(x{k}, {at});", part.dtype.name());
        }
        text += "    }\n    return fixed;\n}\n";
        text += "FUNCTION void take_words(A *acc, Read w, Fixed fixed, idx at, idx i ROW_PARAMETERS) {\n";
        for (m, part) in outputs() {
            let _ = writeln!(text, "    union {{ {} all; {} each[VECTOR]; }} w{m};", word(part), storage(part));
            // Apart from the word, as in elementwise kernels.
            let _ = writeln!(text, "    {} e{m}[VECTOR];", storage(part));
        }
        text += "#pragma unroll\n    for (int j = 0; j < VECTOR; j++) {\n";
        let (fixed_at, summed_at) = if is_columns { ("j", "i") } else { ("0", "i + j") };
        for (k, part) in inputs() {
            let dtype = part.dtype.name();
            let value = match part.at {
                At::Same => format!("(A)LOAD_{dtype}(w.x{k}.each, j)"),
                At::Kept | At::One => format!("fixed.x{k}[{fixed_at}]"),
                At::Summed => format!("(A)LOAD_{dtype}(x{k}, {summed_at})"),
            };
            let _ = writeln!(text, "        A v{k} = {value};");
        }
        let list = |name: &str, count: usize| (0..count).map(|i| format!("{name}{i}")).collect::<Vec<_>>();
        let results = list("r", self.outputs.len());
        let pointers = results.iter().map(|r| format!("&{r}")).collect();
        let arguments = [list("v", self.inputs.len()), list("k", self.floats.len()), pointers].concat().join(", ");
        let zeros = results.iter().map(|r| format!("{r} = 0")).collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "        A {zeros};\n        {}({arguments});", self.row.name());
        for (m, part) in self.outputs.iter().enumerate() {
            let _ = match part {
                Some(part) => writeln!(text, "        STORE_{}(e{m}, j, r{m});", part.dtype.name()),
                None => writeln!(text, "        acc[j] = acc[j] + r{m};"),
            };
        }
        text += "    }\n";
        for (m, part) in outputs() {
            let _ = writeln!(text, "#pragma unroll\n    for (int j = 0; j < VECTOR; j++) w{m}.each[j] = e{m}[j];");
            let _ = writeln!(text, "    *(GLOBAL {} *)(y{m} + at) = w{m}.all;", word(part));
        }
        text + "}\n#include \"reduction/reduce.c\"\n"
    }
}
