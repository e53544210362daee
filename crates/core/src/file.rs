//! Files that are replaced as a whole.

use crate::{Error, Result, sys};
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Prefix and suffix of the names of files that are being written.
const ASIDE: (&str, &str) = (".isograd-", ".tmp");

/// Replaces a file by the concatenation of `parts`. They are written under another name in the same folder, flushed to the disk,
/// and renamed. After any failure `path` is therefore either the old file or the new one. Removes the leftovers of killed processes
/// from the folder, as [`remove_abandoned`] does. Errors: `Io` naming the path; the temporary file is then removed.
pub fn replace_file(path: impl AsRef<Path>, parts: &[&[u8]]) -> Result<()> {
    replace(path.as_ref(), parts, Access::AsUsual)
}

/// [`replace_file`] for a file that only its owner may read and write.
pub fn replace_private_file(path: impl AsRef<Path>, parts: &[&[u8]]) -> Result<()> {
    replace(path.as_ref(), parts, Access::Private)
}

/// The permissions of a new file.
#[derive(Clone, Copy)]
enum Access {
    /// The permissions of the user's mask.
    AsUsual,
    /// Read and write for the owner alone.
    Private,
}

fn replace(path: &Path, parts: &[&[u8]], access: Access) -> Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    remove_abandoned(folder);
    write_aside(folder, path, parts, access).map_err(|e| Error::io(path, "writing", e))
}

/// Whether files can be written to a folder: makes one, and removes it. Errors: `Io` naming the folder.
pub fn try_writing(folder: impl AsRef<Path>) -> Result<()> {
    let folder = folder.as_ref();
    new_file(folder, Access::Private).map(drop).map_err(|e| Error::io(folder, "writing to the folder", e))
}

/// Removes unfinished files of [`replace_file`] from a folder, whose writers were killed. These are files with a temporary name
/// that no process holds locked. Files that cannot be removed stay.
pub fn remove_abandoned(folder: impl AsRef<Path>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(is_aside) {
        // An unlocked file has no writer, or its writer has not locked it yet. In the second case the writer creates another file.
        // The lock is held until the file is gone, so that such a writer does not lock it in between.
        if let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// True for a plain file (no link) with a temporary name.
fn is_aside(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    let is_named = name.to_str().is_some_and(|name| name.starts_with(ASIDE.0) && name.ends_with(ASIDE.1));
    is_named && entry.file_type().is_ok_and(|kind| kind.is_file())
}

fn write_aside(folder: &Path, path: &Path, parts: &[&[u8]], access: Access) -> io::Result<()> {
    let mut aside = locked_file(folder, access)?;
    parts.iter().try_for_each(|part| aside.file.write_all(part))?;
    aside.file.sync_all()?;
    aside.become_file(path)?;
    sys::flush_folder(folder)
}

/// A file that is being written. It is removed when this is dropped before it has its name.
struct Aside {
    file: File,
    path: PathBuf,
    has_name: bool,
}

impl Aside {
    /// Renames the file, in place of one of this name.
    fn become_file(mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.has_name = true;
        Ok(())
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if !self.has_name {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A new file, locked by this process while it is open, where the file system has locks.
fn locked_file(folder: &Path, access: Access) -> io::Result<Aside> {
    loop {
        let aside = new_file(folder, access)?;
        let is_locked = aside.file.lock().is_ok();
        // Another process may have removed the file as abandoned before it was locked.
        if !is_locked || aside.path.try_exists()? {
            return Ok(aside);
        }
    }
}

/// A file that was not there before, nor was a link of its name. Its name has 64 random bits, since processes of several machines or containers
/// may share a folder.
fn new_file(folder: &Path, access: Access) -> io::Result<Aside> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    if let Access::Private = access {
        sys::make_private(&mut options);
    }
    // The keys of maps are the random numbers that the standard library has.
    let number = RandomState::new().build_hasher().finish();
    let path = folder.join(format!("{}{number:016x}{}", ASIDE.0, ASIDE.1));
    options.open(&path).map(|file| Aside { file, path, has_name: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        // A folder cannot be replaced by a file: the rename fails, after all bytes have been written.
        fs::create_dir(&path).unwrap();
        assert!(replace_file(&path, &[b"new"]).is_err());
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["taken"]);
    }

    #[test]
    fn writers_of_one_folder_leave_each_others_files() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let path = folder.path().join(writer.to_string());
                scope.spawn(move || (0..60).for_each(|_| replace_file(&path, &[b"new"]).unwrap()));
            }
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 8);
    }

    #[test]
    fn what_is_being_written_is_not_abandoned() {
        let folder = tempfile::tempdir().unwrap();
        let aside = locked_file(folder.path(), Access::Private).unwrap();
        remove_abandoned(folder.path());
        assert!(aside.path.exists());
        // The state after a killed process: its locks are released.
        let path = aside.path.clone();
        aside.file.unlock().unwrap();
        assert!(path.exists());
        remove_abandoned(folder.path());
        assert!(!path.exists());
    }

    #[test]
    fn writing_is_tried_without_a_trace() {
        let folder = tempfile::tempdir().unwrap();
        try_writing(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(try_writing(folder.path().join("missing")).unwrap_err().kind(), crate::Kind::Io);
    }

    #[test]
    #[cfg(unix)]
    fn a_private_file_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("private");
        replace_private_file(&path, &[b"secret"]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
