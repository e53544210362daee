//! The libraries of GPUs' vendors: how they are found and called.

pub mod blas;
pub mod dynlib;
