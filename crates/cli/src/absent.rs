//! Stands for commands in a program without them.

use anyhow::{Result, bail};
use clap::Args;
use std::ffi::OsString;
use std::process::ExitCode;

#[cfg(not(feature = "parity"))]
pub type Bench = Absent;
#[cfg(not(feature = "parity"))]
pub type Diff = Absent;
#[cfg(not(feature = "parity"))]
pub type Parity = Absent;

/// The arguments of such a command, whatever they are.
#[derive(Args)]
pub struct Absent {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

/// Errors: always.
#[cfg(not(feature = "parity"))]
pub fn run(Absent { arguments: _ }: Absent) -> Result<ExitCode> {
    bail!(
        "this program was built without `bench`, `diff` and `parity`: `cargo install --path crates/cli --features parity` builds them, too"
    )
}

/// Errors: always, for a command that has the name of its feature.
#[cfg(not(all(feature = "chat", feature = "serve")))]
pub fn without(name: &str, Absent { arguments: _ }: Absent) -> Result<ExitCode> {
    bail!(
        "this program was built without `{name}`: `cargo install --path crates/cli --features {name},tokenizers` builds it, too"
    )
}
