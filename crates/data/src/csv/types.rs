//! The types of columns, by what their cells have in common.

use super::Column;
use super::date::{Date, DateOrder};
use super::number::{Decimal, is_code, mark_of};
use super::records::{Cell, Row, texts};
use crate::file::invalid;
use isograd_core::Result;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum ColumnType {
    /// Numbers.
    Number,
    /// Texts of which most come several times.
    Category,
    /// Dates, with a time of day or without.
    Date,
    /// Texts of which most come once; ignored.
    Text,
    /// A name or a number for each row; ignored.
    Identifier,
    /// No values at all; ignored.
    Empty,
}

impl ColumnType {
    /// False for columns that a model does not see.
    pub fn is_feature(self) -> bool {
        matches!(self, ColumnType::Number | ColumnType::Category | ColumnType::Date)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            ColumnType::Number => "number",
            ColumnType::Category => "category",
            ColumnType::Date => "date",
            ColumnType::Text => "text",
            ColumnType::Identifier => "identifier",
            ColumnType::Empty => "empty",
        }
    }
}

/// The share of a column's values that are numbers or dates, if it is a column of these. The others count as missing.
const PURE: f64 = 0.95;
/// So many different texts are categories in any table.
const FEW: usize = 10;
/// More different texts are categories if each comes so often, in the mean.
const REPEATED: usize = 4;
/// Different numbers that are class indices in any table, and the rows of each in tables with more.
const FEW_CLASSES: usize = 20;
const REPEATED_CLASSES: usize = 50;
/// A table with fewer rows has no identifiers.
const LEAST_ROWS: usize = 20;
/// Whole numbers from this on are not taken for class indices, unless a caller says so.
pub const MAX_GUESSED: i64 = 1000;
/// Different values that are counted, at most; those of numbers.
const COUNTED: usize = 1 << 16;
const COUNTED_NUMBERS: usize = 1 << 10;

/// Counts of the cells of a column, by their kinds.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    pub rows: usize,
    pub missing: usize,
    /// Cells that are numbers with either mark.
    numbers: [usize; 2],
    /// Cells that are numbers only with one of the marks.
    marks: [usize; 2],
    /// There are numbers with a comma.
    has_commas: bool,
    /// Numbers whose first digit is a needless 0.
    codes: usize,
    /// Whole numbers, and those that can be guessed to be class indices.
    whole: usize,
    indices: usize,
    /// Whole numbers that are one more than that of the row before. The first row may be observed last.
    successors: usize,
    previous: Option<f32>,
    /// Dates in each order, and those with a slash.
    dates: [usize; 3],
    slashes: usize,
    /// Texts with a blank within them.
    blanks: usize,
    /// Hashes of different values.
    different: HashSet<u64>,
    /// There are more of them than were counted.
    is_uncounted: bool,
    /// The cell of the first line comes again.
    pub has_first_again: bool,
    /// The name says that the numbers are those of rows.
    is_named_identifier: bool,
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn place(decimal: Decimal) -> usize {
    decimal as usize
}

impl Observed {
    /// A column whose first line has this cell, which may be its name.
    pub(crate) fn new(first: &str) -> Observed {
        let lower = first.to_lowercase();
        let is_named_identifier = lower == "id"
            || lower == "uuid"
            || first.ends_with("Id")
            || first.ends_with("ID")
            || ["_id", " id", "-id"].iter().any(|end| lower.ends_with(end));
        Observed { is_named_identifier, ..Observed::default() }
    }

    /// Takes a cell of the next row.
    pub(crate) fn add(&mut self, cell: Cell<'_>, first: Option<&str>) {
        self.rows += 1;
        if cell.is_missing() {
            self.missing += 1;
            return;
        }
        let text = cell.text();
        let [point, comma] = [Decimal::Point, Decimal::Comma].map(|decimal| cell.number(decimal));
        for (count, number) in self.numbers.iter_mut().zip([point, comma]) {
            *count += usize::from(number.is_some());
        }
        match point.or(comma) {
            Some(number) => self.add_number(number, &text),
            None => {
                for (count, order) in self.dates.iter_mut().zip(DateOrder::ALL) {
                    *count += usize::from(Date::parse(&text, order).is_some());
                }
                self.slashes += usize::from(text.contains('/'));
                self.blanks += usize::from(text.contains(char::is_whitespace));
            }
        }
        self.has_first_again |= first == Some(&*text);
        self.count(&text);
    }

    fn add_number(&mut self, number: f32, text: &str) {
        if let Some(decimal) = mark_of(text) {
            self.marks[place(decimal)] += 1;
        }
        self.has_commas |= text.contains(',');
        self.codes += usize::from(is_code(text));
        if number.fract() == 0.0 {
            self.whole += 1;
            self.indices += usize::from((0.0..MAX_GUESSED as f32).contains(&number));
            self.successors += usize::from(self.previous.is_some_and(|previous| number == previous + 1.0));
        }
        self.previous = Some(number);
    }

    fn count(&mut self, text: &str) {
        let are_numbers = self.numbers.iter().any(|count| *count + self.missing == self.rows);
        let limit = if are_numbers && !self.is_named_identifier { COUNTED_NUMBERS } else { COUNTED };
        match self.different.len() < limit {
            true => drop(self.different.insert(hash(text))),
            false => self.is_uncounted |= !self.different.contains(&hash(text)),
        }
    }

    /// Cells with a value.
    fn present(&self) -> usize {
        self.rows - self.missing
    }

    /// True for a count of nearly all values.
    fn is_pure(&self, count: usize) -> bool {
        count > 0 && count as f64 >= PURE * self.present() as f64
    }

    /// True for a column of numbers.
    pub(crate) fn are_numbers(&self, decimal: Decimal) -> bool {
        self.is_pure(self.numbers[place(decimal)])
    }

    /// The order of the parts that nearly all values have as dates.
    pub(crate) fn date_order(&self) -> Option<DateOrder> {
        let [_, month_first, day_first] = self.dates;
        // 1/2/2024 may be either.
        let is_day_first = day_first > month_first || (day_first == month_first && self.slashes == 0);
        let second = if is_day_first { DateOrder::DayFirst } else { DateOrder::MonthFirst };
        let count = |order: DateOrder| DateOrder::ALL.iter().position(|o| *o == order).map_or(0, |i| self.dates[i]);
        [DateOrder::YearFirst, second].into_iter().find(|order| self.is_pure(count(*order)))
    }

    /// All values differ.
    fn is_distinct(&self) -> bool {
        self.missing == 0 && (self.is_uncounted || self.different.len() == self.rows)
    }

    /// The type of a column.
    pub(crate) fn column_type(&self, decimal: Decimal) -> ColumnType {
        let (present, different) = (self.present(), self.different.len());
        if present == 0 {
            return ColumnType::Empty;
        }
        if self.are_numbers(decimal) && self.codes == 0 {
            let is_whole = self.whole == self.rows;
            let is_sequence = is_whole && self.successors + 2 >= self.rows;
            let is_named = self.is_named_identifier && is_whole && self.is_distinct();
            let is_identifier = self.rows >= LEAST_ROWS && (is_sequence || is_named);
            return if is_identifier { ColumnType::Identifier } else { ColumnType::Number };
        }
        if self.date_order().is_some() {
            return ColumnType::Date;
        }
        let is_category = !self.is_uncounted && (different <= FEW || REPEATED * different <= present);
        match is_category {
            true => ColumnType::Category,
            false if self.is_distinct() && 2 * self.blanks < present => ColumnType::Identifier,
            false => ColumnType::Text,
        }
    }

    /// True for whole numbers that are class indices, if nothing says what they are, or for texts.
    pub(crate) fn are_classes(&self, decimal: Decimal) -> bool {
        let few = FEW_CLASSES.max(self.present() / REPEATED_CLASSES);
        let are_indices = self.indices == self.present() && !self.is_uncounted && self.different.len() <= few;
        !self.are_numbers(decimal) || are_indices
    }

    /// The number of different values, or none for more than were counted.
    pub(crate) fn different(&self) -> Option<usize> {
        (!self.is_uncounted).then_some(self.different.len())
    }
}

/// The mark that most numbers of a table have. With semicolons between cells, `1,234` is a fraction.
pub(crate) fn decimal_of(columns: &[Observed], delimiter: u8) -> Decimal {
    let [point, comma] = [0, 1].map(|mark| columns.iter().map(|column| column.marks[mark]).sum::<usize>());
    let are_fractions = point == 0 && delimiter == b';' && columns.iter().any(|column| column.has_commas);
    if comma > point || are_fractions { Decimal::Comma } else { Decimal::Point }
}

/// True if the first line has names: texts above columns of numbers or dates, or, in a table of texts, texts that do not come again.
pub(crate) fn is_header(first: &[String], rest: &[Observed]) -> bool {
    let is_value = |text: &String| {
        let cell = Cell::Text(text.as_bytes());
        let is_number = [Decimal::Point, Decimal::Comma].iter().any(|decimal| cell.number(*decimal).is_some());
        is_number || DateOrder::ALL.iter().any(|order| Date::parse(text, *order).is_some())
    };
    let has_rows = rest.iter().any(|column| column.rows > 0);
    if !has_rows || first.iter().all(String::is_empty) || first.iter().any(is_value) {
        return false;
    }
    let are_values = |column: &Observed| {
        [Decimal::Point, Decimal::Comma].iter().any(|decimal| column.are_numbers(*decimal))
            || column.date_order().is_some()
    };
    let is_above =
        |(text, column): (&String, &Observed)| !Cell::Text(text.as_bytes()).is_missing() && are_values(column);
    first.iter().zip(rest).any(is_above) || !rest.iter().any(|column| column.has_first_again)
}

/// The column that a caller means.
pub(crate) fn index_of(path: &Path, column: &Column, columns: usize, names: &[String]) -> Result<usize> {
    let index = match column {
        Column::First => 0,
        Column::Last => columns.saturating_sub(1),
        Column::Number(i) => *i,
        Column::Name(name) => names.iter().position(|n| n == name).ok_or_else(|| {
            let known = if names.is_empty() { "no header".into() } else { format!("the columns {}", names.join(", ")) };
            invalid(path, format!("expected a column {name:?}, the table has {known}"))
        })?,
    };
    match index < columns {
        true => Ok(index),
        false => Err(invalid(path, format!("the table has {columns} columns, expected one with the number {index}"))),
    }
}

/// The cells of the first line, and observations of the columns below it.
pub(crate) struct Survey {
    pub first: Vec<String>,
    pub columns: Vec<Observed>,
}

impl Survey {
    /// Takes a row. `is_apart` says that the first row is not observed, since it may have names.
    pub(crate) fn add(&mut self, row: &dyn Row, is_apart: bool) {
        if self.columns.is_empty() {
            self.first = texts(row);
            self.columns = self.first.iter().map(|first| Observed::new(first)).collect();
            if is_apart {
                return;
            }
        }
        for (i, column) in self.columns.iter_mut().enumerate() {
            column.add(row.cell(i), if is_apart { self.first.get(i).map(String::as_str) } else { None });
        }
    }
}
