//! Products of floats, of which no part leaves the range.

use crate::access::{Acc, Source, Strided, Target, load, store, with_acc};
use crate::memory::scratch;
use crate::reduction::reduce::{Results, Rows, SEGMENT, results};
use isograd_core::{Call, DType, Error, Result, host};
use rayon::prelude::*;

/// A number as a fraction, from 0.5 to 1, and an exponent of 2. 0, infinity and NaN are fractions without an exponent.
#[derive(Clone, Copy)]
pub struct Scaled {
    fraction: f64,
    exponent: i64,
}

/// The bits of the exponent of an f64, and the exponent of numbers from 0.5 to 1.
const EXPONENT: u64 = 0x7ff << 52;
const HALF: u64 = 1022;
/// The power of 2 by which a subnormal number becomes a normal one.
const SUBNORMAL: i64 = 54;
/// Factors of f32 whose product is in the range of f64.
const NARROW_FACTORS: usize = 6;

impl Scaled {
    pub const ONE: Scaled = Scaled { fraction: 0.5, exponent: 1 };

    #[inline]
    fn new(v: f64, exponent: i64) -> Scaled {
        let bits = v.to_bits();
        match (bits & EXPONENT) >> 52 {
            0 if v != 0.0 => Scaled::new(v * 2f64.powi(SUBNORMAL as i32), exponent - SUBNORMAL),
            0 | 0x7ff => Scaled { fraction: v, exponent: 0 },
            shift => Scaled {
                fraction: f64::from_bits(bits & !EXPONENT | HALF << 52),
                exponent: exponent + shift as i64 - HALF as i64,
            },
        }
    }

    #[inline]
    pub fn times(self, other: Scaled) -> Scaled {
        Scaled::new(self.fraction * other.fraction, self.exponent + other.exponent)
    }

    /// The number: 0 or infinite out of range.
    pub fn value(self) -> f64 {
        let (mut v, mut exponent) = (self.fraction, self.exponent.clamp(-2200, 2200) as i32);
        while exponent != 0 {
            let step = exponent.clamp(-1000, 1000);
            v *= 2f64.powi(step);
            exponent -= step;
        }
        v
    }
}

fn scaled<A: Acc>(v: A) -> Scaled {
    Scaled::new(v.to_f64(), 0)
}

fn product<A: Acc>(factors: &[A]) -> Scaled {
    let at_once = if A::DTYPE == DType::F32 { NARROW_FACTORS } else { 1 };
    let several = |factors: &[A]| Scaled::new(factors.iter().map(|v| v.to_f64()).product(), 0);
    factors.chunks(at_once).fold(Scaled::ONE, |so_far, factors| so_far.times(several(factors)))
}

/// The products of rows of floats.
pub fn products<A: Acc>(op: &'static str, rows: &Rows<'_>) -> Result<Results<A>> {
    let segments = rows.count.div_ceil(SEGMENT).max(1);
    let of_segment = |i: usize| {
        let (row, start, mut all) = (i / segments, i % segments * SEGMENT, Scaled::ONE);
        let end = rows.count.min(start + SEGMENT);
        rows.blocks(row, start, end, |_, block: &[A]| all = all.times(product(block)));
        all
    };
    let mut parts = host::repeated(op, Scaled::ONE, segments * rows.rows)?;
    let each = |(i, part): (usize, &mut Scaled)| *part = of_segment(i);
    match rows.is_large() {
        false => parts.iter_mut().enumerate().for_each(each),
        true => parts.par_iter_mut().enumerate().for_each(each),
    }
    let mut y = results(op, A::from_i64(1), rows.rows)?;
    for (y, parts) in y.iter_mut().zip(parts.chunks(segments)) {
        *y = A::from_f64(parts.iter().fold(Scaled::ONE, |all, part| all.times(*part)).value());
    }
    Ok(y)
}

/// The running product of floats.
pub fn running<A: Acc>(x: &mut [A]) {
    let mut so_far = Scaled::ONE;
    for v in x {
        so_far = so_far.times(scaled(*v));
        *v = A::from_f64(so_far.value());
    }
}

/// The gradients of products of rows: dx = dy (product of the other factors).
pub fn backward(call: &Call<'_>) -> Result<()> {
    let [x, dy] = [Source::new(&call.inputs[0])?, Source::new(&call.inputs[1])?];
    let mut dx = Target::new(&call.outputs[0])?;
    with_acc!(x.dtype, backward_of(call, [&x, &dy], &mut dx))
}

fn backward_of<A: Acc>(call: &Call<'_>, [x, dy]: [&Source<'_>; 2], dx: &mut Target<'_>) -> Result<()> {
    let (layout, gradients, dtype) = (Strided::new(x.layout), Strided::new(dy.layout), dx.dtype);
    let count = x.layout.shape().last().copied().unwrap_or(1);
    let of_row = |(row, bytes): (usize, &mut [u8])| {
        let (mut factors, mut dy_of_row) = (scratch::<A>(call, count)?, [A::from_i64(0)]);
        load(x.view(), &layout, row * count, &mut factors);
        load(dy.view(), &gradients, row, &mut dy_of_row);
        let mut after = host::repeated(call.op, Scaled::ONE, count + 1)?;
        (0..count).rev().for_each(|i| after[i] = after[i + 1].times(scaled(factors[i])));
        let mut before = scaled(dy_of_row[0]);
        for (i, v) in factors.iter_mut().enumerate() {
            let factor = scaled(*v);
            *v = A::from_f64(before.times(after[i + 1]).value());
            before = before.times(factor);
        }
        store(&factors, dtype, bytes);
        Ok::<_, Error>(())
    };
    dx.elements().par_chunks_mut(count * dtype.size()).enumerate().try_for_each(of_row)
}
