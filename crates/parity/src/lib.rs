//! Proof that every kernel of every backend computes the same thing: the registry of all ops, cases and comparison.

pub mod case;
pub mod compare;
pub mod registry;

// The CPU is what all others are compared with.
use isograd_cpu as _;
