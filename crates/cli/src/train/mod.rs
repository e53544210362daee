//! Models of samples: `isograd train` with their datasets, `isograd predict`, and `isograd eval` of their runs. A file imports only those
//! above it in this list: batches, samples, how each kind is read, the table of tasks, configurations, networks, models.

mod batch;
mod sample;

mod graph;
mod images;
mod table;

mod tasks;

mod mixed;
mod optimizers;

mod config;

mod networks;

mod models;

mod predict;

pub use batch::{Input, Predict};
#[cfg(feature = "parity")]
pub use config::Model;
pub use config::{Config, Train, takes};
pub use images::IMAGENET;
pub use predict::{Predict as PredictOptions, line, run as predict};
pub use sample::{Set, Split};
pub use tasks::{TASKS, Task};

use crate::run::{Report, RunOptions, Start, Weights, Work, choice, kept_path};
use anyhow::{Result, bail};
use batch::Batch;
use isograd::nn::{GradScaler, Init};
use isograd::parallel::Group;
use isograd::train::{Epoch, Evaluation, SavedRun, Trainer, shown_number};
use isograd::{DType, Device, Tensor};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Samples of a batch when nothing is learnt.
const TEST_BATCH: usize = 512;

/// A trainer of the command's models.
type Classifier<'a> = Trainer<'a, dyn Predict, Batch, Tensor>;

/// A model of samples at its start.
pub type SampleStart = Start<dyn Predict>;

impl Work for Train {
    type Config = Config;
    type Split = Split;
    type Model = dyn Predict;
    type Batch = Batch;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn dataset(&self) -> &str {
        &self.dataset
    }

    fn resume(&self) -> Option<&Path> {
        self.resume.as_deref()
    }

    fn config(&self) -> Result<Config> {
        Config::new(&self.model, Task::named(&self.dataset)?, self.epochs)
    }

    fn lengthened(&self, config: Config, saved: &SavedRun) -> Result<Config> {
        let Some(epochs) = self.epochs else { return Ok(config) };
        let begun = saved.progress.epoch + u64::from(saved.progress.batch > 0);
        if epochs < begun {
            bail!("{} is in epoch {begun} already, after the last of --epochs {epochs}", saved.path.display());
        }
        Ok(Config { epochs, ..config })
    }

    fn split(&self, config: &mut Config) -> Result<Split> {
        config.data = kept_path(self.model.data(), config.data.take())?;
        let task = Task::named(&self.dataset)?;
        let split = task.load(config.data.as_deref(), &config.reading, config.samples.as_ref())?;
        config.samples = Some(split.signature());
        Ok(split)
    }

    fn start(&self, config: &Config, split: &Split, device: &Device, group: Option<&Group>) -> Result<SampleStart> {
        Ok(start(config, split, device, group.filter(|group| group.size() > 1 && self.sync_batch_norm))?)
    }

    fn trainer<'a>(&self, config: &Config, split: &Split, start: &'a SampleStart) -> isograd::Result<Classifier<'a>> {
        trainer(config, split, start, split.validated())
    }

    fn loss(split: &Split, start: &SampleStart, (input, y): &Batch) -> isograd::Result<Tensor> {
        split.objective.loss(&start.model.predict(&input.cast(start.init.parameter_dtype())?)?, y)
    }

    fn title(config: &Config, _: &Split) -> String {
        format!("{}, {}", config.dataset, config.dtype)
    }

    fn announcement(config: &Config, split: &Split, parameters: usize) -> String {
        let (name, samples) = (&split.name, split.train.len());
        format!("{name}: {samples} samples to train on; {parameters} parameters in {}", config.dtype)
    }

    fn description(split: &Split) -> (&str, &[String]) {
        split.table.as_ref().map_or(("", &[]), |table| (&table.description, &table.warnings))
    }

    /// If others than the samples to test with served for the validation, the model is tested now.
    fn report(
        &self,
        config: &Config,
        split: &Split,
        start: &SampleStart,
        kept: &Epoch,
        report: Report,
    ) -> Result<Report> {
        let validation = Evaluation { loss: kept.validation_loss.unwrap_or(f64::NAN), metrics: kept.metrics.clone() };
        let tested = match split.validation {
            Some(_) => Some(trainer(config, split, start, &split.test)?.evaluate()?),
            None => None,
        };
        let mut results = named("validation", &validation);
        results.extend(tested.iter().flat_map(|tested| named("test", tested)));
        let words = format!("{}; {}", words(split.role(), tested.as_ref().unwrap_or(&validation)), choice(&report));
        Ok(Report { dtype: Some(config.dtype.clone()), results, seed: config.seed, words, ..report })
    }
}

/// Loss and metrics by the names of a report.
fn named(role: &str, found: &Evaluation) -> BTreeMap<String, f64> {
    let loss = [(format!("{role}_loss"), found.loss)];
    loss.into_iter().chain(found.metrics.iter().map(|(name, value)| (format!("{role}_{name}"), *value))).collect()
}

/// Metrics and loss in words.
fn words(role: &str, found: &Evaluation) -> String {
    let metrics: String =
        found.metrics.iter().map(|(name, v)| format!("{} {}, ", name.replace('_', " "), shown_number(*v))).collect();
    format!("{role} {metrics}loss {}", shown_number(found.loss))
}

/// A model for these samples, whose batch norms take the statistics of all ranks of a group, if there is one.
pub fn start(config: &Config, split: &Split, device: &Device, across: Option<&Group>) -> isograd::Result<SampleStart> {
    let init = init(config, device)?;
    let init = match across {
        Some(group) => init.across(group.clone()),
        None => init,
    };
    Ok(Start { model: models::model(config, split, &init)?, init })
}

fn init(config: &Config, device: &Device) -> isograd::Result<Init> {
    let init = Init::new(device).seed(config.seed).dtype(config.dtype.parse::<DType>()?);
    Ok(if config.reading.images.channels_last { init.channels_last() } else { init })
}

/// The model of a run, whose weights are restored later.
pub fn loading(saved: &SavedRun, config: &Config, split: &Split, device: &Device) -> isograd::Result<SampleStart> {
    let init = saved.loading(init(config, device)?);
    Ok(Start { model: models::model(config, split, &init)?, init })
}

/// The trainer of a model, which is validated with a set of the samples.
pub fn trainer<'a>(
    config: &Config,
    split: &Split,
    start: &'a SampleStart,
    validated: &Set,
) -> isograd::Result<Classifier<'a>> {
    let (device, dtype, objective) = (start.init.device(), start.init.parameter_dtype(), split.objective);
    let train = split.train_loader(config.batch_size)?.shuffle(config.seed).to(device);
    let (metric, goal, value) = objective.metric(split.unit(dtype, device)?);
    let trainer = Trainer::new(
        &*start.model,
        config.optimizer.of(&*start.model, config.lr),
        train,
        move |model, (input, _)| model.predict(&input.cast(dtype)?),
        move |outputs, (_, y)| objective.loss(outputs, y),
    )
    .validate(split.test_loader(validated, TEST_BATCH)?.to(device))
    .metric(metric, goal, move |outputs, (_, y)| value(outputs, y))
    .epochs(config.epochs)
    .rng("init", start.init.rng());
    // The extents of a sample of neighbours differ from batch to batch.
    let is_sampled = split.graph.as_ref().is_some_and(|nodes| nodes.sampler.is_some());
    let trainer = if is_sampled { trainer.without_capture() } else { trainer };
    match dtype {
        DType::F16 => Ok(trainer.scaler(GradScaler::new(device)?)),
        _ => Ok(trainer),
    }
}

/// The model of a run, and the description of its samples. Errors: a model that is for one graph.
pub fn restored(
    saved: &SavedRun,
    run: &Path,
    data: Option<&Path>,
    weights: Weights,
    device: &Device,
) -> Result<(SampleStart, Split)> {
    let config: Config = saved.config()?;
    let task = Task::named(&config.dataset)?;
    if task.is_graph {
        bail!("{} is a run of {}, whose model is for one graph", run.display(), config.dataset);
    }
    let split = match (&config.samples, data) {
        (Some(signature), None) => Split::of(&config.dataset, signature),
        (known, _) => task.load(data.or(config.data.as_deref()), &config.reading, known.as_ref())?,
    };
    let start = loading(saved, &config, &split, device)?;
    weights.restore(saved, run, &start)?;
    Ok((start, split))
}

/// `isograd eval` of a run: the loss and the metrics of its model over the test samples, as JSON and in words.
pub fn evaluate(
    saved: &SavedRun,
    run: &Path,
    data: Option<&Path>,
    weights: Weights,
    device: &Device,
) -> Result<[String; 2]> {
    let config: Config = saved.config()?;
    let data = data.or(config.data.as_deref());
    let split = Task::named(&config.dataset)?.load(data, &config.reading, config.samples.as_ref())?;
    let start = loading(saved, &config, &split, device)?;
    let epoch = weights.restore(saved, run, &start)?;
    let found = trainer(&config, &split, &start, &split.test)?.evaluate()?;
    let (dataset, samples, parameters) = (&config.dataset, split.test.len(), start.model.num_parameters());
    let mut report = Map::from_iter([
        ("dataset".to_string(), json!(dataset)),
        ("device".into(), json!(device.name())),
        ("epoch".into(), json!(epoch)),
        ("samples".into(), json!(samples)),
    ]);
    report.extend(named(split.role(), &found).into_iter().map(|(name, value)| (name, json!(value))));
    let words = format!(
        "{dataset}: {} over {samples} samples; {parameters} parameters of epoch {epoch} on {device}",
        words(split.role(), &found)
    );
    Ok([Value::Object(report).to_string(), words])
}
