//! Arrays as NumPy saves them, in files `.npy`.
//!
//! Source of the format: `numpy.lib.format`, versions 1 to 3.

use crate::HostTensor;
use crate::file::{self, invalid};
use crate::host::element_count;
use isograd_core::{DType, Result};
use std::io::Read;
use std::path::Path;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Reads an array, gzipped or not, of floats of 16, 32 or 64 bits, of integers of 32 or 64, of u8 or of bool, in the order of little-endian
/// bytes. Errors: `Io`; `Format` for a file that is no such array, or is truncated.
pub fn read(path: impl AsRef<Path>) -> Result<HostTensor> {
    let path = path.as_ref();
    let bytes = file::read(path)?;
    let mut content = Vec::new();
    let unpacked = file::content(&bytes[..]).and_then(|mut reader| reader.read_to_end(&mut content));
    unpacked.map_err(|e| file::failed(path, e))?;
    parse(path, &content)
}

/// Reads the bytes of an array; errors name `path`.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<HostTensor> {
    array(bytes).map_err(|message| invalid(path, message))
}

fn array(bytes: &[u8]) -> std::result::Result<HostTensor, String> {
    let (header, data) = parts(bytes).ok_or("the file is no array of NumPy")?;
    let descr = value(header, "descr")?;
    let (dtype, order) = (dtype(descr)?, value(header, "fortran_order")?);
    let shape = extents(value(header, "shape")?)?;
    let expected = element_count(&shape).and_then(|n| n.checked_mul(dtype.size()));
    if expected != Some(data.len()) {
        return Err(format!("the array has {} bytes, expected {shape:?} of {dtype}", data.len()));
    }
    if dtype == DType::Bool && data.iter().any(|&b| b > 1) {
        return Err("a bool is neither 0 nor 1".into());
    }
    match order {
        "False" => Ok(HostTensor::from_bytes(data.to_vec(), shape, dtype)),
        "True" => Ok(HostTensor::from_bytes(rows_of(data, &shape, dtype.size()), shape, dtype)),
        _ => Err(format!("fortran_order is {order}, expected True or False")),
    }
}

/// The header and the elements.
fn parts(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (length, start) = match rest.first()? {
        1 => (usize::from(u16::from_le_bytes(rest.get(2..4)?.try_into().ok()?)), 4),
        2 | 3 => (u32::from_le_bytes(rest.get(2..6)?.try_into().ok()?) as usize, 6),
        _ => return None,
    };
    let (header, data) = rest[start..].split_at_checked(length)?;
    Some((std::str::from_utf8(header).ok()?, data))
}

/// The text of a value in the header, a Python dictionary: what is in quotes or parentheses, or the text up to the comma.
fn value<'a>(header: &'a str, key: &str) -> std::result::Result<&'a str, String> {
    let missing = || format!("the header {:?} has no {key}", header.trim());
    let found = ["'", "\""].iter().find_map(|quote| header.split_once(&format!("{quote}{key}{quote}:")));
    let rest = found.ok_or_else(missing)?.1.trim_start();
    let end = match rest.chars().next() {
        Some('(') => rest.find(')').map(|end| (1, end)),
        Some(quote @ ('\'' | '"')) => rest[1..].find(quote).map(|end| (1, end + 1)),
        _ => rest.find([',', '}']).map(|end| (0, end)),
    };
    let (start, end) = end.ok_or_else(missing)?;
    Ok(rest[start..end].trim())
}

fn dtype(descr: &str) -> std::result::Result<DType, String> {
    match descr {
        "<f2" => Ok(DType::F16),
        "<f4" => Ok(DType::F32),
        "<f8" => Ok(DType::F64),
        "<i4" => Ok(DType::I32),
        "<i8" => Ok(DType::I64),
        "|u1" => Ok(DType::U8),
        "|b1" => Ok(DType::Bool),
        _ => Err(format!("the dtype is {descr:?}, expected one of <f2, <f4, <f8, <i4, <i8, |u1, |b1")),
    }
}

fn extents(shape: &str) -> std::result::Result<Vec<usize>, String> {
    let each = shape.split(',').map(str::trim).filter(|extent| !extent.is_empty());
    each.map(|extent| extent.parse().map_err(|_| format!("the shape is ({shape}), expected numbers"))).collect()
}

/// Elements whose first index runs fastest, in the order in which the last does.
fn rows_of(data: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let mut steps = vec![1; shape.len()];
    for d in 1..shape.len() {
        steps[d] = steps[d - 1] * shape[d - 1];
    }
    let mut rows = Vec::with_capacity(data.len());
    for i in 0..data.len() / size {
        let (mut rest, mut at) = (i, 0);
        for d in (0..shape.len()).rev() {
            at += rest % shape[d] * steps[d];
            rest /= shape[d];
        }
        rows.extend_from_slice(&data[at * size..(at + 1) * size]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file of an array, with the header that NumPy writes.
    fn npy(descr: &str, is_fortran: bool, shape: &str, data: &[u8]) -> Vec<u8> {
        let order = if is_fortran { "True" } else { "False" };
        let mut header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
        header.push_str(&" ".repeat(63 - (header.len() + 10) % 64));
        header.push('\n');
        [MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes(), header.as_bytes(), data].concat()
    }

    fn bytes<const N: usize>(values: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
        values.into_iter().flatten().collect()
    }

    #[test]
    fn arrays_of_both_orders_are_read() {
        let path = Path::new("x.npy");
        let rows = npy("<f8", false, "(2, 3)", &bytes([1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0].map(f64::to_le_bytes)));
        let read = parse(path, &rows).unwrap();
        assert_eq!((read.dims(), read.to_vec::<f64>().unwrap()), (&[2, 3][..], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
        let columns = npy("<i4", true, "(2, 3)", &bytes([1i32, 4, 2, 5, 3, 6].map(i32::to_le_bytes)));
        assert_eq!(parse(path, &columns).unwrap().to_vec::<i32>().unwrap(), [1, 2, 3, 4, 5, 6]);
        let vector = parse(path, &npy("|u1", true, "(4,)", &[7, 8, 9, 10])).unwrap();
        assert_eq!((vector.dims(), vector.to_vec::<u8>().unwrap()), (&[4][..], vec![7, 8, 9, 10]));
        assert_eq!(parse(path, &npy("<f4", false, "()", &1.5f32.to_le_bytes())).unwrap().dims(), [0usize; 0]);
        assert_eq!(parse(path, &npy("<f4", false, "(0, 5)", &[])).unwrap().dims(), [0, 5]);
        // A file of NumPy 2.3: np.save of np.array([[0.5, -1]], dtype=np.float32).
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }";
        let known =
            [&b"\x93NUMPY\x01\x00v\x00"[..], text.as_bytes(), &[b' '; 58], b"\n", b"\0\0\0?\0\0\x80\xbf"].concat();
        assert_eq!(known.len(), 136);
        assert_eq!(parse(path, &known).unwrap().to_vec::<f32>().unwrap(), [0.5, -1.0]);
    }

    #[test]
    fn files_that_are_no_arrays_are_refused() {
        let whole = npy("<f4", false, "(2,)", &[0; 8]);
        for (bytes, expected) in [
            (whole[..whole.len() - 1].to_vec(), "x.npy: Format: the array has 7 bytes, expected [2] of f32"),
            (whole[..40].to_vec(), "the file is no array of NumPy"),
            (b"\x93NUM".to_vec(), "the file is no array of NumPy"),
            (npy(">f4", false, "(2,)", &[0; 8]), "the dtype is \">f4\", expected one of <f2"),
            (npy("<f4", false, "(2, x)", &[0; 8]), "the shape is (2, x), expected numbers"),
            (npy("<f4", false, &format!("({0}, {0})", usize::MAX), &[0; 8]), "the array has 8 bytes"),
            (npy("|b1", false, "(2,)", &[0, 2]), "a bool is neither 0 nor 1"),
        ] {
            let error = parse(Path::new("x.npy"), &bytes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
