//! Trains a small convolutional network on images of digits: `cargo run --release --example cnn -- --device opencl:0`, with
//! `--data DIR` on MNIST.

mod images;

use clap::Parser;
use images::{Conv3x3, Options, Size};
use isograd::prelude::*;

/// Two convolutions, each with a relu and the largest of 2x2, and a linear layer.
fn network(size: Size, init: &Init) -> Result<Sequential> {
    let half = [size[0] / 2, size[1] / 2];
    let features = 16 * (half[0] / 2) * (half[1] / 2);
    Ok(Sequential::new()
        .push(Conv3x3::new([1, 8], size, 1, init)?)
        .push(Relu)
        .push(MaxPool2d::new([2, 2]))
        .push(Conv3x3::new([8, 16], half, 1, init)?)
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
