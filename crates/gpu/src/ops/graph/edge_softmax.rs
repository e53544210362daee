//! The softmax of the edges of each node of a graph, and its gradient: a launch each.

use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, groups};
use crate::launch::operands::{addresses, optional};
use crate::launch::words::{divider, vector_of};
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, zeros};
use crate::ops::indexing::index::is_wide;
use crate::program::source::Variant;
use isograd_core::ops::Csr;
use isograd_core::ops::graph::edge_softmax::{EdgeSoftmax, EdgeSoftmaxBackward};
use isograd_core::{Call, DType, Device, Operand, Result, Tensor};

pub const FAMILY: Family =
    Family { launchers: &[Launcher::of::<EdgeSoftmax>(), Launcher::of::<EdgeSoftmaxBackward>()], examples: EXAMPLES };

/// Threads of a row, at most: they exchange registers.
const MOST_OF_ROW: usize = 32;
/// Target number of vector loads per thread. More per thread means fewer shuffles.
const MEAN: usize = 4;
/// Of these, the loads whose values stay in registers.
const KEPT: usize = 8;

impl FusedLaunch for EdgeSoftmax {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        by_rows(gpu, call, "edge_softmax", self.is_permuted)
    }
}

impl FusedLaunch for EdgeSoftmaxBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        by_rows(gpu, call, "edge_softmax_backward", self.is_permuted)
    }
}

/// Launches a kernel whose teams take a row and a word of its entries `[E, heads]`.
fn by_rows(gpu: &Gpu, call: &Call<'_>, kernel: &'static str, is_permuted: bool) -> Result<()> {
    let (inputs, y) = (addresses(call.inputs)?, &call.outputs[0]);
    let outputs = addresses(call.outputs)?;
    let (given, listed) = inputs.split_at(inputs.len() - usize::from(is_permuted));
    let [entries, heads] = [0, 1].map(|d| y.layout.shape()[d]);
    let rows = call.inputs[0].layout.shape()[0] - 1;
    let vector = vector_of(y.dtype, heads, &[given[1], given[given.len() - 1], outputs[0]]);
    let words = heads / vector;
    let threads = group_size(gpu.driver().limits());
    let team = entries.div_ceil(MEAN * rows.max(1)).next_power_of_two().min(MOST_OF_ROW).min(threads);
    let operands: Vec<&Operand<'_>> = call.inputs.iter().collect();
    let variant = Variant::new("graph/edge_softmax.c")
        .define("THREADS", threads)
        .define("TEAM", team)
        .define("KEPT", KEPT)
        .define("I", call.inputs[0].dtype)
        .stored(y.dtype)
        .words(vector, y.dtype.size())
        .flag("PERMUTED", is_permuted)
        .flag("WIDE", is_wide(&operands));
    let pointers = [given, &optional(listed, [is_permuted], given[1]), &outputs].concat();
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
