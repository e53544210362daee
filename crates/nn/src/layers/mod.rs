//! Layers, a file a family.

mod activation;
mod attention;
mod conv;
mod dropout;
mod embedding;
mod gated;
mod graph;
mod linear;
mod mesh;
mod norm;
mod pad;
mod pool;
mod quantized;
mod recurrent;
mod resample;
mod sequential;
mod weight;

pub use activation::*;
pub use attention::*;
pub use conv::*;
pub use dropout::Dropout;
pub use embedding::{Embedding, EmbeddingBag};
pub use gated::{Gate, GatedMlp};
pub use graph::*;
pub(crate) use linear::bound;
pub use linear::{Bilinear, Linear};
pub use mesh::{MeshConv, SpiralConv};
pub use norm::{
    BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm, InstanceNorm, InstanceNorm1d, InstanceNorm2d,
    InstanceNorm3d, LayerNorm, LocalResponseNorm, NormOptions, RmsNorm,
};
pub use pad::*;
pub use pool::*;
pub use quantized::{QuantizedEmbedding, QuantizedLinear};
pub use recurrent::*;
pub use resample::*;
pub use sequential::{Flatten, Identity, IntoLayer, Sequential};
pub use weight::{SpectralNorm, WeightNorm};
