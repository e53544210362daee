//! Losses that are a row of the pointwise table, then reduced.

use super::{Reduction, check_constant, check_operands};
use crate::ops::{in_acc, pointwise_one};
use crate::pointwise::Pointwise;
use crate::tape::{Saved, record};
use crate::tensor::Attributes;
use crate::{DType, Error, Result, Tensor, autocast};

/// What the target of [`Tensor::kl_div`] holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KlTarget {
    /// Probabilities.
    #[default]
    Probabilities,
    /// Their logarithms.
    Logarithms,
}

/// What the input of [`Tensor::focal_loss`] holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FocalInput {
    /// Logits.
    #[default]
    Logits,
    /// Probabilities, which are clamped to `[1e-7, 1 - 1e-7]`.
    Probabilities,
}

/// The attributes of [`Tensor::focal_loss`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Focal {
    /// Weight of the positive class; negative: no weights.
    pub alpha: f64,
    /// Exponent that plays down easy examples; at least 0.
    pub gamma: f64,
    /// What the input holds.
    pub input: FocalInput,
    /// What becomes of the losses of the elements.
    pub reduction: Reduction,
}

impl Default for Focal {
    fn default() -> Self {
        Focal { alpha: 0.25, gamma: 2.0, input: FocalInput::default(), reduction: Reduction::default() }
    }
}

/// The backward rows of one operand of a loss.
#[derive(Clone, Copy)]
enum Slope {
    /// Reads the gradient and all operands.
    All(Pointwise),
    /// Reads the gradient and operand `1`.
    Second(Pointwise),
    /// Reads the gradient and operand `0`.
    First(Pointwise),
    /// The operand has no gradient.
    None,
}

/// A row of the table with a backward row for each operand, computed in the accumulation dtype and reduced.
fn elementwise(
    row: Pointwise,
    slopes: &'static [Slope],
    operands: &[&Tensor],
    attributes: &[f64],
    finish: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let op = row.name();
    let dtype = operands[0].dtype();
    let wide: Vec<Tensor> = operands.iter().map(|t| t.cast(dtype.acc())).collect::<Result<_>>()?;
    let references: Vec<&Tensor> = wide.iter().collect();
    let shape = wide[0].shape();
    let y = pointwise_one(op, row, &references, Attributes::floats(attributes), shape, dtype.acc())?;
    let saved: Vec<Saved> = wide.iter().map(Saved::input).collect();
    let attributes = attributes.to_vec();
    let y = record(op, &references, y, move |t| {
        let x: Vec<Tensor> = saved.iter().map(|s| t.get(s)).collect::<Result<_>>()?;
        let mut all = vec![t.dy()];
        all.extend(&x);
        slopes
            .iter()
            .enumerate()
            .map(|(i, slope)| match slope {
                Slope::All(row) => t.want(i, || t.row(*row, &all, &attributes)),
                Slope::Second(row) => t.want(i, || t.row(*row, &[t.dy(), &x[1]], &attributes)),
                Slope::First(row) => t.want(i, || t.row(*row, &[t.dy(), &x[0]], &attributes)),
                Slope::None => Ok(None),
            })
            .collect()
    })?;
    finish(&y)?.cast(dtype)
}

/// The derivative with respect to the target of a loss that depends on `a - t` alone is that of `a`, negated: such a loss
/// is computed of `a - t` and 0.
fn of_difference(
    row: Pointwise,
    backward: &'static [Slope],
    a: &Tensor,
    t: &Tensor,
    attributes: &[f64],
    finish: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if let Some(([a, t], _)) = autocast::wide([a, t], None)? {
        return of_difference(row, backward, &a, &t, attributes, finish);
    }
    check_operands(row.name(), &[a, t])?;
    if !t.requires_grad() {
        return elementwise(row, backward, &[a, t], attributes, finish);
    }
    in_acc(a, |a| {
        let difference = a.sub(&t.cast(a.dtype())?)?;
        elementwise(row, backward, &[&difference, &difference.detach().zeros_like()?], attributes, finish)
    })
}

impl Tensor {
    /// `(a - t)^2`. Both operands have gradients. Float dtypes. Errors: `Shape` if the shapes differ.
    pub fn mse_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        const SLOPES: &[Slope] = &[Slope::All(Pointwise::MseBackward), Slope::None];
        of_difference(Pointwise::MseLoss, SLOPES, self, target, &[], |y| reduction.apply(y))
    }

    /// `|a - t|`. Both operands have gradients. Float dtypes. Errors: `Shape` if the shapes differ.
    pub fn l1_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        const SLOPES: &[Slope] = &[Slope::All(Pointwise::L1Backward), Slope::None];
        of_difference(Pointwise::L1Loss, SLOPES, self, target, &[], |y| reduction.apply(y))
    }

    /// `d^2 / (2 beta)` where `d = |a - t| < beta`, `d - beta / 2` elsewhere. Both operands have gradients. Float dtypes.
    /// Errors: `Shape` if the shapes differ, `Attr` if beta is negative. Girshick 2015, arXiv 1504.08083.
    pub fn smooth_l1_loss(&self, target: &Tensor, beta: f64, reduction: Reduction) -> Result<Tensor> {
        if beta.is_nan() || beta < 0.0 {
            return Err(Error::attr("smooth_l1_loss", format!("beta is {beta}, expected at least 0")));
        }
        smooth_l1(self, target, beta, |y| reduction.apply(y))
    }

    /// `delta` times [`smooth_l1_loss`](Tensor::smooth_l1_loss) with `beta = delta`. Errors: as there, and `Attr` unless
    /// delta is positive.
    pub fn huber_loss(&self, target: &Tensor, delta: f64, reduction: Reduction) -> Result<Tensor> {
        if delta.is_nan() || delta <= 0.0 {
            return Err(Error::attr("huber_loss", format!("delta is {delta}, expected more than 0")));
        }
        smooth_l1(self, target, delta, |y| reduction.apply(&y.mul_scalar(delta)?))
    }

    /// `-w (t ln p + (1 - t) ln(1 - p))` for probabilities p, with logarithms of at least -100. p and t have gradients.
    /// Float dtypes. Errors: `Shape` if the shapes differ, `Value` where p is outside of `0..=1`.
    pub fn bce_loss(&self, target: &Tensor, weight: Option<&Tensor>, reduction: Reduction) -> Result<Tensor> {
        const SLOPES: &[Slope] = &[Slope::All(Pointwise::BceBackward), Slope::First(Pointwise::BceBackwardT)];
        let op = "bce_loss";
        if let Some(([x, target], weight)) = autocast::wide([self, target], weight)? {
            return x.bce_loss(&target, weight.as_ref(), reduction);
        }
        check_operands(op, &[self, target])?;
        check_weight(op, self, weight)?;
        elementwise(Pointwise::BceLoss, SLOPES, &[self, target], &[], |y| reduction.apply(&weighted(y, weight)?))
    }

    /// [`bce_loss`](Tensor::bce_loss) of `sigmoid(x)` without its rounding. `positive_weight`, which broadcasts, weighs
    /// the term of `t`. Only x has a gradient. Float dtypes. Errors: `Shape` if the shapes differ.
    pub fn bce_with_logits(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        positive_weight: Option<&Tensor>,
        reduction: Reduction,
    ) -> Result<Tensor> {
        const SLOPES: &[Slope] = &[Slope::All(Pointwise::BceWithLogitsBackward), Slope::None, Slope::None];
        let op = "bce_with_logits";
        if let Some(([x, target], weight)) = autocast::wide([self, target], weight)? {
            let positive = positive_weight.map(|w| w.cast(DType::F32)).transpose()?;
            return x.bce_with_logits(&target, weight.as_ref(), positive.as_ref(), reduction);
        }
        check_operands(op, &[self, target])?;
        check_constant(op, "the target", target)?;
        check_weight(op, self, weight)?;
        let positive = match positive_weight {
            Some(w) => {
                check_constant(op, "positive_weight", w)?;
                w.broadcast_to(self.shape())?
            }
            None => Tensor::ones((), self.dtype(), self.device())?.broadcast_to(self.shape())?,
        };
        check_operands(op, &[self, &positive])?;
        elementwise(Pointwise::BceWithLogits, SLOPES, &[self, target, &positive], &[], |y| {
            reduction.apply(&weighted(y, weight)?)
        })
    }

    /// The Kullback-Leibler divergence `t (ln t - x)` for logarithms x of probabilities; 0 where t is 0. Only x has a
    /// gradient. For the mathematical mean over a batch use `Sum` and divide by its size. Float dtypes. Errors: `Shape`
    /// if the shapes differ.
    pub fn kl_div(&self, target: &Tensor, kind: KlTarget, reduction: Reduction) -> Result<Tensor> {
        const PLAIN: &[Slope] = &[Slope::Second(Pointwise::KlDivBackward), Slope::None];
        const LOG: &[Slope] = &[Slope::Second(Pointwise::KlDivLogBackward), Slope::None];
        if let Some(([x, target], _)) = autocast::wide([self, target], None)? {
            return x.kl_div(&target, kind, reduction);
        }
        check_operands("kl_div", &[self, target])?;
        check_constant("kl_div", "the target", target)?;
        let (row, slopes) = match kind {
            KlTarget::Probabilities => (Pointwise::KlDiv, PLAIN),
            KlTarget::Logarithms => (Pointwise::KlDivLog, LOG),
        };
        elementwise(row, slopes, &[self, target], &[], |y| reduction.apply(y))
    }

    /// Cross entropy of a sigmoid, weighted by `(1 - p_t)^gamma`. Only x has a gradient. Float dtypes. Errors: `Shape` if
    /// the shapes differ, `Attr` if gamma is negative. Lin et al. 2017, arXiv 1708.02002.
    pub fn focal_loss(&self, target: &Tensor, options: Focal) -> Result<Tensor> {
        const SLOPES: &[Slope] = &[Slope::All(Pointwise::FocalBackward), Slope::None];
        let op = "focal_loss";
        if let Some(([x, target], _)) = autocast::wide([self, target], None)? {
            return x.focal_loss(&target, options);
        }
        check_operands(op, &[self, target])?;
        check_constant(op, "the target", target)?;
        let Focal { alpha, gamma, input, reduction } = options;
        if alpha.is_nan() || gamma.is_nan() || gamma < 0.0 {
            let message = format!("alpha is {alpha} and gamma {gamma}, expected numbers with gamma at least 0");
            return Err(Error::attr(op, message));
        }
        let x = match input {
            FocalInput::Logits => self.clone(),
            FocalInput::Probabilities => in_acc(self, |p| {
                let p = p.clamp(Some(1e-7.into()), Some((1.0 - 1e-7).into()))?;
                p.log()?.sub(&p.neg()?.log1p()?)
            })?,
        };
        elementwise(Pointwise::FocalLoss, SLOPES, &[&x, target], &[alpha, gamma], |y| reduction.apply(y))
    }
}

fn smooth_l1(a: &Tensor, t: &Tensor, beta: f64, finish: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    const SLOPES: &[Slope] = &[Slope::All(Pointwise::SmoothL1Backward), Slope::None];
    of_difference(Pointwise::SmoothL1Loss, SLOPES, a, t, &[beta], finish)
}

fn check_weight(op: &'static str, x: &Tensor, weight: Option<&Tensor>) -> Result<()> {
    match weight {
        Some(w) => check_operands(op, &[x, w]).and_then(|()| check_constant(op, "the weight", w)),
        None => Ok(()),
    }
}

fn weighted(y: &Tensor, weight: Option<&Tensor>) -> Result<Tensor> {
    match weight {
        Some(w) => y.mul(&w.cast(y.dtype())?),
        None => Ok(y.clone()),
    }
}
