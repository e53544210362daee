//! Rprop.

use super::engine::{Engine, Named, Rule, Step};
use super::{Group, Grouped, Optimizer, Scaling, optimizer, options};
use crate::StateDict;
use crate::number::Range;
use isograd_core::pointwise::Pointwise;
use isograd_core::{Error, Result, Tensor};

/// Rprop, for gradients of all data: each element has a step of its own size, which grows (1.2) while the sign of its gradient stays
/// and shrinks (0.5) when it changes. The rate, 1e-2, is the first size. Weight decay (0) is added to the gradient. Riedmiller, Braun
/// 1993, ICNN; as PyTorch's Rprop.
pub struct Rprop(Engine<RpropRule>);

optimizer!(Rprop of RpropRule, lr 1e-2, weight_decay 0.0, rule RpropRule { shrink: 0.5, grow: 1.2, least: 1e-6, most: 50.0 });

options!(Rprop {
    /// The factors of a step's size after a change of sign, between 0 and 1, and without one, above 1.
    etas(shrink: f64, grow: f64) |rule| (rule.shrink, rule.grow) = (shrink, grow);
    /// The smallest and the largest size of a step.
    step_sizes(least: f64, most: f64) |rule| (rule.least, rule.most) = (least, most);
});

#[derive(Clone)]
pub struct RpropRule {
    shrink: f64,
    grow: f64,
    least: f64,
    most: f64,
}

impl Rule for RpropRule {
    const NAME: &'static str = "rprop";

    fn check(&self) -> Result<()> {
        match self.least <= self.most {
            true => Ok(()),
            false => Err(Error::attr(Self::NAME, format!("sizes of {} to {} are none", self.least, self.most))),
        }
    }

    fn fields(&mut self) -> Vec<Named<'_>> {
        let RpropRule { shrink, grow, least, most } = self;
        let all: [Named<'_>; 4] = [
            ("eta_minus", shrink, Range::Between0And1),
            ("eta_plus", grow, Range::Above(1.0)),
            ("step_min", least, Range::AtLeast0),
            ("step_max", most, Range::AtLeast0),
        ];
        all.into()
    }

    fn states(&self) -> &'static [&'static str] {
        &["prev", "step_size"]
    }

    fn prepare(&self, _weight_decay: f64) -> (Pointwise, Vec<f64>) {
        (Pointwise::SgdPrepare, Vec::new())
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        let shared: Vec<&Tensor> = step.rated().into_iter().chain([&step.numbers.steps]).collect();
        let attributes = [step.limit, step.weight_decay, self.shrink, self.grow, self.least, self.most];
        step.each(Pointwise::RpropStep, &attributes, &shared)
    }
}
