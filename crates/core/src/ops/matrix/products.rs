//! Products of vectors and matrices other than the matrix product.

use crate::check::{check_float, check_same, describe};
use crate::ops::named;
use crate::{Dims, Error, MAX_RANK, Result, Shape, Tensor, autocast, no_autocast};

/// # Products of several factors
impl Tensor {
    /// `y[i, j] = a[i] b[j]` for this vector `a: [N]` and `b: [M]`. Errors: `Shape` unless both are vectors; `Dtype`.
    pub fn outer(&self, b: &Tensor) -> Result<Tensor> {
        let op = "outer";
        if self.rank() != 1 || b.rank() != 1 {
            return Err(Error::shape(
                op,
                format!("{} and {} were given, expected two vectors", self.shape(), b.shape()),
            ));
        }
        named(op, &[self, b], || self.unsqueeze(-1)?.mul(b))
    }

    /// The Kronecker product: each element of this tensor, in place, times all of `b`. The operand of lower rank gets dimensions of
    /// size 1 in front; extents are multiplied. Errors: `Shape` for a rank above 4; `Dtype`.
    pub fn kron(&self, b: &Tensor) -> Result<Tensor> {
        let op = "kron";
        let rank = self.rank().max(b.rank());
        if 2 * rank > MAX_RANK {
            let message =
                format!("{} and {} were given, expected ranks of at most {}", self.shape(), b.shape(), MAX_RANK / 2);
            return Err(Error::shape(op, message));
        }
        let padded = |t: &Tensor| -> Dims {
            let ones = std::iter::repeat_n(1, rank - t.rank());
            ones.chain(t.dims().iter().copied()).collect()
        };
        let (outer, inner) = (padded(self), padded(b));
        let left: Dims = outer.iter().flat_map(|&n| [n, 1]).collect();
        let right: Dims = inner.iter().flat_map(|&n| [1, n]).collect();
        let shape: Dims = outer.iter().zip(&inner).map(|(&n, &m)| n.saturating_mul(m)).collect();
        named(op, &[self, b], || {
            self.reshape(Shape::from(left))?.mul(&b.reshape(Shape::from(right))?)?.reshape(Shape::from(shape))
        })
    }

    /// `y[.., o] = x[.., i] w[o, i, j] other[.., j] + b[o]`, summed over i and j, for this tensor `x: [.., I]`, `other: [.., J]`,
    /// `w: [O, I, J]` and `b: [O]`. Float dtypes. Errors: `Shape`, `Dtype`.
    pub fn bilinear(&self, other: &Tensor, w: &Tensor, b: Option<&Tensor>) -> Result<Tensor> {
        let op = "bilinear";
        let operands: Vec<&Tensor> = [self, other, w].into_iter().chain(b).collect();
        if let Some(low) = autocast::low_each(&operands)? {
            return no_autocast(|| low[0].bilinear(&low[1], &low[2], low.get(3)));
        }
        check_same(op, &operands)?;
        check_float(op, self)?;
        let fits = match (self.dims(), other.dims(), w.dims()) {
            ([rows @ .., i], [others @ .., j], &[o, of_x, of_other]) => {
                rows == others && [*i, *j] == [of_x, of_other] && b.is_none_or(|b| b.dims() == [o])
            }
            _ => false,
        };
        if !fits {
            let message = format!("{} were given, expected [.., I], [.., J], [O, I, J] and [O]", describe(&operands));
            return Err(Error::shape(op, message));
        }
        named(op, &operands, || {
            let y = Tensor::einsum("...i,oij,...j->...o", &[self, w, other])?;
            b.map_or(Ok(y.clone()), |b| y.add(b))
        })
    }
}
