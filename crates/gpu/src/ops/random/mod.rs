//! Draws of random numbers.

pub(crate) mod draw;
pub(crate) mod dropout;
