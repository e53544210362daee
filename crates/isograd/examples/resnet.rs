//! Trains a residual network on images of digits: `cargo run --release --example resnet -- --device cuda:0`, with `--data DIR` on
//! MNIST. He et al. 2016, CVPR.

pub mod images;

use clap::Parser;
use images::{Options, Size};
use isograd::ops::{Conv, Padding};
use isograd::prelude::*;

/// A convolution, and the normalisation of its channels.
#[derive(Module)]
struct Unit {
    conv: Conv2d,
    norm: BatchNorm2d,
}

impl Unit {
    fn new([input, output]: [usize; 2], stride: usize, init: &Init) -> Result<Unit> {
        let conv = Conv { stride: [stride; 2], padding: Padding::Each([1; 2]), ..Conv::default() };
        let conv = Conv2d::without_bias(input, output, [3, 3], &conv, init)?;
        Ok(Unit { conv, norm: BatchNorm2d::new(output, init)? })
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
    fn new(channels: [usize; 2], stride: usize, init: &Init) -> Result<Block> {
        let first = Unit::new(channels, stride, init)?;
        let second = Unit::new([channels[1], channels[1]], 1, init)?;
        let is_changed = stride != 1 || channels[0] != channels[1];
        let shortcut = is_changed.then(|| Unit::new(channels, stride, init)).transpose()?;
        Ok(Block { first, second, shortcut })
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
fn network(_: Size, init: &Init) -> Result<Sequential> {
    Ok(Sequential::new()
        .push(Unit::new([1, 16], 1, init)?)
        .push(Relu)
        .push(Block::new([16, 16], 1, init)?)
        .push(Block::new([16, 32], 2, init)?)
        .push(Block::new([32, 64], 2, init)?)
        .push(AdaptiveAvgPool2d::new([1, 1]))
        .push(Flatten::default())
        .push(Linear::new(64, 10, init)?))
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
