//! What the drivers of CUDA and HIP share: programs, events, recordings and second streams, over the calls of a [`Stream`].

// Handles of C, which are given back once.
#![allow(unsafe_code)]

use super::ccl::Beside;
use super::{Arg, Handle};
use isograd_core::{Error, Result};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// The prefix that the preludes give to the name of an entry.
const PREFIX: &str = "isograd_";

/// A handle of a runtime: a module, an event or an executable graph.
#[derive(Clone, Copy, Debug)]
pub struct Raw(pub *mut c_void);

// SAFETY: handles of these runtimes belong to no thread, and their functions may be called from all of them at once.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

/// Whether an event has a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// The event has the time when it was reached.
    Noted,
    /// The event has no time and only marks a start, which is quicker.
    None,
}

/// A stream of a runtime, and the runtime's calls. Each makes the stream's device that of the calling thread.
///
/// The unsafe ones take handles that the same runtime made for the same device, and that were not given back.
pub trait Stream: Send + Sync + Sized + 'static {
    /// Another stream of the device, for collectives: its kernels start before others that wait, where the runtime has such streams.
    fn beside(&self) -> Result<Self>;

    /// Makes the device that of the calling thread. Returns the stream.
    fn enter(&self, op: &'static str) -> Result<*mut c_void>;

    /// Waits for everything in the stream.
    fn wait(&self, op: &'static str) -> Result<()>;

    /// Waits for everything in the stream, and gives a module back.
    ///
    /// # Safety
    /// As for all; its entries are launched no more.
    unsafe fn unload(&self, module: Raw);

    /// Makes an event.
    fn event(&self, op: &'static str, timing: Timing) -> Result<Raw>;

    /// Enqueues an event.
    ///
    /// # Safety
    /// As for all.
    unsafe fn record(&self, op: &'static str, event: Raw) -> Result<()>;

    /// Makes later work of the stream run after an event, which may be given back before.
    ///
    /// # Safety
    /// As for all.
    unsafe fn follow(&self, op: &'static str, event: Raw) -> Result<()>;

    /// Makes later work of another stream of the device run after an event, which may be given back before.
    ///
    /// # Safety
    /// As for all; the handle is that of a stream of the same runtime.
    unsafe fn lead(&self, op: &'static str, event: Raw, other: Raw) -> Result<()>;

    /// True if an event was reached.
    ///
    /// # Safety
    /// As for all.
    unsafe fn is_past(&self, op: &'static str, event: Raw) -> Result<bool>;

    /// Seconds between two recorded events of the stream, after waiting for the second.
    ///
    /// # Safety
    /// As for all; both note the time.
    unsafe fn elapsed(&self, from: Raw, to: Raw) -> Result<f64>;

    /// Gives an event back.
    ///
    /// # Safety
    /// As for all.
    unsafe fn drop_event(&self, event: Raw);

    /// Whether the runtime records.
    fn records(&self) -> bool;

    /// Begins to record what is enqueued; false if the runtime cannot.
    fn begin(&self) -> Result<bool>;

    /// Ends the recording, which becomes an executable graph.
    fn end(&self) -> Result<Raw>;

    /// Enqueues a graph.
    ///
    /// # Safety
    /// As for all; what it reads and writes is there until it has run.
    unsafe fn replay(&self, graph: Raw) -> Result<()>;

    /// Waits for everything in the stream, and gives a graph back.
    ///
    /// # Safety
    /// As for all.
    unsafe fn drop_graph(&self, graph: Raw);
}

/// A loaded module.
pub struct Program<S: Stream> {
    module: Raw,
    stream: Arc<S>,
}

impl<S: Stream> Program<S> {
    /// A module that `stream` gives back.
    ///
    /// # Safety
    /// The runtime of the stream has just loaded it for the device.
    pub unsafe fn new(module: *mut c_void, stream: &Arc<S>) -> Program<S> {
        Program { module: Raw(module), stream: stream.clone() }
    }

    /// The module, as long as the program lives.
    pub fn module(&self) -> *mut c_void {
        self.module.0
    }
}

impl<S: Stream> Drop for Program<S> {
    fn drop(&mut self) {
        // SAFETY: by `new`; the entries of a program are launched only while it lives.
        unsafe { self.stream.unload(self.module) };
    }
}

/// The name of an entry in a module.
pub fn entry_name(name: &str) -> Result<CString> {
    CString::new(format!("{PREFIX}{name}")).map_err(|_| Error::backend("load", "a name has a byte 0"))
}

/// Where the values of arguments are, as launches take them.
pub fn starts(arguments: &[Arg<'_>]) -> SmallVec<[*mut c_void; 16]> {
    let start = |argument: &Arg<'_>| match argument {
        Arg::Pointer(address) => std::ptr::from_ref(address).cast::<c_void>().cast_mut(),
        Arg::Value(bytes) => bytes.as_ptr().cast::<c_void>().cast_mut(),
    };
    arguments.iter().map(start).collect()
}

/// An event behind what was in a stream.
struct Event<S: Stream> {
    event: Raw,
    stream: Arc<S>,
}

impl<S: Stream> Event<S> {
    fn new(op: &'static str, stream: &Arc<S>, timing: Timing) -> Result<Event<S>> {
        let event = Event { event: stream.event(op, timing)?, stream: stream.clone() };
        // SAFETY: the event was made above.
        unsafe { stream.record(op, event.event) }?;
        Ok(event)
    }
}

impl<S: Stream> Drop for Event<S> {
    fn drop(&mut self) {
        // SAFETY: the event was made by `new`, and is used no more.
        unsafe { self.stream.drop_event(self.event) };
    }
}

/// A stream beside the device's own, for collectives.
pub struct Second<S: Stream> {
    main: Arc<S>,
    own: Arc<S>,
}

const COLLECTIVE: &str = "collective";
/// Work in the order of another library's.
const SHARED: &str = "follow";

impl<S: Stream> Second<S> {
    /// Beside `main`.
    pub fn new(main: &Arc<S>) -> Result<Second<S>> {
        Ok(Second { main: main.clone(), own: Arc::new(main.beside()?) })
    }

    fn event(stream: &Arc<S>) -> Result<Event<S>> {
        Event::new(COLLECTIVE, stream, Timing::None)
    }
}

impl<S: Stream> Beside for Second<S> {
    fn enter(&self) -> Result<*mut c_void> {
        self.own.enter(COLLECTIVE)
    }

    fn follow(&self) -> Result<()> {
        let event = Second::event(&self.main)?;
        // SAFETY: the event lives, and both streams are of one device.
        unsafe { self.own.follow(COLLECTIVE, event.event) }
    }

    fn mark(&self) -> Result<Handle> {
        Ok(Handle::new(Second::event(&self.own)?))
    }

    fn lead(&self, mark: &Handle) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.main.follow(COLLECTIVE, mark.get::<Event<S>>().event) }
    }

    fn is_past(&self, mark: &Handle) -> Result<bool> {
        // SAFETY: as above.
        unsafe { self.own.is_past(COLLECTIVE, mark.get::<Event<S>>().event) }
    }
}

/// An executable graph.
struct Graph<S: Stream> {
    graph: Raw,
    stream: Arc<S>,
    /// From where it uploads.
    _uploads: Vec<Vec<u8>>,
}

impl<S: Stream> Drop for Graph<S> {
    fn drop(&mut self) {
        // SAFETY: the graph was made by `end_capture`, and is used no more.
        unsafe { self.stream.drop_graph(self.graph) };
    }
}

/// The stream of a device, whose events and recordings are handles of a [`Driver`](super::Driver).
pub struct Queue<S: Stream> {
    stream: Arc<S>,
    /// While recording: what the graph uploads.
    uploads: Mutex<Option<Vec<Vec<u8>>>>,
}

impl<S: Stream> Queue<S> {
    /// Nothing is recorded.
    pub fn new(stream: S) -> Queue<S> {
        Queue { stream: Arc::new(stream), uploads: Mutex::new(None) }
    }

    /// The stream.
    pub fn stream(&self) -> &Arc<S> {
        &self.stream
    }

    /// The handle of the stream, for other libraries.
    pub fn handle(&self) -> Option<u64> {
        self.stream.enter(SHARED).ok().map(|stream| stream.expose_provenance() as u64)
    }

    /// Makes later work of another library's stream run after everything in this one. It has given the handle of the stream.
    pub fn lead(&self, other: u64) -> Result<()> {
        let event = Event::new(SHARED, &self.stream, Timing::None)?;
        let other = Raw(std::ptr::with_exposed_provenance_mut(other as usize));
        // SAFETY: the event lives. Who shares memory by `Foreign` gives streams of this device.
        unsafe { self.stream.lead(SHARED, event.event, other) }
    }

    /// While recording, calls `enqueue` with a copy of bytes, which lives as long as the graph that reads it; false otherwise.
    pub fn upload_recorded(&self, bytes: &[u8], enqueue: impl FnOnce(&[u8]) -> Result<()>) -> Result<bool> {
        let mut uploads = self.uploads.lock();
        let Some(uploads) = &mut *uploads else { return Ok(false) };
        let kept = bytes.to_vec();
        enqueue(&kept)?;
        uploads.push(kept);
        Ok(true)
    }

    /// As [`Driver::record`](super::Driver::record).
    pub fn record(&self) -> Result<Handle> {
        Ok(Handle::new(Event::new("record", &self.stream, Timing::Noted)?))
    }

    /// As [`Driver::elapsed`](super::Driver::elapsed).
    pub fn elapsed(&self, from: &Handle, to: &Handle) -> Result<f64> {
        let [from, to] = [from, to].map(|handle| handle.get::<Event<S>>().event);
        // SAFETY: both were made by `record`, and live.
        unsafe { self.stream.elapsed(from, to) }
    }

    /// As [`Driver::records`](super::Driver::records).
    pub fn records(&self) -> bool {
        self.stream.records()
    }

    /// As [`Driver::begin_capture`](super::Driver::begin_capture).
    pub fn begin_capture(&self) -> Result<bool> {
        let begins = self.stream.begin()?;
        if begins {
            *self.uploads.lock() = Some(Vec::new());
        }
        Ok(begins)
    }

    /// As [`Driver::end_capture`](super::Driver::end_capture).
    pub fn end_capture(&self) -> Result<Handle> {
        let uploads = self.uploads.lock().take().unwrap_or_default();
        let graph = self.stream.end()?;
        Ok(Handle::new(Graph { graph, stream: self.stream.clone(), _uploads: uploads }))
    }

    /// As [`Driver::replay`](super::Driver::replay).
    pub fn replay(&self, graph: &Handle) -> Result<()> {
        // SAFETY: the graph lives until it is dropped, which waits for it; what it reads and writes is kept with it.
        unsafe { self.stream.replay(graph.get::<Graph<S>>().graph) }
    }
}
