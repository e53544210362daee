//! The `isograd` command.

mod bench;
mod config;
mod curves;
mod devices;
mod diff;
mod kernels;
mod mixed;
mod parity;
mod train;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::Write;
use std::path::Path;
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
    /// Check that every kernel of every device computes the same
    Parity(parity::Parity),
    #[command(name = parity::WORKER, hide = true)]
    ParityWorker,
    /// Find the first node of a training step that two devices compute differently
    Diff(diff::Diff),
    /// List the kernels of GPU backends, or print the source of one
    Kernels(kernels::Kernels),
    /// Train a classifier
    Train(config::Train),
}

/// Writes a line to stdout, which may be a closed pipe or a file on a full disk.
fn print(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{line}").context("cannot write to stdout")
}

/// Makes sure that a file can be written before any work is done.
fn check_writable(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() {
        bail!("{} is a folder", path.display());
    }
    tempfile::tempfile_in(folder).with_context(|| format!("cannot write to {}", path.display()))?;
    Ok(())
}

fn progress_bar(rows: usize) -> anyhow::Result<ProgressBar> {
    let bar = ProgressBar::new(rows as u64);
    bar.set_style(ProgressStyle::with_template("[{bar:30}] {pos}/{len} {msg}")?.progress_chars("=> "));
    Ok(bar)
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Devices => devices::list(),
        Command::Bench(bench) => bench::run(bench),
        Command::Parity(parity) => parity::run(parity),
        Command::ParityWorker => parity::serve(),
        Command::Diff(diff) => diff::run(diff),
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
