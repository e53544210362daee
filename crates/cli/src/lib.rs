//! The `isograd` command. The feature `parity` has what compares and measures devices: `bench`, `diff` and `parity`.

#[cfg(not(all(feature = "chat", feature = "parity", feature = "serve")))]
mod absent;
#[cfg(feature = "parity")]
mod bench;
mod datasets;
mod devices;
#[cfg(feature = "parity")]
mod diff;
mod eval;
mod export;
mod info;
mod kernels;
mod onnx;
#[cfg(feature = "parity")]
mod parity;
mod parse;
mod ranks;
mod run;
mod runs;
#[cfg(feature = "serve")]
mod serve;
mod settings;
mod text;
mod train;
mod watch;

#[cfg(not(feature = "parity"))]
use absent::{self as bench, self as diff, self as parity};
use anyhow::{Context, bail};
use clap::{CommandFactory, Parser, Subcommand};
#[cfg(feature = "parity")]
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::writer::MakeWriterExt;

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
    #[cfg(feature = "parity")]
    #[command(name = parity::WORKER, hide = true)]
    ParityWorker,
    /// Find the first node of a training step that two devices compute differently
    Diff(diff::Diff),
    /// List the kernels of GPU backends, or print the source of one
    Kernels(kernels::Kernels),
    /// Train a model on images, a table or a text
    Train(datasets::Train),
    /// Compute the loss and the accuracy of a trained model
    Eval(eval::Eval),
    /// Predict the classes or numbers of new files with a trained model
    Predict(train::PredictOptions),
    /// Compare trained models: their results, settings and curves
    Runs(runs::Runs),
    /// Write a trained model in the format of ONNX
    Export(export::Export),
    /// Say what a model in the format of ONNX has, run it, time it or train it further
    Onnx(onnx::Onnx),
    /// Continue a text with a trained language model
    Generate(text::Generate),
    /// Talk with a language model: each line of stdin is answered
    #[cfg(feature = "chat")]
    Chat(text::Chat),
    #[cfg(not(feature = "chat"))]
    #[command(hide = true)]
    Chat(absent::Absent),
    /// Serve a language model over HTTP, to clients of OpenAI's interface
    #[cfg(feature = "serve")]
    Serve(serve::Serve),
    #[cfg(not(feature = "serve"))]
    #[command(hide = true)]
    Serve(absent::Absent),
    /// List the tensors of a file of weights, and the metadata of a GGUF file
    Info(info::Info),
}

/// The error of printing to a pipe that nobody reads any more, which ends the command without a word.
#[derive(Debug)]
struct Unread;

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads stdout any more")
    }
}

impl std::error::Error for Unread {}

/// True if nobody reads stdout any more. A library that prints says so by the system's error.
fn is_unread(error: &anyhow::Error) -> bool {
    let is_closed = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
    let is_caused = |e: &isograd::Error| e.cause().and_then(|cause| cause.downcast_ref()).is_some_and(is_closed);
    let has = |e: &(dyn std::error::Error + 'static)| {
        e.downcast_ref().is_some_and(is_closed) || e.downcast_ref().is_some_and(is_caused)
    };
    error.is::<Unread>() || error.chain().any(has)
}

/// Writes a line to stdout, which may be a closed pipe or a file on a full disk.
fn print(line: &str) -> anyhow::Result<()> {
    put(&format!("{line}\n"))
}

/// Writes text to stdout, as [`print`] does, at once.
fn put(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Unread.into()),
        written => written.context("cannot write to stdout"),
    }
}

/// Writes a line to stderr. Where that takes nothing, nobody can be told.
fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints what a check has found; the exit code says whether it has passed, even if nobody reads the rest.
fn report(text: &str, has_passed: bool) -> anyhow::Result<ExitCode> {
    match print(text) {
        Err(error) if !error.is::<Unread>() => Err(error),
        _ if has_passed => Ok(ExitCode::SUCCESS),
        _ => Ok(ExitCode::FAILURE),
    }
}

/// Makes sure that a file can be written before any work is done.
fn check_writable(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() {
        bail!("{} is a folder", path.display());
    }
    isograd::try_writing(folder).with_context(|| format!("cannot write to {}", path.display()))?;
    Ok(())
}

#[cfg(feature = "parity")]
fn progress_bar(rows: usize) -> anyhow::Result<ProgressBar> {
    let bar = ProgressBar::new(rows as u64);
    bar.set_style(ProgressStyle::with_template("[{bar:30}] {pos}/{len} {msg}")?.progress_chars("=> "));
    Ok(bar)
}

/// Warnings of the library, such as that of a folder that compiled kernels cannot be kept in, go to stderr, and so does what it says of
/// compilers that take long.
fn show_warnings() {
    let is_shown = |about: &Metadata<'_>| {
        *about.level() <= Level::WARN || about.module_path().is_some_and(|path| path.starts_with("isograd"))
    };
    let lines = tracing_subscriber::fmt().with_max_level(Level::INFO).with_writer(io::stderr.with_filter(is_shown));
    lines.without_time().with_target(false).log_internal_errors(false).init();
}

/// Runs the command with the arguments of the process.
pub fn main() -> ExitCode {
    show_warnings();
    let arguments = match settings::expanded(Arguments::command(), std::env::args_os().collect()) {
        Ok(arguments) => arguments,
        Err(error) => {
            tell(&format!("error: {error:#}"));
            return ExitCode::FAILURE;
        }
    };
    let result = match Arguments::parse_from(arguments).command {
        Command::Devices => devices::list(),
        Command::Bench(bench) => bench::run(bench),
        Command::Parity(parity) => parity::run(parity),
        #[cfg(feature = "parity")]
        Command::ParityWorker => parity::serve(),
        Command::Diff(diff) => diff::run(diff),
        Command::Kernels(options) => kernels::run(options),
        Command::Train(train) => datasets::run(train),
        Command::Eval(eval) => eval::run(eval),
        Command::Predict(options) => train::predict(options),
        Command::Runs(options) => runs::run(options),
        Command::Export(export) => export::run(export),
        Command::Onnx(options) => onnx::run(options),
        Command::Generate(options) => text::generate(options),
        #[cfg(feature = "chat")]
        Command::Chat(options) => text::chat(options),
        #[cfg(not(feature = "chat"))]
        Command::Chat(options) => absent::without("chat", options),
        #[cfg(feature = "serve")]
        Command::Serve(options) => serve::run(options),
        #[cfg(not(feature = "serve"))]
        Command::Serve(options) => absent::without("serve", options),
        Command::Info(options) => info::run(options),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_unread(&error) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
