//! The interface of a vendor's library of collectives, by which devices exchange memory.

use super::{Address, Handle};
use isograd_core::collective::{Collective, Opaque};
use isograd_core::{DType, Result};
use std::ffi::c_void;
use std::time::Duration;

/// The operands of a collective: elements that follow each other in memory.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// Dtype of input and output.
    pub dtype: DType,
    /// The place and the number of elements of the input.
    pub input: (Address, usize),
    /// The place and the number of elements of the output.
    pub output: (Address, usize),
}

/// A library of collectives on a device.
pub trait Library: Send + Sync {
    /// A new identity of a group.
    fn identity(&self) -> Result<Vec<u8>>;

    /// The device's membership in a group, with a queue of its own. Waits for the other ranks, at most for `timeout`.
    fn join(&self, identity: &[u8], rank: usize, size: usize, timeout: Duration) -> Result<Opaque>;

    /// Enqueues a collective in the group's queue, after everything that is in the device's queue now. Returns the mark of its end.
    fn start(&self, member: &Opaque, collective: Collective, operands: &Operands) -> Result<Opaque>;

    /// Makes later work of the device's queue run after the mark.
    fn wait(&self, member: &Opaque, mark: &Opaque) -> Result<()>;

    /// True if the group's queue has come to the mark. Reports errors of the group.
    fn is_done(&self, member: &Opaque, mark: &Opaque) -> Result<bool>;

    /// Ends unfinished collectives.
    fn abort(&self, member: &Opaque);
}

/// A second queue of a device, in which a library of collectives works.
pub trait Beside: Send + Sync {
    /// Makes the device that of the calling thread. Returns the queue as the library takes it.
    fn enter(&self) -> Result<*mut c_void>;

    /// Makes later work of this queue run after what is in the device's queue now.
    fn follow(&self) -> Result<()>;

    /// A mark behind what is in this queue now.
    fn mark(&self) -> Result<Handle>;

    /// Makes later work of the device's queue run after the mark.
    fn lead(&self, mark: &Handle) -> Result<()>;

    /// True if this queue has come to the mark.
    fn is_past(&self, mark: &Handle) -> Result<bool>;
}
