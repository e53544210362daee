//! Values of options.

use isograd::DType;

/// A number of at least 1.
pub fn count(s: &str) -> Result<usize, String> {
    match s.parse() {
        Ok(0) | Err(_) => Err(format!("{s:?} is not a number of at least 1")),
        Ok(n) => Ok(n),
    }
}

/// A finite number of at least 0.
pub fn rate(s: &str) -> Result<f64, String> {
    match s.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.0 => Ok(rate),
        _ => Err(format!("{s:?} is not a number of at least 0")),
    }
}

/// A character of one byte, or the name of the tab.
pub fn delimiter(s: &str) -> Result<char, String> {
    match s.as_bytes() {
        b"tab" | b"\\t" => Ok('\t'),
        [byte] if byte.is_ascii() && !b"\"\r\n".contains(byte) => Ok(char::from(*byte)),
        _ => Err(format!("{s:?} is no single character, and not `tab`")),
    }
}

/// A dtype of floats.
pub fn float(s: &str) -> Result<DType, String> {
    match s.parse::<DType>() {
        Ok(dtype) if dtype.is_float() => Ok(dtype),
        _ => Err(format!("{s:?} is none of f32, f64, f16, bf16")),
    }
}

/// A number from 0 to 1.
pub fn share(s: &str) -> Result<f64, String> {
    match s.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("{s:?} is not a number from 0 to 1")),
    }
}

/// A float dtype of 16 bits.
pub fn half(s: &str) -> Result<DType, String> {
    match s.parse::<DType>() {
        Ok(dtype @ (DType::F16 | DType::BF16)) => Ok(dtype),
        _ => Err(format!("{s:?} is none of f16, bf16")),
    }
}
