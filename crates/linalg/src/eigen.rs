//! Eigenvalues of symmetric matrices.

use crate::host::{all, append, check, check_finite, each, matrix, side};
use crate::{both_sizes, largest, over_gap};
use faer::Side;
use faer::linalg::solvers::SelfAdjointEigen;
use isograd_core::tape::{Saved, record_outputs};
use isograd_core::{Result, Tensor};

/// The eigenvalues `[.., N]` of symmetric matrices `[.., N, N]`, ascending, and their eigenvectors, the columns of `[.., N, N]`. Only the lower
/// triangle is read. The signs of eigenvectors are not specified. The gradient is symmetric. Of equal eigenvalues it is NaN, unless
/// the gradients of their eigenvectors are 0 among them, as for a norm or a trace. Dtypes f32 and f64. Errors: `Shape`, `Dtype`; `Value` for a matrix that
/// is not finite, or where the iteration does not converge. The gradient is that of Giles 2008, Oxford NA-08/01, section 3.1.
pub fn eigh(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let op = "eigh";
    check(op, &[x])?;
    let n = side(op, x)?;
    let [w, v] = each(op, [x], [&[n], &[n, n]], |[a], [w, v]| {
        check_finite(a)?;
        let found = SelfAdjointEigen::new(matrix(a, n, n), Side::Lower);
        let found = found.map_err(|_| "has eigenvalues that were not found")?;
        let values = found.S().column_vector();
        w.extend((0..n).map(|i| values[i]));
        append(v, found.U(), all);
        Ok(())
    })?;
    let (sw, sv) = (Saved::output(&w), Saved::nth_output(&v, 1));
    let mut both = record_outputs(op, &[x], vec![w, v], move |t| {
        // dx is the symmetric part of v (diag(dw) + (v^T dv) / gap) v^T with gap[i, j] = w[j] - w[i], which is skew.
        let (v, v_t) = (t.get(&sv)?, t.get(&sv)?.t()?);
        let mut inner = t.dy_or_zeros(0)?.diag_embed(0)?;
        if let Some(dv) = t.dy_of(1).filter(|dv| dv.numel() > 0) {
            let (w, along) = (t.get(&sw)?, v_t.matmul(dv)?);
            let (row, column) = (w.unsqueeze(-2)?, w.unsqueeze(-1)?);
            let skew = along.sub(&along.t()?)?.mul_scalar(0.5)?;
            let units = [&largest(dv)?, &largest(&row)?];
            inner = inner.add(&over_gap(&skew, &both_sizes(&along)?, &row.sub(&column)?, units)?)?;
        }
        let dx = v.matmul(&inner)?.matmul(&v_t)?;
        Ok([dx.add(&dx.t()?)?.mul_scalar(0.5)?])
    })?;
    let v = both.swap_remove(1);
    Ok((both.swap_remove(0), v))
}
