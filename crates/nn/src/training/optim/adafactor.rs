//! Adafactor.

use super::engine::{Engine, Moved, Named, Rule, Step};
use super::{Group, Grouped, Optimizer, Scaling, optimizer, options};
use crate::StateDict;
use crate::number::Range;
use isograd_core::pointwise::Pointwise;
use isograd_core::{DType, Dims, Result, Shape, Tensor};

/// Adafactor: the mean of squared gradients of a matrix `[.., M, N]` is the product of the means of its rows and of its columns, which
/// are all that is kept of it: `row_var: [.., M, 1]` and `col_var: [.., 1, N]`. For a vector or a number, `row_var` has all means. The
/// step is relative to the size of the parameter. Rate 1e-2, which is also limited by `1 / sqrt(t)`; the weight of a new square in step
/// t is `t^-0.8`. Weight decay (0) shrinks the parameters by `lr decay`. Shazeer, Stern 2018, arXiv 1804.04235; as PyTorch's Adafactor.
pub struct Adafactor(Engine<AdafactorRule>);

optimizer!(Adafactor of AdafactorRule, lr 1e-2, weight_decay 0.0, rule AdafactorRule {
    beta2_decay: -0.8, eps1: 0.0, eps2: 1e-3, threshold: 1.0
});

options!(Adafactor {
    /// The exponent of the weight of a new square, at most 0.
    beta2_decay(exponent: f64) |rule| rule.beta2_decay = exponent;
    /// The least mean of squares is `eps1^2`, by default that of the roundoff of the dtype; the least size of a parameter is `eps2`.
    eps(eps1: f64, eps2: f64) |rule| (rule.eps1, rule.eps2) = (eps1, eps2);
    /// The largest root mean square of a step before the rate, above 0.
    clip_threshold(threshold: f64) |rule| rule.threshold = threshold;
});

#[derive(Clone)]
pub struct AdafactorRule {
    beta2_decay: f64,
    /// 0 for the roundoff of the dtype.
    eps1: f64,
    eps2: f64,
    threshold: f64,
}

impl Rule for AdafactorRule {
    const NAME: &'static str = "adafactor";
    const IS_ELEMENTWISE: bool = false;

    fn fields(&mut self) -> Vec<Named<'_>> {
        let AdafactorRule { beta2_decay, eps1, eps2, threshold } = self;
        let all: [Named<'_>; 4] = [
            ("beta2_decay", beta2_decay, Range::AtMost0),
            ("eps1", eps1, Range::AtLeast0),
            ("eps2", eps2, Range::AtLeast0),
            ("clip_threshold", threshold, Range::Above(0.0)),
        ];
        all.into()
    }

    fn states(&self) -> &'static [&'static str] {
        &["row_var", "col_var"]
    }

    fn shape_of(&self, state: &str, parameter: &Tensor) -> Shape {
        let mut dims = Dims::from_slice(parameter.dims());
        match (dims.len(), state) {
            (0 | 1, "col_var") => dims.truncate(0),
            (0 | 1, _) => {}
            (rank, "col_var") => dims[rank - 2] = 1,
            (rank, _) => dims[rank - 1] = 1,
        }
        Shape::from(dims)
    }

    fn prepare(&self, _weight_decay: f64) -> (Pointwise, Vec<f64>) {
        (Pointwise::SgdPrepare, Vec::new())
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        step.members.iter().filter(|m| m.parameter.numel() > 0).try_for_each(|m| self.update_one(step, m))
    }
}

impl AdafactorRule {
    fn update_one(&self, step: &Step<'_>, member: &Moved<'_>) -> Result<()> {
        let (lr, t) = (&step.numbers.lr, &step.numbers.steps);
        let [scale] = step.numbers.named();
        let acc = lr.dtype();
        let (p, states) = (member.parameter.detach().cast(acc)?, member.states);
        let g = member.gradient.cast(acc)?.mul(scale)?;
        let g = if step.limit.is_finite() { g.clamp(Some((-step.limit).into()), Some(step.limit.into()))? } else { g };
        // The first step may be skipped; its numbers are not used.
        let t = t.clamp(Some(1.0.into()), None)?;
        let share = t.pow_scalar(self.beta2_decay)?;
        let toward = |state: &Tensor, new: &Tensor| state.add(&new.sub(state)?.mul(&share)?);
        let (states_new, variance) = match p.rank() {
            0 | 1 => {
                let variance = toward(&states[0], &g.square()?)?;
                (vec![variance.clone(), states[1].clone()], variance)
            }
            _ => {
                let squares = g.square()?;
                let rows = toward(&states[0], &squares.mean_keepdim(-1)?)?;
                let columns = toward(&states[1], &squares.mean_keepdim(-2)?)?;
                let mean = rows.mean_keepdim(-2)?.clamp(Some(self.eps1(member.parameter.dtype()).into()), None)?;
                let variance = rows.mul(&columns)?.div(&mean)?;
                (vec![rows, columns], variance)
            }
        };
        let least = self.eps1(member.parameter.dtype()).powi(2);
        let update = variance.clamp(Some(least.into()), None)?.rsqrt()?.mul(&g)?;
        let size = |x: &Tensor| x.square()?.mean(..)?.sqrt();
        let excess = size(&update)?.div_scalar(self.threshold)?.clamp(Some(1.0.into()), None)?;
        let rate = lr.minimum(&t.rsqrt()?)?.mul(&size(&p)?.clamp(Some(self.eps2.into()), None)?)?.div(&excess)?;
        let kept = lr.mul_scalar(-step.weight_decay)?.add_scalar(1.0)?;
        let moved = p.mul(&kept)?.sub(&update.mul(&rate)?)?;
        let is_applied = step.found_inf.eq_scalar(0.0)?;
        let write = |to: &Tensor, new: &Tensor| to.copy_(&is_applied.where_cond(&new.cast(to.dtype())?, &to.detach())?);
        write(member.parameter, &moved)?;
        states.iter().zip(&states_new).try_for_each(|(state, new)| write(state, new))
    }

    fn eps1(&self, dtype: DType) -> f64 {
        match (self.eps1 > 0.0, dtype) {
            (true, _) => self.eps1,
            (_, DType::F64) => f64::EPSILON,
            (_, DType::F16) => f64::from(isograd_core::f16::EPSILON),
            (_, DType::BF16) => f64::from(isograd_core::bf16::EPSILON),
            _ => f64::from(f32::EPSILON),
        }
    }
}
