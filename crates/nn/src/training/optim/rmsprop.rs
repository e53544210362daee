//! RMSprop.

use super::engine::{Engine, Named, Rule, Step};
use super::{Group, Grouped, Optimizer, Scaling, optimizer, options};
use crate::StateDict;
use crate::number::{FLAG, Range};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Result, Tensor};

/// RMSprop: the step is the gradient over the root of the mean of its squares. Rate 1e-2, alpha 0.99, eps 1e-8, no momentum, not
/// centered. Weight decay (0) is added to the gradient. Tieleman, Hinton 2012; Graves 2013, arXiv 1308.0850; as PyTorch's RMSprop.
pub struct RmsProp(Engine<RmsPropRule>);

optimizer!(RmsProp of RmsPropRule, lr 1e-2, weight_decay 0.0, rule RmsPropRule { alpha: 0.99, eps: 1e-8, momentum: 0.0, is_centered: false });

options!(RmsProp {
    /// The decay rate of the mean, 0 to below 1.
    alpha(alpha: f64) |rule| rule.alpha = alpha;
    /// Added to the root, at least 0.
    eps(eps: f64) |rule| rule.eps = eps;
    /// Replaces the step u, before the rate, by `b = momentum b + u`. At least 0. b is initially 0, also if the momentum is set
    /// after some steps.
    momentum(momentum: f64) |rule| rule.momentum = momentum;
    /// Uses the root of the variance: the mean of squares minus the square of the mean. The mean is initially 0, also if this is
    /// set after some steps.
    centered() |rule| rule.is_centered = true;
});

#[derive(Clone)]
pub struct RmsPropRule {
    alpha: f64,
    eps: f64,
    momentum: f64,
    is_centered: bool,
}

impl Rule for RmsPropRule {
    const NAME: &'static str = "rmsprop";

    fn fields(&mut self) -> Vec<Named<'_>> {
        let RmsPropRule { alpha, eps, momentum, is_centered } = self;
        let all: [Named<'_>; 4] = [
            ("alpha", alpha, Range::Rate),
            ("eps", eps, Range::AtLeast0),
            ("momentum", momentum, Range::AtLeast0),
            ("centered", is_centered, FLAG),
        ];
        all.into()
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
        let function = match (self.is_centered, self.momentum == 0.0) {
            (false, true) => Pointwise::RmsPropStep,
            (true, true) => Pointwise::RmsPropCenteredStep,
            (false, false) => Pointwise::RmsPropMomentumStep,
            (true, false) => Pointwise::RmsPropCenteredMomentumStep,
        };
        let attributes = [step.limit, step.weight_decay, self.alpha, 1.0 - self.alpha, self.eps, self.momentum];
        step.each(function, &attributes[..function.attributes()], &step.rated())
    }
}
