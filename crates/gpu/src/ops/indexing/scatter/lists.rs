//! Short lists: a group finds in local memory the rows that may have a common target, and moves all other rows at once.
//!
//! Its constants were tuned on an H100.

use crate::driver::{Geometry, Limits};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{MOST_GROUPS, group_size};
use crate::launch::operands::start_of;
use crate::memory::status::Check;
use crate::ops::indexing::index::OUTER;
use crate::ops::indexing::scatter::{LIST_THREADS, Scattering, keeping};
use isograd_core::Result;

/// The most list entries in a group's local memory. A group looks at twice as many rows, few of which share a target.
const ENTRIES: usize = 8192;
/// Mean number of entries per bucket.
const BUCKET: usize = 4;
/// The most bytes of one-word rows that a thread keeps in registers; with more, the compiler would spill them.
const KEPT_BYTES: usize = 32;
/// Bits per entry in each of two bit sets in local memory: of the indices that occur, and of those that occur again.
const BITS: usize = 16;
/// A group takes several short lists until they have this many rows together.
const TOGETHER: usize = 2048;
/// `[least, most]` adjacent lists that a group takes together. Fewer would read parts of memory sectors; it takes more than the least
/// only while there is a group for each multiprocessor.
const NEIGHBOURS: [usize; 2] = [4, 16];
/// Words per thread from which on a group has more threads.
const ROWS_OF_THREAD: usize = 4;
/// The threads that it then has if rows have several words, so that groups share a list. Else it has `LIST_THREADS`.
const SHARING_THREADS: usize = 512;

impl Scattering<'_> {
    /// Whether a list fits local memory. An entry packs the number of a row and its target into 32 bits.
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

/// Bytes of local memory for this many entries: entries, buckets, a bit for each row that may meet another, and a number for each thread.
fn lists_memory(entries: usize, threads: usize) -> usize {
    (entries + entries / BUCKET + entries / 16 + threads) * 4
}

/// The number of entries for which a group has local memory, if several groups share a multiprocessor.
pub fn local_entries(limits: &Limits) -> usize {
    let mut entries = ENTRIES;
    while entries > BITS && lists_memory(entries, LIST_THREADS) > limits.local_memory {
        entries /= 2;
    }
    entries
}
