//! Several calls over the rows of a tensor in one kernel: elementwise ones, reductions of rows, and elementwise ones on a number a row. A team
//! of threads has a row on chip, and joins what it adds up in the order of a reduction's own kernel, so that results have its bits.

use crate::driver::Geometry;
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::MOST_GROUPS;
use crate::launch::integers::Integers;
use crate::launch::layout::Joint;
use crate::launch::operands::{address, element_address};
use crate::launch::words::fits;
use crate::ops::elementwise::group::Group;
use crate::ops::elementwise::pointwise::{Body, Generator, Number, Source};
use crate::ops::reduction::reduce::Team;
use crate::program::source::{Variant, word};
use isograd_core::backend::Reduce;
use isograd_core::{DType, Operand, Result};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Registers of a thread for the words of a row that it keeps.
const REGISTERS: usize = 80;
/// Instructions that it takes to hold a result for a later turn.
const HOLDING: usize = 4;
/// Instructions that it takes to round a result to 16 bits.
const ROUNDING: usize = 2;
/// Words of an operand that a thread keeps, at most: the text of the steps is repeated for each.
const MOST_WORDS: usize = 8;

/// Whether threads keep their words of a row, of operands with these sizes, from one phase to the next.
pub fn is_kept(team: Team, count: usize, sizes: impl Iterator<Item = usize>) -> bool {
    let words = (count / team.vector).div_ceil(team.team);
    let bytes: usize = sizes.map(|size| size * words * team.vector).sum();
    words <= MOST_WORDS && bytes.div_ceil(4) <= REGISTERS
}

/// A kernel of rows before its text is generated.
struct RowGenerator {
    generator: Generator,
    team: Team,
    /// Words that a thread has of a row.
    words: usize,
    /// Whether all threads have as many.
    is_full: bool,
    /// Whether a thread keeps its words, or reads them again in each phase.
    is_kept: bool,
    /// Per operand, whether all rows have the same elements, and whether elements are moved in words.
    is_shared: SmallVec<[bool; 8]>,
    in_words: SmallVec<[bool; 8]>,
}

/// Launches a group of calls over rows. All operands have one shape; those with a number a row have stride 0 within it.
pub fn launch(
    gpu: &Gpu,
    op: &'static str,
    group: &Group,
    (dims, team): (usize, Team),
    inputs: &[Operand<'_>],
    outputs: &[Operand<'_>],
) -> Result<()> {
    let operands: SmallVec<[&Operand<'_>; 8]> = inputs.iter().chain(outputs).collect();
    let shape = operands[0].layout.shape().dims();
    let at = shape.len() - dims;
    let rows = Joint::of(&shape[..at], operands.iter().map(|o| &o.layout.strides()[..at])).at_least_one();
    let count: usize = shape[at..].iter().product();
    let stays = |o: &Operand<'_>| o.layout.strides()[at..].iter().zip(&shape[at..]).all(|(&s, &d)| s == 0 || d == 1);
    let is_still: SmallVec<[bool; 8]> = operands.iter().map(|o| stays(o)).collect();
    let is_shared: SmallVec<[bool; 8]> = rows.strides.iter().map(|s| s.iter().all(|&s| s == 0)).collect();
    let addresses: SmallVec<[u64; 8]> =
        operands.iter().map(|o| Ok(element_address(address(o.memory)?, o))).collect::<Result<_>>()?;
    let in_words = operands
        .iter()
        .zip(&rows.strides)
        .zip(&addresses)
        .map(|((o, strides), &address)| fits(team.vector, strides.iter().copied(), [(address, o.dtype.size())]))
        .collect();
    let numel: usize = shape.iter().product();
    let reads = |k: usize| k < inputs.len() || group.reads(k - inputs.len());
    let moved = operands.iter().enumerate().filter(|(k, _)| !is_still[*k] && !is_shared[*k] && reads(*k));
    let moved = moved.map(|(_, o)| o.dtype.size());
    let is_kept = is_kept(team, count, moved);
    let words = (count / team.vector).div_ceil(team.team);
    let generator = RowGenerator {
        generator: Generator {
            steps: group.steps.clone(),
            stored: group.stored.clone(),
            is_group: true,
            acc: group.acc,
            inputs: inputs.iter().map(|o| o.dtype).collect(),
            outputs: outputs.iter().map(|o| o.dtype).collect(),
            is_still,
            apart: SmallVec::new(),
            rank: rows.rank(),
            vector: team.vector,
            is_wide: rows.is_wide() || numel > i32::MAX as usize,
            sums: 0,
            is_squared: false,
        },
        team,
        words,
        is_full: words * team.team * team.vector == count,
        is_kept,
        is_shared,
        in_words,
    };
    let n = rows.numel();
    let named = Integers::new().list("EXTENTS", rows.extents).list("STRIDES", rows.strides.into_iter().flatten());
    let arguments = Arguments::new().pointers(addresses).named(named).numbers([n, count]);
    let arguments = group.numbers.iter().fold(arguments, |arguments, number| match *number {
        Number::Int(v) => arguments.int(v),
        Number::Float(v) => arguments.float(v, group.acc),
    });
    let text = generator.text();
    let groups = n.div_ceil(team.threads / team.team).clamp(1, MOST_GROUPS);
    let geometry = Geometry::new([groups, 1, 1], team.threads);
    tracing::trace!(op, rows = n, count, team = team.team, vector = team.vector, kept = generator.is_kept, "rows");
    gpu.generated(generator.variant(&text), "row_group", &|| text.clone(), geometry, &arguments)
}

impl RowGenerator {
    fn variant(&self, text: &str) -> Variant {
        let Team { threads, team, .. } = self.team;
        let variant = Variant::new("elementwise").define("THREADS", threads).define("TEAM", team);
        let variant = self.generator.describe(variant.arithmetic(self.generator.acc)).define("WORDS", self.words);
        variant.of_text(text)
    }

    /// The phase in which a step's results are known, and whether they are numbers of a row. Phase 0 needs no reduction; those of phase n + 1 need the
    /// reductions of phase n.
    fn phases(&self) -> Vec<(usize, bool)> {
        let mut of_step: Vec<(usize, bool)> = Vec::new();
        for step in &self.generator.steps {
            let last = step.sources.iter().map(|source| self.phase(&of_step, *source)).max().unwrap_or(0);
            of_step.push(match step.body {
                Body::Reduce(_) => (last + 1, true),
                _ => (last, step.is_of_rows),
            });
        }
        of_step
    }

    fn phase(&self, of_step: &[(usize, bool)], source: Source) -> usize {
        match source {
            Source::Result(n) => of_step[self.step_of(n)].0,
            _ => 0,
        }
    }

    /// The step of a result.
    fn step_of(&self, result: usize) -> usize {
        let mut before = 0;
        let counts = self.generator.steps.iter().map(|step| step.results.len());
        counts.take_while(|count| (before += count, before <= result).1).count()
    }

    /// The number of the first result of a step.
    fn first(&self, step: usize) -> usize {
        self.generator.steps[..step].iter().map(|step| step.results.len()).sum()
    }

    /// The steps of elements that the values of a turn need, in order, and the held results that they read.
    fn needed(
        &self,
        phases: &[(usize, bool)],
        turn: usize,
        held: &BTreeMap<usize, usize>,
        mut open: Vec<Source>,
    ) -> (BTreeSet<usize>, BTreeSet<usize>) {
        let (mut found, mut read) = (BTreeSet::new(), BTreeSet::new());
        while let Some(source) = open.pop() {
            let Source::Result(n) = source else { continue };
            let step = self.step_of(n);
            if held.get(&n).is_some_and(|&made| made < turn) {
                read.insert(n);
            } else if !phases[step].1 && found.insert(step) {
                open.extend(self.generator.steps[step].sources.iter().copied());
            }
        }
        (found, read)
    }

    /// The results of elements that threads hold from the turn that makes them to later ones, with that turn, because making them again takes
    /// longer. Found turn by turn, from what each must know.
    fn held(&self, phases: &[(usize, bool)]) -> BTreeMap<usize, usize> {
        let (mut held, mut made) = (BTreeMap::new(), BTreeMap::new());
        if !self.is_kept {
            return held;
        }
        for phase in 0..=phases.iter().map(|phase| phase.0).max().unwrap_or(0) {
            let (mut open, mut visited) = (self.roots(phases, phase), BTreeSet::new());
            while let Some(source) = open.pop() {
                let Source::Result(n) = source else { continue };
                let step = self.step_of(n);
                if phases[step].1 || held.contains_key(&n) {
                    continue;
                }
                match made.get(&step) {
                    Some(&turn)
                        if turn < phase && self.generator.is_read(n) && self.cost(step, phases, &held) > HOLDING =>
                    {
                        held.insert(n, turn);
                    }
                    _ => {
                        if visited.insert(step) {
                            open.extend(self.generator.steps[step].sources.iter().copied());
                        }
                    }
                }
            }
            visited.into_iter().for_each(|step| {
                made.entry(step).or_insert(phase);
            });
        }
        let dtypes = self.generator.result_dtypes();
        let registers = |n: usize| (dtypes[n].size() * self.words * self.team.vector).div_ceil(4);
        if held.keys().map(|&n| registers(n)).sum::<usize>() <= REGISTERS {
            return held;
        }
        // One by one the result that saves the most, while there is room.
        let (mut chosen, mut room) = (BTreeMap::new(), REGISTERS);
        loop {
            let with = |n: usize, turn: usize| {
                let mut with = chosen.clone();
                with.insert(n, turn);
                with
            };
            let others = held.iter().filter(|(n, _)| !chosen.contains_key(n) && registers(**n) <= room);
            let best = others.min_by_key(|(n, turn)| self.operations(phases, &with(**n, **turn)));
            let Some((&n, &turn)) = best else { return chosen };
            chosen.insert(n, turn);
            room -= registers(n);
        }
    }

    /// About how many instructions all turns take for an element.
    fn operations(&self, phases: &[(usize, bool)], held: &BTreeMap<usize, usize>) -> usize {
        let last = phases.iter().map(|phase| phase.0).max().unwrap_or(0);
        let steps = (0..=last).flat_map(|turn| self.needed(phases, turn, held, self.roots(phases, turn)).0);
        steps.map(|s| self.generator.steps[s].body.operations()).sum()
    }

    /// About how many instructions make the results of a step from what threads have.
    fn cost(&self, step: usize, phases: &[(usize, bool)], held: &BTreeMap<usize, usize>) -> usize {
        let step = &self.generator.steps[step];
        let roundings = step.results.iter().filter(|dtype| dtype.size() == 2).count() * ROUNDING;
        let of_source = |source: &Source| match *source {
            Source::Result(n) if !held.contains_key(&n) && !phases[self.step_of(n)].1 => {
                self.cost(self.step_of(n), phases, held)
            }
            _ => 0,
        };
        step.body.operations() + roundings + step.sources.iter().map(of_source).sum::<usize>()
    }

    /// The values that a turn adds up or stores.
    fn roots(&self, phases: &[(usize, bool)], phase: usize) -> Vec<Source> {
        let reduced = self.reductions(phases, phase).into_iter().map(|s| self.generator.steps[s].sources[0]);
        reduced.chain(self.stores(phases, phase).into_iter().map(|m| self.generator.stored[m])).collect()
    }

    /// The reductions of elements that are known in a phase.
    fn reductions(&self, phases: &[(usize, bool)], phase: usize) -> Vec<usize> {
        let is_one = |&s: &usize| matches!(self.generator.steps[s].body, Body::Reduce(_)) && phases[s].0 == phase + 1;
        (0..phases.len()).filter(is_one).collect()
    }

    /// The outputs of elements that are known in a phase, and not before.
    fn stores(&self, phases: &[(usize, bool)], phase: usize) -> Vec<usize> {
        let first = self.generator.inputs.len();
        let is_one =
            |&m: &usize| !self.generator.is_still[first + m] && self.phase(phases, self.generator.stored[m]) == phase;
        (0..self.generator.outputs.len()).filter(is_one).collect()
    }

    /// The inputs that steps and values read.
    fn read(&self, steps: &BTreeSet<usize>, roots: impl Iterator<Item = Source>) -> BTreeSet<usize> {
        let of_steps = steps.iter().flat_map(|&s| self.generator.steps[s].sources.iter().copied());
        of_steps.chain(roots).filter_map(|source| if let Source::Input(k) = source { Some(k) } else { None }).collect()
    }

    fn size(&self, operand: usize) -> usize {
        self.generator.operands()[operand].1
    }

    fn text(&self) -> String {
        let generator = &self.generator;
        let operands = generator.operands();
        let mut text = format!("#include \"reduction/row_group.h\"\n{}", generator.functions());
        let parameters: Vec<String> = (0..operands.len()).map(|k| generator.parameter(k)).collect();
        let attributes: String = (0..generator.attributes()).map(|i| format!(", A k{i}")).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "KERNEL(row_group)({}, Ints p, i64 rows, i64 extent{attributes}) {{\n    \
             SHARED(A, shared, 2 * THREADS);\n    int side = 0, member = MEMBER;\n    \
             idx count = (idx)extent;\n    \
             for (i64 base = (i64)GROUP * TEAMS; base < rows; base += (i64)GROUPS * TEAMS) {{\n        \
             i64 row = base + LANE / TEAM;\n        int is_there = row < rows;\n        \
             idx rest = (idx)(is_there ? row : rows - 1), c;",
            parameters.join(", ")
        );
        self.positions(&mut text);
        let phases = self.phases();
        let last = phases.iter().map(|phase| phase.0).max().unwrap_or(0);
        let held = self.held(&phases);
        for &n in held.keys() {
            let dtype = generator.result_dtypes()[n];
            self.words_of(&format!("h{n}"), (dtype.name(), dtype.size()), "WORDS", "        ", &mut text);
        }
        for k in (0..generator.inputs.len()).filter(|&k| generator.is_still[k]) {
            let _ = writeln!(text, "        S_{} w{k} = x{k}[o{k}];", operands[k].0);
        }
        if self.is_kept {
            let kept: Vec<usize> = (0..operands.len()).filter(|&k| self.keeps(k)).collect();
            kept.iter().for_each(|&k| self.declare("w", k, "WORDS", "        ", &mut text));
            text += "#pragma unroll\n        for (int t = 0; t < WORDS; t++) {\n";
            self.at(&mut text);
            kept.iter().for_each(|&k| self.load(k, "[t]", &mut text));
            text += "        }\n";
        }
        let row_steps = |phase: usize, text: &mut String| {
            for s in (0..generator.steps.len()).filter(|&s| phases[s] == (phase, true)) {
                if !matches!(generator.steps[s].body, Body::Reduce(_)) {
                    generator.step(s, "        ", &|source| self.value(*source), "0", text);
                }
            }
        };
        row_steps(0, &mut text);
        for phase in 0..=last {
            self.turn(&phases, phase, &held, &mut text);
            self.reductions(&phases, phase).into_iter().for_each(|s| self.join(s, &mut text));
            // A step may need the reductions of an earlier phase as well.
            row_steps(phase + 1, &mut text);
        }
        for m in (0..generator.outputs.len()).filter(|&m| generator.is_still[generator.inputs.len() + m]) {
            let raw = |k: usize| format!("w{k}");
            generator.moved_to(m, "        ", &raw, &mut text);
            let _ = writeln!(
                text,
                "        if (is_there && member == 0) {}",
                generator.store(m, &format!("y{m}"), &format!("o{}", generator.inputs.len() + m))
            );
        }
        text + "    }\n}\n"
    }

    /// Whether threads keep an operand that they read from phase to phase. One that all rows share is read again from the cache.
    fn keeps(&self, k: usize) -> bool {
        let is_read = k.checked_sub(self.generator.inputs.len()).is_none_or(|m| self.generator.reads(m));
        self.is_kept && !self.generator.is_still[k] && !self.is_shared[k] && is_read
    }

    /// Words of an operand: `w` of one that is read, `e` of one that is written.
    fn declare(&self, name: &str, k: usize, count: &str, indent: &str, text: &mut String) {
        self.words_of(&format!("{name}{k}"), self.generator.operands()[k], count, indent, text);
    }

    /// An array of words of elements of a storage type and size, or one word.
    fn words_of(&self, name: &str, (storage, size): (&str, usize), count: &str, indent: &str, text: &mut String) {
        let (bytes, suffix) =
            (self.team.vector * size, if count.is_empty() { String::new() } else { format!("[{count}]") });
        let _ = writeln!(
            text,
            "{indent}union {{ {} all[{}]; S_{storage} each[VECTOR]; }} {name}{suffix};",
            word(bytes.min(16)),
            bytes.div_ceil(16)
        );
    }

    fn at(&self, text: &mut String) {
        text.push_str("            idx at = (idx)(t * TEAM + member) * VECTOR;\n");
        if !self.is_full {
            text.push_str("            if (at >= count) at = 0;\n");
        }
    }

    /// Reads a word of an input.
    fn load(&self, k: usize, index: &str, text: &mut String) {
        let (bytes, name) = (self.team.vector * self.size(k), self.generator.operand(k));
        let pieces = bytes.div_ceil(16);
        if self.in_words[k] {
            let word = word(bytes.min(16));
            for i in 0..pieces {
                let _ = writeln!(
                    text,
                    "            w{k}{index}.all[{i}] = ((GLOBAL const {word} *)({name} + o{k} + at))[{i}];"
                );
            }
        } else {
            let _ = writeln!(
                text,
                "#pragma unroll\n            for (int j = 0; j < VECTOR; j++) w{k}{index}.each[j] = {name}[o{k} + at + j];"
            );
        }
    }

    /// The value of a source for element `j` of word `t`, or for a row.
    fn value(&self, source: Source) -> String {
        let k = match source {
            Source::Input(k) => k,
            // The value that an output had, which threads keep.
            Source::Output(m) => self.generator.inputs.len() + m,
            Source::Result(n) => return format!("s{n}"),
        };
        let dtype = self.generator.operands()[k].0;
        match (self.generator.is_still[k], self.keeps(k)) {
            (true, _) => format!("LOAD_{dtype}(&w{k}, 0)"),
            (_, true) => format!("LOAD_{dtype}(w{k}[t].each, j)"),
            _ => format!("LOAD_{dtype}(w{k}.each, j)"),
        }
    }

    /// The turn of a phase over the words of a row, which adds up the terms of reductions and stores outputs; none if there are neither.
    fn turn(&self, phases: &[(usize, bool)], turn: usize, held: &BTreeMap<usize, usize>, text: &mut String) {
        let (reductions, stores) = (self.reductions(phases, turn), self.stores(phases, turn));
        if reductions.is_empty() && stores.is_empty() {
            return;
        }
        let (generator, first, roots) = (&self.generator, self.generator.inputs.len(), self.roots(phases, turn));
        let (steps, known) = self.needed(phases, turn, held, roots.clone());
        let read = self.read(&steps, roots.into_iter());
        for &s in &reductions {
            let Body::Reduce(kind) = generator.steps[s].body else { continue };
            let nothing = match kind {
                Reduce::Max => "LOWEST",
                Reduce::Min => "HIGHEST",
                _ => "0",
            };
            let _ = writeln!(
                text,
                "        A acc{s}[VECTOR];\n#pragma unroll\n        for (int j = 0; j < VECTOR; j++) acc{s}[j] = {nothing};"
            );
            if kind == Reduce::Mean {
                let share = if self.is_of_halves(s) { "1" } else { "SHARE_OF(count)" };
                let _ = writeln!(text, "        A share{s} = {share};");
            }
        }
        let unroll = if self.is_kept { "#pragma unroll" } else { "#pragma unroll 2" };
        let _ = writeln!(text, "{unroll}\n        for (int t = 0; t < WORDS; t++) {{");
        self.at(text);
        if !self.is_full {
            text.push_str("            int is_in = (idx)(t * TEAM + member) * VECTOR < count;\n");
        }
        for &k in read.iter().filter(|&&k| !generator.is_still[k] && !self.keeps(k)) {
            self.declare("w", k, "", "            ", text);
            self.load(k, "", text);
        }
        for &m in &stores {
            self.declare("e", first + m, "", "            ", text);
        }
        text.push_str("#pragma unroll\n            for (int j = 0; j < VECTOR; j++) {\n");
        let indent = "                ";
        let dtypes = generator.result_dtypes();
        for &n in &known {
            let dtype = dtypes[n].name();
            let _ = writeln!(text, "{indent}R_{dtype} s{n} = LOAD_{dtype}(h{n}[t].each, j);");
        }
        for &s in &steps {
            generator.step(s, indent, &|source| self.value(*source), "0", text);
            for n in
                (self.first(s)..self.first(s) + generator.steps[s].results.len()).filter(|n| held.get(n) == Some(&turn))
            {
                let _ = writeln!(text, "{indent}KEEP_{}(h{n}[t].each, j, s{n});", dtypes[n].name());
            }
        }
        let raw = |k: usize| match (generator.is_still[k], self.keeps(k)) {
            (true, _) => format!("w{k}"),
            (_, true) => format!("w{k}[t].each[j]"),
            _ => format!("w{k}.each[j]"),
        };
        for &m in &stores {
            generator.moved_to(m, indent, &raw, text);
            let _ = writeln!(text, "{indent}{}", generator.store(m, &format!("e{}.each", first + m), "j"));
        }
        for &s in &reductions {
            let Body::Reduce(kind) = generator.steps[s].body else { continue };
            let value = format!("(A){}", self.value(generator.steps[s].sources[0]));
            let taken = match kind {
                Reduce::Max => format!("larger_of(acc{s}[j], {value})"),
                Reduce::Min => format!("smaller_of(acc{s}[j], {value})"),
                Reduce::Mean => format!("acc{s}[j] + {value} * share{s}"),
                _ => format!("acc{s}[j] + {value}"),
            };
            let taken = if self.is_full { taken } else { format!("is_in ? {taken} : acc{s}[j]") };
            let _ = writeln!(text, "{indent}acc{s}[j] = {taken};");
        }
        text.push_str("            }\n");
        for &m in &stores {
            let (k, name) = (first + m, generator.operand(first + m));
            let bytes = self.team.vector * self.size(k);
            let there = if self.is_full { "is_there" } else { "is_there && is_in" };
            if self.in_words[k] {
                let word = word(bytes.min(16));
                for i in 0..bytes.div_ceil(16) {
                    let _ = writeln!(
                        text,
                        "            if ({there}) ((GLOBAL {word} *)({name} + o{k} + at))[{i}] = e{k}.all[{i}];"
                    );
                }
            } else {
                let _ = writeln!(
                    text,
                    "            if ({there}) {{\n#pragma unroll\n                for (int j = 0; j < VECTOR; j++) {name}[o{k} + at + j] = e{k}.each[j];\n            }}"
                );
            }
        }
        text.push_str("        }\n");
    }

    /// Whether a reduction is one of f16, whose sums leave no range.
    fn is_of_halves(&self, step: usize) -> bool {
        let dtype = match self.generator.steps[step].sources[0] {
            Source::Input(k) => self.generator.inputs[k],
            Source::Output(m) => self.generator.outputs[m],
            Source::Result(n) => self.generator.result_dtypes()[n],
        };
        dtype == DType::F16
    }

    /// Joins what threads have added up to the result of a reduction.
    fn join(&self, step: usize, text: &mut String) {
        let Body::Reduce(kind) = self.generator.steps[step].body else { return };
        let (n, dtype) = (self.first(step), self.generator.steps[step].results[0].name());
        let (join, joined, is_symmetric) = match kind {
            Reduce::Max => ("larger_of", "joined_larger", 0),
            Reduce::Min => ("smaller_of", "joined_smaller", 0),
            _ => ("sum_of", "joined_sum", 1),
        };
        let value = match kind {
            Reduce::Mean => format!("acc{step}[0] / ((A)count * share{step})"),
            _ => format!("acc{step}[0]"),
        };
        let _ = writeln!(
            text,
            "        JOIN_ROW(acc{step}, {join}, {joined}, {is_symmetric});\n        A r{n} = {value};\n        \
             R_{dtype} s{n} = ROUND_{dtype}(r{n});"
        );
    }

    /// `o0, o1, ..`: where the operands' elements of a row begin.
    fn positions(&self, text: &mut String) {
        let (rank, operands) = (self.generator.rank, self.generator.is_still.len());
        (0..operands).for_each(|k| text.push_str(&format!("        idx o{k} = 0;\n")));
        for d in (0..rank).rev() {
            match d {
                0 => text.push_str("        c = rest;\n"),
                _ => text
                    .push_str(&format!("        c = rest % (idx)EXTENTS({d});\n        rest /= (idx)EXTENTS({d});\n")),
            }
            for k in 0..operands {
                text.push_str(&format!("        o{k} += c * (idx)STRIDES({});\n", rank * k + d));
            }
        }
    }
}
