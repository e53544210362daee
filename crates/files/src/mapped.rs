//! Files as memory.

use isograd_core::{Error, Result};
use memmap2::Mmap;
use std::fs::File;
use std::ops::Deref;
use std::path::Path;

/// The bytes of a file. A regular file is mapped: the system reads its pages where they are needed and drops them when memory is short, so
/// that it may be larger than memory. Any other file, such as a pipe, is read.
#[derive(Debug)]
pub struct Mapped(Memory);

#[derive(Debug)]
enum Memory {
    Mapped(Mmap),
    Read(Vec<u8>),
}

impl Mapped {
    /// Opens a file, which must not be changed or shortened while it is open. Files that are replaced as a whole, as
    /// [`replace_file`](isograd_core::replace_file) does, are no danger. Errors: `Io`.
    pub fn open(path: impl AsRef<Path>) -> Result<Mapped> {
        let path = path.as_ref();
        let failed = |e| Error::io(path, "reading", e);
        let file = File::open(path).map_err(failed)?;
        match file.metadata().map_err(failed)?.is_file() {
            true => Ok(Mapped(Memory::Mapped(map(&file).map_err(failed)?))),
            false => Ok(Mapped(Memory::Read(std::fs::read(path).map_err(failed)?))),
        }
    }
}

#[allow(unsafe_code)]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the mapping is read only, and readers of files accept any bytes. A file that another program changes or cuts meanwhile
    // breaks this, which `Mapped::open` forbids.
    unsafe { Mmap::map(file) }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Mapped(map) => map,
            Memory::Read(bytes) => bytes,
        }
    }
}
