//! Convolutions over meshes.

use crate::bench::{Action, Bench, Call, Cost, INDEX, STORED, Work};
use crate::case::{Case, Domain, Gen};
use crate::registry::common::{absolute, one};
use crate::registry::invocation::Invocation;
use crate::registry::op::{Class, Op};
use isograd_core::ops::Neighbors;
use isograd_core::tape::{BackwardOptions, grad_with};
use isograd_core::{Error, Kind, Result, Tensor};
use serde_json::json;

pub(crate) fn ops() -> Vec<Op> {
    vec![
        mesh("mesh_conv", "neighbors", 1, Tensor::mesh_conv)
            .kernels(&["mesh_conv_forward"])
            // The first gradient of the input inverts the table.
            .launches(7, 64)
            .bench(measured::<1>(4)),
        mesh("spiral_conv", "spirals", 0, Tensor::spiral_conv)
            .kernels(&["spiral_conv_forward"])
            .launches(6, 64)
            .bench(measured::<0>(9)),
    ]
}

type Run = fn(&Tensor, &Neighbors, &Tensor, Option<&Tensor>) -> Result<Tensor>;

/// A convolution whose table has the input's name `table`, and lists all but `own` of the neighbours.
fn mesh(name: &'static str, table: &'static str, own: usize, run: Run) -> Op {
    let run = move |c: &Invocation<'_>| {
        let (x, given) = (c.input("x")?, c.input(table)?);
        // The op has the table; a case has the tensor.
        let shown = |e: Error| match e.kind() {
            Kind::Shape => {
                Error::shape(name, format!("{}; x is {} and {table} {}", e.message(), x.shape(), given.shape()))
            }
            _ => e.of(name),
        };
        let neighbors = Neighbors::new(given).map_err(shown)?;
        one(run(x, &neighbors, c.input("w")?, c.optional("b")).map_err(shown))
    };
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

/// A million rows, with this many neighbours in the table: of 64 features with neighbours anywhere, and of 64 and 256 with neighbours
/// nearby, as in a mesh whose rows are numbered along its surface.
fn measured<const OWN: usize>(listed: usize) -> Vec<Bench> {
    fn of<const OWN: usize, const IS_NEAR: bool>(
        listed: usize,
        features: usize,
        variants: [&'static str; 2],
    ) -> [Bench; 2] {
        let dims = [1 << 20, listed, features, features];
        let bench = |work, cost, variant| Bench::new(&dims, Action::Work(work), cost).dtypes(STORED).variant(variant);
        [
            bench(forward::<OWN, IS_NEAR>, |c| maps(c, OWN, 1), variants[0]),
            bench(gradients::<OWN, IS_NEAR>, |c| maps(c, OWN, 2), variants[1]),
        ]
    }
    let anywhere = of::<OWN, false>(listed, 64, ["anywhere", "anywhere, gradients"]);
    let nearby = [64, 256].map(|features| of::<OWN, true>(listed, features, ["nearby", "nearby, gradients"]));
    anywhere.into_iter().chain(nearby.into_iter().flatten()).collect()
}

/// x `[V, C]`, the neighbours `[V, S]` and the weight `[O, (OWN + S) C]` of a shape `[V, S, C, O]`.
fn operands<const OWN: usize, const IS_NEAR: bool>(c: &Call) -> Result<(Tensor, Neighbors, Tensor)> {
    let [rows, listed, channels, outputs] = [0, 1, 2, 3].map(|d| c.dims[d]);
    let table = match IS_NEAR {
        false => c.indices(rows, &[rows, listed])?,
        true => {
            // The neighbours in a grid with a thousand columns.
            let steps = [0, 1, 1024, 1023, -1, -1024, -1023, 2, 2048];
            let steps = Tensor::from_vec((0..listed).map(|s| steps[s % 9]).collect::<Vec<i64>>(), listed, &c.device)?;
            let at = Tensor::arange(rows, &c.device)?.unsqueeze(1)?.add(&steps)?;
            at.clamp(Some(0.into()), Some((rows as i64 - 1).into()))?
        }
    };
    let weight = c.normal(&[outputs, (OWN + listed) * channels])?;
    Ok((c.normal(&[rows, channels])?, Neighbors::new(&table)?, weight))
}

fn convolved<const OWN: usize>(x: &Tensor, neighbors: &Neighbors, weight: &Tensor) -> Result<Tensor> {
    if OWN == 1 { x.mesh_conv(neighbors, weight, None) } else { x.spiral_conv(neighbors, weight, None) }
}

fn forward<const OWN: usize, const IS_NEAR: bool>(c: &Call) -> Result<Work> {
    let (x, neighbors, weight) = operands::<OWN, IS_NEAR>(c)?;
    Ok(Box::new(move || convolved::<OWN>(&x, &neighbors, &weight).map(drop)))
}

/// The gradients of the input and of the weight.
fn gradients<const OWN: usize, const IS_NEAR: bool>(c: &Call) -> Result<Work> {
    let (x, neighbors, weight) = operands::<OWN, IS_NEAR>(c)?;
    let (x, weight) = (x.require_grad()?, weight.require_grad()?);
    let y = convolved::<OWN>(&x, &neighbors, &weight)?;
    let dy = c.normal(y.dims())?;
    Ok(Box::new(move || {
        let options = BackwardOptions { gradient: Some(dy.clone()), retain: true, ..Default::default() };
        grad_with(&y, &[&x, &weight], &options).map(drop)
    }))
}

/// A number of the maps of a convolution.
fn maps(c: &Call, own: usize, maps: usize) -> Cost {
    let &[rows, listed, channels, outputs] = &c.dims[..] else { return Cost::bytes(0) };
    let weight = outputs * (own + listed) * channels;
    let bytes = c.bytes(rows * (channels + outputs) + weight) + rows * listed * INDEX;
    Cost { bytes: maps * bytes, flops: 2.0 * (maps * rows) as f64 * weight as f64 }
}
