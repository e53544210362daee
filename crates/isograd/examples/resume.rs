//! A run that is stopped, saved, reloaded and goes on, with the bits of one that was not stopped: model, optimizer, order of the samples
//! and dropout. `cargo run --example resume -- --device opencl:0` leaves `resume.safetensors`.

mod print;

use clap::Parser;
use isograd::data::{Loader, digits};
use isograd::prelude::*;
use print::print;
use std::path::Path;

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
}

struct Run {
    model: Sequential,
    optimizer: Adam,
    init: Init,
    loader: Loader<(Tensor, Tensor)>,
}

impl Run {
    fn new(device: &Device) -> Result<Run> {
        let init = Init::new(device).seed(42);
        let model = Sequential::new()
            .push(Linear::new(64, 32, &init)?)
            .push(Relu)
            .push(Dropout::new(0.2, &init))
            .push(Linear::new(32, 10, &init)?);
        let optimizer = Adam::new(&model).lr(3e-3);
        Ok(Run { model, optimizer, init, loader: Loader::new(digits()?, 64)?.shuffle(7).to(device) })
    }

    /// Learns from the samples once, and returns the last loss.
    fn epoch(&mut self, epoch: u64) -> Result<f64> {
        self.loader.epoch(epoch).try_fold(f64::NAN, |_, batch| {
            let (x, y) = batch?;
            let loss = self.model.forward(&x)?.cross_entropy(&y)?;
            loss.backward()?;
            self.optimizer.step()?;
            loss.item()
        })
    }

    fn save(&self, file: &Path, next: u64) -> Result<()> {
        let checkpoint = Checkpoint::new().with_model(&self.model)?.with_optimizer(&self.optimizer)?;
        checkpoint.with_rng("dropout", self.init.rng()).with("next", next).save(file)
    }

    /// Goes on from a file; returns the epoch that comes next.
    fn restore(&mut self, file: &Path) -> Result<u64> {
        let checkpoint = Checkpoint::load(file, self.init.device())?;
        checkpoint.restore_model(&self.model)?;
        checkpoint.restore_optimizer(&mut self.optimizer)?;
        checkpoint.restore_rng("dropout", self.init.rng())?;
        checkpoint.get("next")
    }
}

/// The last losses of a run of `epochs` epochs, and of one that was stopped in the middle.
pub fn train(device: &Device, file: &Path, epochs: u64) -> Result<[f64; 2]> {
    let (mut whole, mut first) = (Run::new(device)?, Run::new(device)?);
    let expected = (0..epochs).try_fold(0.0, |_, epoch| whole.epoch(epoch))?;
    (0..epochs / 2).try_for_each(|epoch| first.epoch(epoch).map(drop))?;
    first.save(file, epochs / 2)?;
    let mut second = Run::new(device)?;
    let next = second.restore(file)?;
    Ok([expected, (next..epochs).try_fold(0.0, |_, epoch| second.epoch(epoch))?])
}

fn main() -> Result<()> {
    let device = Options::parse().device.map_or_else(Device::best, |name| name.parse())?;
    let [whole, resumed] = train(&device, Path::new("resume.safetensors"), 6)?;
    print(&format!("{device}: loss {whole} without a stop, {resumed} with one"));
    Ok(())
}
