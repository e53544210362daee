//! Several arithmetic steps as one pointwise function.

use crate::bench::{self, Bench, Call, Cost, MANY, STORED, call};
use crate::case::{Case, Domain, Gen};
use crate::registry::common::{absolute, none, one};
use crate::registry::invocation::Invocation;
use crate::registry::op::Class::Arithmetic;
use crate::registry::op::Op;
use isograd_core::{Result, Tensor};
use serde_json::json;

fn clamp(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let (x, lo, hi) = (c.input("x")?, c.optional("min"), c.optional("max"));
    if lo.is_some() || hi.is_some() {
        return one(x.clamp_tensor(lo, hi));
    }
    let bound = |name: &str| c.optional_of(name, Invocation::scalar);
    one(x.clamp(bound("min")?, bound("max")?))
}

fn clamp_case(g: &mut Gen) -> Case {
    let x = ("x", g.x(Domain::Grid(0.0)));
    match g.below(5) {
        0 => Case::new(json!({"min": -0.5625}), vec![x]),
        1 => Case::new(json!({"max": 0.5625}), vec![x]),
        2 => Case::new(json!({"min": -0.5625, "max": 0.5625}), vec![x]),
        3 => Case::new(none(), vec![x, ("min", g.broadcast(Domain::Grid(0.03)))]),
        _ => Case::new(
            none(),
            vec![x, ("min", g.broadcast(Domain::Grid(0.03))), ("max", g.broadcast(Domain::Grid(0.06)))],
        ),
    }
}

/// `|a| + |w| (|a| + |b|)`.
fn lerp_terms(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let (a, b) = (c.input("a")?.abs()?, c.input("b")?.abs()?);
    let difference = a.add(&b)?;
    let step = match c.optional("weight") {
        Some(w) => difference.mul(&w.abs()?.add_scalar(1.0)?)?,
        None => difference.mul_scalar(c.float("weight")?.abs() + 1.0)?,
    };
    one(a.add(&b)?.add(&step))
}

pub(crate) fn ops() -> Vec<Op> {
    vec![
        Op::new(
            "addcmul",
            |c| one(c.input("s")?.addcmul(c.input("a")?, c.input("b")?, c.scalar_or("value", 1)?)),
            |g| {
                let s = g.x(Domain::Real);
                let rest = [("a", g.broadcast(Domain::Real)), ("b", g.broadcast(Domain::Real))];
                Case::new(json!({"value": 0.3}), [("s", s)].into_iter().chain(rest).collect())
            },
        )
        .class(Arithmetic)
        .companion(absolute)
        .fused()
        .launches(1, 4),
        Op::new(
            "addcdiv",
            |c| one(c.input("s")?.addcdiv(c.input("a")?, c.input("b")?, c.float_or("value", 1.0)?)),
            |g| {
                let s = g.x(Domain::Real);
                let rest = [("a", g.broadcast(Domain::Real)), ("b", g.broadcast(Domain::Positive))];
                Case::new(json!({"value": 0.3}), [("s", s)].into_iter().chain(rest).collect())
            },
        )
        .class(Arithmetic)
        .companion(absolute)
        .fused()
        .launches(1, 4),
        Op::new(
            "lerp",
            |c| {
                let (a, b) = (c.input("a")?, c.input("b")?);
                match c.optional("weight") {
                    Some(w) => one(a.lerp(b, w)),
                    None => one(a.lerp_scalar(b, c.float("weight")?)),
                }
            },
            |g| {
                let (a, b) = (g.broadcast(Domain::Real), g.x(Domain::Real));
                match g.coin() {
                    true => Case::new(json!({"weight": g.pick(&[0.0, 0.25, 0.75, 1.0])}), vec![("a", a), ("b", b)]),
                    false => Case::new(none(), vec![("a", a), ("b", b), ("weight", g.broadcast(Domain::Unit))]),
                }
            },
        )
        .class(Arithmetic)
        .companion(lerp_terms)
        .fused()
        .launches(1, 4),
        Op::new(
            "where_cond",
            |c| {
                let (cond, a) = (c.input("cond")?, c.input("a")?);
                one(match c.optional("b") {
                    Some(b) => cond.where_cond(a, b),
                    None => cond.where_scalar(a, c.scalar("scalar")?),
                })
            },
            |g| {
                let small = g.smaller();
                let (cond, a) = (g.mask(&small), g.broadcast(Domain::Real));
                match g.coin() {
                    true => Case::new(none(), vec![("cond", cond), ("a", a), ("b", g.x(Domain::Real))]),
                    false => Case::new(json!({"scalar": 0.5}), vec![("cond", cond), ("a", a)]),
                }
            },
        )
        .fused()
        // The gradient of one operand is one kernel; the gradient of the other is a kernel and a sum in two stages.
        .launches(1, 4)
        .bench([choices()]),
        Op::new("clamp", clamp, clamp_case)
            .also(&["maximum", "minimum"])
            .launches(2, 3)
            .bench([Bench::elementwise(bench::one, |_, x| x[0].clamp(Some((-0.5).into()), Some(0.5.into())))]),
    ]
}

fn choices() -> Bench {
    let inputs = |c: &Call| Ok([vec![c.normal(&c.dims)?.gt_scalar(0.0)?], c.alike(2)?].concat());
    let cost = |c: &Call| Cost::bytes(c.bytes(3 * c.numel()) + c.numel());
    Bench::new(&[MANY], call(inputs, |_, x| x[0].where_cond(&x[1], &x[2])), cost).dtypes(STORED)
}
