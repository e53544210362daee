//! Files written aside and renamed, so that an interrupted run leaves the old file or the new one.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Creates the folder if need be and makes sure that it can be written to, before any work is done.
pub fn prepare(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let probe = folder.join(".isograd-write-test.tmp");
    File::create(&probe).with_context(|| format!("cannot write to the folder {}", folder.display()))?;
    fs::remove_file(&probe).with_context(|| format!("cannot remove {}", probe.display()))
}

/// Replaces `path` by `content`.
pub fn replace(path: &Path, content: &str) -> Result<()> {
    let aside = path.with_extension("tmp");
    let written = write(&aside, content).and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        // The error that counts is the one above.
        let _ = fs::remove_file(&aside);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn write(path: &Path, content: &str) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}
