//! Linear systems and inverses.

use crate::host::{all, append, append_nan, check, each, extents, is_finite, matrix, side};
use faer::linalg::solvers::{DenseSolveCore, PartialPivLu, Solve};
use isograd_core::tape::{Saved, record};
use isograd_core::{Error, Result, Shape, Tensor};

/// The solution x of `a x = b` for square matrices `a: [.., N, N]` and `b: [.., N, K]`. b is a vector if it is `[N]`, or if its shape
/// is a's without the last dimension; so is x then. Batches broadcast. Dtypes f32 and f64. A system with NaN or infinity gives NaN.
/// Errors: `Shape`, `Dtype`; `Value` for a singular matrix.
pub fn solve(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let op = "solve";
    check(op, &[a, b])?;
    let is_vector = b.rank() == 1 || (b.rank() + 1 == a.rank() && b.dims() == &a.dims()[..b.rank()]);
    if is_vector {
        let (a, b) = batches(op, [a, &b.unsqueeze(-1)?], [a, b])?;
        return solved(op, &a, &b)?.squeeze(-1);
    }
    let (a, b) = batches(op, [a, b], [a, b])?;
    solved(op, &a, &b)
}

/// Square matrices and right sides with equal batches, from the operands `given`. Errors: `Shape`.
pub(crate) fn batches(op: &'static str, [a, b]: [&Tensor; 2], given: [&Tensor; 2]) -> Result<(Tensor, Tensor)> {
    let [of_a, of_b] = given.map(Tensor::shape);
    let wrong = |what: &str| Error::shape(op, format!("{of_a} and {of_b} were given, {what}"));
    let (&[ref of_a @ .., m, n], &[ref of_b @ .., rows, k]) = (a.dims(), b.dims()) else {
        return Err(wrong("expected matrices"));
    };
    if m != n || rows != n {
        return Err(wrong("expected square matrices, and a side that fits them"));
    }
    let batch = Shape::new(of_a).broadcast(&Shape::new(of_b)).map_err(|_| wrong("whose batches do not broadcast"))?;
    let expanded = |x: &Tensor, rows: usize, columns: usize| {
        let shape = [&*batch, &[rows, columns]].concat();
        if x.dims() == shape { Ok(x.clone()) } else { x.broadcast_to(shape).map_err(|e| e.of(op)) }
    };
    Ok((expanded(a, n, n)?, expanded(b, n, k)?))
}

/// The factors of a matrix with row pivoting, if it is regular.
pub(crate) fn factors(a: &[f64], n: usize) -> Result<PartialPivLu<f64>, String> {
    let factors = PartialPivLu::new(matrix(a, n, n));
    match (0..n).any(|i| factors.U()[(i, i)] == 0.0) {
        true => Err("is singular".into()),
        false => Ok(factors),
    }
}

/// The solution for equal batches.
fn solved(op: &'static str, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (n, [_, k]) = (side(op, a)?, extents(op, b)?);
    let [x] = each(op, [a, b], [&[n, k]], |[a, b], [x]| {
        if !is_finite(a) || !is_finite(b) {
            append_nan(x, n * k);
            return Ok(());
        }
        let mut solution = matrix(b, n, k).to_owned();
        factors(a, n)?.solve_in_place(solution.as_mut());
        append(x, solution.as_ref(), all);
        Ok(())
    })?;
    let (sa, sx) = (Saved::input(a), Saved::output(&x));
    record(op, &[a, b], x, move |t| {
        // db = a^-T dx, da = -db x^T.
        let db = solve(&t.get(&sa)?.t()?, t.dy())?;
        let da = t.want(0, || db.matmul(&t.get(&sx)?.t()?)?.neg())?;
        Ok([da, t.want(1, || Ok(db.clone()))?])
    })
}

/// The inverses of square matrices `[.., N, N]`. Dtypes f32 and f64. A matrix with NaN or infinity gives NaN. [`solve`](fn@solve) is faster and more
/// accurate where an inverse would be multiplied. Errors: `Shape`, `Dtype`; `Value` for a singular matrix.
pub fn inv(x: &Tensor) -> Result<Tensor> {
    let op = "inv";
    check(op, &[x])?;
    let n = side(op, x)?;
    let [y] = each(op, [x], [&[n, n]], |[a], [y]| {
        match is_finite(a) {
            true => append(y, factors(a, n)?.inverse().as_ref(), all),
            false => append_nan(y, n * n),
        }
        Ok(())
    })?;
    let saved = Saved::output(&y);
    record(op, &[x], y, move |t| {
        // dx = -y^T dy y^T.
        let y_t = t.get(&saved)?.t()?;
        Ok([y_t.matmul(t.dy())?.matmul(&y_t)?.neg()?])
    })
}
