//! Padding.

use crate::case::{Case, Domain, Gen};
use crate::registry::common::one;
use crate::registry::invocation::Invocation;
use crate::registry::op::Op;
use isograd_core::Result;
use isograd_core::ops::Pad;
use serde_json::{Value, json};

pub(crate) fn ops() -> Vec<Op> {
    vec![
        Op::new("pad", |c| one(c.input("x")?.pad(&ends(c, "padding")?, pad_of(c, "mode")?)), pad_case)
            .linear()
            .fused()
            .launches(2, 3),
    ]
}

/// Pairs of numbers, the ends of the last dimensions.
fn pairs(v: &Value) -> Option<Vec<[isize; 2]>> {
    let number = |v: &Value| v.as_i64().map(|v| v as isize);
    v.as_array()?.iter().map(|v| Some([number(v.get(0)?)?, number(v.get(1)?)?])).collect()
}

fn ends(c: &Invocation<'_>, name: &str) -> Result<Vec<[isize; 2]>> {
    c.get(name, "a list of pairs of integers", pairs)
}

/// The pairs of `N` dimensions.
pub(crate) fn ends_of<const N: usize>(c: &Invocation<'_>, at: &str) -> Result<[[isize; 2]; N]> {
    c.get(&format!("{at}padding"), "a list of pairs of integers, one for each dimension", |v| pairs(v)?.try_into().ok())
}

const PADS: [(&str, Pad); 4] =
    [("constant", Pad::ZEROS), ("reflect", Pad::Reflect), ("replicate", Pad::Replicate), ("circular", Pad::Circular)];

/// The elements of a padding; a constant is the attribute `value`.
fn pad_of(c: &Invocation<'_>, mode: &str) -> Result<Pad> {
    match c.choice_or_first(mode, &PADS)? {
        Pad::Constant(_) => Ok(Pad::Constant(c.scalar_or("value", 0)?)),
        copies => Ok(copies),
    }
}

/// The elements of a convolution's padding.
pub(crate) fn padding_mode(c: &Invocation<'_>, at: &str) -> Result<Pad> {
    let [(_, zeros), others @ ..] = PADS;
    let modes: Vec<(&str, Pad)> = [("zeros", zeros)].into_iter().chain(others).collect();
    c.choice_or_first(&format!("{at}padding_mode"), &modes)
}

fn pad_case(g: &mut Gen) -> Case {
    g.at_least_rank(1);
    let (mode, _) = g.pick(&PADS);
    if mode != "constant" {
        g.not_empty();
    }
    let dims = 1 + g.below(g.shape.len().min(3));
    let last = g.shape[g.shape.len() - dims..].to_vec();
    let padding: Vec<[isize; 2]> = last.iter().map(|&extent| ends_for(g, mode, extent as isize)).collect();
    Case::new(json!({"padding": padding, "mode": mode}), vec![("x", g.x(Domain::Real))])
}

/// The ends of a dimension: up to three elements more, or one less.
fn ends_for(g: &mut Gen, mode: &str, extent: isize) -> [isize; 2] {
    let least = if extent > 2 { -1 } else { 0 };
    let ends = [0; 2].map(|_| g.pick(&[0, least, 1, 2, 3]));
    let kept: isize = extent + ends.iter().map(|&n| n.min(0)).sum::<isize>();
    let most = match mode {
        "reflect" => kept - 1,
        "circular" => kept,
        _ => 3,
    };
    ends.map(|n| n.min(most))
}
