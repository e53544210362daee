//! Residual networks: He et al. 2016, CVPR, and with the strides of torchvision, at the second convolution of a bottleneck.

use crate::unit::{conv, conv_norm};
use isograd_core::ops::MaxPool;
use isograd_core::{Result, Tensor};
use isograd_nn::{BatchNorm2d, Conv2d, Forward, Init, Layer, Linear, Module, Sequential, Visitor, VisitorMut, called};

/// The layers before the first block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Stem {
    /// Windows of 7 x 7 at a distance of 2, and maxima: the extents are divided by 4.
    #[default]
    ImageNet,
    /// Windows of 3 x 3, for images of 32 x 32 pixels.
    Cifar,
}

/// Channels, classes and stem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct ResNetOptions {
    /// Channels of an image.
    pub channels: usize,
    /// Outputs.
    pub classes: usize,
    /// The layers before the first block.
    pub stem: Stem,
}

impl Default for ResNetOptions {
    fn default() -> ResNetOptions {
        ResNetOptions { channels: 3, classes: 1000, stem: Stem::ImageNet }
    }
}

/// `relu(shortcut(x) + f(x))`: f is two convolutions (basic) or three (a bottleneck), each normalised, and each but the last before a
/// relu.
pub struct Block {
    units: Vec<(Conv2d, BatchNorm2d)>,
    /// The shortcut where the shape changes.
    downsample: Option<Sequential>,
}

impl Block {
    fn basic([input, width]: [usize; 2], stride: usize, init: &Init) -> Result<Block> {
        let units = vec![conv_norm([input, width], 3, stride, 1, init)?, conv_norm([width; 2], 3, 1, 1, init)?];
        Ok(Block { units, downsample: downsample([input, width], stride, init)? })
    }

    fn bottleneck([input, width]: [usize; 2], stride: usize, init: &Init) -> Result<Block> {
        let units = vec![
            conv_norm([input, width], 1, 1, 1, init)?,
            conv_norm([width; 2], 3, stride, 1, init)?,
            conv_norm([width, 4 * width], 1, 1, 1, init)?,
        ];
        Ok(Block { units, downsample: downsample([input, 4 * width], stride, init)? })
    }
}

fn downsample(channels: [usize; 2], stride: usize, init: &Init) -> Result<Option<Sequential>> {
    if stride == 1 && channels[0] == channels[1] {
        return Ok(None);
    }
    let (conv, norm) = conv_norm(channels, 1, stride, 1, init)?;
    Ok(Some(Sequential::new().push(conv).push(norm)))
}

impl Module for Block {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (i, (conv, norm)) in self.units.iter().enumerate() {
            visitor.part(&format!("conv{}", i + 1), conv);
            visitor.part(&format!("bn{}", i + 1), norm);
        }
        visitor.part("downsample", &self.downsample);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        for (conv, norm) in &mut self.units {
            visitor.part(conv);
            visitor.part(norm);
        }
        visitor.part(&mut self.downsample);
    }
}

impl Clone for Block {
    fn clone(&self) -> Self {
        VisitorMut::cloned(|| Block { units: self.units.clone(), downsample: self.downsample.clone() })
    }
}

impl Forward for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || {
            let shortcut = match &self.downsample {
                Some(downsample) => downsample.forward(x)?,
                None => x.clone(),
            };
            let last = self.units.len() - 1;
            let unit = |x: Tensor, (i, (conv, norm)): (usize, &(Conv2d, BatchNorm2d))| {
                norm.forward_relu(&conv.forward(&x)?, (i == last).then_some(&shortcut))
            };
            self.units.iter().enumerate().try_fold(x.clone(), unit)
        })
    }
}

/// Four stages of blocks, for images `[N, channels, H, W]`: `[N, classes]`. Parameters have torchvision's names.
#[derive(Module)]
pub struct ResNet {
    /// The first convolution.
    pub conv1: Conv2d,
    /// Its norm.
    pub bn1: BatchNorm2d,
    /// The stage with the largest images.
    pub layer1: Vec<Block>,
    /// The second stage.
    pub layer2: Vec<Block>,
    /// The third stage.
    pub layer3: Vec<Block>,
    /// The fourth stage.
    pub layer4: Vec<Block>,
    /// From features `[N, 512]`, or `[N, 2048]` of bottlenecks, to classes: a [`Linear`] at first.
    pub fc: Box<dyn Layer>,
    #[module(skip)]
    stem: Stem,
}

/// The kind of a network's blocks.
#[derive(Clone, Copy)]
enum Kind {
    Basic,
    Bottleneck,
}

impl ResNet {
    /// 18 layers in basic blocks: 11.7 million parameters for ImageNet.
    pub fn resnet18(options: &ResNetOptions, init: &Init) -> Result<ResNet> {
        ResNet::new(Kind::Basic, [2, 2, 2, 2], options, init)
    }

    /// 34 layers in basic blocks: 21.8 million parameters for ImageNet.
    pub fn resnet34(options: &ResNetOptions, init: &Init) -> Result<ResNet> {
        ResNet::new(Kind::Basic, [3, 4, 6, 3], options, init)
    }

    /// 50 layers in bottlenecks: 25.6 million parameters for ImageNet.
    pub fn resnet50(options: &ResNetOptions, init: &Init) -> Result<ResNet> {
        ResNet::new(Kind::Bottleneck, [3, 4, 6, 3], options, init)
    }

    fn new(kind: Kind, counts: [usize; 4], options: &ResNetOptions, init: &Init) -> Result<ResNet> {
        let &ResNetOptions { channels, classes, stem } = options;
        let mut input = 64;
        let mut stage = |i: usize| {
            let width = 64 << i;
            let block = |k: usize| {
                let stride = if i > 0 && k == 0 { 2 } else { 1 };
                let (block, output) = match kind {
                    Kind::Basic => (Block::basic([input, width], stride, init)?, width),
                    Kind::Bottleneck => (Block::bottleneck([input, width], stride, init)?, 4 * width),
                };
                input = output;
                Ok(block)
            };
            (0..counts[i]).map(block).collect::<Result<Vec<Block>>>()
        };
        Ok(ResNet {
            conv1: first(channels, stem, init)?,
            bn1: BatchNorm2d::new(64, init)?,
            layer1: stage(0)?,
            layer2: stage(1)?,
            layer3: stage(2)?,
            layer4: stage(3)?,
            fc: Box::new(Linear::new(input, classes, init)?),
            stem,
        })
    }

    /// The output of the last stage, `[N, 512, ..]`, or `[N, 2048, ..]` of bottlenecks.
    pub fn features(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.bn1.forward_relu(&self.conv1.forward(x)?, None)?;
        let x = match self.stem {
            Stem::ImageNet => x.max_pool2d(&MaxPool { stride: [2; 2], padding: [1; 2], ..MaxPool::new([3; 2]) })?,
            Stem::Cifar => x,
        };
        let stages = [&self.layer1, &self.layer2, &self.layer3, &self.layer4];
        stages.into_iter().flatten().try_fold(x, |x, block| block.forward(&x))
    }
}

fn first(channels: usize, stem: Stem, init: &Init) -> Result<Conv2d> {
    match stem {
        Stem::ImageNet => conv([channels, 64], 7, 2, 1, init),
        Stem::Cifar => conv([channels, 64], 3, 1, 1, init),
    }
}

impl Forward for ResNet {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || self.fc.forward(&self.features(x)?.global_avg_pool2d()?.flatten(1, -1)?))
    }
}
