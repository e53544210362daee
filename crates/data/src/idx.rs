//! IDX, the format of the MNIST files: two zero bytes, a type, a rank, big-endian extents, then the values.
//!
//! Source: "The MNIST database", Y. LeCun, C. Cortes, C. Burges, section "File formats". Files may be gzipped, whatever their
//! name; the content decides.

use crate::file::{self, invalid};
use crate::host::element_count;
use isograd_core::Result;
use std::io::Read;
use std::path::Path;

/// The values of an IDX file, in the type that the file has.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Type 0x08.
    U8(Vec<u8>),
    /// Type 0x09.
    I8(Vec<i8>),
    /// Type 0x0b.
    I16(Vec<i16>),
    /// Type 0x0c.
    I32(Vec<i32>),
    /// Type 0x0d.
    F32(Vec<f32>),
    /// Type 0x0e.
    F64(Vec<f64>),
}

/// A whole IDX file.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// The extents, outermost first.
    pub shape: Vec<usize>,
    /// The values in row-major order.
    pub values: Values,
}

/// Images of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// How many.
    pub count: usize,
    /// The height of each.
    pub rows: usize,
    /// The width of each.
    pub columns: usize,
    /// `[count, rows, columns]` in row-major order, 0 to 255.
    pub pixels: Vec<u8>,
}

/// Reads an IDX file of any type. Errors: `Io` if it cannot be read, `Format` if it is no complete IDX file or goes on after its end.
pub fn read(path: impl AsRef<Path>) -> Result<Array> {
    let path = path.as_ref();
    parse(path, &isograd_files::read(path)?)
}

/// Reads images: a u8 file of rank 3. Errors: as [`read`], and `Format` for another type or rank.
pub fn read_images(path: impl AsRef<Path>) -> Result<Images> {
    let (shape, pixels) = read_u8(path.as_ref(), "images are u8 of rank 3 (magic 00000803)", 3)?;
    Ok(Images { count: shape[0], rows: shape[1], columns: shape[2], pixels })
}

/// Reads labels: a u8 file of rank 1. Errors: as [`read`], and `Format` for another type or rank.
pub fn read_labels(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    Ok(read_u8(path.as_ref(), "labels are u8 of rank 1 (magic 00000801)", 1)?.1)
}

/// Reads the bytes of an IDX file, gzipped or not; errors name `path`.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Array> {
    let mut content = file::content(bytes).map_err(|e| file::failed(path, e))?;
    let magic = read_exact(path, &mut content, 4, "the magic number")?;
    let header = Header::parse(path, &magic)?;
    let extents = read_exact(path, &mut content, 4 * header.rank, "the extents")?;
    let shape = extents.as_chunks().0.iter().map(|&b| u32::from_be_bytes(b) as usize).collect::<Vec<_>>();
    let expected = element_count(&shape).and_then(|n| n.checked_mul(header.size));
    // The header may promise anything; nothing is allocated for what the file cannot hold.
    let expected = expected.filter(|&n| n <= file::max_content(bytes)).ok_or_else(|| {
        let message = format!("the header promises shape {shape:?}, which a file of {} bytes cannot hold", bytes.len());
        invalid(path, message)
    })?;
    let body = read_body(path, content, expected, &shape)?;
    Ok(Array { values: header.values(&body), shape })
}

struct Header {
    kind: u8,
    size: usize,
    rank: usize,
}

impl Header {
    fn parse(path: &Path, magic: &[u8]) -> Result<Header> {
        let &[0, 0, kind, rank] = magic else { return Err(wrong_magic(path, magic)) };
        let size = match kind {
            0x08 | 0x09 => 1,
            0x0b => 2,
            0x0c | 0x0d => 4,
            0x0e => 8,
            _ => return Err(wrong_magic(path, magic)),
        };
        Ok(Header { kind, size, rank: rank as usize })
    }

    fn values(&self, body: &[u8]) -> Values {
        match self.kind {
            0x09 => Values::I8(body.iter().map(|&b| b as i8).collect()),
            0x0b => Values::I16(body.as_chunks().0.iter().map(|&b| i16::from_be_bytes(b)).collect()),
            0x0c => Values::I32(body.as_chunks().0.iter().map(|&b| i32::from_be_bytes(b)).collect()),
            0x0d => Values::F32(body.as_chunks().0.iter().map(|&b| f32::from_be_bytes(b)).collect()),
            0x0e => Values::F64(body.as_chunks().0.iter().map(|&b| f64::from_be_bytes(b)).collect()),
            _ => Values::U8(body.to_vec()),
        }
    }
}

fn wrong_magic(path: &Path, magic: &[u8]) -> isograd_core::Error {
    let hex: String = magic.iter().map(|b| format!("{b:02x}")).collect();
    invalid(path, format!("the magic number is {hex}, expected 0000, a type (08, 09, 0b, 0c, 0d or 0e) and a rank"))
}

fn read_exact(path: &Path, content: &mut dyn Read, n: usize, what: &str) -> Result<Vec<u8>> {
    let bytes = read_up_to(path, content, n)?;
    if bytes.len() == n {
        return Ok(bytes);
    }
    Err(invalid(path, format!("the file ends within {what}: expected {n} bytes, got {}", bytes.len())))
}

fn read_body(path: &Path, mut content: impl Read, expected: usize, shape: &[usize]) -> Result<Vec<u8>> {
    // One byte more shows whether the file goes on, and makes the decoder check the sum at its end.
    let body = read_up_to(path, &mut content, expected + 1)?;
    let promise = || format!("shape {shape:?} needs {expected} bytes after the header");
    match body.len() {
        n if n == expected => Ok(body),
        n if n < expected => Err(invalid(path, format!("the file is truncated: {}, got {n}", promise()))),
        _ => Err(invalid(path, format!("the file goes on after its end: {}, got more", promise()))),
    }
}

fn read_up_to(path: &Path, content: &mut dyn Read, n: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = content.take(n as u64).read_to_end(&mut bytes);
    read.map_err(|e| file::failed(path, e))?;
    Ok(bytes)
}

fn read_u8(path: &Path, expected: &str, rank: usize) -> Result<(Vec<usize>, Vec<u8>)> {
    let Array { shape, values } = read(path)?;
    match values {
        Values::U8(bytes) if shape.len() == rank => Ok((shape, bytes)),
        other => Err(invalid(path, format!("{expected}, got {} of shape {shape:?}", other.type_name()))),
    }
}

impl Values {
    fn type_name(&self) -> &'static str {
        match self {
            Values::U8(_) => "u8",
            Values::I8(_) => "i8",
            Values::I16(_) => "i16",
            Values::I32(_) => "i32",
            Values::F32(_) => "f32",
            Values::F64(_) => "f64",
        }
    }
}
