//! Files that are read.

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
}
