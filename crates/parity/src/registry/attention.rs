//! Attention.

use super::random::rng;
use super::{Class, Invocation, Op, Slice};
use crate::case::{Case, Domain, Gen};
use isograd_core::ops::{Attention, Causal};
use isograd_core::{Result, Tensor};
use serde_json::{Value, json};

pub(super) fn ops() -> Vec<Op> {
    vec![
        Op::new("scaled_dot_product_attention", attention, attention_case)
            .kernels(&["flash_attention_v2", "grouped_query_attention"])
            .class(Class::Stages)
            .slice(Slice::From(3))
            .fused()
            // The gradient of a float mask is computed block by block.
            .launches(2, 60)
            .finite(&["mask", "causal", "window"]),
    ]
}

fn attention(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let causals = [("none", Causal::None), ("top_left", Causal::TopLeft), ("bottom_right", Causal::BottomRight)];
    let pair = |v: &Value| Some([v.get(0)?.as_u64()? as usize, v.get(1)?.as_u64()? as usize]);
    let attention = Attention {
        mask: c.optional("mask").cloned(),
        causal: c.choice_or_first("causal", &causals)?,
        scale: c.optional_of("scale", Invocation::float)?,
        dropout: Some((c.float_or("p", 0.0)?, rng(c)?)),
        window: c.optional_of("window", |c, name| c.get(name, "a list of two sizes", pair))?,
    };
    let (q, k, v) = (c.input("q")?, c.input("k")?, c.input("v")?);
    if !c.flag("lse")? {
        return Ok(vec![q.scaled_dot_product_attention(k, v, &attention)?]);
    }
    // Both outputs have gradients.
    let (o, lse) = q.scaled_dot_product_attention_with_lse(k, v, &attention)?;
    let lse = lse.unsqueeze(3)?.cast(o.dtype())?;
    Ok(vec![o.add(&lse)?])
}

fn attention_case(g: &mut Gen) -> Case {
    let (mut b, mut heads, mut group) = (1 + g.below(2), 1 + g.below(2), 1 + g.below(2));
    let (mut queries, mut keys) = (g.side(), g.side());
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
    Case::new(attributes, inputs)
}
