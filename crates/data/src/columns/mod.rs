//! Tables in Parquet and Arrow files, row by row.

mod arrow;
mod parquet;
mod thrift;

use crate::csv::{Cell, Row};
use crate::file::{guarded, invalid};
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_cast::cast;
use arrow_schema::{DataType, SchemaRef};
use isograd_core::Result;
use isograd_files::{Checked, Mapped};
use std::path::Path;

/// The rows that are in memory.
const ROWS: usize = 1024;

/// An open file: its columns, and its rows in parts.
struct Opened {
    schema: SchemaRef,
    parts: Box<dyn Iterator<Item = Checked<RecordBatch>>>,
}

/// A file of columns, in parts of some rows.
pub(crate) struct Columns {
    names: Vec<String>,
    /// The type that each column is read as.
    kinds: Vec<DataType>,
    parts: Box<dyn Iterator<Item = Checked<RecordBatch>>>,
}

/// A function that gets every row.
type Visit<'a> = dyn FnMut(&dyn Row) -> Result<()> + 'a;

impl Columns {
    /// Opens a Parquet file, or else an Arrow file. Errors: `Io`; `Format` for a damaged file, and for a column of other types.
    pub(crate) fn open(path: &Path) -> Result<Columns> {
        let file = Mapped::open(path)?;
        let opened = if file.starts_with(parquet::MAGIC) { parquet::open(file) } else { arrow::open(file) };
        let Opened { schema, parts } = opened.map_err(|why| damaged(path, &why))?;
        let kind = |field: &arrow_schema::FieldRef| {
            plain(field.data_type()).ok_or_else(|| {
                let (name, found) = (field.name(), field.data_type());
                invalid(path, format!("the column {name} is {found}, expected numbers, texts or dates"))
            })
        };
        let kinds = schema.fields().iter().map(kind).collect::<Result<_>>()?;
        Ok(Columns { names: schema.fields().iter().map(|field| field.name().clone()).collect(), kinds, parts })
    }

    /// The names of the columns.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Calls a function with every row.
    pub(crate) fn each_row(self, path: &Path, f: &mut Visit<'_>) -> Result<()> {
        let Columns { kinds, mut parts, .. } = self;
        let mut before = 0;
        while let Some(part) = guarded(|| Ok::<_, String>(parts.next())).map_err(|why| damaged(path, &why))? {
            let part = part.map_err(|why| damaged(path, &why))?;
            for start in (0..part.num_rows()).step_by(ROWS) {
                let part = part.slice(start, ROWS.min(part.num_rows() - start));
                let columns = part.columns().iter().zip(&kinds).map(|(column, kind)| guarded(|| cast(column, kind)));
                let columns = columns.collect::<Checked<Vec<ArrayRef>>>().map_err(|why| damaged(path, &why))?;
                for row in 0..part.num_rows() {
                    f(&Place { columns: &columns, row, number: before + row as u64 + 1 })?;
                }
                before += part.num_rows() as u64;
            }
        }
        Ok(())
    }
}

fn damaged(path: &Path, why: &str) -> isograd_core::Error {
    invalid(path, format!("not a whole table: {why}"))
}

/// The type that a column is read as: f64, or texts, which dates become in the form of ISO 8601. None for other types.
fn plain(kind: &DataType) -> Option<DataType> {
    match kind {
        kind if kind.is_numeric() || *kind == DataType::Boolean => Some(DataType::Float64),
        DataType::Dictionary(_, value) if value.is_numeric() => Some(DataType::Float64),
        kind if kind.is_string() => Some(DataType::Utf8),
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => Some(DataType::Utf8),
        DataType::Dictionary(_, value) if value.is_string() => Some(DataType::Utf8),
        _ => None,
    }
}

/// A row of a part.
struct Place<'a> {
    columns: &'a [ArrayRef],
    row: usize,
    /// Counted from 1 in the file.
    number: u64,
}

impl Row for Place<'_> {
    fn place(&self) -> String {
        format!("row {}", self.number)
    }

    fn len(&self) -> usize {
        self.columns.len()
    }

    /// An absent value is an empty text.
    fn cell(&self, column: usize) -> Cell<'_> {
        let array = &self.columns[column];
        match array.as_primitive_opt::<Float64Type>() {
            _ if array.is_null(self.row) => Cell::Text(&[]),
            Some(numbers) => Cell::Number(numbers.value(self.row)),
            None => Cell::Text(array.as_string::<i32>().value(self.row).as_bytes()),
        }
    }
}
