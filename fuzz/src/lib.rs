//! Helpers of the fuzz targets: temporary files, and a limit on the memory of a reader.

#[path = "../../tests/src/damaged.rs"]
mod damaged;

pub use damaged::small_model;

use damaged::{Counting, counted};
use isograd::{Error, Kind};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that a reader may take for a file of a fuzzer, which has some KiB. Readers take what an archive's or a column's content can need at most.
pub const LIMIT: usize = 64 << 20;

/// A folder for this process.
pub static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("isograd-fuzz-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("the folder of temporary files");
    folder
});

/// Runs a reader. It panics where the reader takes more memory than `limit`, or returns an error of a kind that is neither `Format` nor one of `others`.
pub fn read(limit: usize, others: &[Kind], reader: impl FnOnce() -> Result<(), Error>) {
    let (result, most) = counted(reader);
    assert!(most <= limit, "the reader took {most} bytes");
    if let Err(error) = result {
        assert!(error.kind() == Kind::Format || others.contains(&error.kind()), "{:?}: {error}", error.kind());
    }
}

/// [`read`] of a file with these bytes.
pub fn read_file(bytes: &[u8], others: &[Kind], reader: impl FnOnce(&Path) -> Result<(), Error>) {
    let path = FOLDER.join("file");
    fs::write(&path, bytes).expect("the folder of temporary files");
    read(LIMIT, others, || reader(&path));
}
