//! `cargo xtask docs`: the book.

use crate::{Failure, tools};

/// Builds docs/ with mdBook.
pub fn build() -> Result<(), Failure> {
    if !tools::works("mdbook", &["--version"]) {
        return Err("the book needs mdBook; install it with `cargo install mdbook --locked`".to_string());
    }
    tools::run("mdbook", &["build", "docs"])?;
    say!("xtask: open {}", tools::root().join("docs/book/index.html").display());
    Ok(())
}
