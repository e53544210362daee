//! Products on matrix units that read local memory, where an engine copies tiles of the operands: the launch of `wgmma.c`.

use crate::driver::{Geometry, Limits, TileView};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::ops::matmul::{Extents, Product, Side};
use isograd_core::{DType, Result};

/// Rows and columns of a group's tile, and products of each result between two waits.
const TILE: [usize; 3] = [128, 256, 64];
/// Groups of a cluster, whose tiles lie one below the other.
const CLUSTER: usize = 2;
/// Threads of a group, in waves that copy and waves that multiply.
const THREADS: usize = 384;
/// Tiles of both operands in local memory at once; bytes of an element.
const STAGES: usize = 4;
const SIZE: usize = 2;
/// Elements of a line of a tile, and of a word of 16 bytes.
const LINE: usize = 64;
const WORD: usize = 8;
/// Where tiles begin is a multiple of this, which costs as much.
const ALIGNMENT: usize = 1024;
/// The most elements that the copy engine counts, and the most bytes between lines.
const MOST: usize = i32::MAX as usize;
const MOST_BYTES: usize = 1 << 40;

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
        let is_batched = |side: &Side| usize::from(side.is_batched);
        let added: usize = match (c_row, has_words) {
            (0, true) => 1,
            (_, true) => 2,
            _ => 3,
        };
        let ints =
            [m, n, k, pairs_m, tiles_n, pairs, is_batched(&self.a), is_batched(&self.b), c_batch, c_row, c_column];
        let variant = self
            .variant("wgmma.c", THREADS, false)
            .define("TILE_M", TILE[0])
            .define("TILE_N", TILE[1])
            .define("TILE_K", TILE[2])
            .define("STAGES", STAGES)
            .define("CLUSTER", CLUSTER)
            .define("A_ALONG_K", self.a.is_along_k())
            .define("B_ALONG_K", self.b.is_along_k())
            .define("HAS_C", has_c)
            .define("ADDED", added)
            .define("INTS", ints.len());
        let arguments = maps.iter().fold(Arguments::new(), |list, map| list.bytes(bytemuck::cast_slice(map)));
        let pointers = [c, self.y, self.z.unwrap_or(self.y)];
        let arguments = arguments.pointers(pointers).ints(&ints).floats([self.alpha, self.beta], DType::F32);
        let clusters = (gpu.driver().limits().units / CLUSTER).clamp(1, pairs);
        let given = STAGES * ((TILE[0] + TILE[1]) * TILE[2] * SIZE + 2 * size_of::<u64>()) + ALIGNMENT;
        let geometry = Geometry { given, ..Geometry::new([clusters * CLUSTER, 1, 1], THREADS) };
        gpu.launch(self.finishing(variant), "gemm_wgmma", geometry, &arguments)
    }
}

/// The dimension along which elements of a factor are neighbours, and the other one: their extents, and the other one's stride.
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
        // Of one line, or one matrix, any step will do.
        strides: [
            if lines == 1 { columns.next_multiple_of(WORD) } else { step },
            if is_batched { side.strides[0] } else { WORD },
        ],
        tile: [LINE, if side.is_along_k() { tile } else { TILE[2] }],
    }
}
