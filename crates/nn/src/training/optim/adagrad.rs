//! Adagrad.

use super::engine::{Engine, Named, Rule, Step};
use super::{Group, Grouped, Optimizer, Scaling, optimizer, options};
use crate::StateDict;
use crate::number::Range;
use isograd_core::pointwise::Pointwise;
use isograd_core::{Result, Tensor};

/// Adagrad: the step is the gradient over the root of the sum of its squares. Rate 1e-2, without decay; eps 1e-10. Weight decay (0)
/// is added to the gradient. Duchi, Hazan, Singer 2011, JMLR 12; as PyTorch's Adagrad.
pub struct Adagrad(Engine<AdagradRule>);

optimizer!(Adagrad of AdagradRule, lr 1e-2, weight_decay 0.0, rule AdagradRule { lr_decay: 0.0, initial_accumulator: 0.0, eps: 1e-10 });

options!(Adagrad {
    /// The rate of step t is `lr / (1 + (t - 1) lr_decay)`. At least 0.
    lr_decay(decay: f64) |rule| rule.lr_decay = decay;
    /// The initial value of the sums, at least 0.
    initial_accumulator(value: f64) |rule| rule.initial_accumulator = value;
    /// Added to the root, at least 0.
    eps(eps: f64) |rule| rule.eps = eps;
});

#[derive(Clone)]
pub struct AdagradRule {
    lr_decay: f64,
    initial_accumulator: f64,
    eps: f64,
}

impl Rule for AdagradRule {
    const NAME: &'static str = "adagrad";

    fn fields(&mut self) -> Vec<Named<'_>> {
        let AdagradRule { lr_decay, initial_accumulator, eps } = self;
        let all: [Named<'_>; 3] = [
            ("lr_decay", lr_decay, Range::AtLeast0),
            ("initial_accumulator", initial_accumulator, Range::AtLeast0),
            ("eps", eps, Range::AtLeast0),
        ];
        all.into()
    }

    fn states(&self) -> &'static [&'static str] {
        &["sum"]
    }

    fn initial(&self) -> f64 {
        self.initial_accumulator
    }

    fn prepare(&self, _weight_decay: f64) -> (Pointwise, Vec<f64>) {
        (Pointwise::AdagradPrepare, vec![self.lr_decay])
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        step.each(Pointwise::AdagradStep, &[step.limit, step.weight_decay, self.eps], &step.prepared())
    }
}
