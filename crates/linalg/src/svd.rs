//! The singular value decomposition.

use crate::host::{append, check, check_finite, each, extents, matrix};
use crate::inverse_gaps;
use faer::linalg::solvers::Svd;
use isograd_core::tape::{Saved, record_outputs};
use isograd_core::{Result, Tensor};

/// The thin decompositions `x = U diag(S) Vh` of matrices `[.., M, N]`: U `[.., M, K]` and Vh `[.., K, N]`, whose columns and rows are
/// orthonormal, and the singular values S `[.., K]`, descending, for `K = min(M, N)`. It is PyTorch's with `full_matrices=False`. The signs of
/// singular vectors are not specified, and their gradient is finite only if singular values are distinct, and not 0 unless the matrix is square.
/// Dtypes f32 and f64. Errors: `Shape`, `Dtype`; `Value` for a matrix that is not finite, or where the iteration does not converge. The
/// gradient is that of Townsend 2016, "Differentiating the singular value decomposition".
pub fn svd(x: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    let op = "svd";
    check(op, &[x])?;
    let [m, n] = extents(op, x)?;
    let k = m.min(n);
    let [u, s, vh] = each(op, [x], [&[m, k], &[k], &[k, n]], |[a], [u, s, vh]| {
        check_finite(a)?;
        let found = Svd::new_thin(matrix(a, m, n)).map_err(|_| "has singular values that were not found")?;
        let values = found.S().column_vector();
        append(u, found.U(), |_, _| true);
        s.extend((0..k).map(|i| values[i]));
        append(vh, found.V().transpose(), |_, _| true);
        Ok(())
    })?;
    let (su, ss, sv) = (Saved::output(&u), Saved::nth_output(&s, 1), Saved::nth_output(&vh, 2));
    let all = record_outputs(op, &[x], vec![u, s, vh], move |t| {
        let (u, s, vh) = (t.get(&su)?, t.get(&ss)?, t.get(&sv)?);
        let (row, column) = (s.unsqueeze(-2)?, s.unsqueeze(-1)?);
        let gaps = || inverse_gaps(&s.square()?);
        let skew = |x: Tensor| x.sub(&x.t()?);
        // dx = u (diag(ds) + (F * skew(u^T du)) S + S (F * skew(v^T dv))) vh with F[i, j] = 1 / (s[j]^2 - s[i]^2), and the parts of du and dv
        // that are orthogonal to u and v, divided by S.
        let mut inner = t.dy_or_zeros(1)?.diag_embed(0)?;
        let mut beside = Vec::new();
        if let Some(du) = t.dy_of(0) {
            let along = u.t()?.matmul(du)?;
            inner = inner.add(&skew(along.clone())?.mul(&gaps()?)?.mul(&row)?)?;
            if m > k {
                beside.push(du.sub(&u.matmul(&along)?)?.div(&row)?.matmul(&vh)?);
            }
        }
        if let Some(dvh) = t.dy_of(2) {
            let along = vh.matmul(&dvh.t()?)?;
            inner = inner.add(&skew(along.clone())?.mul(&gaps()?)?.mul(&column)?)?;
            if n > k {
                beside.push(u.matmul(&dvh.sub(&along.t()?.matmul(&vh)?)?.div(&column)?)?);
            }
        }
        let dx = beside.iter().try_fold(u.matmul(&inner)?.matmul(&vh)?, |sum, part| sum.add(part))?;
        Ok([dx])
    })?;
    let [u, s, vh] = all.try_into().unwrap_or_else(|_| unreachable!("three outputs were recorded"));
    Ok((u, s, vh))
}
