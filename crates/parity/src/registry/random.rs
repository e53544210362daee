//! Draws and factories.

use super::Class::Arithmetic;
use super::common::{NO_GRADIENT, absolute, at, one};
use super::{Invocation, Op};
use crate::bench::{self, Bench, Call, Cost, MANY, STORED, call};
use crate::case::{Case, Domain};
use isograd_core::{DType, Result, Rng, RngState, Tensor};
use serde_json::{Value, json};

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
            |c, shape, device| {
                let (lo, hi, dtype) = (c.float("lo")?, c.float("hi")?, c.dtype_or("dtype", DType::F32)?);
                Tensor::rand(shape, lo, hi, dtype, device, &rng(c)?)
            },
            json!({"lo": -1.0, "hi": 2.0, "dtype": "f64"}),
            &["dtype"],
        )
        // A value that would round to the upper end becomes the number below it.
        .class(Arithmetic)
        .kernels(&["random_uniform"])
        .bench([drawn(|c, _| Tensor::rand(&c.dims, 0.0, 1.0, c.dtype, &c.device, &c.rng))]),
        source(
            "randn",
            |c, shape, device| {
                let (mean, std, dtype) = (c.float("mean")?, c.float("std")?, c.dtype_or("dtype", DType::F32)?);
                Tensor::randn(shape, mean, std, dtype, device, &rng(c)?)
            },
            json!({"mean": 1.0, "std": 2.0, "dtype": "f64"}),
            &["dtype"],
        )
        .kernels(&["random_normal"])
        .bench([drawn(|c, _| Tensor::randn(&c.dims, 0.0, 1.0, c.dtype, &c.device, &c.rng))]),
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

/// The mask has one byte per element.
fn dropped() -> Bench {
    let masked = |c: &Call| Cost::bytes(c.bytes(2 * c.numel()) + c.numel());
    let dropout = call(bench::one, |c, x| x[0].dropout(0.1, &c.rng));
    Bench::new(&[MANY], dropout, masked).dtypes(STORED).backward(masked)
}

fn drawn(f: fn(&Call, &[Tensor]) -> Result<Tensor>) -> Bench {
    Bench::new(&[MANY], call(|_| Ok(Vec::new()), f), |c| c.whole(1))
}
