//! Words that kernels move at once, and what they divide by.

use crate::driver::Address;
use isograd_core::DType;

/// A type of so many bytes that moves at once.
pub fn word(bytes: usize) -> &'static str {
    match bytes {
        16 => "u32x4",
        8 => "u32x2",
        4 => "u32",
        2 => "u16",
        _ => "u8",
    }
}

/// The name of a storage type that moves elements of a dtype bit for bit.
pub fn bits(dtype: DType) -> &'static str {
    match dtype.size() {
        8 => "i64",
        4 => "i32",
        2 => "u16",
        _ => "u8",
    }
}

/// How many elements of so many bytes are read at once, from the best on.
pub fn vectors(size: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(16 / size), |v| Some(v / 2)).take_while(|&v| v > 1)
}

/// The largest words in which memory that begins at these addresses can be read, if rows have `extent` elements.
pub fn vector_of(dtype: DType, extent: usize, addresses: &[Address]) -> usize {
    let fits =
        |v: usize| extent.is_multiple_of(v) && addresses.iter().all(|a| a.is_multiple_of((v * dtype.size()) as u64));
    let mut vector = 16 / dtype.size();
    while !fits(vector) {
        vector /= 2;
    }
    vector
}

/// What the kernels' QUOTIENT takes for a division by `d`: 2^(31 + s) / d rounded up, where 2^s is d rounded up to a power of
/// 2, and above it s. The factor is below 2^32; of n below 2^31, what it is too large by changes the quotient by less than 1 / d.
pub fn divider(d: usize) -> i64 {
    if d > 1 << 31 {
        // Kernels for what is so large divide.
        return 0;
    }
    let shift = d.max(1).next_power_of_two().ilog2();
    (1u64 << (31 + shift)).div_ceil(d.max(1) as u64) as i64 | (shift as i64) << 32
}

/// Whether kernels count so many elements with 64 bits: a tile may reach beyond the last.
pub fn is_wide(n: usize) -> bool {
    n > i32::MAX as usize / 2
}
