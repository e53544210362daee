//! Errors that depend on data: bad indices and values, which kernels report in device memory.
//!
//! A kernel that can fail gets a slot. The first thread that finds a bad element writes its position and value there and
//! leaves memory alone. Slots are read at the next synchronising call, or, in checked mode, at once.

use crate::driver::{Address, Driver};
use crate::pool::{Buffer, Pool};
use isograd_core::backend::index_error;
use isograd_core::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;

/// Slots of one round. When all are given out, the queue is waited for.
const SLOTS: usize = 1024;
/// A flag, a position and a value, each of 8 bytes, and 8 bytes more.
const SLOT: usize = 32;

/// What a kernel checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// An index, which must be below this.
    Index(usize),
    /// A condition of a row of the pointwise table.
    Value,
}

struct Pending {
    op: &'static str,
    check: Check,
}

/// The slots of a device.
pub struct Status<D: Driver> {
    pool: Arc<Pool<D>>,
    state: Mutex<State<D>>,
}

struct State<D: Driver> {
    slots: Option<Buffer<D>>,
    pending: Vec<Pending>,
}

impl<D: Driver> Status<D> {
    pub fn new(pool: &Arc<Pool<D>>) -> Status<D> {
        Status { pool: pool.clone(), state: Mutex::new(State { slots: None, pending: Vec::new() }) }
    }

    /// The address of a clean slot for a launch of `op`.
    pub fn slot(&self, op: &'static str, check: Check) -> Result<Address> {
        let mut state = self.state.lock();
        if state.pending.len() == SLOTS {
            self.read(&mut state)?;
        }
        if state.slots.is_none() {
            let slots = self.pool.take_hidden(SLOTS * SLOT)?;
            self.pool.driver.fill(slots.address, 0, SLOTS * SLOT)?;
            state.slots = Some(slots);
        }
        let base = state.slots.as_ref().map_or(0, |slots| slots.address);
        state.pending.push(Pending { op, check });
        Ok(base + ((state.pending.len() - 1) * SLOT) as u64)
    }

    /// Waits for the launches that have slots and returns the first error among them.
    pub fn check(&self) -> Result<()> {
        self.read(&mut self.state.lock())
    }

    fn read(&self, state: &mut State<D>) -> Result<()> {
        let pending = std::mem::take(&mut state.pending);
        let Some(slots) = state.slots.as_ref().filter(|_| !pending.is_empty()) else { return Ok(()) };
        let mut words = vec![0i64; pending.len() * SLOT / 8];
        self.pool.driver.download(slots.address, bytemuck::cast_slice_mut(&mut words))?;
        let failed = words.chunks(SLOT / 8).zip(&pending).find(|(slot, _)| slot[0] != 0);
        let Some((slot, Pending { op, check })) = failed else { return Ok(()) };
        self.pool.driver.fill(slots.address, 0, SLOTS * SLOT)?;
        Err(match *check {
            Check::Index(extent) => index_error(op, slot[1], slot[2], extent),
            Check::Value => Error::value(*op, format!("element {} is not allowed", slot[1])),
        })
    }
}
