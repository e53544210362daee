//! Convolutions over meshes.

use super::common::{absolute, one};
use super::{Class, Invocation, Op};
use crate::bench::{Bench, Call, Cost, INDEX, STORED, call};
use crate::case::{Case, Domain, Gen};
use isograd_core::{Result, Tensor};
use serde_json::json;

pub(super) fn ops() -> Vec<Op> {
    let spirals = |_: &Call, x: &[Tensor]| x[0].spiral_conv(&x[1], &x[2], None);
    let neighbors = |_: &Call, x: &[Tensor]| x[0].mesh_conv(&x[1], &x[2], None);
    vec![
        mesh("mesh_conv", "neighbors", 1, Tensor::mesh_conv)
            .kernels(&["mesh_conv_forward"])
            .launches(7, 12)
            .bench([measured(4, rows_and_neighbors::<1>, neighbors, once::<1>).backward(twice::<1>)]),
        mesh("spiral_conv", "spirals", 0, Tensor::spiral_conv)
            .kernels(&["spiral_conv_forward"])
            .launches(6, 12)
            .bench([measured(9, rows_and_neighbors::<0>, spirals, once::<0>).backward(twice::<0>)]),
    ]
}

type Run = fn(&Tensor, &Tensor, &Tensor, Option<&Tensor>) -> Result<Tensor>;

/// A convolution whose table has the input's name `table`, and lists all but `own` of the neighbours.
fn mesh(name: &'static str, table: &'static str, own: usize, run: Run) -> Op {
    let run = move |c: &Invocation<'_>| one(run(c.input("x")?, c.input(table)?, c.input("w")?, c.optional("b")));
    Op::new(name, run, move |g| case(g, table, own)).class(Class::Product).companion(absolute).fused()
}

/// Features of rows, with neighbours that repeat, and absent ones.
fn case(g: &mut Gen, table: &'static str, own: usize) -> Case {
    let [rows, listed] = [g.side(), g.below(6)];
    let [channels, outputs] = if g.is_large() { [g.side(), g.side()] } else { [1 + g.below(3), 1 + g.below(3)] };
    let x = g.pick(&[None, Some(1), Some(2), Some(3)]).into_iter().chain([rows, channels]).collect::<Vec<_>>();
    let found = g.indices(rows + 1, &[rows, listed]);
    let mut inputs = vec![
        ("x", g.tensor(Domain::Real, &x)),
        (table, found.sub_scalar(1).expect("an index is a number")),
        ("w", g.tensor(Domain::Real, &[outputs, (own + listed) * channels])),
    ];
    if g.coin() {
        inputs.push(("b", g.tensor(Domain::Real, &[outputs])));
    }
    Case::new(json!({}), inputs)
}

/// A million rows of 64 features, with this many neighbours in the table.
fn measured(
    listed: usize,
    inputs: fn(&Call) -> Result<Vec<Tensor>>,
    run: fn(&Call, &[Tensor]) -> Result<Tensor>,
    cost: fn(&Call) -> Cost,
) -> Bench {
    Bench::new(&[1 << 20, listed, 64, 64], call(inputs, run), cost).dtypes(STORED)
}

/// x `[V, C]`, the table `[V, S]` and the weight `[O, (OWN + S) C]` of a shape `[V, S, C, O]`.
fn rows_and_neighbors<const OWN: usize>(c: &Call) -> Result<Vec<Tensor>> {
    let &[rows, listed, channels, outputs] = &c.dims[..] else { return Ok(Vec::new()) };
    let table = c.indices(rows, &[rows, listed])?;
    Ok(vec![c.normal(&[rows, channels])?, table, c.normal(&[outputs, (OWN + listed) * channels])?])
}

fn once<const OWN: usize>(c: &Call) -> Cost {
    maps(c, OWN, 1)
}

fn twice<const OWN: usize>(c: &Call) -> Cost {
    maps(c, OWN, 2)
}

/// A number of the maps of a convolution.
fn maps(c: &Call, own: usize, maps: usize) -> Cost {
    let &[rows, listed, channels, outputs] = &c.dims[..] else { return Cost::bytes(0) };
    let weight = outputs * (own + listed) * channels;
    let bytes = c.bytes(rows * (channels + outputs) + weight) + rows * listed * INDEX;
    Cost { bytes: maps * bytes, flops: 2.0 * (maps * rows) as f64 * weight as f64 }
}
