//! `cargo xtask nvrtc`: every CUDA kernel through NVIDIA's compiler, which needs no GPU.

use crate::test::Extent;
use crate::{Failure, tools};

/// Compiles all of them, or a sample; where NVRTC cannot be had it says so, which `ISOGRAD_REQUIRE=nvrtc` makes a failure.
pub fn run(extent: Extent) -> Result<(), Failure> {
    let Some(folder) = tools::ensure_nvrtc() else {
        let missing = "NVRTC is not there and could not be installed";
        if tools::is_required("nvrtc") {
            return Err(missing.into());
        }
        say!("xtask: {missing}: CUDA kernels are not compiled");
        return Ok(());
    };
    let environment = [
        ("ISOGRAD_CUDA_LIB", folder.as_os_str()),
        ("ISOGRAD_REQUIRE", "nvrtc".as_ref()),
        ("ISOGRAD_QUICK", extent.quick().as_ref()),
    ];
    tools::run_with("cargo", &["test", "--workspace", "--test", "cuda", "--", "nvrtc::"], &environment)
}
