//! The driver over HIP.

// HIP is C: handles, host pointers, and arguments without types.
#![allow(unsafe_code)]

use crate::rccl;
use crate::rocblas::Products;
use crate::runtime::{Described, Runtime};
use crate::stream::{Stream, pointer};
use crate::sys::{self, Functions, Pointer};
use crate::{DIALECT, Hiprtc};
use isograd_core::{Error, Kind, Result, Space};
use isograd_gpu::driver::runtime::{self, Program, Queue, Second};
use isograd_gpu::driver::{blas, ccl};
use isograd_gpu::vendor::ccl::Collectives;
use isograd_gpu::{Address, Arg, Dialect, Driver, Geometry, Handle, Limits};
use parking_lot::Mutex;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

/// Bytes of uploads for whose copies memory is kept. More are waited for.
const MOST_KEPT: usize = 32 << 20;

/// A HIP device with one stream.
pub struct Hip {
    queue: Queue<Stream>,
    ordinal: usize,
    /// For copies beside a recording.
    aside: Stream,
    uploads: Mutex<Uploads>,
    products: Option<Products>,
    collectives: OnceLock<Option<Collectives>>,
    hiprtc: &'static Hiprtc,
    limits: Limits,
    architecture: String,
}

/// What is copied from the host when the stream comes to it, since it was last waited for: HIP does not say that it has been by the time a
/// call returns.
#[derive(Default)]
struct Uploads {
    kept: Vec<Vec<u8>>,
    bytes: usize,
}

impl Hip {
    /// Opens a device. Errors: `Device`, `Backend`.
    pub fn new(ordinal: usize) -> Result<Hip> {
        let runtime = Runtime::open()?;
        let Described { limits, architecture } = runtime.describe(ordinal)?;
        let device = ordinal as c_int;
        let queue = Queue::new(Stream::new(runtime, device)?);
        Ok(Hip {
            products: Products::new(queue.stream()),
            collectives: OnceLock::new(),
            queue,
            ordinal,
            aside: Stream::new(runtime, device)?,
            uploads: Mutex::default(),
            hiprtc: Hiprtc::open()?,
            limits,
            architecture,
        })
    }

    fn stream(&self) -> &Arc<Stream> {
        self.queue.stream()
    }

    fn functions(&self) -> &'static Functions {
        &self.stream().runtime.functions
    }

    /// Waits for the stream, and gives up what was kept for the copies in it.
    fn wait(&self, op: &'static str) -> Result<()> {
        let mut uploads = self.uploads.lock();
        let done = std::mem::take(&mut uploads.kept);
        uploads.bytes = 0;
        drop(uploads);
        let waited = self.stream().wait(op);
        drop(done);
        waited
    }

    /// Enqueues a copy from bytes that stay until it has been done.
    fn enqueue(&self, stream: &Stream, to: Address, bytes: &[u8]) -> Result<()> {
        let copy = self.functions().upload;
        // SAFETY: the target is an allocation with room for the bytes, which the pool sees to; the caller keeps them.
        stream.call("upload", |stream| unsafe { copy(pointer(to), bytes.as_ptr().cast(), bytes.len(), stream) })
    }
}

/// A function of a module.
pub struct Entry(Pointer);

// SAFETY: as for `Stream`.
unsafe impl Send for Entry {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Entry {}

impl Driver for Hip {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        let (mut at, mut code) = (null_mut(), sys::SUCCESS);
        let allocated = self.stream().call("allocate", |_| {
            // SAFETY: the address is written where it is.
            code = unsafe { (self.functions().allocate)(&mut at, bytes) };
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
        unsafe { (self.functions().free)(pointer(address)) };
    }

    fn upload(&self, to: Address, bytes: &[u8]) -> Result<()> {
        if self.queue.upload_recorded(bytes, |kept| self.enqueue(self.stream(), to, kept))? {
            return Ok(());
        }
        let mut uploads = self.uploads.lock();
        if uploads.bytes + bytes.len() > MOST_KEPT {
            drop(uploads);
            self.enqueue(self.stream(), to, bytes)?;
            return self.wait("upload");
        }
        // Still locked when the copy is enqueued: who takes the list waits for all copies from it.
        let copied = bytes.to_vec();
        self.enqueue(self.stream(), to, &copied)?;
        uploads.bytes += bytes.len();
        uploads.kept.push(copied);
        Ok(())
    }

    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        let (copy, to) = (self.functions().download, bytes.as_mut_ptr().cast());
        // SAFETY: the source is within an allocation, which the pool sees to; the bytes are there after the wait, until
        // which they are borrowed.
        let enqueued = self.stream().call("download", |stream| unsafe { copy(to, pointer(from), bytes.len(), stream) });
        enqueued.and(self.wait("download"))
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        let copy = self.functions().copy;
        // SAFETY: both are within allocations, which the pool sees to.
        self.stream().call("copy", |stream| unsafe { copy(pointer(to), pointer(from), bytes, stream) })
    }

    fn fill(&self, at: Address, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the target is within an allocation, which the pool sees to.
        self.stream().call("fill", |stream| unsafe { (self.functions().fill)(pointer(at), byte, bytes, stream) })
    }

    fn compile(&self, source: &str) -> Result<(Handle, Option<Vec<u8>>)> {
        let code = self.hiprtc.compile(source, &self.architecture)?;
        Ok((self.load(&code)?, Some(code)))
    }

    fn load(&self, binary: &[u8]) -> Result<Handle> {
        let mut module = null_mut();
        // SAFETY: a code object says in its header how long it is; the cache has checked that it is what `compile` gave.
        self.stream().call("load", |_| unsafe { (self.functions().load)(&mut module, binary.as_ptr().cast()) })?;
        // SAFETY: it was loaded above, for the stream's device.
        Ok(Handle::new(unsafe { Program::new(module, self.stream()) }))
    }

    fn entry(&self, program: &Handle, name: &str) -> Result<Handle> {
        let (name, program) = (runtime::entry_name(name)?, program.get::<Program<Stream>>());
        let (mut entry, find) = (null_mut(), self.functions().entry);
        // SAFETY: the module is loaded until `program` is dropped.
        self.stream().call("load", |_| unsafe { find(&mut entry, program.module(), name.as_ptr()) })?;
        Ok(Handle::new(Entry(entry)))
    }

    fn launch(&self, entry: &Handle, geometry: Geometry, arguments: &[Arg<'_>], _reached: &[Address]) -> Result<()> {
        let mut starts = runtime::starts(arguments);
        let [x, y, z] = geometry.groups.map(|n| n as u32);
        let (threads, given) = (geometry.threads as u32, geometry.given as u32);
        let launch = self.functions().launch;
        let &Entry(function) = entry.get();
        // SAFETY: the host code writes the list that the kernel's source declares, which the call copies; addresses are
        // within allocations, and the grid is what the kernel was written for. The caller holds the entry's program.
        self.stream().call("launch", |stream| unsafe {
            launch(function, x, y, z, threads, 1, 1, given, stream, starts.as_mut_ptr(), null_mut())
        })
    }

    fn blas(&self) -> Option<&dyn blas::Library> {
        self.products.as_ref().map(|products| products as _)
    }

    /// Opened when tensors are exchanged.
    fn ccl(&self) -> Option<&dyn ccl::Library> {
        let open = || {
            let library = rccl::open().inspect_err(|error| tracing::debug!(%error, "collectives use the host")).ok()?;
            let main = self.stream().clone();
            Some(Collectives::new(library, move || Ok(Box::new(Second::new(&main)?))))
        };
        self.collectives.get_or_init(open).as_ref().map(|library| library as _)
    }

    fn space(&self) -> Option<Space> {
        Some(Space::Rocm(self.ordinal as u32))
    }

    fn stream(&self) -> Option<u64> {
        self.queue.handle()
    }

    fn lead(&self, stream: u64) -> Result<()> {
        self.queue.lead(stream)
    }

    fn record(&self) -> Result<Handle> {
        self.queue.record()
    }

    fn elapsed(&self, from: &Handle, to: &Handle) -> Result<f64> {
        self.queue.elapsed(from, to)
    }

    fn synchronize(&self) -> Result<()> {
        self.wait("synchronize")
    }

    fn records(&self) -> bool {
        self.queue.records()
    }

    fn begin_capture(&self) -> Result<bool> {
        self.queue.begin_capture()
    }

    fn end_capture(&self) -> Result<Handle> {
        self.queue.end_capture()
    }

    fn replay(&self, graph: &Handle) -> Result<()> {
        self.queue.replay(graph)
    }

    fn upload_aside(&self, to: Address, bytes: &[u8]) -> Result<()> {
        // The bytes are borrowed until they are copied; nothing else uses the target.
        self.enqueue(&self.aside, to, bytes).and_then(|()| self.aside.wait("upload"))
    }
}
