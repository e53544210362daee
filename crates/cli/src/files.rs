//! The folder of a run.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::Path;

/// Creates the folder if need be and makes sure that it can be written to, before any work is done.
pub fn prepare(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let probe = folder.join(".isograd-write-test.tmp");
    File::create(&probe).with_context(|| format!("cannot write to the folder {}", folder.display()))?;
    fs::remove_file(&probe).with_context(|| format!("cannot remove {}", probe.display()))
}
