//! Learning rates as functions of the step, so that a resumed run needs nothing but its step.

use std::f64::consts::PI;

/// A learning rate for every step, counted from 0.
pub trait Schedule: Send + Sync {
    /// The rate of this step.
    fn lr(&self, step: u64) -> f64;
}

/// Always the same.
#[derive(Clone, Copy, Debug)]
pub struct Constant(pub f64);

impl Schedule for Constant {
    fn lr(&self, _: u64) -> f64 {
        self.0
    }
}

/// `lr gamma^(step / every)`, with the quotient rounded down.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The first rate.
    pub lr: f64,
    /// Steps at one rate.
    pub every: u64,
    /// The factor between rates.
    pub gamma: f64,
}

impl Schedule for Step {
    fn lr(&self, step: u64) -> f64 {
        self.lr * self.gamma.powf((step / self.every.max(1)) as f64)
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
    /// Steps until then.
    pub steps: u64,
}

impl Schedule for Cosine {
    fn lr(&self, step: u64) -> f64 {
        self.min + (self.lr - self.min) * (1.0 + (PI * share(step, self.steps)).cos()) / 2.0
    }
}

/// For `steps` steps a rising share `(step + 1) / steps` of what `then` says, which counts from the end of the warm-up.
#[derive(Clone, Copy, Debug)]
pub struct WarmUp<S> {
    /// Steps of the warm-up.
    pub steps: u64,
    /// What follows.
    pub then: S,
}

impl<S: Schedule> Schedule for WarmUp<S> {
    fn lr(&self, step: u64) -> f64 {
        match step.checked_sub(self.steps) {
            Some(after) => self.then.lr(after),
            None => self.then.lr(0) * (step + 1) as f64 / self.steps as f64,
        }
    }
}

/// Up from `max / 25` to `max` in the first 30 % of the steps and down to `max / 250,000` in the rest, both along half a
/// cosine. Smith, Topin 2017, arXiv 1708.07120.
#[derive(Clone, Copy, Debug)]
pub struct OneCycle {
    /// The highest rate.
    pub max: f64,
    /// Steps in all.
    pub steps: u64,
}

impl Schedule for OneCycle {
    fn lr(&self, step: u64) -> f64 {
        let (first, last) = (self.max / 25.0, self.max / 250_000.0);
        let peak = 0.3 * self.steps as f64 - 1.0;
        let end = self.steps.saturating_sub(1) as f64;
        let between = |from: f64, to: f64, share: f64| to + (from - to) * (1.0 + (PI * share).cos()) / 2.0;
        let step = (step as f64).min(end);
        if step <= peak {
            between(first, self.max, if peak > 0.0 { step / peak } else { 1.0 })
        } else {
            between(self.max, last, ((step - peak) / (end - peak).max(1.0)).min(1.0))
        }
    }
}

/// How much of `steps` is over, 0 to 1.
fn share(step: u64, steps: u64) -> f64 {
    if step >= steps { 1.0 } else { step as f64 / steps as f64 }
}
