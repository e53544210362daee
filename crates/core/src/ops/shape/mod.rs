//! Other shapes and orders of the same elements, and tensors of constants.

pub(crate) mod arrange;
pub(crate) mod concat;
pub(crate) mod diagonal;
pub(crate) mod factory;
pub(crate) mod pad;
pub(crate) mod view;
