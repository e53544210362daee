//! Helpers of the tests of damaged files and of the fuzz targets: an allocator that counts the memory of a reader, and the options of a small network.

use isograd::models::CausalLmOptions;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, with the bytes that are allocated now, and the most since a reset. It counts where a program makes it the global one.
pub struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

#[allow(unsafe_code)]
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

/// The result of a function, and the most bytes that it had allocated at a time.
pub fn counted<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.load(Relaxed);
    MOST.store(before, Relaxed);
    let result = f();
    (result, MOST.load(Relaxed).saturating_sub(before))
}

/// A network whose `config.json` is changed.
pub fn small_model() -> CausalLmOptions {
    CausalLmOptions {
        vocab: 11,
        context: 8,
        layers: 2,
        heads: 2,
        key_heads: 1,
        width: 4,
        hidden: 6,
        tied: true,
        ..CausalLmOptions::llama2_7b()
    }
}
