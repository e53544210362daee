//! Windows and pixels of images.

pub(super) mod pooling;
pub(super) mod resampling;
