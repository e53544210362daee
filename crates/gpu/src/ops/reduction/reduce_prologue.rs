//! Elementwise steps in front of sums: some of their results are summed and others are written, in one pass over their operands.

use crate::driver::Address;
use crate::launch::arguments::Arguments;
use crate::launch::layout::Joint;
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
    /// The operand repeats in other dimensions than these.
    Apart,
}

/// An operand in memory.
#[derive(Clone, Debug)]
struct Located {
    address: Address,
    dtype: DType,
    at: At,
    /// Its dimensions that are kept, and those that are summed.
    dims: [Joint; 2],
}

/// Where an operand is, its dtype, and its layout in the shape of what is summed.
pub type Found = (Address, DType, Layout);

/// A value that is summed.
#[derive(Clone, Copy, Debug)]
struct Term {
    value: Source,
    /// The dtype to which it is rounded.
    dtype: DType,
    /// A sum or a mean.
    kind: Reduce,
}

/// Steps in front of sums, with their operands.
pub struct Prologue {
    generator: Generator,
    inputs: SmallVec<[Located; 4]>,
    /// The input that is the operand of the reduction.
    first: usize,
    outputs: SmallVec<[Located; 4]>,
    terms: SmallVec<[Term; 2]>,
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
        let terms = SmallVec::from_iter([Term { value: Source::Result(term), dtype: acc, kind: Reduce::Sum }]);
        Prologue::with(generator, terms, numbers, (inputs, &written), to)
            .expect("the first input of the row has its shape")
    }

    /// The prologue of the steps of a group, some of which sum, with these operands. None if the sums are of several kinds, or if an operand
    /// is not in memory as the reduction reads it.
    pub fn of_group(group: &Group, inputs: &[Found], outputs: &[Found]) -> Option<Prologue> {
        let summed = group.reduced()?;
        let dtypes: Vec<DType> = group.steps.iter().flat_map(|step| step.results.iter().copied()).collect();
        // The numbers of results without those of the sums.
        let (mut next, mut number) = (0, Vec::new());
        for step in &group.steps {
            let is_sum = matches!(step.body, Body::Reduce(_));
            number.extend((0..step.results.len()).map(|i| next + i));
            next += if is_sum { 0 } else { step.results.len() };
        }
        let renumbered = |source: Source| match source {
            Source::Result(n) => Source::Result(number[n]),
            other => other,
        };
        let (mut steps, mut terms) = (SmallVec::new(), SmallVec::<[Term; 2]>::new());
        for step in &group.steps {
            let Body::Reduce(kind) = step.body else {
                let sources = step.sources.iter().map(|source| renumbered(*source)).collect();
                steps.push(Step { sources, ..step.clone() });
                continue;
            };
            let dtype = match step.sources[0] {
                Source::Input(k) => inputs[k].1,
                Source::Output(m) => outputs[m].1,
                Source::Result(n) => dtypes[n],
            };
            terms.push(Term { value: renumbered(step.sources[0]), dtype, kind });
        }
        let first = terms.first()?;
        // A mean of f16 is not scaled, as others are.
        let is_scaled = |term: &Term| term.kind == Reduce::Mean && term.dtype != DType::F16;
        if terms.iter().any(|term| term.kind != first.kind || is_scaled(term) != is_scaled(first)) {
            return None;
        }
        let others = || (0..outputs.len()).filter(|m| !summed.contains(m));
        let generator = Generator {
            steps,
            stored: others().map(|m| renumbered(group.stored[m])).collect(),
            is_group: true,
            ..generator(group.acc)
        };
        let written: SmallVec<[Found; 4]> = others().map(|m| outputs[m].clone()).collect();
        Prologue::with(generator, terms, group.numbers.clone(), (inputs, &written), outputs[summed[0]].2.shape())
    }

    fn with(
        generator: Generator,
        terms: SmallVec<[Term; 2]>,
        numbers: SmallVec<[Number; 4]>,
        (inputs, outputs): (&[Found], &[Found]),
        summed: &Shape,
    ) -> Option<Prologue> {
        let shape = inputs.iter().chain(outputs).map(|found| found.2.shape()).next()?;
        let part = |(address, dtype, layout): &Found| {
            let at = at(layout, shape, summed).filter(|at| generator.is_group || *at != At::Apart)?;
            let of = |is_summed: bool| {
                let dims = shape.dims().iter().zip(summed.dims()).zip(layout.strides());
                let some = dims.filter(|((d, y), _)| (d != y) == is_summed).map(|((d, _), stride)| (*d, *stride));
                let (extents, strides): (Vec<usize>, Vec<usize>) = some.unzip();
                Joint::of(&extents, [&strides[..]].into_iter())
            };
            Some(Located { address: *address, dtype: *dtype, at, dims: [of(false), of(true)] })
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
            terms,
            numbers,
        })
    }

    /// Whether sums or means are made, and of which dtype.
    pub fn summed(&self) -> (Reduce, DType) {
        (self.terms[0].kind, self.terms[0].dtype)
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
            let Source::Result(term) = self.terms[0].value else { return variant };
            variant.define("PLACES", places).define("WRITTEN", self.outputs.len()).define("TERM", term)
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
        let apart = || inputs().filter(|(_, part)| part.at == At::Apart);
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
        for (k, _) in apart() {
            let _ = writeln!(text, "    idx o{k}[SIDE_BY_SIDE];");
        }
        text +=
            "} Fixed;\nFUNCTION Fixed fixed_of(idx number ROW_PARAMETERS) {\n    Fixed fixed;\n    fixed.none = 0;\n";
        text += "#pragma unroll\n    for (int j = 0; j < SIDE_BY_SIDE; j++) {\n";
        for (k, part) in fixed() {
            let at = if part.at == At::One { "0" } else { "number * SIDE_BY_SIDE + j" };
            let _ = writeln!(text, "        fixed.x{k}[j] = x{k}[{at}];");
        }
        for (k, part) in apart() {
            let at = place_of(&part.dims[0], "(number * SIDE_BY_SIDE + j)");
            let _ = writeln!(text, "        fixed.o{k}[j] = {at};");
        }
        text += "    }\n    return fixed;\n}\n";
        let sums = self.terms.len();
        let accumulator = if sums > 1 { "Sums" } else { "A" };
        if sums > 1 {
            let _ = writeln!(text, "typedef struct {{\n    A v[{sums}];\n}} Sums;");
        }
        let _ = writeln!(
            text,
            "FUNCTION void take_words({accumulator} *acc, Read w, Fixed fixed, A share, idx at, idx i ROW_PARAMETERS) {{"
        );
        for (m, part) in outputs() {
            let _ = writeln!(text, "    union {{ {} all; {} each[VECTOR]; }} w{m};", word(part), storage(part));
            // Apart from the word, as in elementwise kernels.
            let _ = writeln!(text, "    {} e{m}[VECTOR];", storage(part));
        }
        let (fixed_at, summed_at) = if is_columns { ("j", "i") } else { ("0", "i + j") };
        if is_columns {
            for (k, part) in apart() {
                let _ = writeln!(text, "    idx a{k} = {};", place_of(&part.dims[1], "i"));
            }
        }
        text += "#pragma unroll\n    for (int j = 0; j < VECTOR; j++) {\n";
        let place = |k: usize| match self.inputs[k].at {
            At::Same => (format!("w.x{k}.each"), "j".to_string()),
            At::Kept | At::One => (format!("fixed.x{k}"), fixed_at.to_string()),
            At::Summed => (format!("x{k}"), summed_at.to_string()),
            At::Apart if is_columns => (format!("x{k}"), format!("fixed.o{k}[j] + a{k}")),
            At::Apart => (format!("x{k}"), format!("fixed.o{k}[0] + {}", place_of(&self.inputs[k].dims[1], "(i + j)"))),
        };
        let value = |source: &Source| match *source {
            Source::Input(k) => {
                let (from, at) = place(k);
                format!("LOAD_{}({from}, {at})", generator.inputs[k].name())
            }
            Source::Result(n) => format!("s{n}"),
            // A sum does not read what it writes.
            Source::Output(m) => format!("LOAD_{}(y{m}, at)", generator.outputs[m].name()),
        };
        (0..generator.steps.len()).for_each(|s| generator.step(s, "        ", &value, "0", &mut text));
        for (m, _) in outputs() {
            generator.moved_to(m, "        ", &|k| format!("{}[{}]", place(k).0, place(k).1), &mut text);
            let _ = writeln!(text, "        {}", generator.store(m, &format!("e{m}"), "j"));
        }
        for (i, Term { value: term, dtype, kind }) in self.terms.iter().enumerate() {
            let value = match *term {
                Source::Result(n) if *dtype != generator.acc => format!("ROUND_{}(r{n})", dtype.name()),
                Source::Result(n) => format!("r{n}"),
                other => format!("(A){}", value(&other)),
            };
            let share = if *kind == Reduce::Mean && *dtype != DType::F16 { " * share" } else { "" };
            let sum = if sums > 1 { format!("acc[j].v[{i}]") } else { "acc[j]".to_string() };
            let _ = writeln!(text, "        {sum} = {sum} + {value}{share};");
        }
        text += "    }\n";
        for (m, part) in outputs() {
            let _ = writeln!(text, "#pragma unroll\n    for (int j = 0; j < VECTOR; j++) w{m}.each[j] = e{m}[j];");
            let _ = writeln!(text, "    *(GLOBAL {} *)(y{m} + at) = w{m}.all;", word(part));
        }
        text + "}\n#include \"reduction/reduce.c\"\n"
    }
}

/// The place in memory of the element of a number, which counts elements of these dimensions.
fn place_of(dims: &Joint, number: &str) -> String {
    let mut text = String::from("0");
    let mut below = 1;
    for (d, (&extent, &stride)) in dims.extents.iter().zip(&dims.strides[0]).enumerate().rev() {
        let index = if below == 1 { number.to_string() } else { format!("{number} / {below}") };
        let index = if d == 0 { index } else { format!("{index} % {extent}") };
        if stride > 0 {
            text += &format!(" + {index} * (idx){stride}");
        }
        below *= extent;
    }
    text
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
        () if dims().any(|((&stride, _), _)| stride == 0) => At::Apart,
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
        apart: SmallVec::new(),
        rank: 1,
        vector: 1,
        is_wide: false,
        // One result is summed.
        sums: 1,
        is_squared: false,
    }
}
