//! Elementwise steps in front of a sum: one of their results is summed and others are written, in one pass over their operands.

use crate::driver::Address;
use crate::launch::arguments::Arguments;
use crate::launch::operands::start_of;
use crate::ops::elementwise::group::Group;
use crate::ops::elementwise::pointwise::{Body, Generator, Number, Source, Step};
use crate::program::source::{Variant, near, word};
use isograd_core::backend::Reduce;
use isograd_core::ops::elementwise::pointwise_sum::PointwiseSum;
use isograd_core::{Call, DType, Layout, Operand, Result, Shape};
use smallvec::SmallVec;
use std::fmt::Write;

/// Where an operand's element for an element of the first input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// The operand has an element for each element of the first input.
    Same,
    /// The operand has an element for each result.
    Kept,
    /// The operand has an element for each element of a result.
    Summed,
    /// The operand has one element.
    One,
}

/// An operand in memory.
#[derive(Clone, Copy, Debug)]
struct Located {
    address: Address,
    dtype: DType,
    at: At,
}

/// Where an operand is, its dtype, and its layout in the shape of what is summed.
pub type Found = (Address, DType, Layout);

/// The result that is summed.
#[derive(Clone, Copy, Debug)]
struct Term {
    number: usize,
    /// The dtype to which it is rounded.
    dtype: DType,
    /// A sum or a mean.
    kind: Reduce,
}

/// Steps in front of a sum, with their operands.
pub struct Prologue {
    generator: Generator,
    inputs: SmallVec<[Located; 4]>,
    /// The input that is the operand of the reduction.
    first: usize,
    outputs: SmallVec<[Located; 4]>,
    term: Term,
    numbers: SmallVec<[Number; 4]>,
}

impl Prologue {
    /// The prologue of a call.
    pub fn new(call: &Call<'_>, sum: &PointwiseSum) -> Result<Prologue> {
        let find = |o: &Operand<'_>| -> Result<Found> { Ok((start_of(o)?, o.dtype, o.layout.clone())) };
        let all = |operands: &[Operand<'_>]| operands.iter().map(find).collect::<Result<SmallVec<[_; 4]>>>();
        Ok(Prologue::of(sum, &all(call.inputs)?, &all(call.outputs)?))
    }

    /// The prologue of the operands of a call.
    pub fn of(sum: &PointwiseSum, inputs: &[Found], outputs: &[Found]) -> Prologue {
        let (shape, acc) = (inputs[0].2.shape(), inputs[0].1.acc());
        let term = outputs.iter().position(|y| y.2.shape() != shape).unwrap_or(0);
        let results: SmallVec<[DType; 4]> = outputs.iter().map(|y| y.1).collect();
        let stored: SmallVec<[usize; 4]> = (0..outputs.len()).filter(|&m| m != term).collect();
        let step = Step {
            body: Body::Row(sum.row),
            sources: (0..inputs.len()).map(Source::Input).collect(),
            near: near(acc, &results),
            results,
            is_of_rows: false,
        };
        let generator = Generator {
            steps: SmallVec::from_iter([step]),
            stored: stored.iter().map(|&m| Source::Result(m)).collect(),
            is_group: false,
            ..generator(acc)
        };
        let written: SmallVec<[Found; 4]> = stored.iter().map(|&m| outputs[m].clone()).collect();
        let numbers = sum.attributes.iter().map(|&v| Number::Float(v)).collect();
        let to = outputs[term].2.shape();
        let term = Term { number: term, dtype: acc, kind: Reduce::Sum };
        Prologue::with(generator, term, numbers, (inputs, &written), to)
            .expect("the first input of the row has its shape")
    }

    /// The prologue of the steps of a group, the last of which sums a result to the output of this number, with these operands. None if an operand is
    /// not in memory as the reduction reads it.
    pub fn of_group(group: &Group, y: usize, inputs: &[Found], outputs: &[Found]) -> Option<Prologue> {
        let (sum, steps) = group.steps.split_last()?;
        let (Source::Result(term), Body::Reduce(kind)) = (sum.sources[0], sum.body) else { return None };
        let dtype = *steps.iter().flat_map(|step| &step.results).nth(term)?;
        let term = Term { number: term, dtype, kind };
        let others = |m: &usize| *m != y;
        let generator = Generator {
            steps: steps.iter().cloned().collect(),
            stored: (0..outputs.len()).filter(others).map(|m| group.stored[m]).collect(),
            is_group: true,
            ..generator(group.acc)
        };
        let written: SmallVec<[Found; 4]> = (0..outputs.len()).filter(others).map(|m| outputs[m].clone()).collect();
        Prologue::with(generator, term, group.numbers.clone(), (inputs, &written), outputs[y].2.shape())
    }

    fn with(
        generator: Generator,
        term: Term,
        numbers: SmallVec<[Number; 4]>,
        (inputs, outputs): (&[Found], &[Found]),
        summed: &Shape,
    ) -> Option<Prologue> {
        let shape = inputs.iter().chain(outputs).map(|found| found.2.shape()).next()?;
        let part = |(address, dtype, layout): &Found| {
            Some(Located { address: *address, dtype: *dtype, at: at(layout, shape, summed)? })
        };
        let inputs = inputs.iter().map(part).collect::<Option<SmallVec<[Located; 4]>>>()?;
        let outputs = outputs.iter().map(part).collect::<Option<SmallVec<[Located; 4]>>>()?;
        let first = inputs.iter().position(|part| part.at == At::Same)?;
        let generator = Generator {
            inputs: inputs.iter().map(|part| part.dtype).collect(),
            outputs: outputs.iter().map(|part| part.dtype).collect(),
            ..generator
        };
        outputs.iter().all(|part| part.at == At::Same).then_some(Prologue {
            generator,
            inputs,
            first,
            outputs,
            term,
            numbers,
        })
    }

    /// Whether a sum or a mean is made, and of which dtype.
    pub fn summed(&self) -> (Reduce, DType) {
        (self.term.kind, self.term.dtype)
    }

    /// The number of the input that the reduction reads.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Operands that are read or written at the place of the first input, by their names.
    fn moving(&self) -> impl Iterator<Item = (String, &Located)> {
        let inputs = self.inputs.iter().enumerate().filter(|(_, part)| part.at == At::Same);
        let outputs = self.outputs.iter().enumerate();
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

    /// The program of a reduction with this in front of it. `text` makes its text, which identifies that of a group.
    pub fn variant(&self, reduction: Variant, text: &dyn Fn() -> String) -> Variant {
        let variant = Variant { file: "prologue", ..reduction }.define("ROW", self.generator.name());
        let variant = if self.generator.is_group {
            variant.of_text(&text())
        } else {
            let places = self.inputs.iter().rev().fold(0, |all, part| 4 * all + part.at as usize);
            variant.define("PLACES", places).define("WRITTEN", self.outputs.len()).define("TERM", self.term.number)
        };
        const NAMES: [&str; 16] =
            ["T0", "T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8", "T9", "T10", "T11", "T12", "T13", "T14", "T15"];
        let parts = NAMES.into_iter().zip(self.inputs.iter().chain(&self.outputs));
        parts.fold(variant, |variant, (name, part)| variant.define(name, part.dtype))
    }

    /// Adds the operands and numbers of the steps, which follow the arguments of the reduction.
    pub fn arguments(&self, arguments: Arguments) -> Arguments {
        let others = self.inputs.iter().enumerate().filter(|(k, _)| *k != self.first).map(|(_, part)| part);
        let arguments = arguments.pointers(others.chain(&self.outputs).map(|part| part.address));
        self.numbers.iter().fold(arguments, |arguments, number| match *number {
            Number::Int(v) => arguments.int(v),
            Number::Float(v) => arguments.float(v, self.generator.acc),
        })
    }

    /// The functions that `reduce.c` calls for each word of operands, then that file.
    pub fn text(&self, vector: usize, is_columns: bool) -> String {
        let generator = &self.generator;
        // Not contracted, as elementwise kernels are not: a result has the same bits there.
        let mut text = generator.functions();
        let storage = |part: &Located| format!("S_{}", part.dtype.name());
        let inputs = || self.inputs.iter().enumerate();
        let outputs = || self.outputs.iter().enumerate();
        let same = || inputs().filter(|(_, part)| part.at == At::Same);
        let fixed = || inputs().filter(|(_, part)| matches!(part.at, At::Kept | At::One));
        let mut parameters: Vec<(String, String)> = Vec::new();
        let pointer =
            |constant: &str, part: &Located, name: String| (format!("GLOBAL {constant}{} *", storage(part)), name);
        let others = inputs().filter(|(k, _)| *k != self.first);
        parameters.extend(others.map(|(k, part)| pointer("const ", part, format!("x{k}"))));
        parameters.extend(outputs().map(|(m, part)| pointer("", part, format!("y{m}"))));
        parameters.extend((0..generator.attributes()).map(|i| ("A ".to_string(), format!("k{i}"))));
        let declared: String = parameters.iter().map(|(of, name)| format!(", {of}{name}")).collect();
        let given: String = parameters.iter().map(|(_, name)| format!(", {name}")).collect();
        let word = |part: &Located| word(vector * part.dtype.size());
        // Writing to a String cannot fail.
        let _ = writeln!(text, "#define ROW_PARAMETERS {declared}\n#define ROW_ARGUMENTS {given}");
        text += "typedef struct {\n";
        for (k, part) in same() {
            let _ = writeln!(text, "    union {{ {} all; {} each[VECTOR]; }} x{k};", word(part), storage(part));
        }
        text += "} Read;\n#define READ(w, x, at) do {";
        for (k, part) in same() {
            let from = if k == self.first { "(x)".to_string() } else { format!("x{k}") };
            let _ = write!(text, " (w).x{k}.all = *(GLOBAL const {} *)({from} + (at));", word(part));
        }
        // Operands that are the same for all elements of a result, or of neighbouring results.
        let side_by_side = if is_columns { vector } else { 1 };
        let _ = writeln!(text, " }} while (0)\n#define SIDE_BY_SIDE {side_by_side}\ntypedef struct {{\n    int none;");
        for (k, part) in fixed() {
            let _ = writeln!(text, "    {} x{k}[SIDE_BY_SIDE];", storage(part));
        }
        text +=
            "} Fixed;\nFUNCTION Fixed fixed_of(idx number ROW_PARAMETERS) {\n    Fixed fixed;\n    fixed.none = 0;\n";
        text += "#pragma unroll\n    for (int j = 0; j < SIDE_BY_SIDE; j++) {\n";
        for (k, part) in fixed() {
            let at = if part.at == At::One { "0" } else { "number * SIDE_BY_SIDE + j" };
            let _ = writeln!(text, "        fixed.x{k}[j] = x{k}[{at}];");
        }
        text += "    }\n    return fixed;\n}\n";
        text += "FUNCTION void take_words(A *acc, Read w, Fixed fixed, A share, idx at, idx i ROW_PARAMETERS) {\n";
        for (m, part) in outputs() {
            let _ = writeln!(text, "    union {{ {} all; {} each[VECTOR]; }} w{m};", word(part), storage(part));
            // Apart from the word, as in elementwise kernels.
            let _ = writeln!(text, "    {} e{m}[VECTOR];", storage(part));
        }
        text += "#pragma unroll\n    for (int j = 0; j < VECTOR; j++) {\n";
        let (fixed_at, summed_at) = if is_columns { ("j", "i") } else { ("0", "i + j") };
        let place = |k: usize| match self.inputs[k].at {
            At::Same => (format!("w.x{k}.each"), "j"),
            At::Kept | At::One => (format!("fixed.x{k}"), fixed_at),
            At::Summed => (format!("x{k}"), summed_at),
        };
        let dtypes = generator.result_dtypes();
        let value = |source: &Source| match *source {
            Source::Input(k) => {
                let (from, at) = place(k);
                format!("LOAD_{}({from}, {at})", generator.inputs[k].name())
            }
            Source::Result(n) => format!("LOAD_{}(s{n}, 0)", dtypes[n].name()),
            // A sum does not read what it writes.
            Source::Output(m) => format!("LOAD_{}(y{m}, at)", generator.outputs[m].name()),
        };
        (0..generator.steps.len()).for_each(|s| generator.step(s, "        ", &value, "0", &mut text));
        for (m, _) in outputs() {
            generator.moved_to(m, "        ", &|k| format!("{}[{}]", place(k).0, place(k).1), &mut text);
            let _ = writeln!(text, "        {}", generator.store(m, &format!("e{m}"), "j"));
        }
        let Term { number, dtype, kind } = self.term;
        let mut term = format!("r{number}");
        if dtype != generator.acc {
            let name = dtype.name();
            let _ = writeln!(text, "        S_{name} term[1];\n        STORE_{name}(term, 0, {term});");
            term = format!("LOAD_{name}(term, 0)");
        }
        let share = if kind == Reduce::Mean && dtype != DType::F16 { " * share" } else { "" };
        let _ = writeln!(text, "        acc[j] = acc[j] + {term}{share};\n    }}");
        for (m, part) in outputs() {
            let _ = writeln!(text, "#pragma unroll\n    for (int j = 0; j < VECTOR; j++) w{m}.each[j] = e{m}[j];");
            let _ = writeln!(text, "    *(GLOBAL {} *)(y{m} + at) = w{m}.all;", word(part));
        }
        text + "}\n#include \"reduction/reduce.c\"\n"
    }
}

/// Where an operand's elements are; none if the reduction has no name for it.
fn at(layout: &Layout, shape: &Shape, summed: &Shape) -> Option<At> {
    if layout.shape() != shape {
        return None;
    }
    let dims = || layout.strides().iter().zip(shape.dims()).zip(summed.dims()).filter(|((_, d), _)| **d > 1);
    // Whether the dimensions are those of a contiguous tensor without the others, in which it is repeated.
    let are = |is_part: &dyn Fn(bool) -> bool| {
        let mut next = 1;
        dims().rev().all(|((&stride, &d), y)| {
            let expected = if is_part(d != *y) { next } else { 0 };
            next *= if is_part(d != *y) { d } else { 1 };
            stride == expected
        })
    };
    Some(match () {
        () if are(&|_| true) => At::Same,
        () if are(&|_| false) => At::One,
        () if are(&|is_summed| !is_summed) => At::Kept,
        () if are(&|is_summed| is_summed) => At::Summed,
        () => return None,
    })
}

/// A generator without steps.
fn generator(acc: DType) -> Generator {
    Generator {
        steps: SmallVec::new(),
        stored: SmallVec::new(),
        is_group: false,
        acc,
        inputs: SmallVec::new(),
        outputs: SmallVec::new(),
        is_still: SmallVec::new(),
        rank: 1,
        vector: 1,
        is_wide: false,
        // One result is summed.
        sums: 1,
        is_squared: false,
    }
}
