//! Functions that differ between systems: files that are one user's alone, folders on the disk, and available memory.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

/// Bytes of available memory, if the system tells, which Linux does.
pub fn available_memory() -> Option<usize> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<usize>().ok()? << 10)
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::OpenOptionsExt;

    /// New files are for their owner alone to read and write.
    pub fn make_private(options: &mut OpenOptions) {
        options.mode(0o600);
    }

    /// Writes the names of a folder's files to the disk. A rename is durable only after this.
    pub fn flush_folder(folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

/// Elsewhere a new file has the permissions of its folder, and a folder cannot be flushed.
#[cfg(not(unix))]
mod other {
    use super::*;

    pub fn make_private(_: &mut OpenOptions) {}

    pub fn flush_folder(_: &Path) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(not(unix))]
pub use other::{flush_folder, make_private};
#[cfg(unix)]
pub use unix::{flush_folder, make_private};
