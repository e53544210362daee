//! Normalisation of rows and of channels.

pub mod channel_norm;
pub mod norm;
pub(crate) mod normalize;
pub mod softmax;
