//! Losses with a margin, for pairs, rankings and classes. All are composites in the accumulation dtype.

use super::{Reduction, check_constant};
use crate::check::{check_float, check_index, check_same, describe};
use crate::ops::named;
use crate::{DType, Error, Result, Tensor, autocast};

/// The attributes of [`Tensor::multi_margin_loss`].
#[derive(Clone, Debug, PartialEq)]
pub struct MultiMargin {
    /// The exponent of a violation: 1 or 2.
    pub p: u32,
    /// The margin by which the score of the class exceeds the others.
    pub margin: f64,
    /// The reduction of the losses of the rows.
    pub reduction: Reduction,
}

impl Default for MultiMargin {
    fn default() -> Self {
        MultiMargin { p: 1, margin: 1.0, reduction: Reduction::default() }
    }
}

fn check_margin(op: &'static str, margin: f64) -> Result<()> {
    match margin.is_nan() {
        true => Err(Error::attr(op, "the margin is NaN, expected a number")),
        false => Ok(()),
    }
}

/// Checks for floats of one dtype on one device.
fn check_floats(op: &'static str, operands: &[&Tensor]) -> Result<()> {
    operands.iter().try_for_each(|t| check_float(op, t))?;
    check_same(op, operands)
}

/// Checks scores `[N, C]` or `[C]`, of at least one class.
fn check_scores(op: &'static str, x: &Tensor, target: &Tensor) -> Result<usize> {
    check_float(op, x)?;
    match x.dims() {
        [.., classes] if x.rank() <= 2 && *classes > 0 => Ok(*classes),
        _ => Err(Error::shape(op, format!("{} were given, expected scores [N, C] or [C]", describe(&[x, target])))),
    }
}

/// Losses of operands in the accumulation dtype, reduced and rounded once.
fn finished<const N: usize>(
    op: &'static str,
    operands: [&Tensor; N],
    reduction: Reduction,
    losses: impl FnOnce([Tensor; N]) -> Result<Tensor>,
) -> Result<Tensor> {
    let dtype = operands[0].dtype();
    named(op, &operands, || {
        let mut wide = operands.map(Tensor::clone);
        for t in wide.iter_mut().filter(|t| t.dtype().is_float()) {
            *t = t.cast(dtype.acc())?;
        }
        reduction.apply(&losses(wide)?)?.cast(dtype)
    })
}

fn positive_part(x: &Tensor) -> Result<Tensor> {
    x.clamp(Some(0.0.into()), None)
}

/// # Losses with a margin
impl Tensor {
    /// `1 - cos` of the rows of this tensor and `other` where `y` is 1, and `max(0, cos - margin)` where it is -1. Rows are `[N, D]` or
    /// `[D]`, and broadcast; `y` is `[N]` or `[]`. Squared lengths are increased by 1e-12. The rows have gradients. Float dtypes.
    /// Errors: `Shape`, `Dtype`; `Attr` for a margin that is NaN.
    pub fn cosine_embedding_loss(
        &self,
        other: &Tensor,
        y: &Tensor,
        margin: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let op = "cosine_embedding_loss";
        if let Some(([a, b, y], _)) = autocast::wide([self, other, y], None)? {
            return a.cosine_embedding_loss(&b, &y, margin, reduction);
        }
        check_floats(op, &[self, other, y])?;
        check_constant(op, "y", y)?;
        check_margin(op, margin)?;
        let is_row = |t: &Tensor| t.rank() == y.rank() + 1;
        if y.rank() > 1 || !is_row(self) || !is_row(other) {
            let message = format!("{} were given, expected [N, D], [N, D] and [N]", describe(&[self, other, y]));
            return Err(Error::shape(op, message));
        }
        finished(op, [self, other, y], reduction, |[a, b, y]| {
            let squared = |t: &Tensor| t.square()?.sum(-1)?.add_scalar(1e-12);
            let cos = a.mul(&b)?.sum(-1)?.div(&squared(&a)?.mul(&squared(&b)?)?.sqrt()?)?;
            let alike = y.eq_scalar(1.0)?.where_scalar(&cos.rsub_scalar(1.0)?, 0.0)?;
            let apart = y.eq_scalar(-1.0)?.where_scalar(&positive_part(&cos.sub_scalar(margin)?)?, 0.0)?;
            alike.add(&apart)
        })
    }

    /// `max(0, -y (x - other) + margin)`: where `y` is 1, x should rank higher by the margin, where it is -1, `other`. Operands
    /// broadcast, and all have gradients. Float dtypes. Errors: `Shape`, `Dtype`; `Attr` for a margin that is NaN.
    pub fn margin_ranking_loss(&self, other: &Tensor, y: &Tensor, margin: f64, reduction: Reduction) -> Result<Tensor> {
        let op = "margin_ranking_loss";
        if let Some(([a, b, y], _)) = autocast::wide([self, other, y], None)? {
            return a.margin_ranking_loss(&b, &y, margin, reduction);
        }
        check_floats(op, &[self, other, y])?;
        check_margin(op, margin)?;
        finished(op, [self, other, y], reduction, |[a, b, y]| positive_part(&b.sub(&a)?.mul(&y)?.add_scalar(margin)?))
    }

    /// `x` where `y` is 1, and `max(0, margin - x)` where it is -1; both terms for other numbers. Operands broadcast. Only x has a
    /// gradient. Float dtypes. Errors: `Shape`, `Dtype`; `Attr` for a margin that is NaN.
    pub fn hinge_embedding_loss(&self, y: &Tensor, margin: f64, reduction: Reduction) -> Result<Tensor> {
        let op = "hinge_embedding_loss";
        if let Some(([x, y], _)) = autocast::wide([self, y], None)? {
            return x.hinge_embedding_loss(&y, margin, reduction);
        }
        check_floats(op, &[self, y])?;
        check_constant(op, "y", y)?;
        check_margin(op, margin)?;
        finished(op, [self, y], reduction, |[x, y]| {
            let apart = y.ne_scalar(1.0)?.where_scalar(&positive_part(&x.rsub_scalar(margin)?)?, 0.0)?;
            apart.add(&y.ne_scalar(-1.0)?.where_scalar(&x, 0.0)?)
        })
    }

    /// `ln(1 + e^(-y x))` without overflow. Operands broadcast, and both have gradients. Float dtypes. Errors: `Shape`, `Dtype`.
    pub fn soft_margin_loss(&self, y: &Tensor, reduction: Reduction) -> Result<Tensor> {
        let op = "soft_margin_loss";
        if let Some(([x, y], _)) = autocast::wide([self, y], None)? {
            return x.soft_margin_loss(&y, reduction);
        }
        check_floats(op, &[self, y])?;
        finished(op, [self, y], reduction, |[x, y]| x.mul(&y)?.logsigmoid()?.neg())
    }

    /// `sum of max(0, margin - x[target] + x[i])^p over the other classes i, / C` for scores `[N, C]` or `[C]` and classes `[N]` or
    /// `[]` (i64 or i32). `weight: [C]` is a factor for the losses of each class. Only x has a gradient. Float dtypes.
    /// Errors: `Shape`, `Dtype`; `Attr` for another exponent than 1 and 2 or a margin that is NaN; `Index` for a class outside of `0..C`.
    pub fn multi_margin_loss(&self, target: &Tensor, weight: Option<&Tensor>, options: &MultiMargin) -> Result<Tensor> {
        let op = "multi_margin_loss";
        if let Some(([x], weight)) = autocast::wide([self], weight)? {
            return x.multi_margin_loss(target, weight.as_ref(), options);
        }
        let classes = check_scores(op, self, target)?;
        check_index(op, target)?;
        check_margin(op, options.margin)?;
        if ![1, 2].contains(&options.p) {
            return Err(Error::attr(op, format!("p is {}, expected 1 or 2", options.p)));
        }
        if target.dims() != &self.dims()[..self.rank() - 1] {
            let message = format!("the target {} has not one class for each row of {}", target.shape(), self.shape());
            return Err(Error::shape(op, message));
        }
        if let Some(w) = weight {
            check_same(op, &[self, w])?;
            check_constant(op, "the weight", w)?;
            if w.dims() != [classes] {
                let message = format!("the weight is {}, expected [{classes}] for scores {}", w.shape(), self.shape());
                return Err(Error::shape(op, message));
            }
        }
        let at = target.unsqueeze(-1)?;
        finished(op, [self, &at], options.reduction, |[x, at]| {
            let violation = positive_part(&x.sub(&x.gather(-1, &at)?)?.add_scalar(options.margin)?)?;
            let violation = if options.p == 2 { violation.square()? } else { violation };
            let is_other = Tensor::arange(classes, x.device())?.ne(&at.cast(DType::I64)?)?;
            let loss = is_other.where_scalar(&violation, 0.0)?.mean(-1)?;
            match weight {
                Some(w) => {
                    loss.mul(&w.cast(x.dtype())?.index_select(0, &at.reshape(at.numel())?)?.reshape(loss.shape())?)
                }
                None => Ok(loss),
            }
        })
    }

    /// `sum of max(0, 1 - x[j] + x[i]) over the classes j of the target and the other classes i, / C` for scores `[N, C]` or `[C]`.
    /// The target (i64 or i32) has the shape of x: a row lists its classes, and ends before its first negative number. Only x has a
    /// gradient. Float dtypes. Errors: `Shape`, `Dtype`; `Index` for a class of C or more.
    pub fn multilabel_margin_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        let op = "multilabel_margin_loss";
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.multilabel_margin_loss(target, reduction);
        }
        let classes = check_scores(op, self, target)?;
        check_index(op, target)?;
        if target.shape() != self.shape() {
            let message = format!("the target {} has not the shape of the scores {}", target.shape(), self.shape());
            return Err(Error::shape(op, message));
        }
        finished(op, [self, target], reduction, |[x, target]| {
            let target = target.cast(DType::I64)?;
            let is_listed = target.lt_scalar(0)?.cast(DType::I64)?.cumsum(-1)?.eq_scalar(0)?;
            let at = is_listed.where_scalar(&target, 0)?;
            let count = target.zeros_like()?.scatter_add(-1, &at, &is_listed.cast(DType::I64)?)?;
            let is_pair = is_listed.unsqueeze(-1)?.logical_and(&count.eq_scalar(0)?.unsqueeze(-2)?)?;
            let difference = x.unsqueeze(-2)?.sub(&x.gather(-1, &at)?.unsqueeze(-1)?)?;
            let violation = positive_part(&difference.add_scalar(1.0)?)?;
            is_pair.where_scalar(&violation, 0.0)?.sum([-2, -1])?.div_scalar(classes as f64)
        })
    }

    /// The mean over classes of `-w (y ln(sigmoid(x)) + (1 - y) ln(sigmoid(-x)))` for logits `[N, C]` or `[C]`; `y` has the shape of
    /// x, and the factors `weight` broadcast to it. x and y have gradients. Float dtypes. Errors: `Shape`, `Dtype`.
    pub fn multilabel_soft_margin_loss(
        &self,
        y: &Tensor,
        weight: Option<&Tensor>,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let op = "multilabel_soft_margin_loss";
        if let Some(([x, y], weight)) = autocast::wide([self, y], weight)? {
            return x.multilabel_soft_margin_loss(&y, weight.as_ref(), reduction);
        }
        check_floats(op, &[self, y])?;
        check_scores(op, self, y)?;
        if y.shape() != self.shape() {
            let message = format!("y {} has not the shape of the logits {}", y.shape(), self.shape());
            return Err(Error::shape(op, message));
        }
        if let Some(w) = weight {
            check_same(op, &[self, w])?;
            check_constant(op, "the weight", w)?;
            w.broadcast_to(self.shape()).map_err(|e| e.of(op))?;
        }
        finished(op, [self, y], reduction, |[x, y]| {
            let terms = y.mul(&x.logsigmoid()?)?.add(&y.rsub_scalar(1.0)?.mul(&x.neg()?.logsigmoid()?)?)?;
            let terms = weight.map_or(Ok(terms.clone()), |w| terms.mul(&w.cast(x.dtype())?))?;
            terms.mean(-1)?.neg()
        })
    }
}
