//! NCCL, NVIDIA's library of collectives: where it is.

use crate::library::{self, PLACES};
use isograd_core::{Error, Result};
use isograd_gpu::vendor::ccl::Ccl;
use isograd_gpu::vendor::dynlib::Files;
use std::sync::OnceLock;

const FILES: Files = Files {
    places: &PLACES,
    names: &["libnccl.so.2", "libnccl.so"],
    stem: "libnccl.so",
    remedy: "pip install nvidia-nccl-cu13",
};

/// The library, opened once. Errors: `Device`, with where it was looked for.
pub fn open() -> Result<&'static Ccl> {
    static OPENED: OnceLock<Result<Ccl, String>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| Ccl::of("NCCL", library::open(&FILES, None)?));
    opened.as_ref().map_err(|why| Error::device("cuda", format!("NCCL cannot be opened: {why}")))
}
