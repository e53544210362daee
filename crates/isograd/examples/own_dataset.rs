//! A dataset of one's own: points on a noisy spiral, turned at random in each epoch, with their angle and radius as targets.
//! `cargo run --example own_dataset -- --device opencl:0`.

mod print;

use clap::Parser;
use isograd::data::{Collate, Context, Dataset, Loader};
use isograd::prelude::*;
use isograd::train::Trainer;
use print::print;

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
}

/// A point, its distance from the middle, and the direction that it is in, as sine and cosine.
#[derive(Collate)]
pub struct Point {
    at: [f32; 2],
    radius: [f32; 1],
    direction: [f32; 2],
}

struct Spiral(usize);

impl Dataset for Spiral {
    type Item = Point;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize, context: &Context) -> Result<Point> {
        let part = index as f64 / self.0 as f64;
        let (sin, cos) = (12.0 * part + context.between(-3.0, 3.0)).sin_cos();
        let radius = 0.2 + 0.8 * part + 0.01 * context.normal();
        let at = [(radius * cos) as f32, (radius * sin) as f32];
        Ok(Point { at, radius: [radius as f32], direction: [sin as f32, cos as f32] })
    }
}

#[derive(Module)]
struct Polar {
    hidden: Linear,
    radius: Linear,
    direction: Linear,
}

/// The mean square error of radius and direction, first and last.
pub fn train(device: &Device, epochs: u64) -> Result<(f64, f64)> {
    let init = Init::new(device).seed(42);
    let model = Polar {
        hidden: Linear::new(2, 64, &init)?,
        radius: Linear::new(64, 1, &init)?,
        direction: Linear::new(64, 2, &init)?,
    };
    let loader = Loader::new(Spiral(1024), 64)?.shuffle(42).workers(2)?.to(device);
    let predict = |model: &Polar, batch: &PointBatch| {
        let hidden = model.hidden.forward(&batch.at)?.tanh()?;
        Ok((model.radius.forward(&hidden)?, model.direction.forward(&hidden)?))
    };
    let mut trainer =
        Trainer::new(&model, AdamW::new(&model).lr(1e-2), loader, predict, |(radius, direction), batch| {
            let mse = Default::default();
            radius.mse_loss(&batch.radius, mse)?.add(&direction.mse_loss(&batch.direction, mse)?)
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
