//! Other shapes of the same elements.

use crate::case::{Domain, Gen};
use crate::registry::common::{absolute, at, none, one, with};
use crate::registry::op::Class::Reduction;
use crate::registry::op::Op;
use isograd_core::ops::INFER;
use serde_json::{Value, json};

/// The sizes of the case's shape as a JSON value, with its extents merged into one.
fn merged(g: &mut Gen) -> Value {
    let n: usize = g.shape.iter().product();
    json!({"shape": if g.coin() { vec![n] } else { vec![1, n, 1] }})
}

fn permutation(g: &mut Gen) -> Value {
    let mut perm: Vec<usize> = (0..g.shape.len()).collect();
    (1..perm.len()).rev().for_each(|i| perm.swap(i, g.below(i + 1)));
    json!({"perm": perm})
}

/// A random range of a random dimension.
fn range(g: &mut Gen) -> Value {
    g.at_least_rank(1);
    let d = g.below(g.shape.len());
    let start = g.below(g.shape[d] + 1);
    json!({"dim": d, "start": start, "length": g.below(g.shape[d] - start + 1)})
}

fn stepped(g: &mut Gen) -> Value {
    let mut attributes = range(g);
    let stop = attributes["start"].as_u64().unwrap_or(0) + attributes["length"].as_u64().unwrap_or(0);
    attributes["stop"] = stop.into();
    attributes["step"] = (1 + g.below(3)).into();
    attributes
}

pub(crate) fn ops() -> Vec<Op> {
    let real = Domain::Real;
    let matrix = |g: &mut Gen| {
        g.at_least_rank(2);
        none()
    };
    vec![
        with(
            "reshape",
            |c, x| {
                let extent = |d: isize| if d == -1 { INFER } else { d as usize };
                x.reshape(c.dims("shape")?.into_iter().map(extent).collect::<Vec<usize>>())
            },
            real,
            merged,
        )
        .linear()
        .kernels(&["view"]),
        with(
            "transpose",
            |c, x| x.transpose(c.dim("dim0")?, c.dim("dim1")?),
            real,
            |g| json!({"dim0": g.dim(), "dim1": g.dim()}),
        )
        .linear(),
        with("t", |_, x| x.t(), real, matrix).linear().kernels(&["transpose_2d", "batched_transpose"]),
        with("permute", |c, x| x.permute(&c.dims("perm")?), real, permutation).linear().kernels(&["permute_general"]),
        with("narrow", |c, x| x.narrow(c.dim("dim")?, c.size("start")?, c.size("length")?), real, range)
            .linear()
            .launches(0, 2),
        with("slice", |c, x| x.slice(c.dim("dim")?, c.size("start")?, c.size("stop")?, c.size("step")?), real, stepped)
            .linear()
            .also(&["narrow"])
            .launches(0, 2),
        with(
            "select",
            |c, x| x.select(c.dim("dim")?, c.dim("index")?),
            real,
            |g| {
                g.at_least_rank(1);
                g.not_empty();
                let d = g.below(g.shape.len());
                let index = g.below(g.shape[d]) as isize;
                json!({"dim": d, "index": if g.coin() { index } else { index - g.shape[d] as isize }})
            },
        )
        .linear()
        .launches(0, 2),
        with(
            "windows",
            |c, x| x.windows(c.dim("dim")?, c.size("size")?, c.size("step")?),
            real,
            |g| {
                g.at_least_rank(1);
                g.not_empty();
                let d = g.below(g.shape.len());
                let size = 1 + g.below(g.shape[d].min(9));
                json!({"dim": d, "size": size, "step": 1 + g.below(4)})
            },
        )
        .class(Reduction)
        .companion(absolute)
        .linear()
        .launches(0, 6),
        with("unsqueeze", |c, x| x.unsqueeze(c.dim("dim")?), real, |g| json!({"dim": g.dim()}))
            .linear()
            .also(&["reshape"]),
        with(
            "squeeze",
            |c, x| x.squeeze(c.dim("dim")?),
            real,
            |g| {
                let d = g.below(g.shape.len() + 1);
                g.shape.insert(d, 1);
                json!({"dim": d})
            },
        )
        .linear(),
        with("flatten", |c, x| x.flatten(c.dim("first")?, c.dim("last")?), real, |_| json!({"first": 0, "last": -1}))
            .linear(),
        Op::new(
            "broadcast_to",
            |c| one(c.input("x")?.broadcast_to(c.shape("shape")?)),
            |g| {
                let (shape, small) = (g.shape.clone(), g.smaller());
                at(json!({"shape": shape}), g.tensor(Domain::Real, &small))
            },
        )
        .linear(),
        Op::new(
            "sum_to_size",
            |c| one(c.input("x")?.sum_to_size(c.shape("shape")?)),
            |g| {
                let small = g.smaller();
                at(json!({"shape": small}), g.x(Domain::Real))
            },
        )
        .class(Reduction)
        .companion(absolute)
        .linear(),
        Op::new(
            "split",
            |c| c.input("x")?.split(c.size("size")?, c.dim("dim")?),
            |g| {
                g.at_least_rank(1);
                g.not_empty();
                // At most eight parts.
                let (dim, parts) = (g.below(g.shape.len()), 1 + g.below(4));
                let attributes = json!({"size": g.shape[dim].div_ceil(2 * parts), "dim": dim});
                at(attributes, g.x(Domain::Real))
            },
        )
        .linear()
        .launches(0, 24),
        Op::new(
            "split_with_sizes",
            |c| {
                let sizes: Vec<usize> = c.dims("sizes")?.into_iter().map(|n| n as usize).collect();
                c.input("x")?.split_with_sizes(&sizes, c.dim("dim")?)
            },
            |g| {
                g.at_least_rank(1);
                let dim = g.below(g.shape.len());
                let (first, second) = (g.below(g.shape[dim] + 1), g.below(2));
                let rest = g.shape[dim] - first;
                at(json!({"sizes": [first, rest * second, rest * (1 - second)], "dim": dim}), g.x(Domain::Real))
            },
        )
        .linear()
        .also(&["narrow"])
        .launches(0, 9),
        Op::new(
            "tensor_split",
            |c| c.input("x")?.tensor_split(c.size("count")?, c.dim("dim")?),
            |g| {
                g.at_least_rank(1);
                at(json!({"count": 1 + g.below(4), "dim": g.below(g.shape.len())}), g.x(Domain::Real))
            },
        )
        .linear()
        .also(&["narrow", "split_with_sizes"])
        .launches(0, 12),
    ]
}
