//! The softmax of the edges of each node of a graph, and its gradient: a launch each.

use crate::driver::Address;
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, groups};
use crate::launch::operands::{start_of, start_or};
use crate::launch::words::{divider, vector_of};
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, zeros};
use crate::ops::indexing::index::is_wide;
use crate::program::source::Variant;
use isograd_core::fused::Fused;
use isograd_core::ops::Csr;
use isograd_core::ops::graph::edge_softmax::{
    EdgeSoftmax, EdgeSoftmaxBackward, EdgeSoftmaxBackwardInputs, EdgeSoftmaxInputs,
};
use isograd_core::{Call, DType, Device, Operand, Result, Tensor};

pub const FAMILY: Family =
    Family { launchers: &[Launcher::of::<EdgeSoftmax>(), Launcher::of::<EdgeSoftmaxBackward>()], examples: EXAMPLES };

/// The most threads of a row: they exchange values by shuffles within a wave.
const MOST_OF_ROW: usize = 32;
/// Target number of vector loads per thread. More per thread means fewer shuffles.
const MEAN: usize = 4;
/// The loads of [`MEAN`] whose values stay in registers.
const KEPT: usize = 8;

impl FusedLaunch for EdgeSoftmax {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let EdgeSoftmaxInputs { starts, x, entries } = self.inputs(call);
        by_rows(gpu, call, "edge_softmax", (starts, &[x], entries), self.outputs(call).y)
    }
}

impl FusedLaunch for EdgeSoftmaxBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let EdgeSoftmaxBackwardInputs { starts, dy, y, entries } = self.inputs(call);
        by_rows(gpu, call, "edge_softmax_backward", (starts, &[dy, y], entries), self.outputs(call).y)
    }
}

/// Launches a kernel whose teams take a row and a word of its entries `[entries, heads]`, from the starts of lists, operands of this
/// shape, and the entry at each position.
fn by_rows(
    gpu: &Gpu,
    call: &Call<'_>,
    kernel: &'static str,
    (starts, read, entry): (&Operand<'_>, &[&Operand<'_>], Option<&Operand<'_>>),
    y: &Operand<'_>,
) -> Result<()> {
    let addresses: Vec<Address> = read.iter().chain([&y]).map(|t| start_of(t)).collect::<Result<_>>()?;
    let [entries, heads] = [0, 1].map(|d| y.layout.shape()[d]);
    let rows = starts.layout.shape()[0] - 1;
    let vector = vector_of(y.dtype, heads, &addresses);
    let words = heads / vector;
    let threads = group_size(gpu.driver().limits());
    let team = entries.div_ceil(MEAN * rows.max(1)).next_power_of_two().min(MOST_OF_ROW).min(threads);
    let operands: Vec<&Operand<'_>> = call.inputs.iter().collect();
    let variant = Variant::new("graph/edge_softmax.c")
        .define("THREADS", threads)
        .define("TEAM", team)
        .define("KEPT", KEPT)
        .define("I", starts.dtype)
        .stored(y.dtype)
        .words(vector, y.dtype.size())
        .flag("PERMUTED", entry.is_some())
        .flag("WIDE", is_wide(&operands));
    let (read, written) = addresses.split_at(read.len());
    let pointers = [&[start_of(starts)?], read, &[start_or(entry, read[0])?], written].concat();
    let count = rows * words;
    let arguments = Arguments::new().pointers(pointers).numbers([count, words, divider(words)]);
    gpu.launch(variant, kernel, groups(count.div_ceil(threads / team), threads), &arguments)
}

/// The softmax and its gradient, for lists in the order of edges or in another.
fn softmax(device: &Device, dtype: DType, heads: usize) -> Result<()> {
    let (nodes, edges) = (256, 4096);
    let ends = zeros(device, DType::I64, &[edges])?;
    let starts = Tensor::arange(nodes + 1, device)?.mul_scalar((edges / nodes) as i64)?;
    for graph in [Csr::from_entries(&ends, &ends, [nodes, nodes])?, Csr::new(&starts, &ends, nodes)?] {
        zeros(device, dtype, &[edges, heads])?.require_grad()?.edge_softmax(&graph)?.sum(..)?.backward()?;
    }
    Ok(())
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[|d, t| softmax(d, t, 1), |d, t| softmax(d, t, 8)];
