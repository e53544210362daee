//! `isograd train`.

use crate::config::{Config, DatasetName, Model, OptimizerName, Train};
use crate::curves::{self, Epoch};
use crate::mixed::Mixed;
use crate::{print, tell};
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use isograd::data::{self, Labelled, Loader};
use isograd::nn::{
    Activation, Adagrad, Adam, AdamW, Forward, GradScaler, Init, Lamb, Lars, Linear, Metadata, Module, Optimizer,
    RmsProp, Sgd, StateDict, Visitor, load_checked, save,
};
use isograd::{DType, Device, Tensor, no_grad, remove_abandoned, replace_file};
use serde::{Deserialize, Serialize};
use signal_hook::{consts, flag};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const CHECKPOINT: &str = "checkpoint.safetensors";
const CURVES: &str = "curves.svg";
/// The key of a checkpoint's metadata under which configuration and progress are.
const KEY: &str = "isograd.train";
/// How a program ends that Ctrl-C stopped.
const INTERRUPTED: u8 = 130;
/// What asks a program to end: Ctrl-C, another process, and a terminal that closes.
const SIGNALS: &[i32] = &[
    consts::SIGINT,
    consts::SIGTERM,
    #[cfg(unix)]
    consts::SIGHUP,
];
/// Samples of a batch when nothing is learnt.
const TEST_BATCH: usize = 512;

/// How far a run has come: the part of a checkpoint that is not tensors.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Progress {
    epoch: u64,
    /// Batches of this epoch that are done, and the sum of their losses weighted by their sizes.
    batch: usize,
    loss_sum: f64,
    samples: u64,
    steps: u64,
    /// Time spent so far, by this and earlier runs.
    seconds: f64,
    history: Vec<Epoch>,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    config: Config,
    progress: Progress,
}

/// The last line of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    dataset: &'a str,
    device: &'a str,
    dtype: &'a str,
    epochs: u64,
    steps: u64,
    train_loss: f64,
    test_accuracy: f64,
    seconds: f64,
    seed: u64,
}

/// Samples `[B, ..]` and their labels `[B]`.
type Batch = (Tensor, Tensor);

struct Run {
    config: Config,
    progress: Progress,
    device: Device,
    learner: Learner,
    train: Loader<Batch>,
    test: Loader<Batch>,
    /// The name and the number of the training samples.
    samples: (String, usize),
    out: PathBuf,
}

/// Trains, or goes on training, until the last epoch or Ctrl-C.
pub fn run(options: Train) -> Result<ExitCode> {
    let stop = listen().context("cannot listen for Ctrl-C")?;
    let saved = options.resume.as_deref().map(|folder| read_saved(folder, &options)).transpose()?;
    let resumed = saved.as_ref().map(|(path, ..)| path.clone());
    let mut run = Run::new(&options, saved)?;
    if !options.json {
        run.announce(resumed.as_deref())?;
    }
    let finished = run.train(&stop, options.json)?;
    if !finished {
        run.save()?;
        let (dataset, out) = (run.config.dataset.name(), run.out.display());
        let data = options.model.data.map(|d| format!(" --data {}", d.display())).unwrap_or_default();
        let device = options.device.map(|d| format!(" --device {d}")).unwrap_or_default();
        let steps = run.progress.steps;
        tell(&format!("stopped after {steps} steps; go on with: isograd train {dataset}{data}{device} --resume {out}"));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    run.report(options.json)?;
    Ok(ExitCode::SUCCESS)
}

/// What the first Ctrl-C sets, and a signal to end; a second one ends the process at once, whatever it waits for.
fn listen() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for &signal in SIGNALS {
        flag::register_conditional_shutdown(signal, INTERRUPTED.into(), stop.clone())?;
        flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

/// Creates the folder if need be and makes sure that it can be written to, before any work is done; removes what a killed run left
/// in it.
fn prepare(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
    tempfile::tempfile_in(folder).with_context(|| format!("cannot write to the folder {}", folder.display()))?;
    remove_abandoned(folder);
    Ok(())
}

/// The path of a run's checkpoint, what it says, and its tensors.
fn read_saved(folder: &Path, options: &Train) -> Result<(PathBuf, Saved, StateDict)> {
    let path = folder.join(CHECKPOINT);
    let device = device(options)?;
    let contents = load_checked(&path, &device).with_context(|| format!("cannot resume from {}", folder.display()))?;
    let foreign = || format!("{} is not a checkpoint of `isograd train`", path.display());
    let text = contents.metadata.get(KEY).with_context(foreign)?;
    let mut saved: Saved = serde_json::from_str(text).with_context(foreign)?;
    let dataset = options.model.dataset;
    if saved.config.dataset != dataset {
        bail!("{} is a run of {}, not {}", path.display(), saved.config.dataset.name(), dataset.name());
    }
    if let Some(epochs) = options.epochs {
        let begun = saved.progress.epoch + u64::from(saved.progress.batch > 0);
        if epochs < begun {
            bail!("{} is in epoch {begun} already, after the last of --epochs {epochs}", path.display());
        }
        saved.config.epochs = epochs;
    }
    Ok((path, saved, contents.tensors))
}

fn device(options: &Train) -> Result<Device> {
    Ok(match &options.device {
        Some(name) => name.parse()?,
        None => Device::best()?,
    })
}

/// What to train on, and what to test with.
pub fn datasets(options: &Model) -> Result<(Labelled, Labelled)> {
    let (train, test) = match (options.dataset, &options.data) {
        (DatasetName::Digits, None) => data::digits()?.split_every(5)?,
        (DatasetName::Digits, Some(_)) => bail!("the digits are inside this program; --data is for mnist"),
        (DatasetName::Mnist, Some(folder)) => data::mnist(folder)?,
        (DatasetName::Mnist, None) => bail!("mnist needs --data DIR with its IDX files"),
    };
    if let (Some(folder), true) = (&options.data, train.is_empty() || test.is_empty()) {
        bail!("{} has {} samples to train on and {} to test with", folder.display(), train.len(), test.len());
    }
    Ok((train, test))
}

impl Run {
    fn new(options: &Train, saved: Option<(PathBuf, Saved, StateDict)>) -> Result<Run> {
        let device = device(options)?;
        let (config, progress, state) = match saved {
            Some((path, saved, state)) => (saved.config, saved.progress, Some((path, state))),
            None => (Config::new(&options.model, options.epochs), Progress::default(), None),
        };
        let out = options.out.clone().or(options.resume.clone());
        let out = out.unwrap_or_else(|| Path::new("out").join(config.dataset.name()));
        prepare(&out)?;
        let (train, test) = datasets(&options.model)?;
        let samples = (train.name().to_string(), train.len());
        let mut run = Run {
            learner: Learner::new(&config, &train, &device)?,
            train: loader(&config, train, &device)?,
            test: Loader::new(test, TEST_BATCH)?.to(&device),
            config,
            progress,
            device,
            samples,
            out,
        };
        if let Some((path, state)) = state {
            run.learner
                .restore(&state)
                .with_context(|| format!("{} does not fit its own configuration", path.display()))?;
            // In another folder, the checkpoint is there from the start.
            if options.resume.as_ref() != Some(&run.out) {
                run.save()?;
            }
        }
        Ok(run)
    }

    fn announce(&self, resumed: Option<&Path>) -> Result<()> {
        if let Some(path) = resumed {
            print(&format!("resuming from {} at step {}", path.display(), self.progress.steps))?;
        }
        print(&format!(
            "{}: {} samples to train on; {} parameters in {} on {}",
            self.samples.0,
            self.samples.1,
            self.learner.model.num_parameters(),
            self.config.dtype,
            self.device
        ))
    }

    /// Returns false if `stop` was set before the last step.
    fn train(&mut self, stop: &AtomicBool, json: bool) -> Result<bool> {
        while self.progress.epoch < self.config.epochs {
            let started = Instant::now();
            let bar = self.progress_bar(json)?;
            let before = self.progress.samples;
            for batch in self.train.epoch_from(self.progress.epoch, self.progress.batch) {
                let (x, y) = batch?;
                self.step(&x, &y)?;
                bar.set_position(self.progress.batch as u64);
                let rate = (self.progress.samples - before) as f64 / started.elapsed().as_secs_f64();
                bar.set_message(format!("loss {:.4}, {rate:.0} samples/s", self.mean_loss()));
                if stop.load(Ordering::Relaxed) {
                    bar.finish_and_clear();
                    self.progress.seconds += started.elapsed().as_secs_f64();
                    return Ok(false);
                }
            }
            let epoch = Epoch { train_loss: self.mean_loss(), test_accuracy: self.accuracy()? };
            bar.finish_with_message(format!("loss {:.4}, accuracy {:.4}", epoch.train_loss, epoch.test_accuracy));
            let Progress { steps, seconds, history, .. } = std::mem::take(&mut self.progress);
            let seconds = seconds + started.elapsed().as_secs_f64();
            self.progress =
                Progress { epoch: history.len() as u64 + 1, steps, seconds, history, ..Progress::default() };
            self.progress.history.push(epoch);
            self.save()?;
        }
        Ok(true)
    }

    fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<()> {
        let loss = self.learner.step(x, y)?;
        let loss = loss.item()?;
        // Nothing is learnt from here on, and the last checkpoint is better than the next would be.
        if !loss.is_finite() {
            bail!("the loss is {loss} after {} steps; a smaller --lr may help", self.progress.steps);
        }
        self.progress.loss_sum += loss * y.numel() as f64;
        self.progress.samples += y.numel() as u64;
        self.progress.batch += 1;
        self.progress.steps += 1;
        Ok(())
    }

    fn mean_loss(&self) -> f64 {
        self.progress.loss_sum / self.progress.samples.max(1) as f64
    }

    /// The share of test samples whose largest logit is that of their class.
    fn accuracy(&self) -> Result<f64> {
        self.learner.model.eval();
        let (mut right, mut all) = (0.0, 0);
        for batch in self.test.epoch(0) {
            let (x, y) = batch?;
            let guess = no_grad(|| self.learner.logits(&x))?.argmax(1)?;
            right += guess.eq(&y)?.sum(..)?.item()?;
            all += y.numel();
        }
        self.learner.model.train();
        Ok(right / all.max(1) as f64)
    }

    fn progress_bar(&self, json: bool) -> Result<ProgressBar> {
        let bar = ProgressBar::new(self.train.len() as u64);
        if json {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let style = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {msg}")?;
        bar.set_style(style.progress_chars("=> "));
        bar.set_prefix(format!("epoch {}/{}", self.progress.epoch + 1, self.config.epochs));
        Ok(bar)
    }

    fn save(&self) -> Result<()> {
        let saved = Saved { config: self.config.clone(), progress: self.progress.clone() };
        let metadata = Metadata::from([(KEY.into(), serde_json::to_string(&saved)?)]);
        save(self.out.join(CHECKPOINT), &self.learner.state()?, &metadata)?;
        let title = format!("{}, {} on {}", self.config.dataset.name(), self.config.dtype, self.device);
        let curves = curves::svg(&title, &self.progress.history)?;
        Ok(replace_file(self.out.join(CURVES), &[curves.as_bytes()])?)
    }

    fn report(&self, json: bool) -> Result<()> {
        let last = self.progress.history.last().context("nothing was trained")?;
        let report = Report {
            dataset: self.config.dataset.name(),
            device: self.device.name(),
            dtype: &self.config.dtype,
            epochs: self.progress.epoch,
            steps: self.progress.steps,
            train_loss: last.train_loss,
            test_accuracy: last.test_accuracy,
            seconds: self.progress.seconds,
            seed: self.config.seed,
        };
        if json {
            return print(&serde_json::to_string(&report)?);
        }
        let Report { test_accuracy, steps, seconds, .. } = report;
        let out = self.out.display();
        print(&format!("test accuracy {test_accuracy:.4} after {steps} steps in {seconds:.1} s; see {out}"))
    }
}

/// A model and what changes it.
pub struct Learner {
    model: Mlp,
    dtype: DType,
    optimizer: Box<dyn Optimizer>,
    scaler: Option<GradScaler>,
    init: Init,
}

/// The batches of an epoch, in the order that the seed decides.
pub fn loader(config: &Config, train: Labelled, device: &Device) -> isograd::Result<Loader<Batch>> {
    Ok(Loader::new(train, config.batch_size)?.shuffle(config.seed).to(device))
}

impl Learner {
    /// A model for this data, at its start.
    pub fn new(config: &Config, train: &Labelled, device: &Device) -> isograd::Result<Learner> {
        let dtype: DType = config.dtype.parse()?;
        let (inputs, classes) = (train.sample_shape().iter().product(), train.classes());
        let init = Init::new(device).seed(config.seed).dtype(dtype);
        let model = Mlp::new(inputs, &config.hidden, classes, &init)?;
        let scaler = if dtype == DType::F16 { Some(GradScaler::new(device)?) } else { None };
        Ok(Learner { optimizer: optimizer(config, &model), model, dtype, scaler, init })
    }

    /// The scores of each class, in the dtype of the model.
    fn logits(&self, x: &Tensor) -> isograd::Result<Tensor> {
        self.model.forward(&x.cast(self.dtype)?)
    }

    /// Learns from a batch and returns its loss.
    pub fn step(&mut self, x: &Tensor, y: &Tensor) -> isograd::Result<Tensor> {
        let logits = self.logits(x)?;
        // 16-bit logits: the loss is computed, and read, in f32.
        let loss = logits.cast(logits.dtype().acc())?.cross_entropy(y)?;
        match &mut self.scaler {
            Some(scaler) => {
                scaler.scale(&loss)?.backward()?;
                scaler.step(self.optimizer.as_mut())?;
                scaler.update()?;
            }
            None => {
                loss.backward()?;
                self.optimizer.step()?;
            }
        }
        Ok(loss.detach())
    }

    /// Model, optimizer, scaler and generator by name.
    fn state(&self) -> Result<StateDict> {
        let mut state = StateDict::new();
        let mut add = |prefix: &str, part: StateDict| {
            state.extend(part.into_iter().map(|(name, t)| (format!("{prefix}.{name}"), t)));
        };
        add("model", self.model.state_dict());
        add("optimizer", self.optimizer.state_dict()?);
        if let Some(scaler) = &self.scaler {
            add("scaler", scaler.state_dict()?);
        }
        let rng = self.init.rng().state();
        let numbers = [rng.seed, rng.offset, rng.stream].map(|v| v as i64);
        state.insert("rng".into(), Tensor::from_slice(&numbers, 3, self.init.device())?);
        Ok(state)
    }

    fn restore(&mut self, state: &StateDict) -> Result<()> {
        let part = |prefix: &str| -> StateDict {
            let named = state.iter().filter_map(|(name, t)| Some((name.strip_prefix(prefix)?.to_string(), t.clone())));
            named.collect()
        };
        self.model.load_state_dict(&part("model."))?;
        self.optimizer.load_state_dict(&part("optimizer."))?;
        if let Some(scaler) = &mut self.scaler {
            scaler.load_state_dict(&part("scaler."))?;
        }
        let rng = state.get("rng").context("it has no random state")?.to_vec::<i64>()?;
        let [seed, offset, stream] = rng[..] else { bail!("its random state is not three numbers") };
        let [seed, offset, stream] = [seed, offset, stream].map(|v| v as u64);
        self.init.rng().set_state(isograd::RngState { seed, offset, stream });
        Ok(())
    }
}

/// Linear layers with relu between them.
struct Mlp {
    hidden: Vec<Linear>,
    last: Linear,
}

impl Mlp {
    fn new(inputs: usize, hidden: &[usize], classes: usize, init: &Init) -> isograd::Result<Mlp> {
        let mut width = inputs;
        let mut layer = |units| Linear::new(std::mem::replace(&mut width, units), units, init);
        let hidden = hidden.iter().map(|&units| layer(units)).collect::<isograd::Result<_>>()?;
        Ok(Mlp { hidden, last: layer(classes)? })
    }
}

impl Module for Mlp {
    /// Named as in a sequence of layers in which the activations count.
    fn visit(&self, visitor: &mut Visitor<'_>) {
        let layers = self.hidden.iter().chain([&self.last]);
        layers.enumerate().for_each(|(i, layer)| visitor.part(&(2 * i).to_string(), layer));
    }
}

impl Forward for Mlp {
    fn forward(&self, x: &Tensor) -> isograd::Result<Tensor> {
        let hidden = self.hidden.iter().try_fold(x.clone(), |x, layer| layer.forward_with(&x, Activation::Relu))?;
        self.last.forward(&hidden)
    }
}

fn optimizer(config: &Config, model: &Mlp) -> Box<dyn Optimizer> {
    match config.optimizer {
        OptimizerName::Sgd => Box::new(Sgd::new(model).momentum(0.9).lr(config.lr)),
        OptimizerName::Adam => Box::new(Adam::new(model).lr(config.lr)),
        OptimizerName::Adamw => Box::new(AdamW::new(model).lr(config.lr)),
        OptimizerName::Rmsprop => Box::new(RmsProp::new(model).lr(config.lr)),
        OptimizerName::Adagrad => Box::new(Adagrad::new(model).lr(config.lr)),
        OptimizerName::Lars => Box::new(Lars::new(model).lr(config.lr)),
        OptimizerName::Lamb => Box::new(Lamb::new(model).lr(config.lr)),
        OptimizerName::Muon => Box::new(Mixed::new(model, config.lr)),
    }
}
