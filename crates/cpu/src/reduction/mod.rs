//! Reductions and scans.

pub mod product;
pub mod reduce;
pub mod scan;
