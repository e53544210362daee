//! Products of matrices.

pub mod matmul;
pub(in crate::ops) mod quantized;
