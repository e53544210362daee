//! The blocks of numbers, for the formats that are written. Numbers are finite.
//!
//! Q8_0 and Q4_0 have the bits of the package `gguf`, which writes no super-blocks. For these, the scales of a sub-block have the least sum of
//! squared errors among those of some candidates for its integers.

use super::blocks::{NORMAL, SUPER, place};
use half::f16;
use std::array::from_fn;

/// Candidates of a scale on either side of the one by which the largest number has the largest integer, and the distance between them as a
/// part of that integer.
const CANDIDATES: i8 = 9;
const DISTANCE: f32 = 0.1;

/// Writes the bits of element `i`, which are zero, where [`place`] says.
fn put<const BITS: usize, const RUN: usize>(bytes: &mut [u8], i: usize, q: u8) {
    let (byte, shift) = place::<BITS, RUN>(i);
    bytes[byte] |= (q & ((1 << BITS) - 1)) << shift;
}

/// The reciprocal of a scale; 0 where it has none, so that all integers are those of 0.
fn reciprocal(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The number of the largest magnitude, the first of several. A zero keeps its sign.
fn peak(values: &[f32]) -> f32 {
    let larger = |peak: f32, x: f32| if x.abs() > peak.abs() { x } else { peak };
    values.iter().copied().reduce(larger).unwrap_or(0.0)
}

/// A scale in f16.
fn half(scale: f32) -> [u8; 2] {
    f16::from_f32(scale).to_le_bytes()
}

/// The unit of integer scales as it is stored, and its value: the nearest in f16, or the next above it if an integer of 128 units would be
/// beyond 128.5, as it may be where f16 is subnormal.
fn unit(exact: f32) -> ([u8; 2], f32) {
    let nearest = f16::from_f32(exact);
    let is_short = nearest.to_f32().abs() * 128.5 < exact.abs() * 128.0;
    let unit = f16::from_bits(nearest.to_bits() + u16::from(is_short));
    (unit.to_le_bytes(), unit.to_f32())
}

/// The scale gives the number of the largest magnitude the integer -8.
pub(super) fn q4_0(values: &[f32; 32]) -> [u8; 18] {
    let d = peak(values) / -8.0;
    let inverse = f64::from(reciprocal(d));
    let mut block = [0; 18];
    block[..2].copy_from_slice(&half(d));
    for (i, &x) in values.iter().enumerate() {
        // Rounded to f32 in between, as the package does.
        let q = (f64::from(x) * inverse + 8.5) as f32;
        put::<4, 16>(&mut block[2..], i, (q as u8).min(15));
    }
    block
}

/// The scale gives the number of the largest magnitude the integer 127 or -127.
pub(super) fn q8_0(values: &[f32; 32]) -> [u8; 34] {
    let d = peak(values).abs() / 127.0;
    let inverse = reciprocal(d);
    let [low, high] = half(d);
    from_fn(|i| match i {
        0 => low,
        1 => high,
        _ => (values[i - 2] * inverse).round() as i8 as u8,
    })
}

/// A scale and an offset: `x` is about `scale q - offset`. Neither is negative.
#[derive(Clone, Copy)]
struct Line {
    scale: f32,
    offset: f32,
    inverse: f32,
}

impl Line {
    fn new(scale: f32, offset: f32) -> Line {
        Line { scale, offset, inverse: reciprocal(scale) }
    }

    /// The integer of a number, from 0 to 15.
    fn integer(self, x: f32) -> f32 {
        // A cast is faster than `round`.
        (((x + self.offset) * self.inverse).clamp(0.0, 15.0) + 0.5) as i32 as f32
    }

    fn error(self, values: &[f32]) -> f32 {
        values.iter().map(|&x| (self.scale * self.integer(x) - self.offset - x).powi(2)).sum()
    }

    /// The line with the least sum of squared errors for the integers that this one gives, if it has a positive scale and no negative offset.
    fn fit(self, values: &[f32]) -> Line {
        let n = values.len() as f32;
        let (mut q1, mut q2, mut x1, mut qx) = (0.0, 0.0, 0.0, 0.0);
        for &x in values {
            let q = self.integer(x);
            (q1, q2, x1, qx) = (q1 + q, q2 + q * q, x1 + x, qx + q * x);
        }
        // sum(q (s q - o - x)) = 0 and sum(s q - o - x) = 0.
        let scale = (n * qx - q1 * x1) * reciprocal(n * q2 - q1 * q1);
        let offset = (scale * q1 - x1) / n;
        if scale > 0.0 && offset >= 0.0 {
            Line::new(scale, offset)
        } else if self.offset == 0.0 {
            // The best line through zero, of numbers that are not negative.
            Line::new(qx * reciprocal(q2), 0.0)
        } else {
            self
        }
    }

    /// The line of a sub-block.
    fn of(values: &[f32]) -> Line {
        let (least, most) = values.iter().fold((0f32, 0f32), |(a, b), &x| (a.min(x), b.max(x)));
        let line = |k: i8| Line::new((most - least) / (15.0 + DISTANCE * f32::from(k)), -least);
        let candidates = (-CANDIDATES..=CANDIDATES).map(|k| line(k).fit(values)).chain([line(0)]);
        let errors = candidates.map(|line| (line.error(values), line));
        errors.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(line(0), |(_, line)| line)
    }
}

/// The least sum of squared errors for each sub-block, whose scale and offset are then integers of 6 bits.
pub(super) fn q4_k(values: &[f32; SUPER]) -> [u8; 144] {
    let lines: [Line; 8] = from_fn(|s| Line::of(&values[32 * s..32 * (s + 1)]));
    let most = |of: fn(&Line) -> f32| lines.iter().map(of).fold(0.0, f32::max) / 63.0;
    let (d_bytes, d) = unit(most(|line| line.scale));
    let (m_bytes, m) = unit(most(|line| line.offset));
    let mut block = [0; 144];
    block[..2].copy_from_slice(&d_bytes);
    block[2..4].copy_from_slice(&m_bytes);
    for (s, line) in lines.iter().enumerate() {
        let integer = |part: f32, unit: f32| (part * reciprocal(unit)).round().clamp(0.0, 63.0) as u8;
        let (scale, offset) = (integer(line.scale, d), integer(line.offset, m));
        let packed = &mut block[4..16];
        match s {
            0..4 => {
                packed[s] |= scale;
                packed[s + 4] |= offset;
            }
            _ => {
                packed[s + 4] = scale & 15 | offset << 4;
                packed[s - 4] |= scale >> 4 << 6;
                packed[s] |= offset >> 4 << 6;
            }
        }
        let line = Line::new(d * f32::from(scale), m * f32::from(offset));
        for (i, &x) in values[32 * s..32 * (s + 1)].iter().enumerate() {
            put::<4, 32>(&mut block[16..], 32 * s + i, line.integer(x) as u8);
        }
    }
    block
}

/// The integer of a number, from -32 to 31.
fn signed(x: f32, inverse: f32) -> f32 {
    ((x * inverse).clamp(-32.0, 31.0) + 32.5) as i32 as f32 - 32.0
}

/// The scale of a sub-block of Q6_K: that with the least sum of squared errors for the integers of one of the candidates.
fn scale_of(values: &[f32]) -> f32 {
    let peak = peak(values);
    let fit = |k: i8| {
        let inverse = -(32.0 + DISTANCE * f32::from(k)) * reciprocal(peak);
        let (q2, qx) = values.iter().fold((0.0, 0.0), |(q2, qx), &x| {
            let q = signed(x, inverse);
            (q2 + q * q, qx + q * x)
        });
        // sum((s q - x)^2) = sum(x^2) - s sum(q x) for the best s.
        let scale = qx * reciprocal(q2);
        (scale * qx, scale)
    };
    (-CANDIDATES..=CANDIDATES).map(fit).max_by(|a, b| a.0.total_cmp(&b.0)).map_or(0.0, |(_, scale)| scale)
}

/// The least sum of squared errors for each sub-block, whose scale is then a signed byte.
pub(super) fn q6_k(values: &[f32; SUPER]) -> [u8; 210] {
    let scales: [f32; 16] = from_fn(|s| scale_of(&values[16 * s..16 * (s + 1)]));
    let (d_bytes, d) = unit(peak(&scales) / -128.0);
    let mut block = [0; 210];
    block[208..].copy_from_slice(&d_bytes);
    for (s, scale) in scales.iter().enumerate() {
        let scale = (scale * reciprocal(d)).round() as i8;
        block[192 + s] = scale as u8;
        let inverse = reciprocal(d * f32::from(scale));
        for (i, &x) in values[16 * s..16 * (s + 1)].iter().enumerate() {
            let q = (signed(x, inverse) + 32.0) as u8;
            put::<4, 64>(&mut block[..128], 16 * s + i, q);
            put::<2, 32>(&mut block[128..192], 16 * s + i, q >> 4);
        }
    }
    block
}

/// The scale is the largest magnitude, and each number the nearest of those of 4 bits.
pub(super) fn nf4(values: &[f32; 64]) -> [u8; 36] {
    let d = peak(values).abs();
    let inverse = reciprocal(d);
    let mut block = [0; 36];
    block[..4].copy_from_slice(&d.to_le_bytes());
    for (i, &x) in values.iter().enumerate() {
        let distance = |q: &usize| (NORMAL[*q] - x * inverse).abs();
        let q = (0..16).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0);
        block[4 + i / 2] |= (q as u8) << (4 * (1 - i % 2));
    }
    block
}
