//! Exact sums of f16 in local memory, for short tables.
//!
//! Its constants were tuned on an H100.

use crate::driver::{Geometry, Limits};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{MOST_GROUPS, group_size};
use crate::launch::operands::start_of;
use crate::memory::status::Check;
use crate::ops::indexing::index::{Indexed, OUTER};
use crate::ops::indexing::scatter::{LIST_THREADS, Scattering};
use isograd_core::backend::Scatter;
use isograd_core::{DType, Result};

/// The most neighbouring lists whose exact sums a group keeps in local memory.
const EXACT_LISTS: usize = 8;
/// The most rows of such a list.
const EXACT_ROWS: usize = 1 << 22;
/// A program has room for a multiple of this many sums, so that few programs are compiled.
const BINS: usize = 1024;

impl Scattering<'_> {
    /// How many neighbouring lists of f16 a group adds up exactly, if it has room for their sums and there is a group for each
    /// multiprocessor.
    pub(super) fn exact_lists(&self, limits: &Limits) -> Option<usize> {
        let Indexed { vector, width, extent, .. } = self.indexed;
        let [lists, count, apart] = self.lists();
        let is_f16 = self.mode == Scatter::Add && self.call.outputs[0].dtype == DType::F16;
        let is_one = vector * width == 1 && apart > 1 && lists <= MOST_GROUPS;
        let are_many = extent <= 2 * count && count <= EXACT_ROWS && !self.is_wide;
        let fits = |&together: &usize| {
            let is_busy = lists / together >= limits.units - limits.units / 8;
            is_busy && together * count >= group_size(limits) && exact_memory(together * extent) <= limits.given_memory
        };
        let mut candidates = std::iter::successors(Some(EXACT_LISTS), |v| Some(v / 2)).take_while(|&v| v > 0);
        // Long lists are faster in buckets, unless many rows point to one place.
        let is_slower = || 2 * extent >= count && self.long(limits).is_some();
        if is_f16 && is_one && are_many && !is_slower() { candidates.find(fits) } else { None }
    }

    pub(super) fn exact(mut self, gpu: &Gpu, together: usize) -> Result<()> {
        let (index, dim, limits) = (self.indexed.index, self.indexed.dim, gpu.driver().limits());
        let [lists, count, apart] = self.lists();
        self.indexed.threads = 1 << (together * count).min(LIST_THREADS).min(limits.max_group).ilog2();
        let bins = together * self.indexed.extent;
        let (variant, integers) = self.variant("indexing/scatter/exact.c", &self.indexed.outer(), OUTER);
        let variant = variant.define("TOGETHER", together).define("BINS", bins.next_multiple_of(BINS));
        let arguments = Arguments::new().pointers([start_of(index)?, self.from, self.to]);
        let source_step = self.indexed.source.as_ref().map_or(0, |s| s[dim]);
        let Indexed { along, extent, threads, .. } = self.indexed;
        let numbers = [along, extent, lists, count, apart, index.layout.strides()[dim], source_step];
        let arguments = arguments.named(integers).numbers(numbers);
        let slot = gpu.status(self.call.op, Check::Index(extent))?;
        let geometry =
            Geometry { given: exact_memory(bins), ..Geometry::new([lists.div_ceil(together), 1, 1], threads) };
        gpu.launch(variant, "exact", geometry, &arguments.pointer(slot.address))?;
        self.indexed.check(gpu, self.call.op, slot)
    }
}

/// Bytes for so many exact sums: two halves of each, and two bits.
fn exact_memory(sums: usize) -> usize {
    let bins = sums.next_multiple_of(BINS);
    bins * 8 + bins / 4
}
