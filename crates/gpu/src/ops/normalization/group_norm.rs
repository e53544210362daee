//! Normalisation of groups of channels.

use crate::driver::{Address, Geometry};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::MOST_GROUPS;
use crate::launch::operands::{addresses, optional, variant};
use crate::launch::rows::{Kept, columns, rows};
use crate::launch::words::vector_of;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, zeros};
use crate::ops::normalization::norm::{NormGradient, join_parts};
use crate::program::source::Variant;
use isograd_core::ops::normalization::channel_norm::{GroupNorm, GroupNormBackward};
use isograd_core::ops::{Running, Statistics};
use isograd_core::{Call, DType, Result};

/// Words of each array that a thread reads at once, and may keep.
const MOST_WORDS: usize = 4;
/// Channels at once of a group of threads.
const TEAMS: usize = 32;
/// Threads of the smallest group.
const LEAST: usize = 64;
/// Threads of the largest, of which two run together: one reads while the other writes. Of f32 one that keeps more is faster.
const MOST: usize = 512;
const MOST_F32: usize = 1024;

pub const FAMILY: Family =
    Family { launchers: &[Launcher::of::<GroupNorm>(), Launcher::of::<GroupNormBackward>()], examples: EXAMPLES };

impl FusedLaunch for GroupNorm {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        group_norm(gpu, call, self)
    }
}

impl FusedLaunch for GroupNormBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        group_norm_backward(gpu, call, self)
    }
}

/// A program, whose parameters have the dtype `p`.
fn program(file: &'static str, call: &Call<'_>, norm: &GroupNorm, p: DType) -> Variant {
    let variant = variant(file, &call.inputs[0]).define("P", p);
    variant.flags([("WEIGHT", norm.has_weight), ("BIAS", norm.has_bias)])
}

/// One launch, in which a group of channels is a row with a weight and a bias for each channel. A second launch updates running
/// statistics.
fn group_norm(gpu: &Gpu, call: &Call<'_>, norm: &GroupNorm) -> Result<()> {
    let GroupNorm { batch, groups, channels, inner, .. } = *norm;
    let (count, extent) = (batch * groups, channels * inner);
    let (inputs, outputs) = (addresses(call.inputs)?, addresses(call.outputs)?);
    let x = &call.inputs[0];
    let p = call.inputs.get(1).map_or(x.dtype, |p| p.dtype);
    let [weight, bias] = optional(&inputs[1..], [norm.has_weight, norm.has_bias], inputs[0]);
    let arguments = Arguments::new()
        .pointers([inputs[0], weight, bias, outputs[0], outputs[1], outputs[2]])
        .numbers([count, extent, groups, inner])
        .float(norm.eps, x.dtype.acc());
    let program = program("normalization/norm.c", call, norm, p).define("CENTERED", true).define("CHANNELS", true);
    let kept = Kept::normalised(x.dtype, extent);
    let (program, geometry) = rows(gpu, program, x.dtype, count, extent, &[inputs[0], outputs[0]], kept);
    let program = program.flag("ALIKE", inner.is_multiple_of(16 / x.dtype.size())).flag("UPDATED", norm.is_updated);
    // The norm of rows that an index names has a status.
    gpu.launch(program, "norm", geometry, &arguments.pointer(inputs[0]))?;
    if !norm.is_updated {
        return Ok(());
    }
    let update = variant("normalization/norm.c", x).define("P", call.outputs[3].dtype).define("UPDATED", true);
    let (update, geometry) = columns(gpu, update.flag("MOMENTUM", norm.momentum.is_some()), groups, 2);
    // Without one, the number of batches is the last input.
    let pointers = outputs[1..].iter().chain(inputs.last()).copied();
    let floats = [norm.eps, norm.momentum.unwrap_or_default(), extent as f64 / (extent as f64 - 1.0)];
    let arguments = Arguments::new().pointers(pointers).numbers([batch, groups]).floats(floats, x.dtype.acc());
    gpu.launch(update, "norm_update", geometry.following(), &arguments)
}

/// One launch, and a second that adds up the gradients of the parameters over the batch.
fn group_norm_backward(gpu: &Gpu, call: &Call<'_>, of: &GroupNormBackward) -> Result<()> {
    let GroupNormBackward { norm, wanted } = of;
    let GroupNorm { batch, groups, channels, inner, .. } = *norm;
    let dtype = call.inputs[1].dtype;
    let found = NormGradient::new(call, [norm.has_weight, norm.has_bias], *wanted)?;
    let NormGradient { read: [dy, x, mean, rstd], weight, dx, parameters, p } = found;
    let limits = gpu.driver().limits();
    let vector = vector_of(dtype, inner, &[dy, x, dx]);
    let width = inner / vector;
    let most = if dtype == DType::F32 { MOST_F32 } else { MOST };
    let (least, most) = (LEAST.min(limits.max_group), most.min(limits.max_group));
    let most = 1 << most.ilog2();
    let teams = channels.next_power_of_two().min(TEAMS).min(most);
    let team = width.div_ceil(MOST_WORDS).next_power_of_two().min(most / teams);
    let threads = (team * teams).max(least).next_power_of_two().min(most);
    let teams = threads / team;
    let per = width.div_ceil(team).min(MOST_WORDS);
    let backward = program("normalization/group_norm.c", call, norm, p)
        .define("THREADS", threads)
        .define("TEAM", team)
        .words(vector, dtype.size())
        .define("BATCH", 1usize)
        .define("PER", per)
        .flags([("DX", wanted.dx), ("KEPT", channels <= teams && width <= per * team)]);
    let slices = batch * groups;
    let bytes = slices * channels * dtype.acc().size();
    let (slopes, sums) = (gpu.scratch(bytes)?, gpu.scratch(bytes)?);
    let sums: [Address; 2] = [slopes.address, sums.address];
    let pointers = [dy, x, mean, rstd, weight, dx, sums[0], sums[1]];
    let arguments = Arguments::new().pointers(pointers).numbers([slices, groups, channels, width]);
    let geometry = Geometry::new([slices.clamp(1, MOST_GROUPS), 1, 1], threads);
    gpu.launch(backward, "group_norm_backward", geometry, &arguments)?;
    if !wanted.parameters {
        return Ok(());
    }
    join_parts(
        gpu,
        program("normalization/norm.c", call, norm, p),
        sums,
        parameters,
        batch,
        groups * channels,
        norm.has_bias,
    )
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| {
        differentiate(d, t, &[&[64, 256, 3136], &[256], &[256]], |x| x[0].group_norm(32, Some(&x[1]), Some(&x[2]), 0.0))
    },
    // All that a group has stays in registers.
    |d, t| {
        differentiate(d, t, &[&[64, 256, 784], &[256], &[256]], |x| {
            x[0].instance_norm(Some(&x[1]), Some(&x[2]), Statistics::Batch, 0.0)
        })
    },
    // Running statistics, in which all batches weigh the same.
    |d, t| {
        let (mean, var, batches) = (zeros(d, t, &[256])?, zeros(d, t, &[256])?, zeros(d, DType::I64, &[])?);
        let running = Running { mean: &mean, var: &var, batches: Some(&batches), momentum: None };
        zeros(d, t, &[64, 256, 784])?.instance_norm(None, None, Statistics::Update(running), 0.0).map(drop)
    },
];
