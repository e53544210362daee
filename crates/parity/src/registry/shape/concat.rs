//! Several tensors as one.

use crate::case::{Case, Domain, Gen};
use crate::registry::common::one;
use crate::registry::op::Op;
use isograd_core::{Shape, Tensor};
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
    ]
}
