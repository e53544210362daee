//! Data and the training loop of the examples on images.

#[path = "../print/mod.rs"]
mod print;

use clap::Parser;
use isograd::data::{Labelled, Loader, digits, mnist};
use isograd::prelude::*;
use print::print;
use std::path::PathBuf;

#[derive(Parser)]
/// The options of a network on images.
pub struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    pub device: Option<String>,
    /// A folder with MNIST's IDX files [default: the digits of 8x8 pixels that isograd has]
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// How often all images are seen
    #[arg(long, default_value_t = 10)]
    pub epochs: u64,
}

/// Rows and columns of the images.
pub type Size = [usize; 2];

fn datasets(options: &Options) -> Result<(Labelled, Labelled, Size)> {
    match &options.data {
        Some(folder) => mnist(folder).map(|(train, test)| (train, test, [28, 28])),
        None => digits()?.split_every(5).map(|(train, test)| (train, test, [8, 8])),
    }
}

/// Trains what `make` returns for images of a size, and returns the share of test images that it recognises.
pub fn train<M: Layer>(options: &Options, make: impl Fn(Size, &Init) -> Result<M>) -> Result<f64> {
    let device = options.device.as_deref().map_or_else(Device::best, str::parse)?;
    let (train, test, size) = datasets(options)?;
    let shape = [1, size[0], size[1]];
    let loader = |set: Labelled| Ok::<_, Error>(Loader::new(set.with_sample_shape(shape)?, 64)?.to(&device));
    let (count, train, test) = (test.len(), loader(train)?.shuffle(42), loader(test)?);
    let model = make(size, &Init::new(&device).seed(42))?;
    let mut optimizer = AdamW::new(&model).lr(3e-3);
    print(&format!("{} parameters on {device}", model.num_parameters()));
    let mut accuracy = 0.0;
    for epoch in 0..options.epochs {
        model.train();
        let mut losses = Vec::new();
        for batch in train.epoch(epoch) {
            let (x, y) = batch?;
            let loss = model.forward(&x)?.cross_entropy(&y)?;
            loss.backward()?;
            optimizer.step()?;
            losses.push(loss.detach());
        }
        model.eval();
        let mut right = 0.0;
        for batch in test.epoch(0) {
            let (x, y) = batch?;
            let found = no_grad(|| model.forward(&x))?.argmax(-1)?;
            right += found.eq(&y)?.cast(DType::F32)?.sum(..)?.item::<f64>()?;
        }
        accuracy = right / count as f64;
        let losses = losses.iter().map(Tensor::item::<f64>).collect::<Result<Vec<_>>>()?;
        let loss = losses.iter().sum::<f64>() / losses.len() as f64;
        print(&format!("epoch {}: loss {loss:.4}, test accuracy {accuracy:.4}", epoch + 1));
    }
    Ok(accuracy)
}
