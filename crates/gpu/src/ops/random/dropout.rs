//! Dropout by draws that are made on the way.

use crate::driver::Geometry;
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, in_groups};
use crate::launch::operands::{start_of, variant};
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate};
use crate::ops::normalization::norm::join_parts;
use crate::ops::random::draw::{state_ints, with_base};
use crate::program::source::{Variant, word};
use isograd_core::fused::Fused;
use isograd_core::operands::Output;
use isograd_core::ops::random::dropout::{
    BiasDropout, BiasDropoutBackward, BiasDropoutBackwardInputs, BiasDropoutBackwardOutputs, BiasDropoutInputs,
    Dropout, DropoutInputs,
};
use isograd_core::{Call, DType, Operand, Result, Rng};

/// Threads along a row whose columns are summed.
const COLUMNS: usize = 32;
/// The most terms that are added one after the other; longer sums are split.
const TERMS: usize = 4096;

pub const FAMILY: Family = Family {
    launchers: &[Launcher::of::<Dropout>(), Launcher::of::<BiasDropout>(), Launcher::of::<BiasDropoutBackward>()],
    examples: EXAMPLES,
};

impl FusedLaunch for Dropout {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run(gpu, self, self.inputs(call), self.outputs(call), None)
    }
}

impl FusedLaunch for BiasDropout {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let BiasDropoutInputs { x, bias, state } = self.inputs(call);
        run(gpu, &self.0, DropoutInputs { x, state }, self.outputs(call), Some(bias))
    }
}

impl FusedLaunch for BiasDropoutBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        sum(gpu, &self.0, self.inputs(call), self.outputs(call))
    }
}

/// The elements of a thread: whole words of 16 bytes, and whole blocks of draws.
fn items(dtype: DType) -> usize {
    if dtype.size() == 2 { 8 } else { 4 }
}

/// A program that reads x and writes y in words, if their addresses allow these.
fn masking(x: &Operand<'_>, y: &Operand<'_>, threads: usize) -> Result<Variant> {
    let is_aligned = start_of(x)? % 16 == 0 && start_of(y)? % 16 == 0;
    let variant = variant("random/random.c", y).define("THREADS", threads).define("DROPOUT", true);
    Ok(variant.optional("WORD", is_aligned.then(|| word(16))))
}

/// Masks x, or its sum with a bias, by draws that are made on the way.
fn run(
    gpu: &Gpu,
    dropout: &Dropout,
    DropoutInputs { x, state }: DropoutInputs<&Operand<'_>>,
    Output { y }: Output<&Operand<'_>>,
    bias: Option<&Operand<'_>>,
) -> Result<()> {
    let (to, n, threads) = (start_of(y)?, y.layout.shape().numel(), group_size(gpu.driver().limits()));
    let (mut variant, base) = with_base(masking(x, y, threads)?, state)?;
    let mut arguments = Arguments::new().pointers([start_of(x)?, to, base.unwrap_or(to)]);
    if let Some(bias) = bias {
        let width = bias.layout.shape().numel();
        let is_whole = width.is_multiple_of(items(y.dtype)) && start_of(bias)? % 16 == 0;
        variant = variant.define("BIASED", true).flag("WHOLE", is_whole);
        arguments = arguments.pointer(start_of(bias)?).int(width);
    }
    let arguments = arguments.int(n).numbers(state_ints(dropout.state)).int(dropout.threshold);
    let geometry = in_groups(n.div_ceil(items(y.dtype)), threads);
    gpu.launch(variant, "dropout", geometry, &arguments.float(dropout.scale, y.dtype.acc()))
}

/// Masks dy, and sums the results over rows. Each group leaves a part of the sums.
fn sum(
    gpu: &Gpu,
    dropout: &Dropout,
    BiasDropoutBackwardInputs { dy, state }: BiasDropoutBackwardInputs<&Operand<'_>>,
    BiasDropoutBackwardOutputs { dx, bias: dbias }: BiasDropoutBackwardOutputs<&Operand<'_>>,
) -> Result<()> {
    let (width, limits) = (dbias.layout.shape().numel(), gpu.driver().limits());
    let (rows, threads) = (dx.layout.shape().numel() / width, group_size(limits).min(256));
    let columns = COLUMNS.min(threads);
    let (across, lines) = (width.div_ceil(columns * items(dx.dtype)), threads / columns);
    // Several groups for each multiprocessor, and no long sums.
    let parts = (8 * limits.units / across).max(rows.div_ceil(lines * TERMS)).clamp(1, rows.div_ceil(lines));
    let sums = gpu.scratch(parts * width * dx.dtype.acc().size())?;
    let program = masking(dy, dx, threads)?.flag("SUMMED", true).define("COLUMNS", columns);
    let (program, base) = with_base(program, state)?;
    let to = start_of(dx)?;
    let arguments = Arguments::new().pointers([start_of(dy)?, to, sums.address, base.unwrap_or(to)]);
    let arguments = arguments.numbers([rows, width]).numbers(state_ints(dropout.state)).int(dropout.threshold);
    let geometry = Geometry::new([across, parts, 1], threads);
    gpu.launch(program, "dropout_sum", geometry, &arguments.float(dropout.scale, dx.dtype.acc()))?;
    let joining = variant("normalization/norm_join.c", dx).define("P", dx.dtype).flag("WEIGHT", true);
    join_parts(gpu, joining, [sums.address; 2], [start_of(dbias)?; 2], parts, width, false)
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].dropout(0.1, &Rng::new(0))),
    |d, t| differentiate(d, t, &[&[4096, 1024], &[1024]], |x| x[0].bias_dropout(&x[1], 0.1, &Rng::new(0))),
    |d, t| differentiate(d, t, &[&[4096, 1001], &[1001]], |x| x[0].bias_dropout(&x[1], 0.1, &Rng::new(0))),
];
