//! Products that an equation describes, and other products of vectors and matrices.

use crate::case::{Case, Domain, Gen};
use crate::registry::common::{absolute, none, one};
use crate::registry::invocation::Invocation;
use crate::registry::op::Class::{Arithmetic, Stages};
use crate::registry::op::Op;
use isograd_core::{Result, Tensor};
use serde_json::json;
use std::collections::BTreeMap;

/// Equations of generated calls.
const EQUATIONS: [&str; 16] = [
    "ij,jk->ik",
    "bij,bjk->bik",
    "bhqd,bhkd->bhqk",
    "bi,oij,bj->bo",
    "...ij,...kj->...ik",
    "...i,i",
    "ij,jk,kl,lm->im",
    "ij,kj,j",
    "ij,ij->",
    "i,j",
    "i,ij->ij",
    "ij->ji",
    "ijk->j",
    "ii",
    "iji->ji",
    "ab,bB->Ba",
];

fn einsum(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let equation = c.get("equation", "an equation", |v| v.as_str().map(String::from))?;
    one(Tensor::einsum(&equation, &c.all()))
}

fn einsum_case(g: &mut Gen) -> Case {
    let equation = g.pick(&EQUATIONS);
    let largest = if g.is_large() { 24 } else { 4 };
    let mut extents = BTreeMap::new();
    let (inputs, _) = equation.split_once("->").unwrap_or((equation, ""));
    let shapes: Vec<Vec<usize>> = inputs
        .split(',')
        .map(|labels| {
            let leading = if labels.starts_with("...") { [&[][..], &[2], &[3, 1]][g.below(3)] } else { &[] };
            let letters = labels.chars().filter(|&c| c != '.');
            let own = letters.map(|c| *extents.entry(c).or_insert_with(|| g.below(largest))).collect::<Vec<_>>();
            [leading.to_vec(), own].concat()
        })
        .collect();
    let names = ["x0", "x1", "x2", "x3"];
    let inputs = names.iter().zip(&shapes).map(|(name, shape)| (*name, g.tensor(Domain::Real, shape)));
    Case::new(json!({"equation": equation}), inputs.collect())
}

fn bilinear_case(g: &mut Gen) -> Case {
    let side = |g: &mut Gen| if g.is_large() { 1 + g.below(24) } else { g.below(4) };
    let [i, j, o] = [0; 3].map(|_| side(g));
    let rows = [vec![], vec![side(g)], vec![2, side(g)]][g.below(3)].clone();
    let of = |n: usize| [rows.clone(), vec![n]].concat();
    let shapes = [("x", of(i)), ("y", of(j)), ("w", vec![o, i, j]), ("b", vec![o])];
    let count = if g.coin() { 4 } else { 3 };
    let inputs = shapes[..count].iter().map(|(name, shape)| (*name, g.tensor(Domain::Real, shape))).collect();
    Case::new(none(), inputs)
}

pub(crate) fn ops() -> Vec<Op> {
    vec![
        Op::new("einsum", einsum, einsum_case).class(Stages).companion(absolute).fused().launches(16, 32),
        Op::new(
            "outer",
            |c| one(c.input("a")?.outer(c.input("b")?)),
            |g| {
                let (n, m) = (g.side(), g.side());
                Case::of(vec![("a", g.tensor(Domain::Real, &[n])), ("b", g.tensor(Domain::Real, &[m]))])
            },
        )
        .class(Arithmetic)
        .fused()
        .launches(1, 4),
        Op::new(
            "kron",
            |c| one(c.input("a")?.kron(c.input("b")?)),
            |g| {
                let (n, m) = (g.side(), g.side());
                let a = [vec![n, 2], vec![3, n], vec![n], vec![]][g.below(4)].clone();
                let b = [vec![2, m], vec![2, 1, m], vec![m], vec![]][g.below(4)].clone();
                Case::of(vec![("a", g.tensor(Domain::Real, &a)), ("b", g.tensor(Domain::Real, &b))])
            },
        )
        .class(Arithmetic)
        .fused()
        .launches(2, 6),
        Op::new(
            "bilinear",
            |c| one(c.input("x")?.bilinear(c.input("y")?, c.input("w")?, c.optional("b"))),
            bilinear_case,
        )
        .class(Stages)
        .companion(absolute)
        .fused()
        .launches(8, 16),
    ]
}
