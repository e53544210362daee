//! Trains a residual network on images of digits: `cargo run --release --example resnet -- --device cuda:0`, with `--data DIR` on
//! MNIST. He et al. 2016, CVPR.

mod images;

use clap::Parser;
use images::{Conv3x3, Options, Size};
use isograd::prelude::*;

/// A convolution, and the normalisation of its channels.
#[derive(Module)]
struct Unit {
    conv: Conv3x3,
    norm: BatchNorm2d,
}

impl Unit {
    fn new(channels: [usize; 2], size: Size, stride: usize, init: &Init) -> Result<Unit> {
        let conv = Conv3x3::new(channels, size, stride, init)?;
        Ok(Unit { conv, norm: BatchNorm2d::new(channels[1], init)? })
    }
}

impl Forward for Unit {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.conv.forward(x)?)
    }
}

/// `relu(x + second(relu(first(x))))`; x goes through `shortcut` where the shape changes.
#[derive(Module)]
struct Block {
    first: Unit,
    second: Unit,
    shortcut: Option<Unit>,
}

impl Block {
    fn new(channels: [usize; 2], size: Size, stride: usize, init: &Init) -> Result<Block> {
        let first = Unit::new(channels, size, stride, init)?;
        let second = Unit::new([channels[1], channels[1]], first.conv.output, 1, init)?;
        let is_changed = stride != 1 || channels[0] != channels[1];
        let shortcut = is_changed.then(|| Unit::new(channels, size, stride, init)).transpose()?;
        Ok(Block { first, second, shortcut })
    }

    fn output(&self) -> Size {
        self.first.conv.output
    }
}

impl Forward for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.second.forward(&self.first.forward(x)?.relu()?)?;
        match &self.shortcut {
            Some(shortcut) => y.add(&shortcut.forward(x)?)?.relu(),
            None => y.add(x)?.relu(),
        }
    }
}

/// A convolution, three blocks of 16, 32 and 64 channels, their averages, and a linear layer.
fn network(size: Size, init: &Init) -> Result<Sequential> {
    let first = Block::new([16, 16], size, 1, init)?;
    let second = Block::new([16, 32], first.output(), 2, init)?;
    let third = Block::new([32, 64], second.output(), 2, init)?;
    Ok(Sequential::new()
        .push(Unit::new([1, 16], size, 1, init)?)
        .push(Relu)
        .push(first)
        .push(second)
        .push(third)
        .push(AdaptiveAvgPool2d::new([1, 1]))
        .push(Flatten::default())
        .push(Linear::new(64, 10, init)?))
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
        let options = Options { device: Some("cpu".into()), data: None, epochs: 2 };
        assert!(images::train(&options, network).unwrap() > 0.8);
    }
}
