//! Shared by rows of several families.

use super::invocation::Invocation;
use super::op::{Changes, Derivative, Op, result};
use crate::case::{Case, Domain, Gen};
use isograd_core::ops::KEEP;
use isograd_core::{Device, Result, Tensor};
use serde_json::{Value, json};

/// The reason why ops have no derivative.
pub(super) const CONSTANT: Derivative = Derivative::None("piecewise constant");
pub(super) const NO_GRADIENT: Derivative = Derivative::None("the result is no function of float inputs");
pub(super) const IN_PLACE: Derivative = Derivative::None("in place, outside of the tape");

pub(super) fn one(t: Result<Tensor>) -> Result<Vec<Tensor>> {
    Ok(vec![t?])
}

pub(super) fn two(pair: Result<(Tensor, Tensor)>) -> Result<Vec<Tensor>> {
    pair.map(|(a, b)| vec![a, b])
}

/// The op with the absolute values of its inputs.
pub(super) fn absolute(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let abs = |t: &Tensor| if t.dtype().is_float() { t.abs() } else { Ok(t.clone()) };
    let inputs: Vec<(String, Tensor)> =
        c.inputs.iter().map(|(n, t)| Ok((n.clone(), abs(t)?))).collect::<Result<_>>()?;
    result(&Invocation { inputs: &inputs, ..*c })
}

/// `|a| + |b|`, for a difference with the factor 1.
pub(super) fn sum_of_two(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    one(c.inputs[0].1.abs()?.add(&c.inputs[1].1.abs()?))
}

pub(super) fn at(attributes: Value, x: Tensor) -> Case {
    Case::new(attributes, vec![("x", x)])
}

pub(super) fn none() -> Value {
    json!({})
}

/// A function of `x` alone.
pub(super) fn map(name: &'static str, f: fn(&Tensor) -> Result<Tensor>, domain: Domain) -> Op {
    Op::new(name, move |c| one(f(c.input("x")?)), move |g| at(none(), g.x(domain)))
}

/// A function of `x` and attributes.
pub(super) fn with(
    name: &'static str,
    run: fn(&Invocation<'_>, &Tensor) -> Result<Tensor>,
    domain: Domain,
    attributes: fn(&mut Gen) -> Value,
) -> Op {
    Op::new(
        name,
        move |c| one(run(c, c.input("x")?)),
        move |g| {
            let attributes = attributes(g);
            at(attributes, g.x(domain))
        },
    )
}

/// An op that changes a copy of `x`.
pub(super) fn in_place(
    name: &'static str,
    changes: Changes,
    run: fn(&Invocation<'_>, &Tensor) -> Result<()>,
    make: impl Fn(&mut Gen) -> Case + Send + Sync + 'static,
) -> Op {
    let run = move |c: &Invocation<'_>| {
        let y = c.changed("x")?;
        run(c, &y)?;
        Ok(vec![y])
    };
    Op::new(name, run, make).changes(changes).derivative(IN_PLACE)
}

/// Distinct values. In large cases, which are not checked by finite differences, half of the cases have many equal values.
pub(super) fn ordered(g: &mut Gen) -> Tensor {
    let (is_large, x) = (g.is_large(), g.x(Domain::Distinct));
    if is_large && g.coin() { g.x(Domain::Real).round().expect("floats round") } else { x }
}

const PER_DIMENSION: &str = "a size, or a list of one for each dimension";

/// An attribute with `N` extents, or one for all dimensions; null is [`KEEP`].
pub(super) fn extents<const N: usize>(
    c: &Invocation<'_>,
    name: &str,
    default: Option<[usize; N]>,
) -> Result<[usize; N]> {
    let size = |v: &Value| if v.is_null() { Some(KEEP) } else { v.as_u64().map(|v| v as usize) };
    let of = |v: &Value| match v.as_array() {
        Some(all) => all.iter().map(size).collect::<Option<Vec<usize>>>()?.try_into().ok(),
        None => size(v).map(|v| [v; N]),
    };
    match default {
        Some(default) => Ok(c.optional_of(name, |c, name| c.get(name, PER_DIMENSION, of))?.unwrap_or(default)),
        None => c.get(name, PER_DIMENSION, of),
    }
}

/// An op without inputs: draws and factories.
pub(super) fn source(
    name: &'static str,
    run: fn(&Invocation<'_>, &Device) -> Result<Tensor>,
    attributes: Value,
    also: &'static [&'static str],
) -> Op {
    Op::new(
        name,
        move |c| one(run(c, &c.device()?)),
        move |g| {
            let mut attributes = attributes.clone();
            for (name, value) in [("shape", g.shape.clone().into()), ("seed", g.bits().into())] {
                if attributes.get(name).is_some() {
                    attributes[name] = value;
                }
            }
            Case { device: Some(g.device().clone()), ..Case::new(attributes, vec![]) }
        },
    )
    .derivative(NO_GRADIENT)
    .also(also)
}
