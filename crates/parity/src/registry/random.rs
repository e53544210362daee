//! Draws.

use super::common::{NO_GRADIENT, absolute, at, one, source};
use super::invocation::Invocation;
use super::op::Class::Arithmetic;
use super::op::Op;
use crate::bench::{self, Bench, Call, Cost, MANY, STORED, call};
use crate::case::{Case, Domain};
use isograd_core::ops::Replacement;
use isograd_core::{DType, Result, Rng, RngState, Tensor};
use serde_json::{Value, json};

/// A generator at an offset in a stream of a seed, 0 by default.
pub(super) fn rng(c: &Invocation<'_>) -> Result<Rng> {
    let number = |name| c.or(name, 0, |c, name| c.get(name, "a number from 0 on", Value::as_u64));
    Ok(Rng::from_state(RngState { seed: number("seed")?, offset: number("offset")?, stream: number("stream")? }))
}

/// Dropout from separate draws, as a quotient.
fn masked(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    masked_sum(c, c.input("x")?)
}

/// The same for a sum with a bias.
fn masked_with_bias(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    masked_sum(c, &c.input("x")?.add(c.input("bias")?)?)
}

fn masked_sum(c: &Invocation<'_>, x: &Tensor) -> Result<Vec<Tensor>> {
    let p = c.float("p")?;
    if p == 0.0 {
        return Ok(vec![x.clone()]);
    }
    let mask = Tensor::bernoulli(x.shape(), 1.0 - p, x.device(), &rng(c)?)?;
    let kept = x.mul(&mask.cast(x.dtype())?)?;
    one(if p == 1.0 { Ok(kept) } else { kept.div_scalar(1.0 - p) })
}

pub(super) fn ops() -> Vec<Op> {
    vec![
        Op::new(
            "dropout",
            |c| {
                let (p, training) = (c.float("p")?, c.flag_or("training", true)?);
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
        .kernels(&["dropout_forward"])
        .bench([dropped()]),
        Op::new(
            "bias_dropout",
            |c| one(c.input("x")?.bias_dropout(c.input("bias")?, c.float("p")?, &rng(c)?)),
            |g| {
                g.at_least_rank(1);
                // Whole words of channels, whose gradients are summed in the same kernel, and others.
                let last = g.shape.len() - 1;
                if g.coin() {
                    g.shape[last] = g.shape[last].next_multiple_of(8);
                }
                let attributes = json!({"p": g.pick(&[0.0, 0.25, 0.5, 1.0]), "seed": g.bits()});
                let (x, channels) = (g.x(Domain::Real), [g.shape[last]]);
                Case::new(attributes, vec![("x", x), ("bias", g.tensor(Domain::Real, &channels))])
            },
        )
        .class(Arithmetic)
        .companion(absolute)
        .definition(masked_with_bias)
        .linear()
        .fused()
        .launches(1, 2)
        .bench([[16384, 4096], [32768, 768]].map(|dims| {
            let inputs = |c: &Call| c.normals([&c.dims, &c.dims[1..]]);
            let dropped = |c: &Call, x: &[Tensor]| x[0].bias_dropout(&x[1], 0.1, &c.rng);
            Bench::new(&dims, call(inputs, dropped), |c| c.whole(2)).dtypes(STORED).backward(|c| c.whole(2))
        })),
        source(
            "rand",
            |c, device| {
                let shape = c.shape("shape")?;
                let (lo, hi, dtype) = (c.float("lo")?, c.float("hi")?, c.dtype_or("dtype", DType::F32)?);
                Tensor::rand(shape, lo, hi, dtype, device, &rng(c)?)
            },
            json!({"shape": [], "seed": 0, "lo": -1.0, "hi": 2.0, "dtype": "f64"}),
            &["dtype"],
        )
        // A value that would round to the upper end becomes the number below it.
        .class(Arithmetic)
        .kernels(&["random_uniform"])
        .bench([drawn(|c, _| Tensor::rand(&c.dims, 0.0, 1.0, c.dtype, &c.device, &c.rng))]),
        source(
            "randn",
            |c, device| {
                let shape = c.shape("shape")?;
                let (mean, std, dtype) = (c.float("mean")?, c.float("std")?, c.dtype_or("dtype", DType::F32)?);
                Tensor::randn(shape, mean, std, dtype, device, &rng(c)?)
            },
            json!({"shape": [], "seed": 0, "mean": 1.0, "std": 2.0, "dtype": "f64"}),
            &["dtype"],
        )
        .kernels(&["random_normal"])
        .bench([drawn(|c, _| Tensor::randn(&c.dims, 0.0, 1.0, c.dtype, &c.device, &c.rng))]),
        source(
            "bernoulli",
            |c, device| Tensor::bernoulli(c.shape("shape")?, c.float("p")?, device, &rng(c)?),
            json!({"shape": [], "seed": 0, "p": 0.3}),
            &[],
        )
        .kernels(&["random_bernoulli"]),
        source(
            "randint",
            |c, device| Tensor::randint(c.shape("shape")?, c.int("low")?, c.int("high")?, device, &rng(c)?),
            json!({"shape": [], "seed": 0, "low": -3, "high": 40}),
            &[],
        )
        .launches(16, 0),
        source(
            "randperm",
            |c, device| Tensor::randperm(c.size("n")?, device, &rng(c)?),
            json!({"seed": 0, "n": 40}),
            &["rand", "sort"],
        )
        .launches(20, 0),
        Op::new(
            "multinomial",
            |c| {
                let replacement = if c.flag("replacement")? { Replacement::Yes } else { Replacement::No };
                one(c.input("weights")?.multinomial(c.size("num_samples")?, replacement, &rng(c)?))
            },
            |g| {
                g.at_least_rank(1);
                let last = g.shape.len() - 1;
                g.shape[last] = g.shape[last].max(2);
                let replacement = g.coin();
                let most = if replacement { 5 } else { g.shape[last].min(5) };
                let attributes =
                    json!({"num_samples": 1 + g.below(most), "replacement": replacement, "seed": g.bits()});
                Case::new(attributes, vec![("weights", g.x(Domain::Positive))])
            },
        )
        .derivative(NO_GRADIENT)
        .launches(260, 0)
        .also(&["rand", "randn"])
        .wide("weights that are rounded have other sums, and other positions are drawn"),
        Op::new(
            "bernoulli_each",
            |c| one(c.input("p")?.bernoulli_each(&rng(c)?)),
            |g| Case::new(json!({"seed": g.bits()}), vec![("p", g.x(Domain::Unit))]),
        )
        .derivative(NO_GRADIENT)
        .launches(10, 0)
        .also(&["rand"])
        .wide("a probability that is rounded may be above a draw that it was below"),
        Op::new(
            "normal",
            |c| one(Tensor::normal(c.input("mean")?, c.input("std")?, &rng(c)?)),
            |g| {
                let std = g.broadcast(Domain::Positive);
                Case::new(json!({"seed": g.bits()}), vec![("mean", g.x(Domain::Positive)), ("std", std)])
            },
        )
        .class(Arithmetic)
        .companion(normal_sizes)
        .linear()
        .fused()
        .launches(8, 6)
        .also(&["randn"])
        .wide("draws are rounded to 16 bits"),
    ]
}

/// `|mean| + |std z|`.
fn normal_sizes(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let (mean, std) = (c.input("mean")?, c.input("std")?);
    let noise = Tensor::normal(&mean.zeros_like()?, std, &rng(c)?)?;
    one(mean.abs()?.add(&noise.abs()?))
}

/// The mask has one byte per element.
fn dropped() -> Bench {
    let masked = |c: &Call| Cost::bytes(c.bytes(2 * c.numel()) + c.numel());
    let dropout = call(bench::one, |c, x| x[0].dropout(0.1, &c.rng));
    Bench::new(&[MANY], dropout, masked).dtypes(STORED).backward(masked)
}

fn drawn(f: fn(&Call, &[Tensor]) -> Result<Tensor>) -> Bench {
    Bench::new(&[MANY], call(|_| Ok(Vec::new()), f), |c| c.whole(1))
}
