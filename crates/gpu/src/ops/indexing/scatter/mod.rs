//! Scatter. Sums have a fixed order: that of the index.
//!
//! A list is the rows of the index that differ in the indexed dimension only: no others can have a common target. The length of a list
//! decides the kernel:
//!
//! - a few rows: each row is compared with the others, by a team of threads if rows are wide;
//! - a list that fits local memory: a group finds the rows that may have a common target there, and moves all other rows at once;
//! - many longer lists: a group sorts 16 bits of each row into buckets in local memory, or finds the last row of each target;
//! - else: all rows are sorted by their targets.
//!
//! Where sums may have any order, and the device has fast atomic additions, a kernel of these is used.
//!
//! Its constants were tuned on an H100.

mod exact;
mod lists;
mod long;
mod ordered;

use crate::driver::Geometry;
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::group_size;
use crate::launch::layout::Joint;
use crate::launch::operands::start_of;
use crate::launch::words::bits;
use crate::memory::status::Check;
use crate::ops::family::{Example, Family, in_any_order, zeros};
use crate::ops::indexing::index::{Indexed, OUTER, Program, Strides, is_wide, with_words};
use crate::ops::indexing::scatter::lists::local_entries;
use crate::program::source::Variant;
use isograd_core::backend::Scatter;
use isograd_core::ops::indexing::segment::IndexReduce;
use isograd_core::ops::{Index, Put};
use isograd_core::{Call, DType, Device, Result};
use std::sync::atomic::Ordering;

pub const FAMILY: Family = Family { launchers: &[], examples: EXAMPLES };

/// The longest list in which each row is compared with all others.
const FEW: usize = 32;
/// Words of a row from which on a team of threads moves it.
const WIDE_ROW: usize = 16;
/// The most rows of a list that a team compares.
const TEAM_ROWS: usize = 2048;
/// The most comparisons of all teams.
const TEAM_LOOKS: usize = 1 << 22;
/// Bytes of the largest word.
const WHOLE: usize = 16;
/// The most threads of a group that takes lists.
const LIST_THREADS: usize = 1024;

pub fn run(gpu: &Gpu, call: &Call<'_>, mode: Scatter) -> Result<()> {
    let ([index, source], y) = ([&call.inputs[0], &call.inputs[1]], &call.outputs[0]);
    let dims = index.layout.shape().dims();
    if index.layout.shape().numel() == 0 {
        return Ok(());
    }
    let (from, to, dim) = (start_of(source)?, start_of(y)?, call.ints[0] as usize);
    let threads = group_size(gpu.driver().limits());
    let indexed = Indexed::new(index, y.layout, Some(source.layout), dim, threads).in_words(y.dtype.size(), [from, to]);
    let onto = Onto::Values;
    let scatter = Scattering { call, indexed, mode, onto, is_wide: is_wide(&[index, source, y]), from, to };
    if scatter.may_add_in_any_order(gpu) {
        scatter.in_any_order(gpu)
    } else if mode == Scatter::Distinct {
        scatter.few(gpu, 1)
    } else if dims[dim] <= FEW {
        scatter.few(gpu, dims[dim])
    } else if scatter.is_for_teams() {
        scatter.teams(gpu)
    } else if let Some(together) = scatter.exact_lists(gpu.driver().limits()) {
        scatter.exact(gpu, together)
    } else {
        scatter.many(gpu)
    }
}

/// The target of a scatter before it.
#[derive(Clone, Copy)]
pub enum Onto {
    /// Values that the scatter adds to or replaces.
    Values,
    /// A contiguous table without values. Rows that no index names become zeros. The index `padding` is skipped.
    Nothing { padding: i64, reduce: IndexReduce },
}

/// A scatter under way.
pub struct Scattering<'a> {
    pub call: &'a Call<'a>,
    pub indexed: Indexed<'a>,
    pub mode: Scatter,
    pub onto: Onto,
    pub is_wide: bool,
    pub from: u64,
    pub to: u64,
}

impl Scattering<'_> {
    /// The program of a file, with its dtypes, words and reduction.
    fn variant(&self, file: &'static str, outer: &Joint, names: &[&'static str]) -> Program {
        let (variant, integers) = self.indexed.variant(file, outer, names, self.is_wide);
        let dtype = self.call.outputs[0].dtype;
        let variant = variant.words(self.indexed.vector, dtype.size());
        if self.mode != Scatter::Add {
            return (variant.define("T", bits(dtype)), integers);
        }
        let reduce = if let Onto::Nothing { reduce, .. } = self.onto { Some(reduce) } else { None };
        let variant = variant
            .stored(dtype)
            .define("ADDING", true)
            .flag("FRESH", reduce.is_some())
            .flag("MEAN", reduce == Some(IndexReduce::Mean))
            .flag("LARGEST", reduce == Some(IndexReduce::Max))
            .flag("COUNTS", self.call.outputs.len() == 2);
        let is_largest = reduce == Some(IndexReduce::Max);
        (if is_largest { with_words(variant, self.indexed.vector) } else { variant }, integers)
    }

    fn may_add_in_any_order(&self, gpu: &Gpu) -> bool {
        let dtype = self.call.outputs[0].dtype;
        let is_asked = self.mode == Scatter::Add && !gpu.is_deterministic.load(Ordering::Relaxed);
        is_asked && gpu.driver().limits().has_adds && dtype.acc() == DType::F32
    }

    fn in_any_order(mut self, gpu: &Gpu) -> Result<()> {
        let (index, size) = (self.indexed.index, self.call.outputs[0].dtype.size());
        let mut outer = self.indexed.outer();
        // Elements that are adjacent in the index, in y and in the source are moved as a word.
        let (last, word_of) = (outer.rank() - 1, WHOLE / size);
        let steps = |joint: &Joint| joint.strides[1..].iter().flat_map(|s| s[..last].to_vec()).collect::<Strides>();
        let is_word = self.indexed.vector * self.indexed.width == 1
            && outer.strides.iter().all(|s| s[last] == 1)
            && [outer.extents[last], self.indexed.along]
                .iter()
                .chain(&steps(&outer))
                .all(|s| s.is_multiple_of(word_of))
            && outer.strides[0][..last].iter().all(|s| (s * index.dtype.size()).is_multiple_of(16))
            && [self.from, self.to, start_of(index)?].iter().all(|start| start.is_multiple_of(16));
        let numbers = if is_word { word_of } else { 1 };
        outer.extents[last] /= numbers;
        outer.strides.iter_mut().for_each(|s| s[last] *= numbers);
        self.indexed.vector *= numbers;
        self.indexed.rows /= numbers;
        let index_bytes = numbers * index.dtype.size();
        let (variant, integers) = self.variant("indexing/scatter/any.c", &outer, OUTER);
        let variant = variant
            .define("NUMBERS", numbers)
            .in_pieces(["INDEX_WORD", "INDEX_WORDS"], index_bytes)
            .flag("WHOLE", self.indexed.vector == word_of);
        self.each(gpu, "any", (variant, integers), &[])
    }

    /// A thread for each row, which compares its index with `count` rows of its list: all of them, or itself alone.
    fn few(&self, gpu: &Gpu, count: usize) -> Result<()> {
        let (Indexed { index, dim, .. }, [_, _, apart]) = (&self.indexed, self.lists());
        let program = self.variant("indexing/scatter/few.c", &self.indexed.outer(), OUTER);
        let source_step = self.indexed.source.as_ref().map_or(0, |s| s[*dim]);
        let steps = [count, apart, index.layout.strides()[*dim], source_step];
        self.each(gpu, "few", program, &steps)
    }

    /// A thread for each word of the source.
    fn each(&self, gpu: &Gpu, entry: &'static str, program: Program, steps: &[usize]) -> Result<()> {
        let ((variant, integers), n) = (program, self.indexed.rows * self.indexed.width);
        let arguments = Arguments::new().pointers([start_of(self.indexed.index)?, self.from, self.to]).named(integers);
        let arguments = arguments.int(n).numbers(self.indexed.reach()).numbers(steps.iter().copied());
        let slot = gpu.status(self.call.op, Check::Index(self.indexed.extent))?;
        gpu.launch(variant, entry, self.indexed.each(n), &arguments.pointer(slot.address))?;
        self.indexed.check(gpu, self.call.op, slot)
    }

    /// Whether rows are wide, and lists short enough for each row to compare itself with its whole list.
    fn is_for_teams(&self) -> bool {
        let ([_, count, _], Indexed { width, rows, .. }) = (self.lists(), &self.indexed);
        *width >= WIDE_ROW && count <= TEAM_ROWS && count * rows <= TEAM_LOOKS && !self.is_wide
    }

    fn teams(&self, gpu: &Gpu) -> Result<()> {
        let Indexed { index, dim, rows, width, threads, along, extent, .. } = self.indexed;
        let [_, count, apart] = self.lists();
        let team = width.next_power_of_two().min(threads);
        let (variant, integers) = self.variant("indexing/scatter/teams.c", &self.indexed.outer(), OUTER);
        let most = count.next_power_of_two().max(u32::BITS as usize);
        let is_whole = self.call.outputs[0].dtype.size() == 2 && self.indexed.vector == WHOLE / 2;
        let variant = variant.define("TEAM", team).define("COUNT", most).flag("WHOLE", is_whole);
        let arguments = Arguments::new().pointers([start_of(index)?, self.from, self.to]);
        let source_step = self.indexed.source.as_ref().map_or(0, |s| s[dim]);
        let numbers = [rows, width, along, extent, count, apart, index.layout.strides()[dim], source_step];
        let arguments = arguments.named(integers).numbers(numbers);
        let slot = gpu.status(self.call.op, Check::Index(extent))?;
        let geometry = Geometry::new([rows.div_ceil(threads / team), 1, 1], threads);
        gpu.launch(variant, "teams", geometry, &arguments.pointer(slot.address))?;
        self.indexed.check(gpu, self.call.op, slot)
    }

    /// Through local memory if a list has a place there, otherwise in order.
    pub fn many(self, gpu: &Gpu) -> Result<()> {
        // The first row of an index that does not occur is -1: all bits are set.
        let zero = || {
            self.call.outputs.iter().zip([0, 0, !0]).try_for_each(|(output, byte)| {
                gpu.driver().fill(start_of(output)?, byte, output.layout.shape().numel() * output.dtype.size())
            })
        };
        let is_fresh = matches!(self.onto, Onto::Nothing { .. });
        if self.indexed.rows == 0 {
            return if is_fresh { zero() } else { Ok(()) };
        }
        let limits = gpu.driver().limits();
        let (long, entries) = (self.long(limits), local_entries(limits));
        let is_short = self.is_short(entries);
        if is_fresh && (is_short || long.is_some()) {
            zero()?;
        }
        match long {
            Some(long) => self.many_long(gpu, &long),
            None if is_short => self.local(gpu, entries),
            None => self.ordered(gpu),
        }
    }

    /// The addresses of counts and first rows; y stands for an absent output.
    fn others(&self) -> Result<[u64; 2]> {
        let at = |i: usize| self.call.outputs.get(i).map_or(Ok(self.to), start_of);
        Ok([at(1)?, at(2)?])
    }

    /// The number of lists, the rows of a list, and the distance between these.
    fn lists(&self) -> [usize; 3] {
        let Indexed { index, dim, rank, .. } = self.indexed;
        let dims = index.layout.shape().dims();
        let apart = dims[dim + 1..rank].iter().product();
        [self.indexed.rows / dims[dim], dims[dim], apart]
    }

    /// The index that is skipped; -1, which no index is, if there is none.
    fn padding(&self) -> i64 {
        if let Onto::Nothing { padding, .. } = self.onto { padding } else { -1 }
    }
}

/// Defines the number of elements that a thread keeps in registers, and how many groups share them: a multiprocessor runs `LIST_THREADS`
/// threads.
fn keeping(variant: Variant, kept: Option<usize>, threads: usize) -> Variant {
    match kept {
        Some(kept) => variant.define("KEPT", kept).define("AT_ONCE", (LIST_THREADS / threads).max(1)),
        None => variant,
    }
}

/// Adds at one element of a row each, and writes there, along a dimension of this extent.
fn scatter(device: &Device, dtype: DType, extent: usize) -> Result<()> {
    let (x, index) = (zeros(device, dtype, &[extent, 1024])?, zeros(device, DType::I64, &[extent, 1024])?);
    x.scatter_add(0, &index, &x)?;
    x.scatter(0, &index, &x).map(drop)
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| scatter(d, t, 16),
    |d, t| scatter(d, t, 4096),
    |d, t| scatter(d, t, 16384),
    |d, t| scatter(d, t, 65536),
    // Wide rows, by an index for each.
    |d, t| {
        let (x, index) = (zeros(d, t, &[1024, 1024])?, zeros(d, DType::I64, &[1024])?);
        x.index_add(0, &index, &x, 1)?;
        x.index_put(&[Index::Tensor(index)], &x, Put::Assign).map(drop)
    },
    // Few values for a large table, and f16; lists that are too long to be kept in registers.
    |d, t| {
        let x = zeros(d, t, &[65536, 256])?;
        let add = |rows| x.scatter_add(0, &zeros(d, DType::I64, &[rows, 256])?, &zeros(d, t, &[rows, 256])?).map(drop);
        add(4096)?;
        add(16384)
    },
    |d, t| in_any_order(d, || scatter(d, t, 4096)),
];
