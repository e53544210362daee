//! The positions of a sparse matrix's entries.

use crate::backend::index_error;
use crate::check::{check_device, check_index, describe};
use crate::ops::Order;
use crate::{DType, Device, Error, Result, Tensor};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The positions of the entries of a sparse matrix `[rows, columns]`. Positions may repeat. A graph is the matrix with a row for each
/// target, a column for each source, and an entry for each edge.
///
/// The lists of entries by row and by column are made on the device when they are first needed, and kept. They are constants, and
/// changes in place of the tensors from which they were made do not affect them. Clones share them.
#[derive(Clone)]
pub struct Csr(Arc<Inner>);

struct Inner {
    rows: usize,
    columns: usize,
    /// The column of each entry. Like all tensors here it is i32, or i64 if the extents need it.
    column: Tensor,
    row: OnceLock<Tensor>,
    by_row: OnceLock<EntryLists>,
    by_column: OnceLock<EntryLists>,
    to_rows: OnceLock<Csr>,
}

/// The entries of each row, or of each column, in ascending order.
#[derive(Clone, Debug)]
pub struct EntryLists {
    /// The start of each list, and the number of entries: `[lists + 1]`.
    pub starts: Tensor,
    /// The column of each entry of a row, or the row of each entry of a column.
    pub others: Tensor,
    /// The numbers of the entries; `None` if entry k is at position k.
    pub entries: Option<Tensor>,
}

impl EntryLists {
    /// Sorts entries into a list for each value of `own`, which is below `count`. `others` has their other coordinate.
    pub(in crate::ops) fn new(own: &Tensor, others: &Tensor, count: usize) -> Result<EntryLists> {
        let (entries, dtype, device) = (own.numel(), own.dtype(), own.device());
        let order = own.argsort(0, Order::Ascending)?;
        let ones = Tensor::ones(entries, DType::I64, device)?;
        let after = own.cast(DType::I64)?.add_scalar(1)?;
        let starts =
            Tensor::zeros(count + 1, DType::I64, device)?.index_add(0, &after, &ones, 1)?.cumsum(0)?.cast(dtype)?;
        let others = others.index_select(0, &order)?;
        Ok(EntryLists { starts: starts.contiguous()?, others, entries: Some(order.cast(dtype)?.contiguous()?) })
    }
}

impl Csr {
    /// A pattern from compressed rows: the entries of row i are `row_ptr[i]..row_ptr[i + 1]`, in the columns `col[..]`, which need not be
    /// sorted. `row_ptr` is `[rows + 1]` and `col` `[entries]`, i64 or i32. Waits for the device. Errors: `Shape`, `Dtype`, `Device`;
    /// `Value` unless `row_ptr` begins with 0, does not decrease and ends with the number of entries, and columns are below `columns`.
    pub fn new(row_ptr: &Tensor, col: &Tensor, columns: usize) -> Result<Csr> {
        let op = "csr";
        check_index(op, row_ptr)?;
        check_index(op, col)?;
        check_device(op, &[row_ptr, col])?;
        if row_ptr.rank() != 1 || row_ptr.numel() == 0 || col.rank() != 1 {
            let message =
                format!("row_ptr is {}, col {}, expected [rows + 1] and [entries]", row_ptr.shape(), col.shape());
            return Err(Error::shape(op, message));
        }
        let (rows, entries) = (row_ptr.numel() - 1, col.numel());
        check_extents(op, [rows, columns], [row_ptr, col])?;
        check_rows(row_ptr, entries)?;
        if let Some((at, value)) = first_outside(col, columns)? {
            return Err(Error::value(op, format!("element {at} of col is {value}, expected 0..{columns}")));
        }
        Csr::of_rows(row_ptr, col, columns)
    }

    /// [`Csr::new`] without its checks.
    pub(in crate::ops) fn of_rows(row_ptr: &Tensor, col: &Tensor, columns: usize) -> Result<Csr> {
        let (rows, entries) = (row_ptr.numel() - 1, col.numel());
        let dtype = index_dtype(&[rows, columns, entries]);
        let (starts, column) = (own(row_ptr, dtype)?, own(col, dtype)?);
        let lists = EntryLists { starts, others: column.clone(), entries: None };
        Ok(Csr::of(rows, columns, column, OnceLock::new(), lists.into()))
    }

    /// A pattern with an entry at `[row[e], column[e]]` for each e: the edges of a graph from sources `column` to targets `row`. Both are
    /// `[entries]`, i64 or i32. Waits for the device. Errors: `Shape`, `Dtype`, `Device`; `Index` for a row or column out of range.
    pub fn from_entries(row: &Tensor, column: &Tensor, [rows, columns]: [usize; 2]) -> Result<Csr> {
        let op = "csr";
        check_index(op, row)?;
        check_index(op, column)?;
        check_device(op, &[row, column])?;
        if row.rank() != 1 || row.shape() != column.shape() {
            return Err(Error::shape(op, format!("{}, expected [entries] twice", describe(&[row, column]))));
        }
        check_extents(op, [rows, columns], [row, column])?;
        for (index, extent) in [(row, rows), (column, columns)] {
            if let Some((at, value)) = first_outside(index, extent)? {
                return Err(index_error(op, at as i64, value, extent));
            }
        }
        let dtype = index_dtype(&[rows, columns, row.numel()]);
        Ok(Csr::of(rows, columns, own(column, dtype)?, own(row, dtype)?.into(), OnceLock::new()))
    }

    fn of(rows: usize, columns: usize, column: Tensor, row: OnceLock<Tensor>, by_row: OnceLock<EntryLists>) -> Csr {
        let (by_column, to_rows) = (OnceLock::new(), OnceLock::new());
        Csr(Arc::new(Inner { rows, columns, column, row, by_row, by_column, to_rows }))
    }

    /// The number of rows, or targets.
    pub fn rows(&self) -> usize {
        self.0.rows
    }

    /// The number of columns, or sources.
    pub fn columns(&self) -> usize {
        self.0.columns
    }

    /// The number of entries, or edges.
    pub fn entries(&self) -> usize {
        self.0.column.numel()
    }

    /// The device of the pattern.
    pub fn device(&self) -> &Device {
        self.0.column.device()
    }

    /// The row of each entry: i64 `[entries]`, a copy.
    pub fn row(&self) -> Result<Tensor> {
        own(self.row_index()?, DType::I64)
    }

    /// The column of each entry: i64 `[entries]`, a copy.
    pub fn column(&self) -> Result<Tensor> {
        own(&self.0.column, DType::I64)
    }

    /// The number of entries of each row: i64 `[rows]`.
    pub fn row_counts(&self) -> Result<Tensor> {
        counts(&self.by_row()?.starts, self.rows())
    }

    /// The number of entries of each column: i64 `[columns]`.
    pub fn column_counts(&self) -> Result<Tensor> {
        counts(&self.by_column()?.starts, self.columns())
    }

    pub(crate) fn row_index(&self) -> Result<&Tensor> {
        kept(&self.0.row, || {
            // Only compressed rows come without the row of each entry.
            let lists = self.by_row()?;
            row_of_positions(&lists.starts, self.entries())
        })
    }

    pub(crate) fn column_index(&self) -> &Tensor {
        &self.0.column
    }

    /// The entries of each row.
    pub(crate) fn by_row(&self) -> Result<&EntryLists> {
        kept(&self.0.by_row, || match self.0.row.get() {
            Some(row) => EntryLists::new(row, &self.0.column, self.rows()),
            None => Err(Error::value("csr", "a pattern has its rows as lists or by entry")),
        })
    }

    /// The entries of each column.
    pub(super) fn by_column(&self) -> Result<&EntryLists> {
        kept(&self.0.by_column, || EntryLists::new(&self.0.column, self.row_index()?, self.columns()))
    }

    /// The pattern `[rows, entries]` with entry e in column e. It reduces the messages of edges to nodes.
    pub(crate) fn to_rows(&self) -> Result<&Csr> {
        kept(&self.0.to_rows, || {
            let (entries, by_row) = (self.entries(), self.by_row()?);
            let dtype = self.0.column.dtype();
            let column = Tensor::arange(entries, self.device())?.cast(dtype)?;
            let others = by_row.entries.clone().unwrap_or_else(|| column.clone());
            let lists = EntryLists { starts: by_row.starts.clone(), others, entries: by_row.entries.clone() };
            let pattern = Csr::of(self.rows(), entries, column, self.row_index()?.clone().into(), lists.into());
            let starts = Tensor::arange(entries + 1, self.device())?.cast(dtype)?;
            kept(&pattern.0.by_column, || Ok(EntryLists { starts, others: self.row_index()?.clone(), entries: None }))?;
            Ok(pattern)
        })
    }
}

impl fmt::Debug for Csr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, columns, entries) = (self.rows(), self.columns(), self.entries());
        let row_ptr = rows.saturating_add(1);
        write!(f, "Csr [{rows}, {columns}], row_ptr [{row_ptr}], col [{entries}] on {}", self.device())
    }
}

/// The value that is kept in `place`, or is made now.
fn kept<T>(place: &OnceLock<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(value) = place.get() {
        return Ok(value);
    }
    let value = make()?;
    Ok(place.get_or_init(|| value))
}

/// i32, unless an extent needs i64.
fn index_dtype(extents: &[usize]) -> DType {
    if extents.iter().all(|&n| n <= i32::MAX as usize) { DType::I32 } else { DType::I64 }
}

/// A contiguous copy.
fn own(index: &Tensor, dtype: DType) -> Result<Tensor> {
    if index.dtype() == dtype { index.copy() } else { index.cast(dtype)?.contiguous() }
}

/// The first element outside of `0..extent`, with its position. Only a count is read back, if all is well.
fn first_outside(index: &Tensor, extent: usize) -> Result<Option<(usize, i64)>> {
    let extent = i64::try_from(extent).unwrap_or(i64::MAX);
    let wide = index.cast(DType::I64)?;
    let is_outside = wide.lt_scalar(0)?.logical_or(&wide.ge_scalar(extent)?)?;
    if is_outside.sum(..)?.item::<f64>()? == 0.0 {
        return Ok(None);
    }
    Ok(wide.to_vec::<i64>()?.into_iter().enumerate().find(|&(_, v)| !(0..extent).contains(&v)))
}

/// Checks that `row_ptr` rises from 0 to the number of entries.
fn check_rows(row_ptr: &Tensor, entries: usize) -> Result<()> {
    let (rows, ptr) = (row_ptr.numel() - 1, row_ptr.cast(DType::I64)?);
    let end = ptr.narrow(0, rows, 1)?.sub_scalar(entries as i64)?;
    let falls = ptr.narrow(0, 1, rows)?.lt(&ptr.narrow(0, 0, rows)?)?.sum(..)?.reshape(1)?;
    // All are 0 if all is well.
    let found = Tensor::concat(&[&ptr.narrow(0, 0, 1)?, &end, &falls], 0)?.to_vec::<i64>()?;
    let wrong = |message: String| Err(Error::value("csr", message));
    match found[..] {
        [0, 0, 0] => Ok(()),
        [0, 0, _] => {
            let all = ptr.to_vec::<i64>()?;
            let at = (0..rows).find(|&i| all[i + 1] < all[i]).unwrap_or(0);
            wrong(format!("row_ptr decreases from {} to {} at row {at}", all[at], all[at + 1]))
        }
        [0, end, _] => {
            // The difference wraps.
            let end = end.wrapping_add(entries as i64);
            wrong(format!("row_ptr ends with {end}, expected {entries}, the length of col"))
        }
        _ => wrong(format!("row_ptr begins with {}, expected 0", found[0])),
    }
}

/// The number of entries of each list.
fn counts(starts: &Tensor, lists: usize) -> Result<Tensor> {
    let starts = starts.cast(DType::I64)?;
    starts.narrow(0, 1, lists)?.sub(&starts.narrow(0, 0, lists)?)
}

/// For each position in lists that begin at `starts`: the number of its list, in the dtype of `starts`.
pub(in crate::ops) fn row_of_positions(starts: &Tensor, positions: usize) -> Result<Tensor> {
    let rows = starts.numel() - 1;
    // The number of lists that end at or before a position.
    let (ends, ones) = (starts.narrow(0, 1, rows)?, Tensor::ones(rows, DType::I64, starts.device())?);
    let ended = Tensor::zeros(positions + 1, DType::I64, starts.device())?.index_add(0, &ends, &ones, 1)?;
    ended.cumsum(0)?.narrow(0, 0, positions)?.cast(starts.dtype())?.contiguous()
}

/// Refuses extents whose lists of positions memory cannot address.
fn check_extents(op: &'static str, [rows, columns]: [usize; 2], given: [&Tensor; 2]) -> Result<()> {
    if rows.max(columns) < isize::MAX as usize / 16 {
        return Ok(());
    }
    let message = format!("{rows} rows and {columns} columns are more than memory can address");
    Err(Error::shape(op, format!("{message}: {}", describe(&given))))
}
