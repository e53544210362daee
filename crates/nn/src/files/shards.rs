//! Weights in several files, as Hugging Face's `transformers` writes them.

use super::safetensors::{Contents, Foreign, Metadata, Wanted, read_shapes, read_wanted};
use crate::StateDict;
use isograd_core::{Device, Error, Result, Shape, replace_file};
use serde_json::{Value, from_value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// The files of a folder's weights, and the lists of several files, in the order in which they are looked for.
const WEIGHTS: [&str; 4] =
    ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"];

/// Reads the tensors for which `wanted` is true. `path` is a safetensors file or one of `torch.save`, an index of several (its name ends in
/// `.json`), or a folder with `model.safetensors`, `model.safetensors.index.json`, `pytorch_model.bin` or `pytorch_model.bin.index.json`, the
/// first of these. Other tensors may have any dtype; files without a wanted tensor are not read, and need not exist.
///
/// Errors: as [`load`](crate::load); `Io` for a folder without weights; `Format` for a wanted tensor whose dtype cannot be read, and for an
/// index that is damaged, names a file outside of its folder, or names a tensor that its file does not have.
pub fn load_part(path: impl AsRef<Path>, device: &Device, wanted: impl Fn(&str) -> bool) -> Result<StateDict> {
    let wanted = Wanted { names: &wanted, foreign: Foreign::Refused };
    Ok(read_weights(path.as_ref(), device, &wanted)?.tensors)
}

/// The names and shapes of tensors, of which no element is read; `path` is as for [`load_part`]. Errors: as [`load_part`].
pub fn shapes(path: impl AsRef<Path>) -> Result<BTreeMap<String, Shape>> {
    let path = path.as_ref();
    let path = if path.is_dir() { &weights_of(path)? } else { path };
    if !is_index(path) {
        return read_shapes(path);
    }
    let mut all = BTreeMap::new();
    for (file, names) in files(path, &|_| true)? {
        let of_file = read_shapes(&path.with_file_name(file))?;
        all.extend(of_file.into_iter().filter(|(name, _)| names.contains(name)));
    }
    Ok(all)
}

/// True for the index of several files.
fn is_index(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// Writes the index of weights in several files: the file of each tensor, by its name within the folder of the index. Errors: `Io`.
pub fn save_index(path: impl AsRef<Path>, files: &BTreeMap<String, String>) -> Result<()> {
    let text = json!({ "metadata": {}, "weight_map": files }).to_string();
    replace_file(path.as_ref(), &[text.as_bytes()])
}

/// Reads the wanted tensors of a file, an index or a folder.
pub(crate) fn read_weights(path: &Path, device: &Device, wanted: &Wanted<'_>) -> Result<Contents> {
    let path = if path.is_dir() { &weights_of(path)? } else { path };
    if !is_index(path) {
        return read_wanted(path, device, wanted);
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut all = Contents { tensors: StateDict::new(), metadata: Metadata::new(), skipped: BTreeMap::new() };
    for (file, names) in files(path, wanted.names)? {
        let file = folder.join(file);
        let of_file = Wanted { names: &|name| names.contains(name), ..*wanted };
        let Contents { tensors, metadata, skipped } = read_wanted(&file, device, &of_file)?;
        if let Some(name) = names.iter().find(|name| !tensors.contains_key(*name) && !skipped.contains_key(*name)) {
            return Err(Error::format(
                file.display().to_string(),
                format!("{name} is missing, which the index has here"),
            ));
        }
        all.tensors.extend(tensors);
        all.metadata.extend(metadata);
        all.skipped.extend(skipped);
    }
    Ok(all)
}

/// A folder's file of weights, or its index.
fn weights_of(folder: &Path) -> Result<PathBuf> {
    let candidates = WEIGHTS.map(|name| folder.join(name));
    candidates.into_iter().find(|path| path.exists()).ok_or_else(|| {
        let message = format!("it has none of {}", WEIGHTS.join(", "));
        let missing = std::io::Error::new(std::io::ErrorKind::NotFound, message);
        Error::io(folder, "reading", missing)
    })
}

/// The files of an index that have wanted tensors, with the names of these.
fn files(path: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let bytes = isograd_files::read(path)?;
    let invalid = |why: String| Error::format(path.display().to_string(), why);
    let no_index = |e: serde_json::Error| invalid(format!("not an index of weights: {e}"));
    let mut index: BTreeMap<String, Value> = serde_json::from_slice(&bytes).map_err(no_index)?;
    let weight_map = index.remove("weight_map").unwrap_or_default();
    let file_of: BTreeMap<String, String> = from_value(weight_map).map_err(no_index)?;
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, file) in file_of.into_iter().filter(|(name, _)| wanted(name)) {
        let mut parts = Path::new(&file).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            return Err(invalid(format!("{name} is in {file}, expected a file of this folder")));
        }
        files.entry(file).or_default().insert(name);
    }
    Ok(files)
}
