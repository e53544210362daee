//! Elements by index, mask or order, and sums by index.

pub(crate) mod bag;
pub mod embedding;
pub(crate) mod gather;
pub mod index;
pub(crate) mod scatter_reduce;
pub(crate) mod search;
pub mod segment;
pub(crate) mod select;
pub(crate) mod sort;
