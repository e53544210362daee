//! Proof that every kernel of every backend computes the same thing: the registry of all ops, cases and comparison.

pub mod case;
pub mod check;
pub mod compare;
pub mod golden;
pub mod kernels;
pub mod registry;
pub mod strategy;
mod tolerance;
pub mod watch;

// The CPU is what all others are compared with.
use isograd_cpu as _;
