//! A row of the pointwise table over many sets of tensors, or casts of many tensors, in one launch. A second launch joins norms or sums of
//! results that are not written.

use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{THREADS, groups};
use crate::launch::multi_tensor::Sets;
use crate::launch::operands::{addresses, start_of};
use crate::memory::status::Check;
use crate::ops::elementwise::pointwise::{Body, Generator, Source, Step, acc, value_error_of};
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, zeros};
use crate::ops::reduction::total;
use crate::program::source::Variant;
use isograd_core::ops::Total;
use isograd_core::ops::elementwise::each::{CastEach, Each, EachNorms};
use isograd_core::ops::loss::Reduction;
use isograd_core::ops::loss::elementwise::PointwiseTotal;
use isograd_core::ops::{Update, update_each_, update_each_norms_};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Call, DType, Error, Operand, Result, autocast};
use smallvec::{SmallVec, smallvec};
use std::fmt::Write;
use std::ops::Range;

pub const FAMILY: Family = Family {
    launchers: &[
        Launcher::of::<Each>(),
        Launcher::of::<EachNorms>(),
        Launcher::of::<CastEach>(),
        Launcher::of::<PointwiseTotal>(),
    ],
    examples: EXAMPLES,
};

impl FusedLaunch for Each {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run(gpu, call, self, None)
    }
}

impl FusedLaunch for EachNorms {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run(gpu, call, &self.each, Some(Sums { kept: self.kept, kind: Total::Norm, divisor: 1.0 }))
    }
}

impl FusedLaunch for CastEach {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let (from, to) = (call.inputs[0].dtype, call.outputs[0].dtype);
        let acc = acc(call.op, Body::Cast, [from, to].into_iter())?;
        let vector = 16 / from.size().max(to.size());
        let sets = call.inputs.iter().zip(call.outputs).map(|(x, y)| smallvec![x, y]).collect();
        let sets = Sets { sets, numbers: 0, vector };
        let generator = Generator {
            steps: smallvec![Step::alone(Body::Cast, acc, 1, &[to], &[to])],
            stored: smallvec![Source::Result(0)],
            is_group: false,
            acc,
            inputs: smallvec![from],
            outputs: smallvec![to],
            is_still: smallvec![false; 2],
            apart: SmallVec::new(),
            rank: 1,
            vector,
            is_wide: sets.is_wide(),
            sums: 0,
            is_squared: false,
        };
        let table = sets.table(gpu)?;
        let text = || text(&generator, 0);
        gpu.generated(variant(&generator, 0), "each", &text, table.geometry(), &table.arguments())
    }
}

impl FusedLaunch for PointwiseTotal {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let (row, attributes) = (self.row, self.attributes.clone());
        let each = Each { row, shared: self.numbers, numbers: 0, attributes };
        // The row computes the absolute values itself.
        run(gpu, call, &each, Some(Sums { kept: 1, kind: Total::AbsSum, divisor: self.divisor }))
    }
}

/// Sums or norms of a row's last results, which are not written.
struct Sums {
    /// How many results these are.
    kept: usize,
    kind: Total,
    divisor: f64,
}

fn run(gpu: &Gpu, call: &Call<'_>, each: &Each, sums: Option<Sums>) -> Result<()> {
    let Each { row, shared, numbers, ref attributes } = *each;
    let (has_sums, sums) = (sums.is_some(), sums.unwrap_or(Sums { kept: 0, kind: Total::AbsSum, divisor: 1.0 }));
    let Sums { kept, kind, divisor } = sums;
    let share = if divisor > 1.0 { share_of(divisor) } else { 1.0 };
    let written = row.outputs() - kept;
    let own = row.inputs() - written - shared;
    let (outputs, totals) = call.outputs.split_at(call.outputs.len() - has_sums as usize);
    let (inputs, shared) = call.inputs.split_at(call.inputs.len() - shared);
    let generator = generator(call, row, [&inputs[..own], shared, &outputs[..written]], numbers)?;
    let generator = Generator { sums: kept, is_squared: kind == Total::Norm, ..generator };
    let set = |i: usize| {
        let (read, numbers) = inputs[i * own..][..own].split_at(own - numbers);
        read.iter().chain(&outputs[i * written..][..written]).chain(numbers).collect()
    };
    let count = outputs.len().checked_div(written).unwrap_or(inputs.len() / own.max(1));
    if row.is_checked() && count != 1 {
        let why = format!("`{}` checks its elements, which it does not of several tensors", row.name());
        return Err(Error::unsupported(call.op, why));
    }
    let sets = Sets { sets: (0..count).map(set).collect(), numbers, vector: generator.vector };
    let generator = Generator { is_wide: sets.is_wide(), ..generator };
    let table = sets.table(gpu)?;
    let arguments = table.arguments().pointers(addresses(shared)?).floats(attributes.iter().copied(), generator.acc);
    let variant = variant(&generator, numbers);
    let launch = |arguments: Arguments| -> Result<()> {
        let text = || text(&generator, numbers);
        if !generator.checks() {
            return gpu.generated(variant, "each", &text, table.geometry(), &arguments);
        }
        let slot = gpu.status(call.op, Check::Value)?;
        gpu.generated(variant, "each", &text, table.geometry(), &arguments.pointer(slot.address))?;
        gpu.checked(slot, |position| {
            value_error_of(gpu, call.op, inputs[..own].iter().chain(shared), position, generator.acc)
        })
    };
    let Some(totals) = totals.first() else { return launch(arguments) };
    let parts = gpu.scratch(table.chunks * kept * generator.acc.size())?;
    launch(arguments.float(share, generator.acc).pointer(parts.address))?;
    let arguments = table.arguments().pointer(parts.address).int(kept).float(divisor * share, generator.acc);
    let arguments = arguments.pointer(start_of(totals)?);
    let variant = total::variant(kind, totals.dtype, generator.acc, &sets);
    gpu.launch(variant, "totals", groups(sets.sets.len() * kept, THREADS).following(), &arguments)
}

/// The largest power of 2 below `1 / count`, by which the terms of a mean are multiplied, so that their sum is in range; 1 of nothing.
pub fn share_of(count: f64) -> f64 {
    if count >= 1.0 && count.is_finite() { 0.5 / count.log2().floor().exp2() } else { 1.0 }
}

/// The generator for the first set, of own inputs, shared inputs and targets. All other sets share it.
fn generator(
    call: &Call<'_>,
    row: Pointwise,
    [own, shared, targets]: [&[Operand<'_>]; 3],
    numbers: usize,
) -> Result<Generator> {
    let dtype = |o: &Operand<'_>| o.dtype;
    let all = own.iter().chain(shared).chain(targets).map(dtype);
    let moving = &own[..own.len() - numbers];
    let acc = acc(call.op, Body::Row(row), all.clone())?;
    let results = call.outputs.iter().map(dtype).collect::<SmallVec<[DType; 8]>>();
    let largest = moving.iter().chain(targets).map(|o| o.dtype.size()).max().unwrap_or(1);
    let written: SmallVec<[DType; 4]> = targets.iter().map(dtype).collect();
    let still = moving.len()..own.len() + shared.len();
    Ok(Generator {
        steps: smallvec![Step::alone(Body::Row(row), acc, own.len() + shared.len(), &written, &results)],
        stored: (0..written.len()).map(Source::Result).collect(),
        is_group: false,
        acc,
        inputs: own.iter().chain(shared).map(dtype).collect(),
        outputs: written,
        is_still: (0..all.count()).map(|k| still.contains(&k)).collect(),
        apart: SmallVec::new(),
        rank: 1,
        vector: 16 / largest,
        is_wide: false,
        sums: 0,
        is_squared: false,
    })
}

/// The moving operands of a set, its numbers, and the operands that all sets share, as positions in the generator.
fn parts(generator: &Generator, numbers: usize) -> (Vec<usize>, Range<usize>, Range<usize>) {
    let moving: Vec<usize> = (0..generator.is_still.len()).filter(|&k| !generator.is_still[k]).collect();
    let first = generator.is_still.iter().position(|&still| still).unwrap_or(generator.inputs.len());
    (moving, first..first + numbers, first + numbers..generator.inputs.len())
}

fn variant(generator: &Generator, numbers: usize) -> Variant {
    let (moving, ..) = parts(generator, numbers);
    let variant = Variant::new("each").define("THREADS", THREADS).define("OPERANDS", moving.len() + numbers);
    let variant = generator.describe(variant).flag("SQUARED", generator.is_squared);
    if generator.sums == 0 {
        return variant;
    }
    variant
        .define("SUMS", generator.sums)
        .define("ACC", generator.acc)
        .flag("NEAR_SUMS", !generator.steps[0].near.is_empty())
}

fn text(generator: &Generator, numbers: usize) -> String {
    let mut text = generator.functions();
    let (moving, numbers, shared) = parts(generator, numbers);
    let operands = generator.operands();
    let attributes: String = (0..generator.attributes()).map(|i| format!(", A k{i}")).collect();
    let parameters: String = shared.clone().map(|k| format!(", GLOBAL const S_{} *s{k}", operands[k].0)).collect();
    let parts = if generator.sums > 0 { ", A share, GLOBAL A *parts" } else { "" };
    let status = if generator.checks() { ", GLOBAL i64 *status" } else { "" };
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "KERNEL(each)(GLOBAL const i64 *table, i64 tensors, i64 size{parameters}{attributes}{parts}{status}) {{"
    );
    // In registers from here on; the body reads them as arrays of one element.
    for k in shared {
        let _ = writeln!(text, "    const S_{} {}[1] = {{s{k}[0]}};", operands[k].0, generator.operand(k));
    }
    if generator.sums > 0 {
        text += "    LET_NEXT_START();\n    JOINS(SUMS);\n";
    }
    text += "    for (i64 chunk = GROUP; chunk < CHUNKS(table, tensors); chunk += GROUPS) {\n        \
             CHUNK_OF(table, tensors, chunk, size);\n";
    for (i, &k) in moving.iter().enumerate() {
        let ctype = format!("{}S_{}", if k < generator.inputs.len() { "const " } else { "" }, operands[k].0);
        let _ = writeln!(text, "        GLOBAL {ctype} *{} = POINTER({ctype}, entry[{i}]);", generator.operand(k));
    }
    for (i, k) in numbers.enumerate() {
        let (ctype, entry) = (format!("const S_{}", operands[k].0), moving.len() + i);
        let _ =
            writeln!(text, "        {ctype} {}[1] = {{POINTER({ctype}, entry[{entry}])[0]}};", generator.operand(k));
    }
    if generator.sums > 0 {
        text += "        A sums[SUMS];\n        for (int i = 0; i < SUMS; i++) sums[i] = 0;\n";
    }
    if generator.is_squared {
        text += "        Squares squares[SUMS];\n        for (int i = 0; i < SUMS; i++) squares[i] = no_squares();\n";
    }
    text += "        EACH_WHOLE(g) {\n";
    for k in 0..generator.is_still.len() {
        let _ = writeln!(text, "        idx o{k} = {};", if generator.is_still[k] { "0" } else { "g * VECTOR" });
    }
    generator.vector_body(&mut text);
    text += "        }\n        EACH_OTHER(g) {\n";
    let at = |k: usize| if generator.is_still[k] { "0".to_string() } else { "g".to_string() };
    generator.element("            ", &at, "g", &mut text);
    text += "        }\n";
    if generator.is_squared {
        text += "        for (int i = 0; i < SUMS; i++) sums[i] = sum_of_squares(squares[i]);\n";
    }
    if generator.sums > 0 {
        let kind = if generator.is_squared { "JOIN_TO_SQUARES" } else { "JOIN_TO_SUM" };
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "        team_join(sums, SUMS, SIDE(SUMS), {kind});\n        \
             if (LANE == 0)\n            \
             for (int i = 0; i < SUMS; i++) parts[chunk * SUMS + i] = sums[i];\n"
        );
    }
    text + "    }\n}\n"
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| differentiate(d, t, &[&[4096, 1024], &[4096, 1024]], |x| x[0].mse_loss(&x[1], Reduction::Mean)),
    |d, t| differentiate(d, t, &[&[4096, 1024], &[4096, 1024]], |x| x[0].bce_loss(&x[1], None, Reduction::Mean)),
    |d, t| {
        let (p, g, scale) = (zeros(d, t, &[1024, 1024])?, zeros(d, t, &[1024, 1024])?, zeros(d, t.acc(), &[])?);
        let set = Update { targets: Vec::new(), inputs: vec![&p, &g], numbers: Vec::new() };
        update_each_norms_(Pointwise::LarsNorms, &[set], &[&scale], &[1.0]).map(drop)
    },
    // Casts of two parameters, and of their gradients.
    |d, t| {
        let leaf = || zeros(d, DType::F32, &[1024, 1024])?.require_grad();
        let (x, w, v) = (zeros(d, DType::F32, &[1, 1024])?, leaf()?, leaf()?);
        let dtype = if t == DType::F16 { t } else { DType::BF16 };
        let step = || autocast(dtype, || x.matmul(&w)?.matmul(&v)?.sum(..))?.backward();
        step().and_then(|()| step())
    },
    |d, t| {
        let (x, scale) = (zeros(d, t, &[1024, 1024])?, zeros(d, t.acc(), &[])?);
        let set = Update { targets: vec![&x], inputs: Vec::new(), numbers: Vec::new() };
        update_each_(Pointwise::ScaleInPlace, &[set], &[&scale], &[])
    },
];
