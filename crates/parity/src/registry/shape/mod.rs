//! Elements in other places.

pub(super) mod arrange;
pub(super) mod view;
