//! Gathers, scatters, sorting and tables.

use crate::bench::{self, Action, Bench, Call, Cost, F16, INDEX, MANY, STORED, call};
use crate::case::{Case, Domain, Gen};
use crate::registry::common::{NO_GRADIENT, absolute, at, in_place, none, one, ordered, two};
use crate::registry::invocation::Invocation;
use crate::registry::op::Class::{Reduction, Stages};
use crate::registry::op::{Changes, Op, Slice};
use isograd_core::ops::{EmbeddingOptions, Index, Order, Put};
use isograd_core::{Determinism, Result, Tensor};
use serde_json::{Value, json};

fn put(c: &Invocation<'_>) -> Result<Put> {
    Ok(if c.flag("accumulate")? { Put::Accumulate } else { Put::Assign })
}

/// Entries of an advanced index, as the golden files write them: `"tensor:i0"` or `{"slice": [start, stop, step]}`.
fn entries(c: &Invocation<'_>) -> Result<Vec<Index>> {
    let entry = |v: &Value| -> Result<Index> {
        if let Some(name) = v.as_str().and_then(|s| s.strip_prefix("tensor:")) {
            return Ok(Index::Tensor(c.input(name)?.clone()));
        }
        if !v.is_object() {
            return c.fail("a list of tensors and slices", "indices");
        }
        let slice = |i: usize, default: usize| v["slice"][i].as_u64().map_or(default, |n| n as usize);
        Ok(Index::Slice { start: slice(0, 0), stop: slice(1, usize::MAX), step: slice(2, 1) })
    };
    c.list("indices", |v| Some(entry(v)))?.into_iter().collect()
}

/// A shape with one element more or fewer along a random dimension, and that dimension; in a timed case the case's own shape.
fn along(g: &mut Gen) -> (usize, Vec<usize>) {
    g.at_least_rank(1);
    g.not_empty();
    let d = g.below(g.shape.len());
    let mut shape = g.shape.clone();
    if g.timed().is_none() {
        shape[d] = g.below(4);
    }
    (d, shape)
}

/// `index` draws indices in `0..n`, with this shape and along this dimension.
fn scatter_case(g: &mut Gen, onto: &'static str, index: fn(&mut Gen, usize, &[usize], usize) -> Tensor) -> Case {
    let (d, mut shape) = along(g);
    let n = g.shape[d];
    shape[d] = shape[d].min(n);
    let index = index(g, n, &shape, d);
    let (x, src) = (g.x(Domain::Real), g.tensor(Domain::Real, &shape));
    Case::new(json!({"dim": d}), vec![(onto, x), ("index", index), ("src", src)])
}

fn index_add_case(g: &mut Gen, onto: &'static str) -> Case {
    let (d, shape) = along(g);
    let n = g.shape[d];
    let index = g.indices(n, &shape[d..=d]);
    let (x, src) = (g.x(Domain::Real), g.tensor(Domain::Real, &shape));
    Case::new(json!({"dim": d, "alpha": 0.5}), vec![(onto, x), ("index", index), ("src", src)])
}

fn index_put_case(g: &mut Gen, onto: &'static str) -> Case {
    g.at_least_rank(1);
    g.not_empty();
    let n = g.shape[0];
    let few = g.below(n + 1);
    let count = g.timed().map_or(few, |_| n);
    let accumulate = g.coin();
    let index = if accumulate { g.indices(n, &[count]) } else { g.overwriting_indices(n, &[count], 0) };
    let mut shape = g.shape.clone();
    shape[0] = count;
    let (x, values) = (g.x(Domain::Real), g.tensor(Domain::Real, &shape));
    let attributes = json!({"indices": ["tensor:i0"], "accumulate": accumulate});
    Case::new(attributes, vec![(onto, x), ("i0", index), ("values", values)])
}

pub(crate) fn order(flag: bool) -> Order {
    if flag { Order::Descending } else { Order::Ascending }
}

/// The shapes of an embedding's indices and table: many indices of few rows, or the last dimension as rows, with at least as many
/// rows as indices. Large shapes are always of the second kind.
fn lookup(g: &mut Gen) -> (Vec<usize>, [usize; 2]) {
    const LARGE: usize = 1 << 16;
    let (has_rows, shape) = (g.coin(), g.shape.clone());
    match shape.split_last() {
        Some((&width, indices)) if !indices.is_empty() && (has_rows || shape.iter().product::<usize>() > LARGE) => {
            (indices.to_vec(), [5 + indices.iter().product::<usize>(), width.max(3)])
        }
        _ => (shape, [5 + g.side(), g.side().max(3)]),
    }
}

pub(crate) fn ops() -> Vec<Op> {
    vec![
        Op::new(
            "gather",
            |c| one(c.input("x")?.gather(c.dim("dim")?, c.input("index")?)),
            |g| {
                let (d, shape) = along(g);
                let n = g.shape[d];
                let index = g.indices(n, &shape);
                Case::new(json!({"dim": d}), vec![("x", g.x(Domain::Real)), ("index", index)])
            },
        )
        .linear()
        .picks()
        .kernels(&["gather_kernel"])
        .launches(1, 2)
        .bench(tables("", by_element, |_, x| x[0].gather(0, &x[2]), |c| reads(c, c.dims[1] * c.dims[2]))),
        Op::new(
            "scatter_add",
            |c| one(c.input("self")?.scatter_add(c.dim("dim")?, c.input("index")?, c.input("src")?)),
            |g| scatter_case(g, "self", Gen::indices_along),
        )
        .class(Reduction)
        .companion(absolute)
        .linear()
        .collects()
        .kernels(&["scatter_add_kernel"])
        .launches(2, 2)
        .bench(tables("", by_element, |_, x| x[0].scatter_add(0, &x[2], &x[1]), |c| adds(c, c.dims[1] * c.dims[2])))
        .bench(tables(
            "any order",
            by_element,
            |c, x| in_any_order(c, || x[0].scatter_add(0, &x[2], &x[1])),
            |c| adds(c, c.dims[1] * c.dims[2]),
        )),
        in_place(
            "scatter_add_",
            Changes::Places,
            |c, y| y.scatter_add_(c.dim("dim")?, c.input("index")?, c.input("src")?),
            |g| scatter_case(g, "x", Gen::indices_along),
        )
        .class(Reduction)
        .companion(absolute)
        // A list of the terms for each position, then the sums.
        .launches(2, 1)
        .bench(tables(
            "",
            by_element,
            |_, x| x[0].scatter_add_(0, &x[2], &x[1]).map(|()| x[0].clone()),
            |c| adds_in_place(c, c.dims[1] * c.dims[2]),
        ))
        .bench(tables(
            "any order",
            by_element,
            |c, x| in_any_order(c, || x[0].scatter_add_(0, &x[2], &x[1]).map(|()| x[0].clone())),
            |c| adds_in_place(c, c.dims[1] * c.dims[2]),
        )),
        Op::new(
            "scatter",
            |c| one(c.input("self")?.scatter(c.dim("dim")?, c.input("index")?, c.input("src")?)),
            |g| scatter_case(g, "self", Gen::overwriting_indices),
        )
        .linear()
        // The gradient of src searches the last element written to each position.
        .launches(2, 10),
        Op::new(
            "index_select",
            |c| one(c.input("x")?.index_select(c.dim("dim")?, c.input("index")?)),
            |g| {
                let (d, shape) = along(g);
                let n = g.shape[d];
                let index = g.indices(n, &shape[d..=d]);
                Case::new(json!({"dim": d}), vec![("x", g.x(Domain::Real)), ("index", index)])
            },
        )
        .linear()
        .picks()
        .also(&["gather"])
        .launches(1, 2)
        .bench(tables("", by_row, |_, x| x[0].index_select(0, &x[2]), |c| reads(c, c.dims[1])))
        .bench([of_graph(call(by_row, |_, x| x[0].index_select(0, &x[2])), |c| reads(c, c.dims[1])).variant("graph")]),
        Op::new(
            "index_add",
            |c| {
                let (x, index, src) = (c.input("self")?, c.input("index")?, c.input("src")?);
                one(x.index_add(c.dim("dim")?, index, src, c.scalar_or("alpha", 1)?))
            },
            |g| index_add_case(g, "self"),
        )
        .class(Reduction)
        .companion(absolute)
        .linear()
        .collects()
        .kernels(&["scatter_add"])
        .also(&["scatter_add", "mul_scalar"])
        .launches(3, 3)
        .bench(tables("", by_row, |_, x| x[0].index_add(0, &x[2], &x[1], 1), |c| adds(c, c.dims[1])))
        .bench([
            of_graph(call(by_row, |_, x| x[0].index_add(0, &x[2], &x[1], 1)), |c| adds(c, c.dims[1])).variant("graph")
        ]),
        in_place(
            "index_add_",
            Changes::Places,
            |c, y| y.index_add_(c.dim("dim")?, c.input("index")?, c.input("src")?, c.scalar_or("alpha", 1)?),
            |g| index_add_case(g, "x"),
        )
        .class(Reduction)
        .companion(absolute)
        .also(&["scatter_add_", "mul_scalar"])
        // The product with alpha, then the launches of `scatter_add_`.
        .launches(3, 1)
        .bench(tables(
            "",
            by_row,
            |_, x| x[0].index_add_(0, &x[2], &x[1], 1).map(|()| x[0].clone()),
            |c| adds_in_place(c, c.dims[1]),
        ))
        .bench(tables(
            "any order",
            by_row,
            |c, x| in_any_order(c, || x[0].index_add_(0, &x[2], &x[1], 1).map(|()| x[0].clone())),
            |c| adds_in_place(c, c.dims[1]),
        )),
        Op::new(
            "index",
            |c| one(c.input("x")?.index(&entries(c)?)),
            |g| {
                g.at_least_rank(2);
                g.not_empty();
                let (n, mask) = (g.shape[0], g.shape[..1].to_vec());
                let count = g.below(4);
                let index = if g.coin() { g.mask(&mask) } else { g.indices(n, &[count]) };
                let part = [g.below(2), 3, 1 + g.below(2)];
                // All columns in a timed case.
                let slice = g.timed().map_or(part, |_| [0, g.shape[1], 1]);
                let attributes = json!({"indices": ["tensor:i0", {"slice": slice}]});
                Case::new(attributes, vec![("x", g.x(Domain::Real)), ("i0", index)])
            },
        )
        .linear()
        .picks()
        .fused()
        .also(&["narrow", "index_select", "gather", "normalize_index"])
        .launches(4, 4),
        Op::new(
            "index_put",
            |c| one(c.input("self")?.index_put(&entries(c)?, c.input("values")?, put(c)?)),
            |g| index_put_case(g, "self"),
        )
        .class(Reduction)
        .companion(absolute)
        .linear()
        .collects()
        .also(&["index", "broadcast_to", "scatter", "scatter_add", "narrow", "normalize_index"])
        // The gradient is the gradient of `scatter`.
        .launches(6, 10),
        in_place(
            "index_put_",
            Changes::Places,
            |c, y| y.index_put_(&entries(c)?, c.input("values")?, put(c)?),
            |g| index_put_case(g, "x"),
        )
        .class(Reduction)
        .companion(absolute)
        .also(&["index", "broadcast_to", "narrow", "normalize_index"])
        .launches(3, 1),
        Op::new(
            "nonzero",
            |c| c.input("x")?.nonzero(),
            |g| {
                let shape = g.shape.clone();
                at(none(), g.mask(&shape))
            },
        )
        .derivative(NO_GRADIENT)
        .fused()
        // Counts and positions: two launches, or five for a mask that is counted in parts.
        .launches(5, 0),
        Op::new(
            "topk",
            |c| two(c.input("x")?.topk(c.size("k")?, c.dim("dim")?, order(c.flag("largest")?))),
            |g| {
                g.at_least_rank(1);
                let d = g.below(g.shape.len());
                let attributes = json!({"k": g.below(g.shape[d] + 1), "dim": d, "largest": g.coin()});
                at(attributes, ordered(g))
            },
        )
        .also(&["sort"])
        .launches(5, 2),
        Op::new(
            "sort",
            |c| two(c.input("x")?.sort(c.dim("dim")?, order(c.flag("descending")?))),
            |g| {
                let attributes = json!({"dim": g.dim(), "descending": g.coin()});
                at(attributes, ordered(g))
            },
        )
        .launches(5, 2)
        .bench([1 << 20, MANY].map(|n| {
            let cost = |c: &Call| Cost::bytes(c.bytes(2 * c.numel()) + c.numel() * INDEX);
            Bench::new(&[n], call(bench::one, |_, x| Ok(x[0].sort(0, Order::Ascending)?.0)), cost)
        })),
        Op::new(
            "embedding",
            |c| {
                let padding_idx = c.optional_of("padding_idx", Invocation::int)?;
                let options = EmbeddingOptions { padding_idx, scale_grad_by_freq: c.flag("scale_grad_by_freq")? };
                one(c.input("w")?.embedding(c.input("idx")?, &options))
            },
            |g| {
                let (shape, [rows, width]) = lookup(g);
                let (w, idx) = (g.tensor(Domain::Real, &[rows, width]), g.indices(rows, &shape));
                Case::new(none(), vec![("w", w), ("idx", idx)])
            },
        )
        .linear()
        .picks()
        .fused()
        .kernels(&["embedding_forward"])
        .launches(1, 5)
        .bench([lookups()]),
        Op::new(
            "embedding_rmsnorm",
            |c| one(c.input("w")?.embedding_rmsnorm(c.input("idx")?, c.optional("gamma"), c.float_or("eps", 1e-6)?)),
            |g| {
                let (shape, [rows, width]) = lookup(g);
                let (w, idx) = (g.tensor(Domain::Positive, &[rows, width]), g.indices(rows, &shape));
                let gamma = g.tensor(Domain::Real, &[width]);
                Case::new(json!({"eps": 1e-6}), vec![("w", w), ("idx", idx), ("gamma", gamma)])
            },
        )
        .class(Stages)
        .slice(Slice::Rows)
        .fused()
        .also(&["embedding", "mul"])
        .launches(1, 7),
    ]
}

/// T tokens of a table, for a shape `[T, V, C]`.
fn lookups() -> Bench {
    let embedding = call(
        |c| Ok(vec![c.normal(&c.dims[1..])?, c.indices(c.dims[1], &c.dims[..1])?]),
        |_, x| x[0].embedding(&x[1], &EmbeddingOptions::default()),
    );
    let read = |c: &Call| Cost::bytes(c.bytes(2 * c.dims[0] * c.dims[2]) + c.dims[0] * INDEX);
    let summed = |c: &Call| Cost::bytes(c.bytes((c.dims[0] + c.dims[1]) * c.dims[2]) + c.dims[0] * INDEX);
    Bench::new(&[65536, 50257, 1024], embedding, read).dtypes(STORED).backward(summed).shrinks(2)
}

/// `[R, C]` and the `[n, C]` to add to it, for a shape `[R, n, C]`, with an index of n rows.
pub(crate) fn by_row(c: &Call) -> Result<Vec<Tensor>> {
    let [r, n, width] = [c.dims[0], c.dims[1], c.dims[2]];
    Ok(vec![c.normal(&[r, width])?, c.normal(&[n, width])?, c.indices(r, &[n])?])
}

/// The same with an index `[n, C]`. All elements of a row have the same index, as when rows of a table are read or summed. With
/// different indices each element would read a whole sector of memory.
fn by_element(c: &Call) -> Result<Vec<Tensor>> {
    let mut inputs = by_row(c)?;
    inputs[2] = inputs[2].unsqueeze(1)?.broadcast_to(&c.dims[1..])?.copy()?;
    Ok(inputs)
}

/// Reads `[n, C]` of a table.
pub(crate) fn reads(c: &Call, indices: usize) -> Cost {
    Cost::bytes(c.bytes(2 * c.dims[1] * c.dims[2]) + indices * INDEX)
}

/// Copies a table `[R, C]` and adds `[n, C]` to the copy.
fn adds(c: &Call, indices: usize) -> Cost {
    Cost::bytes(c.bytes((2 * c.dims[0] + c.dims[1]) * c.dims[2]) + indices * INDEX)
}

/// Adds `[n, C]` to a table.
fn adds_in_place(c: &Call, indices: usize) -> Cost {
    Cost::bytes(c.bytes(3 * c.dims[1] * c.dims[2]) + indices * INDEX)
}

/// Along the rows of tables, for shapes `[R, n, C]`.
fn tables(
    variant: &'static str,
    inputs: fn(&Call) -> Result<Vec<Tensor>>,
    f: fn(&Call, &[Tensor]) -> Result<Tensor>,
    cost: fn(&Call) -> Cost,
) -> [Bench; 3] {
    let shapes = [[1024, 128, 256], [4096, 512, 1024], [16384, 2048, 1024]];
    shapes.map(|dims| Bench::new(&dims, call(inputs, f), cost).dtypes(F16).shrinks(2).variant(variant))
}

/// With sums in any order, as PyTorch's default.
fn in_any_order(c: &Call, f: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
    c.device.set_determinism(Determinism::AnyOrder);
    let y = f();
    c.device.set_determinism(Determinism::SameBits);
    y
}

/// A graph of 100 thousand nodes with 128 features each and 1.6 million edges: nodes are read for edges, or edges reduced to nodes.
pub(crate) fn of_graph(action: Action, cost: fn(&Call) -> Cost) -> Bench {
    Bench::new(&[100_000, 1_600_000, 128], action, cost).dtypes(STORED).shrinks(2)
}
