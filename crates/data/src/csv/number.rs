//! Numbers as texts.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// The mark between whole numbers and their fractions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum Decimal {
    /// `1234.5`, and in groups `1,234.5`.
    #[default]
    Point,
    /// `1234,5`, and in groups `1.234,5`.
    Comma,
}

impl Decimal {
    /// The mark, and the one between groups of three digits.
    fn marks(self) -> [char; 2] {
        match self {
            Decimal::Point => ['.', ','],
            Decimal::Comma => [',', '.'],
        }
    }
}

/// The number that a text without blanks around it has.
pub(crate) fn number(text: &str, decimal: Decimal) -> Option<f64> {
    let [mark, group] = decimal.marks();
    if !text.contains([',', group]) {
        return text.parse().ok();
    }
    let (whole, fraction) = text.split_once(mark).map_or((text, None), |(whole, fraction)| (whole, Some(fraction)));
    let whole = if whole.contains(group) { ungrouped(whole, group)? } else { whole.to_string() };
    match fraction {
        Some(fraction) => format!("{whole}.{fraction}").parse().ok(),
        None => whole.parse().ok(),
    }
}

/// The digits of groups of three, of which the first may have fewer, with the sign before them.
fn ungrouped(text: &str, group: char) -> Option<String> {
    let digits = text.trim_start_matches(['+', '-']);
    let mut groups = digits.split(group);
    let are_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let is_first = |first: &str| (1..=3).contains(&first.len()) && !first.starts_with('0') && are_digits(first);
    let is_first = groups.next().is_some_and(is_first);
    let are_groups = groups.all(|part| part.len() == 3 && are_digits(part));
    (is_first && are_groups).then(|| text.replace(group, ""))
}

/// The decimal mark that a text must have, if it is a number. A mark before three digits may also divide groups.
pub(crate) fn mark_of(text: &str) -> Option<Decimal> {
    let is_of = |decimal: Decimal, other: Decimal| {
        let mark = decimal.marks()[0];
        text.contains(mark) && number(text, decimal).is_some() && number(text, other).is_none()
    };
    match () {
        () if is_of(Decimal::Point, Decimal::Comma) => Some(Decimal::Point),
        () if is_of(Decimal::Comma, Decimal::Point) => Some(Decimal::Comma),
        () => None,
    }
}

/// True for whole numbers that begin with a needless 0, such as postcodes: their digits are no amount.
pub(crate) fn is_code(text: &str) -> bool {
    text.len() > 1 && text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_either_mark_and_groups() {
        let point = |text| number(text, Decimal::Point);
        let comma = |text| number(text, Decimal::Comma);
        assert_eq!(
            (point("1.5"), point("-1e-3"), point("1,234.5"), point("12,345,678")),
            (Some(1.5), Some(-1e-3), Some(1234.5), Some(12_345_678.0))
        );
        assert_eq!(
            (comma("1,5"), comma("-1e-3"), comma("1.234,5"), comma("-12.345")),
            (Some(1.5), Some(-1e-3), Some(1234.5), Some(-12_345.0))
        );
        assert_eq!(
            (comma("0,25"), comma(",5"), comma("7"), comma("1,5e3")),
            (Some(0.25), Some(0.5), Some(7.0), Some(1500.0))
        );
        for text in ["", "a", "1,5", "1,23,456", "12,34.5", ",123", "1,2345", "1.2.3"] {
            assert_eq!(point(text), None, "{text}");
        }
        for text in ["", "a", "1.5", "1.2345", "1,2,3", "1,234.5", "192.168.0.1"] {
            assert_eq!(comma(text), None, "{text}");
        }
    }

    #[test]
    fn a_mark_before_three_digits_says_nothing() {
        for (text, mark) in [
            ("1.5", Some(Decimal::Point)),
            ("1,5", Some(Decimal::Comma)),
            ("1.234", None),
            ("1,234", None),
            ("0.1234", Some(Decimal::Point)),
            ("0.125", Some(Decimal::Point)),
            ("1.234,5", Some(Decimal::Comma)),
            ("1,234.5", Some(Decimal::Point)),
            ("12", None),
            ("a,b", None),
        ] {
            assert_eq!(mark_of(text), mark, "{text}");
        }
        assert!(is_code("01234") && !is_code("0") && !is_code("0.5") && !is_code("10"));
    }
}
