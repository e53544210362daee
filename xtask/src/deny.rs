//! `cargo xtask deny`: licences, double versions and sources of all dependencies, by deny.toml.

use crate::{Failure, tools};

/// Runs cargo-deny; where it cannot be had it says so, which `ISOGRAD_REQUIRE=deny` makes a failure.
pub fn run() -> Result<(), Failure> {
    let Some(program) = tools::ensure_deny() else {
        let missing = "cargo-deny is not there and could not be installed";
        if tools::is_required("deny") {
            return Err(missing.into());
        }
        say!("xtask: {missing}: licences, versions and sources of dependencies are not checked");
        return Ok(());
    };
    // It looks at the dependencies of all systems, and a build downloads those of one.
    tools::run("cargo", &["fetch", "--locked"])?;
    // Without `--workspace` it looks at the package of the root alone, which has no dependencies.
    let check = ["--offline", "--workspace", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"];
    tools::run(&program.to_string_lossy(), &check)
}
