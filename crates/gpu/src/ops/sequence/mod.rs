//! Ops of sequence models.

pub(crate) mod rotary;
pub(crate) mod sample;
