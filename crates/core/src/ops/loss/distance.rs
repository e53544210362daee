//! Losses of distances between vectors.

use super::{Reduction, check_constant, check_operands};
use crate::ops::in_acc;
use crate::tensor::check_same;
use crate::{Error, Result, Tensor, autocast};

/// The attributes of [`Tensor::triplet_loss`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Triplet {
    /// How much farther the negative must be than the positive; more than 0.
    pub margin: f64,
    /// The norm, at least 1.
    pub p: f64,
    /// Added to every component of a difference.
    pub eps: f64,
    /// Which distance of the negative counts.
    pub negative: TripletNegative,
    /// What becomes of the losses of the rows.
    pub reduction: Reduction,
}

/// Which distance of the negative counts in a triplet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TripletNegative {
    /// Its distance from the anchor.
    #[default]
    FromAnchor,
    /// The smaller of its distances from the anchor and from the positive ("swap").
    Nearest,
}

impl Default for Triplet {
    fn default() -> Self {
        let (negative, reduction) = (TripletNegative::default(), Reduction::default());
        Triplet { margin: 1.0, p: 2.0, eps: 1e-6, negative, reduction }
    }
}

impl Tensor {
    /// `max(0, d(a, positive) - d(a, negative) + margin)` for rows of this tensor `a: [N, D]`. All have gradients. Float
    /// dtypes. Errors: `Shape`, `Attr`. Balntas et al. 2016, BMVC.
    pub fn triplet_loss(&self, positive: &Tensor, negative: &Tensor, options: Triplet) -> Result<Tensor> {
        let op = "triplet_loss";
        if let Some(([a, p, n], _)) = autocast::wide([self, positive, negative], None)? {
            return a.triplet_loss(&p, &n, options);
        }
        check_operands(op, &[self, positive, negative])?;
        check_rows(op, self)?;
        let Triplet { margin, p, eps, .. } = options;
        if margin.is_nan() || margin <= 0.0 || p.is_nan() || p < 1.0 {
            return Err(Error::attr(op, format!("margin is {margin} and p {p}, expected margin > 0 and p >= 1")));
        }
        in_acc(self, |a| {
            let (positive, negative) = (positive.cast(a.dtype())?, negative.cast(a.dtype())?);
            let distance = |u: &Tensor, v: &Tensor| norm(&u.sub(v)?.add_scalar(eps)?, p);
            let mut far = distance(a, &negative)?;
            if options.negative == TripletNegative::Nearest {
                let other = distance(&positive, &negative)?;
                far = other.lt(&far)?.where_cond(&other, &far)?;
            }
            let loss = distance(a, &positive)?.sub(&far)?.add_scalar(margin)?.clamp(Some(0.0.into()), None)?;
            options.reduction.apply(&loss)
        })
    }

    /// `y d^2 + (1 - y) max(0, margin - d)^2` with the Euclidean distance `d` of rows of this tensor and `other`
    /// (`[N, D]`); `y: [N]` is 1 where they are alike. The rows have gradients. Float dtypes. Errors: `Shape`. Hadsell et
    /// al. 2006, CVPR (with labels inverted and without the factor 1/2).
    pub fn contrastive_loss(&self, other: &Tensor, y: &Tensor, margin: f64, reduction: Reduction) -> Result<Tensor> {
        let op = "contrastive_loss";
        if let Some(([x, other, y], _)) = autocast::wide([self, other, y], None)? {
            return x.contrastive_loss(&other, &y, margin, reduction);
        }
        check_operands(op, &[self, other])?;
        check_rows(op, self)?;
        check_constant(op, "y", y)?;
        check_same(op, &[self, y])?;
        if y.rank() != 1 || y.dims()[0] != self.dims()[0] {
            let message = format!("y is {}, expected one number a row of {}", y.shape(), self.shape());
            return Err(Error::shape(op, message));
        }
        in_acc(self, |x| {
            let y = y.cast(x.dtype())?;
            let d = x.sub(&other.cast(x.dtype())?)?.l2_norm(1)?;
            let apart = d.rsub_scalar(margin)?.clamp(Some(0.0.into()), None)?.square()?;
            reduction.apply(&y.mul(&d.square()?)?.add(&y.rsub_scalar(1.0)?.mul(&apart)?)?)
        })
    }
}

fn check_rows(op: &'static str, x: &Tensor) -> Result<()> {
    if x.rank() != 2 {
        return Err(Error::shape(op, format!("{} was given, expected [N, D]", x.shape())));
    }
    Ok(())
}

/// The p-norm of the rows, with gradient 0 where it is 0.
fn norm(x: &Tensor, p: f64) -> Result<Tensor> {
    if p == 2.0 {
        return x.l2_norm(1);
    }
    let sum = x.abs()?.pow_scalar(p)?.sum(1)?;
    let zero = sum.eq_scalar(0.0)?;
    let positive = zero.logical_not()?;
    positive.where_scalar(&positive.where_scalar(&sum, 1.0)?.pow_scalar(1.0 / p)?, 0.0)
}
