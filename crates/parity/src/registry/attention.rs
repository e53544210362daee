//! Attention.

use super::common::one;
use super::invocation::Invocation;
use super::op::{Class, Op, Slice};
use super::random::rng;
use crate::bench::{Bench, Call, Cost, STORED, call};
use crate::case::{Case, Domain, Gen};
use isograd_core::ops::{Attention, Causal, MultiHead, Projection};
use isograd_core::{DType, Precision, Result, Tensor};
use serde_json::{Value, json};

pub(super) fn ops() -> Vec<Op> {
    vec![
        Op::new("scaled_dot_product_attention", attention, attention_case)
            .kernels(&["flash_attention_v2", "grouped_query_attention"])
            .class(Class::Stages)
            .slice(Slice::From(3))
            .fused()
            // Values of another width, and gradients of float masks, are computed by other ops, block by block.
            .launches(34, 55)
            .finite(&["mask", "causal", "window", "key_lengths"])
            .bench(benches()),
        Op::new("varlen_attention", varlen, varlen_case)
            .class(Class::Stages)
            .slice(Slice::From(2))
            .fused()
            .launches(60, 60)
            .finite(&["q_starts"]),
        multi_head(
            "multi_head_attention",
            |g| multi_head_case(g, false),
            |c| one(c.input("query")?.multi_head_attention(c.input("key")?, c.input("value")?, &multi_head_of(c)?)),
        )
        .kernels(&["multi_head_attention_forward"])
        .launches(8, 34),
        multi_head(
            "cross_attention",
            |g| multi_head_case(g, true),
            |c| one(c.input("query")?.cross_attention(c.input("context")?, &multi_head_of(c)?)),
        )
        .kernels(&["cross_attention_forward"])
        .launches(8, 30),
    ]
}

fn multi_head(name: &'static str, make: fn(&mut Gen) -> Case, run: fn(&Invocation<'_>) -> Result<Vec<Tensor>>) -> Op {
    Op::new(name, run, make)
        .class(Class::Stages)
        .slice(Slice::From(2))
        .fused()
        .also(&["scaled_dot_product_attention", "linear"])
        .finite(&["mask", "causal", "key_padding_mask"])
}

fn causal(c: &Invocation<'_>) -> Result<Causal> {
    let causals = [("none", Causal::None), ("top_left", Causal::TopLeft), ("bottom_right", Causal::BottomRight)];
    c.choice_or_first("causal", &causals)
}

fn options(c: &Invocation<'_>) -> Result<Attention> {
    let pair = |v: &Value| Some([v.get(0)?.as_u64()? as usize, v.get(1)?.as_u64()? as usize]);
    Ok(Attention {
        mask: c.optional("mask").cloned(),
        causal: causal(c)?,
        scale: c.optional_of("scale", Invocation::float)?,
        score_cap: c.optional_of("score_cap", Invocation::float)?,
        dropout: Some((c.float_or("p", 0.0)?, rng(c)?)),
        window: c.optional_of("window", |c, name| c.get(name, "a list of two sizes", pair))?,
        key_lengths: c.optional("key_lengths").cloned(),
    })
}

fn varlen(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let attention = options(c)?;
    let (q, k, v) = (c.input("q")?, c.input("k")?, c.input("v")?);
    let (q_starts, k_starts) = (c.input("q_starts")?, c.input("k_starts")?);
    if !c.flag("lse")? {
        return Ok(vec![q.varlen_attention(k, v, q_starts, k_starts, &attention)?]);
    }
    let (o, lse) = q.varlen_attention_with_lse(k, v, q_starts, k_starts, &attention)?;
    let lse = lse.transpose(0, 1)?.unsqueeze(2)?.cast(o.dtype())?;
    Ok(vec![o.add(&lse)?])
}

/// Sequences of several lengths, of which some are empty. Rows before and behind all of them may be in none.
fn varlen_case(g: &mut Gen) -> Case {
    let (heads, group, n) = (1 + g.below(2), 1 + g.below(2), 1 + g.below(4));
    let width = if g.is_large() { g.pick(&[8, 33, 64]) } else { 1 + g.below(3) };
    let starts = |g: &mut Gen| {
        let mut all = vec![g.pick(&[0, 0, 2])];
        for i in 0..n {
            let length = if g.below(5) == 0 { 0 } else { g.side() };
            all.push(all[i] + length as i64);
        }
        let rows = all[n] as usize + g.pick(&[0, 0, 3]);
        let starts = Tensor::from_vec(all, n + 1, g.device()).expect("numbers");
        (rows, if g.coin() { starts.cast(DType::I32).expect("small numbers") } else { starts })
    };
    let ((queries, q_starts), (keys, k_starts)) = (starts(g), starts(g));
    let values = if g.below(4) == 0 { width + 1 } else { width };
    // Many queries have one key. The gradients of their scores are differences of equal numbers, whose roundings are those of values.
    let v = g.tensor(Domain::Real, &[keys, heads, values]).mul_scalar(0.25).expect("floats");
    let inputs = vec![
        ("q", g.tensor(Domain::Real, &[queries, heads * group, width])),
        ("k", g.tensor(Domain::Real, &[keys, heads, width])),
        ("v", v),
        ("q_starts", q_starts),
        ("k_starts", k_starts),
    ];
    let mut attributes = json!({
        "causal": g.pick(&["none", "top_left", "bottom_right"]),
        "p": g.pick(&[0.0, 0.0, 0.0, 0.3]),
        "seed": g.bits(),
        "lse": g.coin(),
    });
    if g.below(3) == 0 {
        attributes["window"] = json!([g.below(9), g.below(3)]);
    }
    if g.below(4) == 0 {
        attributes["scale"] = json!(0.3);
    }
    Case::new(attributes, inputs)
}

fn attention(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let attention = options(c)?;
    let (q, k, v) = (c.input("q")?, c.input("k")?, c.input("v")?);
    if !c.flag("lse")? {
        return Ok(vec![q.scaled_dot_product_attention(k, v, &attention)?]);
    }
    // Both outputs have gradients.
    let (o, lse) = q.scaled_dot_product_attention_with_lse(k, v, &attention)?;
    let lse = lse.unsqueeze(3)?.cast(o.dtype())?;
    Ok(vec![o.add(&lse)?])
}

fn multi_head_of<'a>(c: &'a Invocation<'_>) -> Result<MultiHead<'a>> {
    let weight = match c.optional("weight") {
        Some(packed) => Projection::Packed(packed),
        None => Projection::Separate([c.input("q_weight")?, c.input("k_weight")?, c.input("v_weight")?]),
    };
    Ok(MultiHead {
        heads: c.size("heads")?,
        weight,
        bias: c.optional("bias"),
        out_weight: c.input("out_weight")?,
        out_bias: c.optional("out_bias"),
        key_padding_mask: c.optional("key_padding_mask"),
        attention: Attention {
            mask: c.optional("mask").cloned(),
            causal: causal(c)?,
            dropout: Some((c.float_or("p", 0.0)?, rng(c)?)),
            ..Attention::default()
        },
    })
}

fn multi_head_case(g: &mut Gen, is_cross: bool) -> Case {
    // With one key, gradients of scores are differences of equal numbers.
    let (b, queries, keys) = (1 + g.below(2), 2 + g.side().min(40), 2 + g.side().min(40));
    let heads = 1 + g.below(2);
    // The CPU's error in a row measures others': by chance it may be 0 in all of few elements.
    let width = heads * if g.is_large() { g.pick(&[8, 20]) } else { 6 + g.below(3) };
    // Key and value have the query's width, or widths of their own.
    let is_packed = g.coin();
    let [of_key, of_value] = if is_packed { [width; 2] } else { [1 + g.below(3), 1 + g.below(3)] };
    let of_value = if is_cross { of_key } else { of_value };
    let has_bias = g.coin();
    // Small factors: a rounding of a large score changes its weight by much more.
    let scaled = |g: &mut Gen, shape: &[usize], by: f64| g.tensor(Domain::Real, shape).mul_scalar(by).expect("floats");
    let of_weights = 0.7 / (width as f64).sqrt();
    let mut inputs = vec![("query", scaled(g, &[b, queries, width], 0.5))];
    let mut add = |name, shape: &[usize], by| inputs.push((name, scaled(g, shape, by)));
    if is_cross {
        add("context", &[b, keys, of_key], 0.5);
    } else {
        add("key", &[b, keys, of_key], 0.5);
        add("value", &[b, keys, of_value], 0.5);
    }
    if is_packed {
        add("weight", &[3 * width, width], of_weights);
    } else {
        add("q_weight", &[width, width], of_weights);
        add("k_weight", &[width, of_key], of_weights);
        add("v_weight", &[width, of_value], of_weights);
    }
    add("out_weight", &[width, width], of_weights);
    if has_bias {
        add("bias", &[3 * width], 0.2);
        add("out_bias", &[width], 0.5);
    }
    if g.below(3) == 0 {
        inputs.push(("key_padding_mask", g.mask(&[b, keys])));
    }
    if g.below(3) == 0 {
        inputs.push(("mask", g.mask(&[queries, keys])));
    }
    let causal = g.pick(&["none", "none", "top_left"]);
    Case::new(json!({"heads": heads, "causal": causal, "p": g.pick(&[0.0, 0.3]), "seed": g.bits()}), inputs)
}

/// Self-attention of `[B, H, T, D]`: of every position to all, and to earlier ones.
fn benches() -> Vec<Bench> {
    fn attend(x: &[Tensor], causal: Causal) -> Result<Tensor> {
        x[0].scaled_dot_product_attention(&x[1], &x[2], &Attention { causal, ..Attention::default() })
    }
    // Two products of T x T x D, of which a causal attention needs half; five in the backward pass.
    fn cost(c: &Call, products: f64, tensors: usize) -> Cost {
        let flops = products * 2.0 * c.numel() as f64 * c.dims[2] as f64;
        Cost { bytes: c.bytes(tensors * c.numel()), flops }
    }
    let of = |dims: [usize; 4]| {
        let three = |c: &Call| c.alike(3);
        let all = Bench::new(&dims, call(three, |_, x| attend(x, Causal::None)), |c| cost(c, 2.0, 4));
        let half = Bench::new(&dims, call(three, |_, x| attend(x, Causal::TopLeft)), |c| cost(c, 1.0, 4));
        let halves = half.variant("causal").backward(|c| cost(c, 2.5, 8));
        let both = [all.backward(|c| cost(c, 5.0, 8)), halves].map(|bench| bench.shrinks(3));
        let names = ["tf32", "causal, tf32"];
        let tf32 = [0, 1].map(|i| both[i].clone().variant(names[i]).precision(Precision::Tf32));
        both.map(|bench| bench.dtypes(STORED)).into_iter().chain(tf32)
    };
    [[2, 16, 8192, 128], [16, 12, 1024, 64]].into_iter().flat_map(of).collect()
}

fn attention_case(g: &mut Gen) -> Case {
    let (mut b, mut heads, mut group) = (1 + g.below(2), 1 + g.below(2), 1 + g.below(2));
    let (mut queries, mut keys) = (g.side(), g.side());
    if g.is_large() && g.coin() {
        // Groups take parts of the keys, of which none has fewer than 128.
        (queries, keys) = (1, keys + 256);
    }
    let mut width = if g.is_large() { g.pick(&[8, 33, 64]) } else { 1 + g.below(3) };
    if let Some(elements) = g.timed() {
        (b, heads, group, width) = (2, 8, 1, 64);
        (queries, keys) = (elements >> 10, elements >> 10);
    } else if g.is_large() && g.coin() {
        // Several blocks of one head.
        (b, heads, group) = (1, 1, 1);
    }
    let values = if g.below(4) == 0 { width + 1 } else { width };
    let tensor = |g: &mut Gen, heads, rows, width| g.tensor(Domain::Real, &[b, heads, rows, width]);
    let mut inputs = vec![
        ("q", tensor(g, heads * group, queries, width)),
        ("k", tensor(g, heads, keys, width)),
        ("v", tensor(g, heads, keys, values)),
    ];
    match g.below(8) {
        0 => inputs.push(("mask", g.mask(&[queries, keys]))),
        1 => inputs.push(("mask", g.mask(&[b, 1, 1, keys]))),
        2 => inputs.push(("mask", g.tensor(Domain::Real, &[heads * group, queries, keys]))),
        3 => inputs.push(("mask", g.tensor(Domain::Real, &[queries, 1]))),
        _ => {}
    }
    if g.below(4) == 0 {
        inputs.push(("key_lengths", g.indices(keys + 1, &[b])));
    }
    let mut attributes = json!({
        "causal": g.pick(&["none", "none", "top_left", "bottom_right"]),
        "p": g.pick(&[0.0, 0.0, 0.3, 1.0]),
        "seed": g.bits(),
        "lse": g.coin(),
    });
    if g.below(4) == 0 {
        attributes["window"] = json!([g.below(9), g.below(3)]);
    }
    if g.below(4) == 0 {
        attributes["scale"] = json!(0.3);
    }
    if g.below(6) == 0 {
        attributes["score_cap"] = json!(g.pick(&[0.5, 20.0]));
    }
    Case::new(attributes, inputs)
}
