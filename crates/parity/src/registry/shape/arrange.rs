//! Elements in another order, or several times; diagonals and triangles.

use crate::case::{Case, Domain, Gen};
use crate::registry::common::{NO_GRADIENT, at, none, one, with};
use crate::registry::invocation::Invocation;
use crate::registry::op::Class::{Arithmetic, Reduction};
use crate::registry::op::Op;
use isograd_core::{Error, Result, Tensor};
use serde_json::{Value, json};

fn dims(c: &Invocation<'_>) -> Result<Vec<isize>> {
    c.dims("dims")
}

/// Counts of a repetition: 0 to 2 for each dimension, and one more in front.
fn counts(g: &mut Gen) -> Value {
    let more = g.below(2);
    json!({"counts": (0..g.shape.len() + more).map(|_| g.below(3)).collect::<Vec<_>>()})
}

fn plane(g: &mut Gen) -> Value {
    g.at_least_rank(2);
    json!({"turns": g.below(6) as isize - 2, "dims": [0, g.shape.len() - 1]})
}

fn offset(g: &mut Gen) -> Value {
    json!({"offset": g.below(5) as isize - 2})
}

fn matrix_offset(g: &mut Gen) -> Value {
    g.at_least_rank(2);
    offset(g)
}

fn some_dims(g: &mut Gen) -> Value {
    let dims = g.dims();
    json!({"dims": if dims.is_null() { json!([]) } else { dims }})
}

fn along(g: &mut Gen) -> Value {
    g.at_least_rank(1);
    json!({"dim": g.dim()})
}

fn size_of(c: &Invocation<'_>, name: &str) -> Result<Vec<usize>> {
    Ok(c.dims(name)?.into_iter().map(|n| n as usize).collect())
}

fn offset_of(c: &Invocation<'_>) -> Result<isize> {
    c.dim_or("offset", 0)
}

fn meshgrid() -> Op {
    Op::new(
        "meshgrid",
        |c| Tensor::meshgrid(&[c.input("a")?, c.input("b")?]),
        |g| {
            let (n, m) = (g.side(), g.side());
            Case::of(vec![("a", g.tensor(Domain::Real, &[n])), ("b", g.tensor(Domain::Real, &[m]))])
        },
    )
    .linear()
    .launches(0, 4)
}

pub(crate) fn ops() -> Vec<Op> {
    let real = Domain::Real;
    vec![
        with("flip", |c, x| x.flip(&dims(c)?), real, some_dims).linear().picks().launches(16, 16),
        with(
            "roll",
            |c, x| x.roll(c.dim("shift")?, c.dim("dim")?),
            real,
            |g| json!({"shift": g.below(9) as isize - 4, "dim": g.dim()}),
        )
        .linear()
        .picks()
        .launches(2, 6),
        with(
            "rot90",
            |c, x| {
                let of = dims(c)?.try_into();
                let of = of.map_err(|of| Error::attr("rot90", format!("`dims` are {of:?}, expected two")))?;
                x.rot90(c.dim("turns")?, of)
            },
            real,
            plane,
        )
        .linear()
        .picks()
        .launches(8, 8)
        .also(&["flip", "transpose"]),
        with("repeat", |c, x| x.repeat(&size_of(c, "counts")?), real, counts)
            .linear()
            .also(&["reshape"])
            .launches(4, 8),
        with(
            "repeat_interleave",
            |c, x| x.repeat_interleave(c.size("count")?, c.dim("dim")?),
            real,
            |g| json!({"count": g.below(4), "dim": g.dim()}),
        )
        .linear()
        .launches(1, 3),
        with(
            "movedim",
            |c, x| x.movedim(c.dim("from")?, c.dim("to")?),
            real,
            |g| json!({"from": g.dim(), "to": g.dim()}),
        )
        .linear()
        .picks(),
        Op::new(
            "chunk",
            |c| c.input("x")?.chunk(c.size("count")?, c.dim("dim")?),
            |g| {
                let attributes = along(g);
                at(json!({"count": 1 + g.below(3), "dim": attributes["dim"]}), g.x(Domain::Real))
            },
        )
        .linear()
        .launches(0, 12)
        .also(&["narrow", "split"]),
        Op::new(
            "unbind",
            |c| c.input("x")?.unbind(c.dim("dim")?),
            |g| {
                g.at_least_rank(1);
                // No parts have no gradient.
                g.shape[0] = g.shape[0].clamp(1, 8);
                at(json!({"dim": 0}), g.x(Domain::Real))
            },
        )
        .linear()
        .launches(0, 24)
        .also(&["select"]),
        Op::new(
            "masked_fill",
            |c| one(c.input("x")?.masked_fill(c.input("mask")?, c.scalar("value")?)),
            |g| {
                let small = g.smaller();
                Case::new(json!({"value": 1.5}), vec![("x", g.x(Domain::Real)), ("mask", g.mask(&small))])
            },
        )
        .launches(2, 2)
        .also(&["where_cond"]),
        meshgrid(),
        Op::new(
            "one_hot",
            |c| one(c.input("x")?.one_hot(c.size("classes")?)),
            |g| {
                let shape = g.shape.clone();
                at(json!({"classes": 5}), g.indices(5, &shape))
            },
        )
        .derivative(NO_GRADIENT)
        .launches(8, 0)
        .also(&["scatter", "unsqueeze"]),
        with("diff", |c, x| x.diff(c.dim("dim")?), real, along)
            .class(Arithmetic)
            .linear()
            .launches(1, 6)
            .also(&["sub", "narrow"]),
        with("diagonal", |c, x| x.diagonal(offset_of(c)?), real, matrix_offset).linear().launches(0, 2),
        with(
            "diag_embed",
            |c, x| x.diag_embed(offset_of(c)?),
            real,
            |g| {
                g.at_least_rank(1);
                offset(g)
            },
        )
        .linear()
        .launches(2, 1),
        with(
            "diag",
            |c, x| x.diag(offset_of(c)?),
            real,
            |g| {
                let rank = 1 + g.below(2);
                g.at_least_rank(rank);
                g.shape.truncate(rank);
                offset(g)
            },
        )
        .linear()
        .launches(2, 2)
        .also(&["diagonal", "diag_embed"]),
        with(
            "trace",
            |_, x| x.trace(),
            real,
            |g| {
                g.at_least_rank(2);
                none()
            },
        )
        .class(Reduction)
        .companion(trace_of_sizes)
        .linear()
        .launches(1, 3)
        .also(&["sum"]),
        with("tril", |c, x| x.tril(offset_of(c)?), real, matrix_offset).linear().launches(7, 2),
        with("triu", |c, x| x.triu(offset_of(c)?), real, matrix_offset).linear().launches(7, 2),
    ]
}

/// The trace of `|x|`.
fn trace_of_sizes(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    one(c.input("x")?.abs()?.trace())
}
