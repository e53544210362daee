//! Averaged stochastic gradient descent.

use super::engine::{Engine, Named, Rule, Step};
use super::{Group, Grouped, Optimizer, Scaling, optimizer, options};
use crate::StateDict;
use crate::number::Range;
use isograd_core::pointwise::Pointwise;
use isograd_core::{Result, Tensor};

/// Stochastic gradient descent whose rate falls, with the mean of the parameters in the state `ax`. Step t has the rate
/// `lr / (1 + lambda lr (t - 1))^alpha`, and first shrinks the parameters by `1 - lambda` times this rate. Rate 1e-2, lambda 1e-4,
/// alpha 0.75; the mean begins after t0 = 1e6 steps. Weight decay (0) is added to the gradient. Polyak, Juditsky 1992, SIAM J. Control
/// Optim. 30; as PyTorch's ASGD.
pub struct Asgd(Engine<AsgdRule>);

optimizer!(Asgd of AsgdRule, lr 1e-2, weight_decay 0.0, rule AsgdRule { lambda: 1e-4, alpha: 0.75, start: 1e6 });

options!(Asgd {
    /// The decay of the parameters and of the rate, at least 0.
    lambda(lambda: f64) |rule| rule.lambda = lambda;
    /// The exponent of the rate, at least 0.
    alpha(alpha: f64) |rule| rule.alpha = alpha;
    /// The number of steps before the mean begins, at least 0.
    t0(steps: f64) |rule| rule.start = steps;
});

#[derive(Clone)]
pub struct AsgdRule {
    lambda: f64,
    alpha: f64,
    start: f64,
}

impl Rule for AsgdRule {
    const NAME: &'static str = "asgd";

    fn fields(&mut self) -> Vec<Named<'_>> {
        let AsgdRule { lambda, alpha, start } = self;
        let all: [Named<'_>; 3] =
            [("lambda", lambda, Range::AtLeast0), ("alpha", alpha, Range::AtLeast0), ("t0", start, Range::AtLeast0)];
        all.into()
    }

    fn states(&self) -> &'static [&'static str] {
        &["ax"]
    }

    fn prepare(&self, _weight_decay: f64) -> (Pointwise, Vec<f64>) {
        (Pointwise::AsgdPrepare, vec![self.lambda, self.alpha, self.start])
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        step.each(Pointwise::AsgdStep, &[step.limit, step.weight_decay, self.lambda], &step.prepared())
    }
}
