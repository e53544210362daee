//! The rows of a table: text, or, with the feature `parquet`, a Parquet or Arrow file.

use super::dialect::delimiter_of;
use super::number::{Decimal, number};
use crate::file::{self, invalid};
use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use isograd_core::{Error, Kind, Result};
use isograd_files::{MAX_LINE, looks_like};
use std::borrow::Cow;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Texts of cells without a value, as pandas knows them, and a question mark.
const MISSING: [&str; 11] = ["", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "?"];

/// A cell of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cell<'a> {
    Text(&'a [u8]),
    #[cfg(feature = "parquet")]
    Number(f64),
}

impl<'a> Cell<'a> {
    /// The finite number that the cell has.
    pub(crate) fn number(self, decimal: Decimal) -> Option<f32> {
        let number = match self {
            Cell::Text(text) => number(std::str::from_utf8(text).ok()?.trim(), decimal)?,
            #[cfg(feature = "parquet")]
            Cell::Number(v) => v,
        };
        Some(number as f32).filter(|v| v.is_finite())
    }

    /// The text without blanks around it.
    pub(crate) fn text(self) -> Cow<'a, str> {
        match self {
            Cell::Text(text) => match String::from_utf8_lossy(text) {
                Cow::Borrowed(text) => text.trim().into(),
                Cow::Owned(text) => text.trim().to_string().into(),
            },
            #[cfg(feature = "parquet")]
            Cell::Number(v) => v.to_string().into(),
        }
    }

    /// True for a cell without a value.
    pub(crate) fn is_missing(self) -> bool {
        match self {
            // The longest of these texts has four letters.
            Cell::Text(text) => {
                let text = text.trim_ascii();
                text.len() <= 4 && MISSING.iter().any(|missing| missing.as_bytes() == text)
            }
            #[cfg(feature = "parquet")]
            Cell::Number(v) => v.is_nan(),
        }
    }
}

/// A row of a table.
pub(crate) trait Row {
    /// Where it is, for errors: `line 3`.
    fn place(&self) -> String;
    /// The number of cells.
    fn len(&self) -> usize;
    /// A cell below that number.
    fn cell(&self, column: usize) -> Cell<'_>;
}

/// The cells of a row as texts.
pub(crate) fn texts(row: &dyn Row) -> Vec<String> {
    (0..row.len()).map(|column| row.cell(column).text().into_owned()).collect()
}

/// Where a table is; it can be read several times.
#[derive(Clone, Copy)]
pub(crate) enum Input<'a> {
    File(&'a Path),
    /// Bytes of a text, and the path that errors name.
    Bytes(&'a Path, &'a [u8]),
}

impl<'a> Input<'a> {
    pub(crate) fn path(self) -> &'a Path {
        match self {
            Input::File(path) | Input::Bytes(path, _) => path,
        }
    }

    /// Opens the table. `delimiter` is the byte between cells, or none for the one that the first lines have.
    pub(crate) fn open(self, delimiter: Option<u8>) -> Result<Source<'a>> {
        match self {
            Input::File(path) => Source::open(path, delimiter),
            Input::Bytes(path, bytes) => Source::text(path, bytes, delimiter),
        }
    }
}

/// The rows of a table, one after the other.
pub(crate) enum Source<'a> {
    Text {
        records: Box<Records<'a, Box<dyn BufRead + 'a>>>,
        delimiter: u8,
        looks: Option<String>,
    },
    #[cfg(feature = "parquet")]
    Columns(&'a Path, crate::columns::Columns),
}

impl<'a> Source<'a> {
    fn open(path: &'a Path, delimiter: Option<u8>) -> Result<Source<'a>> {
        let mut text = BufReader::new(isograd_files::open(path)?);
        let start = text.fill_buf().map_err(|e| file::failed(path, e))?;
        if [&b"PAR1"[..], b"ARROW1"].iter().any(|magic| start.starts_with(magic)) {
            #[cfg(feature = "parquet")]
            return Ok(Source::Columns(path, crate::columns::Columns::open(path)?));
            #[cfg(not(feature = "parquet"))]
            return Err(Error::unsupported(
                path.display().to_string(),
                "a Parquet or Arrow file, which this program reads if it is built with the feature `parquet` of isograd: `cargo install --path crates/cli --features parquet` builds such a command",
            ));
        }
        Source::text(path, text, delimiter)
    }

    fn text(path: &'a Path, mut bytes: impl BufRead + 'a, delimiter: Option<u8>) -> Result<Source<'a>> {
        let start = bytes.fill_buf().map_err(|e| file::failed(path, e))?;
        let looks = if file::is_gzip(start) { None } else { looks_like(start) };
        let mut text = file::content(bytes).map_err(|e| file::failed(path, e))?;
        let delimiter = match delimiter {
            Some(delimiter) => delimiter,
            None => delimiter_of(text.fill_buf().map_err(|e| file::failed(path, e))?),
        };
        Ok(Source::Text { records: Box::new(Records::new(path, text, delimiter)), delimiter, looks })
    }

    /// The names of columns that the file itself has.
    pub(crate) fn names(&self) -> Option<Vec<String>> {
        match self {
            Source::Text { .. } => None,
            #[cfg(feature = "parquet")]
            Source::Columns(_, columns) => Some(columns.names().to_vec()),
        }
    }

    /// The byte between cells.
    pub(crate) fn delimiter(&self) -> u8 {
        match self {
            Source::Text { delimiter, .. } => *delimiter,
            #[cfg(feature = "parquet")]
            Source::Columns(..) => b',',
        }
    }

    /// The cells of the first row, or the names of the columns that the file itself has.
    pub(crate) fn first(self) -> Result<Option<Vec<String>>> {
        match self {
            Source::Text { mut records, looks, .. } => {
                let first = records.next().map(|record| record.map(|record| texts(&record)));
                first.map_err(|e| with_looks(e, looks.as_deref()))
            }
            #[cfg(feature = "parquet")]
            Source::Columns(_, columns) => Ok(Some(columns.names().to_vec())),
        }
    }

    /// Calls a function with every row. Errors: `Format` for a row that is shorter or longer than the first, and for a text that looks like a file of
    /// another format and has only one column.
    pub(crate) fn each_row(self, mut f: impl FnMut(&dyn Row) -> Result<()>) -> Result<()> {
        let mut columns = None;
        let mut visit = |path: &Path, row: &dyn Row| {
            let (found, expected) = (row.len(), *columns.get_or_insert(row.len()));
            if found != expected {
                let message = format!("{} has {found} columns, expected {expected} as in the first", row.place());
                return Err(invalid(path, message));
            }
            f(row)
        };
        match self {
            Source::Text { mut records, looks, .. } => {
                let mut each = || -> Result<()> {
                    let path = records.path;
                    while let Some(record) = records.next()? {
                        if record.len() == 1 && looks.is_some() {
                            return Err(invalid(path, format!("{} has no cells", record.place())));
                        }
                        visit(path, &record)?;
                    }
                    Ok(())
                };
                each().map_err(|e| with_looks(e, looks.as_deref()))
            }
            #[cfg(feature = "parquet")]
            Source::Columns(path, columns) => columns.each_row(path, &mut |row| visit(path, row)),
        }
    }
}

/// An error of a text, with what the file looks like: one of another format fails somewhere at its start.
fn with_looks(error: Error, looks: Option<&str>) -> Error {
    match looks {
        Some(looks) if error.kind() == Kind::Format => {
            Error::format(error.op().to_string(), format!("{}; {looks}", error.message()))
        }
        _ => error,
    }
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
            // The end of a file ends its last line. Within quotes a line's end is content, as it must not be here.
            let is_end = input.is_empty() && length > 0;
            let input = if is_end { &b"\n"[..] } else { input };
            let (result, read, written, ended) =
                self.parser.read_record(input, &mut self.cells[bytes..], &mut self.ends[count..]);
            match is_end {
                true if written > 0 => {
                    return Err(invalid(self.path, format!("line {line} has a quote that does not end")));
                }
                true if result == ReadRecordResult::InputEmpty => return Ok(None),
                true => {}
                false => {
                    self.line += line_ends(&input[..read]);
                    self.text.consume(read);
                }
            }
            (length, bytes, count) = (length + read, bytes + written, count + ended);
            if length > MAX_LINE {
                return Err(invalid(self.path, format!("line {line} is longer than {MAX_LINE} bytes")));
            }
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => self.cells.resize(2 * bytes, 0),
                ReadRecordResult::OutputEndsFull => self.ends.resize(2 * count, 0),
                ReadRecordResult::Record => {
                    self.check(line, &self.cells[..bytes])?;
                    return Ok(Some(Record { line, cells: &self.cells[..bytes], ends: &self.ends[..count] }));
                }
                ReadRecordResult::End => return Ok(None),
            }
        }
    }

    /// Errors: `Format` for a text of UTF-16, whose letters have bytes of 0, or a mark before them.
    fn check(&self, line: u64, cells: &[u8]) -> Result<()> {
        let is_marked = line == 1 && [[0xff, 0xfe], [0xfe, 0xff]].iter().any(|mark| cells.starts_with(mark));
        match is_marked || cells.contains(&0) {
            true => {
                Err(invalid(self.path, format!("line {line} is no text in UTF-8, but perhaps in UTF-16: convert it")))
            }
            false => Ok(()),
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

impl Row for Record<'_> {
    fn place(&self) -> String {
        format!("line {}", self.line)
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn cell(&self, column: usize) -> Cell<'_> {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        Cell::Text(&self.cells[start..self.ends[column]])
    }
}
