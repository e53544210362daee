//! Language models: `isograd train text`, `isograd generate`, and `isograd eval` of their runs.

mod generate;
mod models;
mod options;

pub use generate::{Generate, is_pretrained, load_with_context as load, run as generate};
pub use options::{NAME, Train, parse_share, takes};

use crate::train::{Eval, first, measured, on_board};
use crate::{print, ranks, tell};
use anyhow::{Context, Result, bail};
use generate::{Drawn, restore};
use isograd::data::Loader;
use isograd::nn::schedule::{Cosine, WarmUp};
use isograd::nn::{AdamW, Init, Module};
use isograd::ops::Sampling;
use isograd::parallel::{Group, ParallelOptions};
use isograd::train::{Display, End, INTERRUPTED, SavedRun, Trainer, interrupts, prepare};
use isograd::{DType, Device, Rng, Tensor};
use models::TextModel;
use options::{Config, Corpus, TOKENIZER, Text, tokenizer_of};
use serde::Serialize;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Steps in which the learning rate rises, at most a tenth of all.
const WARM_UP: u64 = 100;

/// The last line of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    dataset: &'a str,
    model: &'a str,
    device: &'a str,
    vocabulary: usize,
    parameters: usize,
    epochs: u64,
    steps: u64,
    train_loss: f64,
    validation_loss: f64,
    best_epoch: u64,
    seconds: f64,
    seed: u64,
    sample: &'a str,
}

/// Tokens `[B, T]`, and those that follow them.
type Batch = (Tensor, Tensor);

/// A trainer of language models.
type Teacher<'a> = Trainer<'a, dyn TextModel, Batch, Tensor>;

/// A model at its start, and the generator that made it.
struct Start {
    model: Box<dyn TextModel>,
    init: Init,
}

/// Trains on a text, or another dataset.
pub fn train(train: Train) -> Result<ExitCode> {
    match train {
        Train::Text(options) => run(&options),
        Train::Other(options) => crate::train::run(&options),
    }
}

/// Trains, or goes on training, until the last step, early stopping or Ctrl-C. Then prints a text that the model continues.
fn run(options: &Text) -> Result<ExitCode> {
    let stop = interrupts()?;
    let devices = (options.device.as_deref(), &options.devices[..]);
    ranks::run(devices.0, devices.1, |group, device| run_rank(options, stop.clone(), group, device))
}

/// [`run`] as one rank, of which the first prints and writes files.
fn run_rank(options: &Text, stop: Arc<AtomicBool>, group: &Group, device: &Device) -> Result<ExitCode> {
    let saved = options.resume.as_deref().map(|folder| read_saved(folder, options, device)).transpose()?;
    let resumed = saved.as_ref().map(|(saved, _)| (saved.path.clone(), saved.progress.steps));
    let (saved, config) = match saved {
        Some((saved, config)) => (Some(saved), config),
        None => (None, Config::new(options)?),
    };
    let out = options.out.clone().or(options.resume.clone()).unwrap_or_else(|| Path::new("out").join(NAME));
    if group.is_first() {
        prepare(&out)?;
    }
    let corpus = Corpus::read(options.file(), options.known_tokenizer()?, &config)?;
    let start = Start::new(&config, &corpus, device)?;
    let title = format!("{}, {} on {}", corpus.name, config.model, ranks::words(group, device));
    let shown = if options.json || options.quiet { Display::Quiet } else { Display::Lines };
    let mut trainer = start.trainer(&config, &corpus)?.parallel(group, &ParallelOptions::default())?;
    trainer = trainer.folder(&out)?.config(&config, &title)?.display(shown).stop_when(stop);
    if let Some(patience) = options.patience {
        trainer = trainer.early_stopping(patience);
    }
    if let Some(saved) = saved {
        let path = saved.path.clone();
        trainer =
            trainer.resume(saved).with_context(|| format!("{} does not fit its own configuration", path.display()))?;
    }
    if group.is_first() {
        corpus.tokenizer.save(&out.join(TOKENIZER))?;
    }
    // In another folder, the checkpoint is there from the start.
    if options.resume.as_ref().is_some_and(|folder| *folder != out) {
        trainer.save()?;
    }
    if group.is_first() && options.watch.tensorboard {
        let (x, y) = first(trainer.train_loader())?;
        let model = &*start.model;
        trainer = trainer.on_epoch(on_board(&out, model, move || loss(&model.forward(&x)?, &(x.clone(), y.clone())))?);
    }
    if group.is_first() && !options.json {
        announce(&config, &corpus, &start, group, resumed)?;
    }
    if group.is_first() && options.watch.profile {
        // A model of its own, so that the run stays as it is.
        let probe = Start::new(&config, &corpus, device)?;
        let trainer = probe.trainer(&config, &corpus)?;
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
    let sample = start.sample(&corpus, &config, options.sample)?;
    report(&config, &corpus, &start, &trainer, &sample, &out, options.json)?;
    Ok(ExitCode::SUCCESS)
}

/// A run that a folder has, and its configuration with the steps of the options.
fn read_saved(folder: &Path, options: &Text, device: &Device) -> Result<(SavedRun, Config)> {
    let saved = SavedRun::load(folder, device).with_context(|| format!("cannot resume from {}", folder.display()))?;
    let config: Config = saved.config()?;
    let path = saved.path.display();
    if config.dataset != NAME {
        bail!("{path} is a run of {}, not {NAME}", config.dataset);
    }
    let Some(steps) = options.steps else { return Ok((saved, config)) };
    if steps < saved.progress.steps {
        bail!("{path} has {} steps already, more than --steps {steps}", saved.progress.steps);
    }
    let config = config.with_steps(steps);
    Ok((saved, config))
}

impl Start {
    fn new(config: &Config, corpus: &Corpus, device: &Device) -> Result<Start> {
        let init = Init::new(device).seed(config.seed);
        Ok(Start { model: models::model(config, corpus.tokenizer.vocabulary(), &init)?, init })
    }

    fn trainer(&self, config: &Config, corpus: &Corpus) -> isograd::Result<Teacher<'_>> {
        let &Config { context, batch_size, steps, lr, .. } = config;
        let device = self.init.device();
        let samples = (config.eval_every as usize).saturating_mul(batch_size);
        let train =
            Loader::new(corpus.train.drawn_windows(context, samples)?, batch_size)?.seed(config.seed).to(device);
        let validation = Loader::new(corpus.validation.windows(context, context)?, batch_size)?;
        let optimizer = AdamW::new(&*self.model)
            .lr(lr)
            .betas(0.9, 0.99)
            .weight_decay(0.1)
            .group_where(|_, t| t.rank() < 2, |group| group.weight_decay(0.0))
            .clip_norm(1.0);
        let warm_up = WARM_UP.min(steps / 10);
        let then = Cosine { lr, min: lr / 10.0, steps: steps - warm_up };
        let trainer = Trainer::new(&*self.model, optimizer, train, |model, (x, _)| model.forward(x), loss)
            .validate(validation.to(device))
            .schedule(WarmUp { steps: warm_up, then })
            .epochs(config.epochs())
            .rng("init", self.init.rng());
        match &config.autocast {
            Some(dtype) => trainer.autocast(dtype.parse::<DType>()?),
            None => Ok(trainer),
        }
    }

    /// A text that the model writes after the end of a line.
    fn sample(&self, corpus: &Corpus, config: &Config, count: usize) -> Result<String> {
        let prompt = corpus.tokenizer.encode("\n").ok().filter(|tokens| !tokens.is_empty());
        let prompt = prompt.unwrap_or_else(|| corpus.validation.get(0, 1));
        let sampling = Sampling { temperature: 0.8, ..Sampling::default() };
        let mut text = String::new();
        self.model.eval();
        let drawn = Drawn { model: &*self.model, tokenizer: &*corpus.tokenizer, sampling, rng: Rng::new(config.seed) };
        drawn.continue_with(&prompt, count, &mut |part| {
            text.push_str(part);
            Ok(())
        })?;
        Ok(text)
    }
}

/// The mean over all tokens.
fn loss(logits: &Tensor, (_, y): &Batch) -> isograd::Result<Tensor> {
    logits.cast(logits.dtype().acc())?.flatten(0, 1)?.cross_entropy(&y.flatten(0, 1)?)
}

fn announce(
    config: &Config,
    corpus: &Corpus,
    start: &Start,
    group: &Group,
    resumed: Option<(PathBuf, u64)>,
) -> Result<()> {
    if let Some((path, steps)) = resumed {
        print(&format!("resuming from {} at step {steps}", path.display()))?;
    }
    let Corpus { name, tokenizer, train, validation } = corpus;
    let (train, validation, kinds) = (train.len(), validation.len(), tokenizer.vocabulary());
    let (model, parameters, device) =
        (&config.model, start.model.num_parameters(), ranks::words(group, start.init.device()));
    print(&format!(
        "{name}: {train} tokens to train on and {validation} to validate with, of {kinds} kinds; {model} with {parameters} parameters on {device}"
    ))
}

/// How an interrupted run goes on.
fn continuation(options: &Text, steps: u64, out: &Path) -> String {
    let device = ranks::options(options.device.as_deref(), &options.devices);
    let (file, out) = (options.file().display(), out.display());
    format!("stopped after {steps} steps; go on with: isograd train {NAME} {file}{device} --resume {out}")
}

fn report(
    config: &Config,
    corpus: &Corpus,
    start: &Start,
    trainer: &Teacher<'_>,
    sample: &str,
    out: &Path,
    is_json: bool,
) -> Result<()> {
    let last = trainer.history().last().context("nothing was trained")?;
    let progress = trainer.progress();
    let report = Report {
        dataset: NAME,
        model: &config.model,
        device: start.init.device().name(),
        vocabulary: corpus.tokenizer.vocabulary(),
        parameters: start.model.num_parameters(),
        epochs: progress.epoch,
        steps: progress.steps,
        train_loss: last.train_loss,
        validation_loss: last.validation_loss.unwrap_or(f64::NAN),
        best_epoch: trainer.best().map_or(0, |best| best.epoch),
        seconds: progress.seconds,
        seed: config.seed,
        sample,
    };
    if is_json {
        return print(&serde_json::to_string(&report)?);
    }
    let Report { steps, seconds, validation_loss, best_epoch, .. } = report;
    let out = out.display();
    print(&format!(
        "validation loss {validation_loss:.4} (best epoch {best_epoch}) after {steps} steps in {seconds:.1} s; see {out}"
    ))?;
    if sample.is_empty() { Ok(()) } else { print(&format!("\n{sample}")) }
}

/// `isograd eval` of a run: the validation loss of its best model, or its last, on the text that it learnt.
pub fn evaluate(options: &Eval, saved: &SavedRun, device: &Device) -> Result<ExitCode> {
    let file = options.data.as_deref().with_context(|| format!("a run of {NAME} needs --data FILE with its text"))?;
    let config: Config = saved.config()?;
    let corpus = Corpus::read(file, Some(tokenizer_of(&options.run)?), &config)?;
    let start = Start::new(&config, &corpus, device)?;
    let epoch = restore(saved, &options.run, &*start.model, options.last)?;
    let loss = start.trainer(&config, &corpus)?.evaluate()?.loss;
    let (tokens, parameters) = (corpus.validation.len(), start.model.num_parameters());
    let line = match options.json {
        true => json!({ "dataset": NAME, "device": device.name(), "epoch": epoch, "tokens": tokens, "validation_loss": loss }).to_string(),
        false => format!("{NAME}: loss {loss:.4} over {tokens} tokens; {parameters} parameters of epoch {epoch} on {device}"),
    };
    print(&line)?;
    Ok(ExitCode::SUCCESS)
}
