//! Errors that depend on data: bad indices and values, which kernels report in device memory.
//!
//! A kernel that can fail gets a slot. The first thread that finds a bad element writes its position and value there, and
//! all of them agree on the lowest position; memory stays as it is. Slots are read at the next synchronising call, or, in
//! checked mode, at once.

use crate::driver::Address;
use crate::memory::pool::{Buffer, Pool};
use isograd_core::backend::{class_error, index_error, logits_error, outermost, starts_error};
use isograd_core::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Slots of one round. When all are given out, the queue is waited for.
const SLOTS: usize = 1024;
/// A flag and a mark of 4 bytes, a position and a value of 8, and 8 bytes more. The mark is the complement of the lowest
/// position of a bad element; 1 if that has no place in 32 bits.
const SLOT: usize = 32;

/// The check of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// An index, which must be below this.
    Index(usize),
    /// An index of a row of the pointwise table, which counts this many elements.
    RowIndex(i64),
    /// The first row of a sequence, which must be at most this and not below the one before.
    Starts(usize),
    /// A class, which must be below this.
    Class(usize),
    /// A condition of a row of the pointwise table.
    Value,
    /// A row of logits, from which something can be drawn.
    Logits,
}

/// The slot of a launch, and its check.
pub struct Slot {
    pub address: Address,
    op: &'static str,
    check: Check,
}

/// The slots of a device.
pub struct Status {
    pool: Arc<Pool>,
    state: Mutex<State>,
}

struct State {
    slots: Option<Buffer>,
    /// Clean slots.
    free: Vec<Address>,
    /// Slots that the next synchronising call reads.
    pending: Vec<Slot>,
    /// Slots of recordings, which every synchronising call reads.
    kept: HashMap<usize, Vec<Slot>>,
    recordings: usize,
}

impl State {
    /// Slots that may tell of an error.
    fn left(&self) -> impl Iterator<Item = &Slot> {
        self.pending.iter().chain(self.kept.values().flatten())
    }
}

impl Status {
    pub fn new(pool: &Arc<Pool>) -> Status {
        let state = State { slots: None, free: Vec::new(), pending: Vec::new(), kept: HashMap::new(), recordings: 0 };
        Status { pool: pool.clone(), state: Mutex::new(state) }
    }

    /// Makes sure that there are slots.
    pub fn prepare(&self) -> Result<()> {
        self.make(&mut self.state.lock())
    }

    fn make(&self, state: &mut State) -> Result<()> {
        if state.slots.is_none() {
            let slots = self.pool.take_hidden(SLOTS * SLOT)?;
            self.pool.driver.fill(slots.address, 0, SLOTS * SLOT)?;
            state.free = (0..SLOTS).rev().map(|i| slots.address + (i * SLOT) as Address).collect();
            state.slots = Some(slots);
        }
        Ok(())
    }

    /// A clean slot for a launch of `op`.
    pub fn slot(&self, op: &'static str, check: Check) -> Result<Slot> {
        let mut state = self.state.lock();
        self.make(&mut state)?;
        if state.free.is_empty() && !self.pool.is_recording() {
            self.read(&mut state, None)?;
        }
        match state.free.pop() {
            Some(address) => Ok(Slot { address, op: outermost(op), check }),
            None => Err(Error::backend(op, "too many calls check their operands at once")),
        }
    }

    /// Leaves a slot to the next synchronising call.
    pub fn defer(&self, slot: Slot) {
        self.state.lock().pending.push(slot);
    }

    /// Gives the slots that were left while a recording was made to that recording.
    pub fn keep(self: &Arc<Self>) -> Kept {
        let mut state = self.state.lock();
        state.recordings += 1;
        let (recording, slots) = (state.recordings, std::mem::take(&mut state.pending));
        if !slots.is_empty() {
            state.kept.insert(recording, slots);
        }
        Kept { status: self.clone(), recording }
    }

    /// Waits for the launch of a slot and returns the position of the first bad element, if there is one.
    pub fn finish(&self, slot: Slot) -> Result<Option<usize>> {
        let mut words = [0i64; SLOT / 8];
        self.pool.driver.download(slot.address, bytemuck::cast_slice_mut(&mut words))?;
        if words[0] != 0 {
            self.pool.driver.fill(slot.address, 0, SLOT)?;
        }
        self.state.lock().free.push(slot.address);
        let mark = (words[0] as u64 >> 32) as u32;
        let first = if mark == 1 { words[1] as usize } else { !mark as usize };
        Ok((words[0] != 0).then_some(first))
    }

    /// Waits for the launches whose slots were left and returns the first error among them.
    pub fn check(&self) -> Result<()> {
        self.read(&mut self.state.lock(), None)
    }

    /// The same, and copies bytes to the host in one wait with it.
    pub fn check_and_download(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        let mut state = self.state.lock();
        if state.left().next().is_none() {
            drop(state);
            return self.pool.driver.download(from, bytes);
        }
        self.read(&mut state, Some((from, bytes)))
    }

    fn read(&self, state: &mut State, other: Option<(Address, &mut [u8])>) -> Result<()> {
        let driver = &self.pool.driver;
        let addresses = || state.left().map(|slot| slot.address);
        // Slots are given out from the lowest on, so that few lie between these.
        let (Some(base), Some(last)) = (addresses().min(), addresses().max()) else { return Ok(()) };
        let mut words = vec![0i64; ((last - base) as usize + SLOT) / 8];
        let mut parts: Vec<_> = other.into_iter().collect();
        parts.push((base, bytemuck::cast_slice_mut(&mut words)));
        driver.download_each(&mut parts)?;
        let mut first = None;
        for slot in state.left() {
            let at = (slot.address - base) as usize / 8;
            if let Some(error) = slot.error(&words[at..][..SLOT / 8]) {
                driver.fill(slot.address, 0, SLOT)?;
                first.get_or_insert(error.late());
            }
        }
        let pending = std::mem::take(&mut state.pending);
        state.free.extend(pending.iter().rev().map(|slot| slot.address));
        first.map_or(Ok(()), Err)
    }
}

/// The slots of a recording, until this is dropped.
pub struct Kept {
    status: Arc<Status>,
    recording: usize,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut state = self.status.state.lock();
        let slots = state.kept.remove(&self.recording).unwrap_or_default();
        state.pending.extend(slots);
    }
}

impl Slot {
    /// The error that its words tell of.
    fn error(&self, words: &[i64]) -> Option<Error> {
        (words[0] != 0).then(|| match self.check {
            Check::Index(extent) => index_error(self.op, words[1], words[2], extent),
            Check::RowIndex(n) => {
                Error::index(self.op, format!("element {} of the index is none of {n} elements", words[1]))
            }
            Check::Starts(rows) => starts_error(self.op, words[1], words[2], rows),
            Check::Class(extent) => class_error(self.op, &index_error(self.op, words[1], words[2], extent)),
            Check::Logits => logits_error(self.op, words[1]),
            Check::Value => Error::value(self.op, format!("element {} is not allowed", words[1])),
        })
    }
}
