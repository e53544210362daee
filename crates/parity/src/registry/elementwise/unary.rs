//! Functions of one operand.

use crate::case::{Domain, Gen};
use crate::registry::common::{CONSTANT, NO_GRADIENT, at, map, none, one, with};
use crate::registry::invocation::Invocation;
use crate::registry::op::Class::{Arithmetic, Transcendental};
use crate::registry::op::Op;
use isograd_core::ops::NanToNum;
use isograd_core::{Result, Tensor};
use serde_json::json;

/// 1.2 to 3.2.
fn beyond_one(g: &mut Gen) -> Tensor {
    g.x(Domain::Positive).add_scalar(1.0).expect("floats add")
}

/// Results are differences of numbers of this size.
fn of_size_ten(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    one(c.input("x")?.full_like(10.0))
}

/// 1, for results that are differences of numbers of this size.
fn of_size_one(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    one(c.input("x")?.ones_like())
}

fn numbers(c: &Invocation<'_>) -> Result<NanToNum> {
    Ok(NanToNum {
        nan: c.optional_of("nan", Invocation::float)?.unwrap_or_default(),
        infinity: c.optional_of("infinity", Invocation::float)?,
        minus_infinity: c.optional_of("minus_infinity", Invocation::float)?,
    })
}

pub(crate) fn ops() -> Vec<Op> {
    let kinks = Domain::Away(&[-6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let halves = Domain::Away(&[-5.5, -4.5, -3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5]);
    let t = |op: Op| op.class(Transcendental);
    vec![
        map("neg", Tensor::neg, Domain::Real).linear(),
        map("abs", Tensor::abs, kinks),
        t(map("exp", Tensor::exp, Domain::Real)),
        t(map("expm1", Tensor::expm1, Domain::Real)),
        t(map("log", Tensor::log, Domain::Positive)),
        t(map("log1p", Tensor::log1p, Domain::Positive)),
        map("sqrt", Tensor::sqrt, Domain::Positive).class(Arithmetic),
        t(map("rsqrt", Tensor::rsqrt, Domain::Positive)),
        t(map("sin", Tensor::sin, Domain::Real)),
        t(map("cos", Tensor::cos, Domain::Real)),
        t(map("erf", Tensor::erf, Domain::Real)),
        t(map("erfc", Tensor::erfc, Domain::Real)),
        t(map("erfinv", Tensor::erfinv, Domain::Unit)),
        t(map("lgamma", Tensor::lgamma, Domain::Positive)).companion(of_size_ten),
        t(map("digamma", Tensor::digamma, Domain::Positive)).companion(of_size_ten),
        t(map("exp2", Tensor::exp2, Domain::Real)),
        t(map("log2", Tensor::log2, Domain::Positive)),
        t(map("log10", Tensor::log10, Domain::Positive)),
        t(map("tan", Tensor::tan, Domain::Unit)),
        t(map("asin", Tensor::asin, Domain::Unit)),
        t(map("acos", Tensor::acos, Domain::Unit)),
        t(map("atan", Tensor::atan, Domain::Real)),
        t(map("sinh", Tensor::sinh, Domain::Real)),
        t(map("cosh", Tensor::cosh, Domain::Real)),
        t(map("asinh", Tensor::asinh, Domain::Real)),
        t(Op::new("acosh", |c| one(c.input("x")?.acosh()), |g| at(none(), beyond_one(g)))),
        t(map("atanh", Tensor::atanh, Domain::Unit)),
        t(map("sinc", Tensor::sinc, Domain::Real)).companion(of_size_one),
        t(map("entr", Tensor::entr, Domain::Positive)).companion(of_size_one),
        t(with(
            "logit",
            |c, x| x.logit(c.optional_of("eps", Invocation::float)?),
            Domain::Unit,
            |g| if g.coin() { json!({"eps": 0.012}) } else { none() },
        ))
        .companion(of_size_one),
        with(
            "nan_to_num",
            |c, x| x.nan_to_num(&numbers(c)?),
            Domain::Real,
            |_| json!({"infinity": 9.0, "minus_infinity": -7.0}),
        ),
        map("square", Tensor::square, Domain::Real).class(Arithmetic),
        map("reciprocal", Tensor::reciprocal, Domain::Positive).class(Arithmetic),
        map("frac", Tensor::frac, kinks),
        map("floor", Tensor::floor, kinks).derivative(CONSTANT),
        map("ceil", Tensor::ceil, kinks).derivative(CONSTANT),
        map("trunc", Tensor::trunc, kinks).derivative(CONSTANT),
        map("round", Tensor::round, halves).derivative(CONSTANT),
        map("sign", Tensor::sign, kinks).derivative(CONSTANT),
        map("isnan", Tensor::isnan, Domain::Real).derivative(NO_GRADIENT),
        map("isinf", Tensor::isinf, Domain::Real).derivative(NO_GRADIENT),
        map("isfinite", Tensor::isfinite, Domain::Real).derivative(NO_GRADIENT),
        map("not_finite", Tensor::not_finite, Domain::Real).derivative(NO_GRADIENT),
    ]
}
