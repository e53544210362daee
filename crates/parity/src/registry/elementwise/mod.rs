//! Functions of one element at a time.

pub(super) mod activation;
pub(super) mod binary;
pub(super) mod comparison;
pub(super) mod copy;
pub(super) mod fused_pointwise;
pub(super) mod unary;
