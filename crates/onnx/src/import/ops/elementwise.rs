//! Arithmetic, comparisons, logic, bits, roundings, elementary functions, casts.

use super::{Op, Table};
use crate::import::call::{Call, numbered, unsupported};
use crate::import::element::Element;
use crate::import::value::{Numbers, Value};
use isograd_core::ops::Rounding;
use isograd_core::{DType, Result, Tensor};

pub const OPS: Table = &[
    ("Add", Op::One(|c| binary(c, Tensor::add))),
    ("Sub", Op::One(|c| binary(c, Tensor::sub))),
    ("Mul", Op::One(|c| binary(c, Tensor::mul))),
    ("Div", Op::One(|c| binary(c, quotient))),
    ("Mod", Op::One(modulo)),
    ("Pow", Op::One(pow)),
    ("Max", Op::One(|c| folded(c, Tensor::maximum))),
    ("Min", Op::One(|c| folded(c, Tensor::minimum))),
    ("Sum", Op::One(|c| folded(c, Tensor::add))),
    ("Mean", Op::Tensor(mean)),
    ("BitwiseAnd", Op::One(|c| binary(c, Tensor::bitwise_and))),
    ("BitwiseOr", Op::One(|c| binary(c, Tensor::bitwise_or))),
    ("BitwiseXor", Op::One(|c| binary(c, Tensor::bitwise_xor))),
    ("BitwiseNot", Op::One(|c| c.wrapped(0, c.x(0)?.bitwise_not()?))),
    ("BitShift", Op::One(bit_shift)),
    ("And", Op::Tensor(|c| c.x(0)?.logical_and(&c.x(1)?))),
    ("Or", Op::Tensor(|c| c.x(0)?.logical_or(&c.x(1)?))),
    ("Xor", Op::Tensor(|c| c.x(0)?.logical_xor(&c.x(1)?))),
    ("Not", Op::Tensor(|c| c.x(0)?.logical_not())),
    ("Equal", Op::Tensor(|c| c.x(0)?.eq(&c.x(1)?))),
    ("Less", Op::Tensor(|c| c.x(0)?.lt(&c.x(1)?))),
    ("Greater", Op::Tensor(|c| c.x(0)?.gt(&c.x(1)?))),
    ("LessOrEqual", Op::Tensor(|c| c.x(0)?.le(&c.x(1)?))),
    ("GreaterOrEqual", Op::Tensor(|c| c.x(0)?.ge(&c.x(1)?))),
    ("Where", Op::One(|c| c.moved(1, c.x(0)?.where_cond(&c.x(1)?, &c.x(2)?)?))),
    ("Clip", Op::One(clip)),
    ("Abs", Op::One(|c| c.wrapped(0, c.x(0)?.abs()?))),
    ("Neg", Op::One(|c| c.wrapped(0, c.x(0)?.neg()?))),
    ("Sign", Op::One(|c| c.moved(0, c.x(0)?.sign()?))),
    ("Ceil", Op::Tensor(|c| c.x(0)?.ceil())),
    ("Floor", Op::Tensor(|c| c.x(0)?.floor())),
    ("Round", Op::Tensor(|c| c.x(0)?.round())),
    ("Sqrt", Op::Tensor(|c| c.x(0)?.sqrt())),
    ("Exp", Op::Tensor(|c| c.x(0)?.exp())),
    ("Log", Op::Tensor(|c| c.x(0)?.log())),
    ("Reciprocal", Op::Tensor(|c| c.x(0)?.reciprocal())),
    ("Sin", Op::Tensor(|c| c.x(0)?.sin())),
    ("Cos", Op::Tensor(|c| c.x(0)?.cos())),
    ("Tan", Op::Tensor(|c| c.x(0)?.tan())),
    ("Asin", Op::Tensor(|c| c.x(0)?.asin())),
    ("Acos", Op::Tensor(|c| c.x(0)?.acos())),
    ("Atan", Op::Tensor(|c| c.x(0)?.atan())),
    ("Sinh", Op::Tensor(|c| c.x(0)?.sinh())),
    ("Cosh", Op::Tensor(|c| c.x(0)?.cosh())),
    ("Asinh", Op::Tensor(|c| c.x(0)?.asinh())),
    ("Acosh", Op::Tensor(|c| c.x(0)?.acosh())),
    ("Atanh", Op::Tensor(|c| c.x(0)?.atanh())),
    ("Erf", Op::Tensor(|c| c.x(0)?.erf())),
    ("IsNaN", Op::Tensor(|c| c.x(0)?.isnan())),
    ("IsInf", Op::Tensor(is_inf)),
    ("Cast", Op::One(|c| cast(c, numbered(c.needed("to")?)?))),
    ("CastLike", Op::One(|c| cast(c, c.element(1)?))),
];

fn binary(c: &Call<'_>, f: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Value> {
    c.wrapped(0, f(&c.x(0)?, &c.x(1)?)?)
}

/// The quotient, of integers toward zero.
fn quotient(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.dtype().is_float() { a.div(b) } else { a.div_rounded(b, Rounding::Trunc) }
}

/// A function of all inputs, two at a time.
fn folded(c: &Call<'_>, f: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Value> {
    let all = c.all()?;
    c.wrapped(0, all[1..].iter().try_fold(all[0].clone(), |sum, x| f(&sum, x))?)
}

fn mean(c: &Call<'_>) -> Result<Tensor> {
    let all = c.all()?;
    all[1..].iter().try_fold(all[0].clone(), |sum, x| sum.add(x))?.div_scalar(all.len() as f64)
}

fn modulo(c: &Call<'_>) -> Result<Value> {
    binary(c, if c.flag("fmod")? { Tensor::fmod } else { Tensor::remainder })
}

/// A power in the type of the base. An exponent that the host knows needs no logarithm of the base for a gradient.
fn pow(c: &Call<'_>) -> Result<Value> {
    let a = c.x(0)?;
    if let (true, Some(host)) = (a.dtype().is_float(), c.value(1)?.host())
        && let ([exponent], true) = (&host.to_floats()[..], host.dims.len() <= a.rank())
    {
        return Ok(a.pow_scalar(*exponent)?.into());
    }
    let b = c.x(1)?;
    let y = match (a.dtype(), b.dtype()) {
        (base, exponent) if base == exponent => a.pow(&b)?,
        (base, _) if base.is_float() => a.pow(&b.cast(base)?)?,
        (base, exponent) if exponent.is_float() => a.cast(DType::F64)?.pow(&b.cast(DType::F64)?)?.cast(base)?,
        _ => a.cast(DType::I64)?.pow(&b.cast(DType::I64)?)?,
    };
    c.wrapped(0, y)
}

fn bit_shift(c: &Call<'_>) -> Result<Value> {
    match c.text("direction", "")? {
        "LEFT" => binary(c, Tensor::bitwise_left_shift),
        "RIGHT" => binary(c, Tensor::bitwise_right_shift),
        other => unsupported(format!("a shift in the direction {other:?}")),
    }
}

/// A limit of x: a number of the host or of an attribute, or a tensor.
fn limit(c: &Call<'_>, name: &str, i: usize) -> Result<Option<Numbers>> {
    match (c.node.attributes.float(name)?, c.given(i)) {
        (Some(v), _) => Ok(Some(Numbers::Floats(vec![v]))),
        (None, Some(value)) => value.host().map(|_| value.numbers()).transpose(),
        (None, None) => Ok(None),
    }
}

fn clip(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    let [low, high] = [("min", 1), ("max", 2)].map(|(name, i)| limit(c, name, i));
    let (low, high) = (low?, high?);
    let is_on_device = |known: &Option<Numbers>, i: usize| known.is_none() && c.given(i).is_some();
    let is_narrow = c.element(0)?.range().is_some();
    if is_on_device(&low, 1) || is_on_device(&high, 2) || is_narrow {
        // Numpy's order: the upper limit wins.
        let (low, high) = (c.optional(1)?, c.optional(2)?);
        let x = low.map_or(Ok(x.clone()), |low| x.maximum(&low))?;
        return c.moved(0, high.map_or(Ok(x.clone()), |high| x.minimum(&high))?);
    }
    let number = |numbers: Option<Numbers>| match numbers {
        Some(Numbers::Ints(v)) => v.first().map(|&v| v.into()),
        Some(Numbers::Floats(v)) => v.first().map(|&v| v.into()),
        None => None,
    };
    match (number(low), number(high)) {
        (None, None) => c.moved(0, x),
        (low, high) => c.moved(0, x.clamp(low, high)?),
    }
}

fn is_inf(c: &Call<'_>) -> Result<Tensor> {
    let (x, zero) = (c.x(0)?, 0.0);
    let is_infinite = x.isinf()?;
    match (c.int("detect_negative", 1)? != 0, c.int("detect_positive", 1)? != 0) {
        (true, true) => Ok(is_infinite),
        (true, false) => is_infinite.logical_and(&x.lt_scalar(zero)?),
        (false, true) => is_infinite.logical_and(&x.gt_scalar(zero)?),
        (false, false) => is_infinite.logical_and(&x.isnan()?),
    }
}

/// Elements in another type. Floats become integers toward zero, and integers keep their low bits.
fn cast(c: &Call<'_>, to: Element) -> Result<Value> {
    let (x, from) = (c.x(0)?, c.element(0)?);
    if to == from {
        return c.moved(0, x);
    }
    if to.is_float8() {
        return unsupported(format!("a cast to {}", to.name()));
    }
    let y = match (x.dtype(), to.range()) {
        (own, Some(_)) if own.is_float() => x.cast(DType::I64)?,
        (own, None) if own.is_float() || to.dtype().is_float() || to.dtype() == DType::Bool => x.cast(to.dtype())?,
        (DType::Bool, _) => x.cast(DType::I64)?,
        _ => x,
    };
    to.with(y)
}
