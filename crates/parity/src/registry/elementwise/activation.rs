//! Activations.

use crate::bench::{self, Bench};
use crate::case::{Case, Domain, Gen};
use crate::registry::common::{at, map, none, one, with};
use crate::registry::invocation::Invocation;
use crate::registry::op::Class::{Arithmetic, Transcendental};
use crate::registry::op::Op;
use isograd_core::ops::{Approximate, Swiglu};
use isograd_core::{Result, Tensor};
use serde_json::{Value, json};

const HAS_KINKS: &[f64] = &[-3.0, -1.0, -0.5, 0.0, 0.125, 0.5, 0.75, 1.0, 2.5, 3.0];

fn approximate(c: &Invocation<'_>) -> Result<Approximate> {
    approximate_of(c, "approximate")
}

/// The formulas of gelu, by the values of the attribute `approximate`.
pub(crate) const APPROXIMATIONS: [(&str, Approximate); 2] = [("none", Approximate::None), ("tanh", Approximate::Tanh)];

pub(crate) fn approximate_of(c: &Invocation<'_>, name: &str) -> Result<Approximate> {
    c.choice(name, &APPROXIMATIONS)
}

fn gelu(c: &Invocation<'_>, x: &Tensor) -> Result<Tensor> {
    x.gelu(approximate(c)?)
}

/// |x|, for cancellation in `1 + erf` and `1 + tanh`.
fn magnitude(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    one(c.input("x")?.abs())
}

/// `|x| (|x| + 3) / 6`.
fn hardswish_terms(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let x = c.input("x")?.abs()?;
    one(x.mul(&x.add_scalar(3.0)?)?.div_scalar(6.0))
}

/// The attributes, or none, so that those of the op are the defaults.
fn either(g: &mut Gen, attributes: Value) -> Value {
    if g.coin() { attributes } else { none() }
}

fn selu(c: &Invocation<'_>, x: &Tensor) -> Result<Tensor> {
    let (alpha, gamma) = (c.optional_of("alpha", Invocation::float)?, c.optional_of("gamma", Invocation::float)?);
    match alpha.zip(gamma) {
        Some((alpha, gamma)) => x.selu_with(alpha, gamma),
        None => x.selu(),
    }
}

fn hardsigmoid(c: &Invocation<'_>, x: &Tensor) -> Result<Tensor> {
    x.hardsigmoid_with(c.float_or("alpha", 1.0 / 6.0)?, c.float_or("beta", 0.5)?)
}

/// `|alpha x| + |beta|`.
fn hardsigmoid_terms(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let (alpha, beta) = (c.float_or("alpha", 1.0 / 6.0)?, c.float_or("beta", 0.5)?);
    one(c.input("x")?.mul_scalar(alpha)?.abs()?.add_scalar(beta.abs()))
}

fn swiglu(c: &Invocation<'_>) -> Result<Tensor> {
    let Swiglu { alpha, beta, limit } = Swiglu::default();
    let (alpha, beta, limit) = (c.float_or("alpha", alpha)?, c.float_or("beta", beta)?, c.float_or("limit", limit)?);
    c.input("gate")?.swiglu_with(c.input("up")?, &Swiglu { alpha, beta, limit })
}

pub(crate) fn ops() -> Vec<Op> {
    let kinks = Domain::Away(HAS_KINKS);
    vec![
        map("relu", Tensor::relu, kinks)
            .bench([Bench::elementwise(bench::one, |_, x| x[0].relu()).backward(|c| c.whole(3))]),
        with("leaky_relu", |c, x| x.leaky_relu(c.float("slope")?), kinks, |_| json!({"slope": 0.01})).class(Arithmetic),
        map("sigmoid", Tensor::sigmoid, Domain::Real).class(Transcendental),
        map("tanh", Tensor::tanh, Domain::Real).class(Transcendental),
        with("gelu", gelu, Domain::Real, |g| json!({"approximate": if g.coin() { "none" } else { "tanh" }}))
            .class(Transcendental)
            .companion(magnitude)
            .bench([Bench::elementwise(bench::one, |_, x| x[0].gelu(Approximate::None)).backward(|c| c.whole(3))]),
        map("silu", Tensor::silu, Domain::Real).class(Transcendental),
        with("elu", |c, x| x.elu(c.float("alpha")?), kinks, |_| json!({"alpha": 0.7})).class(Transcendental),
        with("celu", |c, x| x.celu(c.float("alpha")?), kinks, |_| json!({"alpha": 0.7})).class(Transcendental),
        with("selu", selu, kinks, |g| either(g, json!({"alpha": 0.9, "gamma": 1.3}))).class(Transcendental),
        map("softsign", Tensor::softsign, kinks).class(Arithmetic),
        map("logsigmoid", Tensor::logsigmoid, Domain::Real).class(Transcendental),
        map("tanhshrink", Tensor::tanhshrink, Domain::Real).class(Transcendental).companion(magnitude),
        with("softshrink", |c, x| x.softshrink(c.float("lambda")?), kinks, |_| json!({"lambda": 0.5}))
            .class(Arithmetic),
        with("hardshrink", |c, x| x.hardshrink(c.float("lambda")?), kinks, |_| json!({"lambda": 0.5})),
        Op::new(
            "prelu",
            |c| one(c.input("x")?.prelu(c.input("weight")?)),
            move |g| {
                let channels = if g.coin() { 1 } else { g.shape.get(1).copied().unwrap_or(1) };
                Case::new(none(), vec![("x", g.x(kinks)), ("weight", g.tensor(Domain::Real, &[channels]))])
            },
        )
        .class(Arithmetic)
        .fused()
        .launches(1, 3),
        Op::new(
            "glu",
            |c| one(c.input("x")?.glu(c.dim("dim")?)),
            |g| {
                g.at_least_rank(1);
                let d = g.below(g.shape.len());
                g.shape[d] *= 2;
                at(json!({"dim": d}), g.x(Domain::Real))
            },
        )
        .class(Transcendental)
        .launches(2, 8)
        .also(&["mul", "sigmoid", "narrow"]),
        map("mish", Tensor::mish, Domain::Real).class(Transcendental),
        with(
            "softplus",
            |c, x| x.softplus(c.float("beta")?, c.float("threshold")?),
            kinks,
            |_| json!({"beta": 2.0, "threshold": 5.0}),
        )
        .class(Transcendental),
        map("hardswish", Tensor::hardswish, kinks).class(Arithmetic).companion(hardswish_terms),
        with("hardsigmoid", hardsigmoid, kinks, |g| either(g, json!({"alpha": 0.25, "beta": 0.625})))
            .class(Arithmetic)
            .companion(hardsigmoid_terms),
        map("relu6", Tensor::relu6, kinks),
        with(
            "hardtanh",
            |c, x| x.hardtanh(c.float("min")?, c.float("max")?),
            kinks,
            |_| json!({"min": -0.5, "max": 0.75}),
        ),
        with(
            "threshold",
            |c, x| x.threshold(c.float("threshold")?, c.float("value")?),
            kinks,
            |_| json!({"threshold": 0.125, "value": -2.0}),
        ),
        map("relu_squared", Tensor::relu_squared, kinks).class(Arithmetic),
        Op::new(
            "swiglu",
            |c| one(swiglu(c)),
            |g| {
                let limited = Domain::Away(&[-5.5, 5.5]);
                let attributes = either(g, json!({"alpha": 1.702, "beta": 1.0, "limit": 5.5}));
                Case::new(attributes, vec![("gate", g.x(limited)), ("up", g.x(limited))])
            },
        )
        .class(Transcendental),
        Op::new(
            "silu_and_mul",
            |c| one(c.input("x")?.silu_and_mul()),
            |g| {
                g.at_least_rank(1);
                if let Some(d) = g.shape.last_mut() {
                    *d *= 2;
                }
                at(none(), g.x(Domain::Real))
            },
        )
        .class(Transcendental)
        .fused(),
    ]
}
