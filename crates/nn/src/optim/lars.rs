//! LARS.

use super::engine::{Engine, Rule, Step, check_at_least_0};
use super::{Group, Optimizer, Scaling, optimizer};
use crate::StateDict;
use isograd_core::ops::{Update, update_each_, update_each_norms_};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Result, Tensor};

/// Layer-wise adaptive rates: SGD with momentum whose rate is, for each parameter, multiplied by its trust ratio, `trust |p| /
/// (|g| + weight_decay |p| + eps)`, which is 1 if a norm is 0. Rate 1e-3, momentum 0.9, trust 1e-3, eps 1e-8; weight decay
/// (1e-4) is added to the gradient. You, Gitman, Ginsburg 2017, arXiv 1708.03888.
pub struct Lars(Engine<LarsRule>);

optimizer!(Lars, lr 1e-3, weight_decay 1e-4, rule LarsRule { momentum: 0.9, trust: 1e-3, eps: 1e-8, nesterov: false });

impl Lars {
    /// `b = momentum b + u` takes the place of the step u. At least 0.
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.0.rule.momentum = momentum;
        self
    }

    /// The factor of the trust ratio, at least 0.
    pub fn trust(mut self, trust: f64) -> Self {
        self.0.rule.trust = trust;
        self
    }

    /// Added to the divisor of the trust ratio, at least 0.
    pub fn eps(mut self, eps: f64) -> Self {
        self.0.rule.eps = eps;
        self
    }

    /// `u + momentum b` takes the place of b.
    pub fn nesterov(mut self) -> Self {
        self.0.rule.nesterov = true;
        self
    }
}

struct LarsRule {
    momentum: f64,
    trust: f64,
    eps: f64,
    nesterov: bool,
}

impl Rule for LarsRule {
    const NAME: &'static str = "lars";
    const HAS_TRUST_RATIO: bool = true;

    fn check(&self) -> Result<()> {
        check_at_least_0(Self::NAME, &[("momentum", self.momentum), ("trust", self.trust), ("eps", self.eps)])
    }

    fn states(&self) -> &'static [&'static str] {
        &["momentum_buffer"]
    }

    fn prepare(&self, _weight_decay: f64) -> (Pointwise, Vec<f64>) {
        (Pointwise::SgdPrepare, Vec::new())
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        let of = |targets, inputs, numbers| Update { targets, inputs, numbers };
        let norms = step.norms(|| {
            let sets: Vec<_> = step.members.iter().map(|m| of(vec![], vec![m.parameter, m.gradient], vec![])).collect();
            update_each_norms_(Self::NAME, Pointwise::LarsNorms, &sets, &[&step.numbers.prepared[0]], &[])
        })?;
        let sets = step.members.iter().zip(&norms);
        let sets = sets.map(|(m, norms)| of(vec![m.parameter, &m.states[0]], vec![m.gradient], norms.iter().collect()));
        let nesterov = if self.nesterov { 1.0 } else { 0.0 };
        let attributes = [step.weight_decay, self.momentum, self.trust, self.eps, nesterov];
        update_each_("lars_step", Pointwise::LarsStep, &sets.collect::<Vec<_>>(), &step.rated(), &attributes)
    }
}
