//! GGUF files, in which llama.cpp and its kin keep language models: metadata, the vocabulary, and tensors, most of them quantised in blocks.
//!
//! [`Gguf::open`] reads the metadata and finds the tensors, whose bytes stay in the file; [`Packed`] is one of them, and [`Packed::tensor`] its
//! numbers. [`save`] writes a file. [`load`](crate::load) and [`load_part`](crate::load_part) read a GGUF file as any other, without its arrays.

mod packed;
mod read;
mod types;
mod value;
mod write;

pub use packed::Packed;
pub use read::Gguf;
pub use types::TensorType;
pub use value::{Array, Value};
pub use write::{save, save_quantized};

pub(super) use read::begins_file;

use super::safetensors::{Contents, Wanted};
use crate::StateDict;
use isograd_core::{Device, Error, Result, Shape};
use isograd_files::Mapped;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// True for a file that begins as a GGUF file does. Errors: `Io`.
pub fn is_gguf(path: impl AsRef<Path>) -> Result<bool> {
    let path = path.as_ref();
    let mut start = Vec::new();
    if !path.is_dir() {
        let read = isograd_files::open(path)?.take(8).read_to_end(&mut start);
        read.map_err(|e| Error::io(path, "reading", e))?;
    }
    Ok(begins_file(&start))
}

/// The names and shapes of the tensors of a file.
pub(super) fn shapes(path: &Path, bytes: Mapped) -> Result<BTreeMap<String, Shape>> {
    let tensors = Gguf::read(path, bytes)?.tensors;
    Ok(tensors.into_iter().map(|(name, packed)| (name, packed.shape().clone())).collect())
}

/// Reads the wanted tensors of a file, each in the dtype that has its numbers without loss, and the metadata that are no arrays, as texts.
pub(super) fn load(path: &Path, bytes: Mapped, device: &Device, wanted: &Wanted<'_>) -> Result<Contents> {
    let file = Gguf::read(path, bytes)?;
    let (mut tensors, mut skipped) = (StateDict::new(), BTreeMap::new());
    for (name, packed) in file.tensors.iter().filter(|(name, _)| wanted.has(name)) {
        match packed.kind().dtype() {
            Some(dtype) => drop(tensors.insert(name.clone(), file.tensor(name, dtype, device)?)),
            None => {
                wanted.skip(name, packed.kind().name())?;
                skipped.insert(name.clone(), packed.kind().to_string());
            }
        }
    }
    let texts = file.metadata.iter().filter(|(_, value)| !matches!(value, Value::Array(_)));
    let metadata = texts.map(|(key, value)| (key.clone(), value.to_string())).collect();
    Ok(Contents { tensors, metadata, skipped })
}
