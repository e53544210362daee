//! Products of matrices.

pub mod matmul;
