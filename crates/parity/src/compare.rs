//! Comparison of tensors with expected values.

use isograd_core::Tensor;

/// Checks `|got - expected| <= bound(expected)` element by element, with NaN and infinities at the same places; the
/// message names the first element that differs.
pub fn close_values(what: &str, got: &[f64], expected: &[f64], bound: impl Fn(f64) -> f64) -> Result<(), String> {
    if got.len() != expected.len() {
        return Err(format!("{what} has {} elements, expected {}", got.len(), expected.len()));
    }
    for (i, (&g, &e)) in got.iter().zip(expected).enumerate() {
        let same = if e.is_finite() { (g - e).abs() <= bound(e) } else { g == e || (g.is_nan() && e.is_nan()) };
        if !same {
            return Err(format!("{what}, element {i}: got {g:e}, expected {e:e}"));
        }
    }
    Ok(())
}

/// Checks that two tensors are the same bit for bit.
pub fn same_bits(what: &str, got: &Tensor, expected: &Tensor) -> Result<(), String> {
    let describe = |t: &Tensor| format!("{} {}", t.dtype(), t.shape());
    if describe(got) != describe(expected) {
        return Err(format!("{what} is {}, expected {}", describe(got), describe(expected)));
    }
    let bytes = |t: &Tensor| t.to_bytes().map_err(|e| e.to_string());
    if bytes(got)? != bytes(expected)? {
        return Err(format!("{what}: got {got}, expected the same bits as {expected}"));
    }
    Ok(())
}
