//! NCCL, NVIDIA's library of collectives: where it is.

use crate::library::PLACES;
use isograd_core::Result;
use isograd_gpu::vendor::ccl::Ccl;
use isograd_gpu::vendor::dynlib::{Files, Opened};

const FILES: Files = Files {
    places: &PLACES,
    names: &["libnccl.so.2", "libnccl.so"],
    stem: "libnccl.so",
    remedy: "pip install nvidia-nccl-cu13",
};

/// The library, opened once. Errors: `Device`, with where it was looked for.
pub fn open() -> Result<&'static Ccl> {
    static OPENED: Opened<Ccl> = Opened::new("cuda", "NCCL");
    OPENED.get(|| Ccl::new("NCCL", FILES.open()?))
}
