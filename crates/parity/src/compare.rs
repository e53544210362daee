//! Comparison of tensors with expected values.

use isograd_core::{DType, Tensor};
use serde::{Deserialize, Serialize};

/// How far results are at most from what is expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distance {
    /// In units of the bound: up to 1 is allowed.
    pub bounds: f64,
    /// In units of the last place.
    pub ulps: f64,
}

impl Distance {
    /// The larger of each.
    pub fn or(self, other: Distance) -> Distance {
        Distance { bounds: self.bounds.max(other.bounds), ulps: self.ulps.max(other.ulps) }
    }
}

/// Unit roundoff and smallest normal number of a dtype (of f16 the smallest subnormal, which is not flushed).
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

/// Of so many elements the errors must cancel: their mean is below a tenth of the mean bound. Cutting off where one should
/// round to nearest is within every bound.
const MANY: usize = 10_000;

/// Measures `y` by what is exact, `r`, element by element; NaN and infinities must sit where `r` has them once it is
/// rounded to the dtype of the results. A bound of 0 demands the rounded value itself. Where there are [`MANY`] elements, their
/// mean error is measured, too. The error names the first element that is off.
pub fn measure(y: &[f64], r: &[f64], dtype: DType, bound: impl Fn(usize) -> f64) -> Result<Distance, String> {
    if y.len() != r.len() {
        return Err(format!("{} elements, expected {}", y.len(), r.len()));
    }
    let mut worst = Distance::default();
    let (mut errors, mut bounds_of_all) = (0.0, 0.0);
    for (i, (&y, &r)) in y.iter().zip(r).enumerate() {
        let (rounded, bound) = (round(r, dtype), bound(i));
        if y.is_finite() && r.is_finite() {
            errors += y - r;
            bounds_of_all += bound;
        }
        if y == rounded || (y.is_nan() && rounded.is_nan()) {
            // Also where r is finite and too large for the dtype.
            continue;
        }
        let bounds = (y - r).abs() / bound;
        if !rounded.is_finite() || bounds.is_nan() || bounds > 1.0 {
            return Err(format!("element {i}: got {y:e}, expected {r:e} within {bound:e}"));
        }
        worst = worst.or(Distance { bounds, ulps: ulps(y, r, dtype) });
    }
    if y.len() >= MANY && bounds_of_all > 0.0 && errors.abs() >= 0.1 * bounds_of_all {
        let n = y.len() as f64;
        let (mean, most) = (errors / n, 0.1 * bounds_of_all / n);
        return Err(format!(
            "the errors do not cancel: their mean over {n} elements is {mean:e}, at most {most:e} is allowed"
        ));
    }
    Ok(worst)
}

/// How far `y` is at most from what is exact, in units of the bounds, and at which element; as [`measure`], which stops at
/// what is not allowed. Infinite where one is no number and the other is.
pub fn largest(y: &[f64], r: &[f64], dtype: DType, bound: impl Fn(usize) -> f64) -> (f64, usize) {
    let error = |i: usize| {
        let rounded = round(r[i], dtype);
        let bounds = (y[i] - r[i]).abs() / bound(i);
        match y[i] == rounded || (y[i].is_nan() && rounded.is_nan()) {
            true => 0.0,
            false if bounds.is_nan() || !rounded.is_finite() => f64::INFINITY,
            false => bounds,
        }
    };
    (0..y.len()).map(|i| (error(i), i)).fold((0.0, 0), |worst, next| if next.0 > worst.0 { next } else { worst })
}

/// The nearest value of a dtype.
fn round(v: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F64 => v,
        DType::F16 => isograd_core::f16::from_f64(v).to_f64(),
        DType::BF16 => isograd_core::bf16::from_f64(v).to_f64(),
        _ => v as f32 as f64,
    }
}

/// Checks `|got - expected| <= bound(expected)` element by element, with NaN and infinities at the same places; the
/// message names the first element that differs.
pub fn close_values(what: &str, got: &[f64], expected: &[f64], bound: impl Fn(f64) -> f64) -> Result<Distance, String> {
    measure(got, expected, DType::F64, |i| bound(expected[i])).map_err(|e| format!("{what}, {e}"))
}

/// Checks that two tensors are the same bit for bit.
pub fn same_bits(what: &str, got: &Tensor, expected: &Tensor) -> Result<Distance, String> {
    let describe = |t: &Tensor| format!("{} {}", t.dtype(), t.shape());
    if describe(got) != describe(expected) {
        return Err(format!("{what} is {}, expected {}", describe(got), describe(expected)));
    }
    let bytes = |t: &Tensor| t.to_bytes().map_err(|e| e.to_string());
    if bytes(got)? != bytes(expected)? {
        return Err(format!("{what}: got {got}, expected the same bits as {expected}"));
    }
    Ok(Distance::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_is_told_from_what_is_rounded() {
        let exact: Vec<f64> = (0..MANY).map(|i| 1.0 + i as f64 / MANY as f64).collect();
        let rounded: Vec<f64> = exact.iter().map(|&r| round(r, DType::F16)).collect();
        let cut: Vec<f64> = exact.iter().map(|r| (r * 1024.0).floor() / 1024.0).collect();
        let bound = |i: usize| 3.0 * precision(DType::F16).0 * exact[i];
        assert!(measure(&rounded, &exact, DType::F16, bound).is_ok());
        assert!(measure(&cut, &exact, DType::F16, bound).unwrap_err().contains("do not cancel"));
        let few = MANY - 1;
        assert!(measure(&cut[..few], &exact[..few], DType::F16, bound).is_ok());
    }
}
