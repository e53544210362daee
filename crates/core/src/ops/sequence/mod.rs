//! Ops of sequence models.

pub mod rotary;
pub mod sample;
