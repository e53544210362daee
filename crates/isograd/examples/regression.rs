//! Learns the strength of a wing's lift from a table: validation, a schedule, early stopping, and the best weights at the end.
//! `cargo run --example regression -- --device opencl:0`; `--data FILE` reads a table of your own, whose last column is the target.

mod print;

use clap::Parser;
use isograd::data::{Dataset, Loader, csv};
use isograd::nn::schedule::OneCycle;
use isograd::prelude::*;
use isograd::train::{Goal, Trainer};
use print::print;
use std::path::{Path, PathBuf};

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
    /// A table of numbers [default: one that is computed]
    #[arg(long)]
    data: Option<PathBuf>,
}

/// A table of angles and speeds, and the lift at each.
fn table() -> String {
    let mut text = String::from("angle,speed,lift\n");
    for i in 0..600 {
        let (angle, speed) = (f64::from(i) * 0.618 % 1.0, f64::from(i) * 0.755 % 1.0);
        text += &format!("{angle:.4},{speed:.4},{:.4}\n", (6.0 * angle).sin() * speed * speed);
    }
    text
}

/// The error of a guess that is always the mean, and the best validation loss.
pub fn train(device: &Device, data: Option<&Path>, epochs: u64) -> Result<(f64, f64)> {
    let options = csv::Options { header: csv::Header::Present, ..csv::Options::default() };
    let table = match data {
        Some(path) => csv::read_regression(path, &options)?,
        None => csv::parse_regression(Path::new("lift.csv"), table().as_bytes(), &options)?,
    };
    let inputs = table.sample_len();
    let [train, test] = table.random_split([0.8, 0.2], 7)?;
    let (_, y): (Tensor, Tensor) = test.to_batch(device)?;
    let guess = y.sub(&y.mean(..)?)?.square()?.mean(..)?.item::<f64>()?;

    let init = Init::new(device).seed(42);
    let model = Sequential::new()
        .push(Linear::new(inputs, 48, &init)?)
        .push(Tensor::tanh)
        .push(Linear::new(48, 48, &init)?)
        .push(Tensor::tanh)
        .push(Linear::new(48, 1, &init)?);
    let train = Loader::new(train, 32)?.shuffle(42).to(device);
    let steps = epochs * train.len() as u64;
    let mut trainer = Trainer::new(
        &model,
        AdamW::new(&model).clip_norm(1.0),
        train,
        |model, (x, _)| model.forward(x),
        |guess, (_, y)| guess.mse_loss(y, Default::default()),
    )
    .validate(Loader::new(test, 128)?.to(device))
    .metric("error", Goal::Lowest, |guess, (_, y)| guess.sub(y)?.abs())
    .schedule(OneCycle::new(1e-2, steps))
    .early_stopping(15)
    .epochs(epochs);
    trainer.run()?;
    Ok((guess, trainer.evaluate()?.loss))
}

fn main() -> Result<()> {
    let options = Options::parse();
    let device = options.device.map_or_else(Device::best, |name| name.parse())?;
    let (guess, loss) = train(&device, options.data.as_deref(), 60)?;
    print(&format!("{device}: mean square error {loss:.5}; of the mean as a guess {guess:.5}"));
    Ok(())
}
