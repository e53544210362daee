//! The state of a run that is not tensors.

use isograd_core::{Result, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The better of two values of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The lower one, as for a loss.
    Lowest,
    /// The higher one, as for an accuracy.
    Highest,
}

impl Goal {
    /// True if `value` is better than `known`. No number is better than NaN.
    pub(crate) fn is_better(self, value: f64, known: f64) -> bool {
        match self {
            Goal::Lowest => value < known || known.is_nan() && !value.is_nan(),
            Goal::Highest => value > known || known.is_nan() && !value.is_nan(),
        }
    }
}

/// The results of one epoch, or of a part of one that ends with a validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// The number of the epoch, counted from 1.
    pub epoch: u64,
    /// Steps of the optimizer so far.
    pub steps: u64,
    /// The mean loss over the training samples since the results before, each at its step.
    pub train_loss: f64,
    /// The mean loss over the validation samples after the epoch, with a validation loader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// The metrics over the validation samples, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// The learning rate of the last step.
    pub learning_rate: f64,
    /// Seconds since the start of the run, without interruptions.
    pub seconds: f64,
}

/// An observer of a run's steps and epochs: [`Trainer::logger`](crate::Trainer::logger). An error ends the run.
pub trait Logger: Send {
    /// A step was taken. Its losses, one a batch, are scalars on the device; reading them waits for it.
    fn step(&mut self, _progress: &Progress, _losses: &[Tensor]) -> Result<()> {
        Ok(())
    }

    /// An epoch has ended, or a part of one with a validation.
    fn epoch(&mut self, _epoch: &Epoch) -> Result<()> {
        Ok(())
    }
}

/// The progress of a run, which a checkpoint keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Progress {
    /// Epochs that are finished.
    pub epoch: u64,
    /// Batches of the current epoch that are finished.
    pub batch: usize,
    /// The sum of the losses since the last results, weighted by the sizes of the batches.
    pub loss_sum: f64,
    /// Samples since the last results.
    pub samples: u64,
    /// Steps of the optimizer.
    pub steps: u64,
    /// Seconds spent on this run so far, before and after interruptions.
    pub seconds: f64,
    /// The results of finished epochs, and of their parts that ended with a validation.
    pub history: Vec<Epoch>,
    /// The index of the best epoch in `history`.
    pub best: Option<usize>,
}

impl Progress {
    /// The mean loss since the last results.
    pub fn mean_loss(&self) -> f64 {
        self.loss_sum / self.samples as f64
    }

    /// Adds results; the next training loss begins after them, and so does the next epoch of `batches` batches if this one is finished.
    pub(crate) fn add(&mut self, epoch: Epoch, batches: usize) {
        (self.loss_sum, self.samples) = (0.0, 0);
        self.history.push(epoch);
        if self.batch == batches {
            (self.epoch, self.batch) = (self.epoch + 1, 0);
        }
    }
}
