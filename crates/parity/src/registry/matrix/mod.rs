//! Products and distances of vectors and matrices.

pub(super) mod matmul;
pub(super) mod products;
pub(super) mod quantized;
pub(super) mod similarity;
