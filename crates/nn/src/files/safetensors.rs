//! Tensors in files: safetensors, with a checksum.

use super::shards::read_weights;
use super::{gguf, torch};
use crate::StateDict;
use crc32fast::Hasher;
use isograd_core::{DType, Device, Error, Kind, Result, Shape, Tensor, replace_file};
use isograd_files::{Checked, Mapped, Order, Stored, is_archive, little_endian, looks_like};
use serde_json::{Map, Value, from_value, json};
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
#[non_exhaustive]
pub struct Contents {
    /// The tensors by name.
    pub tensors: StateDict,
    /// The texts saved with the tensors, by this library or another.
    pub metadata: Metadata,
    /// The tensors of dtypes that cannot be read, such as complex numbers, and their dtypes.
    pub skipped: BTreeMap<String, String>,
}

/// Writes tensors and texts to a safetensors file as [`replace_file`] does, with a checksum of both as a further text
/// (`isograd.crc32`). Equal tensors and texts give equal bytes. Errors: `Io` naming the path; `Value` for a tensor or text whose
/// name is reserved by the format or the checksum.
///
/// ```
/// # use isograd_core::Device;
/// # use isograd_nn::{Init, Linear, Metadata, Module, load, save};
/// # use isograd_cpu as _;
/// # fn main() -> isograd_core::Result<()> {
/// let device = Device::cpu()?;
/// let (layer, other) = (Linear::new(4, 2, &Init::new(&device).seed(1))?, Linear::new(4, 2, &Init::new(&device).seed(2))?);
/// # let file = std::env::temp_dir().join(format!("isograd-save-{}.safetensors", std::process::id()));
/// # /*
/// let file = "layer.safetensors";
/// # */
/// save(&file, &layer.state_dict(), &Metadata::new())?;
/// other.load_state_dict(&load(&file, &device)?.tensors)?;
/// assert!(other.weight.allclose(&layer.weight, 0.0, 0.0)?);
/// # let _ = std::fs::remove_file(&file);
/// # Ok(())
/// # }
/// ```
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
        let (dtype, shape) = (name_of(t.dtype()), t.dims());
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

/// Reads weights: a safetensors file of this library or another, a file of PyTorch's `torch.save`, a GGUF file, or several of these by their
/// index. The content decides, not the name. `path` is a file, an index (its name ends in `.json`), or a folder as for
/// [`load_part`](crate::load_part). Files are mapped, so that nothing but the tensors is in memory; nobody may change a file meanwhile.
///
/// Elements of a type that this library does not have are converted where that is exact: integers of 8 and 16 bits to i32, unsigned ones of
/// 32 and 64 bits to i64, and floats of 8 bits to f16 (powers of two to f32). Other tensors are [`skipped`](Contents::skipped).
///
/// A file of `torch.save` is one since PyTorch 1.6. No code in it is run: it may have tensors, numbers and texts in dictionaries, lists and
/// tuples. Their keys are joined by points, as in `optimizer.state.0.exp_avg`. Of a checkpoint that has the weights as `state_dict`,
/// `model_state_dict` or `model`, only these are read. Numbers and texts of the outermost dictionary are metadata. Views have the shape that
/// they had; names of one tensor share memory.
///
/// Tensors of a GGUF file that are quantised in blocks are read as f32; [`gguf`](crate::gguf) reads them in other dtypes, and packed. Its
/// metadata are texts here, without arrays.
///
/// Errors: `Io` if it cannot be read; `Format` if it is truncated, damaged, has a wrong checksum, or is no such file. All name the path.
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Contents> {
    read_weights(path.as_ref(), device, &Wanted { names: &|_| true, foreign: Foreign::Skipped })
}

/// Reads a file written by [`save`], and requires its checksum. Errors: as [`load`], and `Format` if there is no checksum.
pub fn load_checked(path: impl AsRef<Path>, device: &Device) -> Result<Contents> {
    let path = path.as_ref();
    read(path, device, Demand::Always, &Wanted { names: &|_| true, foreign: Foreign::Refused })
}

/// The requirement of a checksum.
#[derive(Clone, Copy, PartialEq)]
enum Demand {
    IfPresent,
    Always,
}

/// The tensors that a caller wants.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub names: &'a dyn Fn(&str) -> bool,
    pub foreign: Foreign,
}

/// The treatment of wanted tensors whose dtype cannot be read.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Foreign {
    Skipped,
    Refused,
}

impl Wanted<'_> {
    pub fn has(&self, name: &str) -> bool {
        (self.names)(name)
    }

    /// Errors: a wanted tensor of a dtype that cannot be read, if these are refused.
    pub fn skip(&self, name: &str, dtype: &str) -> Result<()> {
        match self.foreign {
            Foreign::Skipped => Ok(()),
            Foreign::Refused => Err(invalid(format!("{name} is {dtype}, which cannot be read"))),
        }
    }
}

/// Reads the wanted tensors of a file.
pub(crate) fn read_wanted(path: &Path, device: &Device, wanted: &Wanted<'_>) -> Result<Contents> {
    read(path, device, Demand::IfPresent, wanted)
}

/// The names and shapes of the tensors of a file, by its header.
pub(crate) fn read_shapes(path: &Path) -> Result<BTreeMap<String, Shape>> {
    let bytes = Mapped::open(path)?;
    if gguf::begins_file(&bytes) {
        return gguf::shapes(path, bytes);
    }
    let shapes = match is_archive(&bytes) {
        true => torch::shapes(&bytes),
        false => described(&bytes)
            .map(|file| file.tensors.into_iter().map(|(name, place)| (name, Shape::from(place.shape))).collect()),
    };
    shapes.map_err(|why| Error::format(path.display().to_string(), why))
}

fn read(path: &Path, device: &Device, demand: Demand, wanted: &Wanted<'_>) -> Result<Contents> {
    let bytes = Mapped::open(path)?;
    let (is_archive, is_gguf) = (is_archive(&bytes), gguf::begins_file(&bytes));
    let contents = if (is_archive || is_gguf) && demand == Demand::Always {
        Err(no_checksum(&Metadata::new()))
    } else if is_gguf {
        return gguf::load(path, bytes, device, wanted);
    } else if is_archive {
        torch::parse(&bytes, device, wanted)
    } else {
        parse(&bytes, device, demand, wanted)
    };
    contents.map_err(|e| match e.kind() {
        Kind::Format => Error::format(path.display().to_string(), e.message()),
        _ => e,
    })
}

/// The tensors of a file and where they are. Errors: as [`File::parse`], with the format if it is another.
fn described(bytes: &[u8]) -> Checked<File<'_>> {
    File::parse(bytes).map_err(|why| match looks_like(bytes) {
        // The length of a header stands before it.
        Some(looks) if !bytes.is_empty() && bytes.get(8) != Some(&b'{') => {
            format!("neither a safetensors file nor one of torch.save: {looks}")
        }
        _ => format!("not a whole safetensors file: {why}"),
    })
}

fn parse(bytes: &[u8], device: &Device, demand: Demand, wanted: &Wanted<'_>) -> Result<Contents> {
    let File { metadata: mut texts, tensors: places } = described(bytes).map_err(invalid)?;
    let expected = texts.remove(CHECKSUM);
    if demand == Demand::Always && expected.is_none() {
        return Err(no_checksum(&texts));
    }
    if expected.is_some_and(|expected| expected != sum(&texts, &places)) {
        return Err(invalid("not a whole safetensors file: its checksum is not that of its content"));
    }
    let (mut tensors, mut skipped) = (StateDict::new(), BTreeMap::new());
    for (name, Place { dtype, shape, data }) in places {
        if !wanted.has(&name) {
            continue;
        }
        let Some(stored) = Stored::named(&dtype) else {
            wanted.skip(&name, &dtype)?;
            skipped.insert(name, dtype);
            continue;
        };
        let native = stored.read(data, Order::Little).map_err(|why| invalid(format!("{name} {why}")))?;
        let t = Tensor::from_bytes(&native, shape, stored.dtype(), device);
        let t = t.map_err(|e| if e.kind() == Kind::Shape { invalid(format!("{name}: {e}")) } else { e })?;
        tensors.insert(name, t);
    }
    texts.remove(EARLIER_CHECKSUM);
    Ok(Contents { tensors, metadata: texts, skipped })
}

/// The checksum of a file's texts and tensors. No file with a checksum has tensors of dtypes of others, so that it does not count them.
fn sum(texts: &Metadata, places: &BTreeMap<String, Place<'_>>) -> String {
    let mut sum = Checksum::of(texts);
    for (name, Place { dtype, shape, data }) in places {
        if let Some(Stored::Same(dtype)) = Stored::named(dtype) {
            sum.tensor(name, dtype, shape, data);
        }
    }
    sum.text()
}

/// A safetensors file in memory.
struct File<'a> {
    metadata: Metadata,
    tensors: BTreeMap<String, Place<'a>>,
}

/// A tensor in a file.
struct Place<'a> {
    /// By the name in the file, which may be unknown.
    dtype: String,
    shape: Vec<usize>,
    data: &'a [u8],
}

/// A tensor in the header of a file.
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

impl Entry {
    fn of(value: Value) -> serde_json::Result<Entry> {
        let mut fields: BTreeMap<String, Value> = from_value(value)?;
        let mut field = |name| fields.remove(name).unwrap_or_default();
        let (dtype, shape) = (from_value(field("dtype"))?, from_value(field("shape"))?);
        Ok(Entry { dtype, shape, data_offsets: from_value(field("data_offsets"))? })
    }
}

impl<'a> File<'a> {
    fn parse(bytes: &'a [u8]) -> Checked<File<'a>> {
        let (length, rest) = bytes.split_first_chunk().ok_or("it ends before its header")?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| "its header is too long")?;
        let (header, data) = rest.split_at_checked(length).ok_or("it ends within its header")?;
        let invalid = |e: serde_json::Error| format!("its header cannot be read: {e}");
        let mut header: BTreeMap<String, Value> = serde_json::from_slice(header).map_err(invalid)?;
        let metadata: Option<Metadata> = header.remove(METADATA).map_or(Ok(None), from_value).map_err(invalid)?;
        let entries = header.into_iter().map(|(name, value)| Ok((name, Entry::of(value)?)));
        let entries = entries.collect::<serde_json::Result<BTreeMap<_, _>>>().map_err(invalid)?;
        check_places(&entries, data.len())?;
        let place =
            |Entry { dtype, shape, data_offsets: (start, end) }| Place { dtype, shape, data: &data[start..end] };
        let tensors = entries.into_iter().map(|(name, entry)| (name, place(entry))).collect();
        Ok(File { metadata: metadata.unwrap_or_default(), tensors })
    }
}

/// Errors unless the tensors lie one behind the other, have the bytes that their shapes and dtypes need, and are all of the data. How many an
/// unknown dtype needs is not known.
fn check_places(tensors: &BTreeMap<String, Entry>, length: usize) -> Checked<()> {
    let mut places: Vec<(&String, &Entry)> = tensors.iter().collect();
    places.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut at = 0;
    for (name, Entry { dtype, shape, data_offsets: (start, end) }) in places {
        if *start != at || end < start {
            return Err(format!("{name} has bytes {start} to {end}, expected some that begin at {at}"));
        }
        let size = Stored::named(dtype).map(Stored::size);
        let needed = size.map(|size| shape.iter().try_fold(size, |all, &d| all.checked_mul(d)));
        if needed.is_some_and(|needed| needed != Some(end - start)) {
            return Err(format!("{name} has {} bytes, which is not what {dtype} {shape:?} needs", end - start));
        }
        at = *end;
    }
    if at == length { Ok(()) } else { Err(format!("its tensors have {length} bytes, expected {at}")) }
}

fn invalid(why: impl std::fmt::Display) -> Error {
    Error::format("load", why.to_string())
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

/// A dtype as the format writes it.
fn name_of(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "F64",
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I64 => "I64",
        DType::I32 => "I32",
        DType::U8 => "U8",
        DType::Bool => "BOOL",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(dtype: &str, shape: &[usize], start: usize, end: usize) -> Entry {
        Entry { dtype: dtype.into(), shape: shape.to_vec(), data_offsets: (start, end) }
    }

    #[test]
    fn tensors_that_overlap_leave_gaps_or_have_other_sizes_are_refused() {
        let check = |entries: Vec<Entry>, length| {
            let names = entries.into_iter().enumerate().map(|(i, entry)| (i.to_string(), entry));
            check_places(&names.collect(), length)
        };
        let two = || vec![entry("F32", &[2, 3], 4, 28), entry("U8", &[4], 0, 4)];
        assert_eq!(check(two(), 28), Ok(()));
        assert_eq!(check(vec![], 0), Ok(()));
        assert_eq!(check(vec![entry("F32", &[0, usize::MAX], 0, 0), entry("C64", &[1], 0, 8)], 8), Ok(()));
        assert!(check(two(), 29).unwrap_err().contains("29 bytes, expected 28"));
        for (dtype, shape, start, end) in [
            ("F32", &[2, 3][..], 3, 27),
            ("F32", &[2, 3], 5, 29),
            ("F32", &[2, 4], 4, 28),
            ("F64", &[2, 3], 4, 28),
            ("F32", &[usize::MAX, 3], 4, 28),
            ("F32", &[2, 3], 4, 3),
        ] {
            assert!(check(vec![entry("U8", &[4], 0, 4), entry(dtype, shape, start, end)], 28).is_err());
        }
    }

    #[test]
    fn every_dtype_is_read_by_the_name_that_is_written() {
        for dtype in DType::ALL {
            assert_eq!(Stored::named(name_of(dtype)), Some(Stored::Same(dtype)));
        }
    }
}
