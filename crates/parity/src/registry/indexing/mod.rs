//! Elements by index.

pub(super) mod index;
pub(super) mod segment;
pub(super) mod select;
