//! Elements by index.

pub(super) mod index;
pub(super) mod select;
