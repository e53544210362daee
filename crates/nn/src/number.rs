//! Ranges of numeric options, checked in one place.

use isograd_core::{DType, Error, Result, bf16, f16};
use std::fmt;

/// The range of an option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Range {
    /// Any finite number.
    Finite,
    /// Finite, from 0 on.
    AtLeast0,
    /// Finite, up to 0.
    AtMost0,
    /// Finite, from this on.
    AtLeast(f64),
    /// Finite, and above this.
    Above(f64),
    /// From 0 on; infinity means no bound.
    Bound,
    /// A bound above 0.
    BoundAbove0,
    /// From 0 to below 1.
    Rate,
    /// From 0 to 1.
    Share,
    /// Above 0 and below 1.
    Between0And1,
    /// One of these numbers, which encode something else.
    OneOf(&'static [f64]),
    /// A whole number from the first to the second.
    Count(f64, f64),
}

/// The range of a flag that is saved as a number.
pub(crate) const FLAG: Range = Range::OneOf(&[0.0, 1.0]);

impl Range {
    fn has(self, v: f64) -> bool {
        match self {
            Range::Finite => v.is_finite(),
            Range::AtLeast0 => v.is_finite() && v >= 0.0,
            Range::AtMost0 => v.is_finite() && v <= 0.0,
            Range::AtLeast(low) => v.is_finite() && v >= low,
            Range::Above(low) => v.is_finite() && v > low,
            Range::Bound => v >= 0.0,
            Range::BoundAbove0 => v > 0.0,
            Range::Rate => (0.0..1.0).contains(&v),
            Range::Share => (0.0..=1.0).contains(&v),
            Range::Between0And1 => v > 0.0 && v < 1.0,
            Range::OneOf(all) => all.contains(&v),
            Range::Count(low, high) => v.fract() == 0.0 && (low..=high).contains(&v),
        }
    }

    /// True if a number of the range is still in the range after rounding. A rate may round to 1, because its difference from 1 is
    /// computed before. Counts are not rounded.
    fn has_rounded(self, v: f64) -> bool {
        matches!(self, Range::Rate | Range::OneOf(_) | Range::Count(..)) || self.has(v)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Range::Finite => f.write_str("a finite number"),
            Range::AtLeast0 => f.write_str("a finite number of at least 0"),
            Range::AtMost0 => f.write_str("a finite number of at most 0"),
            Range::AtLeast(low) => write!(f, "a finite number of at least {low}"),
            Range::Above(low) => write!(f, "a finite number above {low}"),
            Range::Bound => f.write_str("at least 0"),
            Range::BoundAbove0 => f.write_str("above 0"),
            Range::Rate => f.write_str("0 to below 1"),
            Range::Share => f.write_str("0 to 1"),
            Range::Between0And1 => f.write_str("above 0 and below 1"),
            Range::OneOf(all) => write!(f, "one of {all:?}"),
            Range::Count(low, high) => write!(f, "{low} to {high}"),
        }
    }
}

/// Checks the options of an op, or of another object that errors name. Its arithmetic is in `dtype`.
#[derive(Clone, Copy)]
pub(crate) struct Checks {
    pub op: &'static str,
    pub dtype: DType,
}

impl Checks {
    /// Checks that the number is in the range, also after rounding to the dtype. Errors: `Attr`.
    pub fn number(self, name: &str, value: f64, range: Range) -> Result<()> {
        if range.has(value) && range.has_rounded(rounded(value, self.dtype)) {
            return Ok(());
        }
        // The dtype is named if only the rounded number is out of range.
        let of = if range.has(value) { format!(" in {}", self.dtype) } else { String::new() };
        Err(Error::attr(self.op, format!("{name} is {value:?}, expected {range}{of}")))
    }
}

fn rounded(v: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F32 => v as f32 as f64,
        DType::F16 => f16::from_f64(v).to_f64(),
        DType::BF16 => bf16::from_f64(v).to_f64(),
        _ => v,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_that_of_the_number_and_of_what_it_is_rounded_to() {
        let check = |v, range, dtype| Checks { op: "test", dtype }.number("v", v, range);
        assert!(check(1e300, Range::Finite, DType::F64).is_ok());
        let error = check(1e300, Range::Finite, DType::F32).unwrap_err();
        assert_eq!(error.message(), "v is 1e300, expected a finite number in f32");
        assert_eq!(
            check(-0.5, Range::AtLeast0, DType::F32).unwrap_err().message(),
            "v is -0.5, expected a finite number of at least 0"
        );
        assert!(check(1e-300, Range::Above(0.0), DType::F32).is_err());
        assert!(check(1e5, Range::Finite, DType::F16).is_err() && check(1e5, Range::Finite, DType::BF16).is_ok());
        assert!(
            check(1.0 - 1e-12, Range::Rate, DType::F32).is_ok()
                && check(1.0 - 1e-12, Range::Between0And1, DType::F32).is_err()
        );
        assert!(
            check(f64::INFINITY, Range::Bound, DType::F32).is_ok()
                && check(f64::NAN, Range::Bound, DType::F32).is_err()
        );
        for range in [
            Range::Finite,
            Range::AtLeast0,
            Range::Above(0.0),
            Range::Bound,
            Range::BoundAbove0,
            Range::Rate,
            Range::Share,
            Range::Between0And1,
            FLAG,
            Range::Count(0.0, 9.0),
        ] {
            assert!(check(f64::NAN, range, DType::F64).is_err(), "{range}");
        }
        assert!(
            check(2.5, Range::Count(1.0, 99.0), DType::F32).is_err()
                && check(2.0, Range::Count(1.0, 99.0), DType::F32).is_ok()
        );
    }
}
