//! Quantised weights: numbers in blocks of a few bits each, with a scale for each block, as ggml's files and QLoRA have them.
//!
//! [`BlockFormat`] is the layout of a block, and what it holds in numbers of f32. [`QuantizedWeight`] is a matrix of such blocks on a device. It is no
//! tensor, and has no gradient: ops that take one are [`Tensor::quantized_linear`](crate::Tensor::quantized_linear) and those of its own.

mod blocks;
mod format;
mod quantise;
mod weight;

pub use format::BlockFormat;
pub use weight::QuantizedWeight;
