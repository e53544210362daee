//! The registry, fused ops and the tape diff.

mod diff;
mod fused;
mod registry;
