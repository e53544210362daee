//! A training run of `isograd train`, whatever is learnt.

use crate::watch::{Watch, measured, on_board};
use crate::{print, ranks, tell};
use anyhow::{Context, Result, bail};
use clap::Args;
use isograd::data::Loader;
use isograd::nn::{Checkpoint, Init, Module};
use isograd::parallel::{Group, ParallelOptions};
use isograd::train::{
    BEST, CHECKPOINT, Display, End, Epoch, INTERRUPTED, METRICS, Progress, SavedRun, Trainer, interrupts, prepare,
};
use isograd::{Device, Error, Tensor, Tensors};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::iter;
use std::path::{self, Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The options of every run.
#[derive(Args, Debug)]
pub struct RunOptions {
    /// Take options from this TOML file, by their long names, or from config.json of another run; those of the command line win
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The device, as `isograd devices` lists it [default: the best there is]
    #[arg(long)]
    device: Option<String>,
    /// Several devices, separated by commas: each has a part of every batch, such as cuda:0,cuda:1 or cpu,cpu
    #[arg(long, value_name = "DEVICE,..", value_delimiter = ',', conflicts_with = "device")]
    devices: Vec<String>,
    /// End when the validation loss has not become lower for so many epochs
    #[arg(long, value_name = "EPOCHS", value_parser = clap::value_parser!(u64).range(1..))]
    patience: Option<u64>,
    /// The folder of the run: configuration, metrics, curves and checkpoints [default: out/<dataset>]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace the run that the folder of --out has
    #[arg(long, requires = "out")]
    overwrite: bool,
    #[command(flatten)]
    watch: Watch,
    /// Print one line of JSON at the end, and nothing else
    #[arg(long)]
    json: bool,
    /// Show no progress: only the first and the last line
    #[arg(long)]
    quiet: bool,
}

/// A kind of training run of `isograd train`: on a dataset of samples, or on a text.
pub trait Work: Sync {
    /// The options on which the weights depend; a checkpoint keeps them.
    type Config: Serialize + DeserializeOwned;
    /// The data to train on and the data to test with.
    type Split: Sync;
    type Model: Module + Sync + ?Sized;
    type Batch: Tensors + Send + 'static;

    fn options(&self) -> &RunOptions;

    /// The name of the dataset.
    fn dataset(&self) -> &str;

    /// The folder of --resume.
    fn resume(&self) -> Option<&Path>;

    /// The configuration of a new run. Errors: options that do not fit together.
    fn config(&self) -> Result<Self::Config>;

    /// The configuration of a saved run, with the length that the options ask for. Errors: the run is longer already.
    fn lengthened(&self, config: Self::Config, saved: &SavedRun) -> Result<Self::Config>;

    /// Reads the data. The configuration has their path afterwards, and may describe them.
    fn split(&self, config: &mut Self::Config) -> Result<Self::Split>;

    /// A model at its start, of a run with the ranks of a group, or alone.
    fn start(
        &self,
        config: &Self::Config,
        split: &Self::Split,
        device: &Device,
        group: Option<&Group>,
    ) -> Result<Start<Self::Model>>;

    fn trainer<'a>(
        &self,
        config: &Self::Config,
        split: &Self::Split,
        start: &'a Start<Self::Model>,
    ) -> isograd::Result<Trainer<'a, Self::Model, Self::Batch, Tensor>>;

    /// The loss of a batch, as the trainer computes it.
    fn loss(split: &Self::Split, start: &Start<Self::Model>, batch: &Self::Batch) -> isograd::Result<Tensor>;

    /// Writes what the folder has beside checkpoints.
    fn keep(&self, _split: &Self::Split, _out: &Path) -> Result<()> {
        Ok(())
    }

    /// The start of the title of the learning curves; the device follows it.
    fn title(config: &Self::Config, split: &Self::Split) -> String;

    /// The data and the model, which has so many parameters, before the device.
    fn announcement(config: &Self::Config, split: &Self::Split, parameters: usize) -> String;

    /// The description of the data in words, and warnings about them.
    fn description(_split: &Self::Split) -> (&str, &[String]) {
        ("", &[])
    }

    /// Adds what was found to a report of the best epoch, whose weights the model has.
    fn report(
        &self,
        config: &Self::Config,
        split: &Self::Split,
        start: &Start<Self::Model>,
        kept: &Epoch,
        report: Report,
    ) -> Result<Report>;
}

/// A model at its start, and the generator that made it.
pub struct Start<M: ?Sized> {
    pub model: Box<M>,
    pub init: Init,
}

/// The last line of `--json`.
#[derive(Default, Serialize)]
pub struct Report {
    pub dataset: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Kinds of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<usize>,
    pub epochs: u64,
    pub steps: u64,
    /// The loss of the best epoch.
    pub train_loss: f64,
    /// Losses and metrics of samples that were not learnt: of the validation, which chose the epoch, and of a test, if there are others.
    #[serde(flatten)]
    pub results: BTreeMap<String, f64>,
    pub best_epoch: u64,
    pub seconds: f64,
    pub seed: u64,
    /// A text that the model has written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<String>,
    /// The results in words.
    #[serde(skip)]
    pub words: String,
}

/// The part of a configuration that all runs have.
#[derive(Deserialize)]
pub struct Dataset {
    pub dataset: String,
}

/// Trains, or goes on training, until the last step, early stopping or Ctrl-C.
pub fn run(work: &impl Work) -> Result<ExitCode> {
    let stop = interrupts()?;
    let RunOptions { device, devices, .. } = work.options();
    ranks::run(device.as_deref(), devices, |group, device| run_rank(work, stop.clone(), group, device))
}

/// [`run`] as one rank, of which the first prints and writes files.
fn run_rank<W: Work>(work: &W, stop: Arc<AtomicBool>, group: &Group, device: &Device) -> Result<ExitCode> {
    let options = work.options();
    let saved = work.resume().map(|folder| read_saved(work, folder, device)).transpose()?;
    let resumed = saved.as_ref().map(|(saved, _)| (saved.path.clone(), saved.progress.steps));
    let (saved, mut config) = match saved {
        Some((saved, config)) => (Some(saved), config),
        None => (None, work.config()?),
    };
    let out = out(work)?;
    if group.is_first() {
        prepare(&out)?;
    }
    let split = work.split(&mut config)?;
    let start = work.start(&config, &split, device, Some(group))?;
    let on = ranks::words(group, device);
    let title = format!("{} on {on}", W::title(&config, &split));
    let shown = if options.json || options.quiet { Display::Quiet } else { Display::Lines };
    let mut trainer = work.trainer(&config, &split, &start)?.parallel(group, &ParallelOptions::default())?;
    trainer = trainer.folder(&out)?.config(&config, &title)?.display(shown).stop_when(stop);
    if let Some(patience) = options.patience {
        trainer = trainer.early_stopping(patience);
    }
    if let Some(saved) = saved {
        let path = saved.path.clone();
        let unfit = || format!("{} does not fit its own configuration", path.display());
        trainer = trainer.resume(saved).with_context(unfit)?;
    }
    if group.is_first() {
        work.keep(&split, &out)?;
    }
    // In another folder, the checkpoint is there from the start.
    if work.resume().is_some_and(|folder| folder != out) {
        trainer.save()?;
    }
    if group.is_first() && options.watch.tensorboard {
        let (batch, split, start) = (first(trainer.train_loader())?, &split, &start);
        trainer = trainer.on_epoch(on_board(&out, &*start.model, move || W::loss(split, start, &batch))?);
    }
    if group.is_first() && !options.json {
        let (description, warnings) = W::description(&split);
        warnings.iter().for_each(|warning| tell(&format!("warning: {warning}")));
        if !options.quiet && !description.is_empty() {
            print(description)?;
        }
        if let Some((path, steps)) = resumed {
            print(&format!("resuming from {} at step {steps}", path.display()))?;
        }
        print(&format!("{} on {on}", W::announcement(&config, &split, start.model.num_parameters())))?;
    }
    if group.is_first() && options.watch.profile {
        // A model of its own, so that the run stays as it is.
        let probe = work.start(&config, &split, device, None)?;
        let trainer = work.trainer(&config, &split, &probe)?;
        let batch = first(trainer.train_loader())?;
        let table = measured(&*probe.model, device, &out, || trainer.step(&batch))?;
        if !options.json {
            print(&table)?;
        }
    }
    if trainer.run()? == End::Interrupted {
        if group.is_first() {
            tell(&continuation(work, trainer.progress().steps, &out));
        }
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if !group.is_first() {
        return Ok(ExitCode::SUCCESS);
    }
    let kept = trainer.best().context("nothing was trained")?;
    trainer.restore_best()?;
    let &Progress { epoch: epochs, steps, seconds, .. } = trainer.progress();
    let (dataset, train_loss, best_epoch) = (work.dataset().to_string(), kept.train_loss, kept.epoch);
    let report = Report { dataset, device: on, epochs, steps, train_loss, best_epoch, seconds, ..Report::default() };
    show(&work.report(&config, &split, &start, kept, report)?, &out, options)?;
    Ok(ExitCode::SUCCESS)
}

/// The folder of a run: that of --out or --resume, or a new one. Errors: --out has another run, and not --overwrite.
fn out(work: &impl Work) -> Result<PathBuf> {
    let RunOptions { out, overwrite, .. } = work.options();
    // A run writes these after a step, which its ranks take together, and so after all of them have looked here.
    let has_run = |folder: &Path| folder.join(METRICS).exists() || folder.join(CHECKPOINT).exists();
    match (out.as_deref(), work.resume()) {
        (Some(out), resume) => {
            if has_run(out) && !overwrite && resume != Some(out) {
                let out = out.display();
                bail!("{out} has a run: --resume {out} goes on with it, --overwrite replaces it");
            }
            Ok(out.to_path_buf())
        }
        (None, Some(resume)) => Ok(resume.to_path_buf()),
        (None, None) => {
            let name = work.dataset();
            let others = (2..=u32::MAX).map(|i| format!("{name}-{i}"));
            let folders = iter::once(name.to_string()).chain(others).map(|name| Path::new("out").join(name));
            folders.into_iter().find(|folder| !has_run(folder)).context("out has no number left for a run")
        }
    }
}

/// The path of the data that the configuration of a run keeps: that of the command line, or the one from before.
pub fn kept_path(given: Option<&Path>, before: Option<PathBuf>) -> Result<Option<PathBuf>> {
    let absolute = |path: &Path| path::absolute(path).with_context(|| format!("there is no path {}", path.display()));
    Ok(given.map(absolute).transpose()?.or(before))
}

/// A run that a folder has, and its configuration with the length of the options.
fn read_saved<W: Work>(work: &W, folder: &Path, device: &Device) -> Result<(SavedRun, W::Config)> {
    let saved = SavedRun::load(folder, device).with_context(|| format!("cannot resume from {}", folder.display()))?;
    let found = saved.config::<Dataset>()?.dataset;
    if found != work.dataset() {
        bail!("{} is a run of {found}, not {}", saved.path.display(), work.dataset());
    }
    let config = work.lengthened(saved.config()?, &saved)?;
    Ok((saved, config))
}

/// How an interrupted run goes on.
fn continuation(work: &impl Work, steps: u64, out: &Path) -> String {
    let RunOptions { device, devices, .. } = work.options();
    let device = ranks::options(device.as_deref(), devices);
    let (dataset, out) = (work.dataset(), out.display());
    format!("stopped after {steps} steps; go on with: isograd train {dataset}{device} --resume {out}")
}

/// How the epoch that is kept was chosen.
pub fn choice(report: &Report) -> String {
    let Report { best_epoch, epochs, .. } = report;
    format!("epoch {best_epoch} of {epochs} is kept, which has the lowest validation loss")
}

/// Prints the results.
fn show(report: &Report, out: &Path, options: &RunOptions) -> Result<()> {
    if options.json {
        return print(&serde_json::to_string(report)?);
    }
    let Report { words, steps, seconds, sample, .. } = report;
    print(&format!("{words}; {steps} steps in {seconds:.1} s; see {}", out.display()))?;
    match sample.as_deref() {
        None | Some("") => Ok(()),
        Some(sample) => print(&format!("\n{sample}")),
    }
}

/// The first batch of a run.
pub fn first<B: Tensors + Send + 'static>(loader: &Loader<B>) -> isograd::Result<B> {
    let batch = loader.epoch(0).next();
    batch.unwrap_or_else(|| Err(Error::value("train", "there is no sample to train on")))
}

/// The choice of a run's weights.
#[derive(Args, Clone, Copy, Debug)]
pub struct Weights {
    /// Use the last model, not the best
    #[arg(long)]
    last: bool,
}

impl Weights {
    /// True if one of the options was given.
    pub fn are_given(self) -> bool {
        self.last
    }

    /// Gives a model the weights of a run: those of the epoch with the best results, unless the last ones are asked for or no epoch has
    /// ended. Returns their epoch.
    pub fn restore<M: Module + ?Sized>(self, saved: &SavedRun, folder: &Path, start: &Start<M>) -> Result<u64> {
        match saved.progress.best {
            Some(best) if !self.last => {
                Checkpoint::load(folder.join(BEST), start.init.device())?.restore_model(&*start.model)?;
                Ok(saved.progress.history[best].epoch)
            }
            _ => {
                saved.restore_model(&*start.model)?;
                Ok(saved.progress.epoch)
            }
        }
    }
}

/// The device of this name, or the best one.
pub fn device(name: Option<&str>) -> Result<Device> {
    Ok(name.map_or_else(Device::best, str::parse)?)
}
