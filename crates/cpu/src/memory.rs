//! Host memory behind a lock, and a pool that keeps large buffers for the next tensor of their size.

use bytemuck::Pod;
use isograd_core::{Call, Error, Foreign, Kind, Memory, MemoryStats, Result, host};
use parking_lot::{MappedRwLockReadGuard, MappedRwLockWriteGuard, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::any::Any;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Buffers consist of cache lines, so that every element type and vector is aligned.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; 8]);

/// Unsafe code that states that [`Line`] is plain memory.
mod plain {
    #![allow(unsafe_code)]

    // SAFETY: eight u64 of any bits, 64 bytes aligned to 64 without padding.
    unsafe impl bytemuck::Zeroable for super::Line {}
    // SAFETY: as above; it is `Copy` and `repr(C)`.
    unsafe impl bytemuck::Pod for super::Line {}
}

/// Unsafe code that reads and writes memory of other libraries.
mod foreign {
    #![allow(unsafe_code)]

    use isograd_core::Foreign;
    use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
    use std::slice::{from_raw_parts, from_raw_parts_mut};

    pub fn bytes(foreign: &Foreign) -> &[u8] {
        if foreign.bytes() == 0 {
            return &[];
        }
        // SAFETY: `Foreign::new` promises so many initialised bytes while the owner is there, which is in `foreign`.
        unsafe { from_raw_parts(with_exposed_provenance(foreign.address() as usize), foreign.bytes()) }
    }

    pub fn bytes_mut(foreign: &mut Foreign) -> &mut [u8] {
        if foreign.bytes() == 0 {
            return &mut [];
        }
        // SAFETY: as above; the lock around `foreign` keeps other tensors out, and the promise other libraries. Core refuses to write memory that
        // lets nobody write it.
        unsafe { from_raw_parts_mut(with_exposed_provenance_mut(foreign.address() as usize), foreign.bytes()) }
    }
}

/// Smaller buffers come from the allocator, which is fast for them.
const POOLED_FROM: usize = 4096;
/// The pool's largest size in bytes.
const POOL_LIMIT: usize = 256 << 20;

/// Bytes held by the tensors of the device.
pub struct Pool {
    in_use: AtomicUsize,
    peak: AtomicUsize,
    /// The most that tensors may hold.
    limit: AtomicUsize,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    bytes: usize,
    by_lines: HashMap<usize, Vec<Vec<Line>>>,
}

impl Default for Pool {
    fn default() -> Pool {
        let none = AtomicUsize::new(usize::MAX);
        Pool { in_use: AtomicUsize::default(), peak: AtomicUsize::default(), limit: none, free: Mutex::default() }
    }
}

impl Pool {
    pub fn limit(&self, bytes: Option<usize>) {
        self.limit.store(bytes.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    pub fn stats(&self) -> MemoryStats {
        MemoryStats {
            in_use: self.in_use.load(Ordering::Relaxed),
            peak: self.peak.load(Ordering::Relaxed),
            pooled: self.free.lock().bytes,
            captured: 0,
        }
    }

    pub fn reset_peak(&self) {
        self.peak.store(self.in_use.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn take(&self, bytes: usize) -> Result<Vec<Line>> {
        let lines = bytes.div_ceil(size_of::<Line>());
        if lines * size_of::<Line>() >= POOLED_FROM {
            let mut free = self.free.lock();
            if let Some(buffer) = free.by_lines.get_mut(&lines).and_then(Vec::pop) {
                free.bytes -= lines * size_of::<Line>();
                return Ok(buffer);
            }
        }
        let mut buffer = Vec::new();
        if !host::reserve(&mut buffer, lines) {
            *self.free.lock() = Free::default();
            if !host::reserve(&mut buffer, lines) {
                return Err(self.exhausted(bytes));
            }
        }
        buffer.resize(lines, Line([0; 8]));
        Ok(buffer)
    }

    fn exhausted(&self, bytes: usize) -> Error {
        let held = self.in_use.load(Ordering::Relaxed);
        let free = host::available().map_or("an unknown number".into(), |n| n.to_string());
        let message = format!("{bytes} bytes were asked for; tensors hold {held}, the system has {free} free");
        Error::new(Kind::OutOfMemory, "allocate", message)
    }

    fn give(&self, buffer: Vec<Line>) {
        let bytes = buffer.len() * size_of::<Line>();
        if !(POOLED_FROM..=POOL_LIMIT).contains(&bytes) {
            return;
        }
        let mut free = self.free.lock();
        if free.bytes + bytes > POOL_LIMIT {
            // The pool is full of sizes that are no longer requested.
            *free = Free::default();
        }
        free.bytes += bytes;
        free.by_lines.entry(buffer.len()).or_default().push(buffer);
    }
}

/// A kernel's temporary memory of unspecified content, from the pool.
pub struct Scratch<'a, T> {
    lines: Vec<Line>,
    len: usize,
    pool: &'a Pool,
    element: PhantomData<T>,
}

/// Temporary memory for `n` elements from the pool of a call's device. Errors: `OutOfMemory`.
pub fn scratch<'a, T: Pod>(call: &Call<'a>, n: usize) -> Result<Scratch<'a, T>> {
    let pool = &of(call.outputs[0].memory)?.pool;
    let lines = pool.take(n.saturating_mul(size_of::<T>())).map_err(|e| e.of(call.op))?;
    Ok(Scratch { lines, len: n, pool, element: PhantomData })
}

impl<T: Pod> Deref for Scratch<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl<T: Pod> DerefMut for Scratch<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

impl<T> Drop for Scratch<'_, T> {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.lines));
    }
}

/// The memory of one tensor.
pub struct CpuMemory {
    bytes: usize,
    home: RwLock<Home>,
    pool: Arc<Pool>,
}

enum Home {
    Own(Vec<Line>),
    Foreign(Foreign),
}

impl CpuMemory {
    pub fn new(pool: &Arc<Pool>, bytes: usize) -> Result<CpuMemory> {
        let limit = pool.limit.load(Ordering::Relaxed);
        let held = pool.in_use.load(Ordering::Relaxed);
        if held.saturating_add(bytes) > limit {
            let message = format!("{bytes} bytes were asked for; tensors hold {held}, and the limit is {limit}");
            return Err(Error::new(Kind::OutOfMemory, "allocate", message));
        }
        let home = RwLock::new(Home::Own(pool.take(bytes)?));
        let now = pool.in_use.fetch_add(bytes, Ordering::Relaxed) + bytes;
        pool.peak.fetch_max(now, Ordering::Relaxed);
        Ok(CpuMemory { bytes, home, pool: pool.clone() })
    }

    /// Memory of another library, which does not count as held by tensors.
    pub fn adopt(pool: &Arc<Pool>, foreign: Foreign) -> CpuMemory {
        CpuMemory { bytes: foreign.bytes(), home: RwLock::new(Home::Foreign(foreign)), pool: pool.clone() }
    }

    /// The bytes, shared with other readers, including readers of this thread.
    pub fn read(&self) -> MappedRwLockReadGuard<'_, [u8]> {
        RwLockReadGuard::map(self.home.read_recursive(), |home| match home {
            Home::Own(lines) => &bytemuck::cast_slice(lines)[..self.bytes],
            Home::Foreign(foreign) => foreign::bytes(foreign),
        })
    }

    /// The bytes, with exclusive access.
    pub fn write(&self) -> MappedRwLockWriteGuard<'_, [u8]> {
        RwLockWriteGuard::map(self.home.write(), |home| match home {
            Home::Own(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.bytes],
            Home::Foreign(foreign) => foreign::bytes_mut(foreign),
        })
    }

    /// The address of the first byte. It stays.
    pub fn address(&self) -> u64 {
        self.read().as_ptr().addr() as u64
    }
}

impl Drop for CpuMemory {
    fn drop(&mut self) {
        if let Home::Own(lines) = self.home.get_mut() {
            self.pool.in_use.fetch_sub(self.bytes, Ordering::Relaxed);
            self.pool.give(std::mem::take(lines));
        }
    }
}

impl Memory for CpuMemory {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Downcasts to this backend's type. Returns an error for memory of another device.
pub fn of(memory: &dyn Memory) -> Result<&CpuMemory> {
    memory.as_any().downcast_ref().ok_or_else(|| Error::backend("cpu", "the memory belongs to another device"))
}
