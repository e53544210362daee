//! Products of matrices and of vectors.

pub(crate) mod einsum;
pub mod gemm_bias;
pub mod matmul;
pub(crate) mod products;
pub mod quantized;
pub(crate) mod similarity;
