//! Tensors in files: safetensors, written aside and renamed.

use crate::StateDict;
use isograd_core::{DType, Device, Error, Kind, Result, Tensor};
use safetensors::tensor::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

/// The key under which the file's header keeps the caller's text.
const TEXT: &str = "isograd";
/// The key of the checksum, by which a damaged file is known.
const CHECKSUM: &str = "isograd.checksum";

/// What a file holds.
#[derive(Debug)]
pub struct Contents {
    /// The tensors by name.
    pub tensors: StateDict,
    /// The text that was saved with them, empty if there was none.
    pub metadata: String,
}

/// Writes tensors and a text (JSON, say) to a safetensors file as [`replace_file`] does; the same tensors give the same
/// bytes. Errors: `Io` naming the path.
pub fn save(path: impl AsRef<Path>, tensors: &StateDict, metadata: &str) -> Result<()> {
    let path = path.as_ref();
    let mut data = Vec::new();
    let mut header = Map::new();
    let mut sum = digest(BASIS, metadata.as_bytes());
    for (name, t) in tensors {
        let start = data.len();
        data.extend(little_endian(&t.to_bytes()?, t.dtype().size()).as_ref());
        sum = digest_tensor(sum, name, t.dtype(), t.dims(), &data[start..]);
        let (dtype, shape) = (format!("{:?}", to_file(t.dtype())), t.dims());
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()] }));
    }
    let sum = format!("{sum:016x}");
    header.insert("__metadata__".into(), json!({ TEXT: metadata, CHECKSUM: sum }));
    let mut header = Value::Object(header).to_string();
    // Blanks at the end align the data, for readers that map the file.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let length = (header.len() as u64).to_le_bytes();
    replace_file(path, &[&length, header.as_bytes(), &data])
}

/// Replaces a file by these parts, one after the other: they are written under another name in the same folder, flushed
/// to the disk and renamed, so that `path` is the old file or the new one whatever happens. Errors: `Io` naming the path;
/// then nothing is left beside it.
pub fn replace_file(path: impl AsRef<Path>, parts: &[&[u8]]) -> Result<()> {
    let path = path.as_ref();
    write_aside(path, parts).map_err(|e| Error::io(path, "writing", e))
}

fn write_aside(path: &Path, parts: &[&[u8]]) -> std::io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".isograd-").suffix(".tmp");
    // Readable by whom the user's mask allows, as other files are.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    // The new name is on the disk once the folder is.
    #[cfg(unix)]
    std::fs::File::open(folder)?.sync_all()?;
    Ok(())
}

/// Reads a safetensors file, from this library or another. Errors: `Io` if it cannot be read; `Format` if it is
/// truncated, damaged or no safetensors file; both name the path.
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Contents> {
    let path = path.as_ref();
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, "reading", e))?;
    parse(&bytes, device).map_err(|e| match e.kind() {
        Kind::Format => Error::format(path.display().to_string(), e.message()),
        _ => e,
    })
}

fn parse(bytes: &[u8], device: &Device) -> Result<Contents> {
    let invalid = |why: String| Error::format("load", format!("not a whole safetensors file: {why}"));
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| invalid(e.to_string()))?;
    let file = SafeTensors::deserialize(bytes).map_err(|e| invalid(e.to_string()))?;
    let header = header.metadata().clone().unwrap_or_default();
    let metadata = header.get(TEXT).cloned().unwrap_or_default();
    let mut views: Vec<_> = file.iter().collect();
    views.sort_by_key(|(name, _)| *name);
    let mut sum = digest(BASIS, metadata.as_bytes());
    let mut tensors = StateDict::new();
    for (name, view) in views {
        let dtype = from_file(view.dtype()).ok_or_else(|| invalid(format!("{name} is {:?}", view.dtype())))?;
        sum = digest_tensor(sum, name, dtype, view.shape(), view.data());
        if dtype == DType::Bool && view.data().iter().any(|&b| b > 1) {
            return Err(invalid(format!("{name} is bool, but has bytes other than 0 and 1")));
        }
        let t = Tensor::from_bytes(&little_endian(view.data(), dtype.size()), view.shape(), dtype, device);
        let t = t.map_err(|e| if e.kind() == Kind::Shape { invalid(format!("{name}: {e}")) } else { e })?;
        tensors.insert(name.to_string(), t);
    }
    if header.get(CHECKSUM).is_some_and(|expected| *expected != format!("{sum:016x}")) {
        return Err(invalid("its checksum is not that of its content".into()));
    }
    Ok(Contents { tensors, metadata })
}

/// Between the machine's byte order and little endian.
fn little_endian(bytes: &[u8], size: usize) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        return Cow::Borrowed(bytes);
    }
    Cow::Owned(bytes.chunks(size).flat_map(|element| element.iter().rev()).copied().collect())
}

/// Where a checksum starts: FNV's offset basis.
const BASIS: u64 = 0xCBF2_9CE4_8422_2325;

fn digest_tensor(sum: u64, name: &str, dtype: DType, dims: &[usize], data: &[u8]) -> u64 {
    let about = format!("{dtype} {dims:?}");
    [name.as_bytes(), about.as_bytes(), data].into_iter().fold(sum, digest)
}

/// FNV-1a by words, with a shift that carries high bits back to low ones.
fn digest(sum: u64, bytes: &[u8]) -> u64 {
    let step = |sum: u64, word: u64| {
        let product = (sum ^ word).wrapping_mul(0x0000_0100_0000_01B3);
        product ^ (product >> 32)
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(step(sum, bytes.len() as u64), |sum, word| step(sum, u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, &byte| step(sum, byte as u64))
}

fn to_file(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}

fn from_file(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|d| to_file(*d) == dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        // A folder cannot be replaced by a file: the last step fails, when all has been written.
        std::fs::create_dir(&path).unwrap();
        assert!(write_aside(&path, &[b"new"]).is_err());
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["taken"]);
    }

    #[test]
    fn the_checksum_sees_every_bit() {
        let bytes: Vec<u8> = (0..37).collect();
        let sum = digest(1, &bytes);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(digest(1, &flipped), sum, "bit {bit}");
        }
        assert_ne!(digest(1, &bytes[..36]), sum);
    }
}
