//! Normalisation of channels over a batch.

use crate::driver::{Address, Geometry};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::group_size;
use crate::launch::operands::{addresses, optional, variant};
use crate::launch::rows::SHORT;
use crate::launch::words::vector_of;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate};
use crate::ops::norm::NormGradient;
use crate::program::source::Variant;
use isograd_core::ops::channel_norm::{BatchNorm, BatchNormBackward, ChannelMoments};
use isograd_core::ops::{Running, Statistics};
use isograd_core::{Call, DType, Operand, Result, Tensor};

/// Words that a thread reads at once of an array.
const BATCH: usize = 4;
/// Groups of a multiprocessor: as many as run together.
const TOGETHER: usize = 4;
/// Threads that read neighbouring channels, where a channel has few contiguous elements.
const COLUMNS: usize = 32;
/// The longest sum without a tree.
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

/// How channels are cut into parts.
struct Parts {
    geometry: Geometry,
    channels: usize,
    words: usize,
    width: usize,
    length: usize,
}

impl Parts {
    fn new(gpu: &Gpu, norm: &BatchNorm, dtype: DType, variant: Variant, all: &[Address]) -> (Variant, Parts) {
        let BatchNorm { batch, channels, inner, .. } = *norm;
        let limits = gpu.driver().limits();
        let threads = group_size(limits);
        let (vector, columns) = match inner < SHORT {
            true => (1, COLUMNS.min(channels.next_power_of_two()).min(threads)),
            false => (vector_of(dtype, inner, all), 1),
        };
        let (width, members, groups) = (inner / vector, threads / columns, channels.div_ceil(columns));
        let words = batch * width;
        // Each thread of a part reads a batch of words, if not more.
        let most = words.div_ceil(members * BATCH);
        let parts = (limits.units * TOGETHER / groups).clamp(1, most).max(most / TERMS);
        let length = words.div_ceil(parts);
        let variant = variant
            .define("THREADS", threads)
            .define("COLUMNS", columns)
            .words(vector, dtype.size())
            .define("BATCH", BATCH)
            .define("PER", 0usize)
            .optional("AT_ONCE", (threads > COLUMNS).then_some(TOGETHER));
        let geometry = Geometry::new([groups, words.div_ceil(length), 1], threads);
        (variant, Parts { geometry, channels, words, width, length })
    }

    /// The arguments of an entry: pointers, then how channels are cut.
    fn arguments<const N: usize>(&self, pointers: [Address; N]) -> Arguments {
        let sizes = [self.channels, self.words, self.width, self.length];
        Arguments::new().pointers(pointers).numbers(sizes)
    }

    /// Bytes of a number of `dtype` for each part.
    fn bytes(&self, dtype: DType) -> usize {
        self.geometry.groups[1] * self.channels * dtype.size()
    }
}

fn program(call: &Call<'_>, norm: &BatchNorm, p: DType, running: DType) -> Variant {
    let variant = variant("batch_norm.c", &call.inputs[0]).define("P", p).define("R", running);
    variant.flags([("WEIGHT", norm.has_weight), ("BIAS", norm.has_bias)])
}

fn dtype_of(operands: &[Operand<'_>], at: usize, or: DType) -> DType {
    operands.get(at).map_or(or, |operand| operand.dtype)
}

/// Two launches: the sums of parts, then their joins and the normalised x. One with running statistics.
fn batch_norm(gpu: &Gpu, call: &Call<'_>, norm: &BatchNorm) -> Result<()> {
    let BatchNorm { has_weight, has_bias, moments, counts_batches: is_counted, momentum, .. } = *norm;
    let (is_updated, is_given) = (moments == ChannelMoments::Update, moments == ChannelMoments::Given);
    let (inputs, outputs) = (addresses(call.inputs)?, addresses(call.outputs)?);
    let x = &call.inputs[0];
    let parameters = has_weight as usize + has_bias as usize;
    let p = if parameters > 0 { call.inputs[1].dtype } else { x.dtype };
    let running = if is_given { dtype_of(call.inputs, 1 + parameters, p) } else { dtype_of(call.outputs, 3, p) };
    let program = program(call, norm, p, running).flags([
        ("GIVEN", is_given),
        ("UPDATED", is_updated),
        ("COUNTED", is_counted),
        ("MOMENTUM", momentum.is_some()),
    ]);
    let (program, parts) = Parts::new(gpu, norm, x.dtype, program, &[inputs[0], outputs[0]]);
    let (found, kept) = ([&inputs[1..], &outputs[3..]].concat(), is_given || is_updated);
    let [weight, bias, running_mean, running_var, batches] =
        optional(&found, [has_weight, has_bias, kept, kept, is_counted], outputs[1]);
    let bytes = if is_given { 0 } else { parts.bytes(x.dtype.acc()) };
    let (sums, squares) = (gpu.scratch(bytes)?, gpu.scratch(bytes)?);
    if !is_given {
        let arguments = parts.arguments([inputs[0], sums.address, squares.address, batches]);
        gpu.launch(program.clone(), "batch_norm_parts", parts.geometry, &arguments)?;
    }
    let [s, q] = [sums.address, squares.address];
    let [y, mean, rstd] = [0, 1, 2].map(|i| outputs[i]);
    let pointers = [inputs[0], weight, bias, s, q, running_mean, running_var, batches, y, mean, rstd];
    let acc = x.dtype.acc();
    let arguments = parts.arguments(pointers).floats([norm.eps, momentum.unwrap_or_default()], acc);
    gpu.launch(program, "batch_norm", parts.geometry, &arguments)
}

/// Two launches: the sums of parts, then their joins and the gradients. One if no sum is wanted.
fn batch_norm_backward(gpu: &Gpu, call: &Call<'_>, of: &BatchNormBackward) -> Result<()> {
    let BatchNormBackward { norm, wanted } = of;
    let is_given = norm.moments == ChannelMoments::Given;
    let acc = call.inputs[1].dtype.acc();
    let found = NormGradient::new(call, [norm.has_weight, norm.has_bias], *wanted)?;
    let NormGradient { read: [dy, x, mean, rstd], weight, dx, parameters: [dweight, dbias], p } = found;
    let sums_up = wanted.parameters || !is_given;
    let program = program(call, norm, p, p).flags([
        ("BACKWARD", true),
        ("GIVEN", is_given),
        ("SUMS", sums_up),
        ("DX", wanted.dx),
        ("PARAMETERS", wanted.parameters),
    ]);
    let (program, parts) = Parts::new(gpu, norm, call.inputs[0].dtype, program, &[dy, x, dx]);
    let bytes = if sums_up { parts.bytes(acc) } else { 0 };
    let (slopes, sums) = (gpu.scratch(bytes)?, gpu.scratch(bytes)?);
    if sums_up {
        let arguments = parts.arguments([dy, x, mean, rstd, slopes.address, sums.address]);
        gpu.launch(program.clone(), "batch_norm_backward_parts", parts.geometry, &arguments)?;
    }
    let mut geometry = parts.geometry;
    if !wanted.dx {
        geometry.groups[1] = 1;
    }
    let pointers = [dy, x, mean, rstd, weight, slopes.address, sums.address, dx, dweight, dbias];
    let arguments = parts.arguments(pointers).int(parts.geometry.groups[1]);
    gpu.launch(program, "batch_norm_backward", geometry, &arguments)
}

/// In training, with running statistics.
fn in_training(x: &[Tensor]) -> Result<Tensor> {
    let (mean, var) = (x[2].detach().copy()?, x[1].detach().copy()?);
    let batches = Tensor::zeros((), DType::I64, x[0].device())?;
    let running = Running { mean: &mean, var: &var, batches: Some(&batches), momentum: None };
    x[0].batch_norm(Some(&x[1]), Some(&x[2]), Statistics::Update(running), 0.0)
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| differentiate(d, t, &[&[64, 256, 3136], &[256], &[256]], in_training),
    // Channels whose elements are not neighbours, and running statistics.
    |d, t| differentiate(d, t, &[&[4096, 256], &[256], &[256]], in_training),
    |d, t| {
        differentiate(d, t, &[&[64, 256, 3136], &[256], &[256]], |x| {
            let running = Running { mean: &x[2].detach(), var: &x[1].detach(), batches: None, momentum: Some(0.1) };
            x[0].batch_norm(Some(&x[1]), Some(&x[2]), Statistics::Running(running), 0.0)
        })
    },
];
