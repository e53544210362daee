//! Reductions and scans.

pub(crate) mod prod;
pub(crate) mod reduce;
pub(crate) mod reduce_prologue;
pub(crate) mod scan;
pub(crate) mod total;
