//! Reductions and scans.

pub mod reduce;
pub mod scan;
