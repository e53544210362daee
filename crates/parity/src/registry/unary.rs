//! Functions of one operand.

use super::Class::{Arithmetic, Transcendental};
use super::Op;
use super::common::{CONSTANT, NO_GRADIENT, map};
use crate::case::Domain;
use isograd_core::Tensor;

pub(super) fn ops() -> Vec<Op> {
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
        map("square", Tensor::square, Domain::Real).class(Arithmetic),
        map("reciprocal", Tensor::reciprocal, Domain::Positive).class(Arithmetic),
        map("frac", Tensor::frac, kinks),
        map("floor", Tensor::floor, kinks).derivative(CONSTANT),
        map("ceil", Tensor::ceil, kinks).derivative(CONSTANT),
        map("trunc", Tensor::trunc, kinks).derivative(CONSTANT),
        map("round", Tensor::round, halves).derivative(CONSTANT),
        map("sign", Tensor::sign, kinks).derivative(CONSTANT),
        map("not_finite", Tensor::not_finite, Domain::Real).derivative(NO_GRADIENT),
    ]
}
