//! An autoencoder: digits of 64 pixels as 8 numbers and back. It learns from noisy images what they were without the noise.
//! `cargo run --example autoencoder -- --device opencl:0`.

mod print;

use clap::Parser;
use isograd::data::{Dataset, HostTensor, Labelled, Loader, digits};
use isograd::prelude::*;
use isograd::train::Trainer;
use print::print;

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
}

#[derive(Module)]
struct Autoencoder {
    encoder: Sequential,
    decoder: Sequential,
}

impl Autoencoder {
    fn new(init: &Init) -> Result<Autoencoder> {
        let encoder = Sequential::new().push(Linear::new(64, 48, init)?).push(Relu).push(Linear::new(48, 8, init)?);
        let decoder = Sequential::new().push(Linear::new(8, 48, init)?).push(Relu).push(Linear::new(48, 64, init)?);
        Ok(Autoencoder { encoder, decoder })
    }
}

impl Forward for Autoencoder {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.decoder.forward(&self.encoder.forward(x)?)
    }
}

/// The mean square error of images that were not learnt, and that of the mean image in their place.
pub fn train(device: &Device, epochs: u64) -> Result<(f64, f64)> {
    let (train, test) = digits()?.split_every(5)?;
    // A sample is a noisy image with the image itself as its target. The noise is new in each epoch.
    let noisy = |set: Labelled, noise: f64| {
        set.map(move |(image, _), context| {
            let drawn = image.to_vec::<f32>()?.into_iter().map(|v| v + (noise * context.normal()) as f32);
            Ok((HostTensor::vector(&drawn.collect::<Vec<f32>>()), image))
        })
    };
    let (_, images): (Tensor, Tensor) = noisy(test.clone(), 0.0).to_batch(device)?;
    let mean = images.sub(&images.mean(0)?)?.square()?.mean(..)?.item()?;

    let model = Autoencoder::new(&Init::new(device).seed(42))?;
    let mut trainer = Trainer::new(
        &model,
        AdamW::new(&model).lr(3e-3),
        Loader::new(noisy(train, 0.1), 64)?.shuffle(42).to(device),
        |model, (x, _)| model.forward(x),
        |images, (_, clean)| images.mse_loss(clean, Default::default()),
    )
    .validate(Loader::new(noisy(test, 0.0), 512)?.to(device))
    .epochs(epochs);
    trainer.run()?;
    Ok((trainer.evaluate()?.loss, mean))
}

fn main() -> Result<()> {
    let device = Options::parse().device.map_or_else(Device::best, |name| name.parse())?;
    let (loss, mean) = train(&device, 30)?;
    print(&format!("{device}: mean square error {loss:.4} with 8 numbers an image; of the mean image {mean:.4}"));
    Ok(())
}
