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

impl Schedule for Box<dyn Schedule + '_> {
    fn lr(&self, step: u64) -> Result<f64> {
        (**self).lr(step)
    }
}

/// Any function of the step, as PyTorch's LambdaLR.
///
/// ```
/// # use isograd_nn::Schedule;
/// # fn main() -> isograd_core::Result<()> {
/// let inverse_root = |step: u64| 0.1 / ((step + 1) as f64).sqrt();
/// assert_eq!(inverse_root.lr(3)?, 0.05);
/// # Ok(())
/// # }
/// ```
impl<F: Fn(u64) -> f64 + Send + Sync> Schedule for F {
    fn lr(&self, step: u64) -> Result<f64> {
        let rate = self(step);
        check("schedule", &[("lr", rate, Range::AtLeast0)])?;
        Ok(rate)
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

/// `lr gamma^n` after n of these steps. As PyTorch's MultiStepLR.
#[derive(Clone, Debug)]
pub struct MultiStep {
    /// The first rate.
    pub lr: f64,
    /// The steps at which the rate falls.
    pub at: Vec<u64>,
    /// The factor between consecutive rates.
    pub gamma: f64,
}

impl Schedule for MultiStep {
    fn lr(&self, step: u64) -> Result<f64> {
        check("multi_step", &[("lr", self.lr, Range::AtLeast0), ("gamma", self.gamma, Range::AtLeast0)])?;
        Ok(self.lr * self.gamma.powi(self.at.iter().filter(|&&at| at <= step).count() as i32))
    }
}

/// `min + (lr - min) (1 - step / steps)^power`, and `min` from `steps` on. As PyTorch's PolynomialLR, where `min` is 0.
#[derive(Clone, Copy, Debug)]
pub struct Polynomial {
    /// The first rate.
    pub lr: f64,
    /// The last rate.
    pub min: f64,
    /// The step of the last rate.
    pub steps: u64,
    /// The exponent; 1 is a line.
    pub power: f64,
}

impl Schedule for Polynomial {
    fn lr(&self, step: u64) -> Result<f64> {
        let fields = [
            ("lr", self.lr, Range::AtLeast0),
            ("min", self.min, Range::AtLeast0),
            ("power", self.power, Range::AtLeast0),
        ];
        check("polynomial", &fields)?;
        let left = 1.0 - share(step, self.steps);
        Ok(if left == 0.0 { self.min } else { self.min + (self.lr - self.min) * left.powf(self.power) })
    }
}

/// Half a cosine from `lr` to `min` in `steps` steps, then again from `lr` in `factor` times as many, and so on. As PyTorch's
/// CosineAnnealingWarmRestarts. Loshchilov, Hutter 2016, arXiv 1608.03983.
#[derive(Clone, Copy, Debug)]
pub struct WarmRestarts {
    /// The first rate.
    pub lr: f64,
    /// The rate at the end of a period.
    pub min: f64,
    /// Steps of the first period.
    pub steps: u64,
    /// The ratio of consecutive periods; 1 in PyTorch.
    pub factor: u64,
}

impl Schedule for WarmRestarts {
    fn lr(&self, step: u64) -> Result<f64> {
        let (mut step, mut steps) = (step, self.steps.max(1));
        while step >= steps {
            // A factor of 1 has equal periods.
            if self.factor <= 1 {
                step %= steps;
                break;
            }
            step -= steps;
            steps = steps.saturating_mul(self.factor);
        }
        Cosine { lr: self.lr, min: self.min, steps }.lr(step)
    }
}

/// Schedules one after the other, each of which counts from its own first step. The last one has no end. As PyTorch's SequentialLR.
pub struct Chain<'a> {
    /// Schedules, and the number of steps of each.
    parts: Vec<(u64, Box<dyn Schedule + 'a>)>,
    last: Box<dyn Schedule + 'a>,
}

impl<'a> Chain<'a> {
    /// A chain of one schedule.
    pub fn new(last: impl Schedule + 'a) -> Chain<'a> {
        Chain { parts: Vec::new(), last: Box::new(last) }
    }

    /// Ends the last schedule after `steps` steps, and continues with `next`.
    pub fn then(mut self, steps: u64, next: impl Schedule + 'a) -> Chain<'a> {
        self.parts.push((steps, std::mem::replace(&mut self.last, Box::new(next))));
        self
    }
}

impl Schedule for Chain<'_> {
    fn lr(&self, step: u64) -> Result<f64> {
        let mut left = step;
        for (steps, part) in &self.parts {
            match left.checked_sub(*steps) {
                Some(after) => left = after,
                None => return part.lr(left),
            }
        }
        self.last.lr(left)
    }
}

/// A rate that falls when a loss has stopped falling. It depends on losses, not on the step: a resumed run restores [`Plateau`]. As
/// PyTorch's ReduceLROnPlateau.
#[derive(Clone, Copy, Debug)]
pub struct ReduceOnPlateau {
    /// The factor between consecutive rates; 0.1 in PyTorch.
    pub factor: f64,
    /// Observations without a better loss after which the rate stays; 10 in PyTorch.
    pub patience: u64,
    /// A better loss is below this share of the best: `best (1 - threshold)`; 1e-4 in PyTorch.
    pub threshold: f64,
    /// Observations after a fall that do not count; 0 in PyTorch.
    pub cooldown: u64,
    /// The smallest rate.
    pub min: f64,
    /// The rate, and the losses observed so far.
    pub state: Plateau,
}

/// The state of [`ReduceOnPlateau`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plateau {
    /// The rate.
    pub lr: f64,
    /// The best loss.
    pub best: f64,
    /// Observations since the best loss or the last fall.
    pub waited: u64,
    /// Observations left that do not count.
    pub cooling: u64,
}

impl ReduceOnPlateau {
    /// From this rate, with PyTorch's defaults.
    pub fn new(lr: f64) -> ReduceOnPlateau {
        let state = Plateau { lr, best: f64::INFINITY, waited: 0, cooling: 0 };
        ReduceOnPlateau { factor: 0.1, patience: 10, threshold: 1e-4, cooldown: 0, min: 0.0, state }
    }

    /// The rate after one more loss. A NaN is never better. Errors: `Attr` for a field out of its range.
    pub fn observe(&mut self, loss: f64) -> Result<f64> {
        check(
            "reduce_on_plateau",
            &[
                ("lr", self.state.lr, Range::AtLeast0),
                ("factor", self.factor, Range::Share),
                ("threshold", self.threshold, Range::AtLeast0),
                ("min", self.min, Range::AtLeast0),
            ],
        )?;
        let state = &mut self.state;
        if loss < state.best * (1.0 - self.threshold * state.best.signum()) {
            (state.best, state.waited) = (loss, 0);
        } else {
            state.waited += 1;
        }
        if state.cooling > 0 {
            state.cooling -= 1;
            state.waited = 0;
        }
        if state.waited > self.patience {
            state.lr = (state.lr * self.factor).max(self.min);
            (state.cooling, state.waited) = (self.cooldown, 0);
        }
        Ok(state.lr)
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
