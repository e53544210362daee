//! Stochastic gradient descent.

use super::engine::{Engine, Named, Rule, Step};
use super::{Group, Grouped, Optimizer, Scaling, optimizer, options};
use crate::StateDict;
use crate::number::{FLAG, Range};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Error, Result, Tensor};

/// Stochastic gradient descent: `p -= lr g`, with optional momentum and Nesterov's variant. Rate 1e-3, no momentum, no weight
/// decay. As PyTorch's SGD.
pub struct Sgd(Engine<SgdRule>);

optimizer!(Sgd of SgdRule, lr 1e-3, weight_decay 0.0, rule SgdRule::default());

options!(Sgd {
    /// Replaces the gradient by `b = momentum b + (1 - dampening) g`; in the first step b is g. At least 0. If it is set after some
    /// steps, the momentum and the step count start with the next step.
    momentum(momentum: f64) |rule| rule.momentum = momentum;
    /// See [`momentum`](Sgd::momentum).
    dampening(dampening: f64) |rule| rule.dampening = dampening;
    /// Replaces the gradient by `g + momentum b`. Needs a momentum and no dampening. Sutskever et al. 2013, ICML.
    nesterov() |rule| rule.nesterov = true;
});

#[derive(Clone, Default)]
pub struct SgdRule {
    momentum: f64,
    dampening: f64,
    nesterov: bool,
}

impl Rule for SgdRule {
    const NAME: &'static str = "sgd";
    const COUNTS_WITH_STATES: bool = true;

    fn check(&self) -> Result<()> {
        if self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0) {
            let got = format!("momentum is {} and dampening {}", self.momentum, self.dampening);
            return Err(Error::attr(Self::NAME, format!("{got}; nesterov needs a momentum and no dampening")));
        }
        Ok(())
    }

    fn fields(&mut self) -> Vec<Named<'_>> {
        let SgdRule { momentum, dampening, nesterov } = self;
        let all: [Named<'_>; 3] = [
            ("momentum", momentum, Range::AtLeast0),
            ("dampening", dampening, Range::Finite),
            ("nesterov", nesterov, FLAG),
        ];
        all.into()
    }

    fn states(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum_buffer"] }
    }

    fn prepare(&self, _weight_decay: f64) -> (Pointwise, Vec<f64>) {
        (Pointwise::SgdPrepare, Vec::new())
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        let mut shared = step.rated();
        if self.momentum == 0.0 {
            return step.each(Pointwise::SgdStep, &[step.limit, step.weight_decay], &shared);
        }
        shared.push(&step.numbers.steps);
        let nesterov = if self.nesterov { 1.0 } else { 0.0 };
        let attributes = [step.limit, step.weight_decay, self.momentum, self.dampening, nesterov];
        step.each(Pointwise::SgdMomentumUpdate, &attributes, &shared)
    }
}
