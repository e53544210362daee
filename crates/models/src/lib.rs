//! Networks for images, text and tables. Parameters have the names and shapes of torchvision (convolutions) or of Hugging Face's `transformers`
//! (transformers) where these have the network, so that their weights load by name.

mod bert;
pub mod causal;
mod dcgan;
mod decoder;
mod encoder;
mod gpt2;
mod hub;
mod language;
mod lenet;
mod mobilenet;
mod recurrent;
mod resnet;
mod tabular;
mod unet;
mod unit;
mod vit;

pub use bert::{Bert, BertInput, BertOptions};
pub use causal::{Architecture, CausalLm, CausalLmOptions};
pub use dcgan::{Dcgan, Discriminator, Generator};
pub use decoder::Decoder;
pub use gpt2::{Gpt2, Gpt2Options};
pub use hub::{Pretrained, Source};
pub use language::LanguageModel;
pub use lenet::LeNet;
pub use mobilenet::{MobileNetV2, MobileNetV2Options};
pub use recurrent::{Recurrence, RecurrentModel, RecurrentModelOptions, RecurrentState};
pub use resnet::{ResNet, ResNetOptions, Stem};
pub use tabular::{Mlp, Tabular, TabularOptions};
pub use unet::{UNet, UNetOptions};
pub use vit::{Vit, VitOptions};
