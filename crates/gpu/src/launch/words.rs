//! Words that kernels move at once, and factors by which they divide.

use crate::driver::Address;
use isograd_core::DType;

/// The name of a storage type that moves elements of a dtype bit for bit.
pub fn bits(dtype: DType) -> &'static str {
    match dtype.size() {
        8 => "i64",
        4 => "i32",
        2 => "u16",
        _ => "u8",
    }
}

/// The widest word in elements: the largest power of 2, up to `most`, that divides each of `steps`, and whose words lie at
/// multiples of their size. `most` is a power of 2; `steps` are extents and strides in elements; `memory` has the
/// addresses of operands with the sizes of their elements.
pub fn widest(
    most: usize,
    steps: impl IntoIterator<Item = usize>,
    memory: impl IntoIterator<Item = (Address, usize)>,
) -> usize {
    let starts = memory.into_iter().map(|(address, size)| (address / size as u64) as usize);
    // The lowest bit of any of them is the largest common power of 2.
    let bits = steps.into_iter().chain(starts).fold(most, |bits, step| bits | step);
    1 << bits.trailing_zeros()
}

/// Whether words of `vector` elements, a power of 2, suit these steps and operands, as in [`widest`].
pub fn fits(
    vector: usize,
    steps: impl IntoIterator<Item = usize>,
    memory: impl IntoIterator<Item = (Address, usize)>,
) -> bool {
    widest(vector, steps, memory) == vector
}

/// [`widest`] in words of 16 bytes, for operands of one dtype with rows of `extent` elements.
pub fn vector_of(dtype: DType, extent: usize, addresses: &[Address]) -> usize {
    widest(16 / dtype.size(), [extent], addresses.iter().map(|&address| (address, dtype.size())))
}

/// The argument of the kernels' QUOTIENT for a division by `d`. Its low half is the factor 2^(31 + s) / d rounded up, where 2^s
/// is d rounded up to a power of 2; its high half is s. The factor is below 2^32. For dividends below 2^31, rounding changes the
/// quotient by less than 1 / d.
pub fn divider(d: usize) -> usize {
    if d > 1 << 31 {
        // Kernels with 64-bit positions divide.
        return 0;
    }
    let shift = d.max(1).next_power_of_two().ilog2() as usize;
    (1usize << (31 + shift)).div_ceil(d.max(1)) | shift << 32
}

/// Whether kernels count so many elements in 64 bits, with room for a tile that reaches beyond the last element.
pub fn is_wide(n: usize) -> bool {
    n > i32::MAX as usize / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_word_divides_all_steps_and_addresses() {
        let by_trial = |most: usize, steps: [usize; 2], memory: [(Address, usize); 2]| {
            let is_word = |v: usize| {
                steps.iter().all(|s| s.is_multiple_of(v))
                    && memory.iter().all(|&(at, size)| at.is_multiple_of((v * size) as u64))
            };
            std::iter::successors(Some(most), |v| Some(v / 2)).find(|&v| v == 1 || is_word(v)).unwrap()
        };
        for most in [1, 2, 4, 8, 16] {
            for steps in [[0, 8], [6, 12], [16, 16], [1, 32], [4, 24]] {
                for (at, other) in [(0, 4096), (16, 8), (4, 64), (24, 4096)] {
                    let memory = [(at, 4), (other, 2)];
                    assert_eq!(
                        widest(most, steps, memory),
                        by_trial(most, steps, memory),
                        "{most} {steps:?} {memory:?}"
                    );
                }
            }
        }
        assert!(fits(4, [8], [(16, 4)]) && !fits(4, [8], [(8, 4)]) && fits(1, [3], [(4, 4)]));
    }
}
