//! Normalisation of channels over a batch.
//!
//! Its constants were tuned on an H100.

use crate::driver::{Address, Geometry};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::group_size;
use crate::launch::operands::{start_or, starts, starts_or, variant};
use crate::launch::rows::SHORT;
use crate::launch::words::vector_of;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate};
use crate::ops::normalization::norm::dtype_of_parameters;
use crate::program::source::Variant;
use isograd_core::fused::Fused;
use isograd_core::ops::normalization::channel_norm::{
    BatchNorm, BatchNormBackward, BatchNormBackwardInputs, BatchNormBackwardOutputs, BatchNormInputs, BatchNormOutputs,
    Rectified,
};
use isograd_core::ops::{Running, Statistics};
use isograd_core::{Call, DType, Operand, Result, Tensor};

/// Vector loads that a thread has in flight, of each array.
const BATCH: usize = 4;
/// The same for the gradient through a relu, which reads up to four arrays: with more, registers spill.
const FEW: usize = 2;
/// Groups that a multiprocessor runs at a time.
const TOGETHER: usize = 4;
/// Threads that read neighbouring words of different channels, where a channel has few contiguous elements.
const COLUMNS: usize = 32;
/// Channels per group of the reduction of partial sums.
const JOINING: usize = 8;
/// Bytes of partial sums per group of that reduction: one partial sum a thread.
const JOINED_BYTES: usize = 2048;
/// The most terms that are added one after the other; longer sums are split.
const TERMS: usize = 4096;

pub const FAMILY: Family =
    Family { launchers: &[Launcher::of::<BatchNorm>(), Launcher::of::<BatchNormBackward>()], examples: EXAMPLES };

impl FusedLaunch for BatchNorm {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        batch_norm(gpu, call, self)
    }
}

impl FusedLaunch for BatchNormBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        batch_norm_backward(gpu, call, self)
    }
}

/// How the elements of channels are split among groups.
struct ChannelSplit {
    geometry: Geometry,
    /// Words with elements of different channels.
    channels: usize,
    /// Channels of a word.
    per_word: usize,
    words: usize,
    width: usize,
    length: usize,
}

impl ChannelSplit {
    /// The split among threads that read `at_once` words together.
    fn new(
        gpu: &Gpu,
        norm: &BatchNorm,
        dtype: DType,
        variant: Variant,
        all: &[Address],
        at_once: usize,
    ) -> (Variant, ChannelSplit) {
        let BatchNorm { batch, channels, inner, .. } = *norm;
        let limits = gpu.driver().limits();
        let threads = group_size(limits);
        // Where a channel has few adjacent elements, threads read neighbouring channels, which are adjacent if it has one.
        let (vector, shared) = match inner {
            1 => (vector_of(dtype, channels, all), true),
            _ if inner < SHORT => (1, false),
            _ => (vector_of(dtype, inner, all), false),
        };
        let per_word = if shared { vector } else { 1 };
        let channels = channels / per_word;
        let columns = if inner < SHORT { COLUMNS.min(channels.next_power_of_two()).min(threads) } else { 1 };
        let width = if shared { 1 } else { inner / vector };
        let (members, groups) = (threads / columns, channels.div_ceil(columns));
        let words = batch * width;
        // A thread keeps statistics of every channel of its words, which takes registers.
        let together = if per_word > 1 { TOGETHER / 2 } else { TOGETHER };
        // A part is so long that each thread reads at least one batch of words.
        let most = words.div_ceil(members * BATCH);
        let parts = (limits.units * together / groups).clamp(1, most).max(most / TERMS);
        let length = words.div_ceil(parts);
        let variant = variant
            .flag("JOINED", per_word > 1)
            .define("THREADS", threads)
            .define("COLUMNS", columns)
            .words(vector, dtype.size())
            .define("CHANNELS", per_word)
            .define("BATCH", at_once)
            .define("PER", 0usize)
            .optional("AT_ONCE", (threads > COLUMNS).then_some(together));
        let geometry = Geometry::new([groups, words.div_ceil(length), 1], threads);
        (variant, ChannelSplit { geometry, channels, per_word, words, width, length })
    }

    /// The arguments of an entry: pointers, then how channels are cut.
    fn arguments<const N: usize>(&self, pointers: [Address; N]) -> Arguments {
        let sizes = [self.channels, self.words, self.width, self.length];
        Arguments::new().pointers(pointers).numbers(sizes)
    }

    /// The launch that joins the parts of words of several channels, with a thread for a channel. None where kernels join parts themselves.
    fn join(&self, gpu: &Gpu, program: Variant, dtype: DType) -> Option<(Variant, Geometry)> {
        let threads = (JOINED_BYTES / dtype.acc().size()).min(1 << gpu.driver().limits().max_group.max(1).ilog2());
        let channels = self.channels * self.per_word;
        let columns = JOINING.min(threads);
        let program = program.define("THREADS", threads).define("COLUMNS", columns).words(1, dtype.size());
        let program = program.define("CHANNELS", 1usize).define("BATCH", 1usize).define("PER", 0usize);
        let geometry = Geometry::new([channels.div_ceil(columns), 1, 1], threads).following();
        (self.per_word > 1).then(|| (program.flag("OF_WORDS", true), geometry))
    }

    /// The arguments of an entry of [`join`](ChannelSplit::join).
    fn joined<const N: usize>(&self, pointers: [Address; N]) -> Arguments {
        let sizes = [self.channels * self.per_word, self.words, 1, self.length, self.geometry.groups[1]];
        Arguments::new().pointers(pointers).numbers(sizes)
    }

    /// Bytes of a number of `dtype` for each part.
    fn bytes(&self, dtype: DType) -> usize {
        self.geometry.groups[1] * self.channels * self.per_word * dtype.size()
    }
}

/// A program for operands like `x`. Parameters have the dtype `p`, and running statistics `r`.
fn program(file: &'static str, x: &Operand<'_>, p: DType, r: DType, [has_weight, has_bias]: [bool; 2]) -> Variant {
    let variant = variant(file, x).define("P", p).define("R", r);
    variant.flags([("WEIGHT", has_weight), ("BIAS", has_bias)])
}

/// Two launches: partial statistics; then their reduction and the normalised x. Words of several channels are reduced by a launch of
/// their own. With running statistics there is one launch.
fn batch_norm(gpu: &Gpu, call: &Call<'_>, norm: &BatchNorm) -> Result<()> {
    let BatchNormInputs { x, weight, bias, residual, mean: given_mean, var: given_var } = norm.inputs(call);
    let BatchNormOutputs { y, mean, rstd, running_mean, running_var, batches } = norm.outputs(call);
    let is_given = given_mean.is_some();
    let (running_mean, running_var) = (given_mean.or(running_mean), given_var.or(running_var));
    let p = dtype_of_parameters([weight, bias], x.dtype);
    let r = running_mean.map_or(p, |running| running.dtype);
    let program = program("normalization/batch_norm.c", x, p, r, [weight.is_some(), bias.is_some()]).flags([
        ("GIVEN", is_given),
        ("UPDATED", running_mean.is_some() && !is_given),
        ("COUNTED", batches.is_some()),
        ("MOMENTUM", norm.momentum.is_some()),
        ("RELU", norm.rectified != Rectified::No),
        ("RELU6", norm.rectified == Rectified::Relu6),
        ("RESIDUAL", residual.is_some()),
    ]);
    let [from, y, mean, rstd] = starts([x, y, mean, rstd])?;
    let moved = [from, y, start_or(residual, y)?];
    let [weight, bias, residual, running_mean, running_var, batches] =
        starts_or([weight, bias, residual, running_mean, running_var, batches], mean)?;
    let alone = program.clone();
    let (program, parts) = ChannelSplit::new(gpu, norm, x.dtype, program, &moved, BATCH);
    let acc = x.dtype.acc();
    let bytes = if is_given { 0 } else { parts.bytes(acc) };
    let (sums, squares) = (gpu.scratch(bytes)?, gpu.scratch(bytes)?);
    let [s, q] = [sums.address, squares.address];
    if !is_given {
        let arguments = parts.arguments([from, s, q, batches]);
        gpu.launch(program.clone(), "batch_norm_parts", parts.geometry, &arguments)?;
    }
    let numbers = [norm.eps, norm.momentum.unwrap_or_default()];
    if let Some((join, geometry)) = parts.join(gpu, alone, x.dtype).filter(|_| !is_given) {
        let pointers = [from, s, q, running_mean, running_var, batches, mean, rstd];
        gpu.launch(join, "batch_norm_join", geometry, &parts.joined(pointers).floats(numbers, acc))?;
    }
    let pointers = [from, weight, bias, s, q, running_mean, running_var, batches, residual, y, mean, rstd];
    let arguments = parts.arguments(pointers).floats(numbers, acc);
    let geometry = if is_given { parts.geometry } else { parts.geometry.following() };
    gpu.launch(program, "batch_norm", geometry, &arguments)
}

/// Two launches: partial sums; then their reduction and the gradients. Words of several channels are reduced by a launch of their own. If
/// no sum is wanted, there is one launch.
fn batch_norm_backward(gpu: &Gpu, call: &Call<'_>, backward: &BatchNormBackward) -> Result<()> {
    let BatchNormBackwardInputs { dy, x, mean, rstd, weight, y, bias, added } = backward.inputs(call);
    let BatchNormBackwardOutputs { dx, weight: dweight, bias: dbias, residual } = backward.outputs(call);
    let BatchNormBackward { norm, is_given } = *backward;
    let (dtype, acc) = (dy.dtype, x.dtype.acc());
    let [is_dx_wanted, is_residual_wanted] = [dx, residual].map(|wanted| wanted.is_some());
    let are_parameters_wanted = dweight.is_some() || dbias.is_some();
    let p = dtype_of_parameters([weight, bias, dweight, dbias], x.dtype);
    let sums_up = are_parameters_wanted || !is_given;
    let has = [weight.is_some(), bias.is_some() || dbias.is_some()];
    let base = program("normalization/batch_norm_backward.c", dy, p, p, has).flags([
        ("GIVEN", is_given),
        ("SUMS", sums_up),
        ("DX", is_dx_wanted),
        ("PARAMETERS", are_parameters_wanted),
    ]);
    let is_rectified = norm.rectified != Rectified::No;
    let relu = [
        ("RELU", y.is_some()),
        ("RELU_OF_X", is_rectified && y.is_none()),
        ("RELU6", norm.rectified == Rectified::Relu6),
    ];
    let added_terms = [("RESIDUAL", is_residual_wanted), ("ADDED", added.is_some())];
    let [dy, x, mean, rstd] = starts([dy, x, mean, rstd])?;
    let [weight, y, bias, added] = starts_or([weight, y, bias, added], x)?;
    let [dx, dweight, dbias, dresidual] = starts_or([dx, dweight, dbias, residual], x)?;
    let joining = base.clone();
    let moved = [dy, x, dx, y, dresidual, added];
    let at_once = if is_rectified { FEW } else { BATCH };
    let (program, parts) = ChannelSplit::new(gpu, &norm, dtype, base, &moved, at_once);
    let first = program.clone().flags(relu).flags(added_terms);
    let join = parts.join(gpu, joining, dtype).filter(|_| sums_up);
    let bytes = if sums_up { parts.bytes(acc) } else { 0 };
    let joined = if join.is_some() { norm.channels * acc.size() } else { 0 };
    let (slopes, sums) = (gpu.scratch(bytes)?, gpu.scratch(bytes)?);
    let (all_slopes, all_sums) = (gpu.scratch(joined)?, gpu.scratch(joined)?);
    let mut found = [slopes.address, sums.address];
    if sums_up {
        let arguments = parts.arguments([dy, x, mean, rstd, weight, bias, y, added, dresidual, found[0], found[1]]);
        gpu.launch(first.clone(), "batch_norm_backward_parts", parts.geometry, &arguments)?;
        if let Some((join, geometry)) = join {
            let all = [all_slopes.address, all_sums.address];
            let arguments = parts.joined([found[0], found[1], all[0], all[1]]);
            gpu.launch(join, "batch_norm_backward_join", geometry, &arguments)?;
            found = all;
        }
    }
    if !(is_dx_wanted || are_parameters_wanted || !sums_up) {
        return Ok(());
    }
    let mut geometry = if sums_up { parts.geometry.following() } else { parts.geometry };
    if !(is_dx_wanted || (is_residual_wanted && !sums_up)) {
        geometry.groups[1] = 1;
    }
    // After the first kernel the gradient of the residual is that of the sum.
    let (second, dy) = match (sums_up, is_residual_wanted) {
        (true, true) => (program, dresidual),
        (true, false) => (program.flags(relu), dy),
        (false, _) => (first, dy),
    };
    let [slopes, sums] = found;
    let pointers = [dy, x, mean, rstd, weight, bias, slopes, sums, y, dresidual, dx, dweight, dbias];
    let arguments = parts.arguments(pointers).int(parts.geometry.groups[1]);
    gpu.launch(second, "batch_norm_backward", geometry, &arguments)
}

/// In training, with running statistics.
fn in_training(x: &[Tensor]) -> Result<Tensor> {
    let (mean, var) = (x[2].detach().copy()?, x[1].detach().copy()?);
    let batches = Tensor::zeros((), DType::I64, x[0].device())?;
    let running = Running { mean: &mean, var: &var, batches: Some(&batches), momentum: None };
    x[0].batch_norm(Some(&x[1]), Some(&x[2]), Statistics::Update(running), 0.0)
}

/// Two blocks with a relu each, of which the second adds the first's result to what it normalises.
fn residual(x: &[Tensor]) -> Result<Tensor> {
    let relu = |x: &Tensor, weight, bias, residual| x.batch_norm_relu(weight, bias, Statistics::Batch, 0.0, residual);
    let first = relu(&x[0], Some(&x[1]), Some(&x[2]), None)?;
    let second = relu(&first, Some(&x[1]), None, Some(&first))?;
    relu(&second, None, Some(&x[2]), Some(&second))
}

fn up_to_6(x: &[Tensor]) -> Result<Tensor> {
    x[0].batch_norm_relu6(Some(&x[1]), Some(&x[2]), Statistics::Batch, 1e-5)
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| differentiate(d, t, &[&[64, 256, 3136], &[256], &[256]], residual),
    |d, t| differentiate(d, t, &[&[4096, 256], &[256], &[256]], residual),
    |d, t| differentiate(d, t, &[&[4096, 256], &[256], &[256]], up_to_6),
    |d, t| differentiate(d, t, &[&[64, 256, 3136], &[256], &[256]], in_training),
    // Channels that are adjacent in memory, in words and alone, and running statistics.
    |d, t| differentiate(d, t, &[&[4096, 256], &[256], &[256]], in_training),
    |d, t| differentiate(d, t, &[&[4096, 255], &[255], &[255]], in_training),
    |d, t| differentiate(d, t, &[&[1024, 256, 3], &[256], &[256]], in_training),
    |d, t| {
        differentiate(d, t, &[&[64, 256, 3136], &[256], &[256]], |x| {
            let running = Running { mean: &x[2].detach(), var: &x[1].detach(), batches: None, momentum: Some(0.1) };
            x[0].batch_norm(Some(&x[1]), Some(&x[2]), Statistics::Running(running), 0.0)
        })
    },
];
