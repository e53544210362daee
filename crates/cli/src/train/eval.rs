//! `isograd eval`.

use super::models::Predict;
use super::{Config, Split, Start, device, task};
use crate::{print, text};
use anyhow::{Context, Result, bail};
use clap::Args;
use isograd::nn::{Checkpoint, Module};
use isograd::train::{BEST, SavedRun};
use isograd::{DType, Device};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
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
pub struct Dataset {
    pub dataset: String,
}

/// The best model of a run, or the last one, the shape of a sample, and the dtype of its elements.
pub fn restored(
    run: &Path,
    data: Option<&Path>,
    is_last: bool,
    device: &Device,
) -> Result<(Box<dyn Predict>, Vec<usize>, DType)> {
    let saved = SavedRun::load(run, device).with_context(|| format!("cannot export {}", run.display()))?;
    let config: Config = saved.config()?;
    if task(&config.dataset)?.is_graph {
        bail!("{} is a run of {}, whose model is for one graph", run.display(), config.dataset);
    }
    let split = match (&config.samples, data) {
        (Some(signature), None) => Split::of(&config.dataset, signature),
        _ => task(&config.dataset)?.load(data, &config)?,
    };
    let start = Start::new(&config, &split, device, None)?;
    restore(&saved, run, &start, is_last)?;
    Ok((start.model, split.shape, start.dtype))
}

/// Gives a model the best weights of a run, or the last ones. Returns their epoch.
pub fn restore(saved: &SavedRun, run: &Path, start: &Start, is_last: bool) -> Result<u64> {
    match (is_last, saved.progress.best) {
        (false, Some(best)) => {
            Checkpoint::load(run.join(BEST), start.init.device())?.restore_model(&*start.model)?;
            Ok(saved.progress.history[best].epoch)
        }
        _ => {
            saved.restore_model(&*start.model)?;
            Ok(saved.progress.epoch)
        }
    }
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
    let epoch = restore(&saved, &options.run, &start, options.last)?;
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
