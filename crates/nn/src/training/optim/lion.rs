//! Lion.

use super::engine::{Engine, Named, Rule, Step};
use super::{Group, Grouped, Optimizer, Scaling, optimizer, options};
use crate::StateDict;
use crate::number::Range;
use isograd_core::pointwise::Pointwise;
use isograd_core::{Result, Tensor};

/// Lion: every element moves by the rate, in the direction of the sign of a mean of gradients. Rate 1e-4, betas 0.9 (of the direction)
/// and 0.99 (of the mean). Weight decay (0) shrinks the parameters by `lr decay`. Chen et al. 2023, arXiv 2302.06675.
pub struct Lion(Engine<LionRule>);

optimizer!(Lion of LionRule, lr 1e-4, weight_decay 0.0, rule LionRule { beta1: 0.9, beta2: 0.99 });

options!(Lion {
    /// The share of the mean in the direction, and the decay rate of the mean, 0 to below 1.
    betas(beta1: f64, beta2: f64) |rule| (rule.beta1, rule.beta2) = (beta1, beta2);
});

#[derive(Clone)]
pub struct LionRule {
    beta1: f64,
    beta2: f64,
}

impl Rule for LionRule {
    const NAME: &'static str = "lion";

    fn fields(&mut self) -> Vec<Named<'_>> {
        let LionRule { beta1, beta2 } = self;
        let all: [Named<'_>; 2] = [("beta1", beta1, Range::Rate), ("beta2", beta2, Range::Rate)];
        all.into()
    }

    fn states(&self) -> &'static [&'static str] {
        &["exp_avg"]
    }

    fn prepare(&self, _weight_decay: f64) -> (Pointwise, Vec<f64>) {
        (Pointwise::SgdPrepare, Vec::new())
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        let LionRule { beta1, beta2 } = *self;
        let attributes = [step.limit, step.weight_decay, beta1, 1.0 - beta1, beta2, 1.0 - beta2];
        step.each(Pointwise::LionStep, &attributes, &step.rated())
    }
}
