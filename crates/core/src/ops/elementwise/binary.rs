//! Arithmetic of two operands, which broadcast, or of a tensor and a host scalar.

use crate::check::{check_float, check_same, describe, scalar_for};
use crate::ops::{OperandGradient, all_or_each, common_shape, gradient_of, gradients, in_acc, pointwise_one};
use crate::pointwise::{Domain, Pointwise};
use crate::tape::{Saved, record};
use crate::tensor::Attributes;
use crate::{Error, Result, Scalar, Tensor, autocast};

/// The rounding of a quotient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Toward minus infinity.
    Floor,
    /// Toward zero.
    Trunc,
}

/// Rows that run on bool as well: true is larger than false.
const IN_BOOL: &[Pointwise] = &[Pointwise::Maximum, Pointwise::Minimum];

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
        Domain::Any if a.dtype().is_number() || IN_BOOL.contains(&row) => Ok(()),
        Domain::Integer if a.dtype().is_number() && !a.dtype().is_float() => Ok(()),
        _ => Err(Error::dtype(op, format!("{} was given, expected numbers", describe(&[a])))),
    }
}

/// A pointwise function of one operand and a host scalar.
fn with_scalar(op: &'static str, row: Pointwise, a: &Tensor, scalar: Scalar) -> Result<Tensor> {
    check_number(op, row, a)?;
    let (int, float) = scalar_for(op, scalar, a.dtype())?;
    pointwise_one(op, row, &[a], Attributes { ints: &[int], floats: &[float] }, a.shape(), a.dtype())
}

/// # Arithmetic
impl Tensor {
    /// `a + b`. Operands broadcast. Float and integer dtypes; integers wrap.
    pub fn add(&self, b: &Tensor) -> Result<Tensor> {
        add("add", self, b, 1.into())
    }

    /// `a - b`. Operands broadcast. Float and integer dtypes; integers wrap.
    pub fn sub(&self, b: &Tensor) -> Result<Tensor> {
        add("sub", self, b, (-1).into())
    }

    /// `a + alpha b`. Operands broadcast. Float and integer dtypes; integers wrap. A float alpha is rounded to the dtype of arithmetic, f32 for
    /// f16 and bf16, not to that of a.
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
            let parts: [OperandGradient<'_>; 2] = [(a.shape(), row, &[&b]), (b.shape(), row, &[&a])];
            all_or_each(t, 0, (Pointwise::MulBackward, &[&a, &b]), &[], &parts)
        })
    }

    /// `a / b`. Operands broadcast. Float dtypes; integers need [`div_rounded`](Tensor::div_rounded).
    pub fn div(&self, b: &Tensor) -> Result<Tensor> {
        let y = binary("div", Pointwise::Div, self, b, &[], &[])?;
        let (sa, sb) = (Saved::input(self), Saved::input(b));
        record("div", &[self, b], y, move |t| {
            let (a, b) = (t.get(&sa)?, t.get(&sb)?);
            let parts: [OperandGradient<'_>; 2] =
                [(a.shape(), Pointwise::Div, &[&b]), (b.shape(), Pointwise::DivBackwardB, &[&a, &b])];
            all_or_each(t, 0, (Pointwise::DivBackward, &[&a, &b]), &[], &parts)
        })
    }

    /// The rounded quotient, outside of the tape. Operands broadcast. Float and integer dtypes.
    /// Errors: `Value` where an integer is divided by 0.
    pub fn div_rounded(&self, b: &Tensor, rounding: Rounding) -> Result<Tensor> {
        let row = match (rounding, !self.dtype().is_float()) {
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
        if !self.dtype().is_float() {
            return binary("pow", Pointwise::IntPow, self, b, &[], &[]);
        }
        let slopes =
            Slopes { both: Pointwise::PowBackward, a: Pointwise::PowBackwardA, b: Some(Pointwise::PowBackwardB) };
        differentiable("pow", Pointwise::Pow, slopes, self, b)
    }

    /// `x + s`. Float and integer dtypes. A float s is rounded to the dtype of arithmetic, f32 for f16 and bf16, not to that of x.
    pub fn add_scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
        let y = with_scalar("add_scalar", Pointwise::AddScalar, self, s.into())?;
        record("add_scalar", &[self], y, |t| gradients![Some(t.dy().clone())])
    }

    /// `x - s`. Float and integer dtypes. A float s is rounded to the dtype of arithmetic, f32 for f16 and bf16, not to that of x.
    pub fn sub_scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
        let negated = match s.into() {
            Scalar::Int(v) => Scalar::Int(v.wrapping_neg()),
            Scalar::Float(v) => Scalar::Float(-v),
        };
        let y = with_scalar("sub_scalar", Pointwise::AddScalar, self, negated)?;
        record("sub_scalar", &[self], y, |t| gradients![Some(t.dy().clone())])
    }

    /// `s - x`. Float and integer dtypes. A float s is rounded to the dtype of arithmetic, f32 for f16 and bf16, not to that of x.
    pub fn rsub_scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
        let y = with_scalar("rsub_scalar", Pointwise::RsubScalar, self, s.into())?;
        record("rsub_scalar", &[self], y, |t| gradients![Some(t.dy().neg()?)])
    }

    /// `x s`. Float and integer dtypes. A float s is rounded to the dtype of arithmetic, f32 for f16 and bf16, not to that of x.
    pub fn mul_scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
        let s = s.into();
        let y = with_scalar("mul_scalar", Pointwise::MulScalar, self, s)?;
        record("mul_scalar", &[self], y, move |t| gradients![Some(t.dy().mul_scalar(s)?)])
    }

    /// `x / s`. Float dtypes. The number s is rounded to the dtype of arithmetic, f32 for f16 and bf16, not to that of x.
    pub fn div_scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
        let s = s.into();
        let y = with_scalar("div_scalar", Pointwise::DivScalar, self, s)?;
        record("div_scalar", &[self], y, move |t| gradients![Some(t.dy().div_scalar(s)?)])
    }

    /// `s / x`. Float dtypes. The number s is rounded to the dtype of arithmetic, f32 for f16 and bf16, not to that of x.
    pub fn rdiv_scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
        let s = s.into();
        let y = with_scalar("rdiv_scalar", Pointwise::RdivScalar, self, s)?;
        let saved = Saved::input(self);
        record("rdiv_scalar", &[self], y, move |t| {
            gradients![Some(t.row(Pointwise::RdivScalarBackward, &[t.dy(), &t.get(&saved)?], &[s.as_f64()])?)]
        })
    }

    /// `x^s`. Float and integer dtypes. A float s is rounded to the dtype of arithmetic, f32 for f16 and bf16, not to that of x. Errors: `Attr`
    /// for an integer tensor with a negative exponent.
    pub fn pow_scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.pow_scalar(s);
        }
        let s = s.into();
        if !self.dtype().is_float() {
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

    /// `s^x`. Float dtypes. The number s is rounded to the dtype of arithmetic, f32 for f16 and bf16, not to that of x.
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

/// The rows of the gradients of a function of two operands, from dy, a and b.
struct Slopes {
    /// Both gradients.
    both: Pointwise,
    /// The gradient of `a`.
    a: Pointwise,
    /// The gradient of `b`. None: the row of `a`, with a and b exchanged.
    b: Option<Pointwise>,
}

/// A function of two operands, on the tape.
fn differentiable(op: &'static str, row: Pointwise, slopes: Slopes, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let y = binary(op, row, a, b, &[], &[])?;
    let (sa, sb) = (Saved::input(a), Saved::input(b));
    record(op, &[a, b], y, move |t| {
        let (a, b) = (t.get(&sa)?, t.get(&sb)?);
        let (in_order, exchanged) = ([&a, &b], [&b, &a]);
        let of_b: (_, &[&Tensor]) = slopes.b.map_or((slopes.a, &exchanged), |row| (row, &in_order));
        let parts: [OperandGradient<'_>; 2] = [(a.shape(), slopes.a, &in_order), (b.shape(), of_b.0, of_b.1)];
        all_or_each(t, 0, (slopes.both, &in_order), &[], &parts)
    })
}

macro_rules! symmetric {
    ($($(#[$doc:meta])* $name:ident $row:ident $both:ident $one:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            pub fn $name(&self, b: &Tensor) -> Result<Tensor> {
                let slopes = Slopes { both: Pointwise::$both, a: Pointwise::$one, b: None };
                differentiable(stringify!($name), Pointwise::$row, slopes, self, b)
            }
        )*}
    };
}

symmetric! {
    /// The larger of two; NaN if either is. Operands broadcast. Ties share the gradient. All dtypes; true is larger than false.
    maximum Maximum MaximumBackward MaximumBackwardA;
    /// The smaller of two; NaN if either is. Operands broadcast. Ties share the gradient. All dtypes; true is larger than false.
    minimum Minimum MinimumBackward MinimumBackwardA;
    /// `sqrt(a^2 + b^2)` without overflow. Operands broadcast. The gradient at (0, 0) is 0. Float dtypes.
    hypot Hypot HypotBackward HypotBackwardA;
    /// `ln(e^a + e^b)` without overflow. Operands broadcast. Float dtypes.
    logaddexp LogAddExp LogAddExpBackward LogAddExpBackwardA;
}

macro_rules! ordered {
    ($($(#[$doc:meta])* $name:ident $row:ident $both:ident $a:ident $b:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            pub fn $name(&self, b: &Tensor) -> Result<Tensor> {
                let slopes = Slopes { both: Pointwise::$both, a: Pointwise::$a, b: Some(Pointwise::$b) };
                differentiable(stringify!($name), Pointwise::$row, slopes, self, b)
            }
        )*}
    };
}

ordered! {
    /// The angle of the point (b, a), `-pi` to `pi`. Operands broadcast. The gradient at (0, 0) is 0. Float dtypes.
    atan2 Atan2 Atan2Backward Atan2BackwardA Atan2BackwardB;
    /// `a ln(b)`, and 0 where a is 0 and b is no NaN. Operands broadcast. Float dtypes.
    xlogy Xlogy XlogyBackward XlogyBackwardA XlogyBackwardB;
    /// The larger of two; the other where one is NaN. Operands broadcast. Of equal operands, a has the gradient. Float dtypes.
    fmax Fmax FmaxBackward FmaxBackwardA FmaxBackwardB;
    /// The smaller of two; the other where one is NaN. Operands broadcast. Of equal operands, a has the gradient. Float dtypes.
    fmin Fmin FminBackward FminBackwardA FminBackwardB;
}

/// The remainder of a division that is rounded.
fn remainder(op: &'static str, rows: [Pointwise; 2], rounding: Rounding, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let y = binary(op, rows[!a.dtype().is_float() as usize], a, b, &[], &[])?;
    let (sa, sb, a_shape) = (Saved::input(a), Saved::input(b), a.shape().clone());
    record(op, &[a, b], y, move |t| {
        let db = || {
            let (a, b) = (t.get(&sa)?, t.get(&sb)?);
            t.dy().mul(&a.div_rounded(&b, rounding)?)?.neg()?.sum_to_size(b.shape())
        };
        gradients![t.want(0, || t.dy().sum_to_size(&a_shape))?, t.want(1, db)?]
    })
}

macro_rules! integers {
    ($($(#[$doc:meta])* $name:ident $row:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            pub fn $name(&self, b: &Tensor) -> Result<Tensor> {
                binary(stringify!($name), Pointwise::$row, self, b, &[], &[])
            }
        )*}
    };
}

integers! {
    /// The bits that both have. Operands broadcast. Integer dtypes.
    bitwise_and BitwiseAnd;
    /// The bits that a or b has. Operands broadcast. Integer dtypes.
    bitwise_or BitwiseOr;
    /// The bits that either a or b has. Operands broadcast. Integer dtypes.
    bitwise_xor BitwiseXor;
    /// `a 2^b`, which wraps; 0 for a b that is negative or beyond 63. Operands broadcast. Integer dtypes.
    bitwise_left_shift BitwiseLeftShift;
    /// `a / 2^b`, rounded toward minus infinity; a negative b counts as 63. Operands broadcast. Integer dtypes.
    bitwise_right_shift BitwiseRightShift;
    /// 0 for a negative a, 1 for a positive one, and b where a is 0, outside of the tape. Operands broadcast. Float and integer
    /// dtypes.
    heaviside Heaviside;
}

impl Tensor {
    /// `x` where positive, `weight x` elsewhere. `weight`: `[1]`, or `[C]`, one for each channel of x `[N, C, ..]`. The gradient
    /// of x at 0 is that of a negative number. Float dtypes. Errors: `Shape`. He et al. 2015, arXiv 1502.01852.
    pub fn prelu(&self, weight: &Tensor) -> Result<Tensor> {
        let channels = self.dims().get(1).copied().unwrap_or(1);
        if weight.rank() != 1 || ![1, channels].contains(&weight.numel()) {
            let message = format!("weight is {}, expected [1] or [{channels}] for x {}", weight.shape(), self.shape());
            return Err(Error::shape("prelu", message));
        }
        let mut dims = vec![1; self.rank()];
        if weight.numel() != 1 {
            dims[1] = channels;
        }
        let (both, a, b) = (Pointwise::PreluBackward, Pointwise::PreluBackwardX, Some(Pointwise::PreluBackwardWeight));
        differentiable("prelu", Pointwise::Prelu, Slopes { both, a, b }, self, &weight.reshape(dims)?)
    }

    /// `a - b floor(a / b)`, which has the sign of b. Operands broadcast. Float and integer dtypes. Errors: `Value` where an
    /// integer is divided by 0.
    pub fn remainder(&self, b: &Tensor) -> Result<Tensor> {
        remainder("remainder", [Pointwise::Remainder, Pointwise::IntRemainder], Rounding::Floor, self, b)
    }

    /// `a - b trunc(a / b)`, which has the sign of a. Operands broadcast. Float and integer dtypes. Errors: `Value` where an
    /// integer is divided by 0.
    pub fn fmod(&self, b: &Tensor) -> Result<Tensor> {
        remainder("fmod", [Pointwise::Fmod, Pointwise::IntFmod], Rounding::Trunc, self, b)
    }

    /// `|a|` with the sign of b, also of -0. Operands broadcast. The gradient of b is 0, and that of a is 0 where a is. Float
    /// dtypes.
    pub fn copysign(&self, b: &Tensor) -> Result<Tensor> {
        let y = binary("copysign", Pointwise::Copysign, self, b, &[], &[])?;
        let (sa, sb) = (Saved::input(self), Saved::input(b));
        record("copysign", &[self], y, move |t| {
            let (a, b) = (t.get(&sa)?, t.get(&sb)?);
            gradients![gradient_of(t, Pointwise::CopysignBackward, &[&a, &b], &[], a.shape())?]
        })
    }

    /// The bits that x lacks. Integer dtypes.
    pub fn bitwise_not(&self) -> Result<Tensor> {
        check_number("bitwise_not", Pointwise::BitwiseNot, self)?;
        pointwise_one("bitwise_not", Pointwise::BitwiseNot, &[self], Attributes::default(), self.shape(), self.dtype())
    }
}
