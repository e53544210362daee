//! `isograd train`, `isograd eval` and `isograd predict`.

mod batch;
mod config;
mod eval;
mod graph;
mod images;
mod mixed;
mod models;
mod networks;
mod optimizers;
mod predict;
mod tasks;
mod watch;

pub use batch::Input;
pub use config::{Config, Model, Train, parse_count, parse_rate, takes};
pub use eval::{Eval, restored, run as evaluate};
pub use predict::{Predict as PredictOptions, run as predict};
pub use tasks::{Set, Split, TASKS, Task};
pub use watch::{Watch, measured, on_board};

use crate::{print, ranks, tell};
use anyhow::{Context, Result, bail};
use batch::Batch;
use isograd::data::Loader;
use isograd::nn::{GradScaler, Init, Module};
use isograd::parallel::{Group, ParallelOptions};
use isograd::train::{Display, End, Evaluation, INTERRUPTED, SavedRun, Trainer, interrupts, prepare};
use isograd::{DType, Device, Error, Tensor, Tensors};
use models::Predict;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Samples of a batch when nothing is learnt.
const TEST_BATCH: usize = 512;

/// The last line of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    dataset: &'a str,
    device: &'a str,
    dtype: &'a str,
    epochs: u64,
    steps: u64,
    train_loss: f64,
    test_loss: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    test_accuracy: Option<f64>,
    /// Of samples apart from those to test with.
    #[serde(skip_serializing_if = "Option::is_none")]
    validation_loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    validation_accuracy: Option<f64>,
    best_epoch: u64,
    seconds: f64,
    seed: u64,
}

/// A model at its start, and the generator that made it.
pub struct Start {
    model: Box<dyn Predict>,
    init: Init,
    dtype: DType,
}

/// A trainer of the command's models.
type Classifier<'a> = Trainer<'a, dyn Predict, Batch, Tensor>;

/// Trains, or goes on training, until the last epoch, early stopping or Ctrl-C.
pub fn run(options: &Train) -> Result<ExitCode> {
    let stop = interrupts()?;
    let devices = (options.device.as_deref(), &options.devices[..]);
    ranks::run(devices.0, devices.1, |group, device| run_rank(options, stop.clone(), group, device))
}

/// [`run`] as one rank, of which the first prints and writes files.
fn run_rank(options: &Train, stop: Arc<AtomicBool>, group: &Group, device: &Device) -> Result<ExitCode> {
    let saved = options.resume.as_deref().map(|folder| read_saved(folder, options, device)).transpose()?;
    let resumed = saved.as_ref().map(|(saved, _)| (saved.path.clone(), saved.progress.steps));
    let task = task(&options.model.dataset)?;
    let (saved, mut config) = match saved {
        Some((saved, config)) => (Some(saved), config),
        None => (None, Config::new(&options.model, task, options.epochs)?),
    };
    let out = options.out.clone().or(options.resume.clone()).unwrap_or_else(|| Path::new("out").join(task.name));
    if group.is_first() {
        prepare(&out)?;
    }
    let split = task.load(options.model.data(), &config)?;
    config.samples = Some(split.signature());
    let across = (group.size() > 1 && options.sync_batch_norm).then_some(group);
    let start = Start::new(&config, &split, device, across)?;
    let title = format!("{}, {} on {}", config.dataset, config.dtype, ranks::words(group, device));
    let shown = if options.json || options.quiet { Display::Quiet } else { Display::Lines };
    let mut trainer =
        start.trainer(&config, &split, split.validated())?.parallel(group, &ParallelOptions::default())?;
    trainer = trainer.folder(&out)?.config(&config, &title)?.display(shown).stop_when(stop);
    if let Some(patience) = options.patience {
        trainer = trainer.early_stopping(patience);
    }
    if let Some(saved) = saved {
        let path = saved.path.clone();
        let unfit = || format!("{} does not fit its own configuration", path.display());
        trainer = trainer.resume(saved).with_context(unfit)?;
        // In another folder, the checkpoint is there from the start.
        if options.resume.as_ref() != Some(&out) {
            trainer.save()?;
        }
    }
    if group.is_first() && options.watch.tensorboard {
        trainer = trainer.on_epoch(on_board(&out, &*start.model, start.first_loss(&config, &split)?)?);
    }
    if group.is_first() && !options.json {
        announce(&config, &split, &start, group, resumed)?;
    }
    if group.is_first() && options.watch.profile {
        // A model of its own, so that the run stays as it is.
        let probe = Start::new(&config, &split, device, None)?;
        let trainer = probe.trainer(&config, &split, split.validated())?;
        let batch = first(trainer.train_loader())?;
        measured(device, &out, !options.json, || trainer.step(&batch))?;
    }
    if trainer.run()? == End::Interrupted {
        if group.is_first() {
            tell(&continuation(options, trainer.progress().steps, &out));
        }
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if !group.is_first() {
        return Ok(ExitCode::SUCCESS);
    }
    let tested = match split.validation {
        Some(_) => Some(start.trainer(&config, &split, &split.test)?.evaluate()?),
        None => None,
    };
    report(&config, &ranks::words(group, device), &trainer, tested.as_ref(), &out, options.json)?;
    Ok(ExitCode::SUCCESS)
}

fn task(name: &str) -> Result<&'static Task> {
    Task::named(name).with_context(|| format!("there is no dataset {name:?}"))
}

/// The device of this name, or the best one.
pub fn device(name: Option<&str>) -> Result<Device> {
    Ok(name.map_or_else(Device::best, str::parse)?)
}

/// A run that a folder has, and its configuration with the epochs of the options.
fn read_saved(folder: &Path, options: &Train, device: &Device) -> Result<(SavedRun, Config)> {
    let saved = SavedRun::load(folder, device).with_context(|| format!("cannot resume from {}", folder.display()))?;
    let mut config: Config = saved.config()?;
    let (path, dataset) = (saved.path.display(), &options.model.dataset);
    if config.dataset != *dataset {
        bail!("{path} is a run of {}, not {dataset}", config.dataset);
    }
    if let Some(epochs) = options.epochs {
        let begun = saved.progress.epoch + u64::from(saved.progress.batch > 0);
        if epochs < begun {
            bail!("{path} is in epoch {begun} already, after the last of --epochs {epochs}");
        }
        config.epochs = epochs;
    }
    Ok((saved, config))
}

impl Start {
    /// A model for these samples, whose batch norms take the statistics of all ranks of a group, if there is one.
    pub fn new(config: &Config, split: &Split, device: &Device, across: Option<&Group>) -> isograd::Result<Start> {
        let dtype: DType = config.dtype.parse()?;
        let init = Init::new(device).seed(config.seed).dtype(dtype);
        let init = if config.images.channels_last { init.channels_last() } else { init };
        let init = match across {
            Some(group) => init.across(group.clone()),
            None => init,
        };
        Ok(Start { model: models::model(config, split, &init)?, init, dtype })
    }

    /// The loss of the first batch with the weights of the time of the call.
    fn first_loss(&self, config: &Config, split: &Split) -> isograd::Result<impl Fn() -> isograd::Result<Tensor> + '_> {
        let loader = split.train_loader(config.batch_size)?.shuffle(config.seed).to(self.init.device());
        let (batch, dtype, objective) = (first(&loader)?, self.dtype, split.objective);
        Ok(move || objective.loss(&self.model.predict(&batch.0.cast(dtype)?)?, &batch.1))
    }

    /// The trainer of this model, which is validated with a set of the samples.
    pub fn trainer(&self, config: &Config, split: &Split, validated: &Set) -> isograd::Result<Classifier<'_>> {
        let (device, dtype, objective) = (self.init.device(), self.dtype, split.objective);
        let train = split.train_loader(config.batch_size)?.shuffle(config.seed).to(device);
        let (metric, goal, value) = objective.metric();
        let trainer = Trainer::new(
            &*self.model,
            config.optimizer.of(&*self.model, config.lr),
            train,
            move |model, (input, _)| model.predict(&input.cast(dtype)?),
            move |outputs, (_, y)| objective.loss(outputs, y),
        )
        .validate(split.test_loader(validated, TEST_BATCH)?.to(device))
        .metric(metric, goal, move |outputs, (_, y)| value(outputs, y))
        .epochs(config.epochs)
        .rng("init", self.init.rng());
        // The extents of a sample of neighbours differ from batch to batch.
        let is_sampled = split.graph.as_ref().is_some_and(|nodes| nodes.sampler.is_some());
        let trainer = if is_sampled { trainer.without_capture() } else { trainer };
        match dtype {
            DType::F16 => Ok(trainer.scaler(GradScaler::new(device)?)),
            _ => Ok(trainer),
        }
    }
}

/// The first batch of a run.
pub fn first<B: Tensors + Send + 'static>(loader: &Loader<B>) -> isograd::Result<B> {
    let batch = loader.epoch(0).next();
    batch.unwrap_or_else(|| Err(Error::value("train", "there is no sample to train on")))
}

fn announce(
    config: &Config,
    split: &Split,
    start: &Start,
    group: &Group,
    resumed: Option<(PathBuf, u64)>,
) -> Result<()> {
    if let Some((path, steps)) = resumed {
        print(&format!("resuming from {} at step {steps}", path.display()))?;
    }
    let (samples, parameters) = (split.train.len(), start.model.num_parameters());
    let (name, dtype, device) = (&split.name, &config.dtype, ranks::words(group, start.init.device()));
    print(&format!("{name}: {samples} samples to train on; {parameters} parameters in {dtype} on {device}"))
}

/// How an interrupted run goes on.
fn continuation(options: &Train, steps: u64, out: &Path) -> String {
    let data = options.model.data().map(|d| format!(" --data {}", d.display())).unwrap_or_default();
    let device = ranks::options(options.device.as_deref(), &options.devices);
    let (dataset, out) = (&options.model.dataset, out.display());
    format!("stopped after {steps} steps; go on with: isograd train {dataset}{data}{device} --resume {out}")
}

/// `tested` is the evaluation of the samples to test with, if others served for the validation.
fn report(
    config: &Config,
    device: &str,
    trainer: &Classifier<'_>,
    tested: Option<&Evaluation>,
    out: &Path,
    json: bool,
) -> Result<()> {
    let last = trainer.history().last().context("nothing was trained")?;
    let progress = trainer.progress();
    let validation_loss = last.validation_loss.unwrap_or(f64::NAN);
    let metrics = tested.map_or(&last.metrics, |tested| &tested.metrics);
    let report = Report {
        dataset: &config.dataset,
        device,
        dtype: &config.dtype,
        epochs: progress.epoch,
        steps: progress.steps,
        train_loss: last.train_loss,
        test_loss: tested.map_or(validation_loss, |tested| tested.loss),
        test_accuracy: metrics.get("accuracy").copied(),
        validation_loss: tested.map(|_| validation_loss),
        validation_accuracy: tested.and_then(|_| last.metrics.get("accuracy").copied()),
        best_epoch: trainer.best().map_or(0, |best| best.epoch),
        seconds: progress.seconds,
        seed: config.seed,
    };
    if json {
        return print(&serde_json::to_string(&report)?);
    }
    let metrics: Vec<String> =
        metrics.iter().map(|(name, v)| format!("test {} {v:.4}", name.replace('_', " "))).collect();
    let Report { steps, seconds, test_loss, best_epoch, .. } = report;
    let (metrics, out) = (metrics.join(", "), out.display());
    print(&format!(
        "{metrics} (loss {test_loss:.4}, best epoch {best_epoch}) after {steps} steps in {seconds:.1} s; see {out}"
    ))
}
