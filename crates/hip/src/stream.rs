//! Streams of a device.

// HIP is C: handles without types.
#![allow(unsafe_code)]

use crate::runtime::Runtime;
use crate::sys::{self, Code, Functions, Pointer};
use isograd_core::{Error, Result};
use isograd_gpu::Address;
use isograd_gpu::driver::runtime::{self, Raw, Timing};
use std::ffi::{c_char, c_int};
use std::ptr::{null_mut, without_provenance_mut};

/// An address as HIP takes it.
pub fn pointer(address: Address) -> Pointer {
    without_provenance_mut(address as usize)
}

/// The functions of graphs.
#[derive(Clone, Copy)]
struct Graphs {
    begin: unsafe extern "C" fn(Pointer, c_int) -> Code,
    end: unsafe extern "C" fn(Pointer, *mut Pointer) -> Code,
    instantiate: unsafe extern "C" fn(*mut Pointer, Pointer, *mut Pointer, *mut c_char, usize) -> Code,
    launch: unsafe extern "C" fn(Pointer, Pointer) -> Code,
    destroy: unsafe extern "C" fn(Pointer) -> Code,
    destroy_executable: unsafe extern "C" fn(Pointer) -> Code,
}

impl Graphs {
    /// None if this version of HIP lacks one of them.
    fn of(functions: &Functions) -> Option<Graphs> {
        Some(Graphs {
            begin: functions.begin_capture?,
            end: functions.end_capture?,
            instantiate: functions.instantiate?,
            launch: functions.launch_graph?,
            destroy: functions.destroy_graph?,
            destroy_executable: functions.destroy_executable?,
        })
    }
}

/// A stream of a device.
pub struct Stream {
    pub runtime: &'static Runtime,
    device: c_int,
    stream: Pointer,
    graphs: Option<Graphs>,
}

// SAFETY: HIP's handles belong to no thread, and its functions may be called from all of them at once.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn new(runtime: &'static Runtime, device: c_int) -> Result<Stream> {
        let mut made = Stream { runtime, device, stream: null_mut(), graphs: Graphs::of(&runtime.functions) };
        let create = runtime.functions.create_stream;
        let mut stream = null_mut();
        // SAFETY: the stream is written where it is.
        made.call("hip", |_| unsafe { create(&mut stream, sys::NON_BLOCKING) })?;
        made.stream = stream;
        Ok(made)
    }

    /// Makes the device that of the calling thread, which HIP's functions ask for. Returns the stream.
    pub fn enter(&self, op: &'static str) -> Result<Pointer> {
        // SAFETY: the device is one that HIP counted.
        self.runtime.check(op, unsafe { (self.runtime.functions.set_device)(self.device) })?;
        Ok(self.stream)
    }

    /// Calls HIP with the stream, on its device.
    pub fn call(&self, op: &'static str, f: impl FnOnce(Pointer) -> Code) -> Result<()> {
        let stream = self.enter(op)?;
        self.runtime.check(op, f(stream))
    }

    fn graphs(&self) -> Result<Graphs> {
        self.graphs.ok_or_else(|| Error::unsupported("capture", "this version of HIP has no graphs"))
    }

    pub fn wait(&self, op: &'static str) -> Result<()> {
        // SAFETY: the stream lives until `self` is dropped.
        self.call(op, |stream| unsafe { (self.runtime.functions.synchronize)(stream) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.stream.is_null() {
            // SAFETY: what used the stream held this, and is gone.
            let _ = self.call("hip", |stream| unsafe { (self.runtime.functions.destroy_stream)(stream) });
        }
    }
}

/// A function of events that other streams wait for.
fn of_events<T>(found: Option<T>) -> Result<T> {
    found.ok_or_else(|| Error::unsupported("collective", "this version of HIP has no events to wait for"))
}

impl runtime::Stream for Stream {
    fn beside(&self) -> Result<Stream> {
        let Functions { wait_event, query_event, .. } = self.runtime.functions;
        of_events(wait_event.zip(query_event))?;
        Stream::new(self.runtime, self.device)
    }

    fn enter(&self, op: &'static str) -> Result<Pointer> {
        self.enter(op)
    }

    fn wait(&self, op: &'static str) -> Result<()> {
        self.wait(op)
    }

    unsafe fn unload(&self, module: Raw) {
        // Its code may be running. If waiting fails, so will everything else.
        let _ = self.wait("load");
        // SAFETY: by the caller; nothing runs of it.
        unsafe { (self.runtime.functions.unload)(module.0) };
    }

    fn event(&self, op: &'static str, timing: Timing) -> Result<Raw> {
        let flags = if timing == Timing::None { sys::WITHOUT_TIME } else { 0 };
        let mut event = null_mut();
        // SAFETY: the event is written where it is.
        self.call(op, |_| unsafe { (self.runtime.functions.create_event)(&mut event, flags) })?;
        Ok(Raw(event))
    }

    unsafe fn record(&self, op: &'static str, event: Raw) -> Result<()> {
        // SAFETY: by the caller.
        self.call(op, |stream| unsafe { (self.runtime.functions.record_event)(event.0, stream) })
    }

    unsafe fn follow(&self, op: &'static str, event: Raw) -> Result<()> {
        let wait = of_events(self.runtime.functions.wait_event)?;
        // SAFETY: by the caller.
        self.call(op, |stream| unsafe { wait(stream, event.0, 0) })
    }

    unsafe fn lead(&self, op: &'static str, event: Raw, other: Raw) -> Result<()> {
        let wait = of_events(self.runtime.functions.wait_event)?;
        // SAFETY: by the caller.
        self.call(op, |_| unsafe { wait(other.0, event.0, 0) })
    }

    unsafe fn is_past(&self, op: &'static str, event: Raw) -> Result<bool> {
        let query = of_events(self.runtime.functions.query_event)?;
        self.enter(op)?;
        // SAFETY: by the caller.
        match unsafe { query(event.0) } {
            sys::NOT_READY => Ok(false),
            code => self.runtime.check(op, code).map(|()| true),
        }
    }

    unsafe fn elapsed(&self, from: Raw, to: Raw) -> Result<f64> {
        let (functions, mut milliseconds) = (&self.runtime.functions, 0f32);
        // SAFETY: by the caller; the second is waited for, and so is the first.
        unsafe {
            self.call("elapsed", |_| (functions.synchronize_event)(to.0))?;
            self.call("elapsed", |_| (functions.elapsed)(&mut milliseconds, from.0, to.0))?;
        }
        Ok(milliseconds as f64 * 1e-3)
    }

    unsafe fn drop_event(&self, event: Raw) {
        // SAFETY: by the caller.
        let _ = self.call("record", |_| unsafe { (self.runtime.functions.destroy_event)(event.0) });
    }

    fn records(&self) -> bool {
        self.graphs.is_some()
    }

    fn begin(&self) -> Result<bool> {
        let Some(graphs) = self.graphs else { return Ok(false) };
        // Relaxed: memory is allocated and programs are loaded meanwhile, which HIP would otherwise refuse.
        // SAFETY: the stream lives until `self` is dropped.
        self.call("capture", |stream| unsafe { (graphs.begin)(stream, sys::RELAXED) })?;
        Ok(true)
    }

    fn end(&self) -> Result<Raw> {
        let (graphs, mut recorded, mut graph) = (self.graphs()?, null_mut(), null_mut());
        // SAFETY: `begin` began to record the stream. The graph is not used once it is instantiated.
        unsafe {
            self.call("capture", |stream| (graphs.end)(stream, &mut recorded))?;
            let make = graphs.instantiate;
            let made = self.call("capture", |_| make(&mut graph, recorded, null_mut(), null_mut(), 0));
            (graphs.destroy)(recorded);
            made?;
        }
        Ok(Raw(graph))
    }

    unsafe fn replay(&self, graph: Raw) -> Result<()> {
        let launch = self.graphs()?.launch;
        // SAFETY: by the caller.
        self.call("capture", |stream| unsafe { launch(graph.0, stream) })
    }

    unsafe fn drop_graph(&self, graph: Raw) {
        // It may be running. If waiting fails, so will everything else.
        let _ = self.wait("capture");
        if let Some(graphs) = self.graphs {
            // SAFETY: by the caller.
            unsafe { (graphs.destroy_executable)(graph.0) };
        }
    }
}
