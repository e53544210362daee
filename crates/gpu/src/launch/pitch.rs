//! Copies of rows to another distance: the launch of `pitch.c`.

use crate::driver::Address;
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{THREADS, each};
use crate::launch::integers::Integers;
use crate::launch::words::widest;
use crate::ops::matrix::matmul::WIDEST;
use crate::program::source::Variant;
use isograd_core::{DType, Result};

/// Rows in memory, in elements.
#[derive(Clone, Copy)]
pub(crate) struct Pitched {
    pub rows: usize,
    pub columns: usize,
    /// From a row to the next, at least `columns`.
    pub pitch: usize,
}

impl Pitched {
    /// Adjacent rows.
    pub fn dense(rows: usize, columns: usize) -> Pitched {
        Pitched { rows, columns, pitch: columns }
    }

    /// Elements up to the end of the last row.
    fn end(&self) -> usize {
        self.rows.saturating_sub(1) * self.pitch + self.columns
    }
}

/// Copies rows of elements of 2 or 4 bytes. Elements of the target between and behind the rows become 0.
pub(crate) fn copy(gpu: &Gpu, size: usize, addresses: [Address; 2], [from, to]: [Pitched; 2]) -> Result<()> {
    let end = to.end();
    let vector = widest(WIDEST / size, [end], [(addresses[1], size)]);
    let integers = Integers::new()
        .positions([("N_WORDS", end / vector), ("N_ROWS", from.rows), ("N_COLUMNS", from.columns)])
        .positions([("X_PITCH", from.pitch), ("Y_PITCH", to.pitch)]);
    let variant = Variant::new("matrix/pitch.c")
        .define("THREADS", THREADS)
        .define("T", if size == 2 { DType::BF16 } else { DType::I32 })
        .words(vector, size)
        .flag("WIDE", from.end().max(end) > i32::MAX as usize);
    gpu.launch(variant, "pitch", each(end / vector), &Arguments::new().pointers(addresses).named(integers))
}
