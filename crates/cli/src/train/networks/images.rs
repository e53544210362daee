//! Networks for images.

use crate::train::config::Config;
use crate::train::images::StemName;
use crate::train::sample::Split;
use isograd::models::{LeNet, MobileNetV2, MobileNetV2Options, ResNet, ResNetOptions, Stem};
use isograd::nn::{Forward, Init, Layer, Module};
use isograd::{Error, Result, Tensor};

/// The most rows and columns of images that begin with CIFAR's stem.
const SMALL: usize = 64;

/// LeNet-5, for images of 28 x 28 pixels.
pub fn lenet(config: &Config, split: &Split, init: &Init) -> Result<Box<dyn Layer>> {
    Network::make("lenet", Some([28; 2]), config, split, init, |[channels, ..], init| {
        LeNet::new(channels, split.outputs, init)
    })
}

/// A residual network by its constructor.
pub fn resnet(
    new: fn(&ResNetOptions, &Init) -> Result<ResNet>,
    config: &Config,
    split: &Split,
    init: &Init,
) -> Result<Box<dyn Layer>> {
    Network::make("resnet", None, config, split, init, |[channels, rows, columns], init| {
        let stem = match config.reading.images.stem {
            Some(StemName::Cifar) => Stem::Cifar,
            Some(StemName::Imagenet) => Stem::ImageNet,
            None if rows.max(columns) <= SMALL => Stem::Cifar,
            None => Stem::ImageNet,
        };
        new(&ResNetOptions { channels, classes: split.outputs, stem }, init)
    })
}

/// MobileNetV2.
pub fn mobilenet(config: &Config, split: &Split, init: &Init) -> Result<Box<dyn Layer>> {
    Network::make("mobilenet", None, config, split, init, |[channels, ..], init| {
        MobileNetV2::new(&MobileNetV2Options { channels, classes: split.outputs, ..Default::default() }, init)
    })
}

/// A network over samples that are images, which may be flattened.
#[derive(Module)]
struct Network<M> {
    #[module(flatten)]
    body: M,
    /// Channels, rows and columns.
    #[module(skip)]
    shape: [usize; 3],
    #[module(skip)]
    is_last: bool,
}

impl<M: Layer + Clone + 'static> Network<M> {
    /// A network of images of this size, or of any, and of these channels, rows and columns.
    fn make(
        name: &'static str,
        size: Option<[usize; 2]>,
        config: &Config,
        split: &Split,
        init: &Init,
        new: impl FnOnce([usize; 3], &Init) -> Result<M>,
    ) -> Result<Box<dyn Layer>> {
        let shape = image_shape(&split.shape);
        let shape = shape.filter(|&[_, rows, columns]| size.is_none_or(|size| size == [rows, columns]));
        let shape = shape.ok_or_else(|| {
            let expected =
                size.map_or("rows and columns".into(), |[rows, columns]| format!("{rows} x {columns} pixels"));
            let message = match split.shape[..] {
                [features] => format!("images have {expected}, but samples of {} have {features} features", split.name),
                _ => format!("images have {expected}, but samples of {} have shape {:?}", split.name, split.shape),
            };
            Error::shape(name, message)
        })?;
        Ok(Box::new(Network { body: new(shape, init)?, shape, is_last: config.reading.images.channels_last }))
    }
}

/// Channels, rows and columns of samples: a flattened image is square, and has one channel.
fn image_shape(shape: &[usize]) -> Option<[usize; 3]> {
    match *shape {
        [channels, rows, columns] => Some([channels, rows, columns]),
        [features] if features.isqrt().pow(2) == features => Some([1, features.isqrt(), features.isqrt()]),
        _ => None,
    }
}

impl<M: Forward> Forward for Network<M> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [channels, rows, columns] = self.shape;
        let x = x.reshape((x.dims()[0], channels, rows, columns))?;
        self.body.forward(&if self.is_last { x.to_channels_last()? } else { x })
    }
}
