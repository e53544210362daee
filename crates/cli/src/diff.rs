//! `isograd diff`.

use crate::train::{Config, Model, Start, Task};
use crate::{check_writable, report};
use anyhow::{Context, Result, bail};
use clap::Args;
use isograd::{Device, Error, replace_file, tape};
use std::path::PathBuf;
use std::process::ExitCode;

/// The options of `isograd diff`.
#[derive(Args, Debug)]
pub struct Diff {
    #[command(flatten)]
    model: Model,
    /// The two devices, separated by a comma, as `isograd devices` lists them
    #[arg(long, value_name = "A,B", value_delimiter = ',', required = true)]
    devices: Vec<String>,
    /// Write all that was found to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the first training step on both devices and reports. The exit code is 1 if a node is beyond its tolerance.
pub fn run(options: Diff) -> Result<ExitCode> {
    options.json.iter().try_for_each(|path| check_writable(path))?;
    let devices = options.devices.iter().map(|name| name.parse()).collect::<isograd::Result<Vec<Device>>>()?;
    let [a, b] = &devices[..] else { bail!("--devices names {}, expected two such as cpu,opencl:0", devices.len()) };
    let task = Task::named(&options.model.dataset).context("there is no such dataset")?;
    let config = Config::new(&options.model, task, None)?;
    let split = task.load(options.model.data(), &config)?;
    let found = tape::diff(a, b, |device| {
        let start = Start::new(&config, &split, device, None)?;
        let trainer = start.trainer(&config, &split, &split.test)?;
        let first = trainer.train_loader().epoch(0).next();
        let batch = first.ok_or_else(|| Error::value("diff", "there is no sample to train on"))??;
        trainer.step(&batch)
    })?;
    if let Some(path) = &options.json {
        replace_file(path, &[&serde_json::to_vec(&found)?, b"\n"])?;
    }
    report(&found.text(), found.first().is_none())
}
