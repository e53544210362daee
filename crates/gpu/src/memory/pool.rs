//! Device memory, kept for the next tensor of its size.

use crate::driver::{Address, Driver};
use isograd_core::{Error, Foreign, Kind, MemoryStats, Result};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

/// Allocations are made of this many bytes, so that buffers of similar sizes can take each other's place.
pub const GRAIN: usize = 512;
/// Bytes of an arena from which on pooled memory is given back first, so that the device has room for it.
const LARGE: usize = 16 << 20;
/// Bytes of the largest word. The last word of a tensor may reach beyond its end.
const WORD: usize = 16;

/// A driver and its memory.
pub struct Pool {
    pub driver: Arc<dyn Driver>,
    /// False with `ISOGRAD_POOL=0`: every buffer is an allocation of its own size, and is given back when it is dropped,
    /// so that tools which watch memory see what belongs to whom.
    keeps: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stats: MemoryStats,
    /// Bytes that the driver has given.
    allocated: usize,
    /// The most that it is asked for.
    limit: Option<usize>,
    free: HashMap<usize, Vec<Address>>,
    /// The memory that recordings use.
    held: HashMap<Address, Held>,
    /// While one is made, or calls are put off.
    scope: Option<Scope>,
    /// The memory of other libraries, which may be adopted more than once.
    adopted: HashMap<Address, Vec<Weak<Adopted>>>,
}

/// Memory that stays as it is while there are recordings that use it.
struct Held {
    recordings: usize,
    /// Its size, once no tensor has it any more.
    parked: Option<usize>,
}

/// Whether the calls whose memory a scope notes are recorded or launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// They are recorded: nothing runs.
    Recorded,
    /// They are launched at the end of the scope. Until then, no other may write what they read.
    PutOff,
}

/// The memory of a recording that is being made, or of calls that are put off. Its allocations are its own: freed memory may be used again
/// only within the recording, because every replay writes it.
struct Scope {
    calls: Calls,
    uses: HashSet<Address>,
    own: HashSet<Address>,
    free: HashMap<usize, Vec<Address>>,
    adopted: Vec<Arc<Adopted>>,
}

/// The memory that a recording uses, until this is dropped.
pub struct Hold {
    pool: Arc<Pool>,
    uses: HashSet<Address>,
    _adopted: Vec<Arc<Adopted>>,
}

/// Memory of another library. Its owner is dropped when no tensor and no recording uses it any more.
pub struct Adopted {
    pool: Arc<Pool>,
    foreign: Option<Foreign>,
    address: Address,
}

impl Adopted {
    pub fn address(&self) -> Address {
        self.address
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        let Some(foreign) = self.foreign.take() else { return };
        let mut state = self.pool.state.lock();
        if let Some(all) = state.adopted.get_mut(&self.address) {
            all.retain(|other| other.strong_count() > 0);
            if all.is_empty() {
                state.adopted.remove(&self.address);
            }
        }
        // Nothing is waited for while a recording is made. It keeps what it uses, so this memory's last use was before it began, after a wait.
        if state.is_recording() {
            return;
        }
        drop(state);
        // Work in the queue may still use the memory. If waiting fails, so will everything else.
        let driver = &self.pool.driver;
        let _ = match foreign.stream() {
            Some(stream) => driver.lead(stream),
            None => driver.synchronize(),
        };
    }
}

impl Pool {
    pub fn new(driver: Arc<dyn Driver>) -> Arc<Pool> {
        let keeps = std::env::var("ISOGRAD_POOL").as_deref() != Ok("0");
        Arc::new(Pool { driver, keeps, state: Mutex::default() })
    }

    pub fn stats(&self) -> MemoryStats {
        self.state.lock().stats
    }

    /// Limits the memory that is taken from the driver. Pooled memory is given back first.
    pub fn limit(&self, bytes: Option<usize>) {
        let mut state = self.state.lock();
        if !state.is_recording() {
            self.release(&mut state);
        }
        state.limit = bytes;
    }

    pub fn reset_peak(&self) {
        let mut state = self.state.lock();
        state.stats.peak = state.stats.in_use;
    }

    /// Memory for `bytes` bytes, at least one.
    ///
    /// Work in the queue may still use free memory. The new owner's work runs after it in the same queue.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        self.buffer(bytes, bytes)
    }

    /// Memory of another library, which does not count as held by tensors.
    pub fn adopt(self: &Arc<Self>, foreign: Foreign) -> Arc<Adopted> {
        let address = foreign.address();
        let adopted = Arc::new(Adopted { pool: self.clone(), foreign: Some(foreign), address });
        self.state.lock().adopted.entry(address).or_default().push(Arc::downgrade(&adopted));
        adopted
    }

    /// Memory that does not count as held by tensors.
    pub fn take_hidden(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        self.buffer(bytes, 0)
    }

    fn buffer(self: &Arc<Self>, bytes: usize, counted: usize) -> Result<Buffer> {
        let size = self.size(bytes);
        let mut state = self.state.lock();
        let recorded = state.scope.as_mut().and_then(|scope| scope.free.get_mut(&size)?.pop());
        let address = match recorded {
            Some(address) => {
                state.stats.captured -= size;
                address
            }
            None => {
                let address = self.fresh(&mut state, size, bytes)?;
                state.own(address);
                address
            }
        };
        Ok(self.owned(&mut state, address, bytes, counted, size))
    }

    /// Memory that no recording has as its own, not counted as held by tensors.
    pub fn take_aside(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let size = self.size(bytes);
        let mut state = self.state.lock();
        let address = self.fresh(&mut state, size, bytes)?;
        Ok(self.owned(&mut state, address, bytes, 0, size))
    }

    /// True if memory is kept for reuse, and several tensors may lie in one allocation.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// Memory for the temporary tensors of the recording that is being made, not counted as held by tensors. Nothing is in the queue.
    pub fn take_arena(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let size = bytes.next_multiple_of(GRAIN);
        let mut state = self.state.lock();
        if size >= LARGE && state.free.get(&size).is_none_or(Vec::is_empty) {
            self.release(&mut state);
        }
        let address = self.fresh(&mut state, size, bytes)?;
        state.own(address);
        Ok(self.owned(&mut state, address, bytes, 0, size))
    }

    fn owned(
        self: &Arc<Self>,
        state: &mut State,
        address: Address,
        bytes: usize,
        counted: usize,
        size: usize,
    ) -> Buffer {
        state.stats.in_use += counted;
        state.stats.peak = state.stats.peak.max(state.stats.in_use);
        Buffer { pool: self.clone(), address, bytes, counted, size }
    }

    /// The size of the buffer that `bytes` bytes get.
    fn size(&self, bytes: usize) -> usize {
        if self.keeps { rounded(bytes) } else { bytes.max(1).next_multiple_of(WORD) }
    }

    /// Pooled or new memory.
    fn fresh(&self, state: &mut State, size: usize, bytes: usize) -> Result<Address> {
        match state.free.get_mut(&size).and_then(Vec::pop) {
            Some(address) => {
                state.stats.pooled -= size;
                Ok(address)
            }
            None => self.allocate(state, size, bytes),
        }
    }

    /// Starts to note the memory that calls use.
    pub fn begin_scope(&self, calls: Calls) {
        let (uses, own, free, adopted) = Default::default();
        self.state.lock().scope = Some(Scope { calls, uses, own, free, adopted });
    }

    /// True while a recording is made.
    pub fn is_recording(&self) -> bool {
        self.state.lock().is_recording()
    }

    /// Notes that the calls of the scope, if there is one, use this.
    pub fn touch(&self, address: Address) {
        self.state.lock().hold(address);
    }

    /// Ends what `begin_scope` began.
    pub fn end_scope(self: &Arc<Self>) -> Hold {
        let mut state = self.state.lock();
        let Some(Scope { uses, free, adopted, .. }) = state.scope.take() else {
            return Hold { pool: self.clone(), uses: HashSet::new(), _adopted: Vec::new() };
        };
        for (size, list) in free {
            for address in list {
                if let Some(held) = state.held.get_mut(&address) {
                    held.parked = Some(size);
                }
            }
        }
        Hold { pool: self.clone(), uses, _adopted: adopted }
    }

    fn allocate(&self, state: &mut State, size: usize, bytes: usize) -> Result<Address> {
        let limits = self.driver.limits();
        let refuse = |why: &str, state: &State| {
            let MemoryStats { in_use, pooled, .. } = state.stats;
            let message = format!(
                "{bytes} bytes were asked for {why}; tensors hold {in_use}, {pooled} are pooled, and the device has {}",
                state.limit.unwrap_or(usize::MAX).min(limits.memory)
            );
            Error::new(Kind::OutOfMemory, "allocate", message)
        };
        if size > limits.max_allocation {
            return Err(refuse("at once", state));
        }
        let from_driver = |state: &mut State| {
            let limit = state.limit.unwrap_or(usize::MAX);
            if state.allocated.saturating_add(size) > limit {
                return Err(Error::new(Kind::OutOfMemory, "allocate", format!("the limit is {limit} bytes")));
            }
            let address = self.driver.allocate(size)?;
            state.allocated += size;
            Ok(address)
        };
        from_driver(state).or_else(|first| {
            if first.kind() != Kind::OutOfMemory {
                return Err(first);
            }
            // Giving back waits for the queue, which does not run while it is recorded.
            if state.is_recording() {
                return Err(refuse("and are not there", state));
            }
            tracing::debug!(bytes, pooled = state.stats.pooled, "the device is full: giving pooled memory back");
            self.release(state);
            from_driver(state).map_err(|_| refuse("and are not there", state))
        })
    }

    fn release(&self, state: &mut State) {
        for (size, list) in state.free.drain() {
            state.allocated -= size * list.len();
            list.into_iter().for_each(|address| self.driver.free(address));
        }
        state.stats.pooled = 0;
    }

    /// Gives pooled memory back to the device.
    pub fn trim(&self) {
        self.release(&mut self.state.lock());
    }
}

impl State {
    fn is_recording(&self) -> bool {
        self.scope.as_ref().is_some_and(|scope| scope.calls == Calls::Recorded)
    }

    fn hold(&mut self, address: Address) {
        let Some(scope) = &mut self.scope else { return };
        if scope.uses.insert(address) {
            scope.adopted.extend(self.adopted.get(&address).into_iter().flatten().filter_map(Weak::upgrade));
            self.held.entry(address).or_insert(Held { recordings: 0, parked: None }).recordings += 1;
        }
    }

    /// Makes memory the own of the recording that is being made, if any.
    fn own(&mut self, address: Address) {
        if let Some(scope) = &mut self.scope {
            scope.own.insert(address);
            self.hold(address);
        }
    }

    /// Takes back the memory of a tensor.
    fn put(&mut self, address: Address, size: usize) {
        if let Some(scope) = self.scope.as_mut().filter(|scope| scope.own.contains(&address)) {
            self.stats.captured += size;
            scope.free.entry(size).or_default().push(address);
        } else if let Some(held) = self.held.get_mut(&address) {
            self.stats.captured += size;
            held.parked = Some(size);
        } else {
            self.stats.pooled += size;
            self.free.entry(size).or_default().push(address);
        }
    }
}

impl Hold {
    /// Whether a pool has the memory.
    pub fn is_of(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        for address in &self.uses {
            let Some(held) = state.held.get_mut(address) else { continue };
            held.recordings -= 1;
            if held.recordings > 0 {
                continue;
            }
            let parked = state.held.remove(address).and_then(|held| held.parked);
            if let Some(size) = parked {
                state.stats.captured -= size;
                state.put(*address, size);
            }
        }
    }
}

impl Drop for Pool {
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
pub struct Buffer {
    pool: Arc<Pool>,
    pub address: Address,
    pub bytes: usize,
    counted: usize,
    size: usize,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.stats.in_use -= self.counted;
        state.put(self.address, self.size);
        // Giving back waits for the queue, which does not run while it is recorded.
        if !self.pool.keeps && !state.is_recording() {
            self.pool.release(&mut state);
        }
    }
}
