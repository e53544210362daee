//! Comparison of tensors with expected values.

use isograd_core::backend::round_to_odd;
use isograd_core::{DType, Tensor};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The largest distance of results from the expected values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distance {
    /// In units of the bound. Up to 1 is allowed.
    pub bounds: f64,
    /// In units of the last place, of elements that are not near 0.
    pub ulps: f64,
}

impl Distance {
    /// The maximum of both, in each unit.
    pub fn or(self, other: Distance) -> Distance {
        Distance { bounds: self.bounds.max(other.bounds), ulps: self.ulps.max(other.ulps) }
    }
}

/// A mistake.
#[derive(Clone, Debug, PartialEq)]
pub struct Miss {
    /// A description.
    pub why: String,
    /// The distance; infinite if there is no bound.
    pub distance: Distance,
}

impl Miss {
    /// Two mistakes as one.
    pub fn and(self, other: Miss) -> Miss {
        Miss { why: format!("{}; {}", self.why, other.why), distance: self.distance.or(other.distance) }
    }

    /// The mistake with another description.
    pub fn told(self, words: impl FnOnce(&str) -> String) -> Miss {
        Miss { why: words(&self.why), ..self }
    }
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl From<String> for Miss {
    fn from(why: String) -> Miss {
        Miss { why, distance: Distance { bounds: f64::INFINITY, ulps: 0.0 } }
    }
}

/// Unit roundoff and smallest normal number of a dtype. For f16 the smallest subnormal, because f16 is not flushed.
pub fn precision(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 => (2f64.powi(-53), f64::MIN_POSITIVE),
        DType::F16 => (2f64.powi(-11), 6e-8),
        DType::BF16 => (2f64.powi(-8), f32::MIN_POSITIVE as f64),
        _ => (2f64.powi(-24), f32::MIN_POSITIVE as f64),
    }
}

/// `|y - r|` in units of the last place of `r`.
fn ulps(y: f64, r: f64, dtype: DType) -> f64 {
    let (u, least) = precision(dtype);
    let size = r.abs().max(least);
    (y - r).abs() / (2.0 * u * 2f64.powi(size.log2().floor() as i32))
}

/// The number of elements from which errors must cancel: their mean must be below a tenth of the mean bound. This detects
/// truncation instead of rounding to nearest, which is within every bound.
const MANY: usize = 10_000;

/// The quotient of a value and its bound below which the value is near 0: its terms have cancelled, so that units of its last place say
/// nothing about them.
const NEAR_ZERO: f64 = 64.0;

/// Compares `y` with the exact values `r`, element by element. NaN and infinities must be at the positions where `r`, rounded to
/// the dtype of the results, has them. A bound of 0 requires the rounded value itself. The error names the first wrong element, and
/// has the number of wrong elements and the largest distance.
pub fn measure(y: &[f64], r: &[f64], dtype: DType, bound: impl Fn(usize) -> f64) -> Result<Distance, Miss> {
    if y.len() != r.len() {
        return Err(format!("{} elements, expected {}", y.len(), r.len()).into());
    }
    let mut worst = Distance::default();
    let (mut first, mut count) = (None, 0);
    for (i, (&y, &r)) in y.iter().zip(r).enumerate() {
        let bound = bound(i);
        let bounds = off(y, r, dtype, bound);
        if bounds == 0.0 {
            continue;
        }
        if bounds > 1.0 {
            count += 1;
            first.get_or_insert_with(|| format!("element {i}: got {y:e}, expected {r:e} within {bound:e}"));
        }
        let is_near_zero = bound > r.abs() / NEAR_ZERO;
        worst = worst.or(Distance { bounds, ulps: if is_near_zero { 0.0 } else { ulps(y, r, dtype) } });
    }
    let why = first.map(|first| format!("{first}; {count} of {} elements are off", y.len()));
    why.map_or(Ok(worst), |why| Err(Miss { why, distance: worst }))
}

/// The distance of `y` from `r` in units of the bound. It is 0 if y is r rounded, also if that overflows; infinite if exactly one
/// of them is NaN.
fn off(y: f64, r: f64, dtype: DType, bound: f64) -> f64 {
    let (rounded, bounds) = (round(r, dtype), (y - r).abs() / bound);
    match y == rounded || (y.is_nan() && rounded.is_nan()) {
        true => 0.0,
        false if bounds.is_nan() || !rounded.is_finite() => f64::INFINITY,
        false => bounds,
    }
}

/// Checks that the errors of many elements cancel.
pub fn cancels(y: &[f64], r: &[f64], bounds: &[f64]) -> Result<(), Miss> {
    let finite = || y.iter().zip(r).zip(bounds).filter(|((y, r), _)| y.is_finite() && r.is_finite());
    let (n, error) = (y.len() as f64, finite().map(|((y, r), _)| y - r).sum::<f64>());
    let most = 0.1 * finite().map(|(_, bound)| bound).sum::<f64>();
    if y.len() < MANY || most == 0.0 || error.abs() < most {
        return Ok(());
    }
    let (mean, most) = (error / n, most / n);
    let why =
        format!("the errors do not cancel: their mean over {n} elements is {mean:e}, at most {most:e} is allowed");
    Err(Miss { why, distance: Distance { bounds: error.abs() / (n * most), ulps: 0.0 } })
}

/// The largest distance of `y` from the exact values in units of the bounds, and the index of its element; as [`measure`].
pub fn largest(y: &[f64], r: &[f64], dtype: DType, bound: impl Fn(usize) -> f64) -> (f64, usize) {
    let error = |i: usize| off(y[i], r[i], dtype, bound(i));
    (0..y.len()).map(|i| (error(i), i)).fold((0.0, 0), |worst, next| if next.0 > worst.0 { next } else { worst })
}

/// The nearest value of a dtype.
fn round(v: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F64 => v,
        DType::F16 => isograd_core::f16::from_f32(round_to_odd(v)).to_f64(),
        DType::BF16 => isograd_core::bf16::from_f32(round_to_odd(v)).to_f64(),
        _ => v as f32 as f64,
    }
}

/// Checks `|got - expected| <= bound(expected)` for each element, with NaN and infinities at the same positions. The message names
/// the first element that differs.
pub fn close_values(what: &str, got: &[f64], expected: &[f64], bound: impl Fn(f64) -> f64) -> Result<Distance, Miss> {
    measure(got, expected, DType::F64, |i| bound(expected[i])).map_err(|miss| miss.told(|e| format!("{what}, {e}")))
}

/// Checks that two tensors have the same bits.
pub fn same_bits(what: &str, got: &Tensor, expected: &Tensor) -> Result<Distance, Miss> {
    let describe = |t: &Tensor| format!("{} {}", t.dtype(), t.shape());
    if describe(got) != describe(expected) {
        return Err(format!("{what} is {}, expected {}", describe(got), describe(expected)).into());
    }
    let bytes = |t: &Tensor| t.to_bytes().map_err(|e| e.to_string());
    let (y, r) = (bytes(got)?, bytes(expected)?);
    if y == r {
        return Ok(Distance::default());
    }
    let size = got.dtype().size();
    let count = y.chunks(size).zip(r.chunks(size)).filter(|(y, r)| y != r).count();
    let elements = got.numel();
    Err(format!("{what}: {count} of {elements} elements are off: got {got}, expected the same bits as {expected}")
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_once() {
        // Just above the midpoint of two numbers; the lower one is even.
        assert_eq!(round(0.822265863418579, DType::BF16), 0.82421875);
        assert_eq!(round(1.0 + 2f64.powi(-11) + 2f64.powi(-40), DType::F16), 1.0 + 2f64.powi(-10));
        assert_eq!(round(1.0 + 2f64.powi(-11), DType::F16), 1.0);
        assert_eq!(round(-1.0 - 2f64.powi(-8) - 2f64.powi(-50), DType::BF16), -1.0 - 2f64.powi(-7));
        assert_eq!(round(65519.99999, DType::F16), 65504.0);
        assert_eq!([1e39, 65520.0].map(|v| round(v, DType::F16)), [f64::INFINITY; 2]);
        assert_eq!(round(1e-300, DType::BF16), 0.0);
        assert!(round(f64::NAN, DType::BF16).is_nan());
    }

    #[test]
    fn what_is_cut_off_is_told_from_what_is_rounded() {
        let exact: Vec<f64> = (0..MANY).map(|i| 1.0 + i as f64 / MANY as f64).collect();
        let rounded: Vec<f64> = exact.iter().map(|&r| round(r, DType::F16)).collect();
        let cut: Vec<f64> = exact.iter().map(|r| (r * 1024.0).floor() / 1024.0).collect();
        let bounds: Vec<f64> = exact.iter().map(|r| 3.0 * precision(DType::F16).0 * r).collect();
        assert!(cancels(&rounded, &exact, &bounds).is_ok());
        assert!(measure(&cut, &exact, DType::F16, |i| bounds[i]).is_ok());
        assert!(cancels(&cut, &exact, &bounds).unwrap_err().why.contains("do not cancel"));
        let few = MANY - 1;
        assert!(cancels(&cut[..few], &exact[..few], &bounds[..few]).is_ok());
    }
}
