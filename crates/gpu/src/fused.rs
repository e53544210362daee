//! Fused kernels: normalisation of rows here, others in files of their own.

use crate::batch_norm::{batch_norm, batch_norm_backward};
use crate::cross_entropy::{cross_entropy, cross_entropy_backward};
use crate::driver::{Address, Geometry, Limits};
use crate::elementwise::{halves, word};
use crate::group_norm::{group_norm, group_norm_backward};
use crate::launch::{Arguments, element_address, group_size};
use crate::memory::status::Check;
use crate::program::source::Variant;
use crate::{
    Gpu, address, distance, each, index, matmul, place, prod, random, reduce, rotary, sample, scan, softmax, total,
    window,
};
use isograd_core::backend::{Fused, index_error};
use isograd_core::{Call, DType, Operand, Result};
use smallvec::SmallVec;

/// Rows of fewer elements are left to one thread each.
pub const SHORT: usize = 32;
/// Local memory that a group may have on every device.
const LOCAL: usize = 48 << 10;
/// Columns of a group that joins parts.
const COLUMNS: usize = 32;
/// Threads of a multiprocessor whose sums of columns find room in its registers.
const RESIDENT: usize = 512;
/// The longest sum without a tree.
const TERMS: usize = 4096;

/// How the threads of a team share a row.
#[derive(Clone, Copy)]
pub struct Kept {
    /// Arrays whose further words they hold in local memory.
    held: usize,
    /// A team grows until each thread keeps no more than so many bytes of an array.
    bytes: usize,
    /// How many registers a thread of the largest team has for the numbers of an array.
    registers: usize,
    /// Words that a thread reads at once of what it does not keep.
    batch: usize,
    /// Whether a word may not hold elements of two rows.
    is_whole: bool,
    /// Threads of the largest team. A large one keeps more of a long row; of smaller ones some read while others compute.
    team: usize,
    /// Threads of a multiprocessor that run together, each with the registers of a row's words.
    together: usize,
}

impl Kept {
    /// Every word is read when it is needed.
    pub const NONE: Kept =
        Kept { held: 0, bytes: 64, registers: 0, batch: 4, is_whole: false, team: 1024, together: 1024 };
    /// As above, for a kernel that computes more than it writes.
    pub const READ: Kept = Kept { team: 256, ..Kept::NONE };
    /// One array.
    pub const ONE: Kept = Kept { held: 1, registers: 32, batch: 2, ..Kept::NONE };
    /// One that is longer than these registers, of a kernel that computes little: half as many threads read more at once.
    const LONG: Kept = Kept { registers: 64, batch: 8, team: 512, together: 512, ..Kept::ONE };
    /// One of 16 bits an element.
    pub const HALVES: Kept = Kept { team: 512, ..Kept::ONE };
    /// Two.
    pub const TWO: Kept = Kept { held: 2, bytes: 32, registers: 16, batch: 2, ..Kept::NONE };
    /// One array, of which nothing is left out.
    pub const ALL: Kept = Kept { registers: usize::MAX >> 8, batch: 1, ..Kept::NONE };
    /// Beside two arrays, a weight and two sums of each column.
    const COLUMNS: Kept = Kept { bytes: 32, registers: 8, batch: 1, is_whole: true, ..Kept::NONE };

    /// The array that a norm keeps of rows of `extent` elements.
    pub fn normalised(dtype: DType, extent: usize) -> Kept {
        let numbers = Kept::ONE.registers * size_of::<f32>() / dtype.acc().size();
        if extent > Kept::ONE.team * numbers { Kept::LONG } else { Kept::ONE }
    }
}

/// True for the dtypes of the fused kernels.
pub fn supports(gpu: &Gpu, kernel: Fused, dtype: DType) -> bool {
    let limits = gpu.driver().limits();
    if kernel == Fused::Positions {
        return dtype == DType::Bool;
    }
    let fits = kernel != Fused::ProdBackward || prod::supports(limits);
    fits && dtype.is_float() && (dtype != DType::F64 || limits.has_f64)
}

pub fn run(gpu: &Gpu, call: &Call<'_>, kernel: Fused) -> Result<()> {
    match kernel {
        Fused::Softmax | Fused::SoftmaxBackward => softmax::run(gpu, call),
        Fused::Norm => norm(gpu, call, None),
        Fused::EmbeddingNorm => norm(gpu, call, call.inputs.last()),
        Fused::NormBackward => norm_backward(gpu, call, None),
        Fused::EmbeddingNormBackward => norm_backward(gpu, call, call.inputs.last()),
        Fused::BatchNorm => batch_norm(gpu, call),
        Fused::BatchNormBackward => batch_norm_backward(gpu, call),
        Fused::GroupNorm => group_norm(gpu, call),
        Fused::GroupNormBackward => group_norm_backward(gpu, call),
        Fused::CrossEntropy => cross_entropy(gpu, call),
        Fused::CrossEntropyBackward => cross_entropy_backward(gpu, call),
        Fused::RowLoss(loss) => distance::run(gpu, call, loss, false),
        Fused::RowLossBackward(loss) => distance::run(gpu, call, loss, true),
        Fused::Dropout => random::dropout(gpu, call),
        Fused::IndexReduce(kind) => index::reduce(gpu, call, kind),
        Fused::IndexReduceBackward(kind) => index::reduce_backward(gpu, call, kind),
        Fused::Rotary => rotary::run(gpu, call),
        Fused::SampleLogits => sample::run(gpu, call),
        Fused::GemmBias(_) => matmul::run(gpu, call),
        Fused::MatmulSum => matmul::run_with_sums(gpu, call),
        Fused::MatmulRow(row) => matmul::run_with_row(gpu, call, row),
        Fused::Each(row) | Fused::EachNorms(row) | Fused::RowTotal(row) => each::run(gpu, call, row),
        Fused::RowSum(row) => reduce::row_sum(gpu, call, row),
        Fused::Halves(row) => halves(gpu, call, row),
        Fused::LogSumExp | Fused::Variance => reduce::run(gpu, call),
        Fused::ProdBackward => prod::backward(gpu, call),
        Fused::Positions => scan::positions(gpu, call),
        Fused::Total(kind) => total::run(gpu, call, kind),
        Fused::Unscale => total::unscale(gpu, call),
        Fused::MaxPool | Fused::AvgPool => window::forward(gpu, call),
        Fused::MaxPoolBackward | Fused::AvgPoolBackward => window::backward(gpu, call),
    }
}

/// Operands' addresses.
pub fn addresses(operands: &[Operand<'_>]) -> Result<SmallVec<[Address; 8]>> {
    operands.iter().map(|o| Ok(element_address(address(o.memory)?, o))).collect()
}

/// A program in the dtypes of `x`.
pub fn variant(file: &'static str, x: &Operand<'_>) -> Variant {
    let dtype = x.dtype;
    let variant = Variant::new(file).define("T", dtype.name()).define("ACC", dtype.acc().name());
    let variant = if dtype == DType::F64 { variant.define("NEEDS_F64", true) } else { variant };
    if x.layout.shape().numel() > i32::MAX as usize / 2 { variant.define("WIDE", true) } else { variant }
}

/// Adds how teams of threads take rows, and returns the launch.
pub fn rows(
    gpu: &Gpu,
    variant: Variant,
    dtype: DType,
    count: usize,
    extent: usize,
    addresses: &[Address],
    kept: Kept,
) -> (Variant, Geometry) {
    let limits = gpu.driver().limits();
    let size = dtype.size();
    let widest = 16 / size;
    let fits = addresses.iter().all(|a| a.is_multiple_of(16)) && (!kept.is_whole || extent.is_multiple_of(widest));
    let vector = if fits { widest } else { 1 };
    let is_whole = extent.is_multiple_of(vector);
    let words = extent / vector;
    let most = kept.registers * size_of::<f32>() / dtype.acc().size() / vector;
    // A smaller team has more registers for each thread.
    let few = (kept.bytes / size / vector).min(if most > 0 { 2 * most } else { kept.batch });
    let largest = 1 << limits.max_group.clamp(1, kept.team).ilog2();
    // Elements outside of words are one for each thread.
    let mut team = if is_whole { words.next_power_of_two().min(4) } else { 16 }.min(largest);
    while team < largest && team * few < words {
        team *= 2;
    }
    let threads = team.max(group_size(limits));
    let per = words.div_ceil(team).max(1).min(if team < largest { few.min(2 * most) } else { most });
    let mut variant = variant
        .define("THREADS", threads)
        .define("TEAM", team)
        .define("VECTOR", vector)
        .define("WORD", word(vector * size))
        .define("BATCH", kept.batch)
        .define("PER", per);
    if is_whole {
        variant = variant.define("WHOLE", true);
    }
    let mut geometry = Geometry::new([count.div_ceil(threads / team).clamp(1, 1 << 20), 1, 1], threads);
    if per > 0 && words > team * per {
        variant = variant.define("OTHERS", true).define("AT_ONCE", (kept.together / threads).max(1));
        if kept.held > 0 {
            let (most, word) = (words.div_ceil(team) - per, vector * size);
            let held = held_room(limits, kept, threads, dtype).saturating_sub(kept.held * word);
            let held = (held / (threads * word * kept.held)).min(most);
            // Whole batches, if there is room for one: those that are held in part are slower.
            let held = if held < kept.batch { held } else { held / kept.batch * kept.batch };
            variant = variant.define("HELD", held);
            geometry.given = kept.held * (held * threads + 1) * word;
        }
    }
    (variant, geometry)
}

/// Local memory that groups of so many threads may have for words, beside what joins need, so that they run together.
fn held_room(limits: &Limits, kept: Kept, threads: usize, dtype: DType) -> usize {
    let share = limits.given_memory * threads.min(kept.together) / kept.together;
    let joined = if limits.wave > 1 { threads.div_ceil(limits.wave) } else { threads };
    share.max(limits.given_memory.min(LOCAL)).saturating_sub(2 * joined * dtype.acc().size())
}

/// What a norm's program is told of its parameters, which have the dtype `p`.
fn norm_variant(call: &Call<'_>, x: &Operand<'_>, p: DType) -> Variant {
    let names = ["CENTERED", "WEIGHT", "BIAS"];
    let flags = names.into_iter().zip(&call.ints[2..5]).filter(|(_, on)| **on != 0);
    flags.fold(variant("norm.c", x).define("P", p.name()), |variant, (name, _)| variant.define(name, true))
}

/// Adds the words in which parameters are read, if rows and addresses allow these.
fn with_pieces(variant: Variant, x: DType, p: DType, extent: usize, addresses: &[Address]) -> Variant {
    let vector = 16 / x.size();
    let bytes = (vector * p.size()).min(16);
    let fits = extent.is_multiple_of(vector) && addresses.iter().all(|a| a.is_multiple_of(bytes as u64));
    let is_read_so = fits && variant.defines.contains(&("VECTOR", vector.into()));
    if is_read_so { variant.define("PIECE", word(bytes)) } else { variant }
}

/// Adds an index that names rows of `x`, which is written before the number of rows.
fn indexed(
    variant: Variant,
    arguments: Arguments,
    index: Option<&Operand<'_>>,
    x: &Operand<'_>,
) -> Result<(Variant, Arguments)> {
    let Some(index) = index else { return Ok((variant, arguments)) };
    let arguments = arguments.pointer(place(index)?).int(x.layout.shape()[0] as i64);
    Ok((variant.define("INDEX", index.dtype.name()), arguments))
}

/// `index` names the rows of x, if there is one.
fn norm(gpu: &Gpu, call: &Call<'_>, index: Option<&Operand<'_>>) -> Result<()> {
    let (count, extent) = (call.ints[0] as usize, call.ints[1] as usize);
    let (inputs, outputs) = (addresses(call.inputs)?, addresses(call.outputs)?);
    let x = &call.inputs[0];
    let parameters = &call.inputs[1..call.inputs.len() - index.is_some() as usize];
    let p = parameters.first().map_or(x.dtype, |p| p.dtype);
    let mut parameters = inputs[1..].iter().copied();
    // A kernel does not read a pointer that is not there: any other stands for it.
    let mut optional = |i: usize| if call.ints[i] != 0 { parameters.next() } else { None }.unwrap_or(inputs[0]);
    let pointers = [inputs[0], optional(3), optional(4), outputs[0], outputs[1], outputs[2]];
    let arguments = pointers.into_iter().fold(Arguments::new(), Arguments::pointer);
    let (variant, arguments) = indexed(norm_variant(call, &call.outputs[0], p), arguments, index, x)?;
    let arguments = arguments.int(count as i64).int(extent as i64).int(1).int(1).float(call.floats[0], x.dtype.acc());
    let kept = Kept { is_whole: index.is_some(), ..Kept::normalised(x.dtype, extent) };
    let (variant, geometry) = rows(gpu, variant, x.dtype, count, extent, &[inputs[0], outputs[0]], kept);
    let variant = with_pieces(variant, x.dtype, p, extent, &[pointers[1], pointers[2]]);
    let Some(index) = index else {
        return gpu.launch(variant, "norm", geometry, &arguments.pointer(inputs[0]));
    };
    let extent = x.layout.shape()[0];
    let slot = gpu.status(call.op, Check::Index(extent))?;
    gpu.launch(variant, "norm", geometry, &arguments.pointer(slot.address))?;
    gpu.checked(slot, |row| {
        let value = gpu.element(index, 1, row)?.as_i64(call.op)?;
        Ok(index_error(call.op, row as i64, value, extent))
    })
}

/// The operands of a normalisation's gradient.
pub struct NormGradient {
    /// dy, x, mean and rstd.
    pub read: [Address; 4],
    pub weight: Address,
    pub dx: Address,
    /// The gradients of weight and bias.
    pub parameters: [Address; 2],
    /// The dtype of weight and bias.
    pub p: DType,
}

impl NormGradient {
    pub fn new(call: &Call<'_>, [has_weight, has_bias, wants_dx, wants_parameters]: [bool; 4]) -> Result<NormGradient> {
        let (inputs, outputs) = (addresses(call.inputs)?, addresses(call.outputs)?);
        let mut found = outputs.iter().copied();
        // A kernel does not touch a pointer that is not there: any other stands for it.
        let mut optional = |is_there: bool| if is_there { found.next() } else { None }.unwrap_or(inputs[0]);
        let p = match (has_weight, call.outputs.last()) {
            (true, _) => call.inputs[4].dtype,
            (false, Some(last)) if wants_parameters => last.dtype,
            _ => call.inputs[1].dtype,
        };
        Ok(NormGradient {
            read: [0, 1, 2, 3].map(|i| inputs[i]),
            weight: inputs[if has_weight { 4 } else { 0 }],
            dx: optional(wants_dx),
            parameters: [has_weight, has_bias].map(|is_there| optional(wants_parameters && is_there)),
            p,
        })
    }
}

/// As many groups as run together go through all rows, and each leaves its sums of the parameters' gradients.
fn norm_backward(gpu: &Gpu, call: &Call<'_>, index: Option<&Operand<'_>>) -> Result<()> {
    let (count, extent) = (call.ints[0] as usize, call.ints[1] as usize);
    let [has_weight, has_bias, wants_dx, wants_parameters] = [3, 4, 5, 6].map(|i| call.ints[i] != 0);
    let x = &call.inputs[0];
    let found = NormGradient::new(call, [has_weight, has_bias, wants_dx, wants_parameters])?;
    let NormGradient { read: [dy, from, mean, rstd], weight, dx, parameters, p } = found;
    let names = [(wants_dx, "DX"), (wants_parameters, "PARAMETERS"), (true, "BACKWARD")];
    let names = names.into_iter().filter_map(|(is_set, name)| is_set.then_some(name));
    let variant = norm_variant(call, x, p);
    let program = names.fold(variant.clone(), |variant, name| variant.define(name, true));
    let (program, mut geometry) = rows(gpu, program, x.dtype, count, extent, &[dy, from, dx], Kept::COLUMNS);
    let together = (RESIDENT / geometry.threads).max(1);
    // They run together if each has its share of the registers.
    let has_share = program.defines.iter().any(|(name, _)| *name == "AT_ONCE");
    let program = if has_share { program } else { program.define("AT_ONCE", together) };
    let resident = gpu.driver().limits().units * together;
    geometry.groups[0] = geometry.groups[0].min(resident.max(count.div_ceil(TERMS)));
    let parts = geometry.groups[0];
    let bytes = if wants_parameters { parts * extent * x.dtype.acc().size() } else { 0 };
    let (weights, biases) = (gpu.scratch(bytes)?, gpu.scratch(bytes)?);
    let sums = [weights.address, biases.address];
    let pointers = [dy, from, mean, rstd, weight, dx, sums[0], sums[1]];
    let arguments = pointers.into_iter().fold(Arguments::new(), Arguments::pointer);
    let (program, arguments) = indexed(program, arguments, index, &call.inputs[1])?;
    let arguments = arguments.int(count as i64).int(extent as i64);
    let program = with_pieces(program, x.dtype, p, extent, &[weight]);
    gpu.launch(program, "norm_backward", geometry, &arguments)?;
    if !wants_parameters {
        return Ok(());
    }
    join_parts(gpu, variant, sums, parameters, parts, extent, has_bias)
}

/// Joins parts `[parts, extent]` of the gradients of a weight and a bias.
pub fn join_parts(
    gpu: &Gpu,
    variant: Variant,
    sums: [Address; 2],
    [dweight, dbias]: [Address; 2],
    parts: usize,
    extent: usize,
    has_bias: bool,
) -> Result<()> {
    let (variant, geometry) = columns(gpu, variant, extent, if has_bias { 2 } else { 1 });
    let arguments = [sums[0], sums[1], dweight, dbias].into_iter().fold(Arguments::new(), Arguments::pointer);
    let arguments = arguments.int(parts as i64).int(extent as i64);
    gpu.launch(variant, "norm_join", geometry, &arguments)
}

/// Groups that take COLUMNS columns each, in several `lines` of groups.
pub fn columns(gpu: &Gpu, variant: Variant, extent: usize, lines: usize) -> (Variant, Geometry) {
    let threads = 1 << gpu.driver().limits().max_group.min(1024).ilog2();
    (variant.define("THREADS", threads), Geometry::new([extent.div_ceil(COLUMNS), lines, 1], threads))
}
