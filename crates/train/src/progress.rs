//! The state of a run that is not tensors.

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

/// The results of one epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// The number of the epoch, counted from 1.
    pub epoch: u64,
    /// Steps of the optimizer so far.
    pub steps: u64,
    /// The mean loss over the epoch's training samples, each at its step.
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

/// The progress of a run, which a checkpoint keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Epochs that are finished.
    pub epoch: u64,
    /// Batches of the current epoch that are finished, and the sum of their losses weighted by their sizes.
    pub batch: usize,
    /// The sum of the losses of the current epoch, weighted by the sizes of the batches.
    pub loss_sum: f64,
    /// Samples of the current epoch so far.
    pub samples: u64,
    /// Steps of the optimizer.
    pub steps: u64,
    /// Seconds spent on this run so far, before and after interruptions.
    pub seconds: f64,
    /// The results of finished epochs.
    pub history: Vec<Epoch>,
    /// The index of the best epoch in `history`.
    pub best: Option<usize>,
}

impl Progress {
    /// The mean loss of the current epoch so far.
    pub fn mean_loss(&self) -> f64 {
        self.loss_sum / self.samples as f64
    }

    /// Begins the next epoch after one with these results.
    pub(crate) fn finish(&mut self, epoch: Epoch) {
        self.epoch += 1;
        (self.batch, self.loss_sum, self.samples) = (0, 0.0, 0);
        self.history.push(epoch);
    }
}
