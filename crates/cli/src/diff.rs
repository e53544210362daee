//! `isograd diff`.

use crate::train::{Config, Model, Start, TASKS, Task, first};
use crate::{check_writable, report};
use anyhow::{Context, Result};
use clap::Args;
use clap::builder::PossibleValuesParser;
use isograd::{Device, replace_file, tape};
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

/// The options of `isograd diff`.
#[derive(Args, Debug)]
pub struct Diff {
    /// A device, as `isograd devices` lists it
    a: String,
    /// The device to compare it with
    b: String,
    /// The dataset
    #[arg(default_value = "digits", value_parser = PossibleValuesParser::new(TASKS.iter().map(|task| task.name)))]
    dataset: String,
    #[command(flatten)]
    model: Model,
    /// Write all that was found to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// True if a terminal shows stdout, and styles are not switched off (no-color.org).
fn is_styled() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Runs the first training step on both devices and reports. The exit code is 1 if a node is beyond its tolerance.
pub fn run(options: Diff) -> Result<ExitCode> {
    options.json.iter().try_for_each(|path| check_writable(path))?;
    let (a, b): (Device, Device) = (options.a.parse()?, options.b.parse()?);
    let task = Task::named(&options.dataset).context("there is no such dataset")?;
    let config = Config::new(&options.model, task, None)?;
    let split = task.load(options.model.data(), &config)?;
    let found = tape::diff(&a, &b, |device| {
        let start = Start::new(&config, &split, device, None)?;
        let trainer = start.trainer(&config, &split, &split.test)?;
        trainer.step(&first(trainer.train_loader())?)
    })?;
    if let Some(path) = &options.json {
        replace_file(path, &[&serde_json::to_vec(&found)?, b"\n"])?;
    }
    let verdict = if is_styled() { format!("\x1b[1m{}\x1b[0m", found.verdict()) } else { found.verdict() };
    report(&format!("{}\n{verdict}", found.table()), found.first().is_none())
}
