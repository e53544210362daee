//! Reductions over the entries of sparse matrices and the edges of graphs, and their gradients: a launch each.

use crate::driver::{Address, Geometry};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, groups, in_groups};
use crate::launch::operands::{start_of, start_or};
use crate::launch::words::{divider, vector_of};
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, zeros};
use crate::ops::indexing::index::is_wide;
use crate::program::source::Variant;
use isograd_core::fused::Fused;
use isograd_core::ops::sparse::kernels::{
    SparseBackward, SparseBackwardInputs, SparseGradients, SparseInputs, SparseOutputs, SparseReduce,
};
use isograd_core::ops::{Csr, IndexReduce, Message, Messages};
use isograd_core::{Call, DType, Device, Operand, Result, Tensor};

pub const FAMILY: Family =
    Family { launchers: &[Launcher::of::<SparseReduce>(), Launcher::of::<SparseBackward>()], examples: EXAMPLES };

/// The most threads of a row. Each takes a slice of x, small enough that a cache holds it.
const MOST_OF_ROW: usize = 8;
/// The same for gradients of weights: each slice writes a partial sum, which is read again.
const MOST_WITH_WEIGHTS: usize = 16;
/// Mean number of entries per list from which on all threads of a group share each long list. With fewer, long lists are rare, and
/// looking for them takes a tenth of the kernel's time.
const MANY: usize = 32;

impl FusedLaunch for SparseReduce {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let SparseInputs { starts, columns, x, entries, weight, attribute } = self.inputs(call);
        let SparseOutputs { y, ties, best } = self.outputs(call);
        let (of_x, of_y) = (start_of(x)?, start_of(y)?);
        let [of_entries, of_weight, of_attribute] =
            [start_or(entries, of_x)?, start_or(weight, of_x)?, start_or(attribute, of_x)?];
        let rows = Rows::new(gpu, x, &[of_x, of_attribute, of_y], false, MOST_OF_ROW);
        let mut pointers = vec![start_of(starts)?, start_of(columns)?, of_x, of_entries, of_weight, of_attribute, of_y];
        let mut variant = rows.variant(self.reduce, starts.dtype, call.inputs).flags([
            ("WEIGHTED", weight.is_some()),
            ("ATTRIBUTES", attribute.is_some()),
            ("PERMUTED", entries.is_some()),
        ]);
        if let Some(ties) = ties {
            pointers.extend([start_of(ties)?, start_or(best, of_y)?]);
            variant = rows.with_best(variant, best.unwrap_or(y).dtype).flag("KEEPS_BEST", best.is_some());
        }
        let (lists, width) = (y.layout.shape()[0], rows.heads * rows.per_head);
        let count = lists * rows.slices;
        let are_long = self.reduce != IndexReduce::Max && has_many(columns, lists);
        let variant = variant.flag("LONG_LISTS", are_long);
        let together = rows.together(count);
        let numbers =
            [count, together, lists, divider(lists), width, rows.heads, rows.per_head, divider(rows.per_head)];
        let arguments = Arguments::new().pointers(pointers).numbers(numbers);
        gpu.launch(variant, "sparse_reduce", rows.geometry(count), &arguments)
    }
}

impl FusedLaunch for SparseBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let SparseBackwardInputs { starts, rows: row, x, entries, weight, attribute, row_starts, dy, best, ties } =
            self.inputs(call);
        let (of_x, of_dy, of_attribute) = (start_of(x)?, start_of(dy)?, start_or(attribute, start_of(x)?)?);
        let SparseGradients { x: dx, weight: dweight, attribute: dattribute } = self.outputs(call);
        // Some address that kernels get in place of gradients that are not wanted.
        let first = start_of(&call.outputs[0])?;
        let most = if dweight.is_some() { MOST_WITH_WEIGHTS } else { MOST_OF_ROW };
        let moved = [of_x, of_attribute, of_dy, start_or(dx, of_x)?, start_or(dattribute, of_x)?];
        let rows = Rows::new(gpu, x, &moved, true, most);
        let variant = rows.variant(self.reduce, starts.dtype, call.inputs).flags([
            ("WEIGHTED", weight.is_some()),
            ("ATTRIBUTES", attribute.is_some()),
            ("PERMUTED", entries.is_some()),
            ("OF_INPUT", dx.is_some()),
            ("OF_WEIGHTS", dweight.is_some()),
            ("OF_ATTRIBUTES", dattribute.is_some()),
        ]);
        let variant = if let Some(best) = best { rows.with_best(variant, best.dtype) } else { variant };

        let [of_slice, weights] = [x, row].map(|t| t.layout.shape()[0] * rows.heads);
        // Partial sums, one per slice.
        let acc = rows.dtype.acc();
        let parts = match dweight.is_some() && rows.slices > 1 {
            true => Some(gpu.scratch(rows.slices * weights * acc.size())?),
            false => None,
        };
        let variant = variant.define("DOT", if parts.is_some() { acc } else { rows.dtype });
        let of_weights = start_or(dweight, first)?;
        let dots = parts.as_ref().map_or(of_weights, |parts| parts.address);
        let mut pointers =
            vec![start_of(starts)?, start_of(row)?, of_x, start_or(entries, of_x)?, start_or(weight, of_x)?];
        pointers.extend([of_attribute, start_or(row_starts, of_x)?, of_dy]);
        for operand in [best, ties].into_iter().flatten() {
            pointers.push(start_of(operand)?);
        }
        pointers.extend([start_or(dx, first)?, dots, start_or(dattribute, first)?]);
        let count = of_slice * rows.slices;
        let by_heads = divider(rows.heads);
        let numbers = [count, of_slice, divider(of_slice), rows.heads, by_heads, rows.per_head, weights];
        let arguments = Arguments::new().pointers(pointers).numbers(numbers);
        gpu.launch(
            variant.clone(),
            "sparse_backward",
            groups(count.div_ceil(rows.threads / rows.team), rows.threads),
            &arguments,
        )?;
        if parts.is_none() {
            return Ok(());
        }
        let arguments = Arguments::new().pointers([dots, of_weights]).numbers([weights, rows.slices]);
        gpu.launch(variant, "sparse_weights", in_groups(weights, rows.threads), &arguments)
    }
}

/// The rows `[heads, F]` of x, in words, and the threads that share a slice of one.
struct Rows {
    dtype: DType,
    heads: usize,
    /// Elements of a word.
    vector: usize,
    /// Words of a head.
    per_head: usize,
    threads: usize,
    team: usize,
    /// Slices of a row, or of a head if a team takes one head.
    slices: usize,
    /// Multiprocessors.
    units: usize,
}

impl Rows {
    /// `moved` are the addresses of operands that are read and written in words. `is_head`: a team takes one head. `most`: threads of
    /// a row.
    fn new(gpu: &Gpu, x: &Operand<'_>, moved: &[Address], is_head: bool, most: usize) -> Rows {
        let [heads, features] = [1, 2].map(|d| x.layout.shape()[d]);
        let vector = vector_of(x.dtype, features, moved);
        let per_head = features / vector;
        let threads = group_size(gpu.driver().limits());
        let width = if is_head { per_head } else { heads * per_head };
        let team = team(width, threads.min(most));
        Rows {
            dtype: x.dtype,
            heads,
            vector,
            per_head,
            threads,
            team,
            slices: width.div_ceil(team),
            units: gpu.driver().limits().units.max(1),
        }
    }

    fn variant(&self, reduce: IndexReduce, index: DType, inputs: &[Operand<'_>]) -> Variant {
        let operands: Vec<&Operand<'_>> = inputs.iter().collect();
        Variant::new("sparse/sparse.c")
            .define("THREADS", self.threads)
            .define("TEAM", self.team)
            .define("I", index)
            .stored(self.dtype)
            .words(self.vector, self.dtype.size())
            .flag("HEADS", self.heads > 1)
            .flag("MEAN", reduce == IndexReduce::Mean)
            .flag("MAX", reduce == IndexReduce::Max)
            .flag("WIDE", is_wide(&operands))
    }

    /// Adds the dtype of the maxima, and the words of their counts.
    fn with_best(&self, variant: Variant, best: DType) -> Variant {
        variant
            .define("BEST", best)
            .in_pieces(["BEST_WORD", "BEST_WORDS"], self.vector * best.size())
            .in_pieces(["COUNT_WORD", "COUNT_WORDS"], 4 * self.vector)
    }

    /// Lists per group: one per team. If there are few lists, which may be long, a group has fewer.
    fn together(&self, lists: usize) -> usize {
        (lists / self.units).clamp(1, self.threads / self.team)
    }

    fn geometry(&self, lists: usize) -> Geometry {
        groups(lists.div_ceil(self.together(lists)), self.threads)
    }
}

/// Whether the mean number of entries per list is at least `MANY`.
fn has_many(entries: &Operand<'_>, lists: usize) -> bool {
    entries.layout.shape()[0] > MANY * lists
}

/// Threads per row of `width` words: a power of 2, at most `most`, with few threads idle at the end of the row.
fn team(width: usize, most: usize) -> usize {
    let whole = width.next_power_of_two().min(most);
    let halves = std::iter::successors(Some(whole), |t| (*t > 8).then_some(t / 2));
    let is_filled = |t: &usize| 4 * width.div_ceil(*t) * t <= 5 * width;
    halves.clone().find(is_filled).unwrap_or_else(|| halves.last().unwrap_or(1).min(whole))
}

/// Every reduction of messages, with gradients.
fn messages(device: &Device, dtype: DType, heads: usize) -> Result<()> {
    let (nodes, edges, features) = (1024, 4096, 64);
    let ends = zeros(device, DType::I64, &[edges])?;
    let graph = Csr::from_entries(&ends, &ends, [nodes, nodes])?;
    let leaf = |dims: &[usize]| zeros(device, dtype, dims)?.require_grad();
    let shape = |n: usize, rest: &[usize]| [&[n], rest].concat();
    let (x, rest) = if heads > 1 {
        (shape(nodes, &[heads, features]), vec![heads, features])
    } else {
        (vec![nodes, features], vec![features])
    };
    for reduce in [IndexReduce::Sum, IndexReduce::Mean, IndexReduce::Max] {
        for (is_weighted, is_added) in [(false, false), (true, true)] {
            let weight = leaf(&shape(edges, &rest[..rest.len() - 1]))?;
            let attribute = leaf(&shape(edges, &rest))?;
            let message = if is_added { Message::Add(&attribute) } else { Message::Copy };
            let edge_weight = if is_weighted { Some(&weight) } else { None };
            leaf(&x)?.message_passing(&graph, &Messages { message, edge_weight, reduce })?.sum(..)?.backward()?;
        }
    }
    Ok(())
}

/// A product with a sparse matrix, and its gradients.
fn product(device: &Device, dtype: DType) -> Result<()> {
    let (pointers, columns) = (Tensor::arange(1025, device)?, zeros(device, DType::I64, &[1024])?);
    let pattern = Csr::new(&pointers, &columns, 512)?;
    let val = zeros(device, dtype, &[1024])?.require_grad()?;
    zeros(device, dtype, &[512, 128])?.require_grad()?.sparse_mm(&pattern, Some(&val))?.sum(..)?.backward()
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[product, |d, t| messages(d, t, 1), |d, t| messages(d, t, 4)];
