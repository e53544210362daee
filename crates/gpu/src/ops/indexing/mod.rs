//! Elements by index or order, and sums by index.

pub(crate) mod gather;
pub(crate) mod index;
pub(crate) mod radix_sort;
pub(crate) mod scatter;
pub(crate) mod segment;
pub(crate) mod sort;
