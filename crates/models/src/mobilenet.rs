//! MobileNetV2: Sandler et al. 2018, arXiv 1801.04381.

use crate::unit::conv_norm;
use isograd_core::{Result, Tensor};
use isograd_nn::{BatchNorm2d, Conv2d, Dropout, Forward, Init, Linear, Module, Sequential, called};

/// Channels and classes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct MobileNetV2Options {
    /// Channels of an image.
    pub channels: usize,
    /// Outputs.
    pub classes: usize,
    /// The probability with which inputs of the classifier are 0 in training.
    pub dropout: f64,
}

impl Default for MobileNetV2Options {
    fn default() -> MobileNetV2Options {
        MobileNetV2Options { channels: 3, classes: 1000, dropout: 0.2 }
    }
}

/// A convolution, its normalisation and a relu up to 6. Parameters have the names of a sequence.
#[derive(Module)]
struct Unit {
    #[module(name = "0")]
    conv: Conv2d,
    #[module(name = "1")]
    norm: BatchNorm2d,
}

impl Unit {
    fn new(channels: [usize; 2], kernel: usize, stride: usize, groups: usize, init: &Init) -> Result<Unit> {
        let (conv, norm) = conv_norm(channels, kernel, stride, groups, init)?;
        Ok(Unit { conv, norm })
    }
}

impl Forward for Unit {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || self.norm.forward_relu6(&self.conv.forward(x)?))
    }
}

/// More channels, a convolution of each channel, fewer channels; plus the input where the shape stays the same.
#[derive(Module)]
struct InvertedResidual {
    conv: Sequential,
    #[module(skip)]
    is_residual: bool,
}

impl InvertedResidual {
    fn new([input, output]: [usize; 2], stride: usize, expansion: usize, init: &Init) -> Result<InvertedResidual> {
        let hidden = input * expansion;
        let (projection, norm) = conv_norm([hidden, output], 1, 1, 1, init)?;
        let mut conv = Sequential::new();
        if expansion != 1 {
            conv = conv.push(Unit::new([input, hidden], 1, 1, 1, init)?);
        }
        let conv = conv.push(Unit::new([hidden; 2], 3, stride, hidden, init)?).push(projection).push(norm);
        Ok(InvertedResidual { conv, is_residual: stride == 1 && input == output })
    }
}

impl Forward for InvertedResidual {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || {
            let y = self.conv.forward(x)?;
            if self.is_residual { y.add(x) } else { Ok(y) }
        })
    }
}

/// Inverted residuals, for images `[N, channels, H, W]`: `[N, classes]`. Parameters have torchvision's names.
#[derive(Module)]
pub struct MobileNetV2 {
    /// The convolutions, from images to `[N, 1280, ..]`.
    pub features: Sequential,
    /// Dropout and a linear layer, for the means of the features, `[N, 1280]`.
    pub classifier: Sequential,
}

/// The stages; of each, the expansion, output channels, blocks, and the stride of the first block.
const STAGES: [[usize; 4]; 7] =
    [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1]];

/// Channels after the last convolution.
const LAST: usize = 1280;

impl MobileNetV2 {
    /// 3.5 million parameters for ImageNet. The classifier's weight is normal with a deviation of 0.01.
    pub fn new(options: &MobileNetV2Options, init: &Init) -> Result<MobileNetV2> {
        let mut features = Sequential::new().push(Unit::new([options.channels, 32], 3, 2, 1, init)?);
        let mut input = 32;
        for [expansion, output, count, stride] in STAGES {
            for i in 0..count {
                let stride = if i == 0 { stride } else { 1 };
                features = features.push(InvertedResidual::new([input, output], stride, expansion, init)?);
                input = output;
            }
        }
        let linear = Linear {
            weight: init.normal((options.classes, LAST), 0.0, 0.01)?,
            bias: Some(init.zeros(options.classes)?),
        };
        Ok(MobileNetV2 {
            features: features.push(Unit::new([input, LAST], 1, 1, 1, init)?),
            classifier: Sequential::new().push(Dropout::new(options.dropout, init)).push(linear),
        })
    }
}

impl Forward for MobileNetV2 {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || self.classifier.forward(&self.features.forward(x)?.global_avg_pool2d()?.flatten(1, -1)?))
    }
}
