//! Tables: one sample a line, and a column of labels or columns of targets. A table is text, or, with the feature `parquet`, a Parquet or
//! Arrow file.

use crate::file::{self, invalid};
use crate::{HostTensor, Labelled, Regression};
use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use isograd_core::{Error, Kind, Result};
use isograd_files::looks_like;
use std::borrow::Cow;
use std::collections::HashMap;
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

/// The meaning of the cells in a column of labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Labels {
    /// Class indices: 0, 1, ..
    #[default]
    Indices,
    /// Names of classes, which have indices in the order of the sorted names.
    Names,
}

/// The content of the columns of targets, as [`content`] finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Whole numbers from 0 to below [`MAX_GUESSED`], in one column: class indices.
    Indices,
    /// No numbers, in one column: names of classes.
    Names,
    /// Other numbers, or several columns.
    Numbers,
}

/// Whole numbers from this on are not taken for class indices, unless a caller says so.
pub const MAX_GUESSED: i64 = 1000;

/// How a table is read; the default is comma-separated numbers with the label last and no header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The column of labels, or the columns of targets. All other columns are features.
    pub targets: Vec<Column>,
    /// The meaning of the first line. Parquet and Arrow files have names without it.
    pub header: Header,
    /// The byte between cells.
    pub delimiter: u8,
    /// The meaning of labels.
    pub labels: Labels,
    /// The number of classes of labels, or `None` for one more than the highest label, and for as many as there are names.
    pub classes: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            targets: vec![Column::Last],
            header: Header::default(),
            delimiter: b',',
            labels: Labels::default(),
            classes: None,
        }
    }
}

/// Reads a table with a column of labels. Samples have shape `[columns - 1]`. The file is text, gzipped or not, or, with the feature
/// `parquet`, a Parquet file or an Arrow file (IPC, Feather); its content decides. Beside the samples no more than a line is in memory, or a
/// thousand rows of a Parquet or Arrow file.
///
/// Errors: `Io` if the file cannot be read; `Format`, with line and column counted from 1, if a cell is not a finite number, a label is not
/// a class index, or empty where it is a name, a line is longer or shorter than the first or has more than [`MAX_LINE`] bytes, there is no such
/// column, there are no samples, or there are more names than `options.classes`; `Attr` unless `options` have one target; `Unsupported` for a
/// Parquet or Arrow file without the feature.
pub fn read(path: impl AsRef<Path>, options: &Options) -> Result<Labelled> {
    labelled(path.as_ref(), Source::open(path.as_ref(), options)?, options)
}

/// Reads the bytes of a text with a column of labels, gzipped or not; errors name `path`, and the dataset is called by its file name.
pub fn parse(path: &Path, bytes: &[u8], options: &Options) -> Result<Labelled> {
    labelled(path, Source::text(path, bytes, options)?, options)
}

/// Reads a table whose targets are numbers, a file as for [`read`]. Samples have shape `[columns - targets]`, and their targets shape `[targets]`, in
/// the order of `options.targets`. Errors: as [`read`], and `Attr` unless `options` have at least one target, and each once.
pub fn read_regression(path: impl AsRef<Path>, options: &Options) -> Result<Regression> {
    regression(path.as_ref(), Source::open(path.as_ref(), options)?, options)
}

/// Reads the bytes of a text whose targets are numbers, as [`parse`] those of one with labels.
pub fn parse_regression(path: &Path, bytes: &[u8], options: &Options) -> Result<Regression> {
    regression(path, Source::text(path, bytes, options)?, options)
}

/// The kind of the columns of targets; features are not read. A column with numbers and others is one of numbers, which an attempt to read
/// it then refuses with the line. Errors: as [`read`], except for those of cells.
pub fn content(path: impl AsRef<Path>, options: &Options) -> Result<Content> {
    content_of(path.as_ref(), Source::open(path.as_ref(), options)?, options)
}

/// The columns of a table, as [`columns`] finds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Their number.
    pub count: usize,
    /// Their names; none where the table has no names.
    pub names: Vec<String>,
    /// The columns that are targets, in the order of the options.
    pub targets: Vec<usize>,
}

/// The columns of a table. Errors: as [`read`], except for those of cells.
pub fn columns(path: impl AsRef<Path>, options: &Options) -> Result<Columns> {
    let path = path.as_ref();
    let mut found = None;
    let count = Source::open(path, options)?.each_row(path, options, |layout, _| {
        found.get_or_insert_with(|| (layout.names.clone(), layout.targets.clone()));
        Ok(())
    })?;
    let (names, targets) = found.unwrap_or_default();
    let names = names.unwrap_or_default();
    match names.is_empty() || names.len() == count {
        true => Ok(Columns { count, names, targets }),
        false => {
            Err(invalid(path, format!("the header has {} names, but the lines have {count} columns", names.len())))
        }
    }
}

/// Reads some columns of a table, f32 `[lines, columns]`: those that `options` call targets, in their order. Other cells may be anything.
/// Errors: as [`read_regression`].
pub fn read_columns(path: impl AsRef<Path>, options: &Options) -> Result<HostTensor> {
    let path = path.as_ref();
    let mut values = Vec::new();
    Source::open(path, options)?.each_row(path, options, |layout, row| {
        for &column in &layout.targets {
            values.push(layout.target(row, column, |cell| cell.finite())?);
        }
        Ok(())
    })?;
    let each = options.targets.len();
    HostTensor::new(&values, [values.len() / each.max(1), each])
}

fn labelled(path: &Path, source: Source<'_>, options: &Options) -> Result<Labelled> {
    if options.targets.len() != 1 {
        let message = format!("{} columns of labels, expected 1", options.targets.len());
        return Err(Error::attr("csv", message));
    }
    let limit = options.classes.map_or(i64::from(u32::MAX), |n| i64::try_from(n).unwrap_or(i64::MAX));
    let (mut features, mut labels, mut names) = (Vec::new(), Vec::new(), Names::default());
    let columns = source.each_row(path, options, |layout, row| {
        labels.push(layout.target(row, layout.targets[0], |cell| match options.labels {
            // Tools that write every cell as a float write labels so too: 3.0 is class 3.
            Labels::Indices => {
                let label = cell.number().filter(|v| v.fract() == 0.0).map(|v| v as i64);
                label.filter(|l| (0..limit).contains(l)).ok_or_else(|| format!("a class index in 0..{limit}"))
            }
            Labels::Names => names.index(cell).ok_or_else(|| "the name of a class".into()),
        })?);
        layout.features(row, &mut features)
    })?;
    let samples = |labels, classes| Labelled::new(name(path), features, [columns - 1], labels, classes);
    if options.labels == Labels::Indices {
        let highest = labels.iter().max().map_or(0, |&highest| highest as usize + 1);
        return samples(labels, options.classes.unwrap_or(highest));
    }
    let (sorted, places) = names.sorted();
    if let Some(classes) = options.classes.filter(|&classes| classes != sorted.len()) {
        return Err(invalid(path, format!("the labels have {} names, expected {classes}", sorted.len())));
    }
    let labels = labels.into_iter().map(|label| places[label as usize]).collect();
    samples(labels, sorted.len())?.with_class_names(sorted)
}

fn regression(path: &Path, source: Source<'_>, options: &Options) -> Result<Regression> {
    let each = options.targets.len();
    if each == 0 {
        return Err(Error::attr("csv", "0 columns of targets, expected at least 1"));
    }
    let (mut features, mut targets) = (Vec::new(), Vec::new());
    let columns = source.each_row(path, options, |layout, row| {
        for &column in &layout.targets {
            targets.push(layout.target(row, column, |cell| cell.finite())?);
        }
        layout.features(row, &mut features)
    })?;
    Regression::new(name(path), features, [columns - each], &targets, each)
}

fn content_of(path: &Path, source: Source<'_>, options: &Options) -> Result<Content> {
    let (mut has_number, mut are_indices) = (false, true);
    source.each_row(path, options, |layout, row| {
        for &column in &layout.targets {
            let number = row.cell(column).number();
            has_number |= number.is_some();
            are_indices &= number.is_some_and(|v| v.fract() == 0.0 && (0.0..MAX_GUESSED as f64).contains(&v));
        }
        Ok(())
    })?;
    Ok(match options.targets.len() {
        1 if !has_number => Content::Names,
        1 if are_indices => Content::Indices,
        _ => Content::Numbers,
    })
}

/// The dataset's name: the file's.
fn name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

/// The names of classes, in the order in which they come.
#[derive(Default)]
struct Names(HashMap<String, i64>);

impl Names {
    /// The place of a name, unless it is empty or no text.
    fn index(&mut self, cell: Cell<'_>) -> Option<i64> {
        let text = cell.text();
        let text = std::str::from_utf8(&text).ok()?.trim();
        if let Some(&index) = self.0.get(text) {
            return Some(index);
        }
        let index = self.0.len() as i64;
        (!text.is_empty()).then(|| *self.0.entry(text.to_string()).or_insert(index))
    }

    /// The sorted names, and for each place that of the name among them.
    fn sorted(self) -> (Vec<String>, Vec<i64>) {
        let mut names: Vec<(String, i64)> = self.0.into_iter().collect();
        names.sort_unstable();
        let mut places = vec![0; names.len()];
        (0..).zip(&names).for_each(|(sorted, (_, index))| places[*index as usize] = sorted);
        (names.into_iter().map(|(name, _)| name).collect(), places)
    }
}

/// A cell of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cell<'a> {
    Text(&'a [u8]),
    #[cfg(feature = "parquet")]
    Number(f64),
}

impl<'a> Cell<'a> {
    fn number(self) -> Option<f64> {
        match self {
            Cell::Text(text) => number(text),
            #[cfg(feature = "parquet")]
            Cell::Number(v) => Some(v),
        }
    }

    fn finite(self) -> std::result::Result<f32, String> {
        let number = self.number().map(|v| v as f32).filter(|v| v.is_finite());
        number.ok_or_else(|| "a finite number".to_string())
    }

    fn text(self) -> Cow<'a, [u8]> {
        match self {
            Cell::Text(text) => text.into(),
            #[cfg(feature = "parquet")]
            Cell::Number(v) => v.to_string().into_bytes().into(),
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

/// The rows of a table, one after the other.
enum Source<'a> {
    Text {
        records: Box<Records<'a, Box<dyn BufRead + 'a>>>,
        names: Option<Vec<String>>,
        looks: Option<String>,
    },
    #[cfg(feature = "parquet")]
    Columns(crate::columns::Columns),
}

impl<'a> Source<'a> {
    fn open(path: &'a Path, options: &Options) -> Result<Source<'a>> {
        let mut text = BufReader::new(isograd_files::open(path)?);
        let start = text.fill_buf().map_err(|e| file::failed(path, e))?;
        if [&b"PAR1"[..], b"ARROW1"].iter().any(|magic| start.starts_with(magic)) {
            #[cfg(feature = "parquet")]
            return Ok(Source::Columns(crate::columns::Columns::open(path)?));
            #[cfg(not(feature = "parquet"))]
            return Err(Error::unsupported(
                path.display().to_string(),
                "a Parquet or Arrow file, which this program was built without: it needs the feature `parquet` of isograd-data",
            ));
        }
        Source::text(path, text, options)
    }

    fn text(path: &'a Path, mut bytes: impl BufRead + 'a, options: &Options) -> Result<Source<'a>> {
        let start = bytes.fill_buf().map_err(|e| file::failed(path, e))?;
        let looks = if file::is_gzip(start) { None } else { looks_like(start) };
        let text = file::content(bytes).map_err(|e| file::failed(path, e))?;
        let mut records = Box::new(Records::new(path, text, options.delimiter));
        let names = match options.header {
            Header::Present => records.next()?.map(|r| r.names()),
            Header::Absent => None,
        };
        Ok(Source::Text { records, names, looks })
    }

    /// Calls a function with every row, and returns the number of columns.
    fn each_row(
        self,
        path: &Path,
        options: &Options,
        mut f: impl FnMut(&Layout<'_>, &dyn Row) -> Result<()>,
    ) -> Result<usize> {
        let mut layout = None;
        let mut visit = |row: &dyn Row, names: Option<&[String]>| {
            let layout = match &mut layout {
                Some(layout) => layout,
                None => layout.insert(Layout::new(path, row, names, options)?),
            };
            layout.check(row)?;
            f(layout, row)
        };
        match self {
            Source::Text { mut records, names, looks } => {
                let mut each = || -> Result<()> {
                    while let Some(record) = records.next()? {
                        visit(&record, names.as_deref())?;
                    }
                    Ok(())
                };
                // A file of another format fails somewhere at its start.
                each().map_err(|e| match looks {
                    Some(looks) if e.kind() == Kind::Format => {
                        Error::format(e.op().to_string(), format!("{}; {looks}", e.message()))
                    }
                    _ => e,
                })?;
            }
            #[cfg(feature = "parquet")]
            Source::Columns(columns) => columns.each_row(path, &mut visit)?,
        }
        let layout: Option<Layout<'_>> = layout;
        let layout = layout.ok_or_else(|| invalid(path, "the table has no samples, expected at least one"))?;
        Ok(layout.columns)
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

impl Record<'_> {
    /// The cells as texts.
    pub(crate) fn names(&self) -> Vec<String> {
        let text = |column| String::from_utf8_lossy(&self.cell(column).text()).trim().to_string();
        (0..self.ends.len()).map(text).collect()
    }
}

/// The columns of a table.
struct Layout<'a> {
    path: &'a Path,
    columns: usize,
    names: Option<Vec<String>>,
    /// The columns of targets, in the order of the options.
    targets: Vec<usize>,
}

impl<'a> Layout<'a> {
    /// The columns of a table by its first row.
    fn new(path: &'a Path, first: &dyn Row, names: Option<&[String]>, options: &Options) -> Result<Layout<'a>> {
        let (place, columns) = (first.place(), first.len());
        let mut targets = Vec::new();
        for column in &options.targets {
            let index = match column {
                Column::First => 0,
                Column::Last => columns.saturating_sub(1),
                Column::Number(i) => *i,
                Column::Name(name) => named(path, name, names)?,
            };
            if index >= columns {
                let message = format!("{place} has {columns} columns, expected a target in column {}", index + 1);
                return Err(invalid(path, message));
            }
            if targets.contains(&index) {
                return Err(Error::attr("csv", format!("column {} is a target twice", index + 1)));
            }
            targets.push(index);
        }
        Ok(Layout { path, columns, names: names.map(<[String]>::to_vec), targets })
    }

    fn check(&self, row: &dyn Row) -> Result<()> {
        let (place, columns) = (row.place(), row.len());
        match columns == self.columns {
            true => Ok(()),
            false => {
                let message = format!("{place} has {columns} columns, expected {} as in the first", self.columns);
                Err(invalid(self.path, message))
            }
        }
    }

    /// A target; the error of `take` is what was expected of the cell.
    fn target<T>(
        &self,
        row: &dyn Row,
        column: usize,
        take: impl FnOnce(Cell<'_>) -> std::result::Result<T, String>,
    ) -> Result<T> {
        let cell = row.cell(column);
        take(cell).map_err(|expected| {
            let shown: String = String::from_utf8_lossy(&cell.text()).chars().take(40).collect();
            let message = format!("{}, column {}: expected {expected}, got {shown:?}", row.place(), column + 1);
            invalid(self.path, message)
        })
    }

    /// Adds the cells that are no targets.
    fn features(&self, row: &dyn Row, features: &mut Vec<f32>) -> Result<()> {
        for column in (0..self.columns).filter(|column| !self.targets.contains(column)) {
            features.push(self.target(row, column, |cell| cell.finite())?);
        }
        Ok(())
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
    Cell::Text(cell).finite()
}
