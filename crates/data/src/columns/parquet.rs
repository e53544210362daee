//! Parquet files. Source: `parquet.thrift` of Apache Parquet, by whose numbers fields are named here.

use super::thrift::{self, Value};
use super::{Opened, ROWS};
use crate::file::guarded;
use bytes::Bytes;
use isograd_files::{Budget, Checked, Mapped, Packing, most_rows};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

pub(super) const MAGIC: &[u8] = b"PAR1";

/// The longest values of one length: numbers with a decimal point have 32 bytes at most.
const MAX_FIXED: i64 = 1024;

pub(super) fn open(file: Mapped) -> Checked<Opened> {
    let rows = check(&file)?;
    let bytes = Bytes::from_owner(Owner(file));
    let builder = guarded(|| ParquetRecordBatchReaderBuilder::try_new(bytes))?;
    let schema = builder.schema().clone();
    Ok(Opened {
        schema,
        parts: Box::new(guarded(|| builder.with_batch_size(rows).build())?.map(|part| part.map_err(|e| e.to_string()))),
    })
}

struct Owner(Mapped);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The number of rows that may be in memory. Errors: a length that the file cannot hold. The reader makes room for what it is told.
fn check(bytes: &[u8]) -> Checked<usize> {
    let (rest, end) = bytes.split_last_chunk::<8>().ok_or("it is cut off")?;
    if end[4..] != *MAGIC {
        return Err("it is cut off".into());
    }
    let length = u32::from_le_bytes([end[0], end[1], end[2], end[3]]) as usize;
    let start = rest.len().checked_sub(length).ok_or("its description is longer than the file")?;
    let (footer, _) = thrift::read(&rest[start..])?;
    let schema = footer.list(2);
    let is_large = |v: Option<i64>, most: i64| v.is_some_and(|v| !(0..=most).contains(&v));
    if schema
        .iter()
        .any(|column| is_large(column.number(5), schema.len() as i64) || is_large(column.number(2), MAX_FIXED))
    {
        return Err("its columns have more parts or longer values than are possible".into());
    }
    let groups = footer.list(4);
    let counts = groups.iter().map(|group| group.number(3)).chain([footer.number(3)]);
    if counts.into_iter().any(|rows| is_large(rows, most_rows(bytes.len()) as i64)) {
        return Err("it announces more rows than it can hold".into());
    }
    let columns = groups.iter().flat_map(|group| group.list(1));
    let largest = columns.map(|column| column.field(3).map_or(Ok(0), |about| pages(rest, about)));
    let largest = largest.collect::<Checked<Vec<usize>>>()?.into_iter().max().unwrap_or(0);
    // A value of a dictionary, which may be most of a page, is copied for every row.
    let mut budget = Budget::new(bytes.len());
    let mut rows = ROWS;
    while rows > 1 && budget.spend(rows, largest.saturating_sub(SHORT)).is_err() {
        rows /= 2;
    }
    Ok(rows)
}

/// Bytes of pages that may be as long as they are for every row.
const SHORT: usize = 1 << 16;

/// The bytes of the largest dictionary of a column. Errors: pages that are not in the file, or longer than their bytes can be.
fn pages(bytes: &[u8], about: &Value) -> Checked<usize> {
    let number = |field| about.number(field).and_then(|v| usize::try_from(v).ok());
    let (codec, size) = (number(4).unwrap_or(0), number(7).ok_or("a column has no size")?);
    let first = number(11).filter(|at| *at > 0).into_iter().chain(number(9)).min().ok_or("a column has no place")?;
    let mut rest = first.checked_add(size).and_then(|end| bytes.get(first..end)).ok_or("a column is outside of it")?;
    let mut largest = 0;
    while !rest.is_empty() {
        let (page, length) = thrift::read(rest)?;
        let field = |field| page.number(field).and_then(|v| usize::try_from(v).ok()).ok_or("a page has no size");
        let (whole, packed) = (field(2)?, field(3)?);
        let (data, next) = rest[length..].split_at_checked(packed).ok_or("a page is outside of it")?;
        check_page(&page, data, whole, codec)?;
        if let Some(dictionary) = page.field(7) {
            // Each value takes a byte or more, but for bits.
            if dictionary.number(1).is_none_or(|count| !(0..=whole as i64).contains(&count)) {
                return Err("a dictionary has more values than bytes".into());
            }
            largest = largest.max(whole);
        }
        rest = next;
    }
    Ok(largest)
}

/// Errors: a page that unpacks to more than its compression can pack.
fn check_page(page: &Value, data: &[u8], whole: usize, codec: usize) -> Checked<()> {
    // None, Snappy, gzip, and LZ4 of two kinds; the reader refuses others.
    let packing = match codec {
        0 => Packing::None,
        1 => Packing::Snappy,
        2 => Packing::Deflate,
        _ => Packing::Lz4,
    };
    let header = page.field(8);
    let levels =
        |field| header.and_then(|header| header.number(field)).and_then(|v| usize::try_from(v).ok()).unwrap_or(0);
    let content = data.get(levels(5).saturating_add(levels(6))..).ok_or("a page has more levels than bytes")?;
    let said = if codec == 1 && !content.is_empty() && is_packed(header) { snappy(content) } else { whole };
    match whole.max(said) <= packing.most_unpacked(data.len()).saturating_add(64) && said <= whole {
        true => Ok(()),
        false => Err(format!("a page of {} bytes announces {}", data.len(), whole.max(said))),
    }
}

/// Pages of the second version may say that they are not packed.
fn is_packed(header: Option<&Value>) -> bool {
    !matches!(header.and_then(|header| header.field(7)), Some(Value::Bool(false)))
}

/// The length that begins data of Snappy's.
fn snappy(data: &[u8]) -> usize {
    let mut length = 0;
    for (byte, shift) in data.iter().zip((0..).step_by(7)).take(5) {
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return length;
        }
    }
    usize::MAX
}
