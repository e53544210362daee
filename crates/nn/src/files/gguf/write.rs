//! GGUF files that are written, of version 3.

use super::read::{MAGIC, MAX_RANK, VERSION, alignment, length_of};
use super::types::{Elements, TensorType};
use super::value::{Scalar, Value, put_text};
use crate::StateDict;
use isograd_core::quantized::QuantizedWeight;
use isograd_core::{DType, Error, Kind, Result, Shape, Tensor, replace_file};
use isograd_files::{Stored, little_endian};
use std::collections::BTreeMap;
use std::path::Path;

/// The key of the version of block formats, and the version.
const BLOCKS: (&str, u32) = ("general.quantization_version", 2);

/// The bytes of a tensor's name that ggml has room for.
const MAX_NAME: usize = 63;

/// Writes tensors and metadata to a GGUF file as [`replace_file`] does, each tensor in the type that `kind_of` gives for its name: F32, F16,
/// BF16, F64, I32 or I64, to which it is cast, or Q8_0, Q4_0, Q4_K or Q6_K, whose blocks lie along the last dimension. `general.alignment` is
/// heeded, and `general.quantization_version` is added for blocks. Equal arguments give equal bytes.
///
/// Errors, which name the tensor: `Unsupported` for another type; `Dtype` for integers as floats or floats as integers; `Shape` for more than
/// 4 dimensions, or a last dimension that is not one of whole blocks; `Value` for a name of more than 63 bytes, for NaN and infinities in
/// blocks, and for numbers so large that f16 does not have their scale. `Value` also for an alignment that is no power of two; `Io`.
pub fn save(
    path: impl AsRef<Path>,
    tensors: &StateDict,
    metadata: &BTreeMap<String, Value>,
    kind_of: impl Fn(&str, &Tensor) -> TensorType,
) -> Result<()> {
    save_quantized(path, tensors, &BTreeMap::new(), metadata, kind_of)
}

/// [`save`], with quantised weights beside the tensors, which keep their blocks. Errors: as there; `Value` for a weight with the name of a tensor;
/// `Unsupported` for a format that files do not have.
pub fn save_quantized(
    path: impl AsRef<Path>,
    tensors: &StateDict,
    weights: &BTreeMap<String, QuantizedWeight>,
    metadata: &BTreeMap<String, Value>,
    kind_of: impl Fn(&str, &Tensor) -> TensorType,
) -> Result<()> {
    let mut metadata = metadata.clone();
    let alignment = alignment(&metadata).map_err(|why| Error::value("gguf", why))?;
    let mut entries = BTreeMap::new();
    for (name, t) in tensors {
        entries.insert(name, Entry { shape: t.shape().clone(), kind: kind_of(name, t), numbers: Numbers::Floats(t) });
    }
    for (name, weight) in weights {
        let kind = TensorType::of(weight.format()).ok_or_else(|| {
            Error::unsupported("gguf", format!("{name}: tensors of the type {} are not written", weight.format()))
        })?;
        let entry = Entry { shape: Shape::from(weight.dims()), kind, numbers: Numbers::Blocks(weight) };
        if entries.insert(name, entry).is_some() {
            return Err(Error::value("gguf", format!("{name}: a tensor and a quantised weight have this name")));
        }
    }
    if entries.values().any(|entry| entry.kind.block_elements() > 1) {
        metadata.entry(BLOCKS.0.into()).or_insert(Value::U32(BLOCKS.1));
    }
    let mut header = MAGIC.to_vec();
    VERSION.put(&mut header);
    (entries.len() as u64).put(&mut header);
    (metadata.len() as u64).put(&mut header);
    for (key, value) in &metadata {
        put_text(key, &mut header);
        value.write(&mut header);
    }
    let (mut offset, mut data) = (0usize, Vec::new());
    for (name, entry) in entries {
        let bytes = entry.bytes(name).map_err(|e| Error::new(e.kind(), "gguf", format!("{name}: {}", e.message())))?;
        put_text(name, &mut header);
        (entry.shape.rank() as u32).put(&mut header);
        entry.shape.dims().iter().rev().for_each(|&d| (d as u64).put(&mut header));
        (entry.kind as u32).put(&mut header);
        (offset as u64).put(&mut header);
        offset += bytes.len().next_multiple_of(alignment);
        data.push(bytes);
    }
    let padding = vec![0; alignment];
    let aligned = |length: usize| &padding[..length.next_multiple_of(alignment) - length];
    let mut parts: Vec<&[u8]> = vec![header.as_slice(), aligned(header.len())];
    data.iter().for_each(|bytes| parts.extend([bytes.as_slice(), aligned(bytes.len())]));
    replace_file(path, &parts)
}

/// A tensor of a file.
struct Entry<'a> {
    shape: Shape,
    kind: TensorType,
    numbers: Numbers<'a>,
}

/// What has the numbers of a tensor.
enum Numbers<'a> {
    Floats(&'a Tensor),
    Blocks(&'a QuantizedWeight),
}

impl Entry<'_> {
    fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        check_name(name)?;
        match self.numbers {
            Numbers::Floats(t) => packed(t, self.kind),
            Numbers::Blocks(weight) => weight.bytes().to_bytes(),
        }
    }
}

/// Errors: `Value` for a name that ggml has no room for.
fn check_name(name: &str) -> Result<()> {
    match name.len() > MAX_NAME {
        true => Err(Error::value("gguf", format!("its name has {} bytes, expected at most {MAX_NAME}", name.len()))),
        false => Ok(()),
    }
}

/// The bytes of a tensor in a type.
fn packed(t: &Tensor, kind: TensorType) -> Result<Vec<u8>> {
    if t.rank() > MAX_RANK {
        return Err(Error::shape("gguf", format!("it has {} dimensions, expected at most {MAX_RANK}", t.rank())));
    }
    length_of(kind, t.shape()).map_err(|why| Error::shape("gguf", why))?;
    let cast = |dtype: DType| match t.dtype().is_float() == dtype.is_float() {
        true => t.cast(dtype),
        false => Err(Error::new(Kind::Dtype, "gguf", format!("it is {}, which {kind} does not have", t.dtype()))),
    };
    match kind.elements() {
        Elements::Plain(Stored::Same(dtype)) => {
            let bytes = cast(dtype)?.to_bytes()?;
            Ok(little_endian(&bytes, dtype.size()).into_owned())
        }
        Elements::Blocks(format) if format.is_written() => format.quantise("gguf", &cast(DType::F32)?.to_vec::<f32>()?),
        _ => Err(Error::new(Kind::Unsupported, "gguf", format!("tensors of the type {kind} are not written"))),
    }
}
