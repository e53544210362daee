//! Decompositions of matrices, linear systems, inverses and determinants, with the names of `torch.linalg`.
//!
//! ```no_run
//! # use isograd_core::{Result, Tensor};
//! # use isograd_linalg as linalg;
//! /// The logarithm of the density of a normal distribution at x `[N]`, up to a constant.
//! fn log_density(x: &Tensor, covariance: &Tensor) -> Result<Tensor> {
//!     let square = linalg::solve(covariance, x)?.mul(x)?.sum(..)?;
//!     square.add(&linalg::slogdet(covariance)?.1)?.mul_scalar(-0.5)
//! }
//! ```
//!
//! The last two dimensions are matrices, all others are a batch. Dtypes are f32 and f64. Every function has first derivatives, as
//! closed formulas in tensor ops, from which the second derivatives follow.
//!
//! The crate faer computes on the host, one matrix after the other, in f64; f32 results are rounded once. Matrices of other devices are
//! copied to the host, which waits for the device, and results are copied back. So do gradients that need a further decomposition. A step
//! that is captured cannot wait: a call within [`Device::capture`](isograd_core::Device::capture) is an error.

mod cholesky;
mod determinant;
mod eigen;
mod host;
mod qr;
mod solve;
mod svd;
mod triangular;

pub use cholesky::cholesky;
pub use determinant::{det, slogdet};
pub use eigen::eigh;
pub use qr::qr;
pub use solve::{inv, solve};
pub use svd::svd;
pub use triangular::{Diagonal, Side, Triangle, Triangular, solve_triangular};

use isograd_core::{DType, Result, Tensor};

/// The lower triangle of matrices, and its mirror image above the diagonal.
fn mirrored(x: &Tensor) -> Result<Tensor> {
    x.tril(0)?.add(&x.tril(-1)?.t()?)
}

/// `|x| + |x^T|` off the diagonal, where a skew matrix is not 0. Outside of the tape.
fn both_sizes(x: &Tensor) -> Result<Tensor> {
    let size = x.detach().abs()?;
    let off = Tensor::eye(x.dims()[x.rank() - 1], DType::Bool, x.device())?.logical_not()?;
    off.where_scalar(&size.add(&size.t()?)?, 0.0)
}

/// The largest absolute element of each matrix: `[.., 1, 1]`. Outside of the tape.
fn largest(x: &Tensor) -> Result<Tensor> {
    x.detach().abs()?.amax_keepdim([-2, -1])
}

/// `x / gap` for differences of values `[.., M, N]`, where x is made of cotangents of this size. Where the gap is 0 up to rounding, it is 0 if
/// the cotangents are, as those of a function that does not depend on the choice of vectors of equal values. Where the gap alone is 0, it is
/// NaN. `units`: the largest cotangent and value of each matrix, of which roundings are parts.
fn over_gap(x: &Tensor, size: &Tensor, gap: &Tensor, units: [&Tensor; 2]) -> Result<Tensor> {
    let roundoff = if x.dtype() == DType::F64 { f64::EPSILON } else { f32::EPSILON as f64 };
    let count = x.dims()[x.rank() - 2..].iter().max().copied().unwrap_or(1);
    let is_zero = |v: &Tensor, unit: &Tensor| v.detach().abs()?.le(&unit.mul_scalar(4.0 * count as f64 * roundoff)?);
    let is_left_out = is_zero(size, units[0])?.logical_and(&is_zero(gap, units[1])?)?;
    let is_equal = gap.detach().eq_scalar(0.0)?;
    let quotient = x.div(&is_equal.logical_not()?.where_scalar(gap, 1.0)?)?;
    let quotient = is_equal.logical_not()?.where_scalar(&quotient, f64::NAN)?;
    is_left_out.logical_not()?.where_scalar(&quotient, 0.0)
}
