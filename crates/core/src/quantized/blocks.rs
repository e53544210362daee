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

/// [`bits`] of all elements, in loops that become vectors.
#[inline(always)]
fn unpacked<const BITS: usize, const RUN: usize, const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut all = [0; N];
    for (bytes, all) in bytes.as_chunks::<RUN>().0.iter().zip(all.chunks_exact_mut(RUN * 8 / BITS)) {
        for (part, run) in all.as_chunks_mut::<RUN>().0.iter_mut().enumerate() {
            for (q, byte) in run.iter_mut().zip(bytes) {
                *q = byte >> (BITS * part) & ((1 << BITS) - 1);
            }
        }
    }
    all
}

/// The integers with higher bits, which begin at bit `SHIFT`.
#[inline(always)]
fn joined<const SHIFT: usize, const N: usize>(mut low: [u8; N], high: [u8; N]) -> [u8; N] {
    low.iter_mut().zip(high).for_each(|(q, high)| *q |= high << SHIFT);
    low
}

/// The number of each integer, by its sub-block of `SUB` elements.
#[inline(always)]
fn set<const SUB: usize, const N: usize>(values: &mut [f32; N], q: &[u8; N], number: impl Fn(usize, u8) -> f32) {
    let subs = values.as_chunks_mut::<SUB>().0.iter_mut().zip(q.as_chunks::<SUB>().0).enumerate();
    for (s, (values, q)) in subs {
        values.iter_mut().zip(q).for_each(|(x, &q)| *x = number(s, q));
    }
}

#[inline(always)]
fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// `d (q - 8)`: d, 4 bits of each element.
#[inline(always)]
pub(super) fn q4_0(block: &[u8; 18], values: &mut [f32; 32]) {
    let d = half(block, 0);
    set::<32, 32>(values, &unpacked::<4, 16, 32>(&block[2..]), |_, q| d * (f32::from(q) - 8.0));
}

/// `d q + m`: d, m, 4 bits of each element.
#[inline(always)]
pub(super) fn q4_1(block: &[u8; 20], values: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    set::<32, 32>(values, &unpacked::<4, 16, 32>(&block[4..]), |_, q| d * f32::from(q) + m);
}

/// `d (q - 16)`: d, the fifth bit of each element, the other four.
#[inline(always)]
pub(super) fn q5_0(block: &[u8; 22], values: &mut [f32; 32]) {
    let d = half(block, 0);
    let q = joined::<4, 32>(unpacked::<4, 16, 32>(&block[6..]), unpacked::<1, 1, 32>(&block[2..6]));
    set::<32, 32>(values, &q, |_, q| d * (f32::from(q) - 16.0));
}

/// `d q + m`: d, m, the fifth bit of each element, the other four.
#[inline(always)]
pub(super) fn q5_1(block: &[u8; 24], values: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    let q = joined::<4, 32>(unpacked::<4, 16, 32>(&block[8..]), unpacked::<1, 1, 32>(&block[4..8]));
    set::<32, 32>(values, &q, |_, q| d * f32::from(q) + m);
}

/// `d q`: d, a signed byte of each element.
#[inline(always)]
pub(super) fn q8_0(block: &[u8; 34], values: &mut [f32; 32]) {
    let d = half(block, 0);
    values.iter_mut().zip(&block[2..]).for_each(|(x, &q)| *x = f32::from(q as i8) * d);
}

/// `d s q - m o`, sub-blocks of 16: s and o, 4 bits each; 2 bits of each element; d, m.
#[inline(always)]
pub(super) fn q2_k(block: &[u8; 84], values: &mut [f32; SUPER]) {
    let (d, m) = (half(block, 80), half(block, 82));
    let scales: [(f32, f32); 16] = from_fn(|s| (d * f32::from(block[s] & 15), m * f32::from(block[s] >> 4)));
    set::<16, SUPER>(values, &unpacked::<2, 32, SUPER>(&block[16..80]), |s, q| {
        scales[s].0 * f32::from(q) - scales[s].1
    });
}

/// `d (s - 32) (q - 4)`, sub-blocks of 16: the third bit of each element, the other two; the lower 4 bits of each s, the upper two; d.
#[inline(always)]
pub(super) fn q3_k(block: &[u8; 110], values: &mut [f32; SUPER]) {
    let d = half(block, 108);
    let scale = |s| bits::<4, 8>(&block[96..104], s) | bits::<2, 4>(&block[104..108], s) << 4;
    let scales: [f32; 16] = from_fn(|s| d * (f32::from(scale(s)) - 32.0));
    let q = joined::<2, SUPER>(unpacked::<2, 32, SUPER>(&block[32..96]), unpacked::<1, 32, SUPER>(&block[..32]));
    set::<16, SUPER>(values, &q, |s, q| scales[s] * (f32::from(q) - 4.0));
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
pub(super) fn q4_k(block: &[u8; 144], values: &mut [f32; SUPER]) {
    let scales = scales_and_offsets(block);
    let q = unpacked::<4, 32, SUPER>(&block[16..]);
    set::<32, SUPER>(values, &q, |s, q| scales[s].0 * f32::from(q) - scales[s].1);
}

/// `d s q - m o`, sub-blocks of 32: d, m, s and o of 6 bits, the fifth bit of each element, the other four.
#[inline(always)]
pub(super) fn q5_k(block: &[u8; 176], values: &mut [f32; SUPER]) {
    let scales = scales_and_offsets(block);
    let q = joined::<4, SUPER>(unpacked::<4, 32, SUPER>(&block[48..]), unpacked::<1, 32, SUPER>(&block[16..48]));
    set::<32, SUPER>(values, &q, |s, q| scales[s].0 * f32::from(q) - scales[s].1);
}

/// `d s (q - 32)`, sub-blocks of 16: the lower 4 bits of each element, the upper two; s as a signed byte; d.
#[inline(always)]
pub(super) fn q6_k(block: &[u8; 210], values: &mut [f32; SUPER]) {
    let d = half(block, 208);
    let scales: [f32; 16] = from_fn(|s| d * f32::from(block[192 + s] as i8));
    let q = joined::<4, SUPER>(unpacked::<4, 64, SUPER>(&block[..128]), unpacked::<2, 32, SUPER>(&block[128..192]));
    set::<16, SUPER>(values, &q, |s, q| scales[s] * (f32::from(q) - 32.0));
}

/// `d u[q]` with the numbers u of [`UNEVEN`]: d, 4 bits of each element.
#[inline(always)]
pub(super) fn iq4_nl(block: &[u8; 18], values: &mut [f32; 32]) {
    let d = half(block, 0);
    *values = unpacked::<4, 16, 32>(&block[2..]).map(|q| d * f32::from(UNEVEN[usize::from(q)]));
}

/// `d (s - 32) u[q]`, sub-blocks of 32: d, the upper 2 bits of each s, the lower four, 4 bits of each element.
#[inline(always)]
pub(super) fn iq4_xs(block: &[u8; 136], values: &mut [f32; SUPER]) {
    let d = half(block, 0);
    let scale = |s| bits::<4, 1>(&block[4..8], s) | bits::<2, 1>(&block[2..4], s) << 4;
    let scales: [f32; 8] = from_fn(|s| d * (f32::from(scale(s)) - 32.0));
    let q = unpacked::<4, 16, SUPER>(&block[8..]);
    set::<32, SUPER>(values, &q, |s, q| scales[s] * f32::from(UNEVEN[usize::from(q)]));
}

/// `2^(e - 127)` times the float of 4 bits: e, 4 bits of each element.
#[inline(always)]
pub(super) fn mxfp4(block: &[u8; 17], values: &mut [f32; 32]) {
    // Half of the power, since the table has twice the floats. Half of the two smallest powers is subnormal.
    let d = f32::from_bits(match block[0] {
        e @ 0..2 => 1 << 21 << e,
        e => u32::from(e - 1) << 23,
    });
    *values = unpacked::<4, 16, 32>(&block[1..]).map(|q| d * f32::from(E2M1[usize::from(q)]));
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
pub(super) fn nf4(block: &[u8; 36], values: &mut [f32; 64]) {
    let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    for (pair, byte) in values.as_chunks_mut::<2>().0.iter_mut().zip(&block[4..]) {
        *pair = [d * NORMAL[usize::from(byte >> 4)], d * NORMAL[usize::from(byte & 15)]];
    }
}
