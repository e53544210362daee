//! Trains a small convolutional network on images of digits: `cargo run --release --example cnn -- --device opencl:0`, with
//! `--data DIR` on MNIST.

pub mod images;

use clap::Parser;
use images::{Options, Size};
use isograd::ops::{Conv, Padding};
use isograd::prelude::*;

/// Two convolutions, each with a relu and the largest of 2x2, and a linear layer.
fn network(size: Size, init: &Init) -> Result<Sequential> {
    let same = Conv { padding: Padding::Same, ..Conv::default() };
    let features = 16 * (size[0] / 4) * (size[1] / 4);
    Ok(Sequential::new()
        .push(Conv2d::with_options(1, 8, [3, 3], &same, init)?)
        .push(Relu)
        .push(MaxPool2d::new([2, 2]))
        .push(Conv2d::with_options(8, 16, [3, 3], &same, init)?)
        .push(Relu)
        .push(MaxPool2d::new([2, 2]))
        .push(Flatten::default())
        .push(Linear::new(features, 10, init)?))
}

/// The share of test images that the trained network recognises.
pub fn train(options: &Options) -> Result<f64> {
    images::train(options, network)
}

fn main() -> Result<()> {
    let accuracy = train(&Options::parse())?;
    assert!(accuracy > 0.9, "the accuracy is {accuracy}");
    Ok(())
}
