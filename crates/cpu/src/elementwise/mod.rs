//! Functions of each element, and copies.

pub mod copy;
pub mod pointwise;
