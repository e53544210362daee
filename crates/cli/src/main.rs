//! The `isograd` command.

mod bench;
mod config;
mod curves;
mod devices;
mod kernels;
mod train;

use anyhow::Context;
use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// Deep learning on whatever device is at hand.
#[derive(Parser)]
#[command(name = "isograd", version, about, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the devices that this program can use
    Devices,
    /// Measure how fast a device runs every kind of op, against what it can do
    Bench(bench::Bench),
    /// List the kernels of GPU backends, or print the source of one
    Kernels(kernels::Kernels),
    /// Train a classifier
    Train(config::Train),
}

/// Writes a line to stdout, which may be a closed pipe or a file on a full disk.
fn print(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{line}").context("cannot write to stdout")
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Devices => devices::list(),
        Command::Bench(bench) => bench::run(bench),
        Command::Kernels(options) => kernels::run(options),
        Command::Train(train) => train::run(train),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
