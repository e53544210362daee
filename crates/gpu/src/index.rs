//! Gather and scatter. Sums have a fixed order: that of the index.
//!
//! Rows of the index that differ in the indexed dimension only are a list: only they can point to one place. A scatter goes
//! by the length of a list. If it is short, each row looks at the others, and a team of threads does so for a wide row; if it has
//! a place in local memory, a group looks up there which rows may meet others, and moves the rest at once; if there are many that are
//! longer, it puts 16 bits of each row into buckets there, or finds the last row of each place; otherwise, all rows are put in the
//! order of where they point. Where sums may have any order, and the device's memory adds, it does all of that.

use crate::driver::{Geometry, Limits};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{MOST_GROUPS, group_size, in_groups};
use crate::launch::layout::Joint;
use crate::launch::operands::place;
use crate::launch::words;
use crate::launch::words::{bits, divider, vectors, word};
use crate::memory::pool::Buffer;
use crate::memory::status::{Check, Slot};
use crate::order;
use crate::order::Ordered;
use crate::program::source::Variant;
use isograd_core::backend::{IndexGradient, IndexReduce, Scatter, index_error};
use isograd_core::{Call, DType, Layout, Operand, Result};
use smallvec::{SmallVec, smallvec};
use std::sync::atomic::Ordering;

/// In lists of at most this length each row looks at the others itself.
const FEW: usize = 32;
/// Words of a row from which on a team of threads moves it, the longest list that it looks through, and how many rows all teams
/// look at, at most.
const WIDE_ROW: usize = 16;
const TEAM_ROWS: usize = 2048;
const TEAM_LOOKS: usize = 1 << 22;
/// Entries of lists in a group's local memory, at most, and how many there are for each bucket of these. Twice as many rows are
/// looked at, of which few meet.
const ENTRIES: usize = 8192;
const BUCKET: usize = 4;
/// Of rows of one word that a thread keeps in registers, bytes of these at most: more are put aside to memory.
const KEPT_BYTES: usize = 32;
/// Of longer lists: how many neighbouring ones a group takes, the first of these that serves best; bytes of local memory of
/// one, at most, since more is taken from the cache; threads for one, of LIST_THREADS at most.
const LONG_TOGETHER: [usize; 3] = [4, 2, 1];
const LONG_MEMORY: usize = 48 << 10;
const LONG_THREADS: usize = 512;
/// The rows of the longest: a bit is left for two indices of a bucket.
const LONGEST: usize = 1 << 15;
/// How often as long a table is, at most: each of its rows looks into a bucket.
const LONG_TABLE: usize = 16;
/// Buckets, entries and places are multiples of these, so that few programs are compiled, and are looked at in so many passes at
/// most.
const BUCKETS_STEP: usize = 256;
const ENTRIES_STEP: usize = 512;
const PLACES_STEP: usize = 1024;
const PASSES: usize = 16;
/// Indices that a thread keeps in registers, two in each: a multiple of how many are read at once, and at most.
const KEPT_STEP: usize = 8;
const MOST_KEPT: usize = 64;
/// Bits of local memory for each entry: a bit is one for an index that occurs, and one for an index that occurs again.
const BITS: usize = 16;
/// Bytes of the largest word.
const WHOLE: usize = 16;
/// Short lists are taken together until they are so many rows.
const TOGETHER: usize = 2048;
/// Lists that are taken together if they are neighbours in the index: at least, so that no sector is read in part, and as many
/// as there are multiprocessors left for.
const NEIGHBOURS: [usize; 2] = [4, 16];
/// Rows for each thread of a group that takes lists, from which on it has more threads, and how many it then has; if more
/// groups share a list, each has fewer.
const ROWS_OF_THREAD: usize = 4;
const LIST_THREADS: usize = 1024;
const SHARING_THREADS: usize = 512;
/// Neighbouring lists whose exact sums a group has in local memory, at most, and rows of a list.
const EXACT_LISTS: usize = 8;
const EXACT_ROWS: usize = 1 << 22;
/// Exact sums for which there is room are a multiple of this, so that few programs are compiled.
const BINS: usize = 1024;
/// Elements for each multiprocessor, from which on those that are picked are read in tiles, and bytes of a tile's row.
const MANY_PICKS: usize = 32768;
const TILE: usize = 128;
/// As many rows of y as the kernel `sums` takes to write zeros.
const ZERO_ROWS: usize = 32;
/// A sum is cut into parts of about half the root of its length, within these bounds.
const PARTS: [usize; 2] = [32, 512];

type Strides = SmallVec<[usize; 8]>;
/// A program, and the integers that its kernel walks by.
type Program = (Variant, SmallVec<[i64; 32]>);

/// An index and what it points into.
struct Places<'a> {
    index: &'a Operand<'a>,
    dim: usize,
    /// Dimensions of the index's rows: behind them it does not change.
    rank: usize,
    rows: usize,
    /// Strides in what it points into, 0 along the indexed dimension, whose stride and extent follow.
    target: Strides,
    along: usize,
    extent: usize,
    /// Strides in what is written, if there is any.
    source: Option<Strides>,
    /// Elements of a word: along the last dimension everything is counted in words.
    vector: usize,
    /// Words that lie at a row.
    width: usize,
    /// Threads of a group.
    threads: usize,
}

impl<'a> Places<'a> {
    fn new(index: &'a Operand<'a>, target: &Layout, source: Option<&Layout>, dim: usize, threads: usize) -> Places<'a> {
        let (dims, steps) = (index.layout.shape().dims(), index.layout.strides());
        let still = (dim + 1..dims.len()).rev().take_while(|&d| steps[d] == 0 || dims[d] == 1).count();
        let rank = dims.len() - still;
        let mut strides = Strides::from_slice(target.strides());
        let along = std::mem::take(&mut strides[dim]);
        Places {
            index,
            dim,
            rank,
            rows: dims[..rank].iter().product(),
            target: strides,
            along,
            extent: target.shape()[dim],
            source: source.map(|layout| Strides::from_slice(layout.strides())),
            vector: 1,
            width: dims[rank..].iter().product(),
            threads,
        }
    }

    /// Counts in the largest words of which everything at a row consists. `starts` are the addresses of what is read and
    /// written.
    fn in_words(mut self, size: usize, starts: [u64; 2]) -> Places<'a> {
        let inner = self.inner();
        if inner.rank() != 1 || inner.strides.iter().any(|s| s[0] != 1) {
            return self;
        }
        let dims = self.index.layout.shape().dims();
        // The steps between rows: a stride along a dimension of size 1 is none.
        let of_rows = |s: &Strides| (0..self.rank).filter(|&d| dims[d] != 1).map(|d| s[d]).collect::<Strides>();
        let mut steps: Strides = self.source.iter().chain([&self.target]).flat_map(of_rows).collect();
        steps.extend([self.along, self.width]);
        let fits = |&vector: &usize| {
            let bytes = (vector * size) as u64;
            steps.iter().all(|s| s % vector == 0) && starts.iter().all(|start| start % bytes == 0)
        };
        let Some(vector) = vectors(size).find(fits) else { return self };
        self.vector = vector;
        self.width /= vector;
        self.along /= vector;
        for strides in self.source.iter_mut().chain([&mut self.target]) {
            strides[..self.rank].iter_mut().for_each(|s| *s /= vector);
        }
        self
    }

    /// The index's rows, and along them the strides of the index, the target and the source.
    fn outer(&self) -> Joint {
        let operands = [self.index.layout.strides(), &self.target[..]].into_iter().chain(self.source.as_deref());
        self.joint(operands.map(|s| &s[..self.rank]))
    }

    fn joint<'b>(&self, operands: impl Iterator<Item = &'b [usize]>) -> Joint {
        Joint::of(&self.index.layout.shape().dims()[..self.rank], operands).at_least_one()
    }

    /// What lies at a row, and the strides of the target and the source.
    fn inner(&self) -> Joint {
        let operands = [&self.target].into_iter().chain(&self.source).map(|s| &s[self.rank..]);
        let mut inner = Joint::of(&self.index.layout.shape().dims()[self.rank..], operands).at_least_one();
        if self.vector > 1 {
            inner.extents[0] = self.width;
        }
        inner
    }

    /// How a kernel is compiled for these rows, and the integers that it takes, of which the last ones are given.
    fn variant(&self, outer: &Joint, last: &[i64], is_wide: bool) -> Program {
        let inner = self.inner();
        let ints = ints(outer).into_iter().chain(ints(&inner)).chain(last.iter().copied());
        let ints: SmallVec<[i64; 32]> = ints.collect();
        let variant = Variant::new("index.c")
            .define("THREADS", self.threads)
            .define("I", self.index.dtype.name())
            .define("ROWS", outer.rank())
            .define("INNER", inner.rank())
            .define("INTS", ints.len());
        (if is_wide { variant.define("WIDE", true) } else { variant }, ints)
    }

    fn each(&self, n: usize) -> Geometry {
        in_groups(n, self.threads)
    }

    /// The numbers that say which word an index points to.
    fn reach(&self) -> [i64; 4] {
        [self.width as i64, divider(self.width), self.along as i64, self.extent as i64]
    }

    /// Ends a call that has looked at the index.
    fn check(&self, gpu: &Gpu, op: &'static str, slot: Slot) -> Result<()> {
        gpu.checked(slot, |row| {
            let value = gpu.element(self.index, self.rank, row)?.as_i64(op)?;
            Ok(index_error(op, row as i64, value, self.extent))
        })
    }
}

/// Dimensions as the kernels' `walk` takes them.
fn ints(joint: &Joint) -> SmallVec<[i64; 32]> {
    let strides = joint.strides.iter().flatten().map(|&s| s as i64);
    let extents = joint.extents.iter().map(|&v| v as i64);
    extents.chain(joint.extents.iter().map(|&d| divider(d))).chain(strides).collect()
}

/// The bits that stand for what a bad index would have read: NaN, or 0.
fn bad(dtype: DType) -> i64 {
    match dtype {
        DType::F64 => f64::NAN.to_bits() as i64,
        DType::F32 => f32::NAN.to_bits() as i64,
        DType::F16 => 0x7e00,
        DType::BF16 => 0x7fc0,
        _ => 0,
    }
}

/// Whether 32 bits cannot count what an operand spans.
fn is_wide(operands: &[&Operand<'_>]) -> bool {
    operands.iter().any(|o| words::is_wide(o.layout.end().max(o.layout.shape().numel())))
}

/// How many elements of y a thread of `gather` takes side by side.
#[derive(Clone, Copy)]
enum Take {
    /// A word of so many, all by one index.
    Word(usize),
    /// Each by an index of its own.
    Each(usize),
}

impl Take {
    /// `joint`: the elements of y, which are contiguous, with the strides of the index and of x.
    fn new(joint: &Joint, size: usize, index_size: usize, along: usize, [x, index, y]: [u64; 3]) -> Take {
        let (Some((last, outer)), Some((step, x_outer))) =
            (joint.strides[0].split_last(), joint.strides[1].split_last())
        else {
            return Take::Each(1);
        };
        let length = joint.extents[joint.rank() - 1];
        let fits = |steps: &[usize], v: usize| length.is_multiple_of(v) && steps.iter().all(|s| s % v == 0);
        let is_aligned = |address: u64, bytes: usize| address.is_multiple_of(bytes.min(16) as u64);
        if (*last, *step) == (0, 1) {
            let is_there = |&v: &usize| {
                fits(x_outer, v) && along.is_multiple_of(v) && [x, y].iter().all(|&a| is_aligned(a, v * size))
            };
            return vectors(size).find(is_there).map_or(Take::Each(1), Take::Word);
        }
        let v = (16 / size).min(4);
        let is_there = *last == 1 && fits(outer, v) && is_aligned(y, v * size) && is_aligned(index, v * index_size);
        Take::Each(if is_there { v } else { 1 })
    }

    fn elements(self) -> usize {
        let (Take::Word(v) | Take::Each(v)) = self;
        v
    }
}

/// Dimensions in which `tile` words of the last one are followed by those of all rows, and not by their neighbours: what is
/// picked along the rows stays in the cache. The strides of what is contiguous follow those of the other operands.
fn in_tiles(joint: &Joint, tile: usize) -> Joint {
    let (last, outer) = joint.extents.split_last().map_or((1, &[][..]), |(last, outer)| (*last, outer));
    let mut contiguous: SmallVec<[usize; 8]> = smallvec![1; joint.rank()];
    (1..joint.rank()).rev().for_each(|d| contiguous[d - 1] = contiguous[d] * joint.extents[d]);
    let split = |strides: &SmallVec<[usize; 8]>| {
        let (step, outer) = strides.split_last().map_or((1, &[][..]), |(step, outer)| (*step, outer));
        [&[step * tile], outer, &[step]].concat().into()
    };
    let extents = [&[last / tile], outer, &[tile]].concat().into();
    Joint { extents, strides: joint.strides.iter().chain([&contiguous]).map(split).collect() }
}

pub fn gather(gpu: &Gpu, call: &Call<'_>) -> Result<()> {
    let ([x, index], y) = ([&call.inputs[0], &call.inputs[1]], &call.outputs[0]);
    if y.layout.shape().numel() == 0 {
        return Ok(());
    }
    let (from, at, to, size) = (place(x)?, place(index)?, place(y)?, x.dtype.size());
    let threads = group_size(gpu.driver().limits());
    let places = Places::new(index, x.layout, None, call.ints[0] as usize, threads);
    let operands = [index.layout.strides(), &places.target[..]];
    let mut joint = Joint::of(index.layout.shape().dims(), operands.into_iter()).at_least_one();
    let take = Take::new(&joint, size, index.dtype.size(), places.along, [from, at, to]);
    // Counted in what a thread takes; where that is a word, x is too.
    let (v, rank) = (take.elements(), joint.rank());
    let mut along = places.along;
    joint.extents[rank - 1] /= v;
    let (numbers, unit, step) = match take {
        Take::Word(_) => {
            joint.strides[1][..rank - 1].iter_mut().for_each(|s| *s /= v);
            along /= v;
            (1, v * size, 0)
        }
        Take::Each(_) => {
            let step = joint.strides[1][rank - 1];
            joint.strides.iter_mut().for_each(|s| s[rank - 1] *= v);
            (v, size, step)
        }
    };
    // The columns of what is indexed by row.
    let (tile, columns) = (TILE / (v * size), joint.extents[rank - 1]);
    let is_tiled = rank > 1
        && joint.strides[1][rank - 1] > 0
        && matches!(take, Take::Each(_))
        && y.layout.shape().numel() >= MANY_PICKS * gpu.driver().limits().units
        && columns > tile
        && columns.is_multiple_of(tile);
    let joint = if is_tiled { in_tiles(&joint, tile) } else { joint };
    let (ints, index_bytes) = (ints(&joint), numbers * index.dtype.size());
    let variant = Variant::new("index.c")
        .define("THREADS", threads)
        .define("I", index.dtype.name())
        .define("ROWS", joint.rank())
        .define("INTS", ints.len())
        .define("GATHER", true)
        .define("WORD", word(v * size))
        .define("UNIT", word(unit))
        .define("NUMBERS", numbers)
        .define("INDEX_WORD", word(index_bytes.min(16)))
        .define("INDEX_WORDS", index_bytes.div_ceil(16));
    let flags = [(is_wide(&[x, index, y]), "WIDE"), (is_tiled, "TILED")];
    let flags = flags.into_iter().filter(|(is_set, _)| *is_set);
    let variant = flags.fold(variant, |variant, (_, name)| variant.define(name, true));
    let n = y.layout.shape().numel() / v;
    let arguments = Arguments::new().pointer(from).pointer(at).pointer(to).ints(&ints);
    let numbers_of = [n, unit / size, places.width, along, places.extent, step];
    let arguments = numbers_of.iter().fold(arguments, |list, &v| list.int(v as i64));
    let pattern = bad(x.dtype).to_le_bytes()[..size].repeat(unit / size);
    let slot = gpu.status(call.op, Check::Index(places.extent))?;
    let arguments = arguments.bytes(&pattern).pointer(slot.address);
    gpu.launch(variant, "gather", in_groups(n, threads), &arguments)?;
    places.check(gpu, call.op, slot)
}

pub fn scatter(gpu: &Gpu, call: &Call<'_>, mode: Scatter) -> Result<()> {
    let ([index, source], y) = ([&call.inputs[0], &call.inputs[1]], &call.outputs[0]);
    let dims = index.layout.shape().dims();
    if index.layout.shape().numel() == 0 {
        return Ok(());
    }
    let (from, to, dim) = (place(source)?, place(y)?, call.ints[0] as usize);
    let threads = group_size(gpu.driver().limits());
    let places = Places::new(index, y.layout, Some(source.layout), dim, threads).in_words(y.dtype.size(), [from, to]);
    let onto = Onto::Values;
    let scatter = Scattering { call, places, mode, onto, is_wide: is_wide(&[index, source, y]), from, to };
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

/// Joins rows by index, and writes zeros to the rows of the table that get none.
pub fn reduce(gpu: &Gpu, call: &Call<'_>, reduce: IndexReduce) -> Result<()> {
    let ([index, x], table) = ([&call.inputs[0], &call.inputs[1]], &call.outputs[0]);
    if table.layout.shape().numel() == 0 {
        return Ok(());
    }
    let (from, to, size) = (place(x)?, place(table)?, table.dtype.size());
    let threads = group_size(gpu.driver().limits());
    let places = Places::new(index, table.layout, Some(x.layout), 0, threads).in_words(size, [from, to]);
    let onto = Onto::Nothing { padding: call.ints[0], reduce };
    let is_wide = is_wide(&[index, x, table]);
    Scattering { call, places, mode: Scatter::Add, onto, is_wide, from, to }.many(gpu)
}

/// The gradient of rows that were joined by index.
pub fn reduce_backward(gpu: &Gpu, call: &Call<'_>, kind: IndexGradient) -> Result<()> {
    let ([dy, index], dx) = ([&call.inputs[0], &call.inputs[1]], &call.outputs[0]);
    let n = dx.layout.shape().numel();
    if n == 0 {
        return Ok(());
    }
    let [nodes, features] = [0, 1].map(|d| dy.layout.shape()[d]);
    let places = call.inputs.iter().map(place).collect::<Result<SmallVec<[u64; 8]>>>()?;
    let (from, to, size, threads) = (places[0], place(dx)?, dx.dtype.size(), group_size(gpu.driver().limits()));
    // Counts [N], or counts, x and y, or the first rows. Any other pointer stands for one that is not there.
    let [counts, x, y, first] = match kind {
        IndexGradient::Mean => [places[2], from, from, from],
        IndexGradient::Even => [places[2], places[3], places[4], from],
        IndexGradient::First => [from, from, from, places[2]],
    };
    let fits =
        |v: &usize| features.is_multiple_of(*v) && [from, x, y, to].iter().all(|a| a.is_multiple_of((v * size) as u64));
    let v = vectors(size).find(fits).unwrap_or(1);
    let width = features / v;
    let variant = with_words(Variant::new("index.c"), v)
        .define("SHARES", true)
        .define("THREADS", threads)
        .define("I", index.dtype.name())
        .define("T", dx.dtype.name())
        .define("ACC", dx.dtype.acc().name())
        .define("WORD", word(v * size))
        .define("VECTOR", v);
    let variant = if dx.dtype == DType::F64 { variant.define("NEEDS_F64", true) } else { variant };
    let variant = match kind {
        IndexGradient::Mean => variant,
        IndexGradient::Even => variant.define("EVEN", true),
        IndexGradient::First => variant.define("FIRST", true),
    };
    let variant = if is_wide(&[dy, dx]) { variant.define("WIDE", true) } else { variant };
    let pointers = [from, places[1], counts, x, y, first, to];
    let arguments = pointers.into_iter().fold(Arguments::new(), Arguments::pointer);
    let numbers = [(n / v) as i64, width as i64, divider(width), nodes as i64];
    let arguments = numbers.into_iter().fold(arguments, Arguments::int);
    let slot = gpu.status(call.op, Check::Index(nodes))?;
    let arguments = arguments.bytes(&bad(dx.dtype).to_le_bytes()[..size]).pointer(slot.address);
    gpu.launch(variant, "shares", in_groups(n / v, threads), &arguments)?;
    gpu.checked(slot, |row| {
        let value = gpu.element(index, 1, row)?.as_i64(call.op)?;
        Ok(index_error(call.op, row as i64, value, nodes))
    })
}

/// Adds the words in which counts and positions, of `elements` elements, are read and written.
fn with_words(variant: Variant, elements: usize) -> Variant {
    let [counts, rows] = [4, 8].map(|size| size * elements);
    variant
        .define("COUNT_WORD", word(counts.min(16)))
        .define("COUNT_WORDS", counts.div_ceil(16))
        .define("FIRST_WORD", word(rows.min(16)))
        .define("FIRST_WORDS", rows.div_ceil(16))
}

/// What a scatter finds where it writes.
#[derive(Clone, Copy)]
enum Onto {
    /// Anything.
    Values,
    /// A contiguous table without values: rows that get nothing become zeros. One index may be left out.
    Nothing { padding: i64, reduce: IndexReduce },
}

/// A scatter under way.
struct Scattering<'a> {
    call: &'a Call<'a>,
    places: Places<'a>,
    mode: Scatter,
    onto: Onto,
    is_wide: bool,
    from: u64,
    to: u64,
}

impl Scattering<'_> {
    /// How words are read, added and written.
    fn variant(&self, outer: &Joint, last: &[i64]) -> Program {
        let (variant, ints) = self.places.variant(outer, last, self.is_wide);
        let dtype = self.call.outputs[0].dtype;
        let bytes = self.places.vector * dtype.size();
        let variant = variant.define("SCATTER", true).define("WORD", word(bytes)).define("VECTOR", self.places.vector);
        let variant = match (self.mode, dtype.acc()) {
            (Scatter::Assign | Scatter::Distinct, _) => return (variant.define("T", bits(dtype)), ints),
            (Scatter::Add, DType::I64) => variant.define("ACC", "i64").define("INTEGER", true),
            (Scatter::Add, DType::F64) => variant.define("ACC", "f64").define("NEEDS_F64", true),
            (Scatter::Add, acc) => variant.define("ACC", acc.name()),
        };
        let variant = variant.define("T", dtype.name()).define("ADDING", true);
        let variant = match self.onto {
            Onto::Values => variant,
            Onto::Nothing { reduce: IndexReduce::Sum, .. } => variant.define("FRESH", true),
            Onto::Nothing { reduce: IndexReduce::Mean, .. } => variant.define("FRESH", true).define("MEAN", true),
            Onto::Nothing { reduce: IndexReduce::Max, .. } => {
                with_words(variant.define("FRESH", true), self.places.vector).define("LARGEST", true)
            }
        };
        let variant = if self.call.outputs.len() == 2 { variant.define("COUNTS", true) } else { variant };
        (variant, ints)
    }

    fn may_add_in_any_order(&self, gpu: &Gpu) -> bool {
        let dtype = self.call.outputs[0].dtype;
        let is_asked = self.mode == Scatter::Add && !gpu.is_deterministic.load(Ordering::Relaxed);
        is_asked && gpu.driver().limits().has_adds && dtype.acc() == DType::F32
    }

    fn in_any_order(mut self, gpu: &Gpu) -> Result<()> {
        let (index, size) = (self.places.index, self.call.outputs[0].dtype.size());
        let mut outer = self.places.outer();
        // Neighbours in the index that are neighbours in y and in the source are a word.
        let (last, word_of) = (outer.rank() - 1, WHOLE / size);
        let steps = |joint: &Joint| joint.strides[1..].iter().flat_map(|s| s[..last].to_vec()).collect::<Strides>();
        let is_word = self.places.vector * self.places.width == 1
            && outer.strides.iter().all(|s| s[last] == 1)
            && [outer.extents[last], self.places.along].iter().chain(&steps(&outer)).all(|s| s.is_multiple_of(word_of))
            && outer.strides[0][..last].iter().all(|s| (s * index.dtype.size()).is_multiple_of(16))
            && [self.from, self.to, place(index)?].iter().all(|start| start.is_multiple_of(16));
        let numbers = if is_word { word_of } else { 1 };
        outer.extents[last] /= numbers;
        outer.strides.iter_mut().for_each(|s| s[last] *= numbers);
        self.places.vector *= numbers;
        self.places.rows /= numbers;
        let index_bytes = numbers * index.dtype.size();
        let (variant, ints) = self.variant(&outer, &[]);
        let variant = variant
            .define("ANY_ORDER", true)
            .define("NUMBERS", numbers)
            .define("INDEX_WORD", word(index_bytes.min(16)))
            .define("INDEX_WORDS", index_bytes.div_ceil(16));
        let variant = if self.places.vector == word_of { variant.define("WHOLE", true) } else { variant };
        self.each(gpu, "any", (variant, ints), &[])
    }

    /// Of a list, each row looks at `count`: itself and the others, or itself alone.
    fn few(&self, gpu: &Gpu, count: usize) -> Result<()> {
        let (Places { index, dim, .. }, [_, _, apart]) = (&self.places, self.lists());
        let (variant, ints) = self.variant(&self.places.outer(), &[]);
        let source_step = self.places.source.as_ref().map_or(0, |s| s[*dim]);
        let steps = [count, apart, index.layout.strides()[*dim], source_step];
        self.each(gpu, "few", (variant.define("FEW", true), ints), &steps)
    }

    /// A thread for each word of the source.
    fn each(&self, gpu: &Gpu, entry: &'static str, program: Program, steps: &[usize]) -> Result<()> {
        let ((variant, ints), n) = (program, self.places.rows * self.places.width);
        let arguments = Arguments::new().pointer(place(self.places.index)?).pointer(self.from).pointer(self.to);
        let steps = steps.iter().map(|&v| v as i64);
        let numbers = [n as i64].into_iter().chain(self.places.reach()).chain(steps);
        let arguments = numbers.fold(arguments.ints(&ints), Arguments::int);
        let slot = gpu.status(self.call.op, Check::Index(self.places.extent))?;
        gpu.launch(variant, entry, self.places.each(n), &arguments.pointer(slot.address))?;
        self.places.check(gpu, self.call.op, slot)
    }

    /// Whether rows are wide, and lists short enough that each row looks at all of its own.
    fn is_for_teams(&self) -> bool {
        let ([_, count, _], Places { width, rows, .. }) = (self.lists(), &self.places);
        *width >= WIDE_ROW && count <= TEAM_ROWS && count * rows <= TEAM_LOOKS && !self.is_wide
    }

    fn teams(&self, gpu: &Gpu) -> Result<()> {
        let Places { index, dim, rows, width, threads, along, extent, .. } = self.places;
        let [_, count, apart] = self.lists();
        let team = width.next_power_of_two().min(threads);
        let (variant, ints) = self.variant(&self.places.outer(), &[]);
        let most = count.next_power_of_two().max(u32::BITS as usize);
        let variant = variant.define("BY_TEAMS", true).define("TEAM", team).define("COUNT", most);
        let is_whole = self.call.outputs[0].dtype.size() == 2 && self.places.vector == WHOLE / 2;
        let variant = if is_whole { variant.define("WHOLE", true) } else { variant };
        let pointers = [place(index)?, self.from, self.to];
        let arguments = pointers.into_iter().fold(Arguments::new(), Arguments::pointer);
        let source_step = self.places.source.as_ref().map_or(0, |s| s[dim]);
        let numbers = [rows, width, along, extent, count, apart, index.layout.strides()[dim], source_step];
        let arguments = numbers.into_iter().fold(arguments.ints(&ints), |list, v| list.int(v as i64));
        let slot = gpu.status(self.call.op, Check::Index(extent))?;
        let geometry = Geometry::new([rows.div_ceil(threads / team), 1, 1], threads);
        gpu.launch(variant, "teams", geometry, &arguments.pointer(slot.address))?;
        self.places.check(gpu, self.call.op, slot)
    }

    /// How many neighbouring lists of f16 a group adds up exactly, if it has room for their sums and there is a group for each
    /// multiprocessor.
    fn exact_lists(&self, limits: &Limits) -> Option<usize> {
        let Places { vector, width, extent, .. } = self.places;
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

    fn exact(mut self, gpu: &Gpu, together: usize) -> Result<()> {
        let (index, dim, limits) = (self.places.index, self.places.dim, gpu.driver().limits());
        let [lists, count, apart] = self.lists();
        self.places.threads = 1 << (together * count).min(LIST_THREADS).min(limits.max_group).ilog2();
        let bins = together * self.places.extent;
        let (variant, ints) = self.variant(&self.places.outer(), &[]);
        let variant =
            variant.define("EXACT", true).define("TOGETHER", together).define("BINS", bins.next_multiple_of(BINS));
        let pointers = [place(index)?, self.from, self.to];
        let arguments = pointers.into_iter().fold(Arguments::new(), Arguments::pointer);
        let source_step = self.places.source.as_ref().map_or(0, |s| s[dim]);
        let Places { along, extent, threads, .. } = self.places;
        let numbers = [along, extent, lists, count, apart, index.layout.strides()[dim], source_step];
        let arguments = numbers.into_iter().fold(arguments.ints(&ints), |list, v| list.int(v as i64));
        let slot = gpu.status(self.call.op, Check::Index(extent))?;
        let geometry =
            Geometry { given: exact_memory(bins), ..Geometry::new([lists.div_ceil(together), 1, 1], threads) };
        gpu.launch(variant, "exact", geometry, &arguments.pointer(slot.address))?;
        self.places.check(gpu, self.call.op, slot)
    }

    /// Through local memory if a list has a place there, otherwise in order.
    fn many(self, gpu: &Gpu) -> Result<()> {
        // Nobody is the first of no rows: -1.
        let zero = || {
            self.call.outputs.iter().zip([0, 0, !0]).try_for_each(|(output, byte)| {
                gpu.driver().fill(place(output)?, byte, output.layout.shape().numel() * output.dtype.size())
            })
        };
        let is_fresh = matches!(self.onto, Onto::Nothing { .. });
        if self.places.rows == 0 {
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

    /// Whether a list has a place in local memory. The number of a row and where it points have 32 bits.
    fn is_short(&self, entries: usize) -> bool {
        self.lists()[1] <= entries && self.places.extent <= 1 << (u32::BITS - entries.ilog2())
    }

    /// How lists that are not short are looked at in local memory, if they are many: neighbouring ones fill memory's sectors
    /// together, and one alone leaves most of the device idle.
    fn long(&self, limits: &Limits) -> Option<Long> {
        let (Places { width, extent, .. }, [lists, count, apart]) = (&self.places, self.lists());
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

    fn many_long(mut self, gpu: &Gpu, long: &Long) -> Result<()> {
        let (index, dim) = (self.places.index, self.places.dim);
        let ([lists, count, apart], &Long { together, threads, .. }) = (self.lists(), long);
        self.places.threads = threads;
        let (variant, ints) = self.variant(&self.places.outer(), &[]);
        let variant = keeping(variant.define("LONG", true).define("TOGETHER", together), long.kept, threads);
        let (entry, variant) = match long.kind {
            Kind::Last { places } => ("last", variant.define("PLACES", places)),
            Kind::Buckets { shift, buckets, entries } => {
                let variant = variant.define("SHIFT", shift).define("BUCKETS", buckets);
                ("buckets", variant.define("ENTRIES", entries))
            }
        };
        let mut arguments = Arguments::new().pointer(place(index)?).pointer(self.from).pointer(self.to);
        if self.mode == Scatter::Add {
            arguments = self.others()?.into_iter().fold(arguments, Arguments::pointer);
        }
        let source_step = self.places.source.as_ref().map_or(0, |s| s[dim]);
        let Places { along, extent, .. } = self.places;
        let numbers = [along, extent, lists, count, apart, index.layout.strides()[dim], source_step];
        arguments = numbers.into_iter().fold(arguments.ints(&ints), |list, v| list.int(v as i64));
        if self.mode == Scatter::Add {
            arguments = arguments.int(self.padding());
        }
        let slot = gpu.status(self.call.op, Check::Index(extent))?;
        let geometry = Geometry { given: long.memory(), ..Geometry::new([lists.div_ceil(together), 1, 1], threads) };
        gpu.launch(variant, entry, geometry, &arguments.pointer(slot.address))?;
        self.places.check(gpu, self.call.op, slot)
    }

    /// Where counts and first rows go; y stands for what is not wanted.
    fn others(&self) -> Result<[u64; 2]> {
        let at = |i: usize| self.call.outputs.get(i).map_or(Ok(self.to), place);
        Ok([at(1)?, at(2)?])
    }

    /// How many lists there are, the rows of one, and the distance between these.
    fn lists(&self) -> [usize; 3] {
        let Places { index, dim, rank, .. } = self.places;
        let dims = index.layout.shape().dims();
        let apart = dims[dim + 1..rank].iter().product();
        [self.places.rows / dims[dim], dims[dim], apart]
    }

    /// The index that is left out; none is negative.
    fn padding(&self) -> i64 {
        if let Onto::Nothing { padding, .. } = self.onto { padding } else { -1 }
    }

    fn local(mut self, gpu: &Gpu, entries: usize) -> Result<()> {
        let (index, dim, width) = (self.places.index, self.places.dim, self.places.width);
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
        if words > self.places.threads * ROWS_OF_THREAD {
            self.places.threads = 1 << threads.min(limits.max_group).ilog2();
        }
        let threads = self.places.threads;
        let shares = if width == 1 { 1 } else { (2 * limits.units / slabs).clamp(1, words.div_ceil(threads)) };
        let (variant, ints) = self.variant(&self.places.outer(), &[]);
        let variant = variant.define("LISTS", true).define("ENTRIES", entries).define("BUCKETS", entries / BUCKET);
        let variant = variant.define("NUMBER_BITS", entries.ilog2() as usize);
        let variant = if width == 1 { variant.define("ONE", true) } else { variant };
        let kept = words.div_ceil(threads).next_power_of_two();
        let is_kept = limits.keeps_arrays
            && width == 1
            && kept * self.places.vector * self.call.outputs[0].dtype.size() <= KEPT_BYTES;
        let variant = keeping(variant, is_kept.then_some(kept), threads);
        let source_step = self.places.source.as_ref().map_or(0, |s| s[dim]);
        let at_once = 1 << (entries / count).max(1).ilog2();
        let bits = self.places.extent.next_power_of_two().clamp(32, entries * BITS / together);
        let [counts, first] = self.others()?;
        let pointers = [place(index)?, self.from, self.to, counts, first];
        let arguments = pointers.into_iter().fold(Arguments::new(), Arguments::pointer);
        let numbers = [lists, together, at_once, bits, count, apart, index.layout.strides()[dim], source_step];
        let numbers = self.places.reach().into_iter().chain(numbers.map(|v| v as i64));
        let arguments = numbers.fold(arguments.ints(&ints), Arguments::int).int(self.padding());
        let slot = gpu.status(self.call.op, Check::Index(self.places.extent))?;
        let geometry = Geometry { given: lists_memory(entries, threads), ..Geometry::new([slabs, shares, 1], threads) };
        gpu.launch(variant, "lists", geometry, &arguments.pointer(slot.address))?;
        self.places.check(gpu, self.call.op, slot)
    }

    fn ordered(&self, gpu: &Gpu) -> Result<()> {
        let Places { index, dim, rank, rows, width, extent, .. } = self.places;
        let ([lists, ..], table) = (self.lists(), &self.call.outputs[0]);
        // A bad index comes after all others.
        let bad = lists * extent;
        let key = if bad > u32::MAX as usize { "u64" } else { "u32" };
        let used = gpu.scratch(if matches!(self.onto, Onto::Nothing { .. }) { extent } else { 1 })?;
        let Ordered { keys, order } = self.order(gpu, bad, key, &used)?;
        let source = self.places.source.as_deref().unwrap_or_default();
        let without = |all: &[usize]| all[..dim].iter().chain(&all[dim + 1..rank]).copied().collect::<Strides>();
        let list = Joint::of(&without(index.layout.shape().dims()), [&without(&self.places.target)[..]].into_iter());
        let (variant, ints) = self.variant(&self.places.joint([&source[..rank]].into_iter()), &ints(&list));
        let variant = variant.define("K", key).define("LIST", list.rank());
        let launch = |variant, entry, pointers: &[u64], part: Option<usize>, n| {
            let arguments = pointers.iter().copied().fold(Arguments::new(), Arguments::pointer).ints(&ints);
            let numbers = [rows as i64].into_iter().chain(self.places.reach()).chain([bad as i64]);
            let arguments = numbers.chain(part.map(|v| v as i64)).fold(arguments, Arguments::int);
            gpu.launch(variant, entry, self.places.each(n), &arguments)
        };
        if self.mode == Scatter::Assign {
            return launch(variant, "assign", &[keys.address, order.address, self.from, self.to], None, rows * width);
        }
        let part = (rows.isqrt().next_power_of_two() / 2).clamp(PARTS[0], PARTS[1]);
        let n = rows.div_ceil(part) * width;
        let of_largest = if self.is_wide { 16 } else { 8 };
        let is_largest = matches!(self.onto, Onto::Nothing { reduce: IndexReduce::Max, .. });
        let entry = table.dtype.acc().size() + if is_largest { of_largest } else { 0 };
        let bytes = n * self.places.vector * entry;
        let [counts, first] = self.others()?;
        let (heads, tails) = (gpu.scratch(bytes)?, gpu.scratch(bytes)?);
        let zeros = match self.onto {
            Onto::Values => 0,
            Onto::Nothing { .. } => extent.div_ceil(ZERO_ROWS) * width,
        };
        let (y, parts) = ([self.to, counts, first], [heads.address, tails.address]);
        let pointers = [&[keys.address, order.address, self.from], &y[..], &parts, &[used.address]].concat();
        launch(variant.clone(), "sums", &pointers, Some(part), n + zeros)?;
        if rows <= part {
            return Ok(());
        }
        launch(variant, "joins", &[&[keys.address], &y[..], &parts].concat(), Some(part), n)
    }

    /// Where rows point, in order. `used` becomes 1 for the keys that occur, if rows that get nothing become zeros.
    fn order(&self, gpu: &Gpu, bad: usize, key: &'static str, used: &Buffer) -> Result<Ordered> {
        let Places { index, rank, rows, extent, .. } = self.places;
        let outer = self.places.joint([&index.layout.strides()[..rank]].into_iter());
        let (variant, ints) = self.places.variant(&outer, &[], self.is_wide);
        let mut variant = variant.define("K", key).define("KEYS", true);
        if matches!(self.onto, Onto::Nothing { .. }) {
            gpu.driver().fill(used.address, 0, extent)?;
            variant = variant.define("FRESH", true);
        }
        let keys = gpu.scratch(order::key_bytes(rows, key))?;
        let arguments = Arguments::new().pointer(place(index)?).pointer(keys.address).pointer(used.address);
        let [_, count, apart] = self.lists();
        let numbers = [rows, count, apart, extent, bad];
        let arguments = numbers.into_iter().fold(arguments.ints(&ints), |list, v| list.int(v as i64));
        let slot = gpu.status(self.call.op, Check::Index(extent))?;
        let arguments = arguments.int(self.padding()).pointer(slot.address);
        gpu.launch(variant, "keys", self.places.each(rows), &arguments)?;
        self.places.check(gpu, self.call.op, slot)?;
        order::order(gpu, self.call.op, keys, rows, bad, key, self.is_wide)
    }
}

/// Bytes for so many exact sums: two halves of each, and two bits.
fn exact_memory(sums: usize) -> usize {
    let bins = sums.next_multiple_of(BINS);
    bins * 8 + bins / 4
}

/// Bytes of so many entries of lists, with their buckets, bits of rows that meet and a number for each thread.
fn lists_memory(entries: usize, threads: usize) -> usize {
    (entries + entries / BUCKET + entries / 16 + threads) * 4
}

/// Entries of lists for which a group has local memory: as many as groups have that share a multiprocessor.
fn local_entries(limits: &Limits) -> usize {
    let mut entries = ENTRIES;
    while entries > BITS && lists_memory(entries, LIST_THREADS) > limits.local_memory {
        entries /= 2;
    }
    entries
}

/// With what a thread keeps, for which it has the registers that LIST_THREADS leave to each.
fn keeping(variant: Variant, kept: Option<usize>, threads: usize) -> Variant {
    match kept {
        Some(kept) => variant.define("KEPT", kept).define("AT_ONCE", (LIST_THREADS / threads).max(1)),
        None => variant,
    }
}

/// How long lists are looked at.
struct Long {
    /// Lists of a group, and its threads.
    together: usize,
    threads: usize,
    /// How many passes over the table there are.
    passes: usize,
    /// Indices that a thread keeps, if it does not read them again.
    kept: Option<usize>,
    kind: Kind,
}

/// What local memory has of each list.
#[derive(Clone, Copy)]
enum Kind {
    /// The last row of each of so many places.
    Last { places: usize },
    /// So many buckets, of 2^shift neighbouring indices each, and their entries.
    Buckets { shift: usize, buckets: usize, entries: usize },
}

impl Long {
    fn new(together: usize, [count, extent]: [usize; 2], passes: usize, limits: &Limits, kind: Kind) -> Long {
        let threads = 1 << (together * LONG_THREADS).min(LIST_THREADS).min(limits.max_group).ilog2();
        let of_thread = (together * count).div_ceil(threads).next_multiple_of(KEPT_STEP);
        // What stands for no index has 16 bits, too, and is beyond what a pass looks at.
        let beyond = match kind {
            Kind::Last { places } => passes * places,
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

    /// Finds the last of `count` rows for each of `extent` places, in as few passes as there is memory for.
    fn last(together: usize, count: usize, extent: usize, limits: &Limits) -> Option<Long> {
        let of_passes = |passes: usize| {
            let places = extent.div_ceil(passes).next_multiple_of(PLACES_STEP);
            Long::new(together, [count, extent], passes, limits, Kind::Last { places })
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
            Kind::Last { places } => self.together * places * 2,
            Kind::Buckets { buckets, entries, .. } => self.together * (buckets * 2 + buckets / 8 + entries * 2 + 4),
        }
    }
}
