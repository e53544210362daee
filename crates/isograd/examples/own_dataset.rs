//! A dataset of one's own: points on a noisy spiral, turned at random in each epoch. Targets are a number, their radius, and a sequence of
//! classes, the quarters of the plane in which the next places of the spiral are.
//! `cargo run --example own_dataset -- --device opencl:0`.

mod print;

use clap::Parser;
use isograd::data::{Collate, Context, Dataset, Loader};
use isograd::prelude::*;
use isograd::train::Trainer;
use print::print;
use std::f64::consts::TAU;

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
}

const NEXT: usize = 4;

/// A point, its distance from the middle, and the quarters in which it is after each eighth of a turn.
#[derive(Collate)]
pub struct Point {
    at: [f32; 2],
    radius: [f32; 1],
    quarters: [i64; NEXT],
}

struct Spiral(usize);

impl Dataset for Spiral {
    type Item = Point;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize, context: &Context) -> Result<Point> {
        let part = index as f64 / self.0 as f64;
        let turn = (12.0 * part + context.between(-3.0, 3.0)) / TAU;
        let radius = 0.2 + 0.8 * part + 0.01 * context.normal();
        let (sin, cos) = (TAU * turn).sin_cos();
        let quarters = std::array::from_fn(|i| (4.0 * (turn + (i + 1) as f64 / 8.0).rem_euclid(1.0)) as i64 % 4);
        Ok(Point { at: [(radius * cos) as f32, (radius * sin) as f32], radius: [radius as f32], quarters })
    }
}

/// The error of the radius and the loss of the quarters together, first and last.
pub fn train(device: &Device, epochs: u64) -> Result<(f64, f64)> {
    let init = Init::new(device).seed(42);
    let model = Sequential::new().push(Linear::new(2, 64, &init)?).push(Tensor::tanh).push(Linear::new(
        64,
        1 + 4 * NEXT,
        &init,
    )?);
    let loader = Loader::new(Spiral(1024), 64)?.shuffle(42).workers(2)?.to(device);
    let predict = |model: &Sequential, batch: &PointBatch| {
        let y = model.forward(&batch.at)?;
        // The radius, and logits [B * NEXT, 4] of each place of each sequence.
        Ok((y.narrow(1, 0, 1)?, y.narrow(1, 1, 4 * NEXT)?.reshape((y.dims()[0] * NEXT, 4))?))
    };
    let mut trainer =
        Trainer::new(&model, AdamW::new(&model).lr(1e-2), loader, predict, |(radius, quarters), batch| {
            let of_radius = radius.mse_loss(&batch.radius, Default::default())?;
            of_radius.add(&quarters.cross_entropy(&batch.quarters.flatten(0, 1)?)?)
        })
        .epochs(epochs);
    trainer.run()?;
    Ok((trainer.history()[0].train_loss, trainer.history()[epochs as usize - 1].train_loss))
}

fn main() -> Result<()> {
    let device = Options::parse().device.map_or_else(Device::best, |name| name.parse())?;
    let (first, last) = train(&device, 20)?;
    print(&format!("{device}: error {first:.4} in the first epoch, {last:.4} in the last"));
    Ok(())
}
