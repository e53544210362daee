//! Networks for images, text and tables. Parameters have the names and shapes of torchvision (convolutions) or of Hugging Face's `transformers`
//! (transformers) where these have the network, so that their weights load by name.
//!
//! All parts of a network tell when they run, so that [`ForwardHook`](isograd_nn::ForwardHook) sees them; most are fields. The last layers and the
//! projections of transformers are `Box<dyn Layer>`: another layer may be assigned, or put in their places by name, which
//! [`Module::replace_matching`](isograd_nn::Module::replace_matching) does.

mod batch;
mod beams;
pub mod bert;
pub mod causal;
mod dcgan;
mod decoder;
mod encoder;
pub mod gpt2;
mod hub;
mod language;
mod lenet;
mod mobilenet;
mod recurrent;
pub mod resnet;
mod sampler;
mod stops;
mod tabular;
pub mod unet;
mod unit;
pub mod vit;

pub use batch::DecodingBatch;
pub use beams::{Beam, BeamOptions, beam_search};
pub use bert::{Bert, BertInput, BertOptions};
pub use causal::{Architecture, CausalLm, CausalLmOptions};
pub use dcgan::{Dcgan, Discriminator, Generator};
pub use decoder::Decoder;
pub use encoder::Heads;
pub use gpt2::{Gpt2, Gpt2Options};
pub use hub::{Pretrained, Source};
pub use language::{LanguageExtents, LanguageModel};
pub use lenet::LeNet;
pub use mobilenet::{MobileNetV2, MobileNetV2Options};
pub use recurrent::{Recurrence, RecurrentModel, RecurrentModelOptions, RecurrentState};
pub use resnet::{ResNet, ResNetOptions, Stem};
pub use sampler::{LogitsOptions, LogitsProcessor, TokenSampler};
pub use stops::stop_tokens;
pub use tabular::{Mlp, Tabular, TabularOptions};
pub use unet::{UNet, UNetOptions};
pub use vit::{Vit, VitOptions};
