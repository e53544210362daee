//! Adamax.

use super::engine::{Engine, Named, Rule, Step};
use super::{Group, Grouped, Optimizer, Scaling, optimizer, options};
use crate::StateDict;
use crate::number::Range;
use isograd_core::pointwise::Pointwise;
use isograd_core::{Result, Tensor};

/// Adamax: the step is the mean of the gradients over the largest gradient, which fades. Rate 2e-3, betas 0.9 and 0.999, eps 1e-8.
/// Weight decay (0) is added to the gradient. Kingma, Ba 2014, arXiv 1412.6980, section 7.1; as PyTorch's Adamax.
pub struct Adamax(Engine<AdamaxRule>);

optimizer!(Adamax of AdamaxRule, lr 2e-3, weight_decay 0.0, rule AdamaxRule { beta1: 0.9, beta2: 0.999, eps: 1e-8 });

options!(Adamax {
    /// The decay rates of the mean and of the largest gradient, 0 to below 1.
    betas(beta1: f64, beta2: f64) |rule| (rule.beta1, rule.beta2) = (beta1, beta2);
    /// Added to the size of a gradient, at least 0.
    eps(eps: f64) |rule| rule.eps = eps;
});

#[derive(Clone)]
pub struct AdamaxRule {
    beta1: f64,
    beta2: f64,
    eps: f64,
}

impl Rule for AdamaxRule {
    const NAME: &'static str = "adamax";

    fn fields(&mut self) -> Vec<Named<'_>> {
        let AdamaxRule { beta1, beta2, eps } = self;
        let all: [Named<'_>; 3] =
            [("beta1", beta1, Range::Rate), ("beta2", beta2, Range::Rate), ("eps", eps, Range::AtLeast0)];
        all.into()
    }

    fn states(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_inf"]
    }

    fn prepare(&self, _weight_decay: f64) -> (Pointwise, Vec<f64>) {
        (Pointwise::AdamPrepare, vec![0.0, self.beta1.ln(), self.beta2.ln()])
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        let [step_size, _, _, scale] = step.numbers.named();
        let attributes = [step.limit, step.weight_decay, 1.0 - self.beta1, self.beta2, self.eps];
        step.each(Pointwise::AdamaxStep, &attributes, &[step_size, scale, step.found_inf])
    }
}
