//! Files as memory.

use crate::open;
use isograd_core::{Error, Result};
use memmap2::Mmap;
use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::Path;

/// The size of the largest file that is read.
const SMALL: u64 = 64 << 20;

/// The bytes of a file. A large file is mapped: the system reads its pages where they are needed and drops them when memory is short, so
/// that it may be larger than memory. A small one is read.
#[derive(Debug)]
pub struct Mapped(Memory);

#[derive(Debug)]
enum Memory {
    Mapped(Mmap),
    Read(Vec<u8>),
}

impl Mapped {
    /// Opens a file. One of more than 64 MiB must not be changed or shortened while it is open: the system ends a program that reads what is
    /// no more there. Files that are replaced as a whole, as [`replace_file`](isograd_core::replace_file) does, are no danger. Errors: `Io`.
    pub fn open(path: impl AsRef<Path>) -> Result<Mapped> {
        let path = path.as_ref();
        let failed = |e| Error::io(path, "reading", e);
        let mut file = open(path)?;
        if file.metadata().map_err(failed)?.len() > SMALL {
            return Ok(Mapped(Memory::Mapped(map(&file).map_err(failed)?)));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        Ok(Mapped(Memory::Read(bytes)))
    }
}

#[allow(unsafe_code)]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the mapping is read only, and readers of files accept any bytes. A large file that another program changes or cuts
    // meanwhile breaks this, which `Mapped::open` forbids.
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
