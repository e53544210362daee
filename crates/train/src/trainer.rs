//! The training loop.

use crate::check::{check, inputs};
use crate::display::Screen;
use crate::folder::Folder;
use crate::learner::{Captured, Learner, Ranks, Shared};
use crate::metrics::{Metric, added};
use crate::{Display, Epoch, Goal, Logger, Progress, RateCurve, RateSearch, SavedRun, folder};
use isograd_core::tape::undone;
use isograd_core::{DType, Error, Result, Rng, RngState, Tensor, Tensors, no_grad};
use isograd_data::Loader;
use isograd_nn::{Averaged, Averaging, Checkpoint, GradScaler, Module, Optimizer, Schedule};
use isograd_parallel::{DataParallel, FullySharded, Group, ParallelOptions, Unused};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Steps after which losses are read at the latest, so that the device is not further ahead than that.
const AHEAD: usize = 32;

/// The least time between two checkpoints within a run; epochs may be quicker than that.
const SAVED_EVERY: Duration = Duration::from_secs(1);

/// The least time between two drawings of the curves within a run.
const DRAWN_EVERY: Duration = Duration::from_secs(10);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// With its last epoch.
    Finished,
    /// Before that: the validation had not become better for some epochs.
    Stopped,
    /// The flag of [`Trainer::stop_when`] was set.
    Interrupted,
}

/// The loss and the metrics of samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The mean loss over the samples.
    pub loss: f64,
    /// The metrics by name.
    pub metrics: BTreeMap<String, f64>,
}

/// Begins the state of a metric for a validation.
type Begin<'a, B, P> = Box<dyn Fn() -> Result<Box<dyn Measure<B, P> + 'a>> + Send + 'a>;

/// A number of the validation.
struct Measured<'a, B, P> {
    name: String,
    goal: Goal,
    begin: Begin<'a, B, P>,
}

/// The state of a metric in a validation.
trait Measure<B, P> {
    fn update(&mut self, prediction: &P, batch: &B) -> Result<()>;

    /// The number of the samples of all ranks.
    fn value(&mut self, group: &Group) -> Result<f64>;
}

/// A state with the functions that add to it and read it.
struct State<S, U, V> {
    state: S,
    update: Arc<U>,
    value: Arc<V>,
}

impl<B, P, S, U, V> Measure<B, P> for State<S, U, V>
where
    S: Metric,
    U: Fn(&mut S, &P, &B) -> Result<()>,
    V: Fn(&S) -> Result<f64>,
{
    fn update(&mut self, prediction: &P, batch: &B) -> Result<()> {
        (self.update)(&mut self.state, prediction, batch)
    }

    fn value(&mut self, group: &Group) -> Result<f64> {
        if group.size() > 1 {
            self.state.join(&gathered(group, "evaluation", &self.state.numbers()?)?)?;
        }
        (self.value)(&self.state)
    }
}

/// A function of each epoch as a logger.
struct OnEpoch<F>(F);

impl<F: FnMut(&Epoch) -> Result<()> + Send> Logger for OnEpoch<F> {
    fn epoch(&mut self, epoch: &Epoch) -> Result<()> {
        (self.0)(epoch)
    }
}

/// A function of each step as a logger.
struct OnStep<F>(F);

impl<F: FnMut(&Progress, &[Tensor]) -> Result<()> + Send> Logger for OnStep<F> {
    fn step(&mut self, progress: &Progress, losses: &[Tensor]) -> Result<()> {
        (self.0)(progress, losses)
    }
}

/// The loss of a batch that was not read yet.
struct Pending {
    loss: Tensor,
    samples: usize,
    /// The index of the batch in its epoch.
    batch: usize,
}

/// A loss that is so many times the first is worth a warning.
const GROWN: f64 = 1e6;

/// Trains a model `M` on batches `B` of a loader. `P` is what the model predicts for a batch.
///
/// A run with a folder leaves there its configuration, the results of each epoch, learning curves, the best model and a checkpoint. A run
/// that goes on from the checkpoint has the same bits as one that was not interrupted.
///
/// A trainer of a model that threads may share is [`Send`]: another thread may run it.
pub struct Trainer<'a, M: ?Sized, B, P> {
    learner: Shared<'a, M, B, P>,
    train: Loader<B>,
    validation: Option<Loader<B>>,
    metrics: Vec<Measured<'a, B, P>>,
    schedule: Option<Box<dyn Schedule + 'a>>,
    epochs: u64,
    max_steps: Option<u64>,
    /// Steps after which the validation is computed within an epoch.
    validated_every: Option<u64>,
    accumulate: usize,
    is_captured: bool,
    /// The first batch is still to be checked.
    is_unchecked: bool,
    warnings: Vec<String>,
    /// The first loss of this process, until another is far above it.
    first_loss: Option<f64>,
    averaged: Option<Averaged>,
    monitor: Option<String>,
    patience: Option<u64>,
    rngs: Vec<(String, Rng)>,
    folder: Option<Folder>,
    display: Display,
    stop: Option<Arc<AtomicBool>>,
    loggers: Vec<Box<dyn Logger + 'a>>,
    group: Group,
    /// The generators of the ranks draw different numbers.
    is_spread: bool,
    progress: Progress,
    best: Option<Checkpoint>,
    /// The time of the last checkpoint of this process, and the index of the best epoch then.
    saved: Option<(Instant, Option<usize>)>,
    /// The time of the last drawing of the curves, or that of the start.
    drawn: Instant,
}

impl<'a, M, B, P> Trainer<'a, M, B, P>
where
    M: Module + ?Sized + 'a,
    B: Tensors + Send + 'static,
    P: 'a,
{
    /// A run of one epoch. `predict` computes what the model says about a batch, and `loss` how wrong that is: a scalar, the mean over
    /// the samples.
    ///
    /// A step is captured where the device can, so `predict` and `loss` read nothing back; see [`Trainer::without_capture`].
    pub fn new(
        model: &'a M,
        optimizer: impl Optimizer + 'a,
        train: Loader<B>,
        predict: impl Fn(&M, &B) -> Result<P> + Send + 'a,
        loss: impl Fn(&P, &B) -> Result<Tensor> + Send + 'a,
    ) -> Trainer<'a, M, B, P> {
        let learner = Learner {
            model,
            optimizer: Box::new(optimizer),
            scaler: None,
            predict: Box::new(predict),
            loss: Box::new(loss),
            autocast: None,
            ranks: None,
        };
        Trainer {
            learner: Shared::new(learner),
            train,
            validation: None,
            metrics: Vec::new(),
            schedule: None,
            epochs: 1,
            max_steps: None,
            validated_every: None,
            accumulate: 1,
            is_captured: true,
            is_unchecked: true,
            warnings: Vec::new(),
            first_loss: None,
            averaged: None,
            monitor: None,
            patience: None,
            rngs: Vec::new(),
            folder: None,
            display: Display::Quiet,
            stop: None,
            loggers: Vec::new(),
            group: Group::alone(),
            is_spread: false,
            progress: Progress::default(),
            best: None,
            saved: None,
            drawn: Instant::now(),
        }
    }

    /// Passes over the training samples.
    pub fn epochs(self, epochs: u64) -> Self {
        Trainer { epochs, ..self }
    }

    /// Ends the run after so many steps of the optimizer, also within an epoch. The results of that part of the epoch are those of an [`Epoch`].
    pub fn max_steps(self, steps: u64) -> Self {
        Trainer { max_steps: Some(steps), ..self }
    }

    /// Validates after each `steps` steps, not only at the end of an epoch. [`history`](Trainer::history) has the results of each validation, whose
    /// training loss is the mean since the one before; they count for [`early_stopping`](Trainer::early_stopping) and the choice of the best.
    /// Errors: `Attr` if it is 0.
    pub fn validate_every(self, steps: u64) -> Result<Self> {
        match steps {
            0 => Err(Error::attr("trainer", "a validation follows 0 steps, expected at least 1")),
            _ => Ok(Trainer { validated_every: Some(steps), ..self }),
        }
    }

    /// Computes the loss and the metrics of these samples after each epoch.
    pub fn validate(self, loader: Loader<B>) -> Self {
        let loader = loader.part(self.group.rank(), self.group.size()).expect("a rank is below the size of its group");
        Trainer { validation: Some(loader), ..self }
    }

    /// A metric of the validation: the mean of `value`'s elements over all samples, such as whether each prediction is right.
    pub fn metric(self, name: &str, goal: Goal, value: impl Fn(&P, &B) -> Result<Tensor> + Send + Sync + 'a) -> Self {
        let update = move |mean: &mut Mean, prediction: &P, batch: &B| {
            let values = value(prediction, batch)?;
            let values = if values.dtype().is_float() { values.cast(values.dtype().acc())? } else { values };
            mean.push_sum(values.sum(..)?, values.numel());
            Ok(())
        };
        self.measure(name, goal, || Ok(Mean::default()), update, Mean::value)
    }

    /// A metric of the validation that is no mean of samples, such as an F1: `begin` makes its state, `update` adds a batch, and `value` is the
    /// number of all samples. States are those of [`metrics`](crate::metrics), and any [`Metric`].
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # use isograd_nn::Sequential;
    /// # use isograd_train::{Goal, Trainer};
    /// use isograd_train::metrics::Confusion;
    ///
    /// type Classifier<'a> = Trainer<'a, Sequential, (Tensor, Tensor), Tensor>;
    ///
    /// /// Keeps the epoch with the best F1, of which padding, class -100, is no part.
    /// fn by_f1<'a>(trainer: Classifier<'a>, classes: usize, device: &'a Device) -> Classifier<'a> {
    ///     let begin = move || Ok(Confusion::new(classes, device)?.ignore(-100));
    ///     let add = |confusion: &mut Confusion, scores: &Tensor, (_, y): &(Tensor, Tensor)| confusion.update(&scores.argmax(-1)?, y);
    ///     trainer.measure("f1", Goal::Highest, begin, add, |confusion| Ok(confusion.counts()?.macro_f1())).monitor("f1")
    /// }
    /// ```
    pub fn measure<S: Metric + 'a>(
        mut self,
        name: &str,
        goal: Goal,
        begin: impl Fn() -> Result<S> + Send + 'a,
        update: impl Fn(&mut S, &P, &B) -> Result<()> + Send + Sync + 'a,
        value: impl Fn(&S) -> Result<f64> + Send + Sync + 'a,
    ) -> Self {
        let (update, value) = (Arc::new(update), Arc::new(value));
        let begin = move || -> Result<Box<dyn Measure<B, P> + 'a>> {
            Ok(Box::new(State { state: begin()?, update: update.clone(), value: value.clone() }))
        };
        self.metrics.push(Measured { name: name.into(), goal, begin: Box::new(begin) });
        self
    }

    /// The metric that the best epoch is chosen by, in place of the validation loss.
    pub fn monitor(self, name: &str) -> Self {
        Trainer { monitor: Some(name.into()), ..self }
    }

    /// The learning rate of each step.
    pub fn schedule(self, schedule: impl Schedule + 'a) -> Self {
        Trainer { schedule: Some(Box::new(schedule)), ..self }
    }

    /// Learns from `batches` batches in one step of the optimizer. Errors: `Attr` if it is 0.
    pub fn accumulate(self, batches: usize) -> Result<Self> {
        match batches {
            0 => Err(Error::attr("trainer", "a step has 0 batches, expected at least 1")),
            _ => Ok(Trainer { accumulate: batches, ..self }),
        }
    }

    /// Mixed precision: products in f16 or bf16. With f16, small gradients are kept by a loss scaler. Errors: `Value` if the model has
    /// no parameters.
    pub fn autocast(self, dtype: DType) -> Result<Self> {
        if dtype == DType::F16 && self.learner.lock().scaler.is_none() {
            let device = self.learner.lock().device()?;
            self.learner.lock().scaler = Some(GradScaler::new(&device)?);
        }
        self.learner.lock().autocast = Some(dtype);
        Ok(self)
    }

    /// Trains on all ranks of a group, each of which makes the same trainer. Every rank gets the weights of rank 0, and a part of the
    /// samples of each batch: the steps are those of one rank with the same batch size. Rank 0 prints and writes files. Steps are captured
    /// where ranks are processes whose devices exchange tensors by NCCL or RCCL, unless parameters may be unused. Errors: `Value` if the
    /// ranks' models differ.
    pub fn parallel(mut self, group: &Group, options: &ParallelOptions) -> Result<Self> {
        if group.size() == 1 {
            return Ok(self);
        }
        self = self.with_part(group)?;
        let copies = DataParallel::new(self.learner.lock().model, group, options)?;
        self.learner.lock().ranks = Some(Ranks::Copies(copies));
        let device = self.learner.lock().device()?;
        // `Unused::Zero` asks the other ranks in each step which parameters are used.
        let is_captured = self.is_captured && options.unused == Unused::Error && group.is_captured(&device)?;
        Ok(Trainer { group: group.clone(), is_captured, ..self })
    }

    /// Trains a model of which each rank keeps a part, as [`FullySharded::build`] made it; the optimizer is that of
    /// [`FullySharded::optimizer`]. Each rank makes the same trainer and gets a part of the samples of each batch: the steps are those of one
    /// rank with the same batch size. Rank 0 prints and writes files, which are those of a whole model. Steps are computed plainly, and the
    /// first batch is not checked. Errors: `Unsupported` with an average of the weights.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # use isograd_data::{Loader, digits};
    /// # use isograd_nn::{AdamW, Forward, Init, Linear};
    /// # use isograd_parallel::{FullySharded, Group, ShardOptions};
    /// # use isograd_train::Trainer;
    /// fn train(group: &Group, device: &Device) -> Result<()> {
    ///     let init = Init::new(device).seed(1);
    ///     let (model, sharded) = FullySharded::build(group, &ShardOptions::default(), &init, |init| Linear::new(64, 10, init))?;
    ///     let optimizer = sharded.optimizer(|parts| AdamW::new(parts))?;
    ///     let loader = Loader::new(digits()?, 64)?.to(device);
    ///     let predict = |model: &Linear, (x, _): &(Tensor, Tensor)| model.forward(x);
    ///     let trainer = Trainer::new(&model, optimizer, loader, predict, |scores, (_, y)| scores.cross_entropy(y));
    ///     trainer.fully_sharded(sharded)?.epochs(5).run().map(drop)
    /// }
    /// ```
    pub fn fully_sharded(mut self, sharded: FullySharded) -> Result<Self> {
        if self.averaged.is_some() {
            return Err(no_average());
        }
        let group = sharded.group().clone();
        self = self.with_part(&group)?;
        self.learner.lock().ranks = Some(Ranks::Sharded(sharded));
        Ok(Trainer { group, is_captured: false, is_unchecked: false, ..self })
    }

    /// With this rank's part of each batch.
    fn with_part(self, group: &Group) -> Result<Self> {
        let (rank, size) = (group.rank(), group.size());
        let train = self.train.part(rank, size)?;
        let validation = self.validation.map(|loader| loader.part(rank, size)).transpose()?;
        Ok(Trainer { train, validation, ..self })
    }

    /// Scales losses, so that small gradients are kept in f16.
    pub fn scaler(self, scaler: GradScaler) -> Self {
        self.learner.lock().scaler = Some(scaler);
        self
    }

    /// Computes every step plainly, for functions that read values back.
    pub fn without_capture(self) -> Self {
        Trainer { is_captured: false, ..self }
    }

    /// Leaves out the check of the first batch. It takes the time of a step, and warns of parameters on which the loss does not depend or
    /// which the optimizer does not have, of inputs and results that are not finite, and of layers with units that are always 0; it
    /// leaves the model, its generators and the run's numbers as they were. It is not made on several ranks.
    pub fn without_check(self) -> Self {
        Trainer { is_unchecked: false, ..self }
    }

    /// The warnings of the check of the first batch.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Follows the weights by an average, which the validation uses, and which the best epoch keeps; the model itself has its own weights.
    /// Errors: as [`Averaged::new`]; `Unsupported` with [`fully_sharded`](Trainer::fully_sharded).
    pub fn average(self, averaging: Averaging) -> Result<Self> {
        if self.learner.lock().is_in_parts() {
            return Err(no_average());
        }
        let averaged = Averaged::new(self.learner.lock().model, averaging)?;
        Ok(Trainer { averaged: Some(averaged), ..self })
    }

    /// The average of the weights, with [`average`](Trainer::average).
    pub fn averaged(&self) -> Option<&Averaged> {
        self.averaged.as_ref()
    }

    /// Computes activations again in the backward pass, for less memory. Errors: as [`Module::recompute_activations`].
    pub fn recompute_activations(self) -> Result<Self> {
        self.learner.lock().model.recompute_activations(true)?;
        Ok(self)
    }

    /// Freezes the parameters whose names match a pattern, such as `trunk.*`. Errors: as [`Module::freeze_matching`].
    pub fn freeze(self, pattern: &str) -> Result<Self> {
        self.learner.lock().model.freeze_matching(pattern)?;
        Ok(self)
    }

    /// A generator that the model draws from, whose position a checkpoint keeps: that of `Init` for models with dropout.
    pub fn rng(mut self, name: &str, rng: &Rng) -> Self {
        self.rngs.push((name.into(), rng.clone()));
        self
    }

    /// Ends the run when the validation has not become better for `epochs` epochs. At its end, the model has the weights of the best
    /// epoch; the folder's checkpoint has the last ones.
    pub fn early_stopping(self, epochs: u64) -> Self {
        Trainer { patience: Some(epochs), ..self }
    }

    /// Keeps the run's files in a folder, which [`prepare`](crate::prepare) makes sure of; of several ranks, after
    /// [`parallel`](Trainer::parallel), rank 0 does so. They are written after an epoch, at most once
    /// a second, and at the end; the curves are drawn every ten seconds. Errors: `Io`.
    pub fn folder(self, path: impl AsRef<Path>) -> Result<Self> {
        if self.group.is_first() {
            folder::prepare(&path)?;
        }
        Ok(Trainer { folder: Some(Folder::new(path.as_ref())), ..self })
    }

    /// The configuration that the folder keeps, and the title of the curves. Errors: `Value` if it is not JSON, or there is no folder.
    pub fn config(mut self, config: &impl Serialize, title: &str) -> Result<Self> {
        let folder = self.folder.as_mut();
        let folder = folder.ok_or_else(|| Error::value("trainer", "there is no folder for the configuration"))?;
        folder.config = serde_json::to_string(config).map_err(|e| Error::value("trainer", e.to_string()))?;
        folder.title = title.into();
        Ok(self)
    }

    /// The output on the terminal.
    pub fn display(self, display: Display) -> Self {
        Trainer { display, ..self }
    }

    /// Ends the run after the step in which the flag is set, with a checkpoint. [`interrupts`](crate::interrupts) is a flag that Ctrl-C
    /// sets.
    pub fn stop_when(self, flag: Arc<AtomicBool>) -> Self {
        Trainer { stop: Some(flag), ..self }
    }

    /// Calls a function with the results of each epoch. Its error ends the run.
    pub fn on_epoch(self, callback: impl FnMut(&Epoch) -> Result<()> + Send + 'a) -> Self {
        self.logger(OnEpoch(callback))
    }

    /// Calls a function after each step, with the progress and the losses of the step's batches; reading these waits for the device. Its
    /// error ends the run.
    pub fn on_step(self, callback: impl FnMut(&Progress, &[Tensor]) -> Result<()> + Send + 'a) -> Self {
        self.logger(OnStep(callback))
    }

    /// Follows the run by a logger, such as a [`TensorBoard`](crate::tensorboard::TensorBoard). Of several ranks, each has its own.
    pub fn logger(mut self, logger: impl Logger + 'a) -> Self {
        self.loggers.push(Box::new(logger));
        self
    }

    /// Goes on from a saved run, of the same model, optimizer, loaders and options. Errors: `Value` naming what does not fit.
    pub fn resume(mut self, saved: SavedRun) -> Result<Self> {
        let SavedRun { checkpoint, progress, best, .. } = saved;
        let mut learner = self.learner.lock();
        learner.restore(&checkpoint)?;
        checkpoint.restore_optimizer(learner.optimizer.as_mut())?;
        match &mut learner.scaler {
            Some(scaler) => checkpoint.restore_scaler(scaler)?,
            None if checkpoint.scaler.is_empty() => {}
            None => return Err(Error::value("trainer", "the saved run has a loss scaler, and this one has none")),
        }
        match &mut self.averaged {
            Some(averaged) => checkpoint.restore_averaged(averaged)?,
            None if checkpoint.averaged.is_empty() => {}
            None => {
                return Err(Error::value("trainer", "the saved run has an average of weights, and this one has none"));
            }
        }
        for (name, rng) in &self.rngs {
            checkpoint.restore_rng(name, rng)?;
        }
        drop(learner);
        (self.progress, self.best) = (progress, best);
        Ok(self)
    }

    /// The results of finished epochs.
    pub fn history(&self) -> &[Epoch] {
        &self.progress.history
    }

    /// Epochs, steps and time so far.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The results of the best epoch.
    pub fn best(&self) -> Option<&Epoch> {
        self.progress.history.get(self.progress.best?)
    }

    /// Gives the model the weights of the best epoch. Errors: `Value` if there was no epoch.
    pub fn restore_best(&self) -> Result<()> {
        let best = self.best.as_ref().ok_or_else(|| Error::value("trainer", "no epoch is finished"))?;
        self.learner.lock().restore(best)
    }

    /// Trains until the last epoch, early stopping, or the flag. Errors: `Value` if the loss is not finite, or a loader has no batch; those of
    /// the loader, the model and the files.
    pub fn run(&mut self) -> Result<End> {
        check_batches("train", &self.train)?;
        self.spread();
        let display = if self.group.is_first() { self.display } else { Display::Quiet };
        let mut screen = Screen::new(display, self.train.len() as u64, self.epochs);
        screen.begin(&self.progress);
        let end = self.train(&mut screen);
        let shown = screen.end();
        let end = end?;
        shown?;
        self.save()?;
        if self.patience.is_some() && end != End::Interrupted && self.best.is_some() {
            self.restore_best()?;
        }
        Ok(end)
    }

    /// Lets the ranks' generators draw different numbers, as for dropout. A checkpoint has that of rank 0, which stays as it is.
    fn spread(&mut self) {
        if !std::mem::replace(&mut self.is_spread, true) {
            for (_, rng) in &self.rngs {
                let state = rng.state();
                let stream = state.stream.wrapping_add((self.group.rank() as u64) << 32);
                rng.set_state(RngState { stream, ..state });
            }
        }
    }

    /// The sums over the ranks of these numbers, in the order of the ranks.
    fn sums(&self, what: &'static str, own: &[f64]) -> Result<Vec<f64>> {
        let all = gathered(&self.group, what, own)?;
        let number = |rank: &Vec<f64>, i: usize| rank.get(i).copied().unwrap_or(f64::NAN);
        Ok((0..own.len()).map(|i| all.iter().map(|rank| number(rank, i)).sum()).collect())
    }

    /// Runs steps with learning rates that grow by a factor, from the weights of now, and returns their losses with a rate to train with.
    /// Model, optimizer, loss scaler and generators are then as they were. Errors: `Attr` for rates that do not grow, `Value` on several
    /// ranks and for a model in parts; those of a step.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor, replace_file};
    /// # use isograd_train::{RateSearch, Trainer};
    /// # use isograd_nn::Sequential;
    /// fn rate(trainer: &mut Trainer<Sequential, (Tensor, Tensor), Tensor>) -> Result<f64> {
    ///     let curve = trainer.find_learning_rate(&RateSearch::default())?;
    ///     replace_file("rates.svg", &[curve.svg()?.as_bytes()])?;
    ///     Ok(curve.suggestion.unwrap_or(1e-3))
    /// }
    /// ```
    pub fn find_learning_rate(&mut self, search: &RateSearch) -> Result<RateCurve> {
        search.check()?;
        if self.group.size() > 1 || self.learner.lock().is_in_parts() {
            let message = "the rate is searched on one rank that has all of the model, before `parallel`";
            return Err(Error::value("find_learning_rate", message));
        }
        let before = self.checkpoint()?;
        let rate = self.learner.lock().optimizer.learning_rate();
        self.learner.lock().model.train();
        let found = undone(|| self.search(search));
        let mut learner = self.learner.lock();
        before.restore_model(learner.model)?;
        before.restore_optimizer(learner.optimizer.as_mut())?;
        learner.optimizer.set_lr(rate)?;
        if let Some(scaler) = &mut learner.scaler {
            before.restore_scaler(scaler)?;
        }
        found
    }

    fn search(&self, search: &RateSearch) -> Result<RateCurve> {
        let (mut losses, mut epoch) = (Vec::new(), 0);
        while losses.len() < search.steps {
            let first = losses.len();
            for batch in self.train.epoch(epoch).take(search.steps - first) {
                let rate = search.rate(losses.len());
                self.learner.lock().optimizer.set_lr(rate)?;
                losses.push((rate, self.step(&batch?)?.item::<f64>()?));
                if RateCurve::new(&losses).is_over(search.limit) {
                    return Ok(RateCurve::new(&losses));
                }
            }
            if losses.len() == first {
                return Err(Error::value("find_learning_rate", "there are no samples to train with"));
            }
            epoch += 1;
        }
        Ok(RateCurve::new(&losses))
    }

    /// The loss and the metrics of the validation samples now, with the average of the weights if there is one. Errors: `Value` without a
    /// validation loader; those of the loader and the model.
    pub fn evaluate(&self) -> Result<Evaluation> {
        match &self.averaged {
            Some(averaged) => {
                let model = self.learner.lock().model;
                averaged.applied(model, || self.evaluated())
            }
            None => self.evaluated(),
        }
    }

    fn evaluated(&self) -> Result<Evaluation> {
        let loader = self.validation.as_ref();
        let loader = loader.ok_or_else(|| Error::value("trainer", "there are no samples to validate with"))?;
        check_batches("validate", loader)?;
        let learner = self.learner.lock();
        let mut loss = Mean::default();
        let mut metrics = self.metrics.iter().map(|metric| (metric.begin)()).collect::<Result<Vec<_>>>()?;
        learner.evaluating(|| {
            for (batch, index) in loader.epoch(0).zip(0..) {
                let batch = batch?;
                // Fewer samples than ranks. Of a model in parts, every rank computes all the same.
                let samples = loader.samples_in(index);
                if samples == 0 && !learner.is_in_parts() {
                    continue;
                }
                let (prediction, value) = learner.predicted(&batch)?;
                if samples == 0 {
                    continue;
                }
                loss.push(value, samples);
                metrics.iter_mut().try_for_each(|metric| metric.update(&prediction, &batch))?;
            }
            Ok(())
        })?;
        loss.join(&gathered(&self.group, "evaluation", &loss.numbers()?)?)?;
        let named = |(of, metric): (&Measured<'a, B, P>, &mut Box<dyn Measure<B, P> + 'a>)| {
            Ok((of.name.clone(), metric.value(&self.group)?))
        };
        let metrics = self.metrics.iter().zip(&mut metrics).map(named).collect::<Result<_>>()?;
        Ok(Evaluation { loss: loss.value()?, metrics })
    }

    /// Learns from one batch, plainly, and returns its loss: a step that the run does not count.
    pub fn step(&self, batch: &B) -> Result<Tensor> {
        let losses = self.learner.lock().step(std::slice::from_ref(batch), &[1.0])?;
        losses.into_iter().next().ok_or_else(|| Error::value("trainer", "a step has no batch"))
    }

    /// The loader of the training samples.
    pub fn train_loader(&self) -> &Loader<B> {
        &self.train
    }

    /// Writes the files of the folder, if there is one.
    pub fn save(&mut self) -> Result<()> {
        self.save_checkpoint()?;
        if let Some(folder) = self.folder.as_ref().filter(|_| self.group.is_first()) {
            folder.draw(&self.progress)?;
            self.drawn = Instant::now();
        }
        Ok(())
    }

    fn save_checkpoint(&mut self) -> Result<()> {
        if let Some(folder) = &self.folder {
            let best = self.progress.best;
            let is_saved = self.saved.is_some_and(|(_, saved)| saved == best);
            let model = if is_saved { None } else { self.best.as_ref() };
            // Every rank may have a part of it.
            let checkpoint = self.checkpoint()?;
            if self.group.is_first() {
                folder.save(checkpoint, model, &self.progress)?;
            }
            self.saved = Some((Instant::now(), best));
        }
        Ok(())
    }

    /// Writes the files that are due after an epoch.
    fn save_epoch(&mut self) -> Result<()> {
        // The clocks of the ranks differ, and all save at the same time.
        let is_drawn = self.group.any(self.group.is_first() && self.drawn.elapsed() >= DRAWN_EVERY)?;
        if is_drawn {
            return self.save();
        }
        let is_new = self.saved.is_some_and(|(at, _)| at.elapsed() < SAVED_EVERY);
        if self.group.any(self.group.is_first() && !is_new)? { self.save_checkpoint() } else { Ok(()) }
    }

    fn train(&mut self, screen: &mut Screen) -> Result<End> {
        let samples = (self.train.batch_size() * self.accumulate) as f64 / self.group.size() as f64;
        let full = (self.accumulate, samples);
        let mut step = Captured::new(self.learner.clone(), full, self.is_captured, self.group.clone());
        self.learner.lock().model.train();
        while self.progress.epoch < self.epochs {
            if self.is_exhausted() {
                return Ok(End::Stopped);
            }
            let started = Instant::now();
            let before = self.progress.seconds;
            let clock = move || before + started.elapsed().as_secs_f64();
            if let Some(end) = self.epoch(&mut step, &clock, screen)? {
                return Ok(end);
            }
            self.results(&clock, screen)?;
        }
        Ok(End::Finished)
    }

    /// The end of an epoch, or of a part of one: the validation, and what follows from it.
    fn results(&mut self, clock: &dyn Fn() -> f64, screen: &mut Screen) -> Result<()> {
        self.progress.seconds = clock();
        self.learner.lock().broadcast_buffers()?;
        let found = if self.validation.is_some() { Some(self.evaluate()?) } else { None };
        self.progress.seconds = clock();
        self.finish(found, screen)
    }

    /// The steps of an epoch, and how the run ends if it does so within the epoch.
    fn epoch(
        &mut self,
        step: &mut Captured<'a, M, B, P>,
        clock: &dyn Fn() -> f64,
        screen: &mut Screen,
    ) -> Result<Option<End>> {
        if self.max_steps.is_some_and(|most| self.progress.steps >= most) {
            return Ok(Some(End::Finished));
        }
        let mut pending = Vec::new();
        let mut batches = Vec::with_capacity(self.accumulate);
        let (first, end) = (self.progress.batch, self.train.len());
        let mut done = first;
        for (batch, index) in self.train.epoch_from(self.progress.epoch, first).zip(first..) {
            let batch = batch?;
            if std::mem::take(&mut self.is_unchecked) && self.group.size() == 1 {
                self.warnings = check(&self.learner.lock(), &batch)?;
                self.warnings.iter().for_each(|warning| screen.warn(warning));
            }
            batches.push(batch);
            if batches.len() < self.accumulate && index + 1 < end {
                continue;
            }
            self.set_learning_rate()?;
            let sizes: Vec<usize> = (done..=index).map(|i| self.train.samples_in(i)).collect();
            let all: usize = (done..=index).map(|i| self.train.samples_in_all(i)).sum();
            self.group.set_step(self.progress.steps);
            let losses = step.run(
                std::mem::take(&mut batches),
                &sizes,
                all as f64 / self.group.size() as f64,
                self.progress.steps + 1,
            )?;
            if let Some(averaged) = &mut self.averaged {
                averaged.update(self.learner.lock().model)?;
            }
            screen.step(all as u64);
            (self.progress.batch, self.progress.steps) = (index + 1, self.progress.steps + 1);
            self.loggers.iter_mut().try_for_each(|logger| logger.step(&self.progress, &losses))?;
            let batches_done = losses.into_iter().zip(sizes).zip(done..);
            pending.extend(batches_done.map(|((loss, samples), batch)| Pending { loss, samples, batch }));
            done = index + 1;
            let steps = self.progress.steps;
            let is_last = self.max_steps.is_some_and(|most| steps >= most);
            let is_validated =
                done < end && (is_last || self.validated_every.is_some_and(|every| steps.is_multiple_of(every)));
            let is_stopped = self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
            let [is_stopped, is_due] = self.any([is_stopped, screen.is_due()])?;
            if is_stopped || is_validated || done == end || pending.len() >= AHEAD || is_due {
                self.read(&mut pending, screen)?;
                screen.update(&self.progress, self.learner.lock().optimizer.learning_rate());
            }
            if is_stopped {
                self.progress.seconds = clock();
                return Ok(Some(End::Interrupted));
            }
            if is_validated {
                self.results(clock, screen)?;
                if is_last || self.is_exhausted() {
                    return Ok(Some(if is_last { End::Finished } else { End::Stopped }));
                }
            }
        }
        Ok(None)
    }

    /// Which of two flags are set on any rank.
    fn any(&self, flags: [bool; 2]) -> Result<[bool; 2]> {
        if self.group.size() == 1 {
            return Ok(flags);
        }
        let all = self.group.gather_bytes("end of a step", &flags.map(u8::from))?;
        Ok([0, 1].map(|i| all.iter().any(|rank| rank[i] == 1)))
    }

    fn set_learning_rate(&self) -> Result<()> {
        let Some(schedule) = &self.schedule else { return Ok(()) };
        let (rate, mut learner) = (schedule.lr(self.progress.steps)?, self.learner.lock());
        if rate != learner.optimizer.learning_rate() {
            learner.optimizer.set_lr(rate)?;
        }
        Ok(())
    }

    /// Reads losses that were computed.
    fn read(&mut self, pending: &mut Vec<Pending>, screen: &Screen) -> Result<()> {
        let losses: Vec<&Tensor> = pending.iter().map(|pending| &pending.loss).collect();
        // A rank without samples has the loss of another's.
        let own = values(&losses)?.into_iter().zip(pending.iter()).map(|(loss, pending)| match pending.samples {
            0 => [0.0, 0.0],
            samples => [loss * samples as f64, samples as f64],
        });
        let own: Vec<[f64; 2]> = own.collect();
        let sums = if self.group.size() == 1 { own.into_flattened() } else { self.sums("losses", own.as_flattened())? };
        for ([sum, samples], pending) in sums.as_chunks::<2>().0.iter().zip(pending.drain(..)) {
            let loss = sum / samples;
            // Nothing is learnt from here on, and the last checkpoint is better than the next would be.
            if !loss.is_finite() {
                return Err(self.not_finite(loss, pending.batch)?);
            }
            self.compare(loss, screen);
            self.progress.loss_sum += sum;
            self.progress.samples += *samples as u64;
        }
        Ok(())
    }

    /// The error of a loss, with the batch, and the rows of it that are not finite.
    fn not_finite(&self, loss: f64, batch: usize) -> Result<Error> {
        let epoch = self.progress.epoch;
        let found = match self.train.epoch_from(epoch, batch).next() {
            Some(found) => no_grad(|| found.and_then(|batch| inputs(&batch)))?,
            None => Vec::new(),
        };
        let cause = match found.is_empty() {
            true => "its inputs are finite, and a smaller learning rate may help".to_string(),
            false => format!("not finite are {}", found.join(", ")),
        };
        let place = format!("batch {} of epoch {}", batch + 1, epoch + 1);
        Ok(Error::value("trainer", format!("the loss is {loss} for {place}: {cause}")))
    }

    /// Warns, once, of a loss that is far above the first.
    fn compare(&mut self, loss: f64, screen: &Screen) {
        let first = *self.first_loss.get_or_insert(loss);
        if loss > GROWN * first && first > 0.0 {
            let message =
                format!("the loss is {loss:.3e}, and was {first:.3e} at first; a smaller learning rate may help");
            screen.warn(&message);
            self.warnings.push(message);
            self.first_loss = Some(f64::INFINITY);
        }
    }

    fn finish(&mut self, found: Option<Evaluation>, screen: &mut Screen) -> Result<()> {
        let epoch = Epoch {
            epoch: self.progress.epoch + 1,
            steps: self.progress.steps,
            train_loss: self.progress.mean_loss(),
            validation_loss: found.as_ref().map(|found| found.loss),
            metrics: found.map(|found| found.metrics).unwrap_or_default(),
            learning_rate: self.learner.lock().optimizer.learning_rate(),
            seconds: self.progress.seconds,
        };
        let is_best = self.is_best(&epoch)?;
        self.progress.add(epoch.clone(), self.train.len());
        if is_best {
            self.progress.best = Some(self.progress.history.len() - 1);
            let learner = self.learner.lock();
            self.best = Some(match &self.averaged {
                Some(averaged) => averaged.applied(learner.model, || learner.weights())?,
                None => learner.weights()?,
            });
        }
        self.save_epoch()?;
        screen.epoch(&epoch, is_best)?;
        self.loggers.iter_mut().try_for_each(|logger| logger.epoch(&epoch))
    }

    fn is_best(&self, epoch: &Epoch) -> Result<bool> {
        let value = self.monitored(epoch)?;
        match self.best() {
            Some(best) => Ok(self.goal().is_better(value, self.monitored(best)?)),
            None => Ok(true),
        }
    }

    fn goal(&self) -> Goal {
        let metric = self.metrics.iter().find(|metric| Some(&metric.name) == self.monitor.as_ref());
        metric.map_or(Goal::Lowest, |metric| metric.goal)
    }

    /// The value that the best epoch is chosen by: a metric, the validation loss, or the training loss.
    fn monitored(&self, epoch: &Epoch) -> Result<f64> {
        let Some(name) = &self.monitor else { return Ok(epoch.validation_loss.unwrap_or(epoch.train_loss)) };
        epoch.metrics.get(name).copied().ok_or_else(|| {
            let known: Vec<&String> = epoch.metrics.keys().collect();
            Error::value("trainer", format!("there is no metric {name:?} to choose the best epoch by, but {known:?}"))
        })
    }

    /// True if the last epochs were no better than an earlier one.
    fn is_exhausted(&self) -> bool {
        let (Some(patience), Some(best)) = (self.patience, self.progress.best) else { return false };
        let since = (self.progress.history.len() - 1 - best) as u64;
        // Within an epoch without validations, the last results are those of the start.
        (self.progress.batch == 0 || self.validated_every.is_some()) && since >= patience
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        let learner = self.learner.lock();
        let mut checkpoint = learner.weights()?.with_optimizer(learner.optimizer.as_ref())?;
        if let Some(scaler) = &learner.scaler {
            checkpoint = checkpoint.with_scaler(scaler)?;
        }
        if let Some(averaged) = &self.averaged {
            checkpoint = checkpoint.with_averaged(averaged)?;
        }
        Ok(self.rngs.iter().fold(checkpoint, |checkpoint, (name, rng)| checkpoint.with_rng(name, rng)))
    }
}

/// The error of an average of weights that no rank has.
fn no_average() -> Error {
    Error::unsupported("trainer", "an average of the weights is of a whole model, and each rank has a part of this one")
}

/// The values of scalars, which are read at once.
fn values(scalars: &[&Tensor]) -> Result<Vec<f64>> {
    match scalars {
        [] => Ok(Vec::new()),
        [scalar] => scalar.to_f64_vec(),
        _ => Tensor::stack(scalars, 0)?.to_f64_vec(),
    }
}

/// Errors: `Value` for a loader whose mean would be one of nothing.
fn check_batches<B: Send + 'static>(what: &str, loader: &Loader<B>) -> Result<()> {
    match loader.is_empty() {
        true => {
            let size = loader.batch_size();
            let message = format!("the samples to {what} with are no batch: there are none, or fewer than {size}");
            Err(Error::value("trainer", message))
        }
        false => Ok(()),
    }
}

/// A mean whose values are read at the end.
#[derive(Default)]
struct Mean {
    /// Values, and the factor of each.
    values: Vec<(Tensor, f64)>,
    count: usize,
    /// The sum and the count of all ranks.
    joined: Option<[f64; 2]>,
}

impl Mean {
    /// The mean of `count` elements.
    fn push(&mut self, mean: Tensor, count: usize) {
        self.values.push((mean, count as f64));
        self.count += count;
    }

    /// The sum of `count` elements.
    fn push_sum(&mut self, sum: Tensor, count: usize) {
        self.values.push((sum, 1.0));
        self.count += count;
    }

    fn value(&self) -> Result<f64> {
        let numbers = self.numbers()?;
        Ok(numbers[0] / numbers[1])
    }
}

impl Metric for Mean {
    /// The sum, and the number of elements.
    fn numbers(&self) -> Result<Vec<f64>> {
        if let Some(joined) = self.joined {
            return Ok(joined.to_vec());
        }
        let tensors: Vec<&Tensor> = self.values.iter().map(|(value, _)| value).collect();
        let terms = values(&tensors)?.into_iter().zip(&self.values).map(|(value, (_, factor))| value * factor);
        Ok(vec![terms.sum::<f64>(), self.count as f64])
    }

    fn join(&mut self, ranks: &[Vec<f64>]) -> Result<()> {
        self.joined = Some(added(ranks)?);
        Ok(())
    }
}

/// The numbers of all ranks, in the order of the ranks.
fn gathered(group: &Group, what: &'static str, own: &[f64]) -> Result<Vec<Vec<f64>>> {
    let bytes: Vec<u8> = own.iter().flat_map(|v| v.to_le_bytes()).collect();
    let numbers = |rank: &Arc<[u8]>| rank.as_chunks().0.iter().map(|word| f64::from_le_bytes(*word)).collect();
    Ok(group.gather_bytes(what, &bytes)?.iter().map(numbers).collect())
}
