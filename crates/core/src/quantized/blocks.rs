//! Blocks of quantised numbers: how each format lays out the bits of a block, and the numbers that these are. Products are rounded to f32 one
//! after the other, as in the package `gguf`, whose numbers have the same bits. ggml, "Tensor Encoding Schemes".
//!
//! Functions are inlined: they are compiled for the vectors of the caller.
//!
//! `d` and `m` are scales, `q` is the integer of an element. A super-block of 256 elements has sub-blocks with integers as scales, of which `d`
//! and `m` are the units.

use half::f16;
use std::array::from_fn;

/// The elements of a super-block.
pub(super) const SUPER: usize = 256;

/// The numbers of 4 bits of IQ4_NL and IQ4_XS.
const UNEVEN: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the floats of 4 bits, E2M1. Open Compute Project, "Microscaling Formats", version 1.0.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The byte and the shift of element `i`, if elements have `BITS` bits each. The elements of a byte are `RUN` apart: first come the lowest bits
/// of `RUN` bytes, then the next ones.
pub(super) const fn place<const BITS: usize, const RUN: usize>(i: usize) -> (usize, usize) {
    let in_byte = 8 / BITS;
    (i / (RUN * in_byte) * RUN + i % RUN, i / RUN % in_byte * BITS)
}

/// The bits of element `i`, which lie as [`place`] says.
#[inline(always)]
fn bits<const BITS: usize, const RUN: usize>(bytes: &[u8], i: usize) -> u8 {
    let (byte, shift) = place::<BITS, RUN>(i);
    bytes[byte] >> shift & ((1 << BITS) - 1)
}

#[inline(always)]
fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// `d (q - 8)`: d, 4 bits of each element.
#[inline(always)]
pub(super) fn q4_0(block: &[u8; 18]) -> [f32; 32] {
    let d = half(block, 0);
    from_fn(|i| d * (f32::from(bits::<4, 16>(&block[2..], i)) - 8.0))
}

/// `d q + m`: d, m, 4 bits of each element.
#[inline(always)]
pub(super) fn q4_1(block: &[u8; 20]) -> [f32; 32] {
    let (d, m) = (half(block, 0), half(block, 2));
    from_fn(|i| d * f32::from(bits::<4, 16>(&block[4..], i)) + m)
}

/// `d (q - 16)`: d, the fifth bit of each element, the other four.
#[inline(always)]
pub(super) fn q5_0(block: &[u8; 22]) -> [f32; 32] {
    let d = half(block, 0);
    let q = |i| bits::<4, 16>(&block[6..], i) | bits::<1, 1>(&block[2..6], i) << 4;
    from_fn(|i| d * (f32::from(q(i)) - 16.0))
}

/// `d q + m`: d, m, the fifth bit of each element, the other four.
#[inline(always)]
pub(super) fn q5_1(block: &[u8; 24]) -> [f32; 32] {
    let (d, m) = (half(block, 0), half(block, 2));
    let q = |i| bits::<4, 16>(&block[8..], i) | bits::<1, 1>(&block[4..8], i) << 4;
    from_fn(|i| d * f32::from(q(i)) + m)
}

/// `d q`: d, a signed byte of each element.
#[inline(always)]
pub(super) fn q8_0(block: &[u8; 34]) -> [f32; 32] {
    let d = half(block, 0);
    from_fn(|i| f32::from(block[2 + i] as i8) * d)
}

/// `d s q - m o`, sub-blocks of 16: s and o, 4 bits each; 2 bits of each element; d, m.
#[inline(always)]
pub(super) fn q2_k(block: &[u8; 84]) -> [f32; SUPER] {
    let (d, m) = (half(block, 80), half(block, 82));
    let scales: [(f32, f32); 16] = from_fn(|s| (d * f32::from(block[s] & 15), m * f32::from(block[s] >> 4)));
    from_fn(|i| scales[i / 16].0 * f32::from(bits::<2, 32>(&block[16..80], i)) - scales[i / 16].1)
}

/// `d (s - 32) (q - 4)`, sub-blocks of 16: the third bit of each element, the other two; the lower 4 bits of each s, the upper two; d.
#[inline(always)]
pub(super) fn q3_k(block: &[u8; 110]) -> [f32; SUPER] {
    let d = half(block, 108);
    let scale = |s| bits::<4, 8>(&block[96..104], s) | bits::<2, 4>(&block[104..108], s) << 4;
    let scales: [f32; 16] = from_fn(|s| d * (f32::from(scale(s)) - 32.0));
    let q = |i| bits::<2, 32>(&block[32..96], i) | bits::<1, 32>(&block[..32], i) << 2;
    from_fn(|i| scales[i / 16] * (f32::from(q(i)) - 4.0))
}

/// The integers of 6 bits of the sub-block `s` of 8: the scale, and the offset. Of the first four they lie in the lower bits of bytes 0 to 7, of
/// the others the lower 4 bits in bytes 8 to 11 and the upper 2 in the upper bits of bytes 0 to 7.
#[inline(always)]
fn scale_and_offset(packed: &[u8], s: usize) -> (u8, u8) {
    match s {
        0..4 => (packed[s] & 63, packed[s + 4] & 63),
        _ => {
            let (both, scale, offset) = (packed[s + 4], packed[s - 4] >> 6, packed[s] >> 6);
            (both & 15 | scale << 4, both >> 4 | offset << 4)
        }
    }
}

/// The scale and the offset of each sub-block of 32, behind d and m.
#[inline(always)]
fn scales_and_offsets(block: &[u8]) -> [(f32, f32); 8] {
    let (d, m) = (half(block, 0), half(block, 2));
    from_fn(|s| {
        let (scale, offset) = scale_and_offset(&block[4..16], s);
        (d * f32::from(scale), m * f32::from(offset))
    })
}

/// `d s q - m o`, sub-blocks of 32: d, m, s and o of 6 bits, 4 bits of each element.
#[inline(always)]
pub(super) fn q4_k(block: &[u8; 144]) -> [f32; SUPER] {
    let scales = scales_and_offsets(block);
    from_fn(|i| scales[i / 32].0 * f32::from(bits::<4, 32>(&block[16..], i)) - scales[i / 32].1)
}

/// `d s q - m o`, sub-blocks of 32: d, m, s and o of 6 bits, the fifth bit of each element, the other four.
#[inline(always)]
pub(super) fn q5_k(block: &[u8; 176]) -> [f32; SUPER] {
    let scales = scales_and_offsets(block);
    let q = |i| bits::<4, 32>(&block[48..], i) | bits::<1, 32>(&block[16..48], i) << 4;
    from_fn(|i| scales[i / 32].0 * f32::from(q(i)) - scales[i / 32].1)
}

/// `d s (q - 32)`, sub-blocks of 16: the lower 4 bits of each element, the upper two; s as a signed byte; d.
#[inline(always)]
pub(super) fn q6_k(block: &[u8; 210]) -> [f32; SUPER] {
    let d = half(block, 208);
    let scales: [f32; 16] = from_fn(|s| d * f32::from(block[192 + s] as i8));
    let q = |i| bits::<4, 64>(&block[..128], i) | bits::<2, 32>(&block[128..192], i) << 4;
    from_fn(|i| scales[i / 16] * (f32::from(q(i)) - 32.0))
}

/// `d u[q]` with the numbers u of [`UNEVEN`]: d, 4 bits of each element.
#[inline(always)]
pub(super) fn iq4_nl(block: &[u8; 18]) -> [f32; 32] {
    let d = half(block, 0);
    from_fn(|i| d * f32::from(UNEVEN[usize::from(bits::<4, 16>(&block[2..], i))]))
}

/// `d (s - 32) u[q]`, sub-blocks of 32: d, the upper 2 bits of each s, the lower four, 4 bits of each element.
#[inline(always)]
pub(super) fn iq4_xs(block: &[u8; 136]) -> [f32; SUPER] {
    let d = half(block, 0);
    let scale = |s| bits::<4, 1>(&block[4..8], s) | bits::<2, 1>(&block[2..4], s) << 4;
    let scales: [f32; 8] = from_fn(|s| d * (f32::from(scale(s)) - 32.0));
    from_fn(|i| scales[i / 32] * f32::from(UNEVEN[usize::from(bits::<4, 16>(&block[8..], i))]))
}

/// `2^(e - 127)` times the float of 4 bits: e, 4 bits of each element.
#[inline(always)]
pub(super) fn mxfp4(block: &[u8; 17]) -> [f32; 32] {
    // Half of the power, since the table has twice the floats. Half of the two smallest powers is subnormal.
    let d = f32::from_bits(match block[0] {
        e @ 0..2 => 1 << 21 << e,
        e => u32::from(e - 1) << 23,
    });
    from_fn(|i| d * f32::from(E2M1[usize::from(bits::<4, 16>(&block[1..], i))]))
}

/// The numbers of 4 bits of NF4: quantiles of the normal distribution between -1 and 1. Dettmers et al. 2023, arXiv 2305.14314, appendix E.
pub(super) const NORMAL: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// `d u[q]` with the numbers u of [`NORMAL`]: d in f32, 4 bits of each element, in each byte the upper ones first.
#[inline(always)]
pub(super) fn nf4(block: &[u8; 36]) -> [f32; 64] {
    let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    from_fn(|i| d * NORMAL[usize::from(block[4 + i / 2] >> (4 * (1 - i % 2)) & 15)])
}
