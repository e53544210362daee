//! Elements in other places.

pub(super) mod arrange;
pub(super) mod concat;
pub(super) mod factory;
pub(super) mod pad;
pub(super) mod view;
