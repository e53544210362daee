//! Functions of each element.

pub(crate) mod each;
pub(crate) mod group;
pub(crate) mod pointwise;
pub(crate) mod rows;
