//! Reductions and scans.

pub mod reduce;
pub(crate) mod scan;
pub(crate) mod statistics;
pub mod total;
