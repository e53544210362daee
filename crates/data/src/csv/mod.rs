//! Tables: one sample a line, and columns to predict. A table is text, or, with the feature `parquet`, a Parquet or Arrow file.
//!
//! [`Table::read`] finds out how the text is written and what its columns are: numbers, categories, dates, and texts and identifiers, which are
//! ignored. An [`Encoding`] is fitted to the rows to train on, and makes numbers and indices of any rows with the same columns.
//!
//! ```
//! use isograd_data::csv::{Column, Encoding, EncodingOptions, Options, Table, Targets};
//! use std::path::Path;
//!
//! # fn main() -> isograd_core::Result<()> {
//! let text = b"rooms;kind;built;price\n3;flat;1990-05-01;250,5\n4;house;2001-09-12;310\n;flat;1975-01-31;190\n";
//! let options = Options { targets: vec![Column::Name("price".into())], ..Options::default() };
//! let table = Table::parse(Path::new("houses.csv"), text, &options)?;
//! println!("{table}");
//! let encoding = Encoding::fit(&table, &EncodingOptions::default())?;
//! // Rooms and whether they are missing; year, month, day and weekday.
//! assert_eq!((encoding.numbers(), encoding.categories()), (6, vec![3]));
//! let samples = encoding.encode(&table)?;
//! assert_eq!(samples.categories().to_vec::<i64>()?, [1, 2, 1]);
//!
//! let new = encoding.parse(Path::new("new.csv"), b"kind;rooms;built\ntent;1;2020-02-02\n", Targets::Unknown, &[])?;
//! assert_eq!(encoding.encode(&new)?.categories().to_vec::<i64>()?, [0]);
//! # Ok(())
//! # }
//! ```

mod date;
mod dialect;
mod encoding;
mod number;
mod records;
mod show;
mod table;
mod types;

pub use date::{DateOrder, DatePart};
pub use dialect::Dialect;
pub use encoding::{Encoded, Encoding, EncodingOptions};
pub use isograd_files::MAX_LINE;
pub use number::Decimal;
pub use table::{Table, TableColumn, Targets};
pub use types::{ColumnType, MAX_GUESSED};

#[cfg(feature = "parquet")]
pub(crate) use records::Row;
pub(crate) use records::{Cell, Records, texts};

/// A column of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Column {
    /// The first column.
    First,
    /// The last column.
    #[default]
    Last,
    /// This column, counted from 0.
    Number(usize),
    /// The column that has this name in the header.
    Name(String),
}

/// The meaning of the first line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Header {
    /// Names of columns, if an option names one, if it has texts above numbers or dates, or if all columns have texts and none of it comes
    /// again; else a sample.
    #[default]
    Inferred,
    /// A sample, as every other line.
    Absent,
    /// Names of columns.
    Present,
}

/// Whether the targets are classes or numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Learn {
    /// Classes, if there is one column of targets, and it has texts, or a few different whole numbers below [`MAX_GUESSED`]; else numbers.
    #[default]
    Inferred,
    /// Classes: the different texts or numbers of one column.
    Classes,
    /// Numbers.
    Numbers,
}

/// The types of columns that are not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Features {
    /// By what their cells have in common.
    #[default]
    Inferred,
    /// Numbers, of which none is missing.
    Numbers,
}

/// How a table is read. The default finds out all by itself, and predicts the last column.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Options {
    /// The columns to predict; none for rows that nothing is known of.
    pub targets: Vec<Column>,
    /// Whether the targets are classes or numbers.
    pub learn: Learn,
    /// The meaning of the first line. Parquet and Arrow files have names without it.
    pub header: Header,
    /// The byte between cells; none for the one of tab, semicolon, bar and comma that the first lines have equally often.
    pub delimiter: Option<u8>,
    /// Columns that a model does not see.
    pub ignore: Vec<Column>,
    /// Columns of categories, whatever they look like.
    pub categories: Vec<Column>,
    /// Columns of numbers, whatever they look like; cells may be empty.
    pub numbers: Vec<Column>,
    /// The types of the others.
    pub features: Features,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            targets: vec![Column::Last],
            learn: Learn::default(),
            header: Header::default(),
            delimiter: None,
            ignore: Vec::new(),
            categories: Vec::new(),
            numbers: Vec::new(),
            features: Features::default(),
        }
    }
}

/// The finite number that a text has, with a decimal point.
pub(crate) fn finite(text: &str) -> std::result::Result<f32, String> {
    Cell::Text(text.as_bytes()).number(Decimal::Point).ok_or_else(|| "a finite number".to_string())
}

/// The number that a text has, with a decimal point.
pub(crate) fn number(text: &str) -> Option<f64> {
    number::number(text.trim(), Decimal::Point)
}
