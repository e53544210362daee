//! Normalisation of rows and of channels.

pub(crate) mod batch_norm;
pub(crate) mod group_norm;
pub(crate) mod norm;
pub(crate) mod softmax;
