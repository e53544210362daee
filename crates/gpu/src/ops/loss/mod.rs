//! Losses.

pub(crate) mod cross_entropy;
pub(crate) mod ctc;
pub(crate) mod distance;
