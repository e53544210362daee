//! The singular value decomposition.

use crate::host::{append, check, check_finite, each, extents, matrix};
use crate::{both_sizes, largest, over_gap};
use faer::linalg::solvers::Svd;
use isograd_core::tape::{Saved, record_outputs};
use isograd_core::{Result, Tensor};

/// The thin decompositions `x = U diag(S) Vh` of matrices `[.., M, N]`: U `[.., M, K]` and Vh `[.., K, N]`, whose columns and rows are
/// orthonormal, and the singular values S `[.., K]`, descending, for `K = min(M, N)`. It is PyTorch's with `full_matrices=False`. The signs of
/// singular vectors are not specified. Of equal singular values the gradient is NaN, and of those that are 0 in a matrix that is not square,
/// unless the gradients of their vectors are 0, as for a norm of the product. Dtypes f32 and f64. Errors: `Shape`, `Dtype`; `Value` for a matrix that is not finite, or where the iteration does not converge. The
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
        // dx = u (diag(ds) + (A S + S B) / (s[j]^2 - s[i]^2)) vh with the skew matrices A = u^T du - du^T u and B = v^T dv - dv^T v, and the parts
        // of du and dv that are orthogonal to u and v, divided by S. The quotient is (A + B) / 2(s[j] - s[i]) + (A - B) / 2(s[j] + s[i]).
        let mut inner = t.dy_or_zeros(1)?.diag_embed(0)?;
        if inner.numel() == 0 || (t.dy_of(0).is_none() && t.dy_of(2).is_none()) {
            return Ok([u.matmul(&inner)?.matmul(&vh)?]);
        }
        let (du, dvh, most) = (t.dy_or_zeros(0)?, t.dy_or_zeros(2)?, largest(&row)?);
        let (of_u, of_v) = (largest(&du)?, largest(&dvh)?);
        let (along_u, along_v) = (u.t()?.matmul(&du)?, vh.matmul(&dvh.t()?)?);
        let [a, b] = [&along_u, &along_v].map(|along| along.sub(&along.t()?));
        let (a, b, size) = (a?, b?, both_sizes(&along_u)?.add(&both_sizes(&along_v)?)?);
        let units = [&of_u.maximum(&of_v)?, &most];
        let apart = over_gap(&a.add(&b)?, &size, &row.sub(&column)?, units)?;
        let together = over_gap(&a.sub(&b)?, &size, &row.add(&column)?, units)?;
        inner = inner.add(&apart.add(&together)?.mul_scalar(0.5)?)?;
        let mut beside = Vec::new();
        if m > k {
            let part = du.sub(&u.matmul(&along_u)?)?;
            beside.push(over_gap(&part, &part, &row, [&of_u, &most])?.matmul(&vh)?);
        }
        if n > k {
            let part = dvh.sub(&along_v.t()?.matmul(&vh)?)?;
            beside.push(u.matmul(&over_gap(&part, &part, &column, [&of_v, &most])?)?);
        }
        let dx = beside.iter().try_fold(u.matmul(&inner)?.matmul(&vh)?, |sum, part| sum.add(part))?;
        Ok([dx])
    })?;
    let [u, s, vh] = all.try_into().unwrap_or_else(|_| unreachable!("three outputs were recorded"));
    Ok((u, s, vh))
}
