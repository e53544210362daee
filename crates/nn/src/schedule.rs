//! Learning rates as functions of the step. A resumed run needs only its step.

use crate::number::{Checks, Range};
use isograd_core::{DType, Result};
use std::f64::consts::PI;

/// A learning rate for every step, counted from 0.
pub trait Schedule: Send + Sync {
    /// The rate of this step. Errors: `Attr` for a field of the schedule out of its range.
    fn lr(&self, step: u64) -> Result<f64>;

    /// This schedule after a warm-up of `steps` steps.
    fn after_warm_up(self, steps: u64) -> WarmUp<Self>
    where
        Self: Sized,
    {
        WarmUp { steps, then: self }
    }
}

impl<S: Schedule + ?Sized> Schedule for Box<S> {
    fn lr(&self, step: u64) -> Result<f64> {
        (**self).lr(step)
    }
}

/// Checks that each number is in its range. Errors: `Attr`.
fn check(schedule: &'static str, fields: &[(&str, f64, Range)]) -> Result<()> {
    let checks = Checks { op: schedule, dtype: DType::F64 };
    fields.iter().try_for_each(|&(name, value, range)| checks.number(name, value, range))
}

/// A constant rate.
#[derive(Clone, Copy, Debug)]
pub struct Constant(pub f64);

impl Schedule for Constant {
    fn lr(&self, _: u64) -> Result<f64> {
        check("constant", &[("lr", self.0, Range::AtLeast0)])?;
        Ok(self.0)
    }
}

/// `lr gamma^(step / every)`, with the quotient rounded down. As PyTorch's StepLR.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The first rate.
    pub lr: f64,
    /// Steps with the same rate.
    pub every: u64,
    /// The factor between consecutive rates.
    pub gamma: f64,
}

impl Schedule for Step {
    fn lr(&self, step: u64) -> Result<f64> {
        check("step", &[("lr", self.lr, Range::AtLeast0), ("gamma", self.gamma, Range::AtLeast0)])?;
        Ok(self.lr * self.gamma.powf((step / self.every.max(1)) as f64))
    }
}

/// Half a cosine from `lr` at step 0 to `min` at step `steps`, and `min` from there on. Loshchilov, Hutter 2016, arXiv
/// 1608.03983.
#[derive(Clone, Copy, Debug)]
pub struct Cosine {
    /// The first rate.
    pub lr: f64,
    /// The last rate.
    pub min: f64,
    /// The step of the last rate.
    pub steps: u64,
}

impl Schedule for Cosine {
    fn lr(&self, step: u64) -> Result<f64> {
        check("cosine", &[("lr", self.lr, Range::AtLeast0), ("min", self.min, Range::AtLeast0)])?;
        Ok(self.min + (self.lr - self.min) * (1.0 + (PI * share(step, self.steps)).cos()) / 2.0)
    }
}

/// For `steps` steps the fraction `(step + 1) / steps` of the first rate of `then`, which counts from the end of the warm-up.
#[derive(Clone, Copy, Debug)]
pub struct WarmUp<S> {
    /// Steps of the warm-up.
    pub steps: u64,
    /// The schedule after the warm-up.
    pub then: S,
}

impl<S: Schedule> Schedule for WarmUp<S> {
    fn lr(&self, step: u64) -> Result<f64> {
        match step.checked_sub(self.steps) {
            Some(after) => self.then.lr(after),
            None => Ok(self.then.lr(0)? * (step + 1) as f64 / self.steps as f64),
        }
    }
}

/// Rises from `max / start_divisor` to `max` in the fraction `rise` of the steps, then falls to the first rate over `end_divisor`,
/// both along half a cosine. The last rate is kept. As PyTorch's OneCycleLR with two phases. Smith, Topin 2017, arXiv 1708.07120.
#[derive(Clone, Copy, Debug)]
pub struct OneCycle {
    /// The highest rate.
    pub max: f64,
    /// The number of all steps.
    pub steps: u64,
    /// The fraction of steps in which the rate rises; 0.3 in PyTorch.
    pub rise: f64,
    /// 25 in PyTorch.
    pub start_divisor: f64,
    /// 1e4 in PyTorch.
    pub end_divisor: f64,
}

impl OneCycle {
    /// With PyTorch's defaults.
    pub fn new(max: f64, steps: u64) -> OneCycle {
        OneCycle { max, steps, rise: 0.3, start_divisor: 25.0, end_divisor: 1e4 }
    }
}

impl Schedule for OneCycle {
    fn lr(&self, step: u64) -> Result<f64> {
        check(
            "one_cycle",
            &[
                ("max", self.max, Range::AtLeast0),
                ("rise", self.rise, Range::Share),
                ("start_divisor", self.start_divisor, Range::Above(0.0)),
                ("end_divisor", self.end_divisor, Range::Above(0.0)),
            ],
        )?;
        let first = self.max / self.start_divisor;
        let peak = self.rise * self.steps as f64 - 1.0;
        let end = self.steps.saturating_sub(1) as f64;
        let between = |from: f64, to: f64, share: f64| to + (from - to) * (1.0 + (PI * share).cos()) / 2.0;
        let step = (step as f64).min(end);
        Ok(if step <= peak {
            between(first, self.max, if peak > 0.0 { step / peak } else { 1.0 })
        } else {
            let share = if end > peak { (step - peak) / (end - peak) } else { 1.0 };
            between(self.max, first / self.end_divisor, share)
        })
    }
}

/// The elapsed fraction of `steps`, 0 to 1.
fn share(step: u64, steps: u64) -> f64 {
    if step >= steps { 1.0 } else { step as f64 / steps as f64 }
}
