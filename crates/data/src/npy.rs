//! Arrays as NumPy saves them, in files `.npy`, and several of them by name in files `.npz`.
//!
//! Source of the formats: `numpy.lib.format`, versions 1 to 3, and `numpy.savez`.

use crate::HostTensor;
use crate::file::{self, invalid};
use crate::host::element_count;
use isograd_core::{DType, Error, Result, replace_file};
use isograd_files::{
    Archive, Checked, Content, Mapped, Order, Packing, Stored, is_archive, little_endian, looks_like, pack,
};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The bytes before the header at most: magic, version and length.
const PREFIX: usize = MAGIC.len() + 6;
/// The end of a name of a file in an archive.
const SUFFIX: &str = ".npy";
/// The data of an array begins at a multiple of this.
const ALIGNMENT: usize = 64;

/// Reads an array, gzipped or not, of floats of 16, 32 or 64 bits, of integers, or of bool, in either order of bytes and of axes. Integers of
/// 8 and 16 bits are read as i32 (u8 as u8), unsigned ones of 32 and 64 bits as i64. Errors: `Io`; `Format` for a file that is no such array, or is truncated,
/// and for an unsigned number that an i64 does not have.
pub fn read(path: impl AsRef<Path>) -> Result<HostTensor> {
    let path = path.as_ref();
    let bytes = Mapped::open(path)?;
    if !file::is_gzip(&bytes) {
        return parse(path, &bytes);
    }
    let content = file::content(&bytes[..]).map_err(|e| file::failed(path, e))?;
    unpacked(content, file::max_content(&bytes)).map_err(|message| invalid(path, message))
}

/// Reads the bytes of an array; errors name `path`.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<HostTensor> {
    array(bytes).map_err(|message| invalid(path, message))
}

/// Reads all arrays of a file `.npz`, as `numpy.savez` and `numpy.savez_compressed` write it, by name. Errors: as [`read`], and `Format` for a
/// wrong checksum.
pub fn read_all(path: impl AsRef<Path>) -> Result<BTreeMap<String, HostTensor>> {
    let path = path.as_ref();
    parse_all(path, &Mapped::open(path)?)
}

/// Reads the bytes of a file `.npz`; errors name `path`.
pub fn parse_all(path: &Path, bytes: &[u8]) -> Result<BTreeMap<String, HostTensor>> {
    arrays(bytes).map_err(|message| invalid(path, message))
}

/// Writes an array as [`replace_file`] does. Errors: `Io`; `DType` for bf16, which NumPy does not have.
pub fn write(path: impl AsRef<Path>, array: &HostTensor) -> Result<()> {
    let header = header(array)?;
    replace_file(path, &[&header, &little_endian(array.bytes(), array.dtype().size())])
}

/// Writes arrays by name to a file `.npz`, as `numpy.savez` does. Equal arrays give equal bytes. Errors: as [`write`], and `Value` for names that
/// cannot be in an archive.
pub fn write_all(path: impl AsRef<Path>, arrays: &BTreeMap<String, HostTensor>) -> Result<()> {
    let mut files = Vec::new();
    for (name, array) in arrays {
        let mut content = header(array)?;
        content.extend_from_slice(&little_endian(array.bytes(), array.dtype().size()));
        files.push((format!("{name}{SUFFIX}"), content));
    }
    let packed = pack(files.iter_mut().map(|(name, content)| (name.as_str(), std::mem::take(content))));
    replace_file(path, &[&packed.map_err(|why| Error::value("npz", why))?])
}

/// Magic, version and description of an array.
fn header(array: &HostTensor) -> Result<Vec<u8>> {
    let descr = match array.dtype() {
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::Bool => "|b1",
        other => return Err(Error::dtype("npy", format!("NumPy has no {other}, expected another dtype"))),
    };
    let shape: String = array.dims().iter().map(|extent| format!("{extent}, ")).collect();
    // A tuple of one element ends in a comma; others may.
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", shape.trim_end());
    let start = MAGIC.len() + 2 + 4;
    let length = (start + text.len() + 1).next_multiple_of(ALIGNMENT) - start;
    text.extend(std::iter::repeat_n(' ', length - text.len() - 1));
    text.push('\n');
    Ok([MAGIC, &[2, 0], &(length as u32).to_le_bytes(), text.as_bytes()].concat())
}

fn arrays(bytes: &[u8]) -> Checked<BTreeMap<String, HostTensor>> {
    if !is_archive(bytes) {
        return Err(unlike("no .npz file", bytes));
    }
    let (mut archive, most) = (Archive::open(bytes)?, Packing::Deflate.most_unpacked(bytes.len()));
    let mut arrays = BTreeMap::new();
    for file in archive.names()? {
        let Some(name) = file.strip_suffix(SUFFIX) else {
            return Err(format!("the archive has {file:?}, expected arrays, whose names end in {SUFFIX}"));
        };
        let found = archive.with(&file, |content| match content {
            Content::Stored(bytes) => array(bytes),
            Content::Packed(stream) => unpacked(stream, most),
        });
        let found = found.map_err(|why| format!("{name}: {why}"))?;
        arrays.insert(name.to_string(), found);
    }
    Ok(arrays)
}

/// The message of a file that is not what was expected, and what it looks like.
fn unlike(message: &str, bytes: &[u8]) -> String {
    looks_like(bytes).map_or_else(|| message.to_string(), |looks| format!("{message}: {looks}"))
}

fn array(bytes: &[u8]) -> Checked<HostTensor> {
    let (header, data) = parts(bytes).ok_or_else(|| no_array(bytes))?;
    Array::of(header)?.read(data.into())
}

fn no_array(start: &[u8]) -> String {
    match start.starts_with(MAGIC) || is_archive(start) {
        true if is_archive(start) => "it looks like an .npz file of several arrays, which read_all reads".to_string(),
        true => "the file is no whole array of NumPy".into(),
        false => unlike("the file is no array of NumPy", start),
    }
}

/// An array that is unpacked as it is read, of which the header comes first: nothing is unpacked that the header does not announce, nor more
/// than `most` bytes, which the file can hold.
fn unpacked(mut content: impl Read, most: usize) -> Checked<HostTensor> {
    let mut take = |bytes: &mut Vec<u8>, up_to: usize| {
        let missing = up_to.saturating_sub(bytes.len());
        let read = (&mut content).take(missing as u64).read_to_end(bytes);
        read.map(drop).map_err(|e| format!("the packed file is corrupt or truncated: {e}"))
    };
    let mut start = Vec::new();
    take(&mut start, PREFIX)?;
    let length = header_of(&start).map_or(0, |(at, length)| at.saturating_add(length));
    take(&mut start, length.min(most))?;
    let header = parts(&start).ok_or_else(|| no_array(&start))?.0;
    let array = Array::of(header)?;
    let expected = array.bytes().filter(|&bytes| bytes <= most);
    let expected =
        expected.ok_or_else(|| format!("the header promises shape {:?}, which the file cannot hold", array.shape))?;
    // The prefix may have bytes of the array, and one byte more shows whether the file goes on.
    let mut data = start.split_off(length);
    take(&mut data, expected.saturating_add(1))?;
    array.read(data.into())
}

/// The description of an array in its header.
struct Array {
    stored: Stored,
    order: Order,
    is_fortran: bool,
    shape: Vec<usize>,
}

impl Array {
    fn of(header: &str) -> Checked<Array> {
        let (stored, order) = elements(value(header, "descr")?)?;
        let is_fortran = match value(header, "fortran_order")? {
            "False" => false,
            "True" => true,
            other => return Err(format!("fortran_order is {other}, expected True or False")),
        };
        Ok(Array { stored, order, is_fortran, shape: extents(value(header, "shape")?)? })
    }

    /// The bytes of all elements, unless they overflow.
    fn bytes(&self) -> Option<usize> {
        element_count(&self.shape).and_then(|n| n.checked_mul(self.stored.size()))
    }

    fn read(self, data: Cow<'_, [u8]>) -> Checked<HostTensor> {
        let (expected, Array { stored, order, is_fortran, shape }) = (self.bytes(), self);
        if expected != Some(data.len()) {
            let (size, dtype) = (stored.size(), stored.dtype());
            return Err(format!("the array has {} bytes, expected {shape:?} of {size} bytes for {dtype}", data.len()));
        }
        let data = match is_fortran {
            true => Cow::Owned(rows_of(&data, &shape, stored.size())),
            false => data,
        };
        let native = match stored.read(&data, order).map_err(|why| format!("the array {why}"))? {
            Cow::Owned(native) => native,
            Cow::Borrowed(_) => data.into_owned(),
        };
        Ok(HostTensor::from_bytes(native, shape, stored.dtype()))
    }
}

/// The header and the elements.
fn parts(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (start, length) = header_of(bytes)?;
    let (header, data) = bytes[start..].split_at_checked(length)?;
    Some((std::str::from_utf8(header).ok()?, data))
}

/// The place of the header, and its length.
fn header_of(bytes: &[u8]) -> Option<(usize, usize)> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (length, start) = match rest.first()? {
        1 => (usize::from(u16::from_le_bytes(rest.get(2..4)?.try_into().ok()?)), 4),
        2 | 3 => (u32::from_le_bytes(rest.get(2..6)?.try_into().ok()?) as usize, 6),
        _ => return None,
    };
    Some((MAGIC.len() + start, length))
}

/// The text of a value in the header, a Python dictionary: what is in quotes or parentheses, or the text up to the comma.
fn value<'a>(header: &'a str, key: &str) -> Checked<&'a str> {
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

/// The type of elements and the order of their bytes.
fn elements(descr: &str) -> Checked<(Stored, Order)> {
    let stored = match descr.trim_start_matches(['<', '>', '|', '=']) {
        "f2" => Stored::Same(DType::F16),
        "f4" => Stored::Same(DType::F32),
        "f8" => Stored::Same(DType::F64),
        "i1" => Stored::I8,
        "i2" => Stored::I16,
        "i4" => Stored::Same(DType::I32),
        "i8" => Stored::Same(DType::I64),
        "u1" => Stored::Same(DType::U8),
        "u2" => Stored::U16,
        "u4" => Stored::U32,
        "u8" => Stored::U64,
        "b1" => Stored::Same(DType::Bool),
        "O" => return Err("its elements are objects of Python; save numbers: array.astype(\"float32\")".into()),
        _ => return Err(format!("the dtype is {descr:?}, expected f2, f4, f8, i1 to i8, u1 to u8, or b1")),
    };
    match descr.as_bytes()[0] {
        b'<' => Ok((stored, Order::Little)),
        b'>' => Ok((stored, Order::Big)),
        // Bytes have no order.
        _ if stored.size() == 1 => Ok((stored, Order::Little)),
        _ => Err(format!("the dtype is {descr:?}, expected < or > before it")),
    }
}

fn extents(shape: &str) -> Checked<Vec<usize>> {
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
            (
                whole[..whole.len() - 1].to_vec(),
                "x.npy: Format: the array has 7 bytes, expected [2] of 4 bytes for f32",
            ),
            (whole[..40].to_vec(), "the file is no whole array of NumPy"),
            (b"\x93NUM".to_vec(), "the file is no array of NumPy"),
            (b"PAR1".to_vec(), "the file is no array of NumPy: it looks like a Parquet file; "),
            (b"PK\x03\x04".to_vec(), "an .npz file of several arrays"),
            (npy("<c8", false, "(1,)", &[0; 8]), "the dtype is \"<c8\", expected f2, "),
            (npy("=f4", false, "(2,)", &[0; 8]), "the dtype is \"=f4\", expected < or > before it"),
            (npy("|O", false, "(1,)", &[0; 8]), "its elements are objects of Python"),
            (npy("<u8", false, "(1,)", &[255; 8]), "the array is unsigned, of 64 bits, and has 18446744073709551615"),
            (npy("<f4", false, "(2, x)", &[0; 8]), "the shape is (2, x), expected numbers"),
            (npy("<f4", false, &format!("({0}, {0})", usize::MAX), &[0; 8]), "the array has 8 bytes"),
            (npy("|b1", false, "(2,)", &[0, 2]), "the array is bool, but has bytes other than 0 and 1"),
        ] {
            let error = parse(Path::new("x.npy"), &bytes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn elements_of_every_type_and_order_are_read() {
        let path = Path::new("x.npy");
        let read = |descr, data: &[u8]| parse(path, &npy(descr, false, "(2,)", data)).unwrap();
        assert_eq!(read(">f4", &bytes([1.5f32, -2.0].map(f32::to_be_bytes))).to_vec::<f32>().unwrap(), [1.5, -2.0]);
        assert_eq!(read("|i1", &[255, 3]).to_vec::<i32>().unwrap(), [-1, 3]);
        assert_eq!(read("<i2", &[0, 128, 1, 0]).to_vec::<i32>().unwrap(), [-32768, 1]);
        assert_eq!(read(">u2", &[128, 0, 0, 1]).to_vec::<i32>().unwrap(), [32768, 1]);
        assert_eq!(read("<u4", &[255; 8]).to_vec::<i64>().unwrap(), [0xffff_ffff; 2]);
        assert_eq!(read("<u8", &[1; 16]).to_vec::<i64>().unwrap(), [0x0101_0101_0101_0101; 2]);
        let columns = npy(">i2", true, "(2, 2)", &[0, 1, 0, 3, 0, 2, 0, 4]);
        assert_eq!(parse(path, &columns).unwrap().to_vec::<i32>().unwrap(), [1, 2, 3, 4]);
    }

    #[test]
    fn written_arrays_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let arrays = BTreeMap::from([
            ("a".to_string(), HostTensor::new(&[1.5f32, -0.0, f32::NAN, 3.0], [2, 2]).unwrap()),
            ("scalar".into(), HostTensor::new(&[7i64], []).unwrap()),
            ("empty".into(), HostTensor::new::<bool>(&[], [3, 0]).unwrap()),
            ("vector".into(), HostTensor::vector(&[1u8, 2, 3])),
        ]);
        for array in arrays.values() {
            write(&path, array).unwrap();
            assert_eq!(&read(&path).unwrap(), array);
            assert_eq!(std::fs::read(&path).unwrap().len() - array.bytes().len(), 128);
        }
        write_all(&path, &arrays).unwrap();
        assert_eq!(read_all(&path).unwrap(), arrays);
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("an .npz file of several arrays, which read_all reads"), "{error}");
        let bf16 = HostTensor::vector(&[isograd_core::bf16::ONE]);
        assert_eq!(write(&path, &bf16).unwrap_err().kind(), isograd_core::Kind::Dtype);
        write(&path, &arrays["a"]).unwrap();
        let error = read_all(&path).unwrap_err().to_string();
        assert!(
            error.contains("no .npz file: it looks like an array of NumPy; isograd::data::npy reads it"),
            "{error}"
        );
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut encoder, bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn packed_arrays_are_not_unpacked_before_their_header_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy.gz");
        let read_of = |bytes: &[u8]| {
            std::fs::write(&path, gzip(bytes)).unwrap();
            read(&path)
        };
        let whole = npy("<i2", true, "(2, 3)", &bytes([1i16, 4, 2, 5, 3, 6].map(i16::to_le_bytes)));
        assert_eq!(read_of(&whole).unwrap().to_vec::<i32>().unwrap(), [1, 2, 3, 4, 5, 6]);
        let more = [&whole[..], &[0; 4 << 20]].concat();
        assert!(read_of(&more).unwrap_err().message().contains("the array has 13 bytes, expected [2, 3]"));
        assert!(read_of(&whole[..whole.len() - 1]).unwrap_err().message().contains("the array has 11 bytes"));
        let absurd = npy("<f8", false, "(99999999999,)", &[0; 8]);
        assert!(read_of(&absurd).unwrap_err().message().contains("which the file cannot hold"));
        let zeros = read_of(&vec![0; 4 << 20]).unwrap_err();
        assert!(zeros.message().contains("the file is no array of NumPy"), "{zeros}");
        let cut = gzip(&whole);
        std::fs::write(&path, &cut[..cut.len() - 4]).unwrap();
        assert!(read(&path).unwrap_err().message().contains("corrupt or truncated"));
    }

    #[test]
    fn archives_of_numpy_are_read() {
        let all = parse_all(Path::new("x.npz"), include_bytes!("../tests/arrays.npz")).unwrap();
        let names: Vec<&str> = all.keys().map(String::as_str).collect();
        assert_eq!(names, ["columns", "x", "y"]);
        assert_eq!((all["x"].dims(), all["x"].to_vec::<f64>().unwrap()), (&[2, 2][..], vec![0.0, 0.25, 0.5, 0.75]));
        assert_eq!(all["y"].to_vec::<i32>().unwrap(), [-3; 50]);
        assert_eq!(all["columns"].to_vec::<i64>().unwrap(), [0, 3, 1, 4, 2, 5]);
    }
}
