//! Copies from the host that run beside the queue: through page-locked memory, and on the device through a slot of their own. The queue
//! only waits for them, and moves the bytes to their target, which its earlier work may still use.

// CUDA is C: handles and host pointers.
#![allow(unsafe_code)]

use crate::stream::{Stream, failed, turn};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUevent, CUevent_wait_flags as Wait, CUstream};
use isograd_core::Result;
use parking_lot::Mutex;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Bytes of the smallest copy that goes this way: others are quick. Larger ones than `MOST` would lock too much memory.
const LEAST: usize = 64 << 10;
const MOST: usize = 64 << 20;
/// Copies that are under way at once.
const SLOTS: usize = 4;

const OP: &str = "upload";

/// The copies of a device.
pub struct Staging {
    stream: Stream,
    ring: Mutex<Ring>,
}

struct Ring {
    slots: [Slot; SLOTS],
    /// The slot of the next copy, which is the one that was used first.
    next: usize,
}

/// Where a copy passes through.
struct Slot {
    host: *mut c_void,
    device: sys::CUdeviceptr,
    bytes: usize,
    /// The bytes are on the device.
    arrived: CUevent,
    /// The bytes have left their slot on the device.
    left: CUevent,
}

// SAFETY: the memory and the events belong to no thread, and the ring's lock lets one thread at a time use them.
unsafe impl Send for Ring {}

impl Slot {
    const NONE: Slot = Slot { host: null_mut(), device: 0, bytes: 0, arrived: null_mut(), left: null_mut() };

    /// Waits for the copies that use the slot, and gives up what it has. The context is the thread's.
    fn release(&mut self) {
        // If waiting fails, so will everything else.
        for event in [self.arrived, self.left].into_iter().filter(|event| !event.is_null()) {
            // SAFETY: `reserve` made the event, which is forgotten below.
            let _ = unsafe { result::event::synchronize(event).and_then(|()| result::event::destroy(event)) };
        }
        if !self.host.is_null() {
            // SAFETY: `reserve` made the memory, and no copy uses it after the waits.
            let _ = unsafe { result::free_host(self.host) };
        }
        if self.device != 0 {
            // SAFETY: as above.
            let _ = unsafe { result::free_sync(self.device) };
        }
        *self = Slot::NONE;
    }

    /// After a failed copy, whose events need not say when it is done: waits for both streams. Without an answer the copy may run for as
    /// long as the process lives, and so long the memory stays allocated, which is used no more.
    fn settle(&mut self, beside: &Stream, stream: &Stream) {
        if beside.wait(OP).and(stream.wait(OP)).is_err() {
            *self = Slot::NONE;
        }
    }

    /// Makes room for `bytes` bytes. The context is the thread's.
    fn reserve(&mut self, bytes: usize) -> std::result::Result<(), DriverError> {
        if bytes <= self.bytes {
            return Ok(());
        }
        self.release();
        let bytes = bytes.next_power_of_two();
        let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        // The slot owns each allocation as soon as it is made, and frees it after an error.
        self.arrived = event()?;
        self.left = event()?;
        // SAFETY: the context is the thread's.
        self.host = unsafe { result::malloc_host(bytes, 0) }?;
        // SAFETY: as above.
        self.device = unsafe { result::malloc_sync(bytes) }?;
        self.bytes = bytes;
        Ok(())
    }

    /// Enqueues a copy of `bytes` to `to`: beside the queue `stream` as far as the slot, and from there in the queue.
    ///
    /// # Safety
    /// The slot has room for the bytes, and the target too; the context of both streams is the thread's.
    unsafe fn copy(
        &mut self,
        beside: CUstream,
        stream: CUstream,
        to: sys::CUdeviceptr,
        bytes: &[u8],
    ) -> std::result::Result<(), DriverError> {
        // SAFETY: by the caller. The host's memory is written after its last copy has arrived (nothing is waited for before there was
        // one), and the device's after its bytes have left.
        unsafe {
            result::event::synchronize(self.arrived)?;
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.host.cast::<u8>(), bytes.len());
            let host = std::slice::from_raw_parts(self.host.cast::<u8>(), bytes.len());
            result::stream::wait_event(beside, self.left, Wait::CU_EVENT_WAIT_DEFAULT)?;
            result::memcpy_htod_async(self.device, host, beside)?;
            result::event::record(self.arrived, beside)?;
            result::stream::wait_event(stream, self.arrived, Wait::CU_EVENT_WAIT_DEFAULT)?;
            result::memcpy_dtod_async(to, self.device, bytes.len(), stream)?;
            result::event::record(self.left, stream)
        }
    }
}

impl Staging {
    /// With a stream for the copies.
    pub fn new(stream: Stream) -> Staging {
        Staging { stream, ring: Mutex::new(Ring { slots: [Slot::NONE; SLOTS], next: 0 }) }
    }

    /// Copies `bytes` to a target that the queue `stream` uses next; false if the copy is too small or too large for this. The bytes may
    /// be changed after the call.
    ///
    /// # Safety
    /// The target is an allocation with room for the bytes, in the context of both streams.
    pub unsafe fn upload(&self, stream: &Stream, to: sys::CUdeviceptr, bytes: &[u8]) -> Result<bool> {
        if !(LEAST..=MOST).contains(&bytes.len()) {
            return Ok(false);
        }
        let _turn = turn();
        self.stream.enter(OP)?;
        let mut ring = self.ring.lock();
        let next = ring.next;
        ring.next = (next + 1) % SLOTS;
        let slot = &mut ring.slots[next];
        // Without room here the copy goes the common way.
        if slot.reserve(bytes.len()).is_err() {
            slot.release();
            return Ok(false);
        }
        // SAFETY: there is room in the slot since above, and at the target by the caller.
        let copied = unsafe { slot.copy(self.stream.stream, stream.stream, to, bytes) };
        if copied.is_err() {
            slot.settle(&self.stream, stream);
        }
        copied.map(|()| true).map_err(failed(OP))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _turn = turn();
        if self.stream.enter(OP).is_ok() {
            self.ring.get_mut().slots.iter_mut().for_each(Slot::release);
        }
    }
}
