//! `cargo xtask docs`: the book.

use crate::{Failure, tools};

/// The version that the book is built with.
const VERSION: &str = "0.5.4";

/// Builds docs/ with mdBook, which is installed in target/mdbook from crates.io unless it is there. The tests check the links.
pub fn build() -> Result<(), Failure> {
    let folder = tools::root().join("target/mdbook");
    let program = folder.join("bin/mdbook").with_extension(std::env::consts::EXE_EXTENSION);
    let (program, folder) = (program.to_string_lossy(), folder.to_string_lossy());
    if !tools::works(&program, &["--version"]) {
        say!("xtask: installing mdBook {VERSION}");
        let build = folder.to_string() + "/build";
        let features = ["--no-default-features", "--features", "search"];
        let place = ["--root", &folder, "--target-dir", &build];
        tools::run(
            "cargo",
            &[&["install", "mdbook", "--locked", "--version", VERSION][..], &features, &place].concat(),
        )?;
        // A few hundred megabytes that nothing reads again.
        std::fs::remove_dir_all(&build).map_err(|e| format!("{build}: {e}"))?;
    }
    tools::run(&program, &["build", "docs"])?;
    say!("xtask: open {}", tools::root().join("docs/book/index.html").display());
    Ok(())
}
