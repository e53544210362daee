//! Many longer lists: a group puts 16 bits of each row into buckets in local memory, or finds the last row of each place.

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

/// Of longer lists: how many neighbouring ones a group takes, the first of these that serves best; bytes of local memory of
/// one, at most, since more is taken from the cache; threads for one, of LIST_THREADS at most.
const LONG_TOGETHER: [usize; 3] = [4, 2, 1];
const LONG_MEMORY: usize = 48 << 10;
const LONG_THREADS: usize = 512;
/// The rows of the longest: a bit is left for two indices of a bucket.
const LONGEST: usize = 1 << 15;
/// How often as long a table is, at most: each of its rows looks into a bucket.
const LONG_TABLE: usize = 16;
/// Buckets, entries and indexed are multiples of these, so that few programs are compiled, and are looked at in so many passes at
/// most.
const BUCKETS_STEP: usize = 256;
const ENTRIES_STEP: usize = 512;
const PLACES_STEP: usize = 1024;
const PASSES: usize = 16;
/// Indices that a thread keeps in registers, two in each: a multiple of how many are read at once, and at most.
const KEPT_STEP: usize = 8;
const MOST_KEPT: usize = 64;

impl Scattering<'_> {
    /// How lists that are not short are looked at in local memory, if they are many: neighbouring ones fill memory's sectors
    /// together, and one alone leaves most of the device idle.
    pub(super) fn long(&self, limits: &Limits) -> Option<Long> {
        let (Indexed { width, extent, .. }, [lists, count, apart]) = (&self.indexed, self.lists());
        let are_many = *width == 1 && (limits.units..=MOST_GROUPS).contains(&lists) && !self.is_wide;
        let is_dense = count <= LONGEST && *extent <= LONG_TABLE * count;
        if !are_many || !is_dense || self.is_short(local_entries(limits)) {
            return None;
        }
        let is_busy = |together: usize| apart > 1 && lists / together >= limits.units - limits.units / 8;
        let candidates = LONG_TOGETHER.into_iter().filter(|&together| together == 1 || is_busy(together));
        // Passes over registers cost less than neighbours gain.
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
    /// The last row of each of so many indexed.
    Last { indexed: usize },
    /// So many buckets, of 2^shift neighbouring indices each, and their entries.
    Buckets { shift: usize, buckets: usize, entries: usize },
}

impl Long {
    fn new(together: usize, [count, extent]: [usize; 2], passes: usize, limits: &Limits, kind: Kind) -> Long {
        let threads = 1 << (together * LONG_THREADS).min(LIST_THREADS).min(limits.max_group).ilog2();
        let of_thread = (together * count).div_ceil(threads).next_multiple_of(KEPT_STEP);
        // The value that marks no index has 16 bits too, and lies beyond the range of any pass.
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

    /// Finds the last of `count` rows for each of `extent` indexed, in as few passes as there is memory for.
    fn last(together: usize, count: usize, extent: usize, limits: &Limits) -> Option<Long> {
        let of_passes = |passes: usize| {
            let indexed = extent.div_ceil(passes).next_multiple_of(PLACES_STEP);
            Long::new(together, [count, extent], passes, limits, Kind::Last { indexed })
        };
        Long::first(together, limits, (1..=PASSES).map(of_passes))
    }

    /// Puts `count` rows that point to `extent` into buckets, in as few passes as there is memory for. An entry has 16 bits: a
    /// row's number, and what tells the indices of a bucket apart, which is as little as fits.
    fn buckets(together: usize, count: usize, extent: usize, limits: &Limits) -> Option<Long> {
        let most_shift = (u16::BITS - count.next_power_of_two().ilog2()) as usize;
        let of_passes = |passes: usize, shift: usize| {
            // Some more than the share of a pass, as not all are alike.
            let entries = if passes == 1 { count } else { (count + count / 16).div_ceil(passes) };
            let kind = Kind::Buckets {
                shift,
                // No row is in the last one.
                buckets: (extent.div_ceil(1 << shift).div_ceil(passes) + 1).next_multiple_of(BUCKETS_STEP),
                // Two for each thread, at least, which add up counts there before.
                entries: entries.next_multiple_of(ENTRIES_STEP).max(2 * LONG_THREADS),
            };
            Long::new(together, [count, extent], passes, limits, kind)
        };
        let plans = (1..=PASSES).flat_map(|passes| (0..=most_shift).map(move |shift| of_passes(passes, shift)));
        Long::first(together, limits, plans)
    }

    /// Bytes of a group's local memory: 16 bits for each place, or for each bucket and entry, a bit for each bucket that is full,
    /// and where buckets end.
    fn memory(&self) -> usize {
        match self.kind {
            Kind::Last { indexed } => self.together * indexed * 2,
            Kind::Buckets { buckets, entries, .. } => self.together * (buckets * 2 + buckets / 8 + entries * 2 + 4),
        }
    }
}
