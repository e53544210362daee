//! The same code on every device: each trains one model from one seed, and a name is all that differs. `cargo run --example
//! every_device`; `--device NAME` trains on one.

mod print;

use clap::Parser;
use isograd::data::{Loader, digits};
use isograd::prelude::*;
use print::print;

#[derive(Parser)]
struct Options {
    /// A device, as `isograd devices` lists it [default: all of them]
    #[arg(long)]
    device: Option<String>,
}

/// The losses of the first steps.
pub fn train(device: &Device, steps: usize) -> Result<Vec<f64>> {
    let init = Init::new(device).seed(42);
    let model = Sequential::new().push(Linear::new(64, 32, &init)?).push(Relu).push(Linear::new(32, 10, &init)?);
    let mut optimizer = Sgd::new(&model).lr(0.1).momentum(0.9);
    let loader = Loader::new(digits()?, 64)?.shuffle(42).to(device);
    let step = |batch: Result<(Tensor, Tensor)>| {
        let (x, y) = batch?;
        let loss = model.forward(&x)?.cross_entropy(&y)?;
        loss.backward()?;
        optimizer.step()?;
        loss.item()
    };
    loader.epoch(0).take(steps).map(step).collect()
}

fn main() -> Result<()> {
    let all = || Device::list().into_iter().filter_map(|(_, found)| found.ok()).flatten().map(|device| device.name);
    let names: Vec<String> = Options::parse().device.map_or_else(|| all().collect(), |name| vec![name]);
    for name in names {
        let losses = train(&name.parse()?, 20)?;
        let last = losses.last().copied().unwrap_or(f64::NAN);
        print(&format!("{name}: loss {:.6} in the first step, {last:.6} in the last", losses[0]));
    }
    Ok(())
}
