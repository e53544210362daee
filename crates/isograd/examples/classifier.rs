//! Learns classes from a table of numbers and categories, which have embeddings: names of classes, validation, a schedule, early stopping.
//! `cargo run --example classifier -- --device opencl:0`; `--data FILE` reads a table of your own, whose last column has the classes.

mod print;

use clap::Parser;
use isograd::data::{Dataset, Loader, csv};
use isograd::models::{Tabular, TabularOptions};
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
    /// A table with classes in the last column [default: one that is computed]
    #[arg(long)]
    data: Option<PathBuf>,
}

/// A table of angles, speeds and profiles, and whether a wing stalls.
fn table() -> String {
    let mut text = String::from("angle,speed,profile,flow\n");
    for i in 0..600 {
        let (angle, speed) = (i as f64 * 0.618 % 1.0, i as f64 * 0.755 % 1.0);
        let (profile, least) = [("flat", 0.3), ("curved", 0.1), ("thick", 0.2)][i % 3];
        let flow = if (6.0 * angle).sin() * speed > least { "lifts" } else { "stalls" };
        text += &format!("{angle:.4},{speed:.4},{profile},{flow}\n");
    }
    text
}

/// The share of the largest class, and the best accuracy of samples that were not learnt.
pub fn train(device: &Device, data: Option<&Path>, epochs: u64) -> Result<(f64, f64)> {
    let options = csv::Options { learn: csv::Learn::Classes, ..csv::Options::default() };
    let table = match data {
        Some(path) => csv::Table::read(path, &options)?,
        None => csv::Table::parse(Path::new("wing.csv"), table().as_bytes(), &options)?,
    };
    let (train, test) = table.split_every(5)?;
    // Of the rows to train on alone: what a model knows of the others would not be new.
    let encoding = csv::Encoding::fit(&train, &csv::EncodingOptions::default())?;
    let (train, test) = (encoding.encode(&train)?, encoding.encode(&test)?);
    let (_, _, labels) = test.to_batch(device)?;
    let counts: Vec<i64> = labels.bincount(None, 0)?.to_vec()?;
    let largest = counts.into_iter().max().unwrap_or(0) as f64 / labels.numel() as f64;

    let (numbers, categories, outputs) = (encoding.numbers(), encoding.categories(), encoding.outputs());
    let sizes = TabularOptions { numbers, categories, hidden: vec![48, 48], outputs };
    let model = Tabular::new(&sizes, &Init::new(device).seed(42))?;
    let train = Loader::new(train, 32)?.shuffle(42).to(device);
    let steps = epochs * train.len() as u64;
    let mut trainer = Trainer::new(
        &model,
        AdamW::new(&model).clip_norm(1.0),
        train,
        |model, (numbers, categories, _)| model.forward(numbers, categories),
        |scores, (_, _, y)| scores.cross_entropy(y),
    )
    .validate(Loader::new(test, 128)?.to(device))
    .metric("accuracy", Goal::Highest, |scores, (_, _, y)| scores.argmax(-1)?.eq(y))
    .schedule(OneCycle::new(1e-2, steps))
    .early_stopping(15)
    .epochs(epochs);
    trainer.run()?;
    Ok((largest, trainer.evaluate()?.metrics["accuracy"]))
}

fn main() -> Result<()> {
    let options = Options::parse();
    let device = options.device.map_or_else(Device::best, |name| name.parse())?;
    let (largest, accuracy) = train(&device, options.data.as_deref(), 60)?;
    print(&format!("{device}: accuracy {accuracy:.3}; the largest class has a share of {largest:.3}"));
    Ok(())
}
