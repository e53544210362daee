//! Comparisons and logic.

use crate::case::{Case, Domain};
use crate::registry::common::{NO_GRADIENT, at, none, one};
use crate::registry::invocation::Invocation;
use crate::registry::op::Op;
use isograd_core::{Result, Tensor};
use serde_json::json;

fn compare(
    name: &'static str,
    tensors: fn(&Tensor, &Tensor) -> Result<Tensor>,
    scalars: fn(&Tensor, isograd_core::Scalar) -> Result<Tensor>,
) -> Op {
    Op::new(
        name,
        move |c| {
            let a = c.input("a")?;
            one(match c.optional_of("scalar", Invocation::scalar)? {
                Some(scalar) => scalars(a, scalar),
                None => tensors(a, c.input("b")?),
            })
        },
        |g| {
            // Few different values, so that some are equal.
            let rounded = |t: Tensor| t.round().expect("floats round");
            let a = rounded(g.broadcast(Domain::Real));
            match g.coin() {
                true => Case::new(json!({"scalar": 1.0}), vec![("a", a)]),
                false => Case::new(none(), vec![("a", a), ("b", rounded(g.x(Domain::Real)))]),
            }
        },
    )
    .derivative(NO_GRADIENT)
}

fn logic(name: &'static str, run: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Op {
    Op::new(
        name,
        move |c| one(run(c.input("a")?, c.input("b")?)),
        |g| {
            let (small, shape) = (g.smaller(), g.shape.clone());
            Case::new(none(), vec![("a", g.mask(&small)), ("b", g.mask(&shape))])
        },
    )
    .derivative(NO_GRADIENT)
    .also(&["where_cond"])
}

pub(crate) fn ops() -> Vec<Op> {
    vec![
        compare("eq", Tensor::eq, Tensor::eq_scalar),
        compare("ne", Tensor::ne, Tensor::ne_scalar),
        compare("lt", Tensor::lt, Tensor::lt_scalar),
        compare("gt", Tensor::gt, Tensor::gt_scalar),
        compare("le", Tensor::le, Tensor::le_scalar),
        compare("ge", Tensor::ge, Tensor::ge_scalar),
        Op::new(
            "logical_not",
            |c| one(c.input("x")?.logical_not()),
            |g| {
                let shape = g.shape.clone();
                at(none(), g.mask(&shape))
            },
        )
        .derivative(NO_GRADIENT),
        logic("logical_and", Tensor::logical_and),
        logic("logical_or", Tensor::logical_or),
        logic("logical_xor", Tensor::logical_xor),
    ]
}
