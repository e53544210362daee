//! Softmax, its logarithm and softmax1, of rows and of columns.
//!
//! Its constants were tuned on an H100.

use crate::driver::{Address, Geometry};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{MOST_GROUPS, group_size};
use crate::launch::operands::{starts, variant};
use crate::launch::rows::{Kept, SHORT, rows};
use crate::launch::words::vector_of;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, zeros};
use crate::program::source::Variant;
use isograd_core::fused::Fused;
use isograd_core::operands::{Input, Output};
use isograd_core::ops::normalization::softmax::{Softmax, SoftmaxBackward, SoftmaxBackwardInputs, SoftmaxKind};
use isograd_core::{Call, DType, Operand, Result};

/// Vector loads that a thread has in flight, along a column.
const BATCH: usize = 4;
/// Bytes of a cache line. A group reads whole lines.
const LINE: usize = 128;
/// Groups that a multiprocessor runs at a time.
const TOGETHER: usize = 4;
/// The most terms that are added one after the other; longer sums are split.
const TERMS: usize = 4096;

pub const FAMILY: Family =
    Family { launchers: &[Launcher::of::<Softmax>(), Launcher::of::<SoftmaxBackward>()], examples: EXAMPLES };

impl FusedLaunch for Softmax {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let (Input { x }, Output { y }) = (self.inputs(call), self.outputs(call));
        let all = starts([x, y])?;
        run(gpu, y, *self, &all, &all)
    }
}

impl FusedLaunch for SoftmaxBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let (SoftmaxBackwardInputs { dy, y, x }, Output { y: dx }) = (self.inputs(call), self.outputs(call));
        let [dy, y, x, to] = starts([dy, y, x, dx])?;
        run(gpu, dx, self.0, &[dy, y, x, to], &[dy, y, to])
    }
}

/// `all`: the operands, of which the last is `result`; `moved`: those that are read or written in words.
fn run(gpu: &Gpu, result: &Operand<'_>, softmax: Softmax, all: &[Address], moved: &[Address]) -> Result<()> {
    let Softmax { outer, extent, inner, kind } = softmax;
    if outer * extent * inner == 0 {
        return Ok(());
    }
    let (dtype, is_backward) = (result.dtype, all.len() > 2);
    let flags = [
        ("LOGARITHM", kind == SoftmaxKind::Logarithm),
        // The gradient in terms of y is that of the softmax.
        ("PLUS_ONE", kind == SoftmaxKind::PlusOne && !is_backward),
        ("BACKWARD", is_backward),
    ];
    let program = variant("normalization/softmax.c", result).flags(flags);
    if inner > 1 || extent < SHORT {
        return columns(gpu, program, dtype, all, moved, softmax);
    }
    let kept = match dtype.size() {
        _ if is_backward => Kept::TWO,
        2 => Kept::HALVES,
        _ => Kept::ONE,
    };
    let (program, geometry) = rows(gpu, program, dtype, outer, extent, moved, kept);
    let entry = if is_backward { "softmax_rows_backward" } else { "softmax_rows" };
    let arguments = Arguments::new().pointers(all.iter().copied()).numbers([outer, extent]);
    gpu.launch(program, entry, geometry, &arguments)
}

/// One launch. Where columns are too few for the device, a launch before it reduces parts of them. The addresses are those of [`run`].
fn columns(
    gpu: &Gpu,
    program: Variant,
    dtype: DType,
    all: &[Address],
    moved: &[Address],
    softmax: Softmax,
) -> Result<()> {
    let (limits, Softmax { outer, extent, inner, .. }) = (gpu.driver().limits(), softmax);
    let threads = group_size(limits);
    let vector = vector_of(dtype, inner, moved);
    let (width, bytes) = (inner / vector, vector * dtype.size());
    let members = extent.div_ceil(BATCH).next_power_of_two().min(threads);
    let side = width.next_power_of_two().min(LINE / bytes).min(threads);
    let columns = side.max(threads / members);
    let taken = threads / columns * BATCH;
    let (count, rounds) = (outer * width, extent.div_ceil(taken));
    let groups = count.div_ceil(columns);
    let parts = (limits.units * TOGETHER / groups).clamp(1, rounds).max(rounds / TERMS);
    let length = rounds.div_ceil(parts) * taken;
    let parts = extent.div_ceil(length);
    let program = program
        .define("THREADS", threads)
        .define("COLUMNS", columns)
        .define("ABREAST", side)
        .words(vector, dtype.size())
        .define("BATCH", BATCH)
        .define("PER", 0usize)
        .flags([("KEPT", rounds == 1), ("PARTS", parts > 1)]);
    let geometry = Geometry::new([groups.min(MOST_GROUPS), parts, 1], threads);
    // Forward: the largest element and a sum; backward: a sum.
    let (entries, found) = match all.len() {
        2 => (["softmax_parts", "softmax_columns"], 2),
        _ => (["softmax_parts_backward", "softmax_columns_backward"], 1),
    };
    let bytes = if parts > 1 { parts * count * vector * dtype.acc().size() } else { 0 };
    let scratch = gpu.scratch(found * bytes)?;
    let found = (0..found).map(|k| scratch.address + (k * bytes) as u64);
    let sizes = [count, extent, width, length];
    let arguments =
        |pointers: &[Address]| Arguments::new().pointers(pointers.iter().copied().chain(found.clone())).numbers(sizes);
    if parts > 1 {
        gpu.launch(program.clone(), entries[0], geometry, &arguments(&moved[..moved.len() - 1]))?;
    }
    gpu.launch(program, entries[1], geometry, &arguments(all))
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].softmax(-1)),
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].softmax(0)),
    |d, t| differentiate(d, t, &[&[64, 32, 4096]], |x| x[0].softmax(1)),
    // Rows that no group keeps in its registers, and that are not whole words.
    |d, t| differentiate(d, t, &[&[64, 50257]], |x| x[0].softmax(-1)),
    |d, t| zeros(d, t, &[64, 4096])?.softmax1(-1).map(drop),
    |d, t| zeros(d, t, &[4096, 64])?.softmax1(0).map(drop),
];
