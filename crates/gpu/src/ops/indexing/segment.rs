//! Reductions of rows by index, as of a graph's edges for its nodes, and their gradients.

use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, in_groups};
use crate::launch::operands::{start_of, start_or};
use crate::launch::words::{divider, vector_of};
use crate::memory::status::Check;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, in_any_order, zeros};
use crate::ops::indexing::index::{Indexed, bad, check, is_wide, with_words};
use crate::ops::indexing::scatter::{Onto, Scattering};
use crate::program::source::Variant;
use isograd_core::backend::Scatter;
use isograd_core::fused::Fused;
use isograd_core::ops::indexing::segment::{IndexGradient, IndexGradientInputs, RowReduction, RowReductionInputs};
use isograd_core::ops::{EmbeddingOptions, TieGrad};
use isograd_core::{Call, DType, Device, Result};

pub const FAMILY: Family =
    Family { launchers: &[Launcher::of::<RowReduction>(), Launcher::of::<IndexGradient>()], examples: EXAMPLES };

impl FusedLaunch for RowReduction {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        reduce(gpu, call, self)
    }
}

impl FusedLaunch for IndexGradient {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        reduce_backward(gpu, call, *self)
    }
}

/// Reduces rows by index, and writes zeros to the rows of the table that no index names.
fn reduce(gpu: &Gpu, call: &Call<'_>, reduction: &RowReduction) -> Result<()> {
    let (RowReductionInputs { index, x }, table) = (reduction.inputs(call), reduction.outputs(call).y);
    if table.layout.shape().numel() == 0 {
        return Ok(());
    }
    let (from, to, size) = (start_of(x)?, start_of(table)?, table.dtype.size());
    let threads = group_size(gpu.driver().limits());
    let indexed = Indexed::new(index, table.layout, Some(x.layout), 0, threads).in_words(size, [from, to]);
    let onto = Onto::Nothing { padding: reduction.left_out.unwrap_or(-1), reduce: reduction.reduce };
    let is_wide = is_wide(&[index, x, table]);
    Scattering { call, indexed, mode: Scatter::Add, onto, is_wide, from, to }.many(gpu)
}

/// The gradient of rows that were reduced by index.
fn reduce_backward(gpu: &Gpu, call: &Call<'_>, kind: IndexGradient) -> Result<()> {
    let (IndexGradientInputs { dy, index, counts, x, y, first }, dx) = (kind.inputs(call), kind.outputs(call).y);
    let n = dx.layout.shape().numel();
    if n == 0 {
        return Ok(());
    }
    let [nodes, features] = [0, 1].map(|d| dy.layout.shape()[d]);
    let (from, to, size, threads) = (start_of(dy)?, start_of(dx)?, dx.dtype.size(), group_size(gpu.driver().limits()));
    let [counts, x, y, first] =
        [start_or(counts, from)?, start_or(x, from)?, start_or(y, from)?, start_or(first, from)?];
    let v = vector_of(dx.dtype, features, &[from, x, y, to]);
    let width = features / v;
    let variant = with_words(Variant::new("indexing/segment.c"), v)
        .define("THREADS", threads)
        .define("I", index.dtype)
        .stored(dx.dtype)
        .words(v, size)
        .flag("EVEN", matches!(kind, IndexGradient::Even))
        .flag("FIRST", matches!(kind, IndexGradient::First))
        .flag("WIDE", is_wide(&[dy, dx]));
    let arguments = Arguments::new().pointers([from, start_of(index)?, counts, x, y, first, to]);
    let arguments = arguments.numbers([n / v, width, divider(width), nodes]);
    let slot = gpu.status(call.op, Check::Index(nodes))?;
    let arguments = arguments.bytes(&bad(dx.dtype).to_le_bytes()[..size]).pointer(slot.address);
    gpu.launch(variant, "shares", in_groups(n / v, threads), &arguments)?;
    check(gpu, call.op, slot, (index, 1), nodes)
}

/// Joins rows for the nodes of a graph.
fn joins(device: &Device, dtype: DType, edges: usize) -> Result<()> {
    let index = zeros(device, DType::I64, &[edges])?;
    for ties in [TieGrad::Even, TieGrad::First] {
        let x = zeros(device, dtype, &[edges, 128])?.require_grad()?;
        x.scatter_max(&index, Some(1024), ties)?.0.sum(..)?.backward()?;
    }
    zeros(device, dtype, &[edges, 128])?.require_grad()?.scatter_mean(&index, Some(1024))?.sum(..)?.backward()
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| {
        in_any_order(d, || {
            differentiate(d, t, &[&[4096, 1024]], |x| {
                x[0].embedding(&zeros(x[0].device(), DType::I64, &[4096])?, &EmbeddingOptions::default())
            })
        })
    },
    |d, t| in_any_order(d, || joins(d, t, 4096)),
    |d, t| in_any_order(d, || joins(d, t, 16384)),
];
