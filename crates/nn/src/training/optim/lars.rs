//! LARS.

use super::engine::{Engine, Named, Rule, Step};
use super::{Group, Grouped, Optimizer, Scaling, optimizer, options};
use crate::StateDict;
use crate::number::{FLAG, Range};
use isograd_core::ops::{Update, update_each_, update_each_norms_};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Result, Tensor};

/// LARS: SGD with momentum and layer-wise rates. The rate of each parameter is multiplied by its trust ratio, `trust |p| / (|g| +
/// weight_decay |p| + eps)`, or 1 if a norm is 0. Rate 1e-3, momentum 0.9, trust 1e-3, eps 1e-8. Weight decay (1e-4) is added to
/// the gradient. You, Gitman, Ginsburg 2017, arXiv 1708.03888.
pub struct Lars(Engine<LarsRule>);

optimizer!(Lars of LarsRule, lr 1e-3, weight_decay 1e-4, rule LarsRule {
    momentum: 0.9, trust: 1e-3, eps: 1e-8, nesterov: false, skips_trust_ratio: false
});

options!(Lars {
    /// Replaces the step u by `b = momentum b + u`. At least 0.
    momentum(momentum: f64) |rule| rule.momentum = momentum;
    /// The factor of the trust ratio, at least 0.
    trust(trust: f64) |rule| rule.trust = trust;
    /// Added to the divisor of the trust ratio, at least 0.
    eps(eps: f64) |rule| rule.eps = eps;
    /// Replaces b by `u + momentum b`.
    nesterov() |rule| rule.nesterov = true;
    /// Sets the trust ratio to 1, as is usual for groups of biases and norms.
    skip_trust_ratio() |rule| rule.skips_trust_ratio = true;
});

#[derive(Clone)]
pub struct LarsRule {
    momentum: f64,
    trust: f64,
    eps: f64,
    nesterov: bool,
    skips_trust_ratio: bool,
}

impl Rule for LarsRule {
    const NAME: &'static str = "lars";
    const IS_ELEMENTWISE: bool = false;

    fn fields(&mut self) -> Vec<Named<'_>> {
        let LarsRule { momentum, trust, eps, nesterov, skips_trust_ratio } = self;
        let all: [Named<'_>; 5] = [
            ("momentum", momentum, Range::AtLeast0),
            ("trust", trust, Range::AtLeast0),
            ("eps", eps, Range::AtLeast0),
            ("nesterov", nesterov, FLAG),
            ("skip_trust_ratio", skips_trust_ratio, FLAG),
        ];
        all.into()
    }

    fn states(&self) -> &'static [&'static str] {
        &["momentum_buffer"]
    }

    fn prepare(&self, _weight_decay: f64) -> (Pointwise, Vec<f64>) {
        (Pointwise::SgdPrepare, Vec::new())
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        let of = |targets, inputs, numbers| Update { targets, inputs, numbers };
        let norms = match self.skips_trust_ratio {
            true => step.no_norms(),
            false => {
                let sets = step.members.iter().map(|m| of(vec![], vec![m.parameter, m.gradient], vec![]));
                let [scale] = step.numbers.named();
                update_each_norms_(Pointwise::LarsNorms, &sets.collect::<Vec<_>>(), &[scale], &[step.limit])?
            }
        };
        let sets = step.members.iter().zip(&norms);
        let sets = sets.map(|(m, norms)| of(vec![m.parameter, &m.states[0]], vec![m.gradient], norms.iter().collect()));
        let nesterov = if self.nesterov { 1.0 } else { 0.0 };
        let attributes = [step.limit, step.weight_decay, self.momentum, self.trust, self.eps, nesterov];
        update_each_(Pointwise::LarsStep, &sets.collect::<Vec<_>>(), &step.rated(), &attributes)
    }
}
