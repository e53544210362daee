//! The driver over HIP.

// HIP is C: handles, host pointers, and arguments without types.
#![allow(unsafe_code)]

use crate::rccl;
use crate::rocblas::Products;
use crate::runtime::{Described, Runtime};
use crate::sys::{self, Code, Functions, Pointer};
use crate::{DIALECT, Hiprtc};
use isograd_core::{Error, Kind, Result};
use isograd_gpu::driver::blas;
use isograd_gpu::driver::ccl::{self, Beside};
use isograd_gpu::vendor::ccl::Collectives;
use isograd_gpu::{Address, Arg, Dialect, Driver, Geometry, Handle, Limits};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::ffi::{CString, c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::{Arc, OnceLock};

/// What the prelude puts before the name of an entry.
const PREFIX: &str = "isograd_";
/// Bytes of uploads for whose copies memory is kept. More are waited for.
const MOST_KEPT: usize = 32 << 20;

/// A HIP device with one stream.
pub struct Hip {
    stream: Arc<Stream>,
    /// For copies beside a recording.
    aside: Stream,
    uploads: Mutex<Uploads>,
    graphs: Option<Graphs>,
    products: Option<Products>,
    collectives: OnceLock<Option<Collectives>>,
    hiprtc: &'static Hiprtc,
    limits: Limits,
    architecture: String,
}

/// What is copied from the host when the stream comes to it: HIP does not say that it has been by the time a call returns.
#[derive(Default)]
struct Uploads {
    /// Since the stream was last waited for.
    kept: Vec<Vec<u8>>,
    bytes: usize,
    /// While recording: what the graph uploads.
    recorded: Option<Vec<Vec<u8>>>,
}

/// The functions of graphs.
#[derive(Clone, Copy)]
struct Graphs {
    begin: unsafe extern "C" fn(Pointer, c_int) -> Code,
    end: unsafe extern "C" fn(Pointer, *mut Pointer) -> Code,
    instantiate: unsafe extern "C" fn(*mut Pointer, Pointer, *mut Pointer, *mut std::ffi::c_char, usize) -> Code,
    launch: unsafe extern "C" fn(Pointer, Pointer) -> Code,
    destroy: unsafe extern "C" fn(Pointer) -> Code,
    destroy_executable: unsafe extern "C" fn(Pointer) -> Code,
}

impl Graphs {
    /// None if this version of HIP lacks one of them.
    fn of(functions: &Functions) -> Option<Graphs> {
        Some(Graphs {
            begin: functions.hipStreamBeginCapture?,
            end: functions.hipStreamEndCapture?,
            instantiate: functions.hipGraphInstantiate?,
            launch: functions.hipGraphLaunch?,
            destroy: functions.hipGraphDestroy?,
            destroy_executable: functions.hipGraphExecDestroy?,
        })
    }
}

/// A stream of a device.
pub struct Stream {
    runtime: &'static Runtime,
    device: c_int,
    stream: Pointer,
}

// SAFETY: HIP's handles belong to no thread, and its functions may be called from all of them at once.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    fn new(runtime: &'static Runtime, device: c_int) -> Result<Stream> {
        let mut made = Stream { runtime, device, stream: null_mut() };
        let create = runtime.functions.hipStreamCreateWithFlags;
        let mut stream = null_mut();
        // SAFETY: the stream is written where it is.
        made.call("hip", |_| unsafe { create(&mut stream, sys::NON_BLOCKING) })?;
        made.stream = stream;
        Ok(made)
    }

    /// Makes the device that of the calling thread, which HIP's functions ask for. Returns the stream.
    pub fn enter(&self, op: &'static str) -> Result<Pointer> {
        // SAFETY: the device is one that HIP counted.
        self.runtime.check(op, unsafe { (self.runtime.functions.hipSetDevice)(self.device) })?;
        Ok(self.stream)
    }

    /// Calls HIP with the stream, on its device.
    fn call(&self, op: &'static str, f: impl FnOnce(Pointer) -> Code) -> Result<()> {
        let stream = self.enter(op)?;
        self.runtime.check(op, f(stream))
    }

    fn wait(&self, op: &'static str) -> Result<()> {
        // SAFETY: the stream lives until `self` is dropped.
        self.call(op, |stream| unsafe { (self.runtime.functions.hipStreamSynchronize)(stream) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.stream.is_null() {
            // SAFETY: what used the stream held this, and is gone.
            let _ = self.call("hip", |stream| unsafe { (self.runtime.functions.hipStreamDestroy)(stream) });
        }
    }
}

impl Hip {
    /// Opens a device. Errors: `Device`, `Backend`.
    pub fn new(ordinal: usize) -> Result<Hip> {
        let runtime = Runtime::open()?;
        let Described { limits, architecture } = runtime.describe(ordinal)?;
        let device = ordinal as c_int;
        let stream = Arc::new(Stream::new(runtime, device)?);
        Ok(Hip {
            products: Products::new(&stream),
            collectives: OnceLock::new(),
            stream,
            aside: Stream::new(runtime, device)?,
            uploads: Mutex::default(),
            graphs: Graphs::of(&runtime.functions),
            hiprtc: Hiprtc::open()?,
            limits,
            architecture,
        })
    }

    fn functions(&self) -> &'static Functions {
        &self.stream.runtime.functions
    }

    /// Waits for the stream, and gives up what was kept for the copies in it.
    fn wait(&self, op: &'static str) -> Result<()> {
        let mut uploads = self.uploads.lock();
        let done = std::mem::take(&mut uploads.kept);
        uploads.bytes = 0;
        drop(uploads);
        let waited = self.stream.wait(op);
        drop(done);
        waited
    }

    /// Enqueues a copy from bytes that stay until it has been done.
    fn enqueue(&self, stream: &Stream, to: Address, bytes: &[u8]) -> Result<()> {
        let copy = self.functions().hipMemcpyHtoDAsync;
        // SAFETY: the target is an allocation with room for the bytes, which the pool sees to; the caller keeps them.
        stream.call("upload", |stream| unsafe { copy(pointer(to), bytes.as_ptr().cast(), bytes.len(), stream) })
    }

    fn graphs(&self) -> Result<Graphs> {
        self.graphs.ok_or_else(|| Error::unsupported("capture", "this version of HIP has no graphs"))
    }
}

/// An address as HIP takes it.
pub fn pointer(address: Address) -> Pointer {
    without_provenance_mut(address as usize)
}

/// A loaded module.
pub struct Program {
    module: Pointer,
    stream: Arc<Stream>,
}

// SAFETY: as for `Stream`.
unsafe impl Send for Program {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Program {}

impl Drop for Program {
    fn drop(&mut self) {
        // Its code may be running. If waiting fails, so will everything else.
        let _ = self.stream.wait("load");
        // SAFETY: nothing runs of it, and its entries are launched no more.
        unsafe { (self.stream.runtime.functions.hipModuleUnload)(self.module) };
    }
}

/// A function of a module.
pub struct Entry(Pointer);

// SAFETY: as for `Stream`.
unsafe impl Send for Entry {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Entry {}

/// An event with a time.
pub struct Event {
    event: Pointer,
    stream: Arc<Stream>,
}

// SAFETY: as for `Stream`.
unsafe impl Send for Event {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event was made by `record`, and is used no more.
        let _ = self.stream.call("record", |_| unsafe { (self.stream.runtime.functions.hipEventDestroy)(self.event) });
    }
}

/// A stream beside the device's own, for collectives.
struct Second {
    main: Arc<Stream>,
    own: Arc<Stream>,
    after: unsafe extern "C" fn(Pointer, Pointer, std::ffi::c_uint) -> Code,
    query: unsafe extern "C" fn(Pointer) -> Code,
}

impl Second {
    fn new(main: &Arc<Stream>) -> Result<Second> {
        let functions = &main.runtime.functions;
        let (Some(after), Some(query)) = (functions.hipStreamWaitEvent, functions.hipEventQuery) else {
            return Err(Error::unsupported("collective", "this version of HIP has no events to wait for"));
        };
        let own = Arc::new(Stream::new(main.runtime, main.device)?);
        Ok(Second { main: main.clone(), own, after, query })
    }

    /// An event without a time behind what is in a stream now.
    fn event(stream: &Arc<Stream>) -> Result<Event> {
        let (functions, mut event) = (&stream.runtime.functions, null_mut());
        let create = functions.hipEventCreateWithFlags;
        // SAFETY: the event is written where it is.
        stream.call("collective", |_| unsafe { create(&mut event, sys::WITHOUT_TIME) })?;
        let event = Event { event, stream: stream.clone() };
        // SAFETY: the event was made above, on the stream's device.
        stream.call("collective", |stream| unsafe { (functions.hipEventRecord)(event.event, stream) })?;
        Ok(event)
    }

    /// Makes later work of a stream run after an event.
    fn follows(&self, stream: &Stream, event: &Event) -> Result<()> {
        // SAFETY: both are of one device, and live; HIP keeps what it needs of an event that is destroyed.
        stream.call("collective", |stream| unsafe { (self.after)(stream, event.event, 0) })
    }
}

impl Beside for Second {
    fn enter(&self) -> Result<*mut std::ffi::c_void> {
        self.own.enter("collective")
    }

    fn follow(&self) -> Result<()> {
        self.follows(&self.own, &Second::event(&self.main)?)
    }

    fn mark(&self) -> Result<Handle> {
        Ok(Handle::new(Second::event(&self.own)?))
    }

    fn lead(&self, mark: &Handle) -> Result<()> {
        self.follows(&self.main, mark.get())
    }

    fn is_past(&self, mark: &Handle) -> Result<bool> {
        self.own.enter("collective")?;
        // SAFETY: the event lives.
        match unsafe { (self.query)(mark.get::<Event>().event) } {
            sys::NOT_READY => Ok(false),
            code => self.own.runtime.check("collective", code).map(|()| true),
        }
    }
}

/// A graph, ready to be launched.
pub struct Graph {
    graph: Pointer,
    graphs: Graphs,
    stream: Arc<Stream>,
    /// From where it uploads.
    _uploads: Vec<Vec<u8>>,
}

// SAFETY: as for `Stream`.
unsafe impl Send for Graph {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        // It may be running. If waiting fails, so will everything else.
        let _ = self.stream.wait("capture");
        // SAFETY: the graph was made by `end_capture`, and is used no more.
        unsafe { (self.graphs.destroy_executable)(self.graph) };
    }
}

impl Driver for Hip {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        let (mut at, mut code) = (null_mut(), sys::SUCCESS);
        let allocated = self.stream.call("allocate", |_| {
            // SAFETY: the address is written where it is.
            code = unsafe { (self.functions().hipMalloc)(&mut at, bytes) };
            code
        });
        match code {
            sys::OUT_OF_MEMORY => {
                Err(Error::new(Kind::OutOfMemory, "allocate", format!("the device did not give {bytes} bytes")))
            }
            _ => allocated.map(|()| at as Address),
        }
    }

    fn free(&self, address: Address) {
        // Work in the stream may still use the memory. If waiting fails, so will everything else.
        let _ = self.wait("free");
        // SAFETY: `allocate` gave the address, and nothing in the stream uses it any more.
        unsafe { (self.functions().hipFree)(pointer(address)) };
    }

    fn upload(&self, to: Address, bytes: &[u8]) -> Result<()> {
        let mut uploads = self.uploads.lock();
        if uploads.recorded.is_none() && uploads.bytes + bytes.len() > MOST_KEPT {
            drop(uploads);
            self.enqueue(&self.stream, to, bytes)?;
            return self.wait("upload");
        }
        // Still locked when the copy is enqueued: who takes the list waits for all copies from it.
        let copied = bytes.to_vec();
        self.enqueue(&self.stream, to, &copied)?;
        match &mut uploads.recorded {
            Some(recorded) => recorded.push(copied),
            None => {
                uploads.bytes += bytes.len();
                uploads.kept.push(copied);
            }
        }
        Ok(())
    }

    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        let (copy, to) = (self.functions().hipMemcpyDtoHAsync, bytes.as_mut_ptr().cast());
        // SAFETY: the source is within an allocation, which the pool sees to; the bytes are there after the wait, until
        // which they are borrowed.
        let enqueued = self.stream.call("download", |stream| unsafe { copy(to, pointer(from), bytes.len(), stream) });
        enqueued.and(self.wait("download"))
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        let copy = self.functions().hipMemcpyDtoDAsync;
        // SAFETY: both are within allocations, which the pool sees to.
        self.stream.call("copy", |stream| unsafe { copy(pointer(to), pointer(from), bytes, stream) })
    }

    fn fill(&self, at: Address, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the target is within an allocation, which the pool sees to.
        self.stream
            .call("fill", |stream| unsafe { (self.functions().hipMemsetD8Async)(pointer(at), byte, bytes, stream) })
    }

    fn compile(&self, source: &str) -> Result<(Handle, Option<Vec<u8>>)> {
        let code = self.hiprtc.compile(source, &self.architecture)?;
        Ok((self.load(&code)?, Some(code)))
    }

    fn load(&self, binary: &[u8]) -> Result<Handle> {
        let mut module = null_mut();
        // SAFETY: a code object says in its header how long it is; the cache has checked that it is what `compile` gave.
        self.stream
            .call("load", |_| unsafe { (self.functions().hipModuleLoadData)(&mut module, binary.as_ptr().cast()) })?;
        Ok(Handle::new(Program { module, stream: self.stream.clone() }))
    }

    fn entry(&self, program: &Handle, name: &str) -> Result<Handle> {
        let name =
            CString::new(format!("{PREFIX}{name}")).map_err(|_| Error::backend("load", "a name has a byte 0"))?;
        let Program { module, .. } = program.get();
        let mut entry = null_mut();
        // SAFETY: the module is loaded until `program` is dropped.
        self.stream
            .call("load", |_| unsafe { (self.functions().hipModuleGetFunction)(&mut entry, *module, name.as_ptr()) })?;
        Ok(Handle::new(Entry(entry)))
    }

    fn launch(&self, entry: &Handle, geometry: Geometry, arguments: &[Arg<'_>], _reached: &[Address]) -> Result<()> {
        let place = |argument: &Arg<'_>| match argument {
            Arg::Pointer(address) => std::ptr::from_ref(address).cast::<c_void>().cast_mut(),
            Arg::Value(bytes) => bytes.as_ptr().cast::<c_void>().cast_mut(),
        };
        let mut places: SmallVec<[*mut c_void; 16]> = arguments.iter().map(place).collect();
        let [x, y, z] = geometry.groups.map(|n| n as u32);
        let (threads, given) = (geometry.threads as u32, geometry.given as u32);
        let launch = self.functions().hipModuleLaunchKernel;
        let &Entry(function) = entry.get();
        // SAFETY: the host code writes the list that the kernel's source declares, which the call copies; addresses are
        // within allocations, and the grid is what the kernel was written for. The caller holds the entry's program.
        self.stream.call("launch", |stream| unsafe {
            launch(function, x, y, z, threads, 1, 1, given, stream, places.as_mut_ptr(), null_mut())
        })
    }

    fn blas(&self) -> Option<&dyn blas::Library> {
        self.products.as_ref().map(|products| products as _)
    }

    /// Opened when tensors are exchanged.
    fn ccl(&self) -> Option<&dyn ccl::Library> {
        let open = || {
            let library = rccl::open().inspect_err(|error| tracing::debug!(%error, "collectives use the host")).ok()?;
            let main = self.stream.clone();
            Some(Collectives::new(library, move || Ok(Box::new(Second::new(&main)?))))
        };
        self.collectives.get_or_init(open).as_ref().map(|library| library as _)
    }

    fn record(&self) -> Result<Handle> {
        let mut event = null_mut();
        // SAFETY: the event is written where it is.
        self.stream.call("record", |_| unsafe { (self.functions().hipEventCreateWithFlags)(&mut event, 0) })?;
        let event = Event { event, stream: self.stream.clone() };
        // SAFETY: the event was made above, on the stream's device.
        self.stream.call("record", |stream| unsafe { (self.functions().hipEventRecord)(event.event, stream) })?;
        Ok(Handle::new(event))
    }

    fn elapsed(&self, from: &Handle, to: &Handle) -> Result<f64> {
        let [from, to] = [from, to].map(|handle| handle.get::<Event>().event);
        let mut milliseconds = 0f32;
        // SAFETY: both events are recorded in the stream; the second is waited for, and so is the first.
        unsafe {
            self.stream.call("elapsed", |_| (self.functions().hipEventSynchronize)(to))?;
            let ask = self.functions().hipEventElapsedTime;
            self.stream.call("elapsed", |_| ask(&mut milliseconds, from, to))?;
        }
        Ok(milliseconds as f64 * 1e-3)
    }

    fn synchronize(&self) -> Result<()> {
        self.wait("synchronize")
    }

    fn begin_capture(&self) -> Result<bool> {
        let Some(graphs) = self.graphs else { return Ok(false) };
        // Relaxed: memory is allocated and programs are loaded meanwhile, which HIP would otherwise refuse.
        // SAFETY: the stream lives until `self` is dropped.
        self.stream.call("capture", |stream| unsafe { (graphs.begin)(stream, sys::RELAXED) })?;
        self.uploads.lock().recorded = Some(Vec::new());
        Ok(true)
    }

    fn end_capture(&self) -> Result<Handle> {
        let (graphs, uploads) = (self.graphs()?, self.uploads.lock().recorded.take().unwrap_or_default());
        let (mut recorded, mut graph) = (null_mut(), null_mut());
        // SAFETY: `begin_capture` began to record the stream. The graph is not used once it is instantiated.
        unsafe {
            self.stream.call("capture", |stream| (graphs.end)(stream, &mut recorded))?;
            let make = graphs.instantiate;
            let made = self.stream.call("capture", |_| make(&mut graph, recorded, null_mut(), null_mut(), 0));
            (graphs.destroy)(recorded);
            made?;
        }
        Ok(Handle::new(Graph { graph, graphs, stream: self.stream.clone(), _uploads: uploads }))
    }

    fn replay(&self, graph: &Handle) -> Result<()> {
        let Graph { graph, graphs, .. } = graph.get();
        // SAFETY: the graph lives until it is dropped, which waits for it; what it reads and writes is kept with it.
        self.stream.call("capture", |stream| unsafe { (graphs.launch)(*graph, stream) })
    }

    fn upload_aside(&self, to: Address, bytes: &[u8]) -> Result<()> {
        // The bytes are borrowed until they are copied; nothing else uses the target.
        self.enqueue(&self.aside, to, bytes).and_then(|()| self.aside.wait("upload"))
    }
}
