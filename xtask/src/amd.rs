//! `cargo xtask amd`: every HIP kernel through AMD's compilers, which need no GPU.

use crate::{Failure, tools};

/// Compiles them; where the compilers cannot be had it says so, which `ISOGRAD_REQUIRE=amd` makes a failure.
pub fn run() -> Result<(), Failure> {
    if !tools::ensure_amd() {
        let missing = "AMD's compilers are not there and could not be installed";
        if tools::is_required("amd") {
            return Err(missing.into());
        }
        say!("xtask: {missing}: HIP kernels are not compiled");
        return Ok(());
    }
    tools::run_with("cargo", &["test", "--workspace", "--test", "amd"], &[("ISOGRAD_REQUIRE", "amd".as_ref())])
}
