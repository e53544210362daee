//! Trains a small convolutional network on images of digits: `cargo run --release --example cnn -- --device opencl:0`, with
//! `--data DIR` on MNIST.

mod images;

use clap::Parser;
use images::{Options, Size};
use isograd::ops::{Conv, Padding};
use isograd::prelude::*;

/// Two convolutions, each with a relu and the largest of 2x2, and a linear layer.
fn network(size: Size, init: &Init) -> Result<Sequential> {
    let same = Conv { padding: Padding::Same, ..Conv::default() };
    let features = 16 * (size[0] / 4) * (size[1] / 4);
    Ok(Sequential::new()
        .push(Conv2d::new(1, 8, [3, 3], &same, init)?)
        .push(Relu)
        .push(MaxPool2d::new([2, 2]))
        .push(Conv2d::new(8, 16, [3, 3], &same, init)?)
        .push(Relu)
        .push(MaxPool2d::new([2, 2]))
        .push(Flatten::default())
        .push(Linear::new(features, 10, init)?))
}

fn main() -> Result<()> {
    let accuracy = images::train(&Options::parse(), network)?;
    assert!(accuracy > 0.9, "the accuracy is {accuracy}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns_digits() {
        let options = Options { device: Some("cpu".into()), data: None, epochs: 6 };
        assert!(images::train(&options, network).unwrap() > 0.85);
    }
}
