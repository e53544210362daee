//! RCCL, AMD's library of collectives: where it is.

use crate::library::PLACES;
use isograd_core::Result;
use isograd_gpu::vendor::ccl::Ccl;
use isograd_gpu::vendor::dynlib::{Files, Opened};

const FILES: Files =
    Files { places: &PLACES, names: &["librccl.so.1", "librccl.so"], stem: "librccl.so", remedy: "ROCm has it" };

/// The library, opened once. Errors: `Device`, with where it was looked for.
pub fn open() -> Result<&'static Ccl> {
    static OPENED: Opened<Ccl> = Opened::new("hip", "RCCL");
    OPENED.get(|| Ccl::new("RCCL", FILES.open()?))
}
