//! NAdam.

use super::engine::{Engine, Named, Rule, Step};
use super::{Group, Grouped, Optimizer, Scaling, optimizer, options};
use crate::StateDict;
use crate::number::{FLAG, Range};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Result, Tensor};

/// NAdam: [`Adam`](super::Adam) with Nesterov's momentum, which grows from half of beta1 to beta1. Rate 2e-3, betas 0.9 and 0.999, eps
/// 1e-8, momentum decay 4e-3. Weight decay (0) is added to the gradient. Dozat 2016, ICLR workshop; as PyTorch's NAdam.
pub struct Nadam(Engine<NadamRule>);

optimizer!(Nadam of NadamRule, lr 2e-3, weight_decay 0.0, rule NadamRule { beta1: 0.9, beta2: 0.999, eps: 1e-8, momentum_decay: 4e-3, is_decoupled: false });

options!(Nadam {
    /// The decay rates of the two means, 0 to below 1.
    betas(beta1: f64, beta2: f64) |rule| (rule.beta1, rule.beta2) = (beta1, beta2);
    /// Added to the root, at least 0.
    eps(eps: f64) |rule| rule.eps = eps;
    /// Weight decay shrinks the parameters, as [`AdamW`](super::AdamW)'s, and is not added to the gradient.
    decoupled_weight_decay() |rule| rule.is_decoupled = true;
    /// The momentum of step t is `beta1 (1 - 0.96^(t decay) / 2)`. At least 0.
    momentum_decay(decay: f64) |rule| rule.momentum_decay = decay;
});

#[derive(Clone)]
pub struct NadamRule {
    beta1: f64,
    beta2: f64,
    eps: f64,
    momentum_decay: f64,
    is_decoupled: bool,
}

impl Rule for NadamRule {
    const NAME: &'static str = "nadam";

    fn fields(&mut self) -> Vec<Named<'_>> {
        let NadamRule { beta1, beta2, eps, momentum_decay, is_decoupled } = self;
        let all: [Named<'_>; 5] = [
            ("beta1", beta1, Range::Rate),
            ("beta2", beta2, Range::Rate),
            ("eps", eps, Range::AtLeast0),
            ("momentum_decay", momentum_decay, Range::AtLeast0),
            ("decoupled_weight_decay", is_decoupled, FLAG),
        ];
        all.into()
    }

    fn states(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    fn kept(&self) -> &'static [(&'static str, f64)] {
        &[("mu_product", 1.0)]
    }

    fn prepare(&self, weight_decay: f64) -> (Pointwise, Vec<f64>) {
        let apart = if self.is_decoupled { weight_decay } else { 0.0 };
        (Pointwise::NadamPrepare, vec![apart, self.beta1, self.beta2.ln(), self.momentum_decay * 0.96f64.ln()])
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        let [_, of_gradient, of_mean, correction, shrink, scale] = step.numbers.named();
        let in_gradient = if self.is_decoupled { 0.0 } else { step.weight_decay };
        let attributes = [step.limit, in_gradient, 1.0 - self.beta1, self.beta2, 1.0 - self.beta2, self.eps];
        let shared = [of_gradient, of_mean, correction, shrink, scale, step.found_inf];
        step.each(Pointwise::NadamStep, &attributes, &shared)
    }
}
