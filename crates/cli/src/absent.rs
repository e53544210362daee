//! Stands for `bench`, `diff` and `parity` in a program without them.

use anyhow::{Result, bail};
use clap::Args;
use std::ffi::OsString;
use std::process::ExitCode;

pub type Bench = Absent;
pub type Diff = Absent;
pub type Parity = Absent;

/// The arguments of such a command, whatever they are.
#[derive(Args)]
pub struct Absent {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

/// Errors: always.
pub fn run(Absent { arguments: _ }: Absent) -> Result<ExitCode> {
    bail!(
        "this program was built without `bench`, `diff` and `parity`: `cargo install --path crates/cli --features parity` builds them, too"
    )
}
