//! Copies, casts, joins and changes in place.

use crate::bench::{self, Bench, Call, Cost, MANY, STORED, call};
use crate::case::{Case, Domain, Gen};
use crate::registry::Class::Arithmetic;
use crate::registry::common::{absolute, at, in_place, map, none, one, with};
use crate::registry::{Changes, Op};
use isograd_core::{DType, Result, Shape, Tensor};
use serde_json::json;

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

pub(crate) fn ops() -> Vec<Op> {
    vec![
        map("copy", Tensor::copy, Domain::Real).linear().kernels(&["copy_buffer"]),
        map("contiguous", Tensor::contiguous, Domain::Real).linear(),
        with("cast", |c, x| x.cast(c.dtype("dtype")?), Domain::Real, |_| json!({"dtype": "f64"}))
            .linear()
            .also(&["dtype"])
            .bench([cast("to f16", |_, x| x[0].cast(DType::F16)), cast("to bf16", |_, x| x[0].cast(DType::BF16))]),
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
        .linear()
        .launches(3, 3),
        Op::new(
            "stack",
            |c| one(Tensor::stack(&c.all(), c.dim("dim")?)),
            |g| {
                let attributes = json!({"dim": g.dim()});
                Case { inputs: parts(g, None), ..Case::new(attributes, vec![]) }
            },
        )
        .linear()
        .also(&["concat", "unsqueeze", "reshape"])
        .launches(3, 3),
        in_place(
            "fill_",
            Changes::Overwrites,
            |c, y| y.fill_(c.scalar("value")?),
            |g| at(json!({"value": 1.5}), g.x(Domain::Real)),
        )
        .launches(2, 0)
        .bench([Bench::new(&[MANY], call(bench::one, |_, x| x[0].fill_(1.0).map(|()| x[0].clone())), |c| c.whole(1))
            .dtypes(STORED)]),
        in_place("copy_", Changes::Overwrites, |c, y| y.copy_(c.input("src")?), with_source)
            .launches(2, 0)
            .bench([copies(MANY).dtypes(STORED)]),
        in_place("add_", Changes::All, |c, y| y.add_(c.input("src")?), with_source)
            .class(Arithmetic)
            .companion(absolute)
            .launches(2, 0),
        in_place("mul_", Changes::All, |c, y| y.mul_(c.input("src")?), with_source).class(Arithmetic).launches(2, 0),
    ]
}

fn with_source(g: &mut Gen) -> Case {
    Case::new(none(), vec![("x", g.x(Domain::Real)), ("src", g.broadcast(Domain::Real))])
}

fn cast(variant: &'static str, f: fn(&Call, &[Tensor]) -> Result<Tensor>) -> Bench {
    let cost = |c: &Call| Cost::bytes(c.numel() * (size_of::<f32>() + 2));
    Bench::new(&[MANY], call(bench::one, f), cost).variant(variant)
}

/// A copy of this number of elements. It also measures a device's bandwidth.
pub(crate) fn copies(elements: usize) -> Bench {
    let copy = call(bench::two, |_, x| x[1].copy_(&x[0]).map(|()| x[1].clone()));
    Bench::new(&[elements], copy, |c| c.whole(2))
}
