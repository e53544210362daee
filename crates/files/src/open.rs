//! Files that are read, and the memory that their readers may take.

use crate::Checked;
use isograd_core::{Error, Result};
use std::fs::File;
use std::io;
use std::path::Path;

/// Opens a file to read. Errors: `Io`, also for a pipe or a device, which might never end.
pub fn open(path: impl AsRef<Path>) -> Result<File> {
    let path = path.as_ref();
    let failed = |e| Error::io(path, "reading", e);
    // A pipe is not opened, which would wait for its writer.
    let about = std::fs::metadata(path).map_err(failed)?;
    match about.is_file() || about.is_dir() {
        true => File::open(path).map_err(failed),
        false => Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is a pipe or a device, expected a file"))),
    }
}

/// The content of a file. Errors: as [`open`].
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let (path, mut content) = (path.as_ref(), Vec::new());
    io::Read::read_to_end(&mut open(path)?, &mut content).map_err(|e| Error::io(path, "reading", e))?;
    Ok(content)
}

/// The bytes that a reader may still allocate: a small multiple of the file, so that a small file cannot fill the memory.
#[derive(Clone, Debug)]
pub struct Budget {
    left: usize,
    file: usize,
}

impl Budget {
    /// The most bytes for each byte of a file.
    const TIMES: usize = 32;
    /// The bytes that any file may take.
    const BASE: usize = 1 << 20;

    /// The budget of a file of so many bytes.
    pub fn new(file: usize) -> Budget {
        Budget { left: file.saturating_mul(Budget::TIMES).saturating_add(Budget::BASE), file }
    }

    /// Takes the bytes of `count` values of `size` bytes each. Errors: they are more than what is left.
    pub fn spend(&mut self, count: usize, size: usize) -> Checked<()> {
        let left = count.checked_mul(size).and_then(|bytes| self.left.checked_sub(bytes));
        self.left = left.ok_or_else(|| {
            format!("its content would take more than {} times the {} bytes of the file", Budget::TIMES, self.file)
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn a_pipe_that_nobody_writes_to_is_refused() {
        let path = std::env::temp_dir().join(format!("isograd-pipe-{}", std::process::id()));
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = read(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(error.message().contains("it is a pipe or a device, expected a file"), "{error}");
        assert!(crate::Mapped::open("/dev/zero").is_err());
    }

    #[test]
    fn a_budget_ends() {
        let mut budget = Budget::new(10);
        budget.spend(Budget::BASE, 1).unwrap();
        budget.spend(10, Budget::TIMES).unwrap();
        assert!(budget.spend(1, 1).unwrap_err().contains("more than 32 times the 10 bytes"));
        assert!(budget.spend(usize::MAX, 2).is_err());
    }
}
