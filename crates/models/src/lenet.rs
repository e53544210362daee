//! LeNet-5: LeCun et al. 1998, with relu and maxima in place of tanh and averages.

use isograd_core::ops::{Conv, MaxPool, Padding};
use isograd_core::{Result, Tensor};
use isograd_nn::{Conv2d, Forward, Init, Layer, Linear, Module, called};

/// Two convolutions and three linear layers, for images `[N, channels, 28, 28]`: `[N, classes]`.
#[derive(Debug, Module)]
pub struct LeNet {
    /// The first convolution.
    pub conv1: Conv2d,
    /// The second convolution.
    pub conv2: Conv2d,
    /// The first linear layer.
    pub fc1: Linear,
    /// The second linear layer.
    pub fc2: Linear,
    /// From `[N, 84]` to classes: a [`Linear`] at first.
    pub fc3: Box<dyn Layer>,
}

impl LeNet {
    /// For images with these channels.
    pub fn new(channels: usize, classes: usize, init: &Init) -> Result<LeNet> {
        // 28 x 28 pixels are padded to 32 x 32.
        let padded = Conv { padding: Padding::Each([2; 2]), ..Conv::default() };
        Ok(LeNet {
            conv1: Conv2d::with_options(channels, 6, [5, 5], &padded, init)?,
            conv2: Conv2d::new(6, 16, [5, 5], init)?,
            fc1: Linear::new(16 * 5 * 5, 120, init)?,
            fc2: Linear::new(120, 84, init)?,
            fc3: Box::new(Linear::new(84, classes, init)?),
        })
    }
}

impl Forward for LeNet {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || {
            let halved = MaxPool::new([2, 2]);
            let x = self.conv1.forward(x)?.relu()?.max_pool2d(&halved)?;
            let x = self.conv2.forward(&x)?.relu()?.max_pool2d(&halved)?.flatten(1, -1)?;
            self.fc3.forward(&self.fc2.forward(&self.fc1.forward(&x)?.relu()?)?.relu()?)
        })
    }
}
