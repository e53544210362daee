//! LAMB.

use super::engine::{Engine, Named, Rule, Step};
use super::{Group, Grouped, Optimizer, Scaling, optimizer, options};
use crate::StateDict;
use crate::number::{FLAG, Range};
use isograd_core::ops::{Update, update_each_, update_each_norms_};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Result, Tensor};

/// LAMB: Adam with layer-wise rates. r is Adam's direction plus weight decay; the step of a parameter is `lr min(|p| / |r|, 10) r`,
/// or `lr r` if a norm is 0. Rate 1e-3, betas 0.9 and 0.999, eps 1e-6, weight decay 0.01. You et al. 2020, arXiv 1904.00962.
pub struct Lamb(Engine<LambRule>);

optimizer!(Lamb of LambRule, lr 1e-3, weight_decay 0.01, rule LambRule {
    beta1: 0.9, beta2: 0.999, eps: 1e-6, max_trust: 10.0, corrects_bias: true, skips_trust_ratio: false
});

options!(Lamb {
    /// The decay rates of the two means, 0 to below 1.
    betas(beta1: f64, beta2: f64) |rule| (rule.beta1, rule.beta2) = (beta1, beta2);
    /// Added to the root, at least 0.
    eps(eps: f64) |rule| rule.eps = eps;
    /// The largest trust ratio, above 0; infinity means no bound.
    max_trust(bound: f64) |rule| rule.max_trust = bound;
    /// Uses the means without bias correction.
    no_bias_correction() |rule| rule.corrects_bias = false;
    /// Sets the trust ratio to 1, as is usual for groups of biases and norms.
    skip_trust_ratio() |rule| rule.skips_trust_ratio = true;
});

#[derive(Clone)]
pub struct LambRule {
    beta1: f64,
    beta2: f64,
    eps: f64,
    max_trust: f64,
    corrects_bias: bool,
    skips_trust_ratio: bool,
}

impl Rule for LambRule {
    const NAME: &'static str = "lamb";
    const IS_ELEMENTWISE: bool = false;

    fn fields(&mut self) -> Vec<Named<'_>> {
        let LambRule { beta1, beta2, eps, max_trust, corrects_bias, skips_trust_ratio } = self;
        let all: [Named<'_>; 6] = [
            ("beta1", beta1, Range::Rate),
            ("beta2", beta2, Range::Rate),
            ("eps", eps, Range::AtLeast0),
            ("max_trust", max_trust, Range::BoundAbove0),
            ("bias_correction", corrects_bias, FLAG),
            ("skip_trust_ratio", skips_trust_ratio, FLAG),
        ];
        all.into()
    }

    fn states(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    fn prepare(&self, _weight_decay: f64) -> (Pointwise, Vec<f64>) {
        let logarithms =
            [self.beta1, self.beta2].map(|beta| if self.corrects_bias { beta.ln() } else { f64::NEG_INFINITY });
        (Pointwise::LambPrepare, logarithms.to_vec())
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        let [correction1, correction2, scale] = step.numbers.named();
        let of = |targets, inputs, numbers| Update { targets, inputs, numbers };
        let decay = step.weight_decay;
        let attributes = [step.limit, decay, 1.0 - self.beta1, self.beta2, 1.0 - self.beta2, self.eps];
        let sets = step.members.iter().map(|m| of(m.states.iter().collect(), vec![m.parameter, m.gradient], vec![]));
        let shared = [correction1, correction2, scale, step.found_inf];
        let function = Pointwise::LambMoments;
        let norms = update_each_norms_(function, &sets.collect::<Vec<_>>(), &shared, &attributes)?;
        let norms = if self.skips_trust_ratio { step.no_norms() } else { norms };
        let sets = step.members.iter().zip(&norms);
        let sets = sets.map(|(m, norms)| of(vec![m.parameter], m.states.iter().collect(), norms.iter().collect()));
        let shared = [&step.numbers.lr, correction1, correction2, step.found_inf];
        let attributes = [decay, self.eps, self.max_trust];
        update_each_(Pointwise::LambStep, &sets.collect::<Vec<_>>(), &shared, &attributes)
    }
}
