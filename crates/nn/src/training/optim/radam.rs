//! RAdam.

use super::engine::{Engine, Named, Rule, Step};
use super::{Group, Grouped, Optimizer, Scaling, optimizer, options};
use crate::StateDict;
use crate::number::{FLAG, Range};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Error, Result, Tensor};

/// RAdam: [`Adam`](super::Adam) whose first steps do not divide by the mean of squares, and whose later ones are smaller while that mean
/// is uncertain. Rate 1e-3, betas 0.9 and 0.999, eps 1e-8. Weight decay (0) is added to the gradient. Liu et al. 2019, arXiv
/// 1908.03265; as PyTorch's RAdam.
pub struct Radam(Engine<RadamRule>);

optimizer!(Radam of RadamRule, lr 1e-3, weight_decay 0.0, rule RadamRule { beta1: 0.9, beta2: 0.999, eps: 1e-8, is_decoupled: false });

options!(Radam {
    /// The decay rates of the two means, 0 to below 1; the second is not 0.
    betas(beta1: f64, beta2: f64) |rule| (rule.beta1, rule.beta2) = (beta1, beta2);
    /// Added to the root, at least 0.
    eps(eps: f64) |rule| rule.eps = eps;
    /// Weight decay shrinks the parameters, as [`AdamW`](super::AdamW)'s, and is not added to the gradient.
    decoupled_weight_decay() |rule| rule.is_decoupled = true;
});

#[derive(Clone)]
pub struct RadamRule {
    beta1: f64,
    beta2: f64,
    eps: f64,
    is_decoupled: bool,
}

impl Rule for RadamRule {
    const NAME: &'static str = "radam";

    fn check(&self) -> Result<()> {
        match self.beta2 > 0.0 {
            true => Ok(()),
            false => Err(Error::attr(Self::NAME, format!("beta2 is {}, expected more than 0", self.beta2))),
        }
    }

    fn fields(&mut self) -> Vec<Named<'_>> {
        let RadamRule { beta1, beta2, eps, is_decoupled } = self;
        let all: [Named<'_>; 4] = [
            ("beta1", beta1, Range::Rate),
            ("beta2", beta2, Range::Rate),
            ("eps", eps, Range::AtLeast0),
            ("decoupled_weight_decay", is_decoupled, FLAG),
        ];
        all.into()
    }

    fn states(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    fn prepare(&self, weight_decay: f64) -> (Pointwise, Vec<f64>) {
        let apart = if self.is_decoupled { weight_decay } else { 0.0 };
        let most = 2.0 / (1.0 - self.beta2) - 1.0;
        (Pointwise::RadamPrepare, vec![apart, self.beta1.ln(), self.beta2.ln(), most])
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        let in_gradient = if self.is_decoupled { 0.0 } else { step.weight_decay };
        let attributes = [step.limit, in_gradient, 1.0 - self.beta1, self.beta2, 1.0 - self.beta2, self.eps];
        step.each(Pointwise::RadamStep, &attributes, &step.prepared())
    }
}
