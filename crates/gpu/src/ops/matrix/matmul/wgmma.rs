//! Products on matrix units that read local memory: the launch of `wgmma.c`, where an engine copies tiles of the operands, and the choice
//! of tiles for `wgmma_words.c`, where threads copy words.
//!
//! Its constants were tuned on an H100.

use crate::driver::{Geometry, Limits, Tile, TileView};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::integers::Integers;
use crate::ops::matrix::matmul::{Extents, FEW_MULTIPLIED, MOST_PARTS, MatmulPlan, Method, Product, Side};
use isograd_core::{DType, Result};

/// `[M, N, K]` of a group's tile; K is the depth of a stage.
const TILE: [usize; 3] = [128, 256, 64];
/// Groups of a cluster. Their tiles are adjacent along M.
const CLUSTER: usize = 2;
/// Threads of a group: four waves that copy, and eight that multiply.
const THREADS: usize = 384;
/// Stages of the pipeline: tiles of both operands that are in local memory at once.
const STAGES: usize = 4;
/// Bytes of an element.
const SIZE: usize = 2;
/// Elements of a line of a tile.
const LINE: usize = 64;
/// Elements of a word of 16 bytes.
const WORD: usize = 8;
/// Alignment of tiles in bytes. Aligning the first one may waste as many.
const ALIGNMENT: usize = 1024;
/// The largest extent for the copy engine (TMA), in elements.
const MOST: usize = i32::MAX as usize;
/// Its largest stride, in bytes.
const MOST_BYTES: usize = 1 << 40;

/// The tiles of `wgmma_words.c`, of 256 threads each.
const WORDS: [Words; 3] = [
    Words { tile: of_words(256, 16), stages: 4, at_once: 1, step: 2000, with_table: 2330, start: 3500 },
    Words { tile: of_words(128, 8), stages: 3, at_once: 2, step: 1050, with_table: 975, start: 1800 },
    Words { tile: of_words(64, 4), stages: 4, at_once: 2, step: 750, with_table: 750, start: 1500 },
];
/// The least K of a split.
const LEAST_PART: usize = 512;
/// The most groups per multiprocessor if K is split.
const MOST_ROUNDS: usize = 4;
/// Estimated clocks of the launch that sums split-K partials, on an H100.
const OF_PARTS: usize = 5000;
/// Partial sums that it reads and writes per clock, on an H100.
const NUMBERS_A_CLOCK: usize = 180;

/// A tile, and its cost.
struct Words {
    tile: Tile,
    /// Tiles in local memory.
    stages: usize,
    /// Groups that a multiprocessor has room for.
    at_once: usize,
    /// Clocks per step along K, on an H100.
    step: usize,
    /// Clocks per step along K with an index table (convolutions), on an H100.
    with_table: usize,
    /// Clocks per group outside the loop along K, on an H100.
    start: usize,
}

const fn of_words(n: usize, results: usize) -> Tile {
    Tile { m: 128, n, k: 64, results: [8, results] }
}

/// Tiles in local memory, and groups of a multiprocessor.
pub(super) fn stages_of_words(tile: Tile) -> [usize; 2] {
    let of = WORDS.iter().find(|words| words.tile == tile).expect("a tile of the list");
    [of.stages, of.at_once]
}

/// Bytes of local memory for the tiles of `wgmma_words.c`.
pub(super) fn given_for_words(tile: Tile, stages: usize) -> usize {
    stages * (tile.m + tile.n) * tile.k * SIZE + ALIGNMENT
}

/// The tile and the number of K splits for which `wgmma_words.c` is estimated to take the least time. None for a small product, whose
/// launch takes longer, or if rows are no whole words. `has_table`: a loader reads an index table along K.
pub(super) fn choose_words(e: Extents, has_table: bool, limits: &Limits) -> Option<MatmulPlan> {
    let Extents { batches, m, n, k } = e;
    let (units, results) = (limits.units.max(1), batches.saturating_mul(m).saturating_mul(n));
    if results.saturating_mul(k) <= FEW_MULTIPLIED || !n.is_multiple_of(WORD) {
        return None;
    }
    let plans = WORDS.iter().flat_map(|words| {
        let groups = words.tile.count(m, n).saturating_mul(batches).max(1);
        (1..=MOST_ROUNDS).map(move |rounds| {
            let parts = (rounds * units / groups).min(k / LEAST_PART).clamp(1, MOST_PARTS);
            let steps = k.div_ceil(parts).div_ceil(words.tile.k);
            let busiest = groups.saturating_mul(parts).div_ceil(units);
            let joining = if parts > 1 { OF_PARTS + parts.saturating_mul(results) / NUMBERS_A_CLOCK } else { 0 };
            // Groups on one multiprocessor share its tensor cores: a step takes the time of all.
            let (step, busiest) = match has_table {
                true => (words.with_table, busiest.next_multiple_of(words.at_once)),
                false => (words.step, busiest),
            };
            (busiest.saturating_mul(steps * step + words.start) + joining, words.tile, parts)
        })
    });
    let (_, tile, parts) = plans.min_by_key(|(clocks, ..)| *clocks)?;
    Some(MatmulPlan::new(Method::WgmmaWords(tile), parts))
}

fn tiles(e: Extents) -> [usize; 2] {
    [e.m.div_ceil(TILE[0]), e.n.div_ceil(TILE[1])]
}

impl Product {
    /// Whether these kernels are the best for a product: there is a tile for each multiprocessor.
    pub(crate) fn fits_wgmma(&self, limits: &Limits) -> bool {
        let [m, n] = tiles(self.e);
        let written = [self.y, self.z.unwrap_or(self.y)];
        let has_words = self.e.n.is_multiple_of(WORD) && written.iter().all(|y| y.is_multiple_of((WORD * SIZE) as u64));
        limits.has_wgmma
            && limits.has_tile_maps
            && self.dtype.size() == SIZE
            && has_words
            && self.e.batches.saturating_mul(m).saturating_mul(n) >= limits.units
            && [&self.a, &self.b].into_iter().all(|side| is_copied(side, self.e.batches))
    }

    pub(crate) fn wgmma(&self, gpu: &Gpu) -> Result<()> {
        let (Extents { batches, m, n, k }, [tiles_m, tiles_n]) = (self.e, tiles(self.e));
        let pairs_m = tiles_m.div_ceil(CLUSTER);
        let pairs = pairs_m * tiles_n * batches;
        let map = |side: &Side, lines| gpu.driver().tile_map(&view(side, self.dtype, batches, lines));
        // Half of a tile of b is copied by each of two groups.
        let maps = [map(&self.a, TILE[0])?, map(&self.b, TILE[1] / CLUSTER)?];
        let (c, [c_batch, c_row, c_column]) = self.c;
        let has_c = self.joined.is_some() || self.beta != 0.0;
        let has_words =
            c_column == 1 && [c_batch, c_row].iter().all(|s| s % 2 == 0) && c.is_multiple_of(2 * SIZE as u64);
        let added: usize = match (c_row, has_words) {
            (0, true) => 1,
            (_, true) => 2,
            _ => 3,
        };
        let integers = Integers::new()
            .integers([("EXTENT_M", m), ("EXTENT_N", n), ("EXTENT_K", k)])
            .integers([("PAIRS_M", pairs_m), ("TILES_N", tiles_n), ("PAIRS", pairs)])
            .integers([("A_IS_BATCHED", self.a.is_batched), ("B_IS_BATCHED", self.b.is_batched)])
            .list("C_STRIDES", [c_batch, c_row, c_column]);
        let variant = self
            .variant("matrix/wgmma.c", THREADS, false)
            .define("TILE_M", TILE[0])
            .define("TILE_N", TILE[1])
            .define("TILE_K", TILE[2])
            .define("STAGES", STAGES)
            .define("CLUSTER", CLUSTER)
            .define("A_ALONG_K", self.a.is_along_k())
            .define("B_ALONG_K", self.b.is_along_k())
            .define("HAS_C", has_c)
            .define("ADDED", added);
        let arguments = maps.iter().fold(Arguments::new(), |list, map| list.bytes(bytemuck::cast_slice(map)));
        let pointers = [c, self.y, self.z.unwrap_or(self.y)];
        let arguments = arguments.pointers(pointers).named(integers).floats([self.alpha, self.beta], DType::F32);
        let clusters = (gpu.driver().limits().units / CLUSTER).clamp(1, pairs);
        let given = STAGES * ((TILE[0] + TILE[1]) * TILE[2] * SIZE + 2 * size_of::<u64>()) + ALIGNMENT;
        let geometry = Geometry { given, ..Geometry::new([clusters * CLUSTER, 1, 1], THREADS) };
        gpu.launch(self.finishing(variant), "gemm_wgmma", geometry, &arguments)
    }
}

/// The contiguous dimension of a factor, and the other one: the extents of both, and the stride of the other.
fn lines(side: &Side) -> [usize; 3] {
    let [_, row, k] = side.strides;
    if side.is_along_k() { [side.k, side.rows, row] } else { [side.rows, side.k, k] }
}

/// Whether the engine can copy tiles of a factor.
fn is_copied(side: &Side, batches: usize) -> bool {
    let ([columns, lines, step], batch) = (lines(side), side.strides[0]);
    let is_batched = side.is_batched && batches > 1;
    side.has_words(WORD)
        && columns.max(lines).max(batches) <= MOST
        && (lines == 1 || step >= columns)
        && step.max(batch).saturating_mul(SIZE) < MOST_BYTES
        && (!is_batched || batch > 0)
}

/// A factor, and boxes of it: lines of its tile along K, or else as many as the tile has columns of K.
fn view(side: &Side, dtype: DType, batches: usize, tile: usize) -> TileView {
    let [columns, lines, step] = lines(side);
    let is_batched = side.is_batched && batches > 1;
    TileView {
        address: side.address,
        dtype,
        extents: [columns, lines, if is_batched { batches } else { 1 }],
        // One line, or one matrix, may have any step.
        strides: [
            if lines == 1 { columns.next_multiple_of(WORD) } else { step },
            if is_batched { side.strides[0] } else { WORD },
        ],
        tile: [LINE, if side.is_along_k() { tile } else { TILE[2] }],
    }
}
