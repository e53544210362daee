//! Copies between row-major order and that of channels last: the launch of `turn.c`.

use crate::driver::{Address, Geometry};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::group_size;
use crate::launch::integers::Integers;
use crate::launch::layout::Joint;
use crate::launch::operands::start_of;
use crate::program::source::Variant;
use isograd_core::{Call, DType, Layout, Result};
use std::cmp::Reverse;

/// Side of a square transpose tile, in elements.
const SIDE: usize = 64;
/// Short side of the tile for a matrix with one short side.
const SHORT: usize = 8;
/// Long side of that tile.
const LONG: usize = 512;
/// The smallest volume, in elements, that is transposed by tiles; smaller ones are copied as fast element by element.
const LEAST_VOLUME: usize = 32;
/// The fewest elements of a tensor that is copied by tiles.
const LEAST: usize = 1 << 16;

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

impl Matrices {
    /// The matrices that a copy between two layouts of one shape transposes; none if it does something else.
    fn of(from: &Layout, to: &Layout) -> Option<Matrices> {
        let mut order: Vec<usize> = (0..to.shape().rank()).collect();
        order.sort_by_key(|&d| Reverse(to.strides()[d]));
        let [from, to] = [from, to].map(|layout| layout.permute(&order));
        let Joint { extents, strides } = Joint::of(from.shape().dims(), [from.strides(), to.strides()].into_iter());
        let [x, y] = &strides[..] else { return None };
        // Along `row` elements of the target are adjacent, and along `column` those of the source.
        let row = extents.len().checked_sub(1).filter(|&row| y[row] == 1)?;
        let column = x[..row].iter().position(|&stride| stride == 1)?;
        let (count, matrix) = match (row, column) {
            (1, _) => (1, [0, 0]),
            (2, _) => (extents[1 - column], [x[1 - column], y[1 - column]]),
            _ => return None,
        };
        let strides = [matrix[0], x[row], matrix[1], y[column]];
        Some(Matrices { count, extents: [extents[row], extents[column], extents[row]], strides })
    }

    /// One past the highest position.
    fn end(&self) -> usize {
        let Matrices { count, extents: [rows, columns, written], strides } = *self;
        let matrices = count * strides[0].max(strides[2]);
        matrices + (rows * strides[1] + columns).max(columns * strides[3] + written)
    }
}

/// Copies a tensor to another order, in which other elements are adjacent; false if elements are copied one by one as fast.
pub fn copy(gpu: &Gpu, call: &Call<'_>) -> Result<bool> {
    let (x, y) = (&call.inputs[0], &call.outputs[0]);
    let dtype = match y.dtype.size() {
        2 => DType::BF16,
        4 => DType::I32,
        _ => return Ok(false),
    };
    if x.layout.shape() != y.layout.shape() || y.layout.shape().numel() < LEAST {
        return Ok(false);
    }
    let Some(matrices) = Matrices::of(x.layout, y.layout) else { return Ok(false) };
    let [rows, columns, _] = matrices.extents;
    if rows.max(columns) < LEAST_VOLUME {
        return Ok(false);
    }
    turn(gpu, dtype, [start_of(x)?, start_of(y)?], matrices).map(|()| true)
}

fn turn(gpu: &Gpu, dtype: DType, starts: [Address; 2], matrices: Matrices) -> Result<()> {
    let end = matrices.end();
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
    let variant = Variant::new("conv/turn.c")
        .define("THREADS", threads)
        .define("T", dtype)
        .define("ROWS", of_rows)
        .define("COLUMNS", of_columns)
        .flag("WIDE", end > i32::MAX as usize);
    let arguments = Arguments::new().pointers(starts).named(integers);
    gpu.launch(variant, "turn", Geometry::new([count * tiles[0] * tiles[1], 1, 1], threads), &arguments)
}
