//! Normalisation of groups of channels.
//!
//! Its constants were tuned on an H100.

use crate::driver::{Address, Geometry};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::MOST_GROUPS;
use crate::launch::operands::{start_of, starts, starts_or, variant};
use crate::launch::rows::{Kept, columns, rows};
use crate::launch::words::vector_of;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, zeros};
use crate::ops::normalization::norm::{dtype_of_parameters, join_parts};
use crate::program::source::Variant;
use isograd_core::fused::Fused;
use isograd_core::ops::normalization::channel_norm::{
    GroupNorm, GroupNormBackward, GroupNormBackwardInputs, GroupNormBackwardOutputs, GroupNormInputs, GroupNormOutputs,
};
use isograd_core::ops::{Running, Statistics};
use isograd_core::{Call, DType, Operand, Result};

/// The most vector loads of each array that a thread has in flight, and may keep in registers.
const MOST_WORDS: usize = 4;
/// The most channels that a group of threads sums at a time.
const TEAMS: usize = 32;
/// Threads of the smallest group.
const LEAST: usize = 64;
/// Threads of the largest group. Two of them run on a multiprocessor: one reads while the other writes.
const MOST: usize = 512;
/// The same in f32, where one group that keeps more elements in registers is faster than two.
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

/// A program for operands like `x`, whose parameters have the dtype `p`.
fn program(file: &'static str, x: &Operand<'_>, p: DType, [has_weight, has_bias]: [bool; 2]) -> Variant {
    variant(file, x).define("P", p).flags([("WEIGHT", has_weight), ("BIAS", has_bias)])
}

/// One launch, in which a group of channels is a row with a weight and a bias for each channel. A second launch updates running
/// statistics.
fn group_norm(gpu: &Gpu, call: &Call<'_>, norm: &GroupNorm) -> Result<()> {
    let GroupNorm { batch, groups, channels, inner, .. } = *norm;
    let GroupNormInputs { x, weight, bias, batches } = norm.inputs(call);
    let GroupNormOutputs { y, mean, rstd, running_mean, running_var } = norm.outputs(call);
    let (count, extent) = (batch * groups, channels * inner);
    let p = dtype_of_parameters([weight, bias], x.dtype);
    let program = program("normalization/norm.c", x, p, [weight.is_some(), bias.is_some()]);
    let [from, y, mean, rstd] = starts([x, y, mean, rstd])?;
    let [weight, bias, batches] = starts_or([weight, bias, batches], from)?;
    let arguments = Arguments::new()
        .pointers([from, weight, bias, y, mean, rstd])
        .numbers([count, extent, groups, inner])
        .float(norm.eps, x.dtype.acc());
    let program = program.define("CENTERED", true).define("CHANNELS", true);
    let kept = Kept::normalised(x.dtype, extent);
    let (program, geometry) = rows(gpu, program, x.dtype, count, extent, &[from, y], kept);
    let program =
        program.flag("ALIKE", inner.is_multiple_of(16 / x.dtype.size())).flag("UPDATED", running_mean.is_some());
    // The norm of rows that an index names has a status.
    gpu.launch(program, "norm", geometry, &arguments.pointer(from))?;
    let (Some(running_mean), Some(running_var)) = (running_mean, running_var) else { return Ok(()) };
    let update = variant("normalization/norm_join.c", x).define("P", running_mean.dtype).define("UPDATED", true);
    let (update, geometry) = columns(gpu, update.flag("MOMENTUM", norm.momentum.is_some()), groups, 2);
    let pointers = [mean, rstd, start_of(running_mean)?, start_of(running_var)?, batches];
    let floats = [norm.eps, norm.momentum.unwrap_or_default(), extent as f64 / (extent as f64 - 1.0)];
    let arguments = Arguments::new().pointers(pointers).numbers([batch, groups]).floats(floats, x.dtype.acc());
    gpu.launch(update, "norm_update", geometry.following(), &arguments)
}

/// One launch, and a second that adds up the gradients of the parameters over the batch.
fn group_norm_backward(gpu: &Gpu, call: &Call<'_>, norm: &GroupNormBackward) -> Result<()> {
    let GroupNorm { batch, groups, channels, inner, .. } = norm.0;
    let GroupNormBackwardInputs { dy: g, x, mean, rstd, weight } = norm.inputs(call);
    let GroupNormBackwardOutputs { dx, weight: dweight, bias: dbias } = norm.outputs(call);
    let (dtype, has_bias) = (x.dtype, dbias.is_some());
    let p = dtype_of_parameters([weight, dweight, dbias], dtype);
    let program = |file| program(file, g, p, [weight.is_some(), has_bias]);
    let (joining, are_wanted) = (program("normalization/norm_join.c"), dweight.is_some() || has_bias);
    let backward = program("normalization/group_norm.c");
    let has_dx = dx.is_some();
    let [dy, x, mean, rstd] = starts([g, x, mean, rstd])?;
    let [weight, dx, dweight, dbias] = starts_or([weight, dx, dweight, dbias], dy)?;
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
    let backward = backward
        .define("THREADS", threads)
        .define("TEAM", team)
        .words(vector, dtype.size())
        .define("BATCH", 1usize)
        .define("PER", per)
        .flags([("DX", has_dx), ("KEPT", channels <= teams && width <= per * team)]);
    let slices = batch * groups;
    let bytes = slices * channels * dtype.acc().size();
    let (slopes, sums) = (gpu.scratch(bytes)?, gpu.scratch(bytes)?);
    let sums: [Address; 2] = [slopes.address, sums.address];
    let pointers = [dy, x, mean, rstd, weight, dx, sums[0], sums[1]];
    let arguments = Arguments::new().pointers(pointers).numbers([slices, groups, channels, width]);
    let geometry = Geometry::new([slices.clamp(1, MOST_GROUPS), 1, 1], threads);
    gpu.launch(backward, "group_norm_backward", geometry, &arguments)?;
    match are_wanted {
        true => join_parts(gpu, joining, sums, [dweight, dbias], batch, groups * channels, has_bias),
        false => Ok(()),
    }
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
