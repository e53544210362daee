//! Pooling and resampling.

pub(crate) mod pooling;
pub(crate) mod resample;
pub(crate) mod window;
