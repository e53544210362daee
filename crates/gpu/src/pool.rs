//! Device memory, kept for the next tensor of its size.

use crate::driver::{Address, Driver};
use isograd_core::{Error, Kind, Memory, MemoryStats, Result};
use parking_lot::Mutex;
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

/// Allocations are made of this many bytes, so that buffers of similar sizes can take each other's place.
const GRAIN: usize = 512;
/// What kernels read at once: the last word of a tensor may lie partly behind its end.
const WORD: usize = 16;

/// A driver and its memory.
pub struct Pool<D: Driver> {
    pub driver: D,
    /// False with `ISOGRAD_POOL=0`: every buffer is an allocation of its own size, and is given back when it is dropped,
    /// so that tools which watch memory see what belongs to whom.
    keeps: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stats: MemoryStats,
    free: HashMap<usize, Vec<Address>>,
}

impl<D: Driver> Pool<D> {
    pub fn new(driver: D) -> Arc<Pool<D>> {
        let keeps = std::env::var("ISOGRAD_POOL").as_deref() != Ok("0");
        Arc::new(Pool { driver, keeps, state: Mutex::default() })
    }

    pub fn stats(&self) -> MemoryStats {
        self.state.lock().stats
    }

    pub fn reset_peak(&self) {
        let mut state = self.state.lock();
        state.stats.peak = state.stats.in_use;
    }

    /// Memory for `bytes` bytes, at least one.
    ///
    /// What is free now may still be used by work in the queue, but so will the new owner's work be, after it.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<Buffer<D>> {
        self.buffer(bytes, bytes)
    }

    /// Memory that does not count as held by tensors.
    pub fn take_hidden(self: &Arc<Self>, bytes: usize) -> Result<Buffer<D>> {
        self.buffer(bytes, 0)
    }

    fn buffer(self: &Arc<Self>, bytes: usize, counted: usize) -> Result<Buffer<D>> {
        let size = if self.keeps { rounded(bytes) } else { bytes.max(1).next_multiple_of(WORD) };
        let mut state = self.state.lock();
        let pooled = state.free.get_mut(&size).and_then(Vec::pop);
        let address = match pooled {
            Some(address) => {
                state.stats.pooled -= size;
                address
            }
            None => self.allocate(&mut state, size, bytes)?,
        };
        state.stats.in_use += counted;
        state.stats.peak = state.stats.peak.max(state.stats.in_use);
        drop(state);
        Ok(Buffer { pool: self.clone(), address, bytes, counted, size })
    }

    fn allocate(&self, state: &mut State, size: usize, bytes: usize) -> Result<Address> {
        let limits = self.driver.limits();
        let refuse = |why: &str, state: &State| {
            let MemoryStats { in_use, pooled, .. } = state.stats;
            let message = format!(
                "{bytes} bytes were asked for {why}; tensors hold {in_use}, {pooled} are pooled, and the device has {}",
                limits.memory
            );
            Error::new(Kind::OutOfMemory, "allocate", message)
        };
        if size > limits.max_allocation {
            return Err(refuse("at once", state));
        }
        self.driver.allocate(size).or_else(|first| {
            if first.kind() != Kind::OutOfMemory {
                return Err(first);
            }
            tracing::debug!(bytes, pooled = state.stats.pooled, "the device is full: giving pooled memory back");
            self.release(state);
            self.driver.allocate(size).map_err(|_| refuse("and are not there", state))
        })
    }

    fn release(&self, state: &mut State) {
        state.free.drain().flat_map(|(_, list)| list).for_each(|address| self.driver.free(address));
        state.stats.pooled = 0;
    }

    /// Gives pooled memory back to the device.
    pub fn trim(&self) {
        self.release(&mut self.state.lock());
    }
}

impl<D: Driver> Drop for Pool<D> {
    fn drop(&mut self) {
        self.trim();
    }
}

/// A size of which buffers are made: at most an eighth more than is asked for above a few grains.
fn rounded(bytes: usize) -> usize {
    let step = (bytes.max(1).next_power_of_two() / 16).max(GRAIN);
    bytes.max(1).next_multiple_of(step)
}

/// A piece of device memory, which goes back to the pool.
pub struct Buffer<D: Driver> {
    pool: Arc<Pool<D>>,
    pub address: Address,
    pub bytes: usize,
    counted: usize,
    size: usize,
}

impl<D: Driver> Memory for Buffer<D> {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl<D: Driver> Drop for Buffer<D> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.stats.in_use -= self.counted;
        if self.pool.keeps {
            state.stats.pooled += self.size;
            state.free.entry(self.size).or_default().push(self.address);
        } else {
            drop(state);
            self.pool.driver.free(self.address);
        }
    }
}
