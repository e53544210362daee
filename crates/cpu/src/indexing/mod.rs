//! Elements by index or order.

pub mod index;
pub mod sort;
