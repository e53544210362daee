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

use isograd_core::{Result, Tensor};

/// The lower triangle of matrices, and its mirror image above the diagonal.
fn mirrored(x: &Tensor) -> Result<Tensor> {
    x.tril(0)?.add(&x.tril(-1)?.t()?)
}

/// `1 / (w[j] - w[i])`, and 0 on the diagonal, for values `[.., N]`.
fn inverse_gaps(w: &Tensor) -> Result<Tensor> {
    let eye = Tensor::eye(w.dims()[w.rank() - 1], w.dtype(), w.device())?;
    w.unsqueeze(-2)?.sub(&w.unsqueeze(-1)?)?.add(&eye)?.rdiv_scalar(1.0)?.sub(&eye)
}
