//! `isograd eval`.

use super::{Config, Start, device, task};
use crate::{print, text};
use anyhow::{Context, Result};
use clap::Args;
use isograd::nn::{Checkpoint, Module};
use isograd::train::{BEST, SavedRun};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// The options of `isograd eval`.
#[derive(Args, Debug)]
pub struct Eval {
    /// The folder of a run of `isograd train`
    pub run: PathBuf,
    /// The folder or the file with the samples, if the run had one
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// The device, as `isograd devices` lists it [default: the best there is]
    #[arg(long)]
    device: Option<String>,
    /// Evaluate the last model, not the best
    #[arg(long)]
    pub last: bool,
    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,
}

/// The part of a configuration that all runs have.
#[derive(Deserialize)]
struct Dataset {
    dataset: String,
}

/// Computes the loss and the metrics of a run's best model over the test samples.
pub fn run(options: Eval) -> Result<ExitCode> {
    let device = device(options.device.as_deref())?;
    let saved = SavedRun::load(&options.run, &device);
    let saved = saved.with_context(|| format!("cannot evaluate {}", options.run.display()))?;
    if saved.config::<Dataset>()?.dataset == text::NAME {
        return text::evaluate(&options, &saved, &device);
    }
    let config: Config = saved.config()?;
    let split = task(&config.dataset)?.load(options.data.as_deref(), &config)?;
    let start = Start::new(&config, &split, &device, None)?;
    let epoch = match (options.last, saved.progress.best) {
        (false, Some(best)) => {
            Checkpoint::load(options.run.join(BEST), &device)?.restore_model(&*start.model)?;
            saved.progress.history[best].epoch
        }
        _ => {
            saved.restore_model(&*start.model)?;
            saved.progress.epoch
        }
    };
    let found = start.trainer(&config, &split, &split.test)?.evaluate()?;
    let samples = split.test.len();
    if options.json {
        let mut report = Map::from_iter([
            ("dataset".to_string(), json!(config.dataset)),
            ("device".into(), json!(device.name())),
            ("epoch".into(), json!(epoch)),
            ("samples".into(), json!(samples)),
            ("test_loss".into(), json!(found.loss)),
        ]);
        report.extend(found.metrics.iter().map(|(name, value)| (format!("test_{name}"), json!(value))));
        print(&Value::Object(report).to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let metrics: String =
        found.metrics.iter().map(|(name, v)| format!(", {} {v:.4}", name.replace('_', " "))).collect();
    let parameters = start.model.num_parameters();
    print(&format!(
        "{}: loss {:.4}{metrics} over {samples} test samples; {parameters} parameters of epoch {epoch} on {device}",
        config.dataset, found.loss
    ))?;
    Ok(ExitCode::SUCCESS)
}
