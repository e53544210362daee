//! Draws of random numbers.

pub(crate) mod draw;
pub mod dropout;
