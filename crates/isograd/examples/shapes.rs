//! Tells noisy spheres, boxes and tori apart by convolutions along spirals of a mesh. The shapes are the same grid of triangles, bent.
//! `cargo run --example shapes -- --device opencl:0`.

mod print;

use clap::Parser;
use isograd::data::mesh::TriangleMesh;
use isograd::data::{Context, Dataset, HostTensor, Items, Loader};
use isograd::ops::Neighbors;
use isograd::prelude::*;
use isograd::train::{Goal, Trainer};
use print::print;
use std::f64::consts::TAU;

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
}

const AROUND: usize = 16;
const ALONG: usize = 9;

/// The triangles of a tube.
fn tube() -> Result<TriangleMesh> {
    let halves = |k: usize| {
        let [a, b] = [k, k / AROUND * AROUND + (k + 1) % AROUND].map(|v| v as u32);
        let [c, d] = [b, a].map(|v| v + AROUND as u32);
        [[a, b, c], [a, c, d]]
    };
    TriangleMesh::new(vec![[0.0; 3]; AROUND * ALONG], (0..AROUND * (ALONG - 1)).flat_map(halves).collect())
}

/// The vertices of a sphere (0), a box (1) or a torus (2), of random size, turned at random, with noise.
fn shape(class: usize, context: &Context) -> Result<HostTensor> {
    let [scale, turn] = [context.between(0.7, 1.3), context.between(0.0, TAU)];
    let vertex = |k: usize| {
        let (u, v) = (TAU * (k % AROUND) as f64 / AROUND as f64, (k / AROUND) as f64 / (ALONG - 1) as f64);
        let (radius, z) = match class {
            2 => (0.7 + 0.3 * (TAU * v).cos(), 0.3 * (TAU * v).sin()),
            _ => ((TAU * v / 2.0).sin(), -(TAU * v / 2.0).cos()),
        };
        let widest = if class == 1 { z.abs().max(radius * u.cos().abs().max(u.sin().abs())) / 0.8 } else { 1.0 };
        let turned = [radius * (u + turn).cos(), radius * (u + turn).sin(), z];
        turned.map(|c| (scale / widest * c + 0.02 * context.normal()) as f32)
    };
    HostTensor::new((0..AROUND * ALONG).map(vertex).collect::<Vec<_>>().as_flattened(), [AROUND * ALONG, 3])
}

#[derive(Module)]
struct Network {
    first: SpiralConv,
    second: SpiralConv,
    classes: Linear,
}

/// The accuracy on 60 shapes of a network that learns from 240.
pub fn train(device: &Device, epochs: u64) -> Result<f64> {
    let (init, spirals) = (&Init::new(device).seed(42), Neighbors::new(&tube()?.spirals(9, 1)?.to(device)?)?);
    let (first, second) = (SpiralConv::new(3, 16, 9, init)?, SpiralConv::new(16, 32, 9, init)?);
    let model = Network { first, second, classes: Linear::new(32, 3, init)? };
    let shapes = |n| Items(Vec::from_iter(0..n)).map(|i, context| Ok((shape(i % 3, context)?, (i % 3) as i64)));
    let predict = |model: &Network, (x, _): &(Tensor, Tensor)| {
        let hidden = model.first.forward(x, &spirals)?.relu()?;
        model.classes.forward(&model.second.forward(&hidden, &spirals)?.relu()?.mean(1)?)
    };
    let (train, adam) = (Loader::new(shapes(240), 8)?.shuffle(42).to(device), AdamW::new(&model).lr(1e-2));
    let mut trainer = Trainer::new(&model, adam, train, predict, |y, (_, class)| y.cross_entropy(class))
        .validate(Loader::new(shapes(60), 60)?.to(device))
        .metric("accuracy", Goal::Highest, |y, (_, class)| y.argmax(-1)?.eq(class))
        .epochs(epochs);
    trainer.run()?;
    Ok(trainer.evaluate()?.metrics["accuracy"])
}

fn main() -> Result<()> {
    let device = Options::parse().device.map_or_else(Device::best, |name| name.parse())?;
    print(&format!("{device}: {:.1} % of the shapes are recognised", 100.0 * train(&device, 10)?));
    Ok(())
}
