//! The two networks of a DCGAN for images of 64 x 64 pixels: Radford et al. 2015, arXiv 1511.06434, as in PyTorch's examples.

use isograd_core::ops::{Conv, ConvTranspose, Padding};
use isograd_core::{Result, Tensor};
use isograd_nn::{
    BatchNorm2d, Conv2d, ConvTranspose2d, Forward, Init, LeakyRelu, Module, Relu, Sequential, Sigmoid, Tanh, called,
};

/// Extents of both networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dcgan {
    /// Channels of an image.
    pub channels: usize,
    /// Numbers from which an image is made.
    pub latent: usize,
    /// Channels of the generator's last hidden layer.
    pub generator: usize,
    /// Channels of the discriminator's first hidden layer.
    pub discriminator: usize,
}

impl Default for Dcgan {
    fn default() -> Dcgan {
        Dcgan { channels: 3, latent: 100, generator: 64, discriminator: 64 }
    }
}

/// Makes images `[N, channels, 64, 64]` in -1 .. 1 from numbers `[N, latent, 1, 1]`.
#[derive(Module)]
pub struct Generator {
    /// All layers.
    pub main: Sequential,
}

/// The probability `[N]` that each of the images `[N, channels, 64, 64]` is real.
#[derive(Module)]
pub struct Discriminator {
    /// All layers.
    pub main: Sequential,
}

/// Normal with mean 1 and deviation 0.02.
fn norm(channels: usize, init: &Init) -> Result<BatchNorm2d> {
    let mut norm = BatchNorm2d::new(channels, init)?;
    norm.weight = Some(init.normal(channels, 1.0, 0.02)?);
    Ok(norm)
}

/// Windows of 4 x 4 that double the extents, or make 4 x 4 pixels from one. Weights are normal with a deviation of 0.02.
fn larger(channels: [usize; 2], from_one: bool, init: &Init) -> Result<ConvTranspose2d> {
    let (stride, padding) = if from_one { (1, 0) } else { (2, 1) };
    let options = ConvTranspose { stride: [stride; 2], padding: [padding; 2], ..ConvTranspose::default() };
    let conv = ConvTranspose2d::without_bias(channels[0], channels[1], [4; 2], &options, init)?;
    Ok(ConvTranspose2d { weight: init.normal(conv.weight.shape(), 0.0, 0.02)?, ..conv })
}

/// Windows of 4 x 4 that halve the extents, or make one pixel from 4 x 4.
fn smaller(channels: [usize; 2], to_one: bool, init: &Init) -> Result<Conv2d> {
    let (stride, padding) = if to_one { (1, 0) } else { (2, 1) };
    let options = Conv { stride: [stride; 2], padding: Padding::Each([padding; 2]), ..Conv::default() };
    let conv = Conv2d::without_bias(channels[0], channels[1], [4; 2], &options, init)?;
    Ok(Conv2d { weight: init.normal(conv.weight.shape(), 0.0, 0.02)?, ..conv })
}

impl Generator {
    /// 3.6 million parameters by default.
    pub fn new(options: &Dcgan, init: &Init) -> Result<Generator> {
        let Dcgan { channels, latent, generator: n, .. } = *options;
        let mut main = Sequential::new();
        for (i, channels) in [[latent, 8 * n], [8 * n, 4 * n], [4 * n, 2 * n], [2 * n, n]].into_iter().enumerate() {
            main = main.push(larger(channels, i == 0, init)?).push(norm(channels[1], init)?).push(Relu);
        }
        Ok(Generator { main: main.push(larger([n, channels], false, init)?).push(Tanh) })
    }
}

impl Forward for Generator {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || self.main.forward(x))
    }
}

impl Discriminator {
    /// 2.8 million parameters by default.
    pub fn new(options: &Dcgan, init: &Init) -> Result<Discriminator> {
        let Dcgan { channels, discriminator: n, .. } = *options;
        let leaky = LeakyRelu { slope: 0.2 };
        let mut main = Sequential::new().push(smaller([channels, n], false, init)?).push(leaky);
        for channels in [[n, 2 * n], [2 * n, 4 * n], [4 * n, 8 * n]] {
            main = main.push(smaller(channels, false, init)?).push(norm(channels[1], init)?).push(leaky);
        }
        Ok(Discriminator { main: main.push(smaller([8 * n, 1], true, init)?).push(Sigmoid) })
    }
}

impl Forward for Discriminator {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || self.main.forward(x)?.flatten(0, -1))
    }
}
