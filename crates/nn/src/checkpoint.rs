//! Tensors in files: safetensors, written aside and renamed.

use crate::StateDict;
use isograd_core::{DType, Device, Error, Kind, Result, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

/// The key under which the file's header keeps the caller's text.
const METADATA: &str = "isograd";

/// What a file holds.
#[derive(Debug)]
pub struct Contents {
    /// The tensors by name.
    pub tensors: StateDict,
    /// The text that was saved with them, empty if there was none.
    pub metadata: String,
}

/// Writes tensors and a text (JSON, say) to a safetensors file. The file is written under another name in the same
/// folder, flushed to the disk and renamed, so that `path` is the old file or the new one whatever happens. Errors: `Io`
/// naming the path.
pub fn save(path: impl AsRef<Path>, tensors: &StateDict, metadata: &str) -> Result<()> {
    let path = path.as_ref();
    let bytes: Vec<(&String, &Tensor, Vec<u8>)> =
        tensors.iter().map(|(name, t)| Ok((name, t, t.to_bytes()?))).collect::<Result<_>>()?;
    let invalid = |e: safetensors::SafeTensorError| Error::format(path.display().to_string(), e.to_string());
    let views = bytes
        .iter()
        .map(|(name, t, bytes)| Ok((*name, TensorView::new(to_file(t.dtype()), t.dims().to_vec(), bytes)?)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(invalid)?;
    let header = HashMap::from([(METADATA.to_string(), metadata.to_string())]);
    let content = safetensors::serialize(views, Some(header)).map_err(invalid)?;
    write_aside(path, &content).map_err(|e| Error::io(path, "writing", e))
}

/// The temporary file is removed if it could not be renamed.
fn write_aside(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".isograd-").suffix(".tmp").tempfile_in(folder)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|e| e.error)
}

/// Reads a safetensors file. Errors: `Io` if it cannot be read, `Format` if it is truncated or no safetensors file, both
/// naming the path.
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Contents> {
    let path = path.as_ref();
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, "reading", e))?;
    let invalid = |why: String| Error::format(path.display().to_string(), format!("not a safetensors file: {why}"));
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| invalid(e.to_string()))?;
    let metadata = header.metadata().as_ref().and_then(|m| m.get(METADATA)).cloned().unwrap_or_default();
    let file = SafeTensors::deserialize(&bytes).map_err(|e| invalid(e.to_string()))?;
    let tensors = file.iter().map(|(name, view)| {
        let dtype = from_file(view.dtype()).ok_or_else(|| invalid(format!("{name} is {:?}", view.dtype())))?;
        let t = Tensor::from_bytes(view.data(), view.shape(), dtype, device);
        let t = t.map_err(|e| if e.kind() == Kind::Shape { invalid(format!("{name}: {e}")) } else { e })?;
        Ok((name.to_string(), t))
    });
    Ok(Contents { tensors: tensors.collect::<Result<_>>()?, metadata })
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
