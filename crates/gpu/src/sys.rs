//! Functions that differ between systems: the folder for caches, and files that are one user's alone.

use std::env::var_os;
use std::fs::{DirBuilder, Metadata, OpenOptions};
use std::io;
use std::path::PathBuf;

/// The user's folder for caches. On Unix `XDG_CACHE_HOME`, if that is absolute, or `~/.cache`.
pub fn cache_folder() -> Option<PathBuf> {
    let home = || std::env::home_dir().filter(|home| home.is_absolute());
    if cfg!(windows) {
        return var_os("LOCALAPPDATA").map(PathBuf::from).filter(|folder| folder.is_absolute());
    }
    if cfg!(target_os = "macos") {
        return home().map(|home| home.join("Library/Caches"));
    }
    let named = var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
    named.or_else(|| home().map(|home| home.join(".cache")))
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};

    /// Folders that only this user may write to.
    pub fn make_private(builder: &mut DirBuilder) {
        builder.mode(0o700);
    }

    /// New files are this user's alone. A link is not followed, and a pipe not waited for.
    pub fn open_private(options: &mut OpenOptions) {
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        options.mode(0o600).custom_flags(flags.bits() as i32);
    }

    /// Errors if others own a file or a folder, or may write to it.
    pub fn check_private(found: &Metadata) -> io::Result<()> {
        let user = rustix::process::geteuid().as_raw();
        if found.is_symlink() {
            return Err(io::Error::other("it is a link"));
        }
        if found.uid() != user {
            return Err(io::Error::other(format!("user {} owns it, and this is user {user}", found.uid())));
        }
        match found.mode() & 0o022 {
            0 => Ok(()),
            _ => Err(io::Error::other(format!(
                "others may write to it (mode {:03o}), which `chmod go-w` ends",
                found.mode() & 0o777
            ))),
        }
    }
}

/// Elsewhere the system's own folder for caches is the user's.
#[cfg(not(unix))]
mod other {
    use super::*;

    pub fn make_private(_: &mut DirBuilder) {}

    pub fn open_private(_: &mut OpenOptions) {}

    pub fn check_private(found: &Metadata) -> io::Result<()> {
        if found.is_symlink() { Err(io::Error::other("it is a link")) } else { Ok(()) }
    }
}

#[cfg(not(unix))]
pub use other::{check_private, make_private, open_private};
#[cfg(unix)]
pub use unix::{check_private, make_private, open_private};
