//! Elements by mask or place, searches in sorted sequences, counts, distinct elements, and reductions by index.

use crate::case::{Case, Domain, Gen};
use crate::registry::common::{NO_GRADIENT, absolute, at, none, one};
use crate::registry::invocation::Invocation;
use crate::registry::op::Class::{Reduction, Stages};
use crate::registry::op::Op;
use isograd_core::ops::{Bag, BagMode, Order, Own, ScatterReduce, Side, Unique};
use isograd_core::{Result, Tensor};
use serde_json::{Value, json};

const REDUCE: [(&str, ScatterReduce); 5] = [
    ("sum", ScatterReduce::Sum),
    ("prod", ScatterReduce::Prod),
    ("mean", ScatterReduce::Mean),
    ("amax", ScatterReduce::Amax),
    ("amin", ScatterReduce::Amin),
];

pub(crate) const BAGS: [(&str, BagMode); 3] = [("mean", BagMode::Mean), ("sum", BagMode::Sum), ("max", BagMode::Max)];

fn side(c: &Invocation<'_>) -> Result<Side> {
    Ok(if c.flag("right")? { Side::Right } else { Side::Left })
}

fn own(c: &Invocation<'_>) -> Result<Own> {
    Ok(if c.flag_or("include_self", true)? { Own::Included } else { Own::Replaced })
}

fn masked(g: &mut Gen) -> Case {
    let small = g.smaller();
    Case::of(vec![("x", g.x(Domain::Real)), ("mask", g.mask(&small))])
}

/// Values, and at least as many as the mask has true elements.
fn masked_scatter(g: &mut Gen) -> Case {
    let shape = g.shape.clone();
    let count = shape.iter().product();
    let source = g.tensor(Domain::Real, &[count]);
    Case::of(vec![("self", g.x(Domain::Real)), ("mask", g.mask(&shape)), ("source", source)])
}

/// Indices of up to four slices, each named once or several times.
fn slices(g: &mut Gen) -> (usize, Tensor, Vec<usize>) {
    g.at_least_rank(1);
    g.not_empty();
    let d = g.below(g.shape.len());
    let (extent, mut shape) = (g.shape[d], g.shape.clone());
    shape[d] = g.below(4);
    let index = g.indices(extent, &shape[d..=d]);
    (d, index, shape)
}

fn sorted(g: &mut Gen, shape: &[usize]) -> Tensor {
    let x = g.tensor(Domain::Real, shape);
    let (sorted, _) = x.sort(-1, Order::Ascending).expect("floats are sorted");
    sorted.contiguous().expect("memory for a case")
}

/// Rows of a sorted sequence each with rows of values, or one sequence for all values. Half of the values are elements of it.
fn searched(g: &mut Gen, names: [&'static str; 2]) -> Case {
    g.at_least_rank(1);
    let is_shared = names[1] == "boundaries" || g.coin();
    let mut shape = g.shape.clone();
    let last = shape.len() - 1;
    shape[last] = g.side();
    let sequence = if is_shared { sorted(g, &[shape[last]]) } else { sorted(g, &shape) };
    let values = g.x(Domain::Real);
    let inputs = if names[1] == "boundaries" {
        vec![(names[0], values), (names[1], sequence)]
    } else {
        vec![(names[0], sequence), (names[1], values)]
    };
    Case::new(json!({"right": g.coin()}), inputs)
}

fn counted(g: &mut Gen) -> Case {
    let shape = g.shape.clone();
    let inputs = vec![("x", g.indices(9, &shape)), ("weights", g.x(Domain::Real))];
    Case::new(json!({"minlength": g.below(12)}), inputs)
}

fn unique(found: Result<Unique>) -> Result<Vec<Tensor>> {
    found.map(|u| vec![u.values, u.inverse, u.counts])
}

/// Few distinct elements.
fn repeated(g: &mut Gen) -> Case {
    at(none(), g.x(Domain::Real).mul_scalar(2.0).and_then(|x| x.round()).expect("floats round"))
}

/// Without cancellation in sums.
fn reduced(g: &mut Gen, reduce: &str) -> Case {
    let (d, index, shape) = slices(g);
    let (x, src) = (g.x(Domain::Positive), g.tensor(Domain::Positive, &shape));
    let attributes = json!({"dim": d, "reduce": reduce, "include_self": g.coin()});
    Case::new(attributes, vec![("self", x), ("index", index), ("src", src)])
}

fn scattered(g: &mut Gen, reduce: &str) -> Case {
    g.at_least_rank(1);
    g.not_empty();
    let d = g.below(g.shape.len());
    let (extent, mut shape) = (g.shape[d], g.shape.clone());
    shape[d] = g.below(5);
    let index = g.indices(extent, &shape);
    let (x, src) = (g.x(Domain::Positive), g.tensor(Domain::Positive, &shape));
    let attributes = json!({"dim": d, "reduce": reduce, "include_self": g.coin()});
    Case::new(attributes, vec![("self", x), ("index", index), ("src", src)])
}

fn any_reduction(g: &mut Gen) -> &'static str {
    g.pick(&REDUCE.map(|(name, _)| name))
}

/// Entries of bags that lie one after the other, or bags of equal size.
fn bags(g: &mut Gen) -> Case {
    let (rows, width, bags) = (2 + g.side(), g.side().max(1), 1 + g.below(4));
    let entries = [g.side(), bags * 3][g.below(2)];
    let has_offsets = entries != bags * 3 || g.coin();
    let shape = if has_offsets { vec![entries] } else { vec![bags, 3] };
    let mode = g.pick(&BAGS.map(|(name, _)| name));
    let table = g.tensor(Domain::Positive, &[rows, width]);
    let mut inputs = vec![("w", table), ("index", g.indices(rows, &shape))];
    if has_offsets {
        let mut offsets: Vec<i64> = (0..bags).map(|_| g.below(entries + 1) as i64).collect();
        offsets.sort_unstable();
        offsets[0] = 0;
        inputs.push(("offsets", Tensor::from_vec(offsets, bags, g.device()).expect("memory for a case")));
    }
    if mode == "sum" && g.coin() {
        inputs.push(("per_sample_weights", g.tensor(Domain::Positive, &shape)));
    }
    let padding = if g.coin() { json!(g.below(rows)) } else { Value::Null };
    Case::new(json!({"mode": mode, "padding_idx": padding}), inputs)
}

pub(crate) fn ops() -> Vec<Op> {
    vec![
        Op::new("masked_select", |c| one(c.input("x")?.masked_select(c.input("mask")?)), masked)
            .linear()
            .also(&["index"])
            .fused()
            .launches(12, 8),
        Op::new(
            "masked_scatter",
            |c| one(c.input("self")?.masked_scatter(c.input("mask")?, c.input("source")?)),
            masked_scatter,
        )
        .linear()
        .also(&["index", "index_put"])
        .fused()
        .launches(16, 12),
        Op::new(
            "take",
            |c| one(c.input("x")?.take(c.input("index")?)),
            |g| {
                g.not_empty();
                let (count, shape) = (g.shape.iter().product(), [g.below(4), 2]);
                Case::of(vec![("x", g.x(Domain::Real)), ("index", g.indices(count, &shape))])
            },
        )
        .linear()
        .also(&["index"])
        .launches(3, 3),
        Op::new(
            "take_along_dim",
            |c| one(c.input("x")?.take_along_dim(c.input("index")?, c.dim("dim")?)),
            |g| {
                g.at_least_rank(2);
                g.not_empty();
                let d = g.below(g.shape.len());
                let (extent, mut shape) = (g.shape[d], vec![1; g.shape.len()]);
                shape[d] = g.below(4);
                let index = g.indices(extent, &shape);
                Case::new(json!({"dim": d}), vec![("x", g.x(Domain::Real)), ("index", index)])
            },
        )
        .linear()
        .also(&["gather"])
        .launches(1, 3),
        Op::new(
            "index_fill",
            |c| one(c.input("x")?.index_fill(c.dim("dim")?, c.input("index")?, c.scalar("value")?)),
            |g| {
                let (d, index, _) = slices(g);
                Case::new(json!({"dim": d, "value": 2}), vec![("x", g.x(Domain::Real)), ("index", index)])
            },
        )
        .also(&["scatter"])
        .launches(3, 3),
        Op::new(
            "index_copy",
            |c| one(c.input("self")?.index_copy(c.dim("dim")?, c.input("index")?, c.input("src")?)),
            |g| {
                let (d, index, shape) = slices(g);
                let (x, src) = (g.x(Domain::Real), g.tensor(Domain::Real, &shape));
                Case::new(json!({"dim": d}), vec![("self", x), ("index", index), ("src", src)])
            },
        )
        .linear()
        .also(&["scatter"])
        .launches(3, 10),
        Op::new(
            "searchsorted",
            |c| one(c.input("sorted")?.searchsorted(c.input("values")?, side(c)?)),
            |g| searched(g, ["sorted", "values"]),
        )
        .derivative(NO_GRADIENT)
        .launches(200, 0),
        Op::new(
            "bucketize",
            |c| one(c.input("x")?.bucketize(c.input("boundaries")?, side(c)?)),
            |g| searched(g, ["x", "boundaries"]),
        )
        .derivative(NO_GRADIENT)
        .also(&["searchsorted"])
        .launches(200, 0),
        Op::new(
            "bincount",
            |c| one(c.input("x")?.bincount(c.optional("weights"), c.size_or("minlength", 0)?)),
            counted,
        )
        .class(Reduction)
        .companion(absolute)
        .linear()
        .collects()
        .also(&["scatter_add"])
        .launches(13, 4),
        Op::new(
            "histc",
            |c| {
                let ends = [c.optional_of("min", Invocation::float)?, c.optional_of("max", Invocation::float)?];
                let range = if let [Some(low), Some(high)] = ends { Some([low, high]) } else { None };
                one(c.input("x")?.histc(c.size("bins")?, range))
            },
            |g| {
                // A range of its own puts elements on the boundaries, where dtypes differ.
                at(json!({"bins": 1 + g.below(7), "min": -1.0, "max": 1.5}), g.x(Domain::Real))
            },
        )
        .derivative(NO_GRADIENT)
        .launches(24, 0)
        .finite(&["bins"]),
        Op::new("unique", |c| unique(c.input("x")?.unique()), repeated)
            .derivative(NO_GRADIENT)
            .also(&["sort"])
            .fused()
            .launches(31, 0),
        Op::new("unique_consecutive", |c| unique(c.input("x")?.unique_consecutive()), repeated)
            .derivative(NO_GRADIENT)
            .fused()
            .launches(24, 0),
        Op::new(
            "scatter_reduce",
            |c| {
                let (x, index, src) = (c.input("self")?, c.input("index")?, c.input("src")?);
                one(x.scatter_reduce(c.dim("dim")?, index, src, c.choice("reduce", &REDUCE)?, own(c)?))
            },
            |g| {
                let reduce = any_reduction(g);
                scattered(g, reduce)
            },
        )
        .class(Stages)
        .also(&["scatter_add", "scatter"])
        .fused()
        .launches(160, 160),
        Op::new(
            "index_reduce",
            |c| {
                let (x, index, src) = (c.input("self")?, c.input("index")?, c.input("src")?);
                one(x.index_reduce(c.dim("dim")?, index, src, c.choice("reduce", &REDUCE)?, own(c)?))
            },
            |g| {
                let reduce = any_reduction(g);
                reduced(g, reduce)
            },
        )
        .class(Stages)
        .also(&["scatter_reduce", "scatter_add", "scatter"])
        .fused()
        .launches(160, 160),
        Op::new(
            "embedding_bag",
            |c| {
                let bag = Bag {
                    mode: c.choice_or_first("mode", &BAGS)?,
                    weights: c.optional("per_sample_weights"),
                    padding_idx: c.optional_of("padding_idx", Invocation::int)?,
                };
                one(c.input("w")?.embedding_bag(c.input("index")?, c.optional("offsets"), &bag))
            },
            bags,
        )
        .class(Reduction)
        .also(&["embedding", "searchsorted", "scatter_sum", "scatter_mean", "scatter_max"])
        .fused()
        .launches(40, 12),
    ]
}
