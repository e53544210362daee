//! The QR decomposition.

use crate::host::{all, append, append_nan, check, each, extents, is_finite, matrix};
use crate::{Triangle, Triangular, mirrored, solve_triangular};
use faer::linalg::solvers::Qr;
use isograd_core::tape::{Saved, record_outputs};
use isograd_core::{Result, Tensor};

/// The reduced decompositions `x = Q R` of matrices `[.., M, N]`: Q `[.., M, K]` with orthonormal columns and R `[.., K, N]`, which is
/// upper triangular, for `K = min(M, N)`. The signs of R's rows are not specified. Dtypes f32 and f64. A matrix with NaN or infinity
/// gives NaN. Errors: `Shape`, `Dtype`; `Value` for the gradient of a matrix whose first K columns are dependent. The gradient is that of
/// Walter, Lehmann and Lamour 2012, Optimization Methods and Software 27 (2).
pub fn qr(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let op = "qr";
    check(op, &[x])?;
    let [m, n] = extents(op, x)?;
    let k = m.min(n);
    let [q, r] = each(op, [x], [&[m, k], &[k, n]], |[a], [q, r]| {
        if !is_finite(a) {
            append_nan(q, m * k);
            append_nan(r, k * n);
            return Ok(());
        }
        let factors = Qr::new(matrix(a, m, n));
        append(q, factors.compute_thin_Q().as_ref(), all);
        append(r, factors.thin_R(), |i, j| i <= j);
        Ok(())
    })?;
    let (sq, sr) = (Saved::output(&q), Saved::nth_output(&r, 1));
    let mut both = record_outputs(op, &[x], vec![q, r], move |t| {
        let (q, r, dq, dr) = (t.get(&sq)?, t.get(&sr)?, t.dy_or_zeros(0)?, t.dy_or_zeros(1)?);
        if m >= n {
            return Ok([gradient(&q, &r, &dq, &dr)?]);
        }
        // The first M columns determine Q and the left part of R; the right part is Q^T times the other columns.
        let [left, right] =
            [&r, &dr].map(|r| Ok::<_, isograd_core::Error>((r.narrow(-1, 0, m)?, r.narrow(-1, m, n - m)?)));
        let ((r_left, r_right), (dr_left, dr_right)) = (left?, right?);
        let others = q.matmul(&r_right)?;
        let dq = dq.add(&others.matmul(&dr_right.t()?)?)?;
        let dx = Tensor::concat(&[&gradient(&q, &r_left, &dq, &dr_left)?, &q.matmul(&dr_right)?], -1)?;
        Ok([dx])
    })?;
    let r = both.swap_remove(1);
    Ok((both.swap_remove(0), r))
}

/// `dx = (dq + q S) r^-T`, where S is symmetric and has the lower triangle of `r dr^T - dq^T q`; for `M >= N`.
fn gradient(q: &Tensor, r: &Tensor, dq: &Tensor, dr: &Tensor) -> Result<Tensor> {
    let s = mirrored(&r.matmul(&dr.t()?)?.sub(&dq.t()?.matmul(q)?)?)?;
    let right = dq.add(&q.matmul(&s)?)?;
    let upper = Triangular { triangle: Triangle::Upper, ..Default::default() };
    solve_triangular(r, &right.t()?, &upper).map_err(|e| e.of("qr"))?.t()
}
