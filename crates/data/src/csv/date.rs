//! Dates, with a time of day or without.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// The order of the parts of a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "snake_case"))]
pub enum DateOrder {
    /// `2024-05-31`, as in ISO 8601, or `2024/05/31`.
    YearFirst,
    /// `31.05.2024`, `31/05/2024` or `31-05-2024`.
    DayFirst,
    /// `05/31/2024` or `05-31-2024`.
    MonthFirst,
}

impl DateOrder {
    /// All orders; the first of those that fit all dates of a column is taken.
    pub(crate) const ALL: [DateOrder; 3] = [DateOrder::YearFirst, DateOrder::MonthFirst, DateOrder::DayFirst];
}

/// A part of a date that a model sees as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum DatePart {
    /// The year of the common era.
    Year,
    /// The month, from 1.
    Month,
    /// The day of the month, from 1.
    Day,
    /// From 0 for Monday.
    Weekday,
    /// With its minutes as a fraction.
    Hour,
}

const DAY: i64 = 24 * 60;

/// A date as minutes since the start of 1970, by the clock of its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Date(pub i64);

impl Date {
    /// The date that a text without blanks around it has. A time may follow after a blank or a T: `14:30`, `14:30:05.5`, with `Z` or a distance from UTC,
    /// which is not added.
    pub(crate) fn parse(text: &str, order: DateOrder) -> Option<Date> {
        // Years have four digits: other texts are told apart quickly.
        if text.len() < 8 || !text.is_ascii() || !text.as_bytes()[0].is_ascii_digit() {
            return None;
        }
        let (date, time) = text.split_once(['T', ' ']).map_or((text, None), |(date, time)| (date, Some(time)));
        let separators: &[char] = match order {
            DateOrder::YearFirst | DateOrder::MonthFirst => &['-', '/'],
            DateOrder::DayFirst => &['-', '/', '.'],
        };
        let separator = date.chars().find(|c| !c.is_ascii_digit()).filter(|c| separators.contains(c))?;
        let mut parts = date.split(separator);
        let parts = [parts.next()?, parts.next()?, parts.next().filter(|_| parts.next().is_none())?];
        let [year, month, day] = match order {
            DateOrder::YearFirst => parts,
            DateOrder::DayFirst => [parts[2], parts[1], parts[0]],
            DateOrder::MonthFirst => [parts[2], parts[0], parts[1]],
        };
        let (year, month, day) = (digits(year, 4..=4)?, digits(month, 1..=2)?, digits(day, 1..=2)?);
        if !(1..=12).contains(&month) || !(1..=days_of(year, month)).contains(&day) {
            return None;
        }
        let minutes = time.map_or(Some(0), minutes)?;
        Some(Date(days_before(year, month, day) * DAY + minutes))
    }

    /// Year, month and day.
    pub(crate) fn civil(self) -> [i64; 3] {
        // The inverse of `days_before`.
        let z = self.0.div_euclid(DAY) + 719_468;
        let (era, day) = (z.div_euclid(146_097), z.rem_euclid(146_097));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let shifted = (5 * day + 2) / 153;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        [year + era * 400 + i64::from(month <= 2), month, day - (153 * shifted + 2) / 5 + 1]
    }

    /// A part as a number.
    pub(crate) fn part(self, part: DatePart) -> f32 {
        let [year, month, day] = self.civil();
        match part {
            DatePart::Year => year as f32,
            DatePart::Month => month as f32,
            DatePart::Day => day as f32,
            // 1970 began with a Thursday.
            DatePart::Weekday => (self.0.div_euclid(DAY) + 3).rem_euclid(7) as f32,
            DatePart::Hour => self.0.rem_euclid(DAY) as f32 / 60.0,
        }
    }

    /// True for a time of day other than the start of the day.
    pub(crate) fn has_time(self) -> bool {
        self.0.rem_euclid(DAY) != 0
    }
}

impl std::fmt::Display for Date {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [year, month, day] = self.civil();
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

/// A number of so many digits.
fn digits(text: &str, count: std::ops::RangeInclusive<usize>) -> Option<i64> {
    let is_number = count.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

/// The minutes of a time of day.
fn minutes(text: &str) -> Option<i64> {
    let text = text.trim_end_matches("UTC").trim_end_matches('Z').trim_end();
    let end = text.find(['+', '-']).unwrap_or(text.len());
    let (time, distance) = text.split_at(end);
    let is_distance =
        distance.is_empty() || (distance.len() >= 3 && distance[1..].bytes().all(|b| b.is_ascii_digit() || b == b':'));
    let mut parts = time.trim_end().split(':');
    let (hour, minute) = (digits(parts.next()?, 1..=2)?, digits(parts.next()?, 2..=2)?);
    let seconds = parts.next().map_or(Some(0.0), |text| text.parse::<f64>().ok())?;
    let is_time = hour < 24 && minute < 60 && (0.0..61.0).contains(&seconds) && parts.next().is_none();
    (is_time && is_distance).then_some(hour * 60 + minute)
}

fn days_of(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since the start of 1970, in the calendar of today. Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", days_from_civil.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let day = (153 * shifted + 2) / 5 + day - 1;
    era * 146_097 + year * 365 + year / 4 - year / 100 + day - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_have_parts() {
        let date = Date::parse("2024-02-29T14:30:05.5Z", DateOrder::YearFirst).unwrap();
        assert_eq!(date.to_string(), "2024-02-29");
        let parts = [DatePart::Year, DatePart::Month, DatePart::Day, DatePart::Weekday, DatePart::Hour];
        assert_eq!(parts.map(|part| date.part(part)), [2024.0, 2.0, 29.0, 3.0, 14.5]);
        assert!(date.has_time() && !Date::parse("1970-01-01", DateOrder::YearFirst).unwrap().has_time());
        assert_eq!(Date::parse("1970-01-01", DateOrder::YearFirst), Some(Date(0)));
        for days in (-800_000..800_000).step_by(997) {
            let [year, month, day] = Date(days * DAY).civil();
            assert_eq!(days_before(year, month, day), days);
        }
    }

    #[test]
    fn the_order_decides_what_a_date_is() {
        let read = |text| DateOrder::ALL.map(|order| Date::parse(text, order).map(|date| date.to_string()));
        let some = |text: &str| Some(text.to_string());
        assert_eq!(read("2024/5/1"), [some("2024-05-01"), None, None]);
        assert_eq!(read("5/1/2024"), [None, some("2024-05-01"), some("2024-01-05")]);
        assert_eq!(read("31.12.1999 23:59"), [None, None, some("1999-12-31")]);
        assert_eq!(read("12-31-1999 7:05:00+01:00"), [None, some("1999-12-31"), None]);
        for text in [
            "",
            "2023-02-29",
            "2024-13-01",
            "24-01-01",
            "2024-01",
            "2024-01-01-01",
            "2024-01-01 25:00",
            "2024-01-01 noon",
            "12.5",
            "ä024-01-01",
        ] {
            assert_eq!(read(text), [None, None, None], "{text}");
        }
    }
}
