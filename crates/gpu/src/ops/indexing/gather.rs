//! Gather: `y[i] = x[index[i]]` along one dimension.
//!
//! Its constants were tuned on an H100.

use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, in_groups};
use crate::launch::layout::Joint;
use crate::launch::operands::start_of;
use crate::launch::words::{fits, widest};
use crate::memory::status::Check;
use crate::ops::family::{Example, Family, zeros};
use crate::ops::indexing::index::{Indexed, bad, is_wide, named};
use crate::program::source::{Variant, word};
use isograd_core::{Call, DType, Result};
use smallvec::{SmallVec, smallvec};

pub const FAMILY: Family = Family { launchers: &[], examples: EXAMPLES };

/// Elements of y per multiprocessor from which on x is read in tiles.
const MANY_PICKS: usize = 32768;
/// Bytes of a row of such a tile.
const TILE: usize = 128;

/// How many elements of y a thread of `gather` takes side by side.
#[derive(Clone, Copy)]
enum Take {
    /// A vector of this many elements, which share one index.
    Word(usize),
    /// This many elements, each with its own index.
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
        if (*last, *step) == (0, 1) {
            let steps = x_outer.iter().copied().chain([length, along]);
            return match widest(16 / size, steps, [(x, size), (y, size)]) {
                1 => Take::Each(1),
                v => Take::Word(v),
            };
        }
        let v = (16 / size).min(4);
        let is_aligned = index.is_multiple_of((v * index_size).min(16) as u64);
        let has_words = *last == 1 && is_aligned && fits(v, outer.iter().copied().chain([length]), [(y, size)]);
        Take::Each(if has_words { v } else { 1 })
    }

    fn elements(self) -> usize {
        let (Take::Word(v) | Take::Each(v)) = self;
        v
    }
}

/// Splits the last dimension into tiles of `tile` words, and makes the tile the outermost dimension: all rows read one tile before any
/// reads the next, so that elements of x which rows share stay in the cache. The strides of y, which is contiguous, come last.
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

pub fn run(gpu: &Gpu, call: &Call<'_>) -> Result<()> {
    let ([x, index], y) = ([&call.inputs[0], &call.inputs[1]], &call.outputs[0]);
    if y.layout.shape().numel() == 0 {
        return Ok(());
    }
    let (from, at, to, size) = (start_of(x)?, start_of(index)?, start_of(y)?, x.dtype.size());
    let threads = group_size(gpu.driver().limits());
    let indexed = Indexed::new(index, x.layout, None, call.ints[0] as usize, threads);
    let operands = [index.layout.strides(), &indexed.target[..]];
    let mut joint = Joint::of(index.layout.shape().dims(), operands.into_iter()).at_least_one();
    let take = Take::new(&joint, size, index.dtype.size(), indexed.along, [from, at, to]);
    // Extents and strides are counted in the elements that a thread takes; for words, those of x are too.
    let (v, rank) = (take.elements(), joint.rank());
    let mut along = indexed.along;
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
    // Columns of a table that is indexed by row.
    let (tile, columns) = (TILE / (v * size), joint.extents[rank - 1]);
    let is_tiled = rank > 1
        && joint.strides[1][rank - 1] > 0
        && matches!(take, Take::Each(_))
        && y.layout.shape().numel() >= MANY_PICKS * gpu.driver().limits().units
        && columns > tile
        && columns.is_multiple_of(tile);
    let joint = if is_tiled { in_tiles(&joint, tile) } else { joint };
    let index_bytes = numbers * index.dtype.size();
    let variant = Variant::new("indexing/gather.c")
        .define("THREADS", threads)
        .define("I", index.dtype)
        .define("ROWS", joint.rank())
        .define("WORD", word(v * size))
        .define("UNIT", word(unit))
        .define("NUMBERS", numbers)
        .in_pieces(["INDEX_WORD", "INDEX_WORDS"], index_bytes)
        .flags([("WIDE", is_wide(&[x, index, y])), ("TILED", is_tiled)]);
    let n = y.layout.shape().numel() / v;
    let sizes = [n, unit / size, indexed.width, along, indexed.extent, step];
    let arguments = Arguments::new().pointers([from, at, to]).named(named(&joint, AXES)).numbers(sizes);
    let pattern = bad(x.dtype).to_le_bytes()[..size].repeat(unit / size);
    let slot = gpu.status(call.op, Check::Index(indexed.extent))?;
    let arguments = arguments.bytes(&pattern).pointer(slot.address);
    gpu.launch(variant, "gather", in_groups(n, threads), &arguments)?;
    indexed.check(gpu, call.op, slot)
}

/// The space of the words of y, and the strides of the operands.
const AXES: &[&str] = &["SPACE", "INDEX_STRIDES", "X_STRIDES", "Y_STRIDES"];

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] =
    &[|d, t| zeros(d, t, &[1024, 1024])?.gather(0, &zeros(d, DType::I64, &[1024, 1024])?).map(drop)];
