//! RCCL, AMD's library of collectives: where it is.

use crate::library::{self, PLACES};
use isograd_core::{Error, Result};
use isograd_gpu::vendor::ccl::Ccl;
use isograd_gpu::vendor::dynlib::Files;
use std::sync::OnceLock;

const FILES: Files =
    Files { places: &PLACES, names: &["librccl.so.1", "librccl.so"], stem: "librccl.so", remedy: "ROCm has it" };

/// The library, opened once. Errors: `Device`, with where it was looked for.
pub fn open() -> Result<&'static Ccl> {
    static OPENED: OnceLock<Result<Ccl, String>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| Ccl::of("RCCL", library::open(&FILES)?));
    opened.as_ref().map_err(|why| Error::device("hip", format!("RCCL cannot be opened: {why}")))
}
