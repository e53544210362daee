//! GGUF files that are written, of version 3.

use super::packed::in_parts;
use super::read::{MAGIC, MAX_RANK, VERSION, alignment, length_of};
use super::types::{Elements, Quantise, TensorType};
use super::value::{Scalar, Value, put_text};
use crate::StateDict;
use isograd_core::{DType, Error, Kind, Result, Tensor, host, replace_file};
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
    let mut metadata = metadata.clone();
    let alignment = alignment(&metadata).map_err(|why| Error::value("gguf", why))?;
    let kinds: Vec<TensorType> = tensors.iter().map(|(name, t)| kind_of(name, t)).collect();
    if kinds.iter().any(|kind| kind.block_elements() > 1) {
        metadata.entry(BLOCKS.0.into()).or_insert(Value::U32(BLOCKS.1));
    }
    let mut header = MAGIC.to_vec();
    VERSION.put(&mut header);
    (tensors.len() as u64).put(&mut header);
    (metadata.len() as u64).put(&mut header);
    for (key, value) in &metadata {
        put_text(key, &mut header);
        value.write(&mut header);
    }
    let (mut offset, mut data) = (0usize, Vec::new());
    for ((name, t), kind) in tensors.iter().zip(kinds) {
        let bytes =
            packed(name, t, kind).map_err(|e| Error::new(e.kind(), "gguf", format!("{name}: {}", e.message())))?;
        put_text(name, &mut header);
        (t.rank() as u32).put(&mut header);
        t.dims().iter().rev().for_each(|&d| (d as u64).put(&mut header));
        (kind as u32).put(&mut header);
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

/// The bytes of a tensor in a type.
fn packed(name: &str, t: &Tensor, kind: TensorType) -> Result<Vec<u8>> {
    if name.len() > MAX_NAME {
        return Err(Error::value("gguf", format!("its name has {} bytes, expected at most {MAX_NAME}", name.len())));
    }
    if t.rank() > MAX_RANK {
        return Err(Error::shape("gguf", format!("it has {} dimensions, expected at most {MAX_RANK}", t.rank())));
    }
    let length = length_of(kind, t.shape()).map_err(|why| Error::shape("gguf", why))?;
    let cast = |dtype: DType| match t.dtype().is_float() == dtype.is_float() {
        true => t.cast(dtype),
        false => Err(Error::new(Kind::Dtype, "gguf", format!("it is {}, which {kind} does not have", t.dtype()))),
    };
    match kind.elements() {
        Elements::Plain(Stored::Same(dtype)) => {
            let bytes = cast(dtype)?.to_bytes()?;
            Ok(little_endian(&bytes, dtype.size()).into_owned())
        }
        Elements::Blocks(_, Some(quantise)) => blocks(kind, &cast(DType::F32)?.to_vec::<f32>()?, quantise, length),
        _ => Err(Error::new(Kind::Unsupported, "gguf", format!("tensors of the type {kind} are not written"))),
    }
}

/// The blocks of finite numbers.
fn blocks(kind: TensorType, values: &[f32], quantise: Quantise, length: usize) -> Result<Vec<u8>> {
    if let Some(x) = values.iter().find(|x| !x.is_finite()) {
        return Err(Error::value("gguf", format!("it has {x}, which {kind} does not have")));
    }
    let mut bytes = host::repeated("gguf", 0, length)?;
    in_parts(values, kind.block_elements(), &mut bytes, kind.block_bytes(), quantise);
    let Elements::Blocks(dequantise, _) = kind.elements() else { return Ok(bytes) };
    let mut numbers = vec![0.0; kind.block_elements()];
    for (block, values) in bytes.chunks(kind.block_bytes()).zip(values.chunks(kind.block_elements())) {
        dequantise(block, &mut numbers);
        if numbers.iter().any(|x| !x.is_finite()) {
            let peak = values.iter().fold(0f32, |peak, x| peak.max(x.abs()));
            return Err(Error::value(
                "gguf",
                format!("it has numbers up to {peak}, whose scale in {kind} is too large for f16"),
            ));
        }
    }
    Ok(bytes)
}
