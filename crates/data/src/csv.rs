//! Tables of numbers as text: one sample a line, one column of labels.

use crate::Dataset;
use crate::file::{self, invalid};
use ::csv::{ByteRecord, ReaderBuilder};
use isograd_core::{Error, Result};
use std::io::Read;
use std::path::Path;

/// Where the label is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Label {
    /// In the first column.
    First,
    /// In the last column.
    #[default]
    Last,
    /// In this column, counted from 0.
    Column(usize),
}

/// What the first line is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Header {
    /// A sample, as every other line.
    #[default]
    Absent,
    /// Names of columns, which are skipped.
    Present,
}

/// How a table is read; the default is comma-separated numbers with the label last and no header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the label is.
    pub label: Label,
    /// What the first line is.
    pub header: Header,
    /// The byte between cells.
    pub delimiter: u8,
    /// The number of classes, or `None` for one more than the highest label.
    pub classes: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Options { label: Label::default(), header: Header::default(), delimiter: b',', classes: None }
    }
}

/// Reads a table, gzipped or not: every column but the label's is a feature, samples have shape `[columns - 1]`.
///
/// Errors: `Io` if the file cannot be read; `Format`, with line and column counted from 1, if a cell is not a finite number, a label is not
/// a class index, a line is longer or shorter than the first, or there are no samples.
pub fn read(path: impl AsRef<Path>, options: &Options) -> Result<Dataset> {
    let path = path.as_ref();
    parse(path, &file::read(path)?, options)
}

/// Reads the bytes of a table, gzipped or not; errors name `path`, and the dataset is called by its file name.
pub fn parse(path: &Path, bytes: &[u8], options: &Options) -> Result<Dataset> {
    let mut text = Vec::new();
    let read = file::content(bytes).read_to_end(&mut text);
    read.map_err(|e| invalid(path, format!("the gzip stream is corrupt or truncated: {e}")).with_source(e))?;
    let mut reader = ReaderBuilder::new()
        .delimiter(options.delimiter)
        .has_headers(options.header == Header::Present)
        .flexible(true)
        .from_reader(text.as_slice());
    let mut table = Table { path, options, columns: 0, features: Vec::new(), labels: Vec::new() };
    let mut record = ByteRecord::new();
    while reader.read_byte_record(&mut record).map_err(|e| unreadable(path, e))? {
        table.push(&record, line_of(&record, &text))?;
    }
    table.finish()
}

struct Table<'a> {
    path: &'a Path,
    options: &'a Options,
    columns: usize,
    features: Vec<f32>,
    labels: Vec<i64>,
}

impl Table<'_> {
    fn push(&mut self, record: &ByteRecord, line: u64) -> Result<()> {
        if self.labels.is_empty() {
            self.columns = record.len();
        }
        if record.len() != self.columns {
            let message =
                format!("line {line} has {} columns, expected {} as in the first", record.len(), self.columns);
            return Err(invalid(self.path, message));
        }
        let label = self.label_column(line)?;
        for (i, cell) in record.iter().enumerate() {
            if i == label {
                self.labels.push(self.label(cell, line, i + 1)?);
            } else {
                self.features.push(self.feature(cell, line, i + 1)?);
            }
        }
        Ok(())
    }

    fn label_column(&self, line: u64) -> Result<usize> {
        let column = match self.options.label {
            Label::First => 0,
            Label::Last => self.columns.saturating_sub(1),
            Label::Column(i) => i,
        };
        if column < self.columns {
            return Ok(column);
        }
        let message = format!("line {line} has {} columns, expected a label in column {}", self.columns, column + 1);
        Err(invalid(self.path, message))
    }

    fn feature(&self, cell: &[u8], line: u64, column: usize) -> Result<f32> {
        let number = number(cell).map(|v| v as f32).filter(|v| v.is_finite());
        number.ok_or_else(|| self.bad_cell(cell, line, column, "a finite number"))
    }

    fn label(&self, cell: &[u8], line: u64, column: usize) -> Result<i64> {
        let classes = self.options.classes.map_or(i64::from(u32::MAX), |n| i64::try_from(n).unwrap_or(i64::MAX));
        // Tools that write every cell as a float write labels so too: 3.0 is class 3.
        let label = number(cell).filter(|v| v.fract() == 0.0).map(|v| v as i64);
        label
            .filter(|l| (0..classes).contains(l))
            .ok_or_else(|| self.bad_cell(cell, line, column, &format!("a class index in 0..{classes}")))
    }

    fn bad_cell(&self, cell: &[u8], line: u64, column: usize, expected: &str) -> Error {
        let shown: String = String::from_utf8_lossy(cell).chars().take(40).collect();
        invalid(self.path, format!("line {line}, column {column}: expected {expected}, got {shown:?}"))
    }

    fn finish(self) -> Result<Dataset> {
        let Some(&highest) = self.labels.iter().max() else {
            return Err(invalid(self.path, "the table has no samples, expected at least one"));
        };
        let classes = self.options.classes.unwrap_or(highest as usize + 1);
        let name = self.path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        Dataset::new(name, self.features, [self.columns - 1], self.labels, classes)
    }
}

/// The line on which a record begins, counted from 1. The reader's own position is before the blank lines that it skips.
fn line_of(record: &ByteRecord, text: &[u8]) -> u64 {
    let Some(position) = record.position() else { return 0 };
    let rest = text.get(position.byte() as usize..).unwrap_or_default();
    let blank = rest.iter().take_while(|b| matches!(b, b'\r' | b'\n')).filter(|&&b| b == b'\n').count();
    position.line() + blank as u64
}

fn number(cell: &[u8]) -> Option<f64> {
    std::str::from_utf8(cell).ok()?.trim().parse().ok()
}

fn unreadable(path: &Path, error: ::csv::Error) -> Error {
    invalid(path, format!("the table cannot be read to its end: {error}")).with_source(error)
}
