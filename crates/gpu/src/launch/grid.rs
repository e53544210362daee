//! Shapes of grids.

use crate::driver::{Geometry, Limits};

/// Threads of a group where a kernel does not need another number.
pub const THREADS: usize = 256;
/// Groups of a launch, at most.
pub const MOST_GROUPS: usize = 1 << 20;

/// One thread for each of `n` items, in groups of [`THREADS`].
pub fn each(n: usize) -> Geometry {
    in_groups(n, THREADS)
}

/// One thread for each of `n` items, in groups of `threads`.
pub fn in_groups(n: usize, threads: usize) -> Geometry {
    groups(n.div_ceil(threads), threads)
}

/// `n` groups of `threads`, at most [`MOST_GROUPS`]: kernels loop over the others.
pub fn groups(n: usize, threads: usize) -> Geometry {
    Geometry::new([n.clamp(1, MOST_GROUPS), 1, 1], threads)
}

/// [`THREADS`], or the power of 2 that the device allows.
pub fn group_size(limits: &Limits) -> usize {
    THREADS.min(1 << limits.max_group.max(1).ilog2())
}
