//! Determinants.

use crate::host::{append, append_nan, check, each, is_finite, matrix, side};
use crate::inv;
use crate::solve::factors;
use faer::linalg::solvers::{DenseSolveCore, PartialPivLu, Svd};
use faer::{Mat, MatRef};
use isograd_core::tape::{Saved, record, record_outputs};
use isograd_core::{Result, Tensor};

/// The determinants of square matrices: `[.., N, N]` to `[..]`. It is 0 for a singular matrix, whose gradient is its matrix of cofactors,
/// as everywhere. Dtypes f32 and f64. A matrix with NaN or infinity gives NaN. Errors: `Shape`, `Dtype`; `Value` for the second derivative
/// of a singular matrix.
pub fn det(x: &Tensor) -> Result<Tensor> {
    let op = "det";
    check(op, &[x])?;
    let n = side(op, x)?;
    let [y] = each(op, [x], [&[]], |[a], [y]| {
        let (sign, pivots) = pivots(a, n);
        y.push(pivots.iter().fold(sign, |product, pivot| product * pivot));
        Ok(())
    })?;
    let (sx, sy) = (Saved::input(x), Saved::output(&y));
    record(op, &[x], y, move |t| {
        let x = t.get(&sx)?;
        let spread = |v: &Tensor| v.unsqueeze(-1)?.unsqueeze(-1);
        let slope = match t.creates_graph() {
            true => spread(&t.get(&sy)?)?.mul(&inverse_transposed(op, &x)?)?,
            false => cofactors(op, &x)?,
        };
        Ok([spread(t.dy())?.mul(&slope)?])
    })
}

/// The sign of the determinants of square matrices, -1, 0 or 1, and the logarithms of their absolute values: `[.., N, N]` to `[..]` and
/// `[..]`. The logarithm is -infinity for a singular matrix whose pivots are exact; another has a pivot that is a rounding, and with it some
/// sign and a finite logarithm. The sign has the gradient 0. Dtypes f32 and f64. A matrix with NaN or infinity
/// gives NaN. Errors: `Shape`, `Dtype`; `Value` for the gradient of a singular matrix.
pub fn slogdet(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let op = "slogdet";
    check(op, &[x])?;
    let n = side(op, x)?;
    let [sign, log] = each(op, [x], [&[], &[]], |[a], [sign, log]| {
        let (turns, pivots) = pivots(a, n);
        let signum = |v: f64| if v == 0.0 { 0.0 } else { v.signum() };
        sign.push(pivots.iter().fold(turns, |product, &pivot| product * signum(pivot)));
        log.push(pivots.iter().map(|pivot| pivot.abs().ln()).sum());
        Ok(())
    })?;
    let saved = Saved::input(x);
    let mut both = record_outputs(op, &[x], vec![sign, log], move |t| {
        let x = t.get(&saved)?;
        let dx = match t.dy_of(1) {
            Some(dy) => dy.unsqueeze(-1)?.unsqueeze(-1)?.mul(&inverse_transposed(op, &x)?)?,
            None => x.zeros_like()?,
        };
        Ok([dx])
    })?;
    let log = both.swap_remove(1);
    Ok((both.swap_remove(0), log))
}

/// The sign of the row permutation, and the pivots, whose product with it is the determinant.
fn pivots(a: &[f64], n: usize) -> (f64, Vec<f64>) {
    if n == 0 || !is_finite(a) {
        return (1.0, vec![f64::NAN; n.min(1)]);
    }
    pivots_of(matrix(a, n, n))
}

fn pivots_of(a: MatRef<'_, f64>) -> (f64, Vec<f64>) {
    let factors = PartialPivLu::new(a);
    let mut rows: Vec<usize> = factors.P().arrays().0.to_vec();
    let mut sign = 1.0;
    for i in 0..rows.len() {
        while rows[i] != i {
            let j = rows[i];
            rows.swap(i, j);
            sign = -sign;
        }
    }
    let pivots: Vec<f64> = (0..rows.len()).map(|i| factors.U()[(i, i)]).collect();
    // The factors after a pivot of 0 are not numbers.
    if pivots.contains(&0.0) { (1.0, vec![0.0; rows.len()]) } else { (sign, pivots) }
}

fn inverse_transposed(op: &'static str, x: &Tensor) -> Result<Tensor> {
    inv(x).map_err(|e| e.of(op))?.t()
}

/// The cofactors of each matrix: the derivatives of its determinant by its elements. Outside of the tape.
fn cofactors(op: &'static str, x: &Tensor) -> Result<Tensor> {
    let n = side(op, x)?;
    let [y] = each(op, [x], [&[n, n]], |[a], [y]| {
        if !is_finite(a) {
            append_nan(y, n * n);
            return Ok(());
        }
        let found = match factors(a, n) {
            Ok(factors) => {
                let (sign, pivots) = pivots(a, n);
                let det = pivots.iter().fold(sign, |product, pivot| product * pivot);
                let inverse = factors.inverse();
                Mat::from_fn(n, n, |i, j| det * inverse[(j, i)])
            }
            Err(_) => singular_cofactors(a, n)?,
        };
        append(y, found.as_ref(), |_, _| true);
        Ok(())
    })?;
    Ok(y)
}

/// The cofactors of a singular matrix `U S V^T`: `det(U) det(V) U C V^T`, where C is diagonal and has the products of all other singular
/// values.
fn singular_cofactors(a: &[f64], n: usize) -> Result<Mat<f64>, String> {
    let svd = Svd::new(matrix(a, n, n)).map_err(|_| "has singular values that were not found")?;
    let s = svd.S().column_vector();
    let of = |m: MatRef<'_, f64>| {
        let (sign, pivots) = pivots_of(m);
        pivots.iter().fold(sign, |product, pivot| product * pivot).signum()
    };
    let sign = of(svd.U()) * of(svd.V());
    let others = |k: usize| (0..n).filter(|&j| j != k).map(|j| s[j]).product::<f64>();
    let scales: Vec<f64> = (0..n).map(|k| sign * others(k)).collect();
    let element = |i: usize, j: usize| (0..n).map(|k| svd.U()[(i, k)] * scales[k] * svd.V()[(j, k)]).sum::<f64>();
    Ok(Mat::from_fn(n, n, element))
}
