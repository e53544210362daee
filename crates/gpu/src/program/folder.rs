//! The folder of compiled programs, which the processes of one user share. Whoever writes there decides what runs on the device, so
//! that a folder or a file is not used that others own or may write to.

use crate::sys::{check_private, make_private, open_private};
use hmac_sha256::Hash as Sha256;
use isograd_core::replace_private_file;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The first bytes of a file of the folder, and its format.
const MAGIC: &[u8; 8] = b"isograd1";

/// How long a process waits for another one that compiles: some compilers take minutes for a program.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder that is this user's alone.
pub struct Folder(PathBuf);

impl Folder {
    /// The folder, which is made if need be. None, with a warning, if it cannot be used.
    pub fn open(path: &Path) -> Option<Folder> {
        match make(path).and_then(|()| fs::metadata(path)).and_then(|found| check_private(&found)) {
            Ok(()) => Some(Folder(path.to_path_buf())),
            Err(error) => {
                let path = path.display();
                tracing::warn!("compiled kernels are kept in memory alone: the folder {path} cannot be used: {error}");
                None
            }
        }
    }

    /// The content of a file, if it is whole.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let mut file = open(OpenOptions::new().read(true), &self.0.join(name)).ok()?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok()?;
        let (head, binary) = bytes.split_at_checked(MAGIC.len() + 32)?;
        let is_whole = head.starts_with(MAGIC) && head[MAGIC.len()..] == Sha256::hash(binary)[..];
        is_whole.then(|| binary.to_vec())
    }

    /// Writes a file, of which no reader and no second process sees a part. Warns if that cannot be.
    pub fn write(&self, name: &str, binary: &[u8]) {
        let parts: [&[u8]; 3] = [MAGIC, &Sha256::hash(binary), binary];
        if let Err(error) = replace_private_file(self.0.join(name), &parts) {
            tracing::warn!("a compiled kernel cannot be kept: {error}");
        }
    }

    /// Held while a program is compiled: of several processes one does it, and the others find it. A driver's own cache, as PoCL's
    /// is, may not bear that two compile the same. None if there can be no lock, or another process holds it for too long, which
    /// costs no more than that.
    pub fn lock(&self, name: &str) -> Option<File> {
        self.lock_within(name, PATIENCE)
    }

    fn lock_within(&self, name: &str, patience: Duration) -> Option<File> {
        let locks = self.0.join("locks");
        make(&locks).and_then(|()| fs::symlink_metadata(&locks)).and_then(|found| check_private(&found)).ok()?;
        // A lock is that of all programs whose names begin alike, so that there are 256 files at most.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = open(&mut options, &locks.join(name.get(..2)?)).ok()?;
        let started = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            match file.try_lock() {
                Ok(()) => return Some(file),
                Err(TryLockError::Error(_)) => return None,
                Err(TryLockError::WouldBlock) if started.elapsed() >= patience => {
                    tracing::warn!("another process has compiled for {patience:?}: compiling beside it");
                    return None;
                }
                Err(TryLockError::WouldBlock) => sleep(pause),
            }
            pause = (2 * pause).min(Duration::from_millis(100));
        }
    }
}

/// Makes a folder, and those above it, that only this user may write to.
fn make(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    make_private(&mut builder);
    builder.recursive(true).create(path)
}

/// Opens a plain file that is this user's alone, and no link.
fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    open_private(options);
    let file = options.open(path)?;
    let found = file.metadata()?;
    check_private(&found)?;
    if found.is_file() { Ok(file) } else { Err(io::Error::other("it is no plain file")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let made = tempfile::tempdir().unwrap();
        let folder = Folder::open(made.path()).unwrap();
        (made, folder)
    }

    #[test]
    fn waiting_for_a_lock_has_a_limit() {
        let (_made, folder) = folder();
        let held = folder.lock("ab1").unwrap();
        let started = Instant::now();
        assert!(folder.lock_within("ab2", Duration::from_millis(50)).is_none());
        assert!(started.elapsed() < Duration::from_secs(10));
        assert!(folder.lock_within("cd2", Duration::ZERO).is_some());
        drop(held);
        assert!(folder.lock_within("ab2", Duration::ZERO).is_some());
    }

    #[test]
    #[cfg(unix)]
    fn a_lock_changes_no_file_and_follows_no_link() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let (made, folder) = folder();
        let (locks, other) = (made.path().join("locks"), made.path().join("other"));
        drop(folder.lock("ab").unwrap());
        fs::write(locks.join("ab"), "kept").unwrap();
        assert!(folder.lock("ab").is_some());
        assert_eq!(fs::read(locks.join("ab")).unwrap(), b"kept");
        symlink(&other, locks.join("cd")).unwrap();
        assert!(folder.lock("cd").is_none());
        assert!(!other.exists());
        fs::write(&other, "kept").unwrap();
        assert!(folder.lock("cd").is_none() && folder.read("other").is_none());
        // Nor is the folder of locks a link, or others'.
        fs::remove_dir_all(&locks).unwrap();
        fs::create_dir(other.with_extension("folder")).unwrap();
        symlink(other.with_extension("folder"), &locks).unwrap();
        assert!(folder.lock("ab").is_none());
        fs::remove_file(&locks).unwrap();
        fs::create_dir(&locks).unwrap();
        fs::set_permissions(&locks, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(folder.lock("ab").is_none());
    }

    #[test]
    #[cfg(unix)]
    fn what_others_may_have_written_is_not_read() {
        use std::os::unix::fs::PermissionsExt;
        let (made, folder) = folder();
        folder.write("name", b"program");
        assert_eq!(folder.read("name").unwrap(), b"program");
        let path = made.path().join("name");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(folder.read("name").is_none());
        std::os::unix::fs::symlink(&path, made.path().join("link")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(folder.read("link").is_none());
        folder.write("name", b"other");
        assert_eq!(folder.read("name").unwrap(), b"other");
    }

    #[test]
    #[cfg(unix)]
    fn a_folder_that_others_may_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let made = tempfile::tempdir().unwrap();
        let path = made.path().join("a/b");
        assert!(Folder::open(&path).is_some());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        for (mode, is_ours) in [(0o755, true), (0o775, false), (0o702, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Folder::open(&path).is_some(), is_ours, "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        // Only root can give it away.
        if std::os::unix::fs::chown(&path, Some(12345), None).is_ok() {
            assert!(Folder::open(&path).is_none());
        }
    }
}
