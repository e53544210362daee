//! U-Net: Ronneberger et al. 2015, arXiv 1505.04597, with padding, so that the output has the extents of the input, and batch norm.

use crate::unit::conv_norm;
use isograd_core::ops::{ConvTranspose, MaxPool};
use isograd_core::{Result, Tensor};
use isograd_nn::{BatchNorm2d, Conv2d, ConvTranspose2d, Forward, Init, Layer, Module, called};

/// Channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct UNetOptions {
    /// Channels of an image.
    pub channels: usize,
    /// Outputs of a pixel.
    pub classes: usize,
    /// Channels of the first level. Each level has twice as many as the one above.
    pub width: usize,
    /// Levels below the first: the extents are multiples of 2 to this power.
    pub depth: usize,
}

impl Default for UNetOptions {
    fn default() -> UNetOptions {
        UNetOptions { channels: 1, classes: 2, width: 64, depth: 4 }
    }
}

/// Two convolutions of 3 x 3, each normalised and before a relu.
#[derive(Debug, Module)]
pub struct Pair {
    /// The first convolution.
    pub conv1: Conv2d,
    /// Its norm.
    pub norm1: BatchNorm2d,
    /// The second convolution.
    pub conv2: Conv2d,
    /// Its norm.
    pub norm2: BatchNorm2d,
}

impl Pair {
    fn new([input, output]: [usize; 2], init: &Init) -> Result<Pair> {
        let (conv1, norm1) = conv_norm([input, output], 3, 1, 1, init)?;
        let (conv2, norm2) = conv_norm([output; 2], 3, 1, 1, init)?;
        Ok(Pair { conv1, norm1, conv2, norm2 })
    }
}

impl Forward for Pair {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || {
            let x = self.norm1.forward_relu(&self.conv1.forward(x)?, None)?;
            self.norm2.forward_relu(&self.conv2.forward(&x)?, None)
        })
    }
}

/// A path down, with half the extents at each level, and a path up, which joins the levels of both: from `[N, channels, H, W]` to
/// `[N, classes, H, W]`.
#[derive(Debug, Module)]
pub struct UNet {
    /// The path down, from the largest images.
    pub down: Vec<Pair>,
    /// The lowest level.
    pub bottom: Pair,
    /// The layers that double the extents on the path up.
    pub larger: Vec<ConvTranspose2d>,
    /// The path up, to the largest images.
    pub up: Vec<Pair>,
    /// From `[N, width, H, W]` to classes: a [`Conv2d`] at first.
    pub last: Box<dyn Layer>,
}

impl UNet {
    /// 31.0 million parameters by default.
    pub fn new(options: &UNetOptions, init: &Init) -> Result<UNet> {
        let UNetOptions { channels, classes, width, depth } = *options;
        let at = |level: usize| width << level;
        let above = |level: usize| if level == 0 { channels } else { at(level - 1) };
        let doubled = ConvTranspose { stride: [2; 2], ..ConvTranspose::default() };
        let larger = |level: usize| ConvTranspose2d::with_options(at(level + 1), at(level), [2; 2], &doubled, init);
        Ok(UNet {
            down: (0..depth).map(|level| Pair::new([above(level), at(level)], init)).collect::<Result<_>>()?,
            bottom: Pair::new([above(depth), at(depth)], init)?,
            larger: (0..depth).rev().map(larger).collect::<Result<_>>()?,
            up: (0..depth).rev().map(|level| Pair::new([at(level + 1), at(level)], init)).collect::<Result<_>>()?,
            last: Box::new(Conv2d::new(width, classes, [1; 2], init)?),
        })
    }
}

/// Errors: `Shape` unless the extents are multiples of 2 to the depth.
impl Forward for UNet {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || {
            let (mut x, mut levels) = (x.clone(), Vec::new());
            for pair in &self.down {
                let y = pair.forward(&x)?;
                x = y.max_pool2d(&MaxPool::new([2; 2]))?;
                levels.push(y);
            }
            x = self.bottom.forward(&x)?;
            for ((larger, pair), level) in self.larger.iter().zip(&self.up).zip(levels.iter().rev()) {
                x = pair.forward(&Tensor::concat(&[level, &larger.forward(&x)?], 1)?)?;
            }
            self.last.forward(&x)
        })
    }
}
