//! Tables of numbers as text: one sample a line, and a column of labels or columns of targets.

use crate::file::{self, invalid};
use crate::{Labelled, Regression};
use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use isograd_core::{Error, Result};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The most bytes of a line, 16 MiB; a longer one is an error.
pub const MAX_LINE: usize = 1 << 24;

/// A column of labels or targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
pub enum Header {
    /// A sample, as every other line.
    #[default]
    Absent,
    /// Names of columns.
    Present,
}

/// How a table is read; the default is comma-separated numbers with the label last and no header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The column of labels, or the columns of targets. All other columns are features.
    pub targets: Vec<Column>,
    /// The meaning of the first line.
    pub header: Header,
    /// The byte between cells.
    pub delimiter: u8,
    /// The number of classes of labels, or `None` for one more than the highest label.
    pub classes: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Options { targets: vec![Column::Last], header: Header::default(), delimiter: b',', classes: None }
    }
}

/// Reads a table with a column of class indices, gzipped or not. Samples have shape `[columns - 1]`. Beside the samples no more than a
/// line is in memory.
///
/// Errors: `Io` if the file cannot be read; `Format`, with line and column counted from 1, if a cell is not a finite number, a label is not
/// a class index, a line is longer or shorter than the first or has more than [`MAX_LINE`] bytes, there is no such column, or there are no
/// samples; `Attr` unless `options` have one target.
pub fn read(path: impl AsRef<Path>, options: &Options) -> Result<Labelled> {
    labelled(path.as_ref(), open(path.as_ref())?, options)
}

/// Reads the bytes of a table with a column of class indices, gzipped or not; errors name `path`, and the dataset is called by its
/// file name.
pub fn parse(path: &Path, bytes: &[u8], options: &Options) -> Result<Labelled> {
    labelled(path, bytes, options)
}

/// Reads a table whose targets are numbers, gzipped or not. Samples have shape `[columns - targets]`, and their targets shape `[targets]`, in
/// the order of `options.targets`. Errors: as [`read`], and `Attr` unless `options` have at least one target, and each once.
pub fn read_regression(path: impl AsRef<Path>, options: &Options) -> Result<Regression> {
    regression(path.as_ref(), open(path.as_ref())?, options)
}

/// Reads the bytes of a table whose targets are numbers, as [`parse`] those of one with labels.
pub fn parse_regression(path: &Path, bytes: &[u8], options: &Options) -> Result<Regression> {
    regression(path, bytes, options)
}

fn open(path: &Path) -> Result<BufReader<File>> {
    Ok(BufReader::new(File::open(path).map_err(|e| file::failed(path, e))?))
}

fn labelled(path: &Path, bytes: impl BufRead, options: &Options) -> Result<Labelled> {
    if options.targets.len() != 1 {
        let message = format!("{} columns of labels, expected 1", options.targets.len());
        return Err(Error::attr("csv", message));
    }
    let classes = options.classes.map_or(i64::from(u32::MAX), |n| i64::try_from(n).unwrap_or(i64::MAX));
    let mut labels = Vec::new();
    let table = Table::read(path, bytes, options, |cell| {
        // Tools that write every cell as a float write labels so too: 3.0 is class 3.
        let label = number(cell).filter(|v| v.fract() == 0.0).map(|v| v as i64);
        let label =
            label.filter(|l| (0..classes).contains(l)).ok_or_else(|| format!("a class index in 0..{classes}"))?;
        labels.push(label);
        Ok(())
    })?;
    let classes = options.classes.unwrap_or_else(|| labels.iter().max().map_or(0, |&highest| highest as usize + 1));
    Labelled::new(table.name(), table.features, [table.columns - 1], labels, classes)
}

fn regression(path: &Path, bytes: impl BufRead, options: &Options) -> Result<Regression> {
    let each = options.targets.len();
    if each == 0 {
        return Err(Error::attr("csv", "0 columns of targets, expected at least 1"));
    }
    let mut targets = Vec::new();
    let table = Table::read(path, bytes, options, |cell| {
        targets.push(finite(cell)?);
        Ok(())
    })?;
    Regression::new(table.name(), table.features, [table.columns - each], &targets, each)
}

/// The lines of a table, of which one is in memory. A cell in quotes may go on in the next lines.
pub(crate) struct Records<'a, R> {
    path: &'a Path,
    text: R,
    parser: Reader,
    /// The line that comes next, counted from 1.
    line: u64,
    cells: Vec<u8>,
    /// Where each cell ends in `cells`.
    ends: Vec<usize>,
}

/// A line, cut into cells.
pub(crate) struct Record<'a> {
    /// The first line of it, counted from 1.
    pub(crate) line: u64,
    cells: &'a [u8],
    ends: &'a [usize],
}

impl<'a, R: BufRead> Records<'a, R> {
    pub(crate) fn new(path: &'a Path, text: R, delimiter: u8) -> Self {
        let parser = ReaderBuilder::new().delimiter(delimiter).build();
        Records { path, text, parser, line: 1, cells: vec![0; 1024], ends: vec![0; 64] }
    }

    /// The next line that is not blank.
    pub(crate) fn next(&mut self) -> Result<Option<Record<'_>>> {
        self.skip_blank_lines()?;
        let (line, mut length, mut bytes, mut count) = (self.line, 0, 0, 0);
        loop {
            let input = self.text.fill_buf().map_err(|e| file::failed(self.path, e))?;
            let (result, read, written, ended) =
                self.parser.read_record(input, &mut self.cells[bytes..], &mut self.ends[count..]);
            self.line += line_ends(&input[..read]);
            self.text.consume(read);
            (length, bytes, count) = (length + read, bytes + written, count + ended);
            if length > MAX_LINE {
                return Err(invalid(self.path, format!("line {line} is longer than {MAX_LINE} bytes")));
            }
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => self.cells.resize(2 * bytes, 0),
                ReadRecordResult::OutputEndsFull => self.ends.resize(2 * count, 0),
                ReadRecordResult::Record => {
                    return Ok(Some(Record { line, cells: &self.cells[..bytes], ends: &self.ends[..count] }));
                }
                ReadRecordResult::End => return Ok(None),
            }
        }
    }

    fn skip_blank_lines(&mut self) -> Result<()> {
        loop {
            let input = self.text.fill_buf().map_err(|e| file::failed(self.path, e))?;
            let blank = input.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
            let goes_on = blank > 0 && blank == input.len();
            self.line += line_ends(&input[..blank]);
            self.text.consume(blank);
            if !goes_on {
                return Ok(());
            }
        }
    }
}

fn line_ends(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&b| b == b'\n').count() as u64
}

impl Record<'_> {
    fn cell(&self, column: usize) -> &[u8] {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        &self.cells[start..self.ends[column]]
    }

    /// The cells as texts.
    pub(crate) fn names(&self) -> Vec<String> {
        let text = |column| String::from_utf8_lossy(self.cell(column)).trim().to_string();
        (0..self.ends.len()).map(text).collect()
    }
}

/// A table as it is read: its features, in the order of lines and columns.
struct Table<'a> {
    path: &'a Path,
    columns: usize,
    /// The columns of targets.
    targets: Vec<usize>,
    features: Vec<f32>,
}

/// The outcome for a cell; the error is what was expected of it.
type Taken = std::result::Result<(), String>;

impl<'a> Table<'a> {
    /// Reads all lines. `take` gets the targets of a line in the order of the options.
    fn read(
        path: &'a Path,
        bytes: impl BufRead,
        options: &Options,
        mut take: impl FnMut(&[u8]) -> Taken,
    ) -> Result<Table<'a>> {
        let text = file::content(bytes).map_err(|e| file::failed(path, e))?;
        let mut records = Records::new(path, text, options.delimiter);
        let names = match options.header {
            Header::Present => records.next()?.map(|r| r.names()),
            Header::Absent => None,
        };
        let mut table: Option<Table<'a>> = None;
        while let Some(record) = records.next()? {
            let table = match &mut table {
                Some(table) => table,
                None => table.insert(Table::new(path, &record, names.as_deref(), options)?),
            };
            table.push(&record, &mut take)?;
        }
        table.ok_or_else(|| invalid(path, "the table has no samples, expected at least one"))
    }

    /// A table with the columns of its first line.
    fn new(path: &'a Path, first: &Record<'_>, names: Option<&[String]>, options: &Options) -> Result<Table<'a>> {
        let (line, columns) = (first.line, first.ends.len());
        let mut targets = Vec::new();
        for column in &options.targets {
            let index = match column {
                Column::First => 0,
                Column::Last => columns.saturating_sub(1),
                Column::Number(i) => *i,
                Column::Name(name) => named(path, name, names)?,
            };
            if index >= columns {
                let message = format!("line {line} has {columns} columns, expected a target in column {}", index + 1);
                return Err(invalid(path, message));
            }
            if targets.contains(&index) {
                return Err(Error::attr("csv", format!("column {} is a target twice", index + 1)));
            }
            targets.push(index);
        }
        Ok(Table { path, columns, targets, features: Vec::new() })
    }

    fn push(&mut self, record: &Record<'_>, take: &mut impl FnMut(&[u8]) -> Taken) -> Result<()> {
        let (line, columns) = (record.line, record.ends.len());
        if columns != self.columns {
            let message = format!("line {line} has {columns} columns, expected {} as in the first", self.columns);
            return Err(invalid(self.path, message));
        }
        for column in &self.targets {
            let cell = record.cell(*column);
            take(cell).map_err(|expected| self.bad_cell(cell, line, column + 1, &expected))?;
        }
        for column in (0..columns).filter(|column| !self.targets.contains(column)) {
            let cell = record.cell(column);
            let feature = finite(cell).map_err(|expected| self.bad_cell(cell, line, column + 1, &expected))?;
            self.features.push(feature);
        }
        Ok(())
    }

    fn bad_cell(&self, cell: &[u8], line: u64, column: usize, expected: &str) -> Error {
        let shown: String = String::from_utf8_lossy(cell).chars().take(40).collect();
        invalid(self.path, format!("line {line}, column {column}: expected {expected}, got {shown:?}"))
    }

    fn name(&self) -> String {
        self.path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
    }
}

/// The column of this name.
fn named(path: &Path, name: &str, names: Option<&[String]>) -> Result<usize> {
    let names = names.unwrap_or_default();
    names.iter().position(|n| n == name).ok_or_else(|| {
        let known = if names.is_empty() { "no header".into() } else { format!("the columns {}", names.join(", ")) };
        invalid(path, format!("expected a column {name:?}, the table has {known}"))
    })
}

pub(crate) fn number(cell: &[u8]) -> Option<f64> {
    std::str::from_utf8(cell).ok()?.trim().parse().ok()
}

pub(crate) fn finite(cell: &[u8]) -> std::result::Result<f32, String> {
    let number = number(cell).map(|v| v as f32).filter(|v| v.is_finite());
    number.ok_or_else(|| "a finite number".to_string())
}
