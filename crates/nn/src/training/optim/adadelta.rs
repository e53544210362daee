//! Adadelta.

use super::engine::{Engine, Named, Rule, Step};
use super::{Group, Grouped, Optimizer, Scaling, optimizer, options};
use crate::StateDict;
use crate::number::Range;
use isograd_core::pointwise::Pointwise;
use isograd_core::{Result, Tensor};

/// Adadelta: the step is the gradient times the root mean square of past steps over that of past gradients. Rate 1, rho 0.9, eps 1e-6.
/// Weight decay (0) is added to the gradient. Zeiler 2012, arXiv 1212.5701; as PyTorch's Adadelta.
pub struct Adadelta(Engine<AdadeltaRule>);

optimizer!(Adadelta of AdadeltaRule, lr 1.0, weight_decay 0.0, rule AdadeltaRule { rho: 0.9, eps: 1e-6 });

options!(Adadelta {
    /// The decay rate of both means of squares, 0 to below 1.
    rho(rho: f64) |rule| rule.rho = rho;
    /// Added to both means, above 0.
    eps(eps: f64) |rule| rule.eps = eps;
});

#[derive(Clone)]
pub struct AdadeltaRule {
    rho: f64,
    eps: f64,
}

impl Rule for AdadeltaRule {
    const NAME: &'static str = "adadelta";

    fn fields(&mut self) -> Vec<Named<'_>> {
        let AdadeltaRule { rho, eps } = self;
        let all: [Named<'_>; 2] = [("rho", rho, Range::Rate), ("eps", eps, Range::Above(0.0))];
        all.into()
    }

    fn states(&self) -> &'static [&'static str] {
        &["square_avg", "acc_delta"]
    }

    fn prepare(&self, _weight_decay: f64) -> (Pointwise, Vec<f64>) {
        (Pointwise::SgdPrepare, Vec::new())
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        let attributes = [step.limit, step.weight_decay, self.rho, 1.0 - self.rho, self.eps];
        step.each(Pointwise::AdadeltaStep, &attributes, &step.rated())
    }
}
