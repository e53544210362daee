//! The header of a GGUF file: counts, metadata, and the place of each tensor. ggml, "GGUF", `docs/gguf.md`, version 3.

use super::packed::Packed;
use super::types::TensorType;
use super::value::{Cursor, Value};
use isograd_core::{DType, Device, Error, Result, Shape, Tensor};
use isograd_files::{Checked, Mapped, looks_like};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The first bytes of a file.
pub(super) const MAGIC: &[u8] = b"GGUF";

/// The version that is written. The one before has the same layout.
pub(super) const VERSION: u32 = 3;

/// The key of the number of which each tensor's place is a multiple, and the number without it.
pub(super) const ALIGNMENT: (&str, u32) = ("general.alignment", 32);

/// Most dimensions of a tensor.
pub(super) const MAX_RANK: usize = 4;

/// The least bytes of a value with its key, and of a description of a tensor.
const LEAST_VALUE: usize = 8 + 4 + 1;
const LEAST_TENSOR: usize = 8 + 4 + 4 + 8;

/// A GGUF file: metadata, and tensors whose bytes stay in the file until they are asked for.
///
/// ```no_run
/// # use isograd_core::{Device, DType};
/// # use isograd_nn::gguf::Gguf;
/// # fn main() -> isograd_core::Result<()> {
/// let file = Gguf::open("model.gguf")?;
/// let layers = file.count("llama.block_count")?;
/// let theta = file.metadata.get("llama.rope.freq_base").and_then(|value| value.as_f64());
/// let embedding = file.tensor("token_embd.weight", DType::BF16, &Device::best()?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Gguf {
    /// The values by key, such as `general.architecture` and `tokenizer.ggml.tokens`.
    pub metadata: BTreeMap<String, Value>,
    /// The tensors by name.
    pub tensors: BTreeMap<String, Packed>,
    path: PathBuf,
}

/// True if the bytes begin as a GGUF file does.
pub(crate) fn begins_file(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

impl Gguf {
    /// Opens a file of version 2 or 3 in little-endian order. A large one is mapped, and must not be changed while it is open. Errors: `Io`;
    /// `Format` naming the path, the tensor or key and the place, if the file is damaged, cut off, or of another format.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf> {
        let path = path.as_ref();
        let bytes = Mapped::open(path)?;
        if !begins_file(&bytes) {
            let looks = looks_like(&bytes).map_or(String::new(), |looks| format!(": {looks}"));
            return Err(Error::format(path.display().to_string(), format!("not a GGUF file{looks}")));
        }
        Gguf::read(path, bytes)
    }

    /// Reads the header of a file that begins as a GGUF file does. Errors: `Format` naming the path.
    pub(crate) fn read(path: &Path, bytes: Mapped) -> Result<Gguf> {
        let bytes = Arc::new(bytes);
        let header = parse(&bytes);
        let (metadata, places) = header.map_err(|why| Error::format(path.display().to_string(), why))?;
        let packed = |Place { kind, shape, bytes: place }| Packed::new(kind, shape, bytes.clone(), place);
        let tensors = places.into_iter().map(|(name, place)| (name, packed(place))).collect();
        Ok(Gguf { metadata, tensors, path: path.to_path_buf() })
    }

    /// The numbers of a tensor, as [`Packed::tensor`] gives them. Errors: `Format` naming the path, if there is no such tensor; those of
    /// [`Packed::tensor`], which name the tensor.
    pub fn tensor(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let packed = self.tensors.get(name).ok_or_else(|| self.invalid(format!("it has no tensor {name}")))?;
        packed
            .tensor(dtype, device)
            .map_err(|e| Error::new(e.kind(), self.path.display().to_string(), format!("{name}: {}", e.message())))
    }

    /// The text of a key. Errors: `Format` naming the path and the key, if it is missing or another kind of value.
    pub fn text(&self, key: &str) -> Result<&str> {
        self.value(key, "a text", Value::as_text)
    }

    /// The texts of a key. Errors: as [`text`](Gguf::text).
    pub fn texts(&self, key: &str) -> Result<&[String]> {
        self.value(key, "an array of texts", Value::as_texts)
    }

    /// The integer of a key, which is not negative. Errors: as [`text`](Gguf::text).
    pub fn count(&self, key: &str) -> Result<usize> {
        self.value(key, "a number of at least 0", Value::as_usize)
    }

    /// The number of a key. Errors: as [`text`](Gguf::text).
    pub fn number(&self, key: &str) -> Result<f64> {
        self.value(key, "a number", Value::as_f64)
    }

    /// The bool of a key. Errors: as [`text`](Gguf::text).
    pub fn flag(&self, key: &str) -> Result<bool> {
        self.value(key, "true or false", Value::as_bool)
    }

    fn value<'a, T>(&'a self, key: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<T> {
        let value =
            self.metadata.get(key).ok_or_else(|| self.invalid(format!("it has no key {key}, expected {expected}")))?;
        read(value).ok_or_else(|| self.invalid(format!("{key} is {value}, expected {expected}")))
    }

    fn invalid(&self, why: String) -> Error {
        Error::format(self.path.display().to_string(), why)
    }
}

/// A tensor in a file.
#[derive(Debug)]
struct Place {
    kind: TensorType,
    shape: Shape,
    bytes: Range<usize>,
}

/// The description of a tensor. Its bytes begin `offset` behind the header.
struct Described {
    kind: TensorType,
    shape: Shape,
    length: usize,
    offset: u64,
}

/// The metadata and the places of tensors. What it allocates is in proportion to the file, as each item of a count has bytes of its own.
fn parse(bytes: &[u8]) -> Checked<(BTreeMap<String, Value>, BTreeMap<String, Place>)> {
    let damaged = |why: String| format!("not a whole GGUF file: {why}");
    let mut cursor = Cursor::new(bytes, MAGIC.len());
    let version: u32 = cursor.scalar().map_err(damaged)?;
    if !matches!(version, 2 | VERSION) {
        let (version, big) = match version.swap_bytes() {
            swapped @ 1..=VERSION => (swapped, " in big-endian order"),
            _ => (version, ""),
        };
        return Err(format!("a GGUF file of version {version}{big}, expected 2 or 3 in little-endian order"));
    }
    let tensors = cursor.count(LEAST_TENSOR).map_err(damaged)?;
    let values = cursor.count(LEAST_VALUE).map_err(damaged)?;
    let metadata = named(&mut cursor, values, "the key", Value::parse).map_err(damaged)?;
    let described = named(&mut cursor, tensors, "the tensor", describe).map_err(damaged)?;
    let alignment = alignment(&metadata).map_err(damaged)?;
    let places = locate(described, cursor.at.next_multiple_of(alignment), alignment, bytes.len()).map_err(damaged)?;
    Ok((metadata, places))
}

/// `count` items behind their names. Errors: those of `next`, which name the item; two items of one name.
fn named<T>(
    cursor: &mut Cursor<'_>,
    count: usize,
    what: &str,
    next: impl Fn(&mut Cursor<'_>) -> Checked<T>,
) -> Checked<BTreeMap<String, T>> {
    let mut items = BTreeMap::new();
    for _ in 0..count {
        let at = cursor.at;
        let name = cursor.text().map_err(|why| format!("the name of {what}, {why}"))?;
        match items.entry(name) {
            Entry::Occupied(entry) => return Err(format!("at byte {at}: {what} {} is there twice", entry.key())),
            Entry::Vacant(entry) => {
                let item = next(cursor).map_err(|why| format!("{what} {}, {why}", entry.key()))?;
                entry.insert(item);
            }
        }
    }
    Ok(items)
}

/// The number of which the place of each tensor is a multiple.
pub(super) fn alignment(metadata: &BTreeMap<String, Value>) -> Checked<usize> {
    let (key, usual) = ALIGNMENT;
    match metadata.get(key) {
        None => Ok(usual as usize),
        Some(&Value::U32(n)) if n.is_power_of_two() => Ok(n as usize),
        Some(other) => Err(format!("{key} is {other}, expected a power of two in 32 bits")),
    }
}

/// Reads the description of a tensor.
fn describe(cursor: &mut Cursor<'_>) -> Checked<Described> {
    let at = cursor.at;
    let rank: u32 = cursor.scalar()?;
    if rank as usize > MAX_RANK {
        return Err(format!("at byte {at}: {rank} dimensions, expected at most {MAX_RANK}"));
    }
    let mut extent = || -> Checked<usize> { Ok(usize::try_from(cursor.scalar::<u64>()?).unwrap_or(usize::MAX)) };
    let mut dims = (0..rank).map(|_| extent()).collect::<Checked<Vec<usize>>>()?;
    // The file has the innermost dimension first.
    dims.reverse();
    let number: u32 = cursor.scalar()?;
    let offset = cursor.scalar()?;
    let kind = TensorType::numbered(number)
        .ok_or_else(|| format!("at byte {at}: its type has the number {number}, which is not known"))?;
    let shape = Shape::from(dims);
    let length = length_of(kind, &shape).map_err(|why| format!("at byte {at}: {why}"))?;
    Ok(Described { kind, shape, length, offset })
}

/// The bytes of a tensor. Errors: the last dimension is not one of whole blocks; too many elements.
pub(super) fn length_of(kind: TensorType, shape: &Shape) -> Checked<usize> {
    // A tensor of any dtype has fewer bytes than memory has addresses, also if one of its extents were 1 instead of 0.
    let most = shape.dims().iter().try_fold(size_of::<f64>(), |n, &d| n.checked_mul(d.max(1)));
    if most.is_none_or(|bytes| bytes > isize::MAX as usize / 2) {
        return Err(format!("{shape} has more elements than memory can address"));
    }
    let block = kind.block_elements();
    let last = shape.dims().last().copied().unwrap_or(1);
    match last % block {
        0 => Ok(shape.numel() / block * kind.block_bytes()),
        _ => Err(format!("{kind} has blocks of {block} elements, and the last dimension of {shape} is no multiple")),
    }
}

/// The places of tensors in a file of `length` bytes, whose data begin at `start`. Errors: a tensor that is not aligned, not in the file, or
/// overlaps another.
fn locate(
    described: BTreeMap<String, Described>,
    start: usize,
    alignment: usize,
    length: usize,
) -> Checked<BTreeMap<String, Place>> {
    let mut places = BTreeMap::new();
    for (name, Described { kind, shape, length: bytes, offset }) in described {
        let wrong = |why: &str| format!("the tensor {name} has {bytes} bytes at {offset} behind byte {start}: {why}");
        if offset % alignment as u64 != 0 {
            return Err(wrong(&format!("expected a multiple of {alignment}")));
        }
        let first = usize::try_from(offset).ok().and_then(|offset| start.checked_add(offset));
        let place = first.and_then(|first| Some(first..first.checked_add(bytes)?));
        // The data of empty tensors need not be there.
        let place = place.filter(|place| place.end <= length || bytes == 0);
        let place = place.ok_or_else(|| wrong(&format!("the file has {length}")))?;
        let place = if bytes == 0 { length..length } else { place };
        places.insert(name, Place { kind, shape, bytes: place });
    }
    let mut sorted: Vec<(&String, &Range<usize>)> = places.iter().map(|(name, place)| (name, &place.bytes)).collect();
    sorted.sort_by_key(|(_, place)| (place.start, place.end));
    match sorted.windows(2).find(|pair| pair[0].1.end > pair[1].1.start) {
        Some(pair) => {
            let [(first, place), (second, other)] = [pair[0], pair[1]];
            Err(format!(
                "the tensors {first} and {second} overlap: they have bytes {place:?} and {other:?} of the file"
            ))
        }
        None => Ok(places),
    }
}
