//! RMSprop.

use super::engine::{Engine, Rule, Step, check_at_least_0, check_rate};
use super::{Group, Optimizer, Scaling, optimizer};
use crate::StateDict;
use isograd_core::pointwise::Pointwise;
use isograd_core::{Result, Tensor};

/// RMSprop: steps by the gradient over the root of the mean of its squares. Rate 1e-2, alpha 0.99, eps 1e-8, no momentum, not
/// centered; weight decay (0) is added to the gradient. Tieleman, Hinton 2012; Graves 2013, arXiv 1308.0850; as PyTorch's
/// RMSprop.
pub struct RmsProp(Engine<RmsPropRule>);

optimizer!(RmsProp, lr 1e-2, weight_decay 0.0, rule RmsPropRule { alpha: 0.99, eps: 1e-8, momentum: 0.0, is_centered: false });

impl RmsProp {
    /// The decay rate of the mean, 0 to below 1.
    pub fn alpha(mut self, alpha: f64) -> Self {
        self.0.rule.alpha = alpha;
        self
    }

    /// Added to the root, at least 0.
    pub fn eps(mut self, eps: f64) -> Self {
        self.0.rule.eps = eps;
        self
    }

    /// `b = momentum b + u` takes the place of u, which the rate multiplies. At least 0.
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.0.rule.momentum = momentum;
        self
    }

    /// Takes the root of the variance: the mean of the squares less the square of the mean.
    pub fn centered(mut self) -> Self {
        self.0.rule.is_centered = true;
        self
    }
}

struct RmsPropRule {
    alpha: f64,
    eps: f64,
    momentum: f64,
    is_centered: bool,
}

impl Rule for RmsPropRule {
    const NAME: &'static str = "rmsprop";

    fn check(&self) -> Result<()> {
        check_at_least_0(Self::NAME, &[("eps", self.eps), ("momentum", self.momentum)])?;
        check_rate(Self::NAME, "alpha", self.alpha)
    }

    fn states(&self) -> &'static [&'static str] {
        match (self.is_centered, self.momentum == 0.0) {
            (false, true) => &["square_avg"],
            (false, false) => &["square_avg", "momentum_buffer"],
            (true, true) => &["square_avg", "grad_avg"],
            (true, false) => &["square_avg", "grad_avg", "momentum_buffer"],
        }
    }

    fn prepare(&self, _weight_decay: f64) -> (Pointwise, Vec<f64>) {
        (Pointwise::SgdPrepare, Vec::new())
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        let row = match (self.is_centered, self.momentum == 0.0) {
            (false, true) => Pointwise::RmsPropStep,
            (true, true) => Pointwise::RmsPropCenteredStep,
            (false, false) => Pointwise::RmsPropMomentumStep,
            (true, false) => Pointwise::RmsPropCenteredMomentumStep,
        };
        let attributes = [step.weight_decay, self.alpha, 1.0 - self.alpha, self.eps, self.momentum];
        step.each(row, &attributes[..row.attributes()], &step.rated())
    }
}
