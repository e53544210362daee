//! Tensors in files: safetensors, with a checksum.

use crate::StateDict;
use crc32fast::Hasher;
use isograd_core::{DType, Device, Error, Kind, Result, Tensor, replace_file};
use safetensors::tensor::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

/// The key of the metadata in a header. No tensor can have this name.
const METADATA: &str = "__metadata__";
/// The key of the checksum in the metadata.
const CHECKSUM: &str = "isograd.crc32";
/// The key of a checksum of another kind, in older files.
const EARLIER_CHECKSUM: &str = "isograd.checksum";

/// Texts by name in a file, in addition to its tensors, such as `format: pt`, which transformers requires.
pub type Metadata = BTreeMap<String, String>;

/// The contents of a file.
#[derive(Debug)]
pub struct Contents {
    /// The tensors by name.
    pub tensors: StateDict,
    /// The texts saved with the tensors, by this library or another.
    pub metadata: Metadata,
}

/// Writes tensors and texts to a safetensors file as [`replace_file`] does, with a checksum of both as a further text
/// (`isograd.crc32`). Equal tensors and texts give equal bytes. Errors: `Io` naming the path; `Value` for a tensor or text whose
/// name is reserved by the format or the checksum.
pub fn save(path: impl AsRef<Path>, tensors: &StateDict, metadata: &Metadata) -> Result<()> {
    let path = path.as_ref();
    check_names(tensors, metadata)?;
    let mut data = Vec::new();
    let mut header = Map::new();
    let mut sum = Checksum::of(metadata);
    for (name, t) in tensors {
        let start = data.len();
        data.extend(little_endian(&t.to_bytes()?, t.dtype().size()).as_ref());
        sum.tensor(name, t.dtype(), t.dims(), &data[start..]);
        let (dtype, shape) = (format!("{:?}", to_file(t.dtype())), t.dims());
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()] }));
    }
    let mut metadata = metadata.clone();
    metadata.insert(CHECKSUM.into(), sum.text());
    header.insert(METADATA.into(), json!(metadata));
    let mut header = Value::Object(header).to_string();
    // Trailing spaces align the data, for readers that map the file.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let length = (header.len() as u64).to_le_bytes();
    replace_file(path, &[&length, header.as_bytes(), &data])
}

fn check_names(tensors: &StateDict, metadata: &Metadata) -> Result<()> {
    if tensors.contains_key(METADATA) {
        return Err(Error::value("save", format!("a tensor is called {METADATA}, which the format has for itself")));
    }
    match [CHECKSUM, EARLIER_CHECKSUM].into_iter().find(|key| metadata.contains_key(*key)) {
        Some(key) => Err(Error::value("save", format!("the metadata has {key}, which is the name of the checksum"))),
        None => Ok(()),
    }
}

/// Reads a safetensors file of this library or another. A checksum, if present, must be correct. Errors: `Io` if it cannot be read;
/// `Format` if it is truncated, damaged or no safetensors file. Both name the path.
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Contents> {
    read(path.as_ref(), device, Demand::IfPresent)
}

/// Reads a file written by [`save`], and requires its checksum. Errors: as [`load`], and `Format` if there is no checksum.
pub fn load_checked(path: impl AsRef<Path>, device: &Device) -> Result<Contents> {
    read(path.as_ref(), device, Demand::Always)
}

/// The requirement of a checksum.
#[derive(Clone, Copy, PartialEq)]
enum Demand {
    IfPresent,
    Always,
}

fn read(path: &Path, device: &Device, demand: Demand) -> Result<Contents> {
    read_part(path, device, demand, &|_| true)
}

/// Reads the tensors for which `wanted` is true. Others may have a dtype that this library does not have.
pub(crate) fn read_wanted(path: &Path, device: &Device, wanted: &dyn Fn(&str) -> bool) -> Result<StateDict> {
    Ok(read_part(path, device, Demand::IfPresent, wanted)?.tensors)
}

fn read_part(path: &Path, device: &Device, demand: Demand, wanted: &dyn Fn(&str) -> bool) -> Result<Contents> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, "reading", e))?;
    parse(&bytes, device, demand, wanted).map_err(|e| match e.kind() {
        Kind::Format => Error::format(path.display().to_string(), e.message()),
        _ => e,
    })
}

fn parse(bytes: &[u8], device: &Device, demand: Demand, wanted: &dyn Fn(&str) -> bool) -> Result<Contents> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| invalid(e.to_string()))?;
    let file = SafeTensors::deserialize(bytes).map_err(|e| invalid(e.to_string()))?;
    let mut metadata: Metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
    let expected = metadata.remove(CHECKSUM);
    if demand == Demand::Always && expected.is_none() {
        return Err(no_checksum(&metadata));
    }
    let mut views: Vec<_> = file.iter().collect();
    views.sort_by_key(|(name, _)| *name);
    let mut sum = Checksum::of(&metadata);
    let mut tensors = StateDict::new();
    for (name, view) in views {
        let dtype = match from_file(view.dtype()) {
            Some(dtype) => dtype,
            None if wanted(name) => return Err(invalid(format!("{name} is {:?}", view.dtype()))),
            // No file with a checksum has such a dtype, so that the checksum does not count it.
            None => continue,
        };
        sum.tensor(name, dtype, view.shape(), view.data());
        if !wanted(name) {
            continue;
        }
        if dtype == DType::Bool && view.data().iter().any(|&b| b > 1) {
            return Err(invalid(format!("{name} is bool, but has bytes other than 0 and 1")));
        }
        let t = Tensor::from_bytes(&little_endian(view.data(), dtype.size()), view.shape(), dtype, device);
        let t = t.map_err(|e| if e.kind() == Kind::Shape { invalid(format!("{name}: {e}")) } else { e })?;
        tensors.insert(name.to_string(), t);
    }
    if expected.is_some_and(|expected| expected != sum.text()) {
        return Err(invalid("its checksum is not that of its content"));
    }
    metadata.remove(EARLIER_CHECKSUM);
    Ok(Contents { tensors, metadata })
}

fn invalid(why: impl std::fmt::Display) -> Error {
    Error::format("load", format!("not a whole safetensors file: {why}"))
}

fn no_checksum(metadata: &Metadata) -> Error {
    Error::format(
        "load",
        match metadata.contains_key(EARLIER_CHECKSUM) {
            true => format!(
                "it has the checksum of an earlier version of this library ({EARLIER_CHECKSUM}), which this one cannot check"
            ),
            false => format!("not a whole file of this library: it has no checksum ({CHECKSUM})"),
        },
    )
}

/// Converts between the machine's byte order and little endian.
fn little_endian(bytes: &[u8], size: usize) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        return Cow::Borrowed(bytes);
    }
    Cow::Owned(bytes.chunks(size).flat_map(|element| element.iter().rev()).copied().collect())
}

/// The CRC-32 of metadata and tensors in the order of their names: length and bytes of each part.
struct Checksum(Hasher);

impl Checksum {
    fn of(metadata: &Metadata) -> Checksum {
        let mut sum = Checksum(Hasher::new());
        sum.0.update(&(metadata.len() as u64).to_le_bytes());
        metadata.iter().for_each(|(key, text)| sum.parts(&[key.as_bytes(), text.as_bytes()]));
        sum
    }

    fn tensor(&mut self, name: &str, dtype: DType, dims: &[usize], data: &[u8]) {
        self.parts(&[name.as_bytes(), format!("{dtype} {dims:?}").as_bytes(), data]);
    }

    fn parts(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.0.update(&(part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
    }

    fn text(self) -> String {
        format!("{:08x}", self.0.finalize())
    }
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
