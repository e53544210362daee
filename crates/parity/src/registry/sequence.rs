//! Ops of sequence models.

use super::common::{NO_GRADIENT, one};
use super::invocation::Invocation;
use super::op::{Class, Op};
use super::random::rng;
use crate::bench::{self, Bench, Call, Cost, STORED, call};
use crate::case::{Case, Domain, Gen};
use isograd_core::ops::{Direction, Rotary, RotaryStyle, Sampling};
use isograd_core::{DType, Result, Tensor};
use serde_json::json;

pub(super) fn ops() -> Vec<Op> {
    vec![
        Op::new("apply_rotary_embedding", |c| rotary(c, c.int_or("direction", 1)? < 0), rotary_case)
            .class(Class::Arithmetic)
            .companion(of_sums)
            .constant(&["cos", "sin"])
            .linear()
            .fused()
            .also(&["narrow", "index_select"])
            .launches(1, 2)
            .bench([
                turned("", |_, x| turn(x, RotaryStyle::Half, Direction::Forward)),
                turned("inverse", |_, x| turn(x, RotaryStyle::Half, Direction::Inverse)),
                turned("pairs", |_, x| turn(x, RotaryStyle::Interleaved, Direction::Forward)),
            ]),
        // Its sums are of integers: every device draws the same positions.
        Op::new("sample_logits", sample_logits, sample_case).derivative(NO_GRADIENT).fused().bench(samples()),
    ]
}

fn rotary(c: &Invocation<'_>, is_inverse: bool) -> Result<Vec<Tensor>> {
    let rotary = Rotary {
        style: c.choice_or_first("style", &[("half", RotaryStyle::Half), ("interleaved", RotaryStyle::Interleaved)])?,
        direction: if is_inverse { Direction::Inverse } else { Direction::Forward },
        rotary_dim: c.optional_of("rotary_dim", Invocation::size)?,
        positions: c.optional("positions").cloned(),
    };
    let (q, k) = c.input("q")?.apply_rotary_embedding(c.input("k")?, c.input("cos")?, c.input("sin")?, &rotary)?;
    Ok(vec![q, k])
}

/// Sums of absolute values: where one direction has a sum, the other has a difference.
fn of_sums(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let abs = |t: &Tensor| if t.dtype().is_float() { t.abs() } else { Ok(t.clone()) };
    let inputs: Vec<(String, Tensor)> =
        c.inputs.iter().map(|(n, t)| Ok((n.clone(), abs(t)?))).collect::<Result<_>>()?;
    let c = Invocation { inputs: &inputs, ..*c };
    let (forward, inverse) = (rotary(&c, false)?, rotary(&c, true)?);
    forward.iter().zip(&inverse).map(|(a, b)| a.abs()?.maximum(&b.abs()?)).collect()
}

fn rotary_case(g: &mut Gen) -> Case {
    let mut t = g.shape.last().map_or(3, |&n| n.min(300));
    let (mut b, mut heads, mut of_keys, mut d) =
        (1 + g.below(2), 1 + g.below(3), 1 + g.below(2), g.side().clamp(2, 32));
    if let Some(elements) = g.timed() {
        (b, heads, of_keys, d, t) = (4, 16, 16, 64, elements >> 12);
    }
    let r = if g.coin() { d / 2 * 2 } else { 2 * (1 + g.below(d / 2)) };
    let p = t + 1 + g.below(5);
    let (q, k) = (g.tensor(Domain::Real, &[b, heads, t, d]), g.tensor(Domain::Real, &[b, of_keys, t, d]));
    let (cos, sin) = (g.tensor(Domain::Real, &[p, r / 2]), g.tensor(Domain::Real, &[p, r / 2]));
    let mut inputs = vec![("q", q), ("k", k), ("cos", cos), ("sin", sin)];
    match g.below(3) {
        0 => {}
        1 => inputs.push(("positions", g.indices(p, &[t]))),
        _ => inputs.push(("positions", g.indices(p, &[b, t]))),
    }
    let style = if g.coin() { "half" } else { "interleaved" };
    Case::new(json!({"style": style, "direction": if g.coin() { 1 } else { -1 }, "rotary_dim": r}), inputs)
}

fn sample_logits(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let sampling = Sampling {
        temperature: c.float_or("temperature", 1.0)?,
        top_k: c.size_or("top_k", 0)?,
        top_p: c.float_or("top_p", 1.0)?,
        num_samples: c.size_or("num_samples", 1)?,
    };
    one(c.input("logits")?.sample_logits(&sampling, &rng(c)?))
}

fn sample_case(g: &mut Gen) -> Case {
    let (is_tied, few) = (g.coin(), g.coin());
    let classes = g.shape.iter().product::<usize>().max(1);
    let shape = [if g.shape.contains(&0) { g.below(2) } else { 1 + g.below(3) }, classes];
    let logits = match is_tied {
        // Many equal logits. Logits of 0 become -infinity, except for the first of each row.
        true => g.indices(6, &shape).cast(DType::F64).and_then(|x| {
            let first = Tensor::arange(classes, x.device())?.eq_scalar(0)?.cast(DType::F64)?;
            x.maximum(&first)?.log()
        }),
        false => g.tensor(Domain::Real, &shape).mul_scalar(3.0),
    };
    let logits = logits.expect("f64 has logarithms");
    let attributes = json!({
        "temperature": g.pick(&[1.0, 0.5, 3.0, 1e-3, 0.0]),
        // A small top_k is found with a list, a large one by a search.
        "top_k": if few { g.pick(&[1, 2, 5, 50]) } else { g.pick(&[0, classes / 3, classes / 2, classes + 1]) },
        "top_p": g.pick(&[1.0, 0.9, 0.5, 1e-9]),
        "num_samples": g.pick(&[1, 2, 7]),
        "seed": g.bits(),
    });
    Case::new(attributes, vec![("logits", logits)])
}

fn turn(x: &[Tensor], style: RotaryStyle, direction: Direction) -> Result<Tensor> {
    let rotary = Rotary { style, direction, ..Default::default() };
    Ok(x[0].apply_rotary_embedding(&x[1], &x[2], &x[3], &rotary)?.0)
}

/// Queries and keys `[B, H, T, D]`, rotated with f32 tables. The gradient is the same kernel in the other direction.
fn turned(variant: &'static str, f: fn(&Call, &[Tensor]) -> Result<Tensor>) -> Bench {
    fn inputs(c: &Call) -> Result<Vec<Tensor>> {
        let table = || Tensor::randn([c.dims[2], c.dims[3] / 2], 0.0, 1.0, DType::F32, &c.device, &c.rng);
        Ok([c.alike(2)?, vec![table()?, table()?]].concat())
    }
    let cost = |c: &Call| Cost::bytes(c.bytes(4 * c.numel()) + c.dims[2] * c.dims[3] * 4);
    Bench::new(&[8, 32, 2048, 128], call(inputs, f), cost).dtypes(STORED).variant(variant)
}

/// Tokens drawn from logits: from all, from a list of the largest, from a nucleus, and from both.
fn samples() -> Vec<Bench> {
    fn draw(c: &Call, x: &[Tensor], top_k: usize, top_p: f64) -> Result<Tensor> {
        x[0].sample_logits(&Sampling { top_k, top_p, ..Sampling::default() }, &c.rng)
    }
    type Draw = fn(&Call, &[Tensor]) -> Result<Tensor>;
    let draws: [(&str, Draw); 4] = [
        ("", |c, x| draw(c, x, 0, 1.0)),
        ("top 50", |c, x| draw(c, x, 50, 1.0)),
        ("top p 0.9", |c, x| draw(c, x, 0, 0.9)),
        ("top 50, p 0.9", |c, x| draw(c, x, 50, 0.9)),
    ];
    let of = |dims: [usize; 2]| {
        draws.map(|(variant, f)| Bench::new(&dims, call(bench::one, f), |c| c.whole(1)).dtypes(STORED).variant(variant))
    };
    [[64, 50257], [8, 128_256]].into_iter().flat_map(of).collect()
}
