//! Elements in files beside the model.

use crate::proto::StringStringEntryProto;
use isograd_files::{Checked, Mapped};
use prost::bytes::Bytes;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

/// A file as bytes of which parts are shared.
struct Owner(Mapped);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The bytes of a file, parts of which are no copies.
pub fn shared(file: Mapped) -> Bytes {
    Bytes::from_owner(Owner(file))
}

/// The folder of a model, with the files that were opened.
pub struct Folder {
    path: Option<PathBuf>,
    files: RefCell<HashMap<String, Bytes>>,
}

impl Folder {
    /// The folder of this model; without one, no other file is opened.
    pub fn of(model: Option<&Path>) -> Folder {
        let parent = |path: &Path| match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        Folder { path: model.map(parent), files: RefCell::default() }
    }

    /// The `expected` bytes that the entries `location`, `offset` and `length` of a tensor describe. Errors: a location that is absolute or
    /// outside of the folder, also by links; another length; an end beyond that of the file.
    pub fn content(&self, entries: &[StringStringEntryProto], expected: usize) -> Checked<Bytes> {
        let entry = |key: &str| entries.iter().find(|entry| entry.key() == key).map(StringStringEntryProto::value);
        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(text) => {
                text.parse::<usize>().map(Some).map_err(|_| format!("has the {key} {text:?} in another file"))
            }
        };
        let location = entry("location").ok_or("is in another file, without its location")?;
        let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?.unwrap_or(expected));
        if length != expected {
            return Err(format!("has {length} bytes in {location:?}, expected {expected}"));
        }
        let file = self.file(location)?;
        match offset.checked_add(length).filter(|&end| end <= file.len()) {
            Some(end) => Ok(file.slice(offset..end)),
            None => Err(format!("ends after the {} bytes of {location:?}", file.len())),
        }
    }

    fn file(&self, location: &str) -> Checked<Bytes> {
        if let Some(known) = self.files.borrow().get(location) {
            return Ok(known.clone());
        }
        let folder = self.path.as_ref().ok_or("is in another file, and the model has no folder")?;
        let is_below =
            Path::new(location).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        let outside = || format!("is in {location:?}, outside of the model's folder");
        if !is_below || location.is_empty() {
            return Err(outside());
        }
        let resolved = |path: &Path| path.canonicalize().map_err(|e| format!("is in {location:?}: {e}"));
        let (root, path) = (resolved(folder)?, resolved(&folder.join(location))?);
        if !path.starts_with(&root) {
            return Err(outside());
        }
        let file = shared(Mapped::open(&path).map_err(|e| format!("is in {location:?}: {}", e.message()))?);
        self.files.borrow_mut().insert(location.to_string(), file.clone());
        Ok(file)
    }
}
