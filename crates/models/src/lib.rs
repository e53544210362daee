//! Networks for images. Parameters have torchvision's names and shapes where torchvision has the network, so that its weights load by
//! name.

mod dcgan;
mod lenet;
mod mobilenet;
mod resnet;
mod unet;
mod unit;

pub use dcgan::{Dcgan, Discriminator, Generator};
pub use lenet::LeNet;
pub use mobilenet::{MobileNetV2, MobileNetV2Options};
pub use resnet::{ResNet, ResNetOptions, Stem};
pub use unet::{UNet, UNetOptions};
