//! Streams in a device's primary context, and turns between recordings.

// CUDA is C: handles without types.
#![allow(unsafe_code)]

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUcontext, CUdevice, CUevent_flags as Flags, CUresult, CUstream};
use isograd_core::{Error, Result};
use isograd_gpu::driver::runtime::{self, Raw, Timing};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::null_mut;

pub fn failed(op: &'static str) -> impl Fn(DriverError) -> Error {
    move |DriverError(code)| {
        let text = DriverError(code).error_string().map(|text| text.to_string_lossy().into_owned());
        Error::backend(op, format!("CUDA: {code:?} ({}): {}", code as u32, text.unwrap_or_default()))
    }
}

/// Held while a stream is recorded. What waits for a stream or a whole context, or changes what is loaded or allocated there, may
/// end a recording of another thread with an error: it takes turns with them.
static TURN: RwLock<()> = RwLock::new(());

thread_local! {
    /// The turn of the recording that this thread makes.
    static OWN_TURN: RefCell<Option<RwLockWriteGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// A turn between the recordings of other threads, as long as it is held.
pub fn turn() -> Option<RwLockReadGuard<'static, ()>> {
    // A thread that ends records nothing.
    let records = OWN_TURN.try_with(|own| own.borrow().is_some()).unwrap_or(false);
    (!records).then(|| TURN.read_recursive())
}

/// A stream in the primary context of its device, which is kept as long.
pub struct Stream {
    device: CUdevice,
    context: CUcontext,
    pub stream: CUstream,
}

// SAFETY: CUDA's handles belong to no thread, and its functions may be called from all of them at once.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn new(device: CUdevice) -> Result<Stream> {
        Stream::with(device, result::stream::create)
    }

    fn with(
        device: CUdevice,
        create: impl FnOnce(result::stream::StreamKind) -> std::result::Result<CUstream, DriverError>,
    ) -> Result<Stream> {
        let op = "cuda";
        let _turn = turn();
        // SAFETY: the device is one that CUDA gave.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(failed(op))?;
        // From here on dropping it lets the context go.
        let mut made = Stream { device, context, stream: null_mut() };
        made.enter(op)?;
        made.stream = create(result::stream::StreamKind::NonBlocking).map_err(failed(op))?;
        Ok(made)
    }

    /// Makes the context that of the calling thread, which CUDA's functions ask for. Little is done if it is already.
    pub fn enter(&self, op: &'static str) -> Result<()> {
        // SAFETY: the context is retained until `self` is dropped.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed(op))
    }

    /// Calls CUDA with the stream, in the context.
    pub fn call<T>(
        &self,
        op: &'static str,
        f: impl FnOnce(CUstream) -> std::result::Result<T, DriverError>,
    ) -> Result<T> {
        self.enter(op)?;
        f(self.stream).map_err(failed(op))
    }

    pub fn wait(&self, op: &'static str) -> Result<()> {
        // SAFETY: the stream lives until `self` is dropped.
        self.call(op, |stream| unsafe { result::stream::synchronize(stream) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _turn = turn();
        let _ = self.enter("cuda");
        // SAFETY: what used the stream and the context held this, and is gone.
        unsafe {
            if !self.stream.is_null() {
                let _ = result::stream::destroy(self.stream);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

impl runtime::Stream for Stream {
    fn beside(&self) -> Result<Stream> {
        Stream::with(self.device, |kind| {
            let (_, greatest) = result::stream::get_priority_range()?;
            result::stream::create_with_priority(kind, greatest)
        })
    }

    fn enter(&self, op: &'static str) -> Result<*mut c_void> {
        self.enter(op).map(|()| self.stream.cast())
    }

    fn wait(&self, op: &'static str) -> Result<()> {
        self.wait(op)
    }

    unsafe fn unload(&self, module: Raw) {
        let _turn = turn();
        // Its code may be running. If waiting fails, so will everything else.
        let _ = self.wait("load");
        // SAFETY: by the caller; nothing runs of it.
        let _ = unsafe { result::module::unload(module.0.cast()) };
    }

    fn event(&self, op: &'static str, timing: Timing) -> Result<Raw> {
        let flags = match timing {
            Timing::Noted => Flags::CU_EVENT_DEFAULT,
            Timing::None => Flags::CU_EVENT_DISABLE_TIMING,
        };
        self.call(op, |_| result::event::create(flags)).map(|event| Raw(event.cast()))
    }

    unsafe fn record(&self, op: &'static str, event: Raw) -> Result<()> {
        // SAFETY: by the caller.
        self.call(op, |stream| unsafe { result::event::record(event.0.cast(), stream) })
    }

    unsafe fn follow(&self, op: &'static str, event: Raw) -> Result<()> {
        // SAFETY: by the caller.
        self.call(op, |stream| unsafe { sys::cuStreamWaitEvent(stream, event.0.cast(), 0) }.result())
    }

    unsafe fn lead(&self, op: &'static str, event: Raw, other: Raw) -> Result<()> {
        // SAFETY: by the caller.
        self.call(op, |_| unsafe { sys::cuStreamWaitEvent(other.0.cast(), event.0.cast(), 0) }.result())
    }

    unsafe fn is_past(&self, op: &'static str, event: Raw) -> Result<bool> {
        // SAFETY: by the caller.
        self.call(op, |_| match unsafe { sys::cuEventQuery(event.0.cast()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => code.result().map(|()| true),
        })
    }

    unsafe fn elapsed(&self, from: Raw, to: Raw) -> Result<f64> {
        let [from, to] = [from, to].map(|event| event.0.cast());
        // SAFETY: by the caller; the second is waited for, and so is the first.
        let ask = |_| unsafe { result::event::synchronize(to).and_then(|()| result::event::elapsed(from, to)) };
        self.call("elapsed", ask).map(|milliseconds| milliseconds as f64 * 1e-3)
    }

    unsafe fn drop_event(&self, event: Raw) {
        // SAFETY: by the caller.
        let _ = self.call("record", |_| unsafe { result::event::destroy(event.0.cast()) });
    }

    fn records(&self) -> bool {
        true
    }

    fn begin(&self) -> Result<bool> {
        // Relaxed: memory is allocated and programs are loaded meanwhile, which CUDA would otherwise refuse.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let turn = TURN.write();
        // SAFETY: the stream lives until `self` is dropped.
        self.call("capture", |stream| unsafe { result::stream::begin_capture(stream, mode) })?;
        OWN_TURN.set(Some(turn));
        Ok(true)
    }

    fn end(&self) -> Result<Raw> {
        let _turn = OWN_TURN.take();
        // SAFETY: `begin` began to record the stream. The graph is not used once it is instantiated.
        self.call("capture", |stream| unsafe {
            let recorded = result::stream::end_capture(stream)?;
            let made = result::graph::instantiate(recorded, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(recorded);
            made.map(|graph| Raw(graph.cast()))
        })
    }

    unsafe fn replay(&self, graph: Raw) -> Result<()> {
        // SAFETY: by the caller.
        self.call("capture", |stream| unsafe { result::graph::launch(graph.0.cast(), stream) })
    }

    unsafe fn drop_graph(&self, graph: Raw) {
        let _turn = turn();
        // It may be running. If waiting fails, so will everything else.
        let _ = self.wait("capture");
        // SAFETY: by the caller.
        let _ = unsafe { result::graph::exec_destroy(graph.0.cast()) };
    }
}
