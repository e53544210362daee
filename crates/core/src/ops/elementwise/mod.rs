//! Functions of each element, and what changes tensors in place.

pub(crate) mod binary;
pub(crate) mod compare;
pub mod each;
pub mod fused_pointwise;
pub(crate) mod in_place;
pub(crate) mod operators;
pub mod pointwise_sum;
pub(crate) mod unary;
pub mod unscale;
