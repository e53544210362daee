//! Copies between row-major order and that of channels last, in 16 bits: the launch of `turn.c`.

use crate::driver::{Address, Geometry};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::group_size;
use crate::launch::integers::Integers;
use crate::program::source::Variant;
use isograd_core::{DType, Result};

/// Side of a square transpose tile, in elements.
const SIDE: usize = 64;
/// Short side of the tile for a matrix with one short side.
const SHORT: usize = 8;
/// Long side of that tile.
const LONG: usize = 512;
/// The smallest volume, in elements, that is transposed by tiles; smaller ones are copied as fast element by element.
const LEAST_VOLUME: usize = 32;

/// `[samples, channels, volume]`; the channels-last copy may be padded to `last` channels.
#[derive(Clone, Copy)]
pub(super) struct Volumes {
    pub samples: usize,
    pub channels: usize,
    pub volume: usize,
    /// Channels of the tensor whose channels are last.
    pub last: usize,
}

/// Matrices to transpose: their number, rows and columns, and the number of rows to write; then strides: of matrices and rows of the
/// source, and of matrices and columns of the target.
struct Matrices {
    count: usize,
    extents: [usize; 3],
    strides: [usize; 4],
}

impl Volumes {
    /// Whether this way is worth it.
    pub fn are_long(self, dtype: DType) -> bool {
        dtype.size() == 2 && self.volume >= LEAST_VOLUME && self.channels > 1 && self.samples > 0
    }

    /// Puts the channels last. Further channels become 0.
    pub fn put_last(self, gpu: &Gpu, dtype: DType, from: Address, to: Address) -> Result<()> {
        let Volumes { samples: count, channels, volume, last } = self;
        let strides = [channels * volume, volume, volume * last, last];
        turn(gpu, dtype, [from, to], Matrices { count, extents: [channels, volume, last], strides })
    }

    /// Puts the channels before their volumes.
    pub fn put_first(self, gpu: &Gpu, dtype: DType, from: Address, to: Address) -> Result<()> {
        let Volumes { samples: count, channels, volume, last } = self;
        let strides = [volume * last, last, channels * volume, volume];
        turn(gpu, dtype, [from, to], Matrices { count, extents: [volume, channels, volume], strides })
    }
}

fn turn(gpu: &Gpu, dtype: DType, starts: [Address; 2], matrices: Matrices) -> Result<()> {
    let Matrices { count, extents: [rows, columns, written], strides } = matrices;
    let [of_rows, of_columns] = match (written <= SHORT, columns <= SHORT) {
        (true, _) => [SHORT, LONG],
        (_, true) => [LONG, SHORT],
        _ => [SIDE; 2],
    };
    let tiles = [written.div_ceil(of_rows), columns.div_ceil(of_columns)];
    let integers = Integers::new()
        .integers([("N_ROWS", rows), ("N_COLUMNS", columns), ("N_WRITTEN", written)])
        .positions([("TILES_R", tiles[0]), ("TILES_C", tiles[1])])
        .integers([
            ("X_MATRIX", strides[0]),
            ("X_ROW", strides[1]),
            ("Y_MATRIX", strides[2]),
            ("Y_COLUMN", strides[3]),
        ]);
    let threads = group_size(gpu.driver().limits());
    let most = count * strides[0].max(strides[2]);
    let variant = Variant::new("conv/turn.c")
        .define("THREADS", threads)
        .define("T", dtype)
        .define("ROWS", of_rows)
        .define("COLUMNS", of_columns)
        .flag("WIDE", most > i32::MAX as usize);
    let arguments = Arguments::new().pointers(starts).named(integers);
    gpu.launch(variant, "turn", Geometry::new([count * tiles[0] * tiles[1], 1, 1], threads), &arguments)
}
