//! One step: losses, gradients, and the optimizer.

use isograd_core::{DType, Device, Error, Result, Step, Tensor, Tensors, autocast, no_grad};
use isograd_nn::{Checkpoint, GradScaler, Module, Optimizer};
use isograd_parallel::{DataParallel, FullySharded, Group};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A function of a model and a batch.
pub(crate) type Predict<'a, M, B, P> = Box<dyn Fn(&M, &B) -> Result<P> + Send + 'a>;
/// A function of a prediction and a batch.
pub(crate) type Score<'a, B, P> = Box<dyn Fn(&P, &B) -> Result<Tensor> + Send + 'a>;

/// How a model is on several ranks.
pub(crate) enum Ranks {
    /// Each rank has all of it.
    Copies(DataParallel),
    /// Each rank has a part of it.
    Sharded(FullySharded),
}

/// A model and all that changes it.
pub(crate) struct Learner<'a, M: ?Sized, B, P> {
    pub model: &'a M,
    pub optimizer: Box<dyn Optimizer + 'a>,
    pub scaler: Option<GradScaler>,
    pub predict: Predict<'a, M, B, P>,
    pub loss: Score<'a, B, P>,
    /// The dtype of products in mixed precision.
    pub autocast: Option<DType>,
    /// The reduction of gradients over several ranks.
    pub ranks: Option<Ranks>,
}

impl<M: Module + ?Sized, B, P> Learner<'_, M, B, P> {
    /// The device of the parameters. Errors: `Value` if there are none.
    pub fn device(&self) -> Result<Device> {
        let first = self.model.parameters().into_iter().next();
        let first = first.ok_or_else(|| Error::value("trainer", "the model has no parameters"))?;
        Ok(first.device().clone())
    }

    fn in_precision<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        match self.autocast {
            Some(dtype) => autocast(dtype, f),
            None => f(),
        }
    }

    /// The prediction for a batch, and its loss.
    pub fn predicted(&self, batch: &B) -> Result<(P, Tensor)> {
        self.in_precision(|| {
            let prediction = (self.predict)(self.model, batch)?;
            let loss = (self.loss)(&prediction, batch)?;
            Ok((prediction, loss))
        })
    }

    /// The loss of a batch, whose gradients, times `share`, are added to those of the parameters.
    fn pass(&self, batch: &B, share: f64) -> Result<Tensor> {
        let (_, loss) = self.predicted(batch)?;
        let part = if share == 1.0 { loss.clone() } else { loss.mul_scalar(share)? };
        match &self.scaler {
            Some(scaler) => scaler.scale(&part)?.backward()?,
            None => part.backward()?,
        }
        Ok(loss.detach())
    }

    /// Learns from batches in one step. `shares` are their parts of all samples, times the number of ranks. Returns their losses.
    pub fn step(&mut self, batches: &[B], shares: &[f64]) -> Result<Vec<Tensor>> {
        let mut losses = Vec::with_capacity(batches.len());
        for (i, (batch, share)) in batches.iter().zip(shares).enumerate() {
            losses.push(match &self.ranks {
                Some(Ranks::Copies(copies)) if i + 1 < batches.len() => {
                    copies.accumulate(|| self.pass(batch, *share))?
                }
                _ => self.pass(batch, *share)?,
            });
            if let Some(Ranks::Sharded(parts)) = &self.ranks {
                parts.synchronize()?;
            }
        }
        if let Some(Ranks::Copies(copies)) = &self.ranks {
            copies.synchronize()?;
        }
        match &mut self.scaler {
            Some(scaler) => {
                scaler.step(self.optimizer.as_mut())?;
                scaler.update()?;
            }
            None => self.optimizer.step()?,
        }
        Ok(losses)
    }

    /// True if each rank has a part of the model, so that every rank runs the same ops.
    pub fn is_in_parts(&self) -> bool {
        matches!(self.ranks, Some(Ranks::Sharded(_)))
    }

    /// Copies of the weights; rank 0 alone has them of a model in parts. Every rank calls it.
    pub fn weights(&self) -> Result<Checkpoint> {
        match &self.ranks {
            Some(Ranks::Sharded(parts)) => Ok(Checkpoint { model: parts.state_dict()?, ..Checkpoint::new() }),
            _ => Checkpoint::new().with_model(self.model),
        }
    }

    /// Takes back the weights of [`weights`](Learner::weights), on every rank.
    pub fn restore(&self, weights: &Checkpoint) -> Result<()> {
        match &self.ranks {
            Some(Ranks::Sharded(parts)) => parts.load_from_first(&weights.model),
            _ => weights.restore_model(self.model),
        }
    }

    /// Gives every rank the buffers of rank 0.
    pub fn broadcast_buffers(&self) -> Result<()> {
        match &self.ranks {
            Some(Ranks::Copies(copies)) => copies.broadcast_buffers(),
            Some(Ranks::Sharded(parts)) => parts.broadcast_buffers(),
            None => Ok(()),
        }
    }

    /// Runs `f` with the model in evaluation, outside of the tape.
    pub fn evaluating<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        self.model.eval();
        let result = no_grad(f);
        self.model.train();
        result
    }
}

/// A learner that the run and its captured step have together. They take turns: a lock is never waited for.
pub(crate) struct Shared<'a, M: ?Sized, B, P>(Arc<Mutex<Learner<'a, M, B, P>>>);

impl<'a, M: ?Sized, B, P> Shared<'a, M, B, P> {
    pub fn new(learner: Learner<'a, M, B, P>) -> Self {
        Shared(Arc::new(Mutex::new(learner)))
    }

    /// The learner; also after a panic of the model, which leaves it as an error would.
    pub fn lock(&self) -> MutexGuard<'_, Learner<'a, M, B, P>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: ?Sized, B, P> Clone for Shared<'_, M, B, P> {
    fn clone(&self) -> Self {
        Shared(self.0.clone())
    }
}

/// The shapes and dtypes of a batch's tensors.
type Signature = Vec<(Vec<usize>, DType)>;

fn signature<B: Tensors>(batches: &[B]) -> Signature {
    batches.iter().flat_map(Tensors::tensors).map(|t| (t.dims().to_vec(), t.dtype())).collect()
}

/// A step of batches, and their losses.
type LossStep<'a, B> = Step<'a, Vec<B>, Vec<Tensor>>;

/// Steps that are replayed where the device can. Batches of other shapes than the first are computed plainly, on all ranks if on one.
pub(crate) struct Captured<'a, M: ?Sized, B, P> {
    learner: Shared<'a, M, B, P>,
    step: Option<(Signature, LossStep<'a, B>)>,
    /// The number of batches in a full step, and the mean over the ranks of their samples.
    full: (usize, f64),
    is_captured: bool,
    group: Group,
}

impl<'a, M: Module + ?Sized + 'a, B: Tensors + 'a, P: 'a> Captured<'a, M, B, P> {
    pub fn new(
        learner: Shared<'a, M, B, P>,
        full: (usize, f64),
        is_captured: bool,
        group: Group,
    ) -> Captured<'a, M, B, P> {
        Captured { learner, step: None, full, is_captured, group }
    }

    /// One step. `sizes` are the numbers of samples of the batches, `whole` is the mean over the ranks of their sum. `steps` is the number of
    /// steps with this one. Returns the losses of the batches.
    pub fn run(&mut self, batches: Vec<B>, sizes: &[usize], whole: f64, steps: u64) -> Result<Vec<Tensor>> {
        let shares: Vec<f64> = sizes.iter().map(|n| *n as f64 / whole).collect();
        if !self.is_captured || (batches.len(), whole) != self.full {
            return self.learner.lock().step(&batches, &shares);
        }
        let signature = signature(&batches);
        let is_other = self.step.as_ref().is_some_and(|(known, _)| *known != signature);
        let is_other = if self.group.size() > 1 { self.group.any(is_other)? } else { is_other };
        if is_other {
            return self.learner.lock().step(&batches, &shares);
        }
        if self.step.is_none() {
            self.step = Some((signature, self.captured(shares)?));
        }
        let Some((_, step)) = &mut self.step else { return Err(Error::value("trainer", "there is no step")) };
        let losses = step.run(batches)?;
        if let Some(Ranks::Copies(copies)) = &self.learner.lock().ranks {
            copies.check_after(steps)?;
        }
        Ok(losses)
    }

    fn captured(&self, shares: Vec<f64>) -> Result<LossStep<'a, B>> {
        let learner = self.learner.clone();
        let device = self.learner.lock().device()?;
        Ok(device.capture(move |batches: Vec<B>| learner.lock().step(&batches, &shares)))
    }
}
