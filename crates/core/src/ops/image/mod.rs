//! Pooling, resampling and other orders of pixels.

pub(crate) mod grid;
pub(crate) mod interpolate;
pub mod pool;
pub mod resample;
pub(crate) mod shuffle;
pub mod window;
