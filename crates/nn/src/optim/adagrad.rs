//! Adagrad.

use super::engine::{Engine, Rule, Step, check_at_least_0};
use super::{Group, Optimizer, Scaling, optimizer};
use crate::StateDict;
use isograd_core::pointwise::Pointwise;
use isograd_core::{Result, Tensor};

/// Adagrad: steps by the gradient over the root of the sum of its squares. Rate 1e-2, which does not decay, eps 1e-10; weight
/// decay (0) is added to the gradient. Duchi, Hazan, Singer 2011, JMLR 12; as PyTorch's Adagrad.
pub struct Adagrad(Engine<AdagradRule>);

optimizer!(Adagrad, lr 1e-2, weight_decay 0.0, rule AdagradRule { lr_decay: 0.0, initial_accumulator: 0.0, eps: 1e-10 });

impl Adagrad {
    /// Step t has the rate `lr / (1 + (t - 1) lr_decay)`. At least 0.
    pub fn lr_decay(mut self, decay: f64) -> Self {
        self.0.rule.lr_decay = decay;
        self
    }

    /// What the sums start with, at least 0.
    pub fn initial_accumulator(mut self, value: f64) -> Self {
        self.0.rule.initial_accumulator = value;
        self
    }

    /// Added to the root, at least 0.
    pub fn eps(mut self, eps: f64) -> Self {
        self.0.rule.eps = eps;
        self
    }
}

struct AdagradRule {
    lr_decay: f64,
    initial_accumulator: f64,
    eps: f64,
}

impl Rule for AdagradRule {
    const NAME: &'static str = "adagrad";

    fn check(&self) -> Result<()> {
        let options =
            [("lr_decay", self.lr_decay), ("initial_accumulator", self.initial_accumulator), ("eps", self.eps)];
        check_at_least_0(Self::NAME, &options)
    }

    fn states(&self) -> &'static [&'static str] {
        &["sum"]
    }

    fn initial(&self) -> f64 {
        self.initial_accumulator
    }

    fn prepare(&self, _weight_decay: f64) -> (Pointwise, Vec<f64>) {
        (Pointwise::AdagradPrepare, vec![self.lr_decay])
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        step.each(Pointwise::AdagradStep, &[step.weight_decay, self.eps], &step.prepared())
    }
}
