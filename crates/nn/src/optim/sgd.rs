//! Stochastic gradient descent.

use super::engine::{Engine, Rule, Step, check_at_least_0};
use super::{Group, Optimizer, Scaling, optimizer};
use crate::StateDict;
use isograd_core::pointwise::Pointwise;
use isograd_core::{Error, Result, Tensor};

/// Stochastic gradient descent: `p -= lr g`, with momentum and Nesterov's variant. Rate 1e-3, no momentum, no weight
/// decay unless set. As PyTorch's SGD.
pub struct Sgd(Engine<SgdRule>);

optimizer!(Sgd, lr 1e-3, weight_decay 0.0, rule SgdRule::default());

impl Sgd {
    /// `b = momentum b + (1 - dampening) g` takes the gradient's place; the first step's b is g. At least 0.
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.0.rule.momentum = momentum;
        self
    }

    /// See [`momentum`](Sgd::momentum).
    pub fn dampening(mut self, dampening: f64) -> Self {
        self.0.rule.dampening = dampening;
        self
    }

    /// `g + momentum b` takes the gradient's place; needs a momentum and no dampening. Sutskever et al. 2013, ICML.
    pub fn nesterov(mut self) -> Self {
        self.0.rule.nesterov = true;
        self
    }
}

#[derive(Default)]
struct SgdRule {
    momentum: f64,
    dampening: f64,
    nesterov: bool,
}

impl Rule for SgdRule {
    const NAME: &'static str = "sgd";

    fn check(&self) -> Result<()> {
        check_at_least_0(Self::NAME, &[("momentum", self.momentum)])?;
        if self.dampening.is_nan() || (self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0)) {
            let got = format!("momentum is {} and dampening {}", self.momentum, self.dampening);
            return Err(Error::attr(Self::NAME, format!("{got}; nesterov needs a momentum and no dampening")));
        }
        Ok(())
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
            return step.each(Pointwise::SgdStep, &[step.weight_decay], &shared);
        }
        shared.push(&step.numbers.steps);
        let nesterov = if self.nesterov { 1.0 } else { 0.0 };
        let attributes = [step.weight_decay, self.momentum, self.dampening, nesterov];
        step.each(Pointwise::SgdMomentumUpdate, &attributes, &shared)
    }
}
