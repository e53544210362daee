//! Kernels of the CPU, called as a backend is called.

mod common;
mod draws;
mod holders;
mod indices;
mod moves;
mod pointwise;
mod products;
mod reductions;
mod slices;
mod vectors;
