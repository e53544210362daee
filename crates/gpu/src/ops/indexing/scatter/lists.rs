//! Short lists: a group finds in local memory the rows that may have a common target, and moves all other rows at once.

use crate::driver::{Geometry, Limits};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{MOST_GROUPS, group_size};
use crate::launch::operands::start_of;
use crate::memory::status::Check;
use crate::ops::indexing::index::OUTER;
use crate::ops::indexing::scatter::{LIST_THREADS, Scattering, keeping};
use isograd_core::Result;

/// Entries of lists in a group's local memory, at most, and how many there are for each bucket of these. Twice as many rows are
/// looked at, of which few meet.
const ENTRIES: usize = 8192;
const BUCKET: usize = 4;
/// Of rows of one word that a thread keeps in registers, bytes of these at most: more are put aside to memory.
const KEPT_BYTES: usize = 32;
/// Bits of local memory for each entry: a bit is one for an index that occurs, and one for an index that occurs again.
const BITS: usize = 16;
/// Short lists are taken together until they are so many rows.
const TOGETHER: usize = 2048;
/// Lists that are taken together if they are neighbours in the index: at least, so that no sector is read in part, and as many
/// as there are multiprocessors left for.
const NEIGHBOURS: [usize; 2] = [4, 16];
/// Rows for each thread of a group that takes lists, from which on it has more threads, and how many it then has; if more
/// groups share a list, each has fewer.
const ROWS_OF_THREAD: usize = 4;
const SHARING_THREADS: usize = 512;

impl Scattering<'_> {
    /// Whether a list has a place in local memory. The number of a row and where it points have 32 bits.
    pub(super) fn is_short(&self, entries: usize) -> bool {
        self.lists()[1] <= entries && self.indexed.extent <= 1 << (u32::BITS - entries.ilog2())
    }

    pub(super) fn local(mut self, gpu: &Gpu, entries: usize) -> Result<()> {
        let (index, dim, width) = (self.indexed.index, self.indexed.dim, self.indexed.width);
        let ([lists, count, apart], limits) = (self.lists(), gpu.driver().limits());
        let [least, most] = if apart > 1 { NEIGHBOURS } else { [1, 1] };
        let is_more = |together: usize| {
            let has_place =
                together * count <= 2 * entries && together <= group_size(limits).min(lists.next_power_of_two());
            let is_busy = lists / together >= limits.units - limits.units / 8;
            has_place && (together <= least || (is_busy && (together <= most || together * count <= TOGETHER)))
        };
        let mut together = 1;
        while width == 1 && is_more(2 * together) {
            together *= 2;
        }
        let slabs = lists.div_ceil(together);
        if slabs > MOST_GROUPS {
            return self.ordered(gpu);
        }
        let words = together * count * width;
        let threads = match width {
            1 => LIST_THREADS,
            _ => SHARING_THREADS,
        };
        if words > self.indexed.threads * ROWS_OF_THREAD {
            self.indexed.threads = 1 << threads.min(limits.max_group).ilog2();
        }
        let threads = self.indexed.threads;
        let shares = if width == 1 { 1 } else { (2 * limits.units / slabs).clamp(1, words.div_ceil(threads)) };
        let (variant, integers) = self.variant("indexing/scatter/lists.c", &self.indexed.outer(), OUTER);
        let variant = variant
            .define("ENTRIES", entries)
            .define("BUCKETS", entries / BUCKET)
            .define("NUMBER_BITS", entries.ilog2() as usize)
            .flag("ONE", width == 1);
        let kept = words.div_ceil(threads).next_power_of_two();
        let is_kept = limits.keeps_arrays
            && width == 1
            && kept * self.indexed.vector * self.call.outputs[0].dtype.size() <= KEPT_BYTES;
        let variant = keeping(variant, is_kept.then_some(kept), threads);
        let source_step = self.indexed.source.as_ref().map_or(0, |s| s[dim]);
        let at_once = 1 << (entries / count).max(1).ilog2();
        let bits = self.indexed.extent.next_power_of_two().clamp(32, entries * BITS / together);
        let [counts, first] = self.others()?;
        let arguments =
            Arguments::new().pointers([start_of(index)?, self.from, self.to, counts, first]).named(integers);
        let numbers = [lists, together, at_once, bits, count, apart, index.layout.strides()[dim], source_step];
        let arguments = arguments.numbers(self.indexed.reach()).numbers(numbers).int(self.padding());
        let slot = gpu.status(self.call.op, Check::Index(self.indexed.extent))?;
        let geometry = Geometry { given: lists_memory(entries, threads), ..Geometry::new([slabs, shares, 1], threads) };
        gpu.launch(variant, "lists", geometry, &arguments.pointer(slot.address))?;
        self.indexed.check(gpu, self.call.op, slot)
    }
}

/// Bytes of so many entries of lists, with their buckets, bits of rows that meet and a number for each thread.
fn lists_memory(entries: usize, threads: usize) -> usize {
    (entries + entries / BUCKET + entries / 16 + threads) * 4
}

/// Entries of lists for which a group has local memory: as many as groups have that share a multiprocessor.
pub fn local_entries(limits: &Limits) -> usize {
    let mut entries = ENTRIES;
    while entries > BITS && lists_memory(entries, LIST_THREADS) > limits.local_memory {
        entries /= 2;
    }
    entries
}
