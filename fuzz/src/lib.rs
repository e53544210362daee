//! What the targets share: files of changing bytes, and the memory that their readers take.

use isograd::{Error, Kind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, with the bytes that are allocated now, and the most since a reset.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator with the arguments that they have.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MOST.fetch_max(NOW.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

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
    let before = NOW.load(Relaxed);
    MOST.store(before, Relaxed);
    let result = reader();
    let most = MOST.load(Relaxed).saturating_sub(before);
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
