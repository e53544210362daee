//! Triangular systems.

use crate::host::{all, append, check, each, extents, matrix, side};
use crate::solve::batches;
use faer::Par;
use faer::linalg::triangular_solve as faer_solve;
use isograd_core::tape::{Saved, record};
use isograd_core::{Error, Result, Tensor};

/// The triangle of a matrix that is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Triangle {
    /// On and below the diagonal.
    #[default]
    Lower,
    /// On and above the diagonal.
    Upper,
}

/// The side of the unknown on which a matrix stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// `a x = b`.
    #[default]
    Left,
    /// `x a = b`.
    Right,
}

/// The diagonal of a triangular matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Diagonal {
    /// Its elements.
    #[default]
    Own,
    /// Ones; the elements are not read.
    Ones,
}

/// The options of [`solve_triangular`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Triangular {
    /// The triangle that is read.
    pub triangle: Triangle,
    /// The side of the matrix.
    pub side: Side,
    /// The diagonal.
    pub diagonal: Diagonal,
}

impl Triangle {
    fn transposed(self) -> Triangle {
        if self == Triangle::Lower { Triangle::Upper } else { Triangle::Lower }
    }
}

/// The solution x of `a x = b`, or of `x a = b`, for triangular matrices `a: [.., N, N]` and `b: [.., N, K]`, or `[.., K, N]` on the
/// other side. Only one triangle is read, and its gradient is a triangle. Batches broadcast. Dtypes f32 and f64. Errors: `Shape`, `Dtype`;
/// `Value` for a 0 on the diagonal.
pub fn solve_triangular(a: &Tensor, b: &Tensor, options: &Triangular) -> Result<Tensor> {
    let op = "solve_triangular";
    check(op, &[a, b])?;
    if options.side == Side::Right {
        // x a = b is a^T x^T = b^T.
        if a.rank() < 2 || b.rank() < 2 {
            return Err(Error::shape(op, format!("{} and {} were given, expected matrices", a.shape(), b.shape())));
        }
        let options = Triangular { triangle: options.triangle.transposed(), side: Side::Left, ..*options };
        let (a, b) = batches(op, [&a.t()?, &b.t()?], [a, b])?;
        return solved(op, &a, &b, options)?.t();
    }
    let (a, b) = batches(op, [a, b], [a, b])?;
    solved(op, &a, &b, *options)
}

/// The solution for equal batches, with the matrix on the left.
fn solved(op: &'static str, a: &Tensor, b: &Tensor, options: Triangular) -> Result<Tensor> {
    let (n, [_, k]) = (side(op, a)?, extents(op, b)?);
    let [x] = each(op, [a, b], [&[n, k]], |[a, b], [x]| {
        let has_zero = (0..n).any(|i| a[i * n + i] == 0.0);
        if has_zero && options.diagonal == Diagonal::Own {
            return Err("is singular: it has a 0 on the diagonal".into());
        }
        let (a, mut solution) = (matrix(a, n, n), matrix(b, n, k).to_owned());
        let to = solution.as_mut();
        match (options.triangle, options.diagonal) {
            (Triangle::Lower, Diagonal::Own) => faer_solve::solve_lower_triangular_in_place(a, to, Par::Seq),
            (Triangle::Lower, Diagonal::Ones) => faer_solve::solve_unit_lower_triangular_in_place(a, to, Par::Seq),
            (Triangle::Upper, Diagonal::Own) => faer_solve::solve_upper_triangular_in_place(a, to, Par::Seq),
            (Triangle::Upper, Diagonal::Ones) => faer_solve::solve_unit_upper_triangular_in_place(a, to, Par::Seq),
        }
        append(x, solution.as_ref(), all);
        Ok(())
    })?;
    let (sa, sx) = (Saved::input(a), Saved::output(&x));
    record(op, &[a, b], x, move |t| {
        // db = a^-T dx, da = -db x^T.
        let options_t = Triangular { triangle: options.triangle.transposed(), ..options };
        let db = solve_triangular(&t.get(&sa)?.t()?, t.dy(), &options_t)?;
        let da = t.want(0, || {
            let da = db.matmul(&t.get(&sx)?.t()?)?.neg()?;
            let skipped = isize::from(options.diagonal == Diagonal::Ones);
            match options.triangle {
                Triangle::Lower => da.tril(-skipped),
                Triangle::Upper => da.triu(skipped),
            }
        })?;
        Ok([da, t.want(1, || Ok(db.clone()))?])
    })
}
