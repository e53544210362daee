//! Copies, casts and changes in place.

use crate::bench::{self, Bench, Call, Cost, MANY, STORED, call, copies};
use crate::case::{Case, Domain, Gen};
use crate::registry::common::{absolute, at, in_place, map, none, with};
use crate::registry::op::Class::Arithmetic;
use crate::registry::op::{Changes, Op};
use isograd_core::{DType, Result, Tensor};
use serde_json::json;

pub(crate) fn ops() -> Vec<Op> {
    vec![
        map("copy", Tensor::copy, Domain::Real).linear().kernels(&["copy_buffer"]),
        map("contiguous", Tensor::contiguous, Domain::Real).linear(),
        with("cast", |c, x| x.cast(c.dtype("dtype")?), Domain::Real, |_| json!({"dtype": "f64"}))
            .linear()
            .also(&["dtype"])
            .bench([cast("to f16", |_, x| x[0].cast(DType::F16)), cast("to bf16", |_, x| x[0].cast(DType::BF16))]),
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
