//! The Cholesky decomposition.

use crate::host::{append, check, check_finite, each, matrix, side};
use crate::{Triangle, Triangular, mirrored, solve_triangular};
use faer::Side;
use faer::linalg::solvers::Llt;
use isograd_core::tape::{Saved, record};
use isograd_core::{Result, Tensor};

/// The lower triangular matrices L with `x = L L^T` of symmetric positive definite matrices `[.., N, N]`. Only the lower triangle is
/// read. The gradient is symmetric. Dtypes f32 and f64. Errors: `Shape`, `Dtype`; `Value` for a matrix that is not positive definite, or
/// not finite. The gradient is that of Murray 2016, arXiv 1602.07527.
pub fn cholesky(x: &Tensor) -> Result<Tensor> {
    let op = "cholesky";
    check(op, &[x])?;
    let n = side(op, x)?;
    let [l] = each(op, [x], [&[n, n]], |[a], [l]| {
        check_finite(a)?;
        let factor = Llt::new(matrix(a, n, n), Side::Lower).map_err(|_| "is not positive definite")?;
        append(l, factor.L(), |i, j| i >= j);
        Ok(())
    })?;
    let saved = Saved::output(&l);
    record(op, &[x], l, move |t| {
        // dx = L^-T S L^-1 / 2, where S is symmetric and has the lower triangle of L^T dL.
        let l_t = t.get(&saved)?.t()?;
        let upper = Triangular { triangle: Triangle::Upper, ..Default::default() };
        let left = solve_triangular(&l_t, &mirrored(&l_t.matmul(t.dy())?)?, &upper)?;
        let dx = solve_triangular(&l_t, &left.t()?, &upper)?.mul_scalar(0.5)?;
        Ok([dx])
    })
}
