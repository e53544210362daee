//! The rows, by family. To add an op, add its row.

use super::Class::{Arithmetic, Dense, Factors, Optimizer, Product, Reduction, Stages, Transcendental};
use super::{Changes, Companion, Derivative, Invocation, Op, Slice};
use crate::case::{Case, Domain, Gen};
use isograd_core::ops::loss::{self, CrossEntropy, Focal, FocalInput, KlTarget, Triplet, TripletNegative};
use isograd_core::ops::{
    Activation, Approximate, Axes, EmbeddingOptions, Gemm, GemmBias, INFER, Index, Order, Put, Rounding, Transpose,
    update_,
};
use isograd_core::pointwise::Pointwise;
use isograd_core::{DType, Error, Result, Rng, RngState, Shape, Tensor, no_grad};
use isograd_nn::optim::Scaling;
use isograd_nn::{self as nn, Adagrad, Adam, AdamW, Adjust, GradScaler, Group, Lamb, Lars, Muon, RmsProp, Sgd};
use serde_json::{Value, json};

const CONSTANT: Derivative = Derivative::None("piecewise constant");
pub(super) const NO_GRADIENT: Derivative = Derivative::None("the result is no function of float inputs");
const IN_PLACE: Derivative = Derivative::None("in place, outside of the tape");
const HAS_KINKS: &[f64] = &[-3.0, -1.0, -0.5, 0.0, 0.125, 0.5, 0.75, 1.0, 2.5, 3.0];

/// All rows.
pub(super) fn ops() -> Vec<Op> {
    let families = [
        ("activation", activations()),
        ("unary", unaries()),
        ("binary", binaries()),
        ("comparison", comparisons()),
        ("fused pointwise", fused()),
        ("reduction", reductions()),
        ("view", views()),
        ("copy", copies()),
        ("indexing", indexing()),
        ("graph", super::graph::ops()),
        ("matrix", matrices()),
        ("loss", losses()),
        ("normalization", norms().into_iter().chain(super::channels::norms()).collect()),
        ("pooling", super::pools::pools()),
        ("sequence", super::sequence::ops()),
        ("random", random()),
        ("optimizer", optimizers()),
    ];
    let named = |(category, ops): (&'static str, Vec<Op>)| {
        ops.into_iter().map(move |op| Op { category, launches: super::launches::of(op.name), ..op })
    };
    families.into_iter().flat_map(named).collect()
}

pub(super) fn one(t: Result<Tensor>) -> Result<Vec<Tensor>> {
    Ok(vec![t?])
}

pub(super) fn two(pair: Result<(Tensor, Tensor)>) -> Result<Vec<Tensor>> {
    pair.map(|(a, b)| vec![a, b])
}

/// The result itself: nothing cancels.
pub(super) fn result(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let y = c.op.invoke(c.attributes, c.inputs)?;
    y.iter().map(|t| if t.dtype().is_float() { t.abs() } else { Ok(t.clone()) }).collect()
}

/// The op of the absolute values of its inputs.
pub(super) fn absolute(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let abs = |t: &Tensor| if t.dtype().is_float() { t.abs() } else { Ok(t.clone()) };
    let inputs: Vec<(String, Tensor)> =
        c.inputs.iter().map(|(n, t)| Ok((n.clone(), abs(t)?))).collect::<Result<_>>()?;
    result(&Invocation { inputs: &inputs, ..*c })
}

/// `|a| + |b|` of a difference, times a factor of 1.
fn sum_of_two(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    one(c.inputs[0].1.abs()?.add(&c.inputs[1].1.abs()?))
}

fn at(attributes: Value, x: Tensor) -> Case {
    Case::new(attributes, vec![("x", x)])
}

pub(super) fn none() -> Value {
    json!({})
}

/// A function of `x` alone.
fn map(name: &'static str, f: fn(&Tensor) -> Result<Tensor>, domain: Domain) -> Op {
    Op::new(name, move |c| one(f(c.input("x")?)), move |g| at(none(), g.x(domain)))
}

/// A function of `x` and attributes.
fn with(
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

fn approximate(c: &Invocation<'_>) -> Result<Approximate> {
    approximate_of(c, "approximate")
}

pub(super) fn approximate_of(c: &Invocation<'_>, name: &str) -> Result<Approximate> {
    match c.word(name)? {
        "none" => Ok(Approximate::None),
        "tanh" => Ok(Approximate::Tanh),
        _ => c.fail("none or tanh", name),
    }
}

fn gelu(c: &Invocation<'_>, x: &Tensor) -> Result<Tensor> {
    x.gelu(approximate(c)?)
}

/// |x| where `1 + erf` and `1 + tanh` cancel.
fn magnitude(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    one(c.input("x")?.abs())
}

/// `|x| (|x| + 3) / 6`.
fn hardswish_terms(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let x = c.input("x")?.abs()?;
    one(x.mul(&x.add_scalar(3.0)?)?.div_scalar(6.0))
}

fn hardsigmoid_terms(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    one(c.input("x")?.abs()?.add_scalar(3.0)?.div_scalar(6.0))
}

fn activations() -> Vec<Op> {
    let kinks = Domain::Away(HAS_KINKS);
    vec![
        map("relu", Tensor::relu, kinks),
        with("leaky_relu", |c, x| x.leaky_relu(c.float("slope")?), kinks, |_| json!({"slope": 0.01})).class(Arithmetic),
        map("sigmoid", Tensor::sigmoid, Domain::Real).class(Transcendental),
        map("tanh", Tensor::tanh, Domain::Real).class(Transcendental),
        with("gelu", gelu, Domain::Real, |g| json!({"approximate": if g.coin() { "none" } else { "tanh" }}))
            .class(Transcendental)
            .companion(magnitude),
        map("silu", Tensor::silu, Domain::Real).class(Transcendental),
        with("elu", |c, x| x.elu(c.float("alpha")?), kinks, |_| json!({"alpha": 0.7})).class(Transcendental),
        with("celu", |c, x| x.celu(c.float("alpha")?), kinks, |_| json!({"alpha": 0.7})).class(Transcendental),
        map("selu", Tensor::selu, kinks).class(Transcendental),
        map("mish", Tensor::mish, Domain::Real).class(Transcendental),
        with(
            "softplus",
            |c, x| x.softplus(c.float("beta")?, c.float("threshold")?),
            kinks,
            |_| json!({"beta": 2.0, "threshold": 5.0}),
        )
        .class(Transcendental),
        map("hardswish", Tensor::hardswish, kinks).class(Arithmetic).companion(hardswish_terms),
        map("hardsigmoid", Tensor::hardsigmoid, kinks).class(Arithmetic).companion(hardsigmoid_terms),
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
        with("softmax", |c, x| x.softmax(c.dim("dim")?), Domain::Real, |g| json!({"dim": g.dim()}))
            .class(Stages)
            .slice(Slice::Along)
            .fused(),
        with("log_softmax", |c, x| x.log_softmax(c.dim("dim")?), Domain::Real, |g| json!({"dim": g.dim()}))
            .class(Stages)
            .slice(Slice::Along)
            .fused(),
        Op::new(
            "swiglu",
            |c| one(c.input("gate")?.swiglu(c.input("up")?)),
            |g| Case::new(none(), vec![("gate", g.x(Domain::Real)), ("up", g.x(Domain::Real))]),
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

fn unaries() -> Vec<Op> {
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
    if c.has("alpha") { a.add_scaled(b, c.scalar("alpha")?) } else { a.add(b) }
}

/// Subtraction has no factor of its own: another is negated and added.
fn sub(c: &Invocation<'_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match c.given("alpha").and_then(Value::as_i64) {
        None if c.has("alpha") => a.add_scaled(b, -c.float("alpha")?),
        None | Some(1) => a.sub(b),
        Some(alpha) => a.add_scaled(b, -alpha),
    }
}

/// A quotient, by default not rounded.
fn div(c: &Invocation<'_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match c.has("rounding").then(|| c.word("rounding")).transpose()? {
        None | Some("none") => a.div(b),
        Some("floor") => a.div_rounded(b, Rounding::Floor),
        Some("trunc") => a.div_rounded(b, Rounding::Trunc),
        Some(_) => c.fail("none, floor or trunc", "rounding"),
    }
}

fn pow(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let a = c.input("a")?;
    one(if c.has("exponent") { a.pow_scalar(c.scalar("exponent")?) } else { a.pow(c.input("b")?) })
}

fn pow_case(g: &mut Gen) -> Case {
    if g.coin() {
        let attributes = json!({"exponent": g.pick(&[1.0, 2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 1.5])});
        return Case::new(attributes, vec![("a", g.x(Domain::Positive))]);
    }
    Case::new(none(), vec![("a", g.broadcast(Domain::Positive)), ("b", g.x(Domain::Real))])
}

/// An op of a tensor and a number.
fn scalar(name: &'static str, run: fn(&Invocation<'_>, &Tensor) -> Result<Tensor>, domain: Domain) -> Op {
    with(name, run, domain, |_| json!({"scalar": 1.5})).class(Arithmetic)
}

/// `|x| + |scalar|`.
fn scalar_terms(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    one(c.input("x")?.abs()?.add_scalar(c.float("scalar")?.abs()))
}

fn binaries() -> Vec<Op> {
    let real = [Domain::Real, Domain::Real];
    let apart = [Domain::Grid(0.0), Domain::Grid(0.03)];
    vec![
        binary("add", add, real, |_| json!({"alpha": 1.5}))
            .class(Arithmetic)
            .companion(absolute)
            .linear()
            .also(&["add_scaled"]),
        binary("sub", sub, real, |_| none()).class(Arithmetic).companion(sum_of_two).linear().also(&["add_scaled"]),
        binary("mul", |_, a, b| a.mul(b), real, |_| none()).class(Arithmetic).fused(),
        binary("div", div, [Domain::Real, Domain::Positive], |_| none())
            .class(Arithmetic)
            .fused()
            .also(&["div_rounded"]),
        Op::new("pow", pow, pow_case).class(Transcendental).fused().also(&["pow_scalar", "square", "reciprocal"]),
        binary("maximum", |_, a, b| a.maximum(b), apart, |_| none()).fused(),
        binary("minimum", |_, a, b| a.minimum(b), apart, |_| none()).fused(),
        scalar("add_scalar", |c, x| x.add_scalar(c.scalar("scalar")?), Domain::Real).companion(scalar_terms),
        scalar("sub_scalar", |c, x| x.sub_scalar(c.scalar("scalar")?), Domain::Real).companion(scalar_terms),
        scalar("rsub_scalar", |c, x| x.rsub_scalar(c.scalar("scalar")?), Domain::Real).companion(scalar_terms),
        scalar("mul_scalar", |c, x| x.mul_scalar(c.scalar("scalar")?), Domain::Real).linear(),
        scalar("div_scalar", |c, x| x.div_scalar(c.scalar("scalar")?), Domain::Real).linear(),
        scalar("rdiv_scalar", |c, x| x.rdiv_scalar(c.scalar("scalar")?), Domain::Positive),
        scalar("rpow_scalar", |c, x| x.rpow_scalar(c.scalar("scalar")?), Domain::Real).class(Transcendental),
    ]
}

fn compare(
    name: &'static str,
    tensors: fn(&Tensor, &Tensor) -> Result<Tensor>,
    scalars: fn(&Tensor, isograd_core::Scalar) -> Result<Tensor>,
) -> Op {
    Op::new(
        name,
        move |c| {
            let a = c.input("a")?;
            one(if c.has("scalar") { scalars(a, c.scalar("scalar")?) } else { tensors(a, c.input("b")?) })
        },
        |g| {
            // Few different values, so that some are equal.
            let rounded = |t: Tensor| t.round().expect("floats round");
            let a = rounded(g.broadcast(Domain::Real));
            match g.coin() {
                true => Case::new(json!({"scalar": 1.0}), vec![("a", a)]),
                false => Case::new(none(), vec![("a", a), ("b", rounded(g.x(Domain::Real)))]),
            }
        },
    )
    .derivative(NO_GRADIENT)
}

fn logic(name: &'static str, run: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Op {
    Op::new(
        name,
        move |c| one(run(c.input("a")?, c.input("b")?)),
        |g| {
            let (small, shape) = (g.smaller(), g.shape.clone());
            Case::new(none(), vec![("a", g.mask(&small)), ("b", g.mask(&shape))])
        },
    )
    .derivative(NO_GRADIENT)
    .also(&["where_cond"])
}

fn comparisons() -> Vec<Op> {
    vec![
        compare("eq", Tensor::eq, Tensor::eq_scalar),
        compare("ne", Tensor::ne, Tensor::ne_scalar),
        compare("lt", Tensor::lt, Tensor::lt_scalar),
        compare("gt", Tensor::gt, Tensor::gt_scalar),
        compare("le", Tensor::le, Tensor::le_scalar),
        compare("ge", Tensor::ge, Tensor::ge_scalar),
        Op::new(
            "logical_not",
            |c| one(c.input("x")?.logical_not()),
            |g| {
                let shape = g.shape.clone();
                at(none(), g.mask(&shape))
            },
        )
        .derivative(NO_GRADIENT),
        logic("logical_and", Tensor::logical_and),
        logic("logical_or", Tensor::logical_or),
    ]
}

fn clamp(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let (x, lo, hi) = (c.input("x")?, c.optional("min"), c.optional("max"));
    if lo.is_some() || hi.is_some() {
        return one(x.clamp_tensor(lo, hi));
    }
    let bound = |name: &str| c.has(name).then(|| c.scalar(name)).transpose();
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

fn fused() -> Vec<Op> {
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
        .fused(),
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
        .fused(),
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
        .fused(),
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
        .fused(),
        Op::new("clamp", clamp, clamp_case).also(&["maximum", "minimum"]),
    ]
}

/// By default all dimensions, or the last one of an op that is named for it.
fn axes(c: &Invocation<'_>) -> Result<Axes> {
    let is_given = c.given("dims").is_some_and(|dims| *dims != json!([]));
    match (is_given, c.op.name) {
        (true, _) => Ok(c.dims("dims")?.into()),
        (false, "l2_norm") => Ok((-1).into()),
        (false, _) => Ok((..).into()),
    }
}

/// A reduction over `dims`, with `keepdim`.
fn reduce(
    name: &'static str,
    run: fn(&Invocation<'_>, &Tensor, Axes) -> Result<Tensor>,
    domain: Domain,
    prepare: fn(&mut Gen),
) -> Op {
    let run = move |c: &Invocation<'_>| {
        let (x, axes) = (c.input("x")?, axes(c)?);
        one(if c.flag("keepdim")? { x.keepdim(axes, |x, axes| run(c, x, axes)) } else { run(c, x, axes) })
    };
    Op::new(name, run, move |g| {
        prepare(g);
        let attributes = json!({"dims": g.dims(), "keepdim": g.coin()});
        at(attributes, g.x(domain))
    })
    .also(&["keepdim"])
}

fn any_shape(_: &mut Gen) {}

/// Values of which no two are alike; of large cases, which no quotient of differences checks, half have many that are.
fn ordered(g: &mut Gen) -> Tensor {
    let (is_large, x) = (g.is_large(), g.x(Domain::Distinct));
    if is_large && g.coin() { g.x(Domain::Real).round().expect("floats round") } else { x }
}

fn arg(name: &'static str, run: fn(&Tensor, Axes) -> Result<Tensor>) -> Op {
    Op::new(
        name,
        move |c| {
            let x = c.input("x")?;
            let axes = if c.has("dim") { c.dim("dim")?.into() } else { (..).into() };
            one(if c.flag("keepdim")? { x.keepdim(axes, run) } else { run(x, axes) })
        },
        |g| {
            g.not_empty();
            let attributes = if g.coin() { json!({"dim": g.dim()}) } else { json!({"keepdim": g.coin()}) };
            at(attributes, ordered(g))
        },
    )
    .derivative(NO_GRADIENT)
    .also(&["keepdim"])
}

/// Extrema along `dim` with their positions; without `dim`, of everything.
fn with_position(
    name: &'static str,
    along: fn(&Tensor, isize) -> Result<(Tensor, Tensor)>,
    of_all: fn(&Tensor, Axes) -> Result<Tensor>,
    also: &'static [&'static str],
) -> Op {
    let run = move |c: &Invocation<'_>| {
        let x = c.input("x")?;
        let keeps = c.flag("keepdim")?;
        if !c.has("dim") {
            let all: Axes = (..).into();
            return one(if keeps { x.keepdim(all, of_all) } else { of_all(x, all) });
        }
        let dim = c.dim("dim")?;
        let (values, positions) = along(x, dim)?;
        if !keeps {
            return Ok(vec![values, positions]);
        }
        let kept = |t: Tensor| x.keepdim(dim, |_, _| Ok(t));
        Ok(vec![kept(values)?, kept(positions)?])
    };
    Op::new(name, run, |g| {
        g.not_empty();
        let attributes = if g.coin() { json!({"dim": g.dim(), "keepdim": g.coin()}) } else { none() };
        at(attributes, ordered(g))
    })
    .also(also)
}

fn reductions() -> Vec<Op> {
    let distinct = Domain::Distinct;
    vec![
        reduce("sum", |_, x, axes| x.sum(axes), Domain::Real, any_shape)
            .class(Reduction)
            .companion(absolute)
            .linear()
            .kernels(&["reduce_sum"]),
        reduce("mean", |_, x, axes| x.mean(axes), Domain::Real, any_shape)
            .class(Reduction)
            .companion(absolute)
            .linear(),
        reduce("l2_norm", |_, x, axes| x.l2_norm(axes), Domain::Positive, any_shape)
            .class(Reduction)
            .kernels(&["rowwise_l2_norm"]),
        reduce("amax", |_, x, axes| x.amax(axes), distinct, Gen::not_empty).kernels(&["reduce_max"]),
        reduce("amin", |_, x, axes| x.amin(axes), distinct, Gen::not_empty),
        reduce("prod", |_, x, axes| x.prod(axes), Domain::Positive, any_shape).class(Factors).fused(),
        reduce("var", |c, x, axes| x.var(axes, c.float_or("correction", 0.0)?), Domain::Real, Gen::not_empty)
            .class(Stages)
            .fused()
            .also(&["keepdim", "mean"]),
        reduce("logsumexp", |_, x, axes| x.logsumexp(axes), Domain::Real, any_shape).class(Stages).fused(),
        with_position("max", Tensor::max, |x, axes| x.amax(axes), &["argmax", "amax", "keepdim"]),
        with_position("min", Tensor::min, |x, axes| x.amin(axes), &["argmin", "amin", "keepdim"]),
        arg("argmax", |x, axes| x.argmax(axes)).kernels(&["argmax_axis"]),
        arg("argmin", |x, axes| x.argmin(axes)).kernels(&["argmin_axis"]),
        with("cumsum", |c, x| x.cumsum(c.dim("dim")?), Domain::Real, |g| json!({"dim": g.dim()}))
            .class(Reduction)
            .collects()
            .companion(absolute)
            .linear(),
    ]
}

/// The sizes of the case's shape as one value of JSON, its extents merged into one.
fn merged(g: &mut Gen) -> Value {
    let n: usize = g.shape.iter().product();
    json!({"shape": if g.coin() { vec![n] } else { vec![1, n, 1] }})
}

fn permutation(g: &mut Gen) -> Value {
    let mut perm: Vec<usize> = (0..g.shape.len()).collect();
    (1..perm.len()).rev().for_each(|i| perm.swap(i, g.below(i + 1)));
    json!({"perm": perm})
}

/// A random range of a random dimension.
fn range(g: &mut Gen) -> Value {
    g.at_least_rank(1);
    let d = g.below(g.shape.len());
    let start = g.below(g.shape[d] + 1);
    json!({"dim": d, "start": start, "length": g.below(g.shape[d] - start + 1)})
}

fn stepped(g: &mut Gen) -> Value {
    let mut attributes = range(g);
    let stop = attributes["start"].as_u64().unwrap_or(0) + attributes["length"].as_u64().unwrap_or(0);
    attributes["stop"] = stop.into();
    attributes["step"] = (1 + g.below(3)).into();
    attributes
}

fn views() -> Vec<Op> {
    let real = Domain::Real;
    let matrix = |g: &mut Gen| {
        g.at_least_rank(2);
        none()
    };
    vec![
        with(
            "reshape",
            |c, x| {
                let extent = |d: isize| if d == -1 { INFER } else { d as usize };
                x.reshape(c.dims("shape")?.into_iter().map(extent).collect::<Vec<usize>>())
            },
            real,
            merged,
        )
        .linear()
        .kernels(&["view"]),
        with(
            "transpose",
            |c, x| x.transpose(c.dim("dim0")?, c.dim("dim1")?),
            real,
            |g| json!({"dim0": g.dim(), "dim1": g.dim()}),
        )
        .linear(),
        with("t", |_, x| x.t(), real, matrix).linear().kernels(&["transpose_2d", "batched_transpose"]),
        with("permute", |c, x| x.permute(&c.dims("perm")?), real, permutation).linear().kernels(&["permute_general"]),
        with("narrow", |c, x| x.narrow(c.dim("dim")?, c.size("start")?, c.size("length")?), real, range).linear(),
        with("slice", |c, x| x.slice(c.dim("dim")?, c.size("start")?, c.size("stop")?, c.size("step")?), real, stepped)
            .linear()
            .also(&["narrow"]),
        with(
            "select",
            |c, x| x.select(c.dim("dim")?, c.dim("index")?),
            real,
            |g| {
                g.at_least_rank(1);
                g.not_empty();
                let d = g.below(g.shape.len());
                let index = g.below(g.shape[d]) as isize;
                json!({"dim": d, "index": if g.coin() { index } else { index - g.shape[d] as isize }})
            },
        )
        .linear(),
        with("unsqueeze", |c, x| x.unsqueeze(c.dim("dim")?), real, |g| json!({"dim": g.dim()}))
            .linear()
            .also(&["reshape"]),
        with(
            "squeeze",
            |c, x| x.squeeze(c.dim("dim")?),
            real,
            |g| {
                let d = g.below(g.shape.len() + 1);
                g.shape.insert(d, 1);
                json!({"dim": d})
            },
        )
        .linear(),
        with("flatten", |c, x| x.flatten(c.dim("first")?, c.dim("last")?), real, |_| json!({"first": 0, "last": -1}))
            .linear(),
        Op::new(
            "broadcast_to",
            |c| one(c.input("x")?.broadcast_to(c.shape("shape")?)),
            |g| {
                let (shape, small) = (g.shape.clone(), g.smaller());
                at(json!({"shape": shape}), g.tensor(Domain::Real, &small))
            },
        )
        .linear(),
        Op::new(
            "sum_to_size",
            |c| one(c.input("x")?.sum_to_size(c.shape("shape")?)),
            |g| {
                let small = g.smaller();
                at(json!({"shape": small}), g.x(Domain::Real))
            },
        )
        .class(Reduction)
        .companion(absolute)
        .linear(),
        Op::new(
            "split",
            |c| c.input("x")?.split(c.size("size")?, c.dim("dim")?),
            |g| {
                g.at_least_rank(1);
                g.not_empty();
                // At most eight parts.
                let (dim, parts) = (g.below(g.shape.len()), 1 + g.below(4));
                let attributes = json!({"size": g.shape[dim].div_ceil(2 * parts), "dim": dim});
                at(attributes, g.x(Domain::Real))
            },
        )
        .linear(),
    ]
}

fn parts(g: &mut Gen, vary: Option<usize>) -> Vec<(String, Tensor)> {
    let n = 1 + g.below(3);
    let part = |i: usize| {
        let mut shape = g.shape.clone();
        if let Some(d) = vary {
            shape[d] = g.below(3);
        }
        (format!("x{i}"), g.tensor(Domain::Real, &shape))
    };
    (0..n).map(part).collect()
}

fn copies() -> Vec<Op> {
    vec![
        map("copy", Tensor::copy, Domain::Real).linear().kernels(&["copy_buffer"]),
        map("contiguous", Tensor::contiguous, Domain::Real).linear(),
        with("cast", |c, x| x.cast(c.dtype("dtype")?), Domain::Real, |_| json!({"dtype": "f64"}))
            .linear()
            .also(&["dtype"]),
        Op::new(
            "concat",
            |c| one(Tensor::concat(&c.all(), c.dim("dim")?)),
            |g| {
                g.at_least_rank(1);
                let dim = g.dim();
                let d = Shape::new(&g.shape).dim(dim).expect("a dimension of the shape");
                Case { inputs: parts(g, Some(d)), ..Case::new(json!({"dim": dim}), vec![]) }
            },
        )
        .linear(),
        Op::new(
            "stack",
            |c| one(Tensor::stack(&c.all(), c.dim("dim")?)),
            |g| {
                let attributes = json!({"dim": g.dim()});
                Case { inputs: parts(g, None), ..Case::new(attributes, vec![]) }
            },
        )
        .linear()
        .also(&["concat", "unsqueeze", "reshape"]),
        in_place(
            "fill_",
            Changes::Overwrites,
            |c, y| y.fill_(c.scalar("value")?),
            |g| at(json!({"value": 1.5}), g.x(Domain::Real)),
        ),
        in_place("copy_", Changes::Overwrites, |c, y| y.copy_(c.input("src")?), with_source),
        in_place("add_", Changes::All, |c, y| y.add_(c.input("src")?), with_source)
            .class(Arithmetic)
            .companion(absolute),
        in_place("mul_", Changes::All, |c, y| y.mul_(c.input("src")?), with_source).class(Arithmetic),
    ]
}

/// An op that changes a copy of `x`.
fn in_place(
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

fn with_source(g: &mut Gen) -> Case {
    Case::new(none(), vec![("x", g.x(Domain::Real)), ("src", g.broadcast(Domain::Real))])
}

fn put(c: &Invocation<'_>) -> Result<Put> {
    Ok(if c.flag("accumulate")? { Put::Accumulate } else { Put::Assign })
}

/// Entries of an advanced index, as the golden files write them: `"tensor:i0"` or `{"slice": [start, stop, step]}`.
fn entries(c: &Invocation<'_>) -> Result<Vec<Index>> {
    let entry = |v: &Value| -> Result<Index> {
        if let Some(name) = v.as_str().and_then(|s| s.strip_prefix("tensor:")) {
            return Ok(Index::Tensor(c.input(name)?.clone()));
        }
        if !v.is_object() {
            return c.fail("a list of tensors and slices", "indices");
        }
        let slice = |i: usize, default: usize| v["slice"][i].as_u64().map_or(default, |n| n as usize);
        Ok(Index::Slice { start: slice(0, 0), stop: slice(1, usize::MAX), step: slice(2, 1) })
    };
    c.list("indices", |v| Some(entry(v)))?.into_iter().collect()
}

/// A shape with one more or fewer along a random dimension, and that dimension; of a case whose time is measured, its own.
fn along(g: &mut Gen) -> (usize, Vec<usize>) {
    g.at_least_rank(1);
    g.not_empty();
    let d = g.below(g.shape.len());
    let mut shape = g.shape.clone();
    if g.timed().is_none() {
        shape[d] = g.below(4);
    }
    (d, shape)
}

/// `index` draws from `0..n`, in this shape and along this dimension.
fn scatter_case(g: &mut Gen, onto: &'static str, index: fn(&mut Gen, usize, &[usize], usize) -> Tensor) -> Case {
    let (d, mut shape) = along(g);
    let n = g.shape[d];
    shape[d] = shape[d].min(n);
    let index = index(g, n, &shape, d);
    let (x, src) = (g.x(Domain::Real), g.tensor(Domain::Real, &shape));
    Case::new(json!({"dim": d}), vec![(onto, x), ("index", index), ("src", src)])
}

fn index_add_case(g: &mut Gen, onto: &'static str) -> Case {
    let (d, shape) = along(g);
    let n = g.shape[d];
    let index = g.indices(n, &shape[d..=d]);
    let (x, src) = (g.x(Domain::Real), g.tensor(Domain::Real, &shape));
    Case::new(json!({"dim": d, "alpha": 0.5}), vec![(onto, x), ("index", index), ("src", src)])
}

fn index_put_case(g: &mut Gen, onto: &'static str) -> Case {
    g.at_least_rank(1);
    g.not_empty();
    let n = g.shape[0];
    let few = g.below(n + 1);
    let count = g.timed().map_or(few, |_| n);
    let accumulate = g.coin();
    let index = if accumulate { g.indices(n, &[count]) } else { g.overwriting_indices(n, &[count], 0) };
    let mut shape = g.shape.clone();
    shape[0] = count;
    let (x, values) = (g.x(Domain::Real), g.tensor(Domain::Real, &shape));
    let attributes = json!({"indices": ["tensor:i0"], "accumulate": accumulate});
    Case::new(attributes, vec![(onto, x), ("i0", index), ("values", values)])
}

pub(super) fn order(flag: bool) -> Order {
    if flag { Order::Descending } else { Order::Ascending }
}

/// The shapes of an embedding's indices and of its table: many indices of few rows, or, of large shapes always, the last
/// dimension is that of rows, which are as many as there are indices, or some more.
fn lookup(g: &mut Gen) -> (Vec<usize>, [usize; 2]) {
    const LARGE: usize = 1 << 16;
    let (has_rows, shape) = (g.coin(), g.shape.clone());
    match shape.split_last() {
        Some((&width, indices)) if !indices.is_empty() && (has_rows || shape.iter().product::<usize>() > LARGE) => {
            (indices.to_vec(), [5 + indices.iter().product::<usize>(), width.max(3)])
        }
        _ => (shape, [5 + g.side(), g.side().max(3)]),
    }
}

fn indexing() -> Vec<Op> {
    vec![
        Op::new(
            "gather",
            |c| one(c.input("x")?.gather(c.dim("dim")?, c.input("index")?)),
            |g| {
                let (d, shape) = along(g);
                let n = g.shape[d];
                let index = g.indices(n, &shape);
                Case::new(json!({"dim": d}), vec![("x", g.x(Domain::Real)), ("index", index)])
            },
        )
        .linear()
        .picks()
        .kernels(&["gather_kernel"]),
        Op::new(
            "scatter_add",
            |c| one(c.input("self")?.scatter_add(c.dim("dim")?, c.input("index")?, c.input("src")?)),
            |g| scatter_case(g, "self", Gen::indices_along),
        )
        .class(Reduction)
        .companion(absolute)
        .linear()
        .collects()
        .kernels(&["scatter_add_kernel"]),
        in_place(
            "scatter_add_",
            Changes::Places,
            |c, y| y.scatter_add_(c.dim("dim")?, c.input("index")?, c.input("src")?),
            |g| scatter_case(g, "x", Gen::indices_along),
        )
        .class(Reduction)
        .companion(absolute),
        Op::new(
            "scatter",
            |c| one(c.input("self")?.scatter(c.dim("dim")?, c.input("index")?, c.input("src")?)),
            |g| scatter_case(g, "self", Gen::overwriting_indices),
        )
        .linear(),
        Op::new(
            "index_select",
            |c| one(c.input("x")?.index_select(c.dim("dim")?, c.input("index")?)),
            |g| {
                let (d, shape) = along(g);
                let n = g.shape[d];
                let index = g.indices(n, &shape[d..=d]);
                Case::new(json!({"dim": d}), vec![("x", g.x(Domain::Real)), ("index", index)])
            },
        )
        .linear()
        .picks()
        .also(&["gather"]),
        Op::new(
            "index_add",
            |c| {
                let (x, index, src) = (c.input("self")?, c.input("index")?, c.input("src")?);
                one(x.index_add(c.dim("dim")?, index, src, c.scalar_or("alpha", 1)?))
            },
            |g| index_add_case(g, "self"),
        )
        .class(Reduction)
        .companion(absolute)
        .linear()
        .collects()
        .kernels(&["scatter_add"])
        .also(&["scatter_add", "mul_scalar"]),
        in_place(
            "index_add_",
            Changes::Places,
            |c, y| y.index_add_(c.dim("dim")?, c.input("index")?, c.input("src")?, c.scalar_or("alpha", 1)?),
            |g| index_add_case(g, "x"),
        )
        .class(Reduction)
        .companion(absolute)
        .also(&["scatter_add_", "mul_scalar"]),
        Op::new(
            "index",
            |c| one(c.input("x")?.index(&entries(c)?)),
            |g| {
                g.at_least_rank(2);
                g.not_empty();
                let (n, mask) = (g.shape[0], g.shape[..1].to_vec());
                let count = g.below(4);
                let index = if g.coin() { g.mask(&mask) } else { g.indices(n, &[count]) };
                let part = [g.below(2), 3, 1 + g.below(2)];
                // All columns, where the time is measured.
                let slice = g.timed().map_or(part, |_| [0, g.shape[1], 1]);
                let attributes = json!({"indices": ["tensor:i0", {"slice": slice}]});
                Case::new(attributes, vec![("x", g.x(Domain::Real)), ("i0", index)])
            },
        )
        .linear()
        .picks()
        .fused()
        .also(&["narrow", "index_select", "gather", "normalize_index"]),
        Op::new(
            "index_put",
            |c| one(c.input("self")?.index_put(&entries(c)?, c.input("values")?, put(c)?)),
            |g| index_put_case(g, "self"),
        )
        .class(Reduction)
        .companion(absolute)
        .linear()
        .collects()
        .also(&["index", "broadcast_to", "scatter", "scatter_add", "narrow", "normalize_index"]),
        in_place(
            "index_put_",
            Changes::Places,
            |c, y| y.index_put_(&entries(c)?, c.input("values")?, put(c)?),
            |g| index_put_case(g, "x"),
        )
        .class(Reduction)
        .companion(absolute)
        .also(&["index", "broadcast_to", "narrow", "normalize_index"]),
        Op::new(
            "nonzero",
            |c| c.input("x")?.nonzero(),
            |g| {
                let shape = g.shape.clone();
                at(none(), g.mask(&shape))
            },
        )
        .derivative(NO_GRADIENT)
        .fused(),
        Op::new(
            "topk",
            |c| two(c.input("x")?.topk(c.size("k")?, c.dim("dim")?, order(c.flag("largest")?))),
            |g| {
                g.at_least_rank(1);
                let d = g.below(g.shape.len());
                let attributes = json!({"k": g.below(g.shape[d] + 1), "dim": d, "largest": g.coin()});
                at(attributes, ordered(g))
            },
        )
        .also(&["sort"]),
        Op::new(
            "sort",
            |c| two(c.input("x")?.sort(c.dim("dim")?, order(c.flag("descending")?))),
            |g| {
                let attributes = json!({"dim": g.dim(), "descending": g.coin()});
                at(attributes, ordered(g))
            },
        ),
        Op::new(
            "embedding",
            |c| {
                let padding_idx = c.has("padding_idx").then(|| c.int("padding_idx")).transpose()?;
                let options = EmbeddingOptions { padding_idx, scale_grad_by_freq: c.flag("scale_grad_by_freq")? };
                one(c.input("w")?.embedding(c.input("idx")?, options))
            },
            |g| {
                let (shape, [rows, width]) = lookup(g);
                let (w, idx) = (g.tensor(Domain::Real, &[rows, width]), g.indices(rows, &shape));
                Case::new(none(), vec![("w", w), ("idx", idx)])
            },
        )
        .linear()
        .picks()
        .fused()
        .kernels(&["embedding_forward"]),
        Op::new(
            "embedding_rmsnorm",
            |c| one(c.input("w")?.embedding_rmsnorm(c.input("idx")?, c.optional("gamma"), c.float_or("eps", 1e-6)?)),
            |g| {
                let (shape, [rows, width]) = lookup(g);
                let (w, idx) = (g.tensor(Domain::Positive, &[rows, width]), g.indices(rows, &shape));
                let gamma = g.tensor(Domain::Real, &[width]);
                Case::new(json!({"eps": 1e-6}), vec![("w", w), ("idx", idx), ("gamma", gamma)])
            },
        )
        .class(Stages)
        .slice(Slice::Rows)
        .fused()
        .also(&["embedding", "mul"]),
    ]
}

fn gemm(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let turned = |name: &str, flag: &str| {
        let t = c.input(name)?;
        if c.flag(flag)? { t.t() } else { Ok(t.clone()) }
    };
    let scale = Gemm { alpha: c.float_or("alpha", 1.0)?, beta: c.float_or("beta", 1.0)? };
    one(turned("a", "trans_a")?.gemm(&turned("b", "trans_b")?, c.optional("c"), scale))
}

/// Products of the absolute values, of both terms.
fn gemm_terms(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let mut attributes = c.attributes.clone();
    for name in ["alpha", "beta"] {
        attributes.values.insert(name.into(), c.float_or(name, 1.0)?.abs().into());
    }
    absolute(&Invocation { attributes: &attributes, ..*c })
}

/// Extents of a product; of one whose time is measured, those of square matrices.
fn extents(g: &mut Gen) -> [usize; 3] {
    g.timed().map_or_else(|| [0; 3].map(|_| g.side()), |elements| [elements.isqrt(); 3])
}

fn gemm_case(g: &mut Gen) -> Case {
    let [m, k, n] = extents(g);
    let c = [vec![m, n], vec![n], vec![m, 1], vec![]][g.below(4)].clone();
    let inputs = [("a", vec![m, k]), ("b", vec![k, n]), ("c", c)].map(|(name, s)| (name, g.tensor(Domain::Real, &s)));
    Case::new(json!({"alpha": 0.5, "beta": -2.0}), inputs.to_vec())
}

fn matmul_case(g: &mut Gen) -> Case {
    let ([m, k, n], batch) = (extents(g), g.below(4));
    let (a, b) = match g.below(6) {
        _ if g.timed().is_some() => (vec![m, k], vec![k, n]),
        0 => (vec![k], vec![k]),
        1 => (vec![m, k], vec![k]),
        2 => (vec![k], vec![batch, k, n]),
        3 => (vec![batch, m, k], vec![k, n]),
        4 => (vec![2, 1, m, k], vec![batch, k, n]),
        _ => (vec![m, k], vec![k, n]),
    };
    Case::new(none(), vec![("a", g.tensor(Domain::Real, &a)), ("b", g.tensor(Domain::Real, &b))])
}

/// Activations that a product takes, by name.
const ACTIVATIONS: [(&str, Activation); 7] = [
    ("identity", Activation::Identity),
    ("relu", Activation::Relu),
    ("gelu", Activation::Gelu(Approximate::None)),
    ("gelu_tanh", Activation::Gelu(Approximate::Tanh)),
    ("sigmoid", Activation::Sigmoid),
    ("tanh", Activation::Tanh),
    ("silu", Activation::Silu),
];

/// The attribute `activation`; without it, none.
pub(super) fn activation(c: &Invocation<'_>) -> Result<Activation> {
    if !c.has("activation") {
        return Ok(Activation::Identity);
    }
    let word = c.word("activation")?;
    let found = ACTIVATIONS.iter().find(|(name, _)| *name == word);
    found
        .map_or_else(|| c.fail("identity, relu, gelu, gelu_tanh, sigmoid, tanh or silu", "activation"), |(_, a)| Ok(*a))
}

fn gemm_bias(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let turned = |flag: &str| Ok(if c.flag(flag)? { Transpose::Yes } else { Transpose::No });
    let options = GemmBias { trans_a: turned("trans_a")?, trans_b: turned("trans_b")?, activation: activation(c)? };
    one(c.input("a")?.gemm_bias(c.input("b")?, c.optional("bias"), options))
}

fn gemm_bias_case(g: &mut Gen) -> Case {
    let ([m, k, n], turned, (activation, _)) = (extents(g), [g.coin(), g.coin()], g.pick(&ACTIVATIONS));
    let attributes = json!({"trans_a": turned[0], "trans_b": turned[1], "activation": activation});
    let a = match (turned[0], g.coin()) {
        (true, _) => vec![k, m],
        (false, is_matrix) if is_matrix || g.timed().is_some() => vec![m, k],
        (false, _) => vec![2, m, k],
    };
    let b = if turned[1] { [n, k] } else { [k, n] };
    let [a, b] = [a, b.to_vec()].map(|shape| g.tensor(Domain::Real, &shape));
    let mut bias = g.tensor(Domain::Real, &[n]);
    if activation == "relu" {
        // A bias that decides the sign, away from the kink: a product is at most 4.
        let terms = a.dims().iter().copied().max().unwrap_or(0);
        bias = bias.sign().and_then(|sign| sign.mul_scalar((4 * terms + 4) as f64)).expect("floats have a sign");
    }
    Case::new(attributes, vec![("a", a), ("b", b), ("bias", bias)])
}

/// The sum of absolute values before the activation, and the result.
fn gemm_bias_terms(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let mut attributes = c.attributes.clone();
    attributes.values.insert("activation".into(), "identity".into());
    let sum = absolute(&Invocation { attributes: &attributes, ..*c })?;
    one(sum[0].add(&result(c)?[0]))
}

fn matrices() -> Vec<Op> {
    let product = |op: Op, companion: Companion| op.class(Product).companion(companion);
    vec![
        product(Op::new("matmul", |c| one(c.input("a")?.matmul(c.input("b")?)), matmul_case), absolute),
        product(Op::new("gemm", gemm, gemm_case), gemm_terms).kernels(&["addmm"]).also(&["t"]),
        product(
            Op::new(
                "linear",
                |c| one(c.input("x")?.linear(c.input("w")?, c.optional("b"))),
                |g| {
                    g.at_least_rank(1);
                    let (x, i) = (g.x(Domain::Real), g.shape[g.shape.len() - 1]);
                    let mut inputs = vec![("x", x), ("w", g.tensor(Domain::Real, &[3, i]))];
                    if g.coin() {
                        inputs.push(("b", g.tensor(Domain::Real, &[3])));
                    }
                    Case::new(none(), inputs)
                },
            ),
            absolute,
        )
        .fused(),
        Op::new("gemm_bias", gemm_bias, gemm_bias_case)
            .class(Dense)
            .companion(gemm_bias_terms)
            .kernels(&["gemm_bias_relu", "gemm_bias_gelu", "gemm_bias_sigmoid", "gemm_bias_tanh", "gemm_bias_swish"])
            .fused(),
    ]
}

const REDUCTIONS: [&str; 3] = ["none", "mean", "sum"];

/// A loss of two operands of one shape.
fn loss(
    name: &'static str,
    operands: [&'static str; 2],
    domains: [Domain; 2],
    attributes: Value,
    run: fn(&Invocation<'_>, &Tensor, &Tensor) -> Result<Tensor>,
) -> Op {
    let make = move |g: &mut Gen| {
        Case::new(attributes.clone(), vec![(operands[0], g.x(domains[0])), (operands[1], g.x(domains[1]))])
    };
    loss_of(name, operands, make, run)
}

/// A loss of two operands, to whose cases a reduction is added.
fn loss_of(
    name: &'static str,
    operands: [&'static str; 2],
    make: impl Fn(&mut Gen) -> Case + Send + Sync + 'static,
    run: fn(&Invocation<'_>, &Tensor, &Tensor) -> Result<Tensor>,
) -> Op {
    Op::new(
        name,
        move |c| one(run(c, c.input(operands[0])?, c.input(operands[1])?)),
        move |g| {
            let reduction = g.pick(&REDUCTIONS);
            let mut case = make(g);
            case.attributes["reduction"] = reduction.into();
            case
        },
    )
    .class(Stages)
    .fused()
}

fn options(c: &Invocation<'_>) -> Result<CrossEntropy> {
    Ok(CrossEntropy {
        weight: c.optional("weight").cloned(),
        ignore_index: c.has("ignore_index").then(|| c.int("ignore_index")).transpose()?,
        label_smoothing: c.float_or("label_smoothing", 0.0)?,
        // `byte_mean` is the mean that `token_bytes` weighs.
        reduction: if c.word("reduction")? == "byte_mean" { loss::Reduction::Mean } else { c.reduction()? },
        token_bytes: c.optional("token_bytes").cloned(),
    })
}

/// Scores `[N, C, rest..]` in `domain` and targets: class indices, or probabilities.
fn classes(g: &mut Gen, name: &'static str, domain: Domain, probabilities: bool) -> Case {
    let timed = g.timed().map(usize::isqrt);
    let n = timed.unwrap_or_else(|| g.side());
    let c = if let Some(c) = timed {
        c
    } else if n < 4 {
        g.pick(&[1, 2, 3, 4, 35])
    } else {
        g.pick(&[4, 35, 1009])
    };
    let rest = if g.coin() || timed.is_some() { vec![] } else { vec![g.below(3)] };
    let target: Vec<usize> = [n].into_iter().chain(rest.clone()).collect();
    let scores: Vec<usize> = [n, c].into_iter().chain(rest).collect();
    let x = (name, g.tensor(domain, &scores));
    let mut attributes = json!({"reduction": g.pick(&REDUCTIONS)});
    if probabilities && g.below(4) == 0 {
        attributes["label_smoothing"] = 0.1.into();
        return Case::new(attributes, vec![x, ("target", g.tensor(Domain::Unit, &scores))]);
    }
    // A mean over nothing but ignored targets is NaN.
    if attributes["reduction"] != "mean" && g.coin() {
        attributes["ignore_index"] = 0.into();
    }
    let target = g.indices(c, &target);
    let target = if g.coin() { target.cast(DType::I32).expect("classes are small") } else { target };
    let mut inputs = vec![x, ("target", target)];
    // What one of them does without the other is a part of what both do.
    let [is_weighted, is_smoothed] =
        g.pick(&[[true, true], [true, true], [true, false], [false, true], [false, false]]);
    if is_weighted {
        inputs.push(("weight", g.tensor(Domain::Positive, &[c])));
    }
    if probabilities && is_smoothed {
        attributes["label_smoothing"] = 0.1.into();
    }
    if g.below(4) == 0 {
        attributes["reduction"] = "byte_mean".into();
        inputs.push(("token_bytes", g.tensor(Domain::Positive, &[c])));
    }
    Case::new(attributes, inputs)
}

fn kl_target(c: &Invocation<'_>) -> Result<KlTarget> {
    Ok(if c.flag("log_target")? { KlTarget::Logarithms } else { KlTarget::Probabilities })
}

/// Two operands, the second of probabilities, and some of the weights. That of the positive term may also be one for all.
fn weighted(g: &mut Gen, operands: [&'static str; 2], domain: Domain, weights: &[&'static str]) -> Case {
    let mut inputs = vec![(operands[0], g.x(domain)), (operands[1], g.x(Domain::Unit))];
    for weight in weights {
        match g.below(4) {
            0 => inputs.push((weight, g.x(Domain::Positive))),
            1 if *weight == "pos_weight" => inputs.push((weight, g.tensor(Domain::Positive, &[]))),
            _ => {}
        }
    }
    Case::new(none(), inputs)
}

fn focal_case(g: &mut Gen) -> Case {
    let is_from_logits = g.coin();
    let x = g.x(if is_from_logits { Domain::Real } else { Domain::Unit });
    let alpha = g.pick(&[0.25, 0.25, -1.0]);
    let gamma = g.pick(&[2.0, 1.0, 1.5, 0.0]);
    let attributes = json!({"alpha": alpha, "gamma": gamma, "from_logits": is_from_logits});
    Case::new(attributes, vec![("x", x), ("t", g.x(Domain::Unit))])
}

fn losses() -> Vec<Op> {
    let apart = [Domain::Grid(0.0), Domain::Grid(0.03)];
    let beside = |g: &mut Gen, name, phase| {
        let shape = match g.timed() {
            Some(_) => g.shape.clone(),
            None if g.is_large() => vec![67, 131],
            None => vec![3, 2],
        };
        (name, g.tensor(Domain::Grid(phase), &shape))
    };
    let (unit, real) = (Domain::Unit, Domain::Real);
    vec![
        loss("mse_loss", ["a", "t"], apart, none(), |c, a, t| a.mse_loss(t, c.reduction()?)),
        loss("l1_loss", ["a", "t"], apart, none(), |c, a, t| a.l1_loss(t, c.reduction()?)),
        loss("smooth_l1_loss", ["a", "t"], apart, json!({"beta": 0.75}), |c, a, t| {
            a.smooth_l1_loss(t, c.float("beta")?, c.reduction()?)
        }),
        loss("huber_loss", ["a", "t"], apart, json!({"delta": 0.75}), |c, a, t| {
            a.huber_loss(t, c.float("delta")?, c.reduction()?)
        })
        .also(&["smooth_l1_loss"]),
        loss_of(
            "bce_loss",
            ["p", "t"],
            move |g| weighted(g, ["p", "t"], unit, &["weight"]),
            |c, p, t| p.bce_loss(t, c.optional("weight"), c.reduction()?),
        )
        .constant(&["weight"]),
        loss_of(
            "bce_with_logits",
            ["x", "t"],
            move |g| weighted(g, ["x", "t"], real, &["weight", "pos_weight"]),
            |c, x, t| x.bce_with_logits(t, c.optional("weight"), c.optional("pos_weight"), c.reduction()?),
        )
        .constant(&["t", "weight", "pos_weight"]),
        loss_of(
            "kl_div",
            ["input", "target"],
            move |g| {
                let is_log = g.coin();
                let target = g.x(if is_log { real } else { unit });
                Case::new(json!({"log_target": is_log}), vec![("input", g.x(real)), ("target", target)])
            },
            |c, x, t| x.kl_div(t, kl_target(c)?, c.reduction()?),
        )
        .constant(&["target"])
        .also(&["kl_div_log"]),
        loss_of("focal_loss", ["x", "t"], focal_case, |c, x, t| {
            let input = if c.get("from_logits", "a bool", Value::as_bool).unwrap_or(true) {
                FocalInput::Logits
            } else {
                FocalInput::Probabilities
            };
            let (alpha, gamma, reduction) = (c.float("alpha")?, c.float("gamma")?, c.reduction()?);
            x.focal_loss(t, Focal { alpha, gamma, input, reduction })
        })
        .constant(&["t"]),
        Op::new(
            "cross_entropy",
            |c| one(c.input("logits")?.cross_entropy_with(c.input("target")?, &options(c)?)),
            |g| classes(g, "logits", Domain::Real, true),
        )
        .class(Stages)
        .fused()
        .kernels(&["cross_entropy_loss"])
        .constant(&["weight", "token_bytes"]),
        Op::new(
            "nll_loss",
            |c| one(c.input("logp")?.nll_loss(c.input("target")?, &options(c)?)),
            |g| classes(g, "logp", Domain::Real, false),
        )
        .class(Stages)
        .fused()
        .constant(&["weight", "token_bytes"]),
        Op::new(
            "triplet_loss",
            |c| {
                let nearest = c.flag("swap")?;
                let negative = if nearest { TripletNegative::Nearest } else { TripletNegative::FromAnchor };
                let (margin, p, eps) = (c.float("margin")?, c.float("p")?, c.float("eps")?);
                let options = Triplet { margin, p, eps, negative, reduction: c.reduction()? };
                one(c.input("a")?.triplet_loss(c.input("p")?, c.input("n")?, options))
            },
            move |g| {
                let p = g.pick(&[1.0, 2.0, 3.0]);
                let attributes = json!({"margin": 1.0, "p": p, "eps": 1e-6, "swap": g.coin(),
                    "reduction": g.pick(&REDUCTIONS)});
                Case::new(attributes, vec![beside(g, "a", 0.0), beside(g, "p", 0.03), beside(g, "n", 0.06)])
            },
        )
        .class(Stages)
        .fused(),
        Op::new(
            "contrastive_loss",
            |c| {
                let (x1, x2, y) = (c.input("x1")?, c.input("x2")?, c.input("y")?);
                one(x1.contrastive_loss(x2, y, c.float("margin")?, c.reduction()?))
            },
            move |g| {
                let attributes = json!({"margin": 1.0, "reduction": g.pick(&REDUCTIONS)});
                let (x1, x2) = (beside(g, "x1", 0.0), beside(g, "x2", 0.03));
                let y = g.tensor(Domain::Unit, &x1.1.dims()[..1]).round().expect("floats round");
                Case::new(attributes, vec![x1, x2, ("y", y)])
            },
        )
        .class(Stages)
        .fused()
        .constant(&["y"]),
    ]
}

/// `x [rows, D]` or `[rows, D1, D2]` with parameters of the normalised shape.
fn norm_case(g: &mut Gen, has_bias: bool) -> Case {
    let (rows, row) = match g.side() {
        _ if g.timed().is_some() => (vec![g.shape[0]], vec![g.shape[1]]),
        // Of short rows, a group takes several.
        side @ 4.. => (vec![side], [vec![3, 61], vec![40], vec![7], vec![1009], vec![1024]][g.below(5)].clone()),
        rows => (
            [vec![3], vec![], vec![2, 2], vec![0]][rows].clone(),
            [vec![5], vec![2, 3], vec![1], vec![40]][g.below(4)].clone(),
        ),
    };
    let x = g.tensor(Domain::Real, &[rows, row.clone()].concat());
    let mut inputs = vec![("x", x)];
    if g.coin() {
        inputs.push(("weight", g.tensor(Domain::Positive, &row)));
        if has_bias && g.coin() {
            inputs.push(("bias", g.tensor(Domain::Real, &row)));
        }
    }
    // Rows of one element are all zeros without their mean: only a large eps keeps their slope in sight.
    Case::new(json!({"dims": row.len(), "eps": 0.5}), inputs)
}

/// How many of the last dimensions are normalised: `dims`, or as many as `normalized_shape` has, which must be theirs.
fn normalized(c: &Invocation<'_>) -> Result<usize> {
    if !c.has("normalized_shape") {
        return c.size("dims");
    }
    let (shape, x) = (c.shape("normalized_shape")?, c.input("x")?);
    match x.dims().ends_with(&shape) {
        true => Ok(shape.len()),
        false => Err(Error::shape(c.op.name, format!("normalized_shape is {shape:?}, x has shape {}", x.shape()))),
    }
}

fn norms() -> Vec<Op> {
    vec![
        Op::new(
            "layer_norm",
            |c| {
                let (dims, eps) = (normalized(c)?, c.float("eps")?);
                one(c.input("x")?.layer_norm(dims, c.optional("weight"), c.optional("bias"), eps))
            },
            |g| norm_case(g, true),
        )
        .class(Stages)
        .slice(Slice::Rows)
        .fused()
        .kernels(&["layernorm_forward"]),
        Op::new(
            "rms_norm",
            |c| one(c.input("x")?.rms_norm(normalized(c)?, c.optional("weight"), c.float("eps")?)),
            |g| norm_case(g, false),
        )
        .class(Stages)
        .slice(Slice::Rows)
        .fused()
        .kernels(&["rmsnorm_forward"]),
    ]
}

/// An op without inputs: draws and factories.
fn source(
    name: &'static str,
    run: fn(&Invocation<'_>, Vec<usize>, &isograd_core::Device) -> Result<Tensor>,
    attributes: Value,
    also: &'static [&'static str],
) -> Op {
    Op::new(
        name,
        move |c| one(run(c, c.shape("shape")?, &c.device()?)),
        move |g| {
            let mut attributes = attributes.clone();
            attributes["shape"] = g.shape.clone().into();
            attributes["seed"] = g.bits().into();
            Case { device: Some(g.device().clone()), ..Case::new(attributes, vec![]) }
        },
    )
    .derivative(NO_GRADIENT)
    .also(also)
}

/// A generator at an offset in a stream of a seed; 0 where the attributes do not say.
pub(super) fn rng(c: &Invocation<'_>) -> Result<Rng> {
    let number = |name| if c.has(name) { c.get(name, "a number from 0 on", Value::as_u64) } else { Ok(0) };
    Ok(Rng::from_state(RngState { seed: number("seed")?, offset: number("offset")?, stream: number("stream")? }))
}

/// Draws of its own, and a quotient.
fn masked(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let (x, p) = (c.input("x")?, c.float("p")?);
    if p == 0.0 {
        return Ok(vec![x.clone()]);
    }
    let mask = Tensor::bernoulli(x.shape(), 1.0 - p, x.device(), &rng(c)?)?;
    let kept = x.mul(&mask.cast(x.dtype())?)?;
    one(if p == 1.0 { Ok(kept) } else { kept.div_scalar(1.0 - p) })
}

fn random() -> Vec<Op> {
    vec![
        Op::new(
            "dropout",
            |c| {
                let (p, training) = (c.float("p")?, !c.has("training") || c.flag("training")?);
                one(c.input("x")?.dropout(if training { p } else { 0.0 }, &rng(c)?))
            },
            |g| {
                let attributes = json!({"p": g.pick(&[0.0, 0.25, 0.5, 1.0]), "seed": g.bits()});
                at(attributes, g.x(Domain::Real))
            },
        )
        .class(Arithmetic)
        .definition(masked)
        .linear()
        .fused()
        .kernels(&["dropout_forward"]),
        source(
            "rand",
            |c, shape, device| {
                let (lo, hi, dtype) = (c.float("lo")?, c.float("hi")?, c.dtype_or("dtype", DType::F32)?);
                Tensor::rand(shape, lo, hi, dtype, device, &rng(c)?)
            },
            json!({"lo": -1.0, "hi": 2.0, "dtype": "f64"}),
            &["dtype"],
        )
        // What would round to the upper end is the number below.
        .class(Arithmetic)
        .kernels(&["random_uniform"]),
        source(
            "randn",
            |c, shape, device| {
                let (mean, std, dtype) = (c.float("mean")?, c.float("std")?, c.dtype_or("dtype", DType::F32)?);
                Tensor::randn(shape, mean, std, dtype, device, &rng(c)?)
            },
            json!({"mean": 1.0, "std": 2.0, "dtype": "f64"}),
            &["dtype"],
        )
        .kernels(&["random_normal"]),
        source(
            "bernoulli",
            |c, shape, device| Tensor::bernoulli(shape, c.float("p")?, device, &rng(c)?),
            json!({"p": 0.3}),
            &[],
        )
        .kernels(&["random_bernoulli"]),
        source(
            "full",
            |c, shape, device| Tensor::full(shape, c.scalar("value")?, c.dtype_or("dtype", DType::F64)?, device),
            json!({"value": 3, "dtype": "f64"}),
            &["dtype"],
        )
        .kernels(&["fill_buffer", "zeros", "ones"]),
    ]
}

/// Steps of an optimizer: parameters `p0, p1, ..`, gradients `g<parameter>_<step>`, of which any may be missing, and states by
/// the names of its dictionary of them. The results are the parameters, or what `returns` lists.
fn steps<O: nn::Optimizer + 'static>(
    name: &'static str,
    make: fn(&Invocation<'_>, Vec<Tensor>) -> Result<O>,
    attributes: Value,
) -> Op {
    let run = move |c: &Invocation<'_>| {
        let copies = (0..).map_while(|i| c.optional(&format!("p{i}"))).map(|p| p.detach().copy()?.leaf());
        let parameters: Vec<Tensor> = copies.collect::<Result<_>>()?;
        let mut optimizer = make(c, parameters.clone())?;
        if c.inputs.iter().any(|(name, _)| name.contains('.')) {
            let mut state = optimizer.state_dict()?;
            state.iter_mut().for_each(|(name, t)| *t = c.optional(name).unwrap_or(t).clone());
            optimizer.load_state_dict(&state)?;
        }
        let mut scaler = scaler(c, &parameters)?;
        for step in 0..step_count(c) {
            for (i, p) in parameters.iter().enumerate() {
                let gradient = c.optional(&format!("g{i}_{step}"));
                p.set_grad(gradient.map(|g| g.detach().copy()).transpose()?)?;
            }
            if c.given("lr").is_some_and(Value::is_array)
                && let Some(lr) = rate(c, step)?
            {
                optimizer.set_lr(lr)?;
            }
            match &mut scaler {
                Some(scaler) => {
                    scaler.step(&mut optimizer)?;
                    scaler.update()?;
                }
                None => optimizer.step_scaled(scaling(c, step)?.as_ref())?,
            }
        }
        returned(c, &parameters, &optimizer, scaler.as_ref())
    };
    let make = move |g: &mut Gen| two_steps(g, &attributes);
    Op::new(name, run, make)
        .derivative(IN_PLACE)
        .class(Optimizer)
        .companion(step_terms)
        .fused()
        .also(&["set_grad", "leaf"])
        .wide("parameters of 16 bits are rounded after each step")
}

/// Two steps of one parameter.
fn two_steps(g: &mut Gen, attributes: &Value) -> Case {
    let inputs = ["p0", "g0_0", "g0_1"].map(|name| (name, g.x(Domain::Real)));
    let mut attributes = attributes.clone();
    attributes["lr"] = 0.1.into();
    attributes["wd"] = 0.01.into();
    Case::new(attributes, inputs.to_vec())
}

/// Two steps by the gradient, with a momentum, or with Nesterov's.
fn sgd_case(g: &mut Gen) -> Case {
    let attributes = match g.below(3) {
        0 => none(),
        1 => json!({"momentum": 0.9, "dampening": 0.1}),
        _ => json!({"momentum": 0.9, "nesterov": true}),
    };
    two_steps(g, &attributes)
}

/// The step of an input such as `g0_3`.
fn step_of(name: &str) -> Option<usize> {
    name.rsplit_once('_')?.1.parse().ok()
}

fn step_count(c: &Invocation<'_>) -> usize {
    let of_gradients = c.inputs.iter().filter(|(name, _)| name.starts_with('g'));
    of_gradients.filter_map(|(name, _)| step_of(name)).map(|step| step + 1).max().unwrap_or(0)
}

/// The rate of a step: `lr` is a number or has one for each.
fn rate(c: &Invocation<'_>, step: usize) -> Result<Option<f64>> {
    match c.given("lr").and_then(Value::as_array).map(|rates| rates.get(step).and_then(Value::as_f64)) {
        Some(Some(rate)) => Ok(Some(rate)),
        Some(None) => c.fail("a number for every step", "lr"),
        None => c.has("lr").then(|| c.float("lr")).transpose(),
    }
}

/// What a scaler of its own tells the optimizer in a step: `inv_scale_<step>` and `found_inf_<step>`.
fn scaling(c: &Invocation<'_>, step: usize) -> Result<Option<Scaling>> {
    let [inv_scale, found_inf] = ["inv_scale", "found_inf"].map(|name| c.optional(&format!("{name}_{step}")));
    match (inv_scale, found_inf) {
        (Some(inv_scale), Some(found_inf)) => Ok(Some(Scaling {
            inv_scale: inv_scale.cast(DType::F32)?,
            found_inf: found_inf.cast(DType::F32)?,
            norm: None,
        })),
        (None, None) => Ok(None),
        _ => c.fail("given with the other", "inv_scale` or `found_inf"),
    }
}

/// A scaler of losses, if `init_scale` gives its first scale.
fn scaler(c: &Invocation<'_>, parameters: &[Tensor]) -> Result<Option<GradScaler>> {
    let (true, Some(first)) = (c.has("init_scale"), parameters.first()) else { return Ok(None) };
    let mut scaler = GradScaler::new(first.device())?.init_scale(c.float("init_scale")?)?;
    scaler = scaler.factors(c.float_or("growth", 2.0)?, c.float_or("backoff", 0.5)?)?;
    if c.has("interval") {
        scaler = scaler.growth_interval(interval(c)?)?;
    }
    if let Some(tracker) = c.optional("growth_tracker") {
        let mut state = scaler.state_dict()?;
        state.insert("growth_tracker".into(), tracker.clone());
        scaler.load_state_dict(&state)?;
    }
    Ok(Some(scaler))
}

fn interval(c: &Invocation<'_>) -> Result<u32> {
    c.int("interval")?.try_into().or_else(|_| c.fail("a count", "interval"))
}

/// The parameters, or what `returns` names: `p0`, states as `0.exp_avg`, `grad_norm`, and of a scaler `scale` and
/// `growth_tracker`.
fn returned(
    c: &Invocation<'_>,
    parameters: &[Tensor],
    optimizer: &dyn nn::Optimizer,
    scaler: Option<&GradScaler>,
) -> Result<Vec<Tensor>> {
    if !c.has("returns") {
        return Ok(parameters.iter().map(Tensor::detach).collect());
    }
    let names = c.words("returns")?;
    let mut all: nn::StateDict = parameters.iter().enumerate().map(|(i, p)| (format!("p{i}"), p.detach())).collect();
    if names.iter().any(|name| name.contains('.') || name == "lr") {
        all.extend(optimizer.state_dict()?);
    }
    all.extend(scaler.map(GradScaler::state_dict).transpose()?.unwrap_or_default());
    // Before the first step there is none.
    let norm = optimizer.grad_norm().map_or_else(
        || parameters.first().map(|p| Tensor::zeros((), p.dtype().acc(), p.device())).transpose(),
        |norm| Ok(Some(norm)),
    )?;
    all.extend(norm.map(|norm| ("grad_norm".to_string(), norm)));
    names.iter().map(|name| found(c, &all, name)?.copy()).collect()
}

/// One of those that `returns` may name.
pub(super) fn found<'a>(c: &Invocation<'_>, all: &'a nn::StateDict, name: &str) -> Result<&'a Tensor> {
    all.get(name).map_or_else(|| c.fail(&format!("a list of tensors that are there, but has {name}"), "returns"), Ok)
}

/// `|p|`, and what each step adds to it; of states the same.
fn step_terms(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let after = |steps: usize| {
        let is_later = |name: &str| step_of(name).is_some_and(|step| step >= steps);
        let inputs: Vec<_> = c.inputs.iter().filter(|(name, _)| !is_later(name)).cloned().collect();
        c.op.invoke(c.attributes, &inputs)
    };
    let mut before = after(0)?;
    let mut terms: Vec<Tensor> = before.iter().map(Tensor::abs).collect::<Result<_>>()?;
    for steps in 1..=step_count(c) {
        let now = after(steps)?;
        for (i, y) in now.iter().enumerate() {
            terms[i] = terms[i].add(&y.sub(&before[i])?.abs()?)?;
        }
        before = now;
    }
    Ok(terms)
}

/// Groups of parameters by their numbers, such as `[[1], [2, 3]]`.
fn groups(c: &Invocation<'_>, parameters: &[Tensor]) -> Result<Vec<Vec<Tensor>>> {
    let one = |v: &Value| v.as_array()?.iter().map(|i| parameters.get(i.as_u64()? as usize).cloned()).collect();
    let all = |v: &Value| v.as_array()?.iter().map(one).collect();
    if c.has("groups") { c.get("groups", "lists of the parameters' numbers", all) } else { Ok(Vec::new()) }
}

/// The options of an optimizer, or of one of its groups: these have `group<number>_` in front.
struct Given<'a, 'b> {
    c: &'a Invocation<'b>,
    prefix: String,
}

impl Given<'_, '_> {
    fn number(&self, option: &str) -> Result<Option<f64>> {
        let name = format!("{}{option}", self.prefix);
        self.c.has(&name).then(|| self.c.float(&name)).transpose()
    }

    fn flag(&self, option: &str) -> Result<Option<bool>> {
        let name = format!("{}{option}", self.prefix);
        self.c.has(&name).then(|| self.c.flag(&name)).transpose()
    }

    /// Two options that are set together: a group may give one of them.
    fn pair(&self, first: (&str, f64), second: (&str, f64)) -> Result<(f64, f64)> {
        let one = |(name, default)| Ok(self.number(name)?.unwrap_or(self.c.float_or(name, default)?));
        Ok((one(first)?, one(second)?))
    }
}

/// Sets the numbers that are given.
macro_rules! with {
    ($of:ident, $to:expr, [$($name:literal => $option:ident),*]) => {{
        let to = $to;
        $(let to = if let Some(v) = $of.number($name)? { to.$option(v) } else { to };)*
        to
    }};
}

/// An optimizer with the options that all have, and those that `$options` sets of itself and of its groups.
macro_rules! optimizer {
    ($c:ident, $name:ident, $parameters:ident, lr $lr:expr, |$of:ident, $to:ident| $options:block) => {{
        let groups = groups($c, &$parameters)?;
        let $of = Given { c: $c, prefix: String::new() };
        let $to = with!($of, $name::from_parameters($parameters).lr($lr), ["wd" => weight_decay]);
        let $to = with!($of, $to, ["clip_norm" => clip_norm, "clip_value" => clip_value]);
        let $to = if $of.flag("maximize")?.unwrap_or(false) { $to.maximize() } else { $to };
        let mut optimizer = $options;
        for (i, members) in groups.into_iter().enumerate() {
            let $of = Given { c: $c, prefix: format!("group{i}_") };
            let $to = with!($of, Group::<$name>::default(), ["lr" => lr, "wd" => weight_decay]);
            let $to = if $of.flag("maximize")?.unwrap_or(false) { $to.maximize() } else { $to };
            let group = $options;
            optimizer = optimizer.group(members, |_| group);
        }
        Ok(optimizer)
    }};
}

fn sgd(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Sgd> {
    let Some(lr) = rate(c, 0)? else { return c.fail("a number", "lr") };
    optimizer!(c, Sgd, parameters, lr lr, |of, to| {
        let to = with!(of, to, ["momentum" => momentum, "dampening" => dampening]);
        if of.flag("nesterov")?.unwrap_or(false) { to.nesterov() } else { to }
    })
}

macro_rules! adam {
    ($name:ident, $optimizer:ident) => {
        fn $name(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<$optimizer> {
            optimizer!(c, $optimizer, parameters, lr rate(c, 0)?.unwrap_or(1e-3), |of, to| {
                let (beta1, beta2) = of.pair(("beta1", 0.9), ("beta2", 0.999))?;
                let to = with!(of, to.betas(beta1, beta2), ["eps" => eps]);
                if of.flag("amsgrad")?.unwrap_or(false) { to.amsgrad() } else { to }
            })
        }
    };
}

adam!(adam, Adam);
adam!(adamw, AdamW);

fn rmsprop(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<RmsProp> {
    optimizer!(c, RmsProp, parameters, lr rate(c, 0)?.unwrap_or(1e-2), |of, to| {
        let to = with!(of, to, ["alpha" => alpha, "eps" => eps, "momentum" => momentum]);
        if of.flag("centered")?.unwrap_or(false) { to.centered() } else { to }
    })
}

fn adagrad(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Adagrad> {
    optimizer!(c, Adagrad, parameters, lr rate(c, 0)?.unwrap_or(1e-2), |of, to| {
        with!(of, to, ["lr_decay" => lr_decay, "initial_accumulator" => initial_accumulator, "eps" => eps])
    })
}

fn lars(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Lars> {
    optimizer!(c, Lars, parameters, lr rate(c, 0)?.unwrap_or(1e-3), |of, to| {
        let to = with!(of, to, ["momentum" => momentum, "trust" => trust, "eps" => eps]);
        let to = if of.flag("skip")?.unwrap_or(false) { to.skip_trust_ratio() } else { to };
        if of.flag("nesterov")?.unwrap_or(false) { to.nesterov() } else { to }
    })
}

fn lamb(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Lamb> {
    optimizer!(c, Lamb, parameters, lr rate(c, 0)?.unwrap_or(1e-3), |of, to| {
        let (beta1, beta2) = of.pair(("beta1", 0.9), ("beta2", 0.999))?;
        let to = with!(of, to.betas(beta1, beta2), ["eps" => eps, "max_trust" => max_trust]);
        let to = if of.flag("skip")?.unwrap_or(false) { to.skip_trust_ratio() } else { to };
        if of.flag("bias_correction")?.unwrap_or(true) { to } else { to.no_bias_correction() }
    })
}

/// Unless `ns_dtype` says otherwise, the iteration is in the arithmetic of the parameters, which the table asks for where it
/// is compared.
fn muon(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Muon> {
    let dtype = c.dtype_or("ns_dtype", parameters.first().map_or(DType::F32, |p| p.dtype().acc()))?;
    let steps = if c.has("ns_steps") { c.int("ns_steps")? } else { 5 };
    let steps = steps.try_into().or_else(|_| c.fail("a count", "ns_steps"))?;
    let adjust = match c.has("adjust") && c.word("adjust")? == "match_rms_adamw" {
        true => Adjust::MatchRmsAdamW,
        false => Adjust::Original,
    };
    let coefficients = [c.float_or("a", 3.4445)?, c.float_or("b", -4.7750)?, c.float_or("c", 2.0315)?];
    optimizer!(c, Muon, parameters, lr rate(c, 0)?.unwrap_or(1e-3), |of, to| {
        let to = with!(of, to, ["momentum" => momentum, "eps" => eps]);
        let to = to.ns_steps(steps).ns_coefficients(coefficients).adjust(adjust).ns_dtype(dtype);
        if of.flag("nesterov")?.unwrap_or(true) { to } else { to.no_nesterov() }
    })
}

/// Two steps of matrices, two of which are of one shape.
fn matrix_steps(g: &mut Gen) -> Case {
    // A step has some hundred products.
    let [a, b] = [g.side(), g.side()].map(|side| side.div_ceil(2));
    let shapes = [vec![a, b], vec![a, b], vec![b, 1, a]];
    let mut inputs = Vec::new();
    for (i, shape) in shapes.iter().enumerate() {
        for name in [format!("p{i}"), format!("g{i}_0"), format!("g{i}_1")] {
            inputs.push((name, g.tensor(Domain::Real, shape)));
        }
    }
    Case { inputs, ..Case::new(json!({"lr": 0.1, "wd": 0.1}), vec![]) }
}

fn clip_norm(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let parameters = with_gradients(c)?;
    let clip = if c.flag("error_if_nonfinite")? { nn::clip_grad_norm_finite } else { nn::clip_grad_norm };
    let total = clip(&parameters, c.float("max_norm")?, c.float("norm_type")?)?;
    Ok(gradients(&parameters).into_iter().chain([total]).collect())
}

/// Leaves whose gradients are the inputs: of a call that does not work in place, copies.
pub(super) fn with_gradients(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let leaf = |g: &Tensor| {
        let (p, g) =
            if c.is_in_place { (g.leaf()?, g.detach()) } else { (g.zeros_like()?.leaf()?, g.detach().copy()?) };
        p.set_grad(Some(g))?;
        Ok(p)
    };
    c.all().into_iter().map(leaf).collect()
}

fn gradients(parameters: &[Tensor]) -> Vec<Tensor> {
    parameters.iter().filter_map(Tensor::grad).collect()
}

/// The gradients divided by a loss scale, and the scale after a step with them: lower if one was not finite.
fn unscale(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let parameters = with_gradients(c)?;
    let Some(first) = parameters.first() else { return c.fail("a tensor", "g0") };
    let mut scaler = GradScaler::new(first.device())?.init_scale(c.float("scale")?)?;
    scaler.unscale_(&Sgd::from_parameters(parameters.clone()))?;
    scaler.update()?;
    Ok(gradients(&parameters).into_iter().chain([scaler.current().copy()?]).collect())
}

/// Scale and counter after three steps with the same gradients.
fn update_scale(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let parameters = with_gradients(c)?;
    let Some(first) = parameters.first() else { return c.fail("a tensor", "g0") };
    let scaler = GradScaler::new(first.device())?.init_scale(c.float("scale")?)?;
    let mut scaler = scaler.factors(c.float("growth")?, c.float("backoff")?)?.growth_interval(interval(c)?)?;
    for _ in 0..3 {
        scaler.unscale_(&Sgd::from_parameters(parameters.clone()))?;
        scaler.update()?;
    }
    let state = scaler.state_dict()?;
    ["scale", "growth_tracker"].map(|name| state[name].copy()).into_iter().collect()
}

fn optimizers() -> Vec<Op> {
    vec![
        Op { make: Box::new(sgd_case), ..steps("sgd", sgd, none()) }.kernels(&[
            "sgd_step",
            "sgd_momentum_update",
            "nag_step",
        ]),
        steps("adam", adam, json!({"amsgrad": false})).kernels(&["adam_step"]),
        steps("adamw", adamw, json!({"amsgrad": true})).kernels(&["adamw_step"]),
        steps("rmsprop", rmsprop, json!({"momentum": 0.9, "centered": true})).kernels(&["rmsprop_step"]),
        steps("adagrad", adagrad, json!({"lr_decay": 0.1, "initial_accumulator": 0.5})).kernels(&["adagrad_step"]),
        steps("lars", lars, json!({"trust": 0.5, "nesterov": true})).kernels(&["lars_step"]),
        steps("lamb", lamb, json!({"max_trust": 2.0})).kernels(&["lamb_step"]),
        Op { make: Box::new(matrix_steps), ..steps("muon", muon, none()) }.class(Stages).kernels(&["muon_step"]),
        Op::new("clip_grad_norm", clip_norm, |g| {
            let attributes = json!({"max_norm": 1.0, "norm_type": g.pick(&["1", "2", "inf"])});
            Case::new(attributes, vec![("g0", g.x(Domain::Real)), ("g1", g.x(Domain::Real))])
        })
        .changes(Changes::Every)
        .class(Reduction)
        .fused()
        .kernels(&["gradient_clip_norm", "scale_gradient"])
        .derivative(IN_PLACE)
        .also(&["leaf"]),
        Op::new(
            "clip_grad_value",
            |c| {
                let parameters = with_gradients(c)?;
                nn::clip_grad_value(&parameters, c.float("clip")?)?;
                Ok(gradients(&parameters))
            },
            |g| Case::new(json!({"clip": 1.0}), vec![("g0", g.x(Domain::Real))]),
        )
        .changes(Changes::Every)
        .fused()
        .derivative(IN_PLACE)
        .kernels(&["gradient_clip_value"])
        .also(&["leaf"]),
        Op::new("unscale_", unscale, |g| {
            let attributes = json!({"scale": 1024.0});
            Case::new(attributes, vec![("g0", g.x(Domain::Real)), ("g1", g.x(Domain::Real))])
        })
        .changes(Changes::Every)
        .class(Arithmetic)
        .fused()
        .derivative(IN_PLACE)
        .kernels(&["amp_unscale_check"])
        .also(&["leaf", "grad_scaler"]),
        Op::new("grad_scaler", update_scale, |g| {
            let bad = g.coin();
            let g0 = g.x(Domain::Real);
            let g0 = if bad { g0.div_scalar(0.0).expect("floats divide") } else { g0 };
            Case::new(json!({"scale": 8.0, "growth": 2.0, "backoff": 0.5, "interval": 2}), vec![("g0", g0)])
        })
        .fused()
        .derivative(IN_PLACE)
        .kernels(&["amp_update_scale"])
        .also(&["leaf", "unscale_"]),
        Op::new(
            "accumulate_grad",
            |c| {
                let y = c.changed("y")?;
                no_grad(|| update_(Pointwise::Accumulate, &[&y], &[c.input("x")?], &[]))?;
                Ok(vec![y])
            },
            |g| Case::new(none(), vec![("y", g.x(Domain::Real)), ("x", g.broadcast(Domain::Real))]),
        )
        .changes(Changes::All)
        .class(Arithmetic)
        .companion(sum_of_two)
        .derivative(IN_PLACE),
    ]
}
