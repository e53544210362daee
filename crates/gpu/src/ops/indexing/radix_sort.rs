//! A stable radix sort of keys below a limit, digit by digit, the lowest first.
//!
//! Its constants were tuned on an H100.

use crate::driver::Geometry;
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::group_size;
use crate::memory::pool::Buffer;
use crate::program::source::Variant;
use isograd_core::{Error, Result};

/// Keys of a thread per turn.
const ITEMS: usize = 2;
/// The most bits of a digit.
const DIGIT: usize = 9;
/// The most parts of the keys: each part reads the counts of all others.
const PARTS: usize = 256;

/// Sorted keys, and their positions before.
pub struct Ordered {
    pub keys: Buffer,
    pub order: Buffer,
}

/// Bytes of this many keys of a type, `u32` or `u64`.
pub fn key_bytes(n: usize, key: &str) -> usize {
    n * if key == "u64" { 8 } else { 4 }
}

/// Sorts `n` keys of a type, none of which is above `highest`.
pub fn order(
    gpu: &Gpu,
    op: &'static str,
    keys: Buffer,
    n: usize,
    highest: usize,
    key: &'static str,
    is_wide: bool,
) -> Result<Ordered> {
    if n > u32::MAX as usize {
        return Err(Error::unsupported(op, format!("{n} indices in one call")));
    }
    let threads = group_size(gpu.driver().limits());
    let bits = (usize::BITS - highest.leading_zeros()).max(1) as usize;
    let digit = bits.div_ceil(bits.div_ceil(DIGIT));
    let chunk = threads * ITEMS;
    let part = n.div_ceil(PARTS).next_multiple_of(chunk);
    let parts = n.div_ceil(part);
    let variant = Variant::new("indexing/radix_sort.c")
        .define("THREADS", threads)
        .define("K", key)
        .define("DIGITS", 1usize << DIGIT)
        .define("ITEMS", ITEMS)
        .flag("WIDE", is_wide);
    let position = if is_wide { 8 } else { 4 };
    let (counts, order) = (gpu.scratch((parts * 4) << digit)?, gpu.scratch(n * position)?);
    let mut from = Ordered { keys, order };
    let mut to = Ordered { keys: gpu.scratch(key_bytes(n, key))?, order: gpu.scratch(n * position)? };
    let geometry = Geometry::new([parts, 1, 1], threads);
    for shift in (0..bits).step_by(digit) {
        let numbers = [n, part, 1 << digit, shift];
        let arguments = Arguments::new().pointers([from.keys.address, counts.address]).numbers(numbers);
        gpu.launch(variant.clone(), "digits", geometry, &arguments)?;
        let pointers = [&from.keys, &from.order, &to.keys, &to.order, &counts].map(|buffer| buffer.address);
        let arguments = Arguments::new().pointers(pointers).numbers(numbers).int(shift == 0);
        gpu.launch(variant.clone(), "move", geometry, &arguments)?;
        std::mem::swap(&mut from, &mut to);
    }
    Ok(from)
}
