//! Kernels by family: which one a call takes, and its launches.

pub mod matmul;
