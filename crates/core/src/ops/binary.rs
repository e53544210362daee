//! Arithmetic of two operands, which broadcast, or of a tensor and a host scalar.

use super::{Part, all_or_each, common_shape, gradient_of, gradients, in_acc, pointwise_one};
use crate::pointwise::{Domain, Pointwise};
use crate::tape::{Saved, record};
use crate::tensor::{Attributes, check_float, check_same, describe, scalar_for};
use crate::{Error, Result, Scalar, Tensor, autocast};

/// The rounding of a quotient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Toward minus infinity.
    Floor,
    /// Toward zero.
    Trunc,
}

/// A pointwise function of two operands in their common shape and dtype.
fn binary(op: &'static str, row: Pointwise, a: &Tensor, b: &Tensor, floats: &[f64], ints: &[i64]) -> Result<Tensor> {
    check_same(op, &[a, b])?;
    check_number(op, row, a)?;
    let shape = common_shape(op, &[a, b])?;
    pointwise_one(op, row, &[a, b], Attributes { ints, floats }, &shape, a.dtype())
}

fn check_number(op: &'static str, row: Pointwise, a: &Tensor) -> Result<()> {
    match row.domain() {
        Domain::Real => check_float(op, a),
        Domain::Any if a.dtype().is_float() || a.dtype().is_int() => Ok(()),
        Domain::Integer if a.dtype().is_int() => Ok(()),
        _ => Err(Error::dtype(op, format!("{} was given, expected numbers", describe(&[a])))),
    }
}

/// A pointwise function of one operand and a host scalar.
fn with_scalar(op: &'static str, row: Pointwise, a: &Tensor, scalar: Scalar) -> Result<Tensor> {
    check_number(op, row, a)?;
    let (int, float) = scalar_for(op, scalar, a.dtype())?;
    pointwise_one(op, row, &[a], Attributes { ints: &[int], floats: &[float] }, a.shape(), a.dtype())
}

impl Tensor {
    /// `a + b`. Operands broadcast. Float and integer dtypes; integers wrap.
    pub fn add(&self, b: &Tensor) -> Result<Tensor> {
        add("add", self, b, 1.into())
    }

    /// `a - b`. Operands broadcast. Float and integer dtypes; integers wrap.
    pub fn sub(&self, b: &Tensor) -> Result<Tensor> {
        add("sub", self, b, (-1).into())
    }

    /// `a + alpha b`. Operands broadcast. Float and integer dtypes; integers wrap.
    pub fn add_scaled(&self, b: &Tensor, alpha: impl Into<Scalar>) -> Result<Tensor> {
        add("add_scaled", self, b, alpha.into())
    }

    /// `a b`. Operands broadcast. Float and integer dtypes; integers wrap.
    pub fn mul(&self, b: &Tensor) -> Result<Tensor> {
        let y = binary("mul", Pointwise::Mul, self, b, &[], &[])?;
        let (sa, sb) = (Saved::input(self), Saved::input(b));
        record("mul", &[self, b], y, move |t| {
            let (a, b) = (t.get(&sa)?, t.get(&sb)?);
            let row = Pointwise::Mul;
            let parts: [Part<'_>; 2] = [(a.shape(), row, &[&b]), (b.shape(), row, &[&a])];
            all_or_each(t, 0, (Pointwise::MulBackward, &[&a, &b]), &[], &parts)
        })
    }

    /// `a / b`. Operands broadcast. Float dtypes; integers need [`div_rounded`](Tensor::div_rounded).
    pub fn div(&self, b: &Tensor) -> Result<Tensor> {
        let y = binary("div", Pointwise::Div, self, b, &[], &[])?;
        let (sa, sb) = (Saved::input(self), Saved::input(b));
        record("div", &[self, b], y, move |t| {
            let (a, b) = (t.get(&sa)?, t.get(&sb)?);
            let parts: [Part<'_>; 2] =
                [(a.shape(), Pointwise::Div, &[&b]), (b.shape(), Pointwise::DivBackwardB, &[&a, &b])];
            all_or_each(t, 0, (Pointwise::DivBackward, &[&a, &b]), &[], &parts)
        })
    }

    /// The rounded quotient, outside of the tape. Operands broadcast. Float and integer dtypes.
    /// Errors: `Value` where an integer is divided by 0.
    pub fn div_rounded(&self, b: &Tensor, rounding: Rounding) -> Result<Tensor> {
        let row = match (rounding, self.dtype().is_int()) {
            (Rounding::Floor, false) => Pointwise::DivFloor,
            (Rounding::Trunc, false) => Pointwise::DivTrunc,
            (Rounding::Floor, true) => Pointwise::IntDivFloor,
            (Rounding::Trunc, true) => Pointwise::IntDivTrunc,
        };
        binary("div_rounded", row, self, b, &[], &[])
    }

    /// `a^b`. Operands broadcast. Float dtypes, and integer ones outside of the tape.
    pub fn pow(&self, b: &Tensor) -> Result<Tensor> {
        if let Some(([a, b], _)) = autocast::wide([self, b], None)? {
            return a.pow(&b);
        }
        if self.dtype().is_int() {
            return binary("pow", Pointwise::IntPow, self, b, &[], &[]);
        }
        let y = binary("pow", Pointwise::Pow, self, b, &[], &[])?;
        let (sa, sb) = (Saved::input(self), Saved::input(b));
        record("pow", &[self, b], y, move |t| {
            let (a, b) = (t.get(&sa)?, t.get(&sb)?);
            let inputs = [&a, &b];
            let parts: [Part<'_>; 2] =
                [(a.shape(), Pointwise::PowBackwardA, &inputs), (b.shape(), Pointwise::PowBackwardB, &inputs)];
            all_or_each(t, 0, (Pointwise::PowBackward, &inputs), &[], &parts)
        })
    }

    /// The larger of two; NaN if either is. Operands broadcast. Ties share the gradient. Float and integer dtypes.
    pub fn maximum(&self, b: &Tensor) -> Result<Tensor> {
        extremum(Pointwise::Maximum, [Pointwise::MaximumBackward, Pointwise::MaximumBackwardA], self, b)
    }

    /// The smaller of two; NaN if either is. Operands broadcast. Ties share the gradient. Float and integer dtypes.
    pub fn minimum(&self, b: &Tensor) -> Result<Tensor> {
        extremum(Pointwise::Minimum, [Pointwise::MinimumBackward, Pointwise::MinimumBackwardA], self, b)
    }

    /// `x + s`. Float and integer dtypes.
    pub fn add_scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
        let y = with_scalar("add_scalar", Pointwise::AddScalar, self, s.into())?;
        record("add_scalar", &[self], y, |t| gradients![Some(t.dy().clone())])
    }

    /// `x - s`. Float and integer dtypes.
    pub fn sub_scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
        let negated = match s.into() {
            Scalar::Int(v) => Scalar::Int(v.wrapping_neg()),
            Scalar::Float(v) => Scalar::Float(-v),
        };
        let y = with_scalar("sub_scalar", Pointwise::AddScalar, self, negated)?;
        record("sub_scalar", &[self], y, |t| gradients![Some(t.dy().clone())])
    }

    /// `s - x`. Float and integer dtypes.
    pub fn rsub_scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
        let y = with_scalar("rsub_scalar", Pointwise::RsubScalar, self, s.into())?;
        record("rsub_scalar", &[self], y, |t| gradients![Some(t.dy().neg()?)])
    }

    /// `x s`. Float and integer dtypes.
    pub fn mul_scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
        let s = s.into();
        let y = with_scalar("mul_scalar", Pointwise::MulScalar, self, s)?;
        record("mul_scalar", &[self], y, move |t| gradients![Some(t.dy().mul_scalar(s)?)])
    }

    /// `x / s`. Float dtypes.
    pub fn div_scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
        let s = s.into();
        let y = with_scalar("div_scalar", Pointwise::DivScalar, self, s)?;
        record("div_scalar", &[self], y, move |t| gradients![Some(t.dy().div_scalar(s)?)])
    }

    /// `s / x`. Float dtypes.
    pub fn rdiv_scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
        let s = s.into();
        let y = with_scalar("rdiv_scalar", Pointwise::RdivScalar, self, s)?;
        let saved = Saved::input(self);
        record("rdiv_scalar", &[self], y, move |t| {
            gradients![Some(t.row(Pointwise::RdivScalarBackward, &[t.dy(), &t.get(&saved)?], &[s.as_f64()])?)]
        })
    }

    /// `x^s`. Float and integer dtypes. Errors: `Attr` for an integer tensor with a negative exponent.
    pub fn pow_scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.pow_scalar(s);
        }
        let s = s.into();
        if self.dtype().is_int() {
            if s.as_i64().map_err(|e| e.of("pow_scalar"))? < 0 {
                return Err(Error::attr(
                    "pow_scalar",
                    format!("the exponent of integers is {s:?}, expected at least 0"),
                ));
            }
            return with_scalar("pow_scalar", Pointwise::IntPowScalar, self, s);
        }
        check_float("pow_scalar", self)?;
        let y = match s.as_f64() {
            2.0 => return self.square(),
            3.0 => self.no_tape(|x| in_acc(x, |x| x.square()?.mul(x)))?,
            0.5 => self.no_tape(Tensor::sqrt)?,
            -0.5 => self.no_tape(Tensor::rsqrt)?,
            -1.0 => return self.reciprocal(),
            -2.0 => self.no_tape(|x| in_acc(x, |x| x.square()?.reciprocal()))?,
            _ => with_scalar("pow_scalar", Pointwise::PowScalar, self, s)?,
        };
        let saved = Saved::input(self);
        record("pow_scalar", &[self], y, move |t| {
            gradients![Some(t.row(Pointwise::PowScalarBackward, &[t.dy(), &t.get(&saved)?], &[s.as_f64()])?)]
        })
    }

    /// `s^x`. Float dtypes.
    pub fn rpow_scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.rpow_scalar(s);
        }
        let s = s.into();
        let y = with_scalar("rpow_scalar", Pointwise::RpowScalar, self, s)?;
        let saved = Saved::input(self);
        record("rpow_scalar", &[self], y, move |t| {
            gradients![Some(t.row(Pointwise::RpowScalarBackward, &[t.dy(), &t.get(&saved)?], &[s.as_f64()])?)]
        })
    }

    fn no_tape(&self, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        crate::no_grad(|| f(self))
    }
}

/// `a + alpha b`.
fn add(op: &'static str, a: &Tensor, b: &Tensor, alpha: Scalar) -> Result<Tensor> {
    let (int, float) = scalar_for(op, alpha, a.dtype())?;
    let y = binary(op, Pointwise::Add, a, b, &[float], &[int])?;
    let (a_shape, b_shape) = (a.shape().clone(), b.shape().clone());
    record(op, &[a, b], y, move |t| {
        let db = || match float == 1.0 {
            true => t.dy().sum_to_size(&b_shape),
            false => gradient_of(t, Pointwise::MulScalar, &[], &[float], &b_shape),
        };
        gradients![t.want(0, || t.dy().sum_to_size(&a_shape))?, t.want(1, db)?]
    })
}

/// `backward`: the row of both gradients, and the row of the first operand's gradient.
fn extremum(row: Pointwise, backward: [Pointwise; 2], a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let y = binary(row.name(), row, a, b, &[], &[])?;
    let (sa, sb) = (Saved::input(a), Saved::input(b));
    record(row.name(), &[a, b], y, move |t| {
        let (a, b) = (t.get(&sa)?, t.get(&sb)?);
        let [both, first] = backward;
        let parts: [Part<'_>; 2] = [(a.shape(), first, &[&a, &b]), (b.shape(), first, &[&b, &a])];
        all_or_each(t, 0, (both, &[&a, &b]), &[], &parts)
    })
}
