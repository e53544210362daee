//! Trains an MLP on handwritten digits with mixed precision: products in f16, the loss in f32, parameters and steps in f32, and a
//! loss scaler that leaves out steps whose gradients overflow. `cargo run --example amp -- --device opencl:0`; without a
//! device, on the best.

mod print;

use clap::Parser;
use isograd::data::{Dataset, Loader, digits};
use isograd::prelude::*;
use print::print;

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
    /// How often all digits are seen
    #[arg(long, default_value_t = 15)]
    epochs: u64,
}

/// The share of test digits that are recognised, and how many steps were left out.
pub fn train(device: &Device, epochs: u64) -> Result<(f64, usize)> {
    let (train, test) = digits()?.split_every(5)?;
    let (test_x, test_y) = test.to_batch(device)?;
    let loader = Loader::new(train, 32)?.shuffle(42).to(device);
    let init = Init::new(device).seed(42);
    let model = Sequential::new().push(Linear::new(64, 128, &init)?).push(Relu).push(Linear::new(128, 10, &init)?);
    let mut optimizer = AdamW::new(&model).lr(3e-3);
    // Too large at first, so that there is something to leave out.
    let mut scaler = GradScaler::new(device)?.init_scale(16_777_216.0)?.growth_interval(200)?;
    let (mut scale, mut left_out) = (scaler.current().item::<f64>()?, 0);
    for epoch in 0..epochs {
        for batch in loader.epoch(epoch) {
            let (x, y) = batch?;
            let loss = autocast(DType::F16, || model.forward(&x)?.cross_entropy(&y))?;
            scaler.scale(&loss)?.backward()?;
            scaler.step(&mut optimizer)?;
            scaler.update()?;
            // Training itself reads nothing back.
            let now = scaler.current().item::<f64>()?;
            left_out += (now < scale) as usize;
            scale = now;
        }
    }
    let scores = autocast(DType::F16, || no_grad(|| model.forward(&test_x)))?;
    let accuracy = scores.argmax(-1)?.eq(&test_y)?.cast(DType::F32)?.mean(..)?.item::<f64>()?;
    Ok((accuracy, left_out))
}

fn main() -> Result<()> {
    let options = Options::parse();
    let device = options.device.map_or_else(Device::best, |name| name.parse())?;
    let (accuracy, left_out) = train(&device, options.epochs)?;
    print(&format!("{device}: test accuracy {accuracy:.4}, {left_out} steps left out"));
    assert!(accuracy > 0.95, "the accuracy is {accuracy}");
    Ok(())
}
