//! Tables of numbers as text: one sample a line, one column of labels.

use crate::Dataset;
use crate::file::{self, invalid};
use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use isograd_core::{Error, Result};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The most bytes of a line, 16 MiB; a longer one is an error.
pub const MAX_LINE: usize = 1 << 24;

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

/// Reads a table, gzipped or not: every column but the label's is a feature, samples have shape `[columns - 1]`. Beside the samples
/// no more than a line is in memory.
///
/// Errors: `Io` if the file cannot be read; `Format`, with line and column counted from 1, if a cell is not a finite number, a label is not
/// a class index, a line is longer or shorter than the first or has more than [`MAX_LINE`] bytes, or there are no samples.
pub fn read(path: impl AsRef<Path>, options: &Options) -> Result<Dataset> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|e| file::failed(path, e))?;
    parse_content(path, BufReader::new(file), options)
}

/// Reads the bytes of a table, gzipped or not; errors name `path`, and the dataset is called by its file name.
pub fn parse(path: &Path, bytes: &[u8], options: &Options) -> Result<Dataset> {
    parse_content(path, bytes, options)
}

fn parse_content(path: &Path, bytes: impl BufRead, options: &Options) -> Result<Dataset> {
    let text = file::content(bytes).map_err(|e| file::failed(path, e))?;
    let mut records = Records::new(path, text, options.delimiter);
    if options.header == Header::Present {
        records.next()?;
    }
    let mut table = Table { path, options, columns: 0, features: Vec::new(), labels: Vec::new() };
    while let Some(record) = records.next()? {
        table.push(&record)?;
    }
    table.finish()
}

/// The lines of a table, of which one is in memory. A cell in quotes may go on in the next lines.
struct Records<'a, R> {
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
struct Record<'a> {
    /// The first line of it, counted from 1.
    line: u64,
    cells: &'a [u8],
    ends: &'a [usize],
}

impl<'a, R: BufRead> Records<'a, R> {
    fn new(path: &'a Path, text: R, delimiter: u8) -> Self {
        let parser = ReaderBuilder::new().delimiter(delimiter).build();
        Records { path, text, parser, line: 1, cells: vec![0; 1024], ends: vec![0; 64] }
    }

    /// The next line that is not blank.
    fn next(&mut self) -> Result<Option<Record<'_>>> {
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
    fn cells(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(self.ends);
        starts.zip(self.ends).map(|(&start, &end)| &self.cells[start..end])
    }
}

struct Table<'a> {
    path: &'a Path,
    options: &'a Options,
    columns: usize,
    features: Vec<f32>,
    labels: Vec<i64>,
}

impl Table<'_> {
    fn push(&mut self, record: &Record<'_>) -> Result<()> {
        let (line, columns) = (record.line, record.ends.len());
        if self.labels.is_empty() {
            self.columns = columns;
        }
        if columns != self.columns {
            let message = format!("line {line} has {columns} columns, expected {} as in the first", self.columns);
            return Err(invalid(self.path, message));
        }
        let label = self.label_column(line)?;
        for (i, cell) in record.cells().enumerate() {
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

fn number(cell: &[u8]) -> Option<f64> {
    std::str::from_utf8(cell).ok()?.trim().parse().ok()
}
