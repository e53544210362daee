//! Many longer lists: a group puts 16 bits of each row into buckets in local memory, or finds the last row of each place.
//!
//! Its constants were tuned on an H100.

use crate::driver::{Geometry, Limits};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::MOST_GROUPS;
use crate::launch::operands::start_of;
use crate::memory::status::Check;
use crate::ops::indexing::index::{Indexed, OUTER};
use crate::ops::indexing::scatter::lists::local_entries;
use crate::ops::indexing::scatter::{LIST_THREADS, Scattering, keeping};
use isograd_core::Result;
use isograd_core::backend::Scatter;

/// Numbers of adjacent lists that a group may take together. Of equally good ones the first is chosen.
const LONG_TOGETHER: [usize; 3] = [4, 2, 1];
/// The most bytes of local memory per list: what is beyond is taken from the cache.
const LONG_MEMORY: usize = 48 << 10;
/// Threads per list; a group has at most `LIST_THREADS`.
const LONG_THREADS: usize = 512;
/// The most rows of a list: a 16-bit entry then has a bit left, which tells two indices of a bucket apart.
const LONGEST: usize = 1 << 15;
/// The most rows of the table per row of the list. Each row of the table looks into a bucket.
const LONG_TABLE: usize = 16;
/// The number of buckets is a multiple of this, so that few programs are compiled.
const BUCKETS_STEP: usize = 256;
/// The same for the number of entries.
const ENTRIES_STEP: usize = 512;
/// The same for the number of targets.
const PLACES_STEP: usize = 1024;
/// The most passes over the table.
const PASSES: usize = 16;
/// Indices that a thread reads at once. The number that it keeps is a multiple of this.
const KEPT_STEP: usize = 8;
/// The most indices that a thread keeps in registers, two in each register.
const MOST_KEPT: usize = 64;

impl Scattering<'_> {
    /// The kernel for longer lists, if there are enough of them to fill the device. Adjacent lists read whole memory sectors
    /// together.
    pub(super) fn long(&self, limits: &Limits) -> Option<Long> {
        let (Indexed { width, extent, .. }, [lists, count, apart]) = (&self.indexed, self.lists());
        let are_many = *width == 1 && (limits.units..=MOST_GROUPS).contains(&lists) && !self.is_wide;
        let is_dense = count <= LONGEST && *extent <= LONG_TABLE * count;
        if !are_many || !is_dense || self.is_short(local_entries(limits)) {
            return None;
        }
        let is_busy = |together: usize| apart > 1 && lists / together >= limits.units - limits.units / 8;
        let candidates = LONG_TOGETHER.into_iter().filter(|&together| together == 1 || is_busy(together));
        // A further pass over indices in registers costs less than adjacent lists gain.
        let rank = |long: &Long| if long.passes == 1 || long.kept.is_some() { 0 } else { 1 };
        let of = |together| match self.mode {
            Scatter::Assign | Scatter::Distinct => Long::last(together, count, *extent, limits),
            Scatter::Add => Long::buckets(together, count, *extent, limits),
        };
        candidates.filter_map(of).min_by_key(rank)
    }

    pub(super) fn many_long(mut self, gpu: &Gpu, long: &Long) -> Result<()> {
        let (index, dim) = (self.indexed.index, self.indexed.dim);
        let ([lists, count, apart], &Long { together, threads, .. }) = (self.lists(), long);
        self.indexed.threads = threads;
        let (file, entry) = match long.kind {
            Kind::Last { .. } => ("indexing/scatter/last.c", "last"),
            Kind::Buckets { .. } => ("indexing/scatter/buckets.c", "buckets"),
        };
        let (variant, integers) = self.variant(file, &self.indexed.outer(), OUTER);
        let variant = keeping(variant.define("TOGETHER", together), long.kept, threads);
        let variant = match long.kind {
            Kind::Last { indexed } => variant.define("PLACES", indexed),
            Kind::Buckets { shift, buckets, entries } => {
                variant.define("SHIFT", shift).define("BUCKETS", buckets).define("ENTRIES", entries)
            }
        };
        let mut arguments = Arguments::new().pointers([start_of(index)?, self.from, self.to]);
        if self.mode == Scatter::Add {
            arguments = arguments.pointers(self.others()?);
        }
        let source_step = self.indexed.source.as_ref().map_or(0, |s| s[dim]);
        let Indexed { along, extent, .. } = self.indexed;
        let numbers = [along, extent, lists, count, apart, index.layout.strides()[dim], source_step];
        arguments = arguments.named(integers).numbers(numbers);
        if self.mode == Scatter::Add {
            arguments = arguments.int(self.padding());
        }
        let slot = gpu.status(self.call.op, Check::Index(extent))?;
        let geometry = Geometry { given: long.memory(), ..Geometry::new([lists.div_ceil(together), 1, 1], threads) };
        gpu.launch(variant, entry, geometry, &arguments.pointer(slot.address))?;
        self.indexed.check(gpu, self.call.op, slot)
    }
}

/// How long lists are looked at.
pub(super) struct Long {
    /// Lists of a group, and its threads.
    together: usize,
    threads: usize,
    /// How many passes over the table there are.
    passes: usize,
    /// Indices that a thread keeps, if it does not read them again.
    kept: Option<usize>,
    kind: Kind,
}

/// The contents of local memory for a list.
#[derive(Clone, Copy)]
enum Kind {
    /// The last row of each of this many targets.
    Last { indexed: usize },
    /// The number of buckets, of 2^shift adjacent indices each, and the number of their entries.
    Buckets { shift: usize, buckets: usize, entries: usize },
}

impl Long {
    fn new(together: usize, [count, extent]: [usize; 2], passes: usize, limits: &Limits, kind: Kind) -> Long {
        let threads = 1 << (together * LONG_THREADS).min(LIST_THREADS).min(limits.max_group).ilog2();
        let of_thread = (together * count).div_ceil(threads).next_multiple_of(KEPT_STEP);
        // 16 bits must also hold the value that stands for no index, which is beyond the range of any pass.
        let beyond = match kind {
            Kind::Last { indexed } => passes * indexed,
            Kind::Buckets { shift, .. } => extent + (1 << shift),
        };
        let has_room = limits.keeps_arrays && of_thread <= MOST_KEPT && beyond <= u16::MAX.into();
        // Neighbours find their index in the cache if it is read twice.
        let is_kept = match kind {
            Kind::Last { .. } => passes > 1,
            Kind::Buckets { .. } => passes > 1 || together == 1,
        };
        Long { together, threads, passes, kept: (has_room && is_kept).then_some(of_thread), kind }
    }

    /// The first of `plans` for which a group has the memory.
    fn first(together: usize, limits: &Limits, mut plans: impl Iterator<Item = Long>) -> Option<Long> {
        let memory = limits.given_memory.min(together * LONG_MEMORY);
        plans.find(|long| long.memory() <= memory)
    }

    /// Finds the last of `count` rows for each of `extent` targets, in the fewest passes that local memory allows.
    fn last(together: usize, count: usize, extent: usize, limits: &Limits) -> Option<Long> {
        let of_passes = |passes: usize| {
            let indexed = extent.div_ceil(passes).next_multiple_of(PLACES_STEP);
            Long::new(together, [count, extent], passes, limits, Kind::Last { indexed })
        };
        Long::first(together, limits, (1..=PASSES).map(of_passes))
    }

    /// Sorts `count` rows with `extent` targets into buckets, in the fewest passes that local memory allows. An entry has 16 bits: the
    /// number of a row, and the lowest bits of its index, which tell the indices of a bucket apart.
    fn buckets(together: usize, count: usize, extent: usize, limits: &Limits) -> Option<Long> {
        let most_shift = (u16::BITS - count.next_power_of_two().ilog2()) as usize;
        let of_passes = |passes: usize, shift: usize| {
            // Somewhat more than the mean of a pass, since passes differ.
            let entries = if passes == 1 { count } else { (count + count / 16).div_ceil(passes) };
            let kind = Kind::Buckets {
                shift,
                // No row is in the last one.
                buckets: (extent.div_ceil(1 << shift).div_ceil(passes) + 1).next_multiple_of(BUCKETS_STEP),
                // At least two for each thread, which sums counts there before.
                entries: entries.next_multiple_of(ENTRIES_STEP).max(2 * LONG_THREADS),
            };
            Long::new(together, [count, extent], passes, limits, kind)
        };
        let plans = (1..=PASSES).flat_map(|passes| (0..=most_shift).map(move |shift| of_passes(passes, shift)));
        Long::first(together, limits, plans)
    }

    /// Bytes of a group's local memory: 16 bits for each target, or for each bucket and each entry; a bit for each full bucket; and the
    /// ends of buckets.
    fn memory(&self) -> usize {
        match self.kind {
            Kind::Last { indexed } => self.together * indexed * 2,
            Kind::Buckets { buckets, entries, .. } => self.together * (buckets * 2 + buckets / 8 + entries * 2 + 4),
        }
    }
}
