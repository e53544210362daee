//! The `isograd` command.

mod config;
mod curves;
mod devices;
mod files;
mod train;

use clap::{Parser, Subcommand};
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
    /// Train a classifier
    Train(config::Train),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Devices => devices::list(),
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
