//! Distances and similarities of vectors.

use crate::check::check_float;
use crate::ops::{common_shape, in_acc_of, named};
use crate::{Error, Position, Result, Tensor, autocast};

/// Euclidean distances between more rows than this come from a product of matrices.
const FEW: usize = 25;

/// # Similarities and distances
impl Tensor {
    /// The distance of order p between each row of this tensor `[.., P, M]` and each row of `other: [.., R, M]`: `[.., P, R]`. Leading
    /// dimensions broadcast.
    ///
    /// The order is the order of [`norm`](Tensor::norm): 0 counts the components that differ, and is outside of the tape; infinity is
    /// the largest difference. The gradient is 0 where the distance is 0. For p = 2 and more than 25 rows on either side, distances are
    /// `sqrt(|x|^2 + |y|^2 - 2 x y)` with a matrix product, as in PyTorch: rows that nearly coincide lose digits. Otherwise the
    /// differences of all pairs, `[.., P, R, M]`, are in memory. 16-bit dtypes are computed in f32. Float dtypes. Errors: `Shape`,
    /// `Dtype`; `Attr` for a negative order or NaN.
    pub fn cdist(&self, other: &Tensor, p: f64) -> Result<Tensor> {
        if let Some(([x, other], _)) = autocast::wide([self, other], None)? {
            return x.cdist(&other, p);
        }
        let op = "cdist";
        check_float(op, self)?;
        if p.is_nan() || p < 0.0 {
            return Err(Error::attr(op, format!("p is {p}, expected 0 or more")));
        }
        let (&[.., rows, m], &[.., others, n]) = (self.dims(), other.dims()) else {
            let message =
                format!("{} and {} were given, expected [.., P, M] and [.., R, M]", self.shape(), other.shape());
            return Err(Error::shape(op, message));
        };
        if m != n {
            return Err(Error::shape(
                op,
                format!("the rows of {} and {} differ in length", self.shape(), other.shape()),
            ));
        }
        named(op, &[self, other], || {
            in_acc_of(op, [self, other], |[x, y]| {
                if p == 2.0 && rows.max(others) > FEW {
                    return euclidean(x, y);
                }
                let difference = x.unsqueeze(-2)?.sub(&y.unsqueeze(-3)?)?;
                if m == 0 { difference.sum(-1) } else { difference.norm(p, -1) }
            })
        })
    }

    /// The distance of order p between vectors along the last dimension: the [`norm`](Tensor::norm) of `x - other + eps`. Operands
    /// broadcast. PyTorch's defaults are p = 2 and eps = 1e-6. Float dtypes. Errors: `Shape`, `Dtype`; `Attr` for an order that is
    /// NaN; `Value` for the infinite norms of vectors without elements.
    pub fn pairwise_distance(&self, other: &Tensor, p: f64, eps: f64) -> Result<Tensor> {
        if let Some(([x, other], _)) = autocast::wide([self, other], None)? {
            return x.pairwise_distance(&other, p, eps);
        }
        let op = "pairwise_distance";
        check_float(op, self)?;
        if self.rank() == 0 && other.rank() == 0 {
            return Err(Error::shape(op, format!("{} and {} have no dimension", self.shape(), other.shape())));
        }
        named(op, &[self, other], || in_acc_of(op, [self, other], |[x, y]| x.sub(y)?.add_scalar(eps)?.norm(p, -1)))
    }

    /// The cosine of the angle between vectors along `dim`: `x other / (max(|x|, eps) max(|other|, eps))`. Operands broadcast, and
    /// `dim` is a dimension of their common shape. PyTorch's default is eps = 1e-8. Float dtypes. Errors: `Shape`, `Dtype`, `Attr`.
    pub fn cosine_similarity(&self, other: &Tensor, dim: impl Into<Position>, eps: f64) -> Result<Tensor> {
        let Position(dim) = dim.into();
        if let Some(([x, other], _)) = autocast::wide([self, other], None)? {
            return x.cosine_similarity(&other, dim, eps);
        }
        let op = "cosine_similarity";
        check_float(op, self)?;
        let shape = common_shape(op, &[self, other])?;
        shape.dim_for(op, dim)?;
        named(op, &[self, other], || {
            in_acc_of(op, [self, other], |[x, y]| {
                let unit = |t: &Tensor| {
                    let t = t.broadcast_to(&shape)?;
                    let length = t.keepdim(dim, |t, axes| t.l2_norm(axes))?;
                    t.div(&length.clamp(Some(eps.into()), None)?)
                };
                unit(x)?.mul(&unit(y)?)?.sum(dim)
            })
        })
    }
}

/// Distances by `|x - y|^2 = |x|^2 + |y|^2 - 2 x y`, whose rounding may be negative.
fn euclidean(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let squares = x.square()?.sum(-1)?.unsqueeze(-1)?.add(&y.square()?.sum(-1)?.unsqueeze(-2)?)?;
    let squares = squares.add_scaled(&x.matmul(&y.t()?)?, -2)?;
    let is_apart = squares.le_scalar(0.0)?.logical_not()?;
    is_apart.where_scalar(&is_apart.where_scalar(&squares, 1.0)?.sqrt()?, 0.0)
}
