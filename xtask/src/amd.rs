//! `cargo xtask amd`: every HIP kernel through AMD's compilers, which need no GPU.

use crate::test::Extent;
use crate::{Failure, tools};

/// Compiles all of them, or a sample; where the compilers cannot be had it says so, which `ISOGRAD_REQUIRE=amd` makes a failure.
pub fn run(extent: Extent) -> Result<(), Failure> {
    if !tools::ensure_amd() {
        let missing = "AMD's compilers are not there and could not be installed";
        if tools::is_required("amd") {
            return Err(missing.into());
        }
        say!("xtask: {missing}: HIP kernels are not compiled");
        return Ok(());
    }
    let environment = [("ISOGRAD_REQUIRE", "amd".as_ref()), ("ISOGRAD_QUICK", extent.quick().as_ref())];
    tools::run_with("cargo", &["test", "--workspace", "--test", "hip", "--", "amd::"], &environment)
}
