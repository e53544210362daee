//! Files that are replaced as a whole.

use crate::{Error, Result};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use tempfile::NamedTempFile;

/// How the names of files begin and end that are being written.
const ASIDE: (&str, &str) = (".isograd-", ".tmp");

/// Replaces a file by these parts, one after the other: they are written under another name in the same folder, flushed
/// to the disk and renamed, so that `path` is the old file or the new one whatever happens. Removes what killed processes
/// left in the folder, as [`remove_abandoned`] does. Errors: `Io` naming the path; then nothing is left beside it.
pub fn replace_file(path: impl AsRef<Path>, parts: &[&[u8]]) -> Result<()> {
    replace(path.as_ref(), parts, Access::AsUsual)
}

/// [`replace_file`] of a file that only its owner may read and write.
pub fn replace_private_file(path: impl AsRef<Path>, parts: &[&[u8]]) -> Result<()> {
    replace(path.as_ref(), parts, Access::Private)
}

/// Who may use a new file.
#[derive(Clone, Copy)]
enum Access {
    /// Whom the user's mask allows to.
    AsUsual,
    /// Its owner.
    Private,
}

fn replace(path: &Path, parts: &[&[u8]], access: Access) -> Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    remove_abandoned(folder);
    write_aside(folder, path, parts, access).map_err(|e| Error::io(path, "writing", e))
}

/// Removes files from a folder that [`replace_file`] was writing there when its process was killed: those of its names that no
/// process holds locked. What cannot be removed stays.
pub fn remove_abandoned(folder: impl AsRef<Path>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(is_aside) {
        // Not locked: its writer has ended, or has not locked it yet, and then makes another one.
        if File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether this is a plain file, no link, whose name is one of those that are written aside.
fn is_aside(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    let is_named = name.to_str().is_some_and(|name| name.starts_with(ASIDE.0) && name.ends_with(ASIDE.1));
    is_named && entry.file_type().is_ok_and(|kind| kind.is_file())
}

fn write_aside(folder: &Path, path: &Path, parts: &[&[u8]], access: Access) -> io::Result<()> {
    let mut file = locked_file(folder, access)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    // The new name is on the disk once the folder is.
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    Ok(())
}

/// A new file that this process holds locked as long as it is open, where the file system has locks.
fn locked_file(folder: &Path, access: Access) -> io::Result<NamedTempFile> {
    loop {
        let file = new_file(folder, access)?;
        let is_locked = file.as_file().lock().is_ok();
        // Another process may have taken it for abandoned before it was locked.
        if !is_locked || file.path().try_exists()? {
            return Ok(file);
        }
    }
}

#[cfg_attr(not(unix), allow(unused_variables))]
fn new_file(folder: &Path, access: Access) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(ASIDE.0).suffix(ASIDE.1);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(match access {
        Access::AsUsual => 0o666,
        Access::Private => 0o600,
    }));
    builder.tempfile_in(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        // A folder cannot be replaced by a file: the last step fails, when all has been written.
        fs::create_dir(&path).unwrap();
        assert!(replace_file(&path, &[b"new"]).is_err());
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["taken"]);
    }

    #[test]
    fn what_is_being_written_is_not_abandoned() {
        let folder = tempfile::tempdir().unwrap();
        let file = locked_file(folder.path(), Access::Private).unwrap();
        remove_abandoned(folder.path());
        assert!(file.path().exists());
        // As a killed process leaves it: its locks end with it.
        let path = file.into_temp_path().keep().unwrap();
        assert!(path.exists());
        remove_abandoned(folder.path());
        assert!(!path.exists());
    }
}
