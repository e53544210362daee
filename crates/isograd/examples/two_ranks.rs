//! Training on two ranks, each with a thread, a device and its part of every batch. What they learn is what one learns from whole batches.
//! `cargo run --example two_ranks -- --devices cuda:0,cuda:1`.

mod print;

use clap::Parser;
use isograd::data::{Dataset, Loader, digits};
use isograd::parallel::{DataParallel, Group, ParallelOptions, threads};
use isograd::prelude::*;
use print::print;

#[derive(Parser)]
struct Options {
    /// The devices, one for each rank
    #[arg(long, value_delimiter = ',', default_value = "cpu,cpu")]
    devices: Vec<String>,
}

/// The accuracy of one rank's model, of which all have the same.
fn rank(group: &Group, device: &Device, epochs: u64) -> Result<f64> {
    let (train, test) = digits()?.split_every(5)?;
    let init = Init::new(device).seed(42);
    let model = Sequential::new().push(Linear::new(64, 32, &init)?).push(Relu).push(Linear::new(32, 10, &init)?);
    let mut optimizer = Adam::new(&model).lr(3e-3);
    let parallel = DataParallel::new(&model, group, &ParallelOptions::default())?;
    let loader = Loader::new(train, 64)?.shuffle(42).to(device).part(group.rank(), group.size())?;
    for epoch in 0..epochs {
        for (i, batch) in loader.epoch(epoch).enumerate() {
            let (x, y) = batch?;
            // The last batch may have parts of different sizes.
            let share = group.share(loader.samples_in(i))?;
            model.forward(&x)?.cross_entropy(&y)?.mul_scalar(share)?.backward()?;
            parallel.synchronize()?;
            optimizer.step()?;
        }
    }
    let (x, y): (Tensor, Tensor) = test.to_batch(device)?;
    no_grad(|| model.forward(&x)?.argmax(1)?.eq(&y)?.cast(DType::F32)?.mean(..)?.item())
}

/// The accuracies of all ranks.
pub fn train(devices: &[Device], epochs: u64) -> Result<Vec<f64>> {
    threads(devices.len(), |group| rank(&group, &devices[group.rank()], epochs))
}

fn main() -> Result<()> {
    let names = Options::parse().devices;
    let devices: Vec<Device> = names.iter().map(|name| name.parse()).collect::<Result<_>>()?;
    let accuracies = train(&devices, 10)?;
    print(&format!("{}: accuracies {accuracies:.3?}", names.join(" and ")));
    Ok(())
}
