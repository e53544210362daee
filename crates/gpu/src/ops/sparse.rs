//! Reductions over the entries of sparse matrices and the edges of graphs, and their gradients: a launch each.

use crate::driver::{Address, Geometry};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, groups, in_groups};
use crate::launch::operands::{addresses, optional};
use crate::launch::words::{divider, vector_of};
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, zeros};
use crate::ops::indexing::index::is_wide;
use crate::program::source::Variant;
use isograd_core::ops::sparse::kernels::{SparseBackward, SparseReduce, Terms};
use isograd_core::ops::{Csr, IndexReduce, Message, Messages};
use isograd_core::{Call, DType, Device, Operand, Result, Tensor};

pub const FAMILY: Family =
    Family { launchers: &[Launcher::of::<SparseReduce>(), Launcher::of::<SparseBackward>()], examples: EXAMPLES };

/// Threads of a row at most: slices of x are small, so that a cache holds them.
const MOST_OF_ROW: usize = 8;
/// The same with gradients of weights, whose sums over each slice are written and read.
const MOST_WITH_WEIGHTS: usize = 16;
/// Entries of a list in the mean from which on some lists are likely long, and all threads of a group share each that is. Where none
/// is, looking for them takes a tenth of the time.
const MANY: usize = 32;

impl FusedLaunch for SparseReduce {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let (inputs, outputs) = (addresses(call.inputs)?, addresses(call.outputs)?);
        let Terms { has_weight, has_attribute, .. } = self.terms;
        let rest = optional(&inputs[3..], [self.is_permuted, has_weight, has_attribute], inputs[2]);
        let rows = Rows::new(gpu, call, &[inputs[2], rest[2], outputs[0]], false, MOST_OF_ROW);
        let mut pointers = [&inputs[..3], &rest[..], &outputs[..1]].concat();
        let mut variant = rows.variant(self.terms, call.inputs).flag("PERMUTED", self.is_permuted);
        if self.terms.reduce == IndexReduce::Max {
            let kept = call.outputs.get(2);
            pointers.extend([outputs[1], outputs[kept.map_or(0, |_| 2)]]);
            variant =
                rows.with_best(variant, kept.unwrap_or(&call.outputs[0]).dtype).flag("KEEPS_BEST", kept.is_some());
        }
        let (lists, width) = (call.outputs[0].layout.shape()[0], rows.heads * rows.per_head);
        let count = lists * rows.slices;
        let are_long = self.terms.reduce != IndexReduce::Max && has_many(call.inputs, lists);
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
        let (inputs, outputs) = (addresses(call.inputs)?, addresses(call.outputs)?);
        let Terms { reduce, has_weight, has_attribute } = self.terms;
        let (is_max, x) = (reduce == IndexReduce::Max, inputs[2]);
        let (present, last) = inputs[3..].split_at(inputs.len() - 3 - if is_max { 3 } else { 1 });
        let rest = optional(present, [self.is_permuted, has_weight, has_attribute, reduce == IndexReduce::Mean], x);
        let written = optional(&outputs, self.wanted(), outputs[0]);
        let places = [x, rest[2], last[0], if self.wants_input { written[0] } else { x }];
        let attributes = if self.wants_attribute { written[2] } else { x };
        let most = if self.wants_weight { MOST_WITH_WEIGHTS } else { MOST_OF_ROW };
        let rows = Rows::new(gpu, call, &[&places[..], &[attributes]].concat(), true, most);
        let variant = rows.variant(self.terms, call.inputs).flag("PERMUTED", self.is_permuted);
        let variant = variant.flag("OF_INPUT", self.wants_input).flag("OF_WEIGHTS", self.wants_weight);
        let variant = variant.flag("OF_ATTRIBUTES", self.wants_attribute);
        let variant = if is_max { rows.with_best(variant, call.inputs[inputs.len() - 2].dtype) } else { variant };

        let (columns, entries) = (call.inputs[2].layout.shape()[0], call.inputs[1].layout.shape()[0]);
        let (of_slice, weights) = (columns * rows.heads, entries * rows.heads);
        // The parts of sums that several slices make.
        let acc = rows.dtype.acc();
        let parts = match self.wants_weight && rows.slices > 1 {
            true => Some(gpu.scratch(rows.slices * weights * acc.size())?),
            false => None,
        };
        let variant = variant.define("DOT", if parts.is_some() { acc } else { rows.dtype });
        let dots = parts.as_ref().map_or(written[1], |parts| parts.address);
        let pointers = [&inputs[..3], &rest[..], last, &[written[0], dots, written[2]]].concat();
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
        let arguments = Arguments::new().pointers([dots, written[1]]).numbers([weights, rows.slices]);
        gpu.launch(variant, "sparse_weights", in_groups(weights, rows.threads), &arguments)
    }
}

/// The rows `[heads, F]` of the third input, in words, and the threads that share a slice of one.
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
    /// `places` are the addresses of operands that are read and written in words. `is_head`: a team takes one head. `most`: threads of
    /// a row.
    fn new(gpu: &Gpu, call: &Call<'_>, places: &[Address], is_head: bool, most: usize) -> Rows {
        let x = &call.inputs[2];
        let [heads, features] = [1, 2].map(|d| x.layout.shape()[d]);
        let vector = vector_of(x.dtype, features, places);
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

    fn variant(&self, terms: Terms, inputs: &[Operand<'_>]) -> Variant {
        let operands: Vec<&Operand<'_>> = inputs.iter().collect();
        Variant::new("sparse/sparse.c")
            .define("THREADS", self.threads)
            .define("TEAM", self.team)
            .define("I", inputs[0].dtype)
            .stored(self.dtype)
            .words(self.vector, self.dtype.size())
            .flag("WEIGHTED", terms.has_weight)
            .flag("ATTRIBUTES", terms.has_attribute)
            .flag("HEADS", self.heads > 1)
            .flag("MEAN", terms.reduce == IndexReduce::Mean)
            .flag("MAX", terms.reduce == IndexReduce::Max)
            .flag("WIDE", is_wide(&operands))
    }

    /// Adds the dtype of the maxima, and the words of their counts.
    fn with_best(&self, variant: Variant, best: DType) -> Variant {
        variant
            .define("BEST", best)
            .in_pieces(["BEST_WORD", "BEST_WORDS"], self.vector * best.size())
            .in_pieces(["COUNT_WORD", "COUNT_WORDS"], 4 * self.vector)
    }

    /// Lists that a group has at once: one for each team, or fewer if they are few, which may be long.
    fn together(&self, lists: usize) -> usize {
        (lists / self.units).clamp(1, self.threads / self.team)
    }

    fn geometry(&self, lists: usize) -> Geometry {
        groups(lists.div_ceil(self.together(lists)), self.threads)
    }
}

/// Whether this number of lists, whose entries are the second input, has many entries in the mean.
fn has_many(inputs: &[Operand<'_>], lists: usize) -> bool {
    inputs[1].layout.shape()[0] > MANY * lists
}

/// The threads of a row of `width` words, a power of 2 up to `most`: as many as the row has words, or a part of them that leaves few
/// threads without a word at the end of the row.
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
