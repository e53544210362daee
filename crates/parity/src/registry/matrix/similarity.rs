//! Distances and similarities of vectors.

use crate::case::{Case, Domain, Gen};
use crate::registry::common::one;
use crate::registry::op::Class::Stages;
use crate::registry::op::Op;
use isograd_core::{Result, Tensor};
use serde_json::{Value, json};

/// Two operands of different phases, whose elements are never equal.
fn apart(g: &mut Gen, attributes: Value, [a, b]: [&[usize]; 2]) -> Case {
    Case::new(attributes, vec![("a", g.tensor(Domain::Grid(0.0), a)), ("b", g.tensor(Domain::Grid(0.05), b))])
}

fn order(g: &mut Gen) -> Value {
    g.pick(&[Some(1.0), Some(2.0), Some(2.5), None]).map_or(json!("inf"), |p| json!(p))
}

fn cdist_case(g: &mut Gen) -> Case {
    let attributes = json!({"p": order(g)});
    let (rows, others, m) = (g.side(), g.side(), if g.is_large() { 1 + g.below(20) } else { g.below(4) });
    let (a, b) = match g.below(3) {
        0 => (vec![rows, m], vec![others, m]),
        1 => (vec![2, rows, m], vec![others, m]),
        _ => (vec![2, 1, rows, m], vec![3, others, m]),
    };
    apart(g, attributes, [&a, &b])
}

fn pairwise_case(g: &mut Gen) -> Case {
    g.at_least_rank(1);
    g.not_empty();
    let attributes = json!({"p": order(g), "eps": g.pick(&[1e-6, 0.01])});
    let (shape, other) = (g.shape.clone(), g.smaller());
    apart(g, attributes, [&shape, &other])
}

fn cosine_case(g: &mut Gen) -> Case {
    g.at_least_rank(1);
    let attributes = json!({"dim": g.dim(), "eps": g.pick(&[1e-8, 2.0])});
    // Gradients are divided by lengths. Those of vectors of one element cancel, so that their errors are those of the quotients.
    let outward = |x: Tensor| -> Result<Tensor> { x.add(&x.sign()?.mul_scalar(0.5)?) };
    let (a, b) = (g.x(Domain::Away(&[0.0])), g.broadcast(Domain::Away(&[0.0])));
    Case::new(attributes, vec![("a", outward(a).expect("same shapes")), ("b", outward(b).expect("same shapes"))])
}

pub(crate) fn ops() -> Vec<Op> {
    vec![
        Op::new("cdist", |c| one(c.input("a")?.cdist(c.input("b")?, c.float_or("p", 2.0)?)), cdist_case)
            .class(Stages)
            .launches(24, 32),
        Op::new(
            "pairwise_distance",
            |c| {
                let (p, eps) = (c.float_or("p", 2.0)?, c.float_or("eps", 1e-6)?);
                one(c.input("a")?.pairwise_distance(c.input("b")?, p, eps))
            },
            pairwise_case,
        )
        .class(Stages)
        .launches(24, 32),
        Op::new(
            "cosine_similarity",
            |c| {
                let (dim, eps) = (c.dim_or("dim", 1)?, c.float_or("eps", 1e-8)?);
                one(c.input("a")?.cosine_similarity(c.input("b")?, dim, eps))
            },
            cosine_case,
        )
        .class(Stages)
        .fused()
        .launches(24, 32),
    ]
}
