//! Arithmetic of two operands, or of a tensor and a number.

use crate::bench::{self, Bench, MANY, STORED, call};
use crate::case::{Case, Domain, Gen};
use crate::registry::common::{CONSTANT, NO_GRADIENT, absolute, at, none, one, sum_of_two, with};
use crate::registry::invocation::Invocation;
use crate::registry::op::Class::{Arithmetic, Transcendental};
use crate::registry::op::Op;
use isograd_core::ops::Rounding;
use isograd_core::{Result, Tensor};
use serde_json::{Value, json};
use std::ops::Range;

/// A function of `a` and `b`, which broadcast.
fn binary(
    name: &'static str,
    run: fn(&Invocation<'_>, &Tensor, &Tensor) -> Result<Tensor>,
    domains: [Domain; 2],
    attributes: fn(&mut Gen) -> Value,
) -> Op {
    Op::new(
        name,
        move |c| one(run(c, c.input("a")?, c.input("b")?)),
        move |g| {
            let attributes = attributes(g);
            Case::new(attributes, vec![("a", g.broadcast(domains[0])), ("b", g.x(domains[1]))])
        },
    )
}

fn add(c: &Invocation<'_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let alpha = c.scalar_or("alpha", 1)?;
    if c.has("alpha") { a.add_scaled(b, alpha) } else { a.add(b) }
}

/// Subtraction has no factor: with another `alpha` than 1, the op is an addition.
fn sub(c: &Invocation<'_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match c.given("alpha").and_then(Value::as_i64) {
        None if c.has("alpha") => a.add_scaled(b, -c.float("alpha")?),
        // Also reads the default for the list of ops.
        None | Some(1) => c.scalar_or("alpha", 1).and_then(|_| a.sub(b)),
        Some(alpha) => a.add_scaled(b, -alpha),
    }
}

/// A quotient, not rounded by default.
fn div(c: &Invocation<'_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let roundings = [("none", None), ("floor", Some(Rounding::Floor)), ("trunc", Some(Rounding::Trunc))];
    match c.choice_or_first("rounding", &roundings)? {
        None => a.div(b),
        Some(rounding) => a.div_rounded(b, rounding),
    }
}

fn pow(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let a = c.input("a")?;
    one(match c.optional_of("exponent", Invocation::scalar)? {
        Some(exponent) => a.pow_scalar(exponent),
        None => a.pow(c.input("b")?),
    })
}

fn pow_case(g: &mut Gen) -> Case {
    if g.coin() {
        let attributes = json!({"exponent": g.pick(&[1.0, 2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 1.5])});
        return Case::new(attributes, vec![("a", g.x(Domain::Positive))]);
    }
    Case::new(none(), vec![("a", g.broadcast(Domain::Positive)), ("b", g.x(Domain::Real))])
}

/// A remainder of multiples of 0.1, plus 0.03, by 0.7 or -0.7: no quotient is near an integer, where it jumps.
fn divisor(name: &'static str, run: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Op {
    Op::new(
        name,
        move |c| one(run(c.input("a")?, c.input("b")?)),
        |g| {
            let (a, b) = (g.x(Domain::Grid(0.03)), g.broadcast(Domain::Away(&[0.0])));
            let b = b.sign().and_then(|sign| sign.mul_scalar(0.7)).expect("floats multiply");
            Case::new(none(), vec![("a", a), ("b", b)])
        },
    )
    .class(Arithmetic)
    .also(&["div_rounded"])
    .launches(1, 5)
}

/// An op of the bits of integers; `b` is in a range.
fn bits(name: &'static str, run: fn(&Tensor, &Tensor) -> Result<Tensor>, range: Range<usize>) -> Op {
    Op::new(
        name,
        move |c| one(run(c.input("a")?, c.input("b")?)),
        move |g| {
            let (small, shape) = (g.smaller(), g.shape.clone());
            Case::new(none(), vec![("a", g.indices(1000, &small)), ("b", g.indices(range.end, &shape))])
        },
    )
    .derivative(NO_GRADIENT)
}

/// `|a| + |b| + 1`.
fn with_one(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    one(sum_of_two(c)?[0].add_scalar(1.0))
}

/// An op of a tensor and a number.
fn scalar(name: &'static str, run: fn(&Invocation<'_>, &Tensor) -> Result<Tensor>, domain: Domain) -> Op {
    with(name, run, domain, |_| json!({"scalar": 1.5})).class(Arithmetic)
}

/// `|x| + |scalar|`.
fn scalar_terms(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    one(c.input("x")?.abs()?.add_scalar(c.float("scalar")?.abs()))
}

pub(crate) fn ops() -> Vec<Op> {
    let real = [Domain::Real, Domain::Real];
    let apart = [Domain::Grid(0.0), Domain::Grid(0.03)];
    vec![
        binary("add", add, real, |_| json!({"alpha": 1.5}))
            .class(Arithmetic)
            .companion(absolute)
            .linear()
            .also(&["add_scaled"])
            .launches(1, 2)
            .bench([Bench::new(&[MANY], call(bench::two, |_, x| x[0].add(&x[1])), |c| c.whole(3)).dtypes(STORED)]),
        binary("sub", sub, real, |_| none())
            .class(Arithmetic)
            .companion(sum_of_two)
            .linear()
            .also(&["add_scaled"])
            .launches(1, 2),
        binary("mul", |_, a, b| a.mul(b), real, |_| none())
            .class(Arithmetic)
            .fused()
            .launches(1, 3)
            .bench([Bench::new(&[MANY], call(bench::two, |_, x| x[0].mul(&x[1])), |c| c.whole(3)).dtypes(STORED)]),
        binary("div", div, [Domain::Real, Domain::Positive], |_| none())
            .class(Arithmetic)
            .fused()
            .also(&["div_rounded"])
            .launches(1, 3),
        Op::new("pow", pow, pow_case)
            .class(Transcendental)
            .fused()
            .also(&["pow_scalar", "square", "reciprocal"])
            .launches(2, 3),
        binary("atan2", |_, a, b| a.atan2(b), [Domain::Real, Domain::Positive], |_| none())
            .class(Transcendental)
            .fused()
            .launches(1, 3),
        binary("hypot", |_, a, b| a.hypot(b), [Domain::Real, Domain::Positive], |_| none())
            .class(Arithmetic)
            .fused()
            .launches(1, 3),
        binary("logaddexp", |_, a, b| a.logaddexp(b), real, |_| none())
            .class(Transcendental)
            .companion(with_one)
            .fused()
            .launches(1, 3),
        binary("xlogy", |_, a, b| a.xlogy(b), [Domain::Real, Domain::Positive], |_| none())
            .class(Transcendental)
            .fused()
            .launches(1, 3),
        binary("fmax", |_, a, b| a.fmax(b), apart, |_| none()).fused().launches(1, 3),
        binary("fmin", |_, a, b| a.fmin(b), apart, |_| none()).fused().launches(1, 3),
        divisor("remainder", Tensor::remainder),
        divisor("fmod", Tensor::fmod),
        binary("copysign", |_, a, b| a.copysign(b), [Domain::Away(&[0.0]); 2], |_| none())
            .constant(&["b"])
            .fused()
            .launches(1, 2),
        binary("heaviside", |_, a, b| a.heaviside(b), real, |_| none()).derivative(CONSTANT),
        bits("bitwise_and", Tensor::bitwise_and, 0..1000),
        bits("bitwise_or", Tensor::bitwise_or, 0..1000),
        bits("bitwise_xor", Tensor::bitwise_xor, 0..1000),
        bits("bitwise_left_shift", Tensor::bitwise_left_shift, 0..20),
        bits("bitwise_right_shift", Tensor::bitwise_right_shift, 0..20),
        Op::new(
            "bitwise_not",
            |c| one(c.input("x")?.bitwise_not()),
            |g| {
                let shape = g.shape.clone();
                at(none(), g.indices(1000, &shape))
            },
        )
        .derivative(NO_GRADIENT),
        binary("maximum", |_, a, b| a.maximum(b), apart, |_| none()).fused().launches(1, 3),
        binary("minimum", |_, a, b| a.minimum(b), apart, |_| none()).fused().launches(1, 3),
        scalar("add_scalar", |c, x| x.add_scalar(c.scalar("scalar")?), Domain::Real).companion(scalar_terms),
        scalar("sub_scalar", |c, x| x.sub_scalar(c.scalar("scalar")?), Domain::Real).companion(scalar_terms),
        scalar("rsub_scalar", |c, x| x.rsub_scalar(c.scalar("scalar")?), Domain::Real).companion(scalar_terms),
        scalar("mul_scalar", |c, x| x.mul_scalar(c.scalar("scalar")?), Domain::Real).linear(),
        scalar("div_scalar", |c, x| x.div_scalar(c.scalar("scalar")?), Domain::Real).linear(),
        scalar("rdiv_scalar", |c, x| x.rdiv_scalar(c.scalar("scalar")?), Domain::Positive),
        scalar("rpow_scalar", |c, x| x.rpow_scalar(c.scalar("scalar")?), Domain::Real).class(Transcendental),
    ]
}
