//! Products of matrices.

use super::{Op, Table};
use crate::import::call::{Call, misshapen, wrong};
use crate::import::value::Value;
use isograd_core::ops::Gemm;
use isograd_core::{DType, Result, Tensor};

pub const OPS: Table = &[
    ("MatMul", Op::One(matmul)),
    ("Gemm", Op::One(gemm)),
    ("Einsum", Op::Tensor(einsum)),
    ("Det", Op::Tensor(|c| determinant(&c.x(0)?))),
];

/// A function of floats, of operands that may be integers: these are computed in f64, which is exact below 2^53.
pub fn in_floats(c: &Call<'_>, operands: &[&Tensor], f: impl FnOnce(&[&Tensor]) -> Result<Tensor>) -> Result<Value> {
    if operands[0].dtype().is_float() {
        return Ok(f(operands)?.into());
    }
    let wide: Vec<Tensor> = operands.iter().map(|t| t.cast(DType::F64)).collect::<Result<_>>()?;
    c.wrapped(0, f(&wide.iter().collect::<Vec<_>>())?.cast(DType::I64)?)
}

fn matmul(c: &Call<'_>) -> Result<Value> {
    in_floats(c, &[&c.x(0)?, &c.x(1)?], |x| x[0].matmul(x[1]))
}

/// `alpha a b + beta c` of matrices that may be transposed.
pub fn gemm(c: &Call<'_>) -> Result<Value> {
    let (a, b, bias) = (c.x(0)?, c.x(1)?, c.optional(2)?);
    if a.rank() != 2 || b.rank() != 2 {
        return misshapen(format!("{} and {} were given, expected matrices", a.shape(), b.shape()));
    }
    let scale = Gemm { alpha: c.float("alpha", 1.0)?, beta: c.float("beta", 1.0)? };
    let (turned, b_turned) = (c.flag("transA")?, c.flag("transB")?);
    let a = if turned { a.t()? } else { a };
    let is_row = bias.as_ref().is_none_or(|bias| bias.dims() == [b.dims()[0]]);
    if a.dtype().is_float() && b_turned && is_row && scale == Gemm::default() {
        return Ok(a.linear(&b, bias.as_ref())?.into());
    }
    let b = if b_turned { b.t()? } else { b };
    let operands: Vec<&Tensor> = [&a, &b].into_iter().chain(&bias).collect();
    in_floats(c, &operands, |x| x[0].gemm(x[1], x.get(2).copied(), &scale))
}

/// The determinants of matrices `[.., n, n]`: the product of the pivots of an elimination, each the largest of its column.
fn determinant(x: &Tensor) -> Result<Tensor> {
    let [.., rows, columns] = *x.dims() else {
        return misshapen(format!("{} was given, expected matrices", x.shape()));
    };
    if rows != columns {
        return misshapen(format!("{} was given, expected square matrices", x.shape()));
    }
    let (batch, n) = (&x.dims()[..x.rank() - 2], rows);
    let mut product = Tensor::ones(batch.iter().product::<usize>(), x.dtype(), x.device())?;
    let mut rest = x.reshape([product.numel(), n, n])?;
    for n in (1..=n).rev() {
        let column = rest.narrow(2, 0, 1)?;
        let at = column.abs()?.argmax(1)?.unsqueeze(2)?;
        let row = rest.gather(1, &at.broadcast_to([product.numel(), 1, n])?)?;
        let pivot = row.narrow(2, 0, 1)?;
        let sign = at.eq_scalar(0)?.cast(x.dtype())?.mul_scalar(2.0)?.sub_scalar(1.0)?;
        product = product.mul(&pivot.mul(&sign)?.reshape(product.shape())?)?;
        // The first row takes the place of the pivot's.
        let is_pivot = Tensor::arange(n, x.device())?.reshape([1, n, 1])?.eq(&at)?;
        let others = is_pivot.where_cond(&rest.narrow(1, 0, 1)?, &rest)?.narrow(1, 1, n - 1)?;
        let divisor = pivot.eq_scalar(0.0)?.where_cond(&pivot.ones_like()?, &pivot)?;
        let factors = others.narrow(2, 0, 1)?.div(&divisor)?;
        rest = others.sub(&factors.mul(&row)?)?.narrow(2, 1, n - 1)?;
    }
    product.reshape(batch)
}

fn einsum(c: &Call<'_>) -> Result<Tensor> {
    let equation = c.text("equation", "")?;
    if equation.is_empty() {
        return wrong("the equation is missing");
    }
    Tensor::einsum(equation, &c.all()?.iter().collect::<Vec<_>>())
}
