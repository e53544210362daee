//! Tables in Parquet and Arrow files, row by row.

use crate::csv::{Cell, Row};
use crate::file::invalid;
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_cast::cast;
use arrow_ipc::reader::FileReader;
use arrow_schema::{ArrowError, DataType};
use isograd_core::{Error, Result};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

/// The rows of a Parquet file that are in memory.
const ROWS: usize = 1024;

/// A file of columns, in parts of some rows.
pub(crate) struct Columns {
    names: Vec<String>,
    parts: Box<dyn Iterator<Item = std::result::Result<RecordBatch, ArrowError>>>,
}

impl Columns {
    /// Opens a Parquet file, or else an Arrow file. Errors: `Io`; `Format` for a damaged file.
    pub(crate) fn open(path: &Path) -> Result<Columns> {
        let failed = |e| Error::io(path, "reading", e);
        let mut file = File::open(path).map_err(failed)?;
        let mut magic = [0; 4];
        file.read_exact(&mut magic).map_err(failed)?;
        file.rewind().map_err(failed)?;
        let damaged = |e: &dyn std::fmt::Display| invalid(path, format!("not a whole table: {e}"));
        let (schema, parts): (_, Box<dyn Iterator<Item = _>>) = if magic == *b"PAR1" {
            let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| damaged(&e))?;
            let schema = builder.schema().clone();
            (schema, Box::new(builder.with_batch_size(ROWS).build().map_err(|e| damaged(&e))?))
        } else {
            let reader = FileReader::try_new(BufReader::new(file), None).map_err(|e| damaged(&e))?;
            (reader.schema(), Box::new(reader))
        };
        let names = schema.fields().iter().map(|field| field.name().clone()).collect();
        Ok(Columns { names, parts })
    }

    /// Calls a function with every row and the names of the columns.
    pub(crate) fn each_row(
        self,
        path: &Path,
        f: &mut dyn FnMut(&dyn Row, Option<&[String]>) -> Result<()>,
    ) -> Result<()> {
        let mut before = 0;
        for part in self.parts {
            let part = part.map_err(|e| invalid(path, format!("not a whole table: {e}")))?;
            let columns = part.columns().iter().zip(&self.names);
            let columns: Vec<ArrayRef> =
                columns.map(|(column, name)| plain(path, name, column)).collect::<Result<_>>()?;
            for row in 0..part.num_rows() {
                f(&Place { columns: &columns, row, number: before + row as u64 + 1 }, Some(&self.names))?;
            }
            before += part.num_rows() as u64;
        }
        Ok(())
    }
}

/// A column as f64, or as texts. Errors: `Format` for a column of neither numbers nor texts.
fn plain(path: &Path, name: &str, column: &ArrayRef) -> Result<ArrayRef> {
    let to = match column.data_type() {
        kind if kind.is_numeric() || *kind == DataType::Boolean => DataType::Float64,
        DataType::Dictionary(_, value) if value.is_numeric() => DataType::Float64,
        kind if kind.is_string() => DataType::Utf8,
        DataType::Dictionary(_, value) if value.is_string() => DataType::Utf8,
        other => {
            return Err(invalid(path, format!("the column {name} is {other}, expected numbers or texts")));
        }
    };
    cast(column, &to).map_err(|e| invalid(path, format!("the column {name} cannot be read: {e}")))
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
