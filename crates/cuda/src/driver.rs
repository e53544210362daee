//! The driver over cudarc.

// CUDA is C: handles, host pointers, and arguments without types.
#![allow(unsafe_code)]

use crate::blaslt::{CublasLt, Products};
use crate::cudnn::Networks;
use crate::nccl;
use crate::staging::Staging;
use crate::{DIALECT, Nvrtc};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute as Attribute, CUresult, CUstream};
use isograd_core::{DType, Error, Kind, Result};
use isograd_gpu::driver::ccl::{self, Beside};
use isograd_gpu::driver::{blas, dnn};
use isograd_gpu::vendor::ccl::Collectives;
use isograd_gpu::{Address, Arg, Dialect, Driver, Geometry, Handle, Limits, TileMap, TileView};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};
use std::thread;

/// What the prelude puts before the name of an entry.
const PREFIX: &str = "isograd_";
/// The compute capability of Hopper.
const HOPPER: (i32, i32) = (9, 0);

/// A CUDA device with one stream, in the device's primary context.
pub struct Cuda {
    stream: Arc<Stream>,
    /// For copies beside a recording.
    aside: Stream,
    /// For other copies from the host.
    staging: Staging,
    /// While recording: what the graph uploads.
    uploads: Mutex<Option<Vec<Vec<u8>>>>,
    products: Option<Products>,
    networks: OnceLock<Option<Networks>>,
    collectives: OnceLock<Option<Collectives>>,
    nvrtc: &'static Nvrtc,
    limits: Limits,
    /// `sm_90a`.
    architecture: String,
    /// Whether a launch may start while the one before it ends.
    may_overlap: bool,
}

pub(crate) fn failed(op: &'static str) -> impl Fn(DriverError) -> Error {
    move |DriverError(code)| {
        let text = DriverError(code).error_string().map(|text| text.to_string_lossy().into_owned());
        Error::backend(op, format!("CUDA: {code:?} ({}): {}", code as u32, text.unwrap_or_default()))
    }
}

/// Opens CUDA's library once. Errors: `Device`, if there is none or it has no device.
fn init() -> Result<()> {
    static READY: OnceLock<std::result::Result<(), String>> = OnceLock::new();
    let ready = READY.get_or_init(|| {
        // SAFETY: opening the library has no conditions. cudarc would panic where it is missing, and is not asked then.
        if !unsafe { sys::is_culib_present() } {
            let name = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so or libcuda.so.1" };
            return Err(format!("the loader finds no {name}; is NVIDIA's driver installed?"));
        }
        result::init().map_err(|e| failed("cuda")(e).message().to_string())
    });
    ready.as_ref().map_err(|why| Error::device("cuda", why)).copied()
}

/// How many devices there are. Errors: `Device` if there is none.
pub fn count() -> Result<usize> {
    init()?;
    match result::device::get_count().map_err(failed("cuda"))? {
        0 => Err(Error::device("cuda", "NVIDIA's driver is there, but it knows no device")),
        n => Ok(n as usize),
    }
}

/// Device `ordinal` and its compute capability.
fn device(ordinal: usize) -> Result<(CUdevice, (i32, i32))> {
    let there = count()?;
    if ordinal >= there {
        return Err(Error::device("cuda", format!("device {ordinal} was asked for, there are {there}")));
    }
    let device = result::device::get(ordinal as i32).map_err(failed("cuda"))?;
    let [major, minor] = [
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    ]
    .map(|which| attribute(device, which));
    Ok((device, (major?, minor?)))
}

fn attribute(device: CUdevice, which: Attribute) -> Result<i32> {
    // SAFETY: the device is one that CUDA gave.
    unsafe { result::device::get_attribute(device, which) }.map_err(failed("cuda"))
}

/// What a device can do. Errors: `Device`, `Backend`.
pub fn limits(ordinal: usize) -> Result<Limits> {
    let (device, (major, minor)) = device(ordinal)?;
    let nvrtc = Nvrtc::open()?;
    let ask = |which| Ok::<usize, Error>(attribute(device, which)? as usize);
    // SAFETY: the device is one that CUDA gave.
    let memory = unsafe { result::device::total_mem(device) }.map_err(failed("cuda"))?;
    let (cuda, compiler) = (version()?, nvrtc.version());
    Ok(Limits {
        name: result::device::get_name(device).map_err(failed("cuda"))?,
        driver: format!("compute capability {major}.{minor}, CUDA {cuda}, NVRTC {compiler}"),
        memory,
        max_allocation: memory,
        max_group: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        local_memory: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
        given_memory: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        wave: ask(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        units: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        has_f64: true,
        has_mma: major >= 8,
        turns_operands: (major, minor) >= (7, 5),
        // The instructions are those of this capability alone.
        has_wgmma: (major, minor) == HOPPER,
        has_tile_maps: ask(Attribute::CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED)? > 0,
        has_adds: major >= 9,
        is_coherent: true,
        has_shared_words: true,
        keeps_arrays: true,
    })
}

/// The newest version of CUDA that the driver runs, `13.0`.
fn version() -> Result<String> {
    let mut version = 0;
    // SAFETY: the number is written where it is.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed("cuda"))?;
    Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
}

/// Held while a stream is recorded. What waits for a stream or a whole context, or changes what is loaded or allocated there, may
/// end a recording of another thread with an error: it takes turns with them.
static TURN: RwLock<()> = RwLock::new(());

thread_local! {
    /// The turn of the recording that this thread makes.
    static OWN_TURN: RefCell<Option<RwLockWriteGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// A turn between the recordings of other threads, as long as it is held.
pub(crate) fn turn() -> Option<RwLockReadGuard<'static, ()>> {
    // A thread that ends records nothing.
    let records = OWN_TURN.try_with(|own| own.borrow().is_some()).unwrap_or(false);
    (!records).then(|| TURN.read_recursive())
}

/// A stream in the primary context of its device, which is kept as long.
pub(crate) struct Stream {
    device: CUdevice,
    context: CUcontext,
    pub stream: CUstream,
}

// SAFETY: CUDA's handles belong to no thread, and its functions may be called from all of them at once.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    fn new(device: CUdevice) -> Result<Stream> {
        Stream::with(device, result::stream::create)
    }

    /// A stream whose kernels start before those of others that wait.
    fn urgent(device: CUdevice) -> Result<Stream> {
        Stream::with(device, |kind| {
            let (_, greatest) = result::stream::get_priority_range()?;
            result::stream::create_with_priority(kind, greatest)
        })
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
    fn call(&self, op: &'static str, f: impl FnOnce(CUstream) -> std::result::Result<(), DriverError>) -> Result<()> {
        self.enter(op)?;
        f(self.stream).map_err(failed(op))
    }

    fn wait(&self, op: &'static str) -> Result<()> {
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

impl Cuda {
    /// Opens a device. Errors: `Device`, `Backend`.
    pub fn new(ordinal: usize) -> Result<Cuda> {
        let (device, (major, minor)) = device(ordinal)?;
        // Reading the libraries takes as long as making a context does, and what is opened once stays open.
        let stream = thread::scope(|scope| {
            scope.spawn(|| (CublasLt::open().is_ok(), Nvrtc::open().is_ok()));
            Stream::new(device)
        });
        let stream = Arc::new(stream?);
        Ok(Cuda {
            products: Products::new(&stream),
            networks: OnceLock::new(),
            collectives: OnceLock::new(),
            limits: limits(ordinal)?,
            nvrtc: Nvrtc::open()?,
            // With what this one has alone, where it has such.
            architecture: format!("sm_{major}{minor}{}", if (major, minor) == HOPPER { "a" } else { "" }),
            may_overlap: major >= 9,
            stream,
            aside: Stream::new(device)?,
            staging: Staging::new(Stream::new(device)?),
            uploads: Mutex::new(None),
        })
    }
}

/// A loaded module.
pub struct Program {
    module: sys::CUmodule,
    stream: Arc<Stream>,
}

// SAFETY: as for `Stream`.
unsafe impl Send for Program {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Program {}

impl Drop for Program {
    fn drop(&mut self) {
        let _turn = turn();
        // Its code may be running. If waiting fails, so will everything else.
        let _ = self.stream.wait("load");
        // SAFETY: nothing runs of it, and its entries are launched no more.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

/// A function of a module.
pub struct Entry(sys::CUfunction);

// SAFETY: as for `Stream`.
unsafe impl Send for Entry {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Entry {}

/// An event with a time.
pub struct Event {
    event: sys::CUevent,
    stream: Arc<Stream>,
}

// SAFETY: as for `Stream`.
unsafe impl Send for Event {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.stream.enter("record");
        // SAFETY: the event was made by `record`, and is used no more.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}

/// A stream beside the device's own, for collectives.
struct Second {
    main: Arc<Stream>,
    own: Arc<Stream>,
}

impl Second {
    fn new(main: &Arc<Stream>) -> Result<Second> {
        Ok(Second { main: main.clone(), own: Arc::new(Stream::urgent(main.device)?) })
    }

    /// An event without a time behind what is in a stream now.
    fn event(stream: &Arc<Stream>) -> Result<Event> {
        let op = "collective";
        stream.enter(op)?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(failed(op))?;
        let event = Event { event, stream: stream.clone() };
        // SAFETY: the event was made above, in the stream's context.
        stream.call(op, |stream| unsafe { result::event::record(event.event, stream) })?;
        Ok(event)
    }

    /// Makes later work of a stream run after an event.
    fn after(stream: &Stream, event: &Event) -> Result<()> {
        // SAFETY: both are of one context, and live; CUDA keeps what it needs of an event that is destroyed.
        let wait = |stream| unsafe { sys::cuStreamWaitEvent(stream, event.event, 0) }.result();
        stream.call("collective", wait)
    }
}

impl Beside for Second {
    fn enter(&self) -> Result<*mut c_void> {
        self.own.enter("collective")?;
        Ok(self.own.stream.cast())
    }

    fn follow(&self) -> Result<()> {
        Second::after(&self.own, &Second::event(&self.main)?)
    }

    fn mark(&self) -> Result<Handle> {
        Ok(Handle::new(Second::event(&self.own)?))
    }

    fn lead(&self, mark: &Handle) -> Result<()> {
        Second::after(&self.main, mark.get())
    }

    fn is_past(&self, mark: &Handle) -> Result<bool> {
        self.own.enter("collective")?;
        // SAFETY: the event lives.
        match unsafe { sys::cuEventQuery(mark.get::<Event>().event) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => code.result().map(|()| true).map_err(failed("collective")),
        }
    }
}

/// A graph, ready to be launched.
pub struct Graph {
    graph: sys::CUgraphExec,
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
        let _turn = turn();
        // It may be running. If waiting fails, so will everything else.
        let _ = self.stream.wait("capture");
        // SAFETY: the graph was made by `end_capture`, and is used no more.
        let _ = unsafe { result::graph::exec_destroy(self.graph) };
    }
}

impl Driver for Cuda {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        let _turn = turn();
        self.stream.enter("allocate")?;
        // SAFETY: the context is the thread's.
        unsafe { result::malloc_sync(bytes) }.map_err(|error| match error {
            DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
                Error::new(Kind::OutOfMemory, "allocate", format!("the device did not give {bytes} bytes"))
            }
            other => failed("allocate")(other),
        })
    }

    fn free(&self, address: Address) {
        let _turn = turn();
        // Work in the stream may still use the memory. If waiting fails, so will everything else.
        let _ = self.stream.wait("free");
        // SAFETY: `allocate` gave the address, and nothing in the stream uses it any more.
        let _ = unsafe { result::free_sync(address) };
    }

    fn upload(&self, to: Address, bytes: &[u8]) -> Result<()> {
        if let Some(uploads) = &mut *self.uploads.lock() {
            let kept = bytes.to_vec();
            // SAFETY: the target is an allocation with room for the bytes, which the pool sees to. They live as long as the
            // graph that reads them.
            self.stream.call("upload", |stream| unsafe { result::memcpy_htod_async(to, &kept, stream) })?;
            uploads.push(kept);
            return Ok(());
        }
        // SAFETY: the target is as above, and the streams are of one context.
        if unsafe { self.staging.upload(self.stream.stream, to, bytes) }? {
            return Ok(());
        }
        // SAFETY: the target is as above. The bytes are in memory that CUDA has not locked: it has copied them when the
        // call returns.
        self.stream.call("upload", |stream| unsafe { result::memcpy_htod_async(to, bytes, stream) })
    }

    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the source is within an allocation, which the pool sees to; the bytes are there after the wait, until
        // which they are borrowed.
        self.stream.call("download", |stream| unsafe {
            let enqueued = result::memcpy_dtoh_async(bytes, from, stream);
            enqueued.and(result::stream::synchronize(stream))
        })
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        // SAFETY: both are within allocations, which the pool sees to.
        self.stream.call("copy", |stream| unsafe { result::memcpy_dtod_async(to, from, bytes, stream) })
    }

    fn fill(&self, at: Address, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the target is within an allocation, which the pool sees to.
        self.stream.call("fill", |stream| unsafe { result::memset_d8_async(at, byte, bytes, stream) })
    }

    fn compile(&self, source: &str) -> Result<(Handle, Option<Vec<u8>>)> {
        let cubin = self.nvrtc.compile(source, &self.architecture)?.cubin;
        Ok((self.load(&cubin)?, Some(cubin)))
    }

    fn load(&self, binary: &[u8]) -> Result<Handle> {
        let _turn = turn();
        self.stream.enter("load")?;
        // SAFETY: a cubin says in its header how long it is; the cache has checked that it is what `compile` gave.
        let module = unsafe { result::module::load_data(binary.as_ptr().cast()) }.map_err(failed("load"))?;
        Ok(Handle::new(Program { module, stream: self.stream.clone() }))
    }

    fn entry(&self, program: &Handle, name: &str) -> Result<Handle> {
        let name =
            CString::new(format!("{PREFIX}{name}")).map_err(|_| Error::backend("load", "a name has a byte 0"))?;
        let _turn = turn();
        self.stream.enter("load")?;
        let Program { module, .. } = program.get();
        // SAFETY: the module is loaded until `program` is dropped.
        let function = unsafe { result::module::get_function(*module, name) }.map_err(failed("load"))?;
        Ok(Handle::new(Entry(function)))
    }

    fn launch(&self, entry: &Handle, geometry: Geometry, arguments: &[Arg<'_>], _reached: &[Address]) -> Result<()> {
        let place = |argument: &Arg<'_>| match argument {
            Arg::Pointer(address) => std::ptr::from_ref(address).cast::<c_void>().cast_mut(),
            Arg::Value(bytes) => bytes.as_ptr().cast::<c_void>().cast_mut(),
        };
        let mut places: SmallVec<[*mut c_void; 16]> = arguments.iter().map(place).collect();
        let Geometry { groups, threads, given, follows } = geometry;
        let [x, y, z] = groups.map(|n| n as u32);
        let &Entry(function) = entry.get();
        // SAFETY: the host code writes the list that the kernel's source declares, which the call copies; addresses are
        // within allocations, and the grid is what the kernel was written for. The caller holds the entry's program.
        self.stream.call("launch", |stream| unsafe {
            // Beyond 48 KiB only if it is asked for.
            if given > 0 {
                let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                result::function::set_function_attribute(function, most, given as i32)?;
            }
            if !(follows && self.may_overlap) {
                return result::launch_kernel(
                    function,
                    (x, y, z),
                    (threads as u32, 1, 1),
                    given as u32,
                    stream,
                    &mut places,
                );
            }
            let mut overlaps = sys::CUlaunchAttribute {
                id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                pad: [0; 4],
                value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            };
            let config = sys::CUlaunchConfig {
                gridDimX: x,
                gridDimY: y,
                gridDimZ: z,
                blockDimX: threads as u32,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: given as u32,
                hStream: stream,
                attrs: &mut overlaps,
                numAttrs: 1,
            };
            sys::cuLaunchKernelEx(&config, function, places.as_mut_ptr(), null_mut()).result()
        })
    }

    fn tile_map(&self, view: &TileView) -> Result<TileMap> {
        let TileView { address, dtype, extents, strides, tile } = *view;
        let data = match dtype {
            DType::BF16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            _ => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        };
        let (extents, strides) = (extents.map(|n| n as u64), strides.map(|n| (n * dtype.size()) as u64));
        let (tile, steps) = ([tile[0] as u32, tile[1] as u32, 1], [1; 3]);
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: the map is written where it is; extents, strides and boxes have as many numbers as the rank says.
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                data,
                extents.len() as u32,
                address as *mut c_void,
                extents.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        code.result().map_err(failed("matmul"))?;
        Ok(map.opaque)
    }

    fn blas(&self) -> Option<&dyn blas::Library> {
        self.products.as_ref().map(|products| products as _)
    }

    /// The library is large, and opened when something is convolved.
    fn dnn(&self) -> Option<&dyn dnn::Library> {
        self.networks.get_or_init(|| Networks::new(&self.stream)).as_ref().map(|library| library as _)
    }

    /// Opened when tensors are exchanged.
    fn ccl(&self) -> Option<&dyn ccl::Library> {
        let open = || {
            let library = nccl::open().inspect_err(|error| tracing::debug!(%error, "collectives use the host")).ok()?;
            let main = self.stream.clone();
            Some(Collectives::new(library, move || Ok(Box::new(Second::new(&main)?))))
        };
        self.collectives.get_or_init(open).as_ref().map(|library| library as _)
    }

    fn record(&self) -> Result<Handle> {
        self.stream.enter("record")?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(failed("record"))?;
        let event = Event { event, stream: self.stream.clone() };
        // SAFETY: the event was made above, in the stream's context.
        self.stream.call("record", |stream| unsafe { result::event::record(event.event, stream) })?;
        Ok(Handle::new(event))
    }

    fn elapsed(&self, from: &Handle, to: &Handle) -> Result<f64> {
        self.stream.enter("elapsed")?;
        let [from, to] = [from, to].map(|handle| handle.get::<Event>().event);
        // SAFETY: both events are recorded in the stream; the second is waited for, and so is the first.
        let milliseconds = unsafe { result::event::synchronize(to).and_then(|()| result::event::elapsed(from, to)) };
        milliseconds.map(|ms| ms as f64 * 1e-3).map_err(failed("elapsed"))
    }

    fn synchronize(&self) -> Result<()> {
        self.stream.wait("synchronize")
    }

    fn begin_capture(&self) -> Result<bool> {
        // Relaxed: memory is allocated and programs are loaded meanwhile, which CUDA would otherwise refuse.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let turn = TURN.write();
        // SAFETY: the stream lives until `self` is dropped.
        self.stream.call("capture", |stream| unsafe { result::stream::begin_capture(stream, mode) })?;
        OWN_TURN.set(Some(turn));
        *self.uploads.lock() = Some(Vec::new());
        Ok(true)
    }

    fn end_capture(&self) -> Result<Handle> {
        let _turn = OWN_TURN.take();
        let uploads = self.uploads.lock().take().unwrap_or_default();
        self.stream.enter("capture")?;
        // SAFETY: `begin_capture` began to record the stream. The graph is not used once it is instantiated.
        let graph = unsafe {
            let recorded = result::stream::end_capture(self.stream.stream).map_err(failed("capture"))?;
            let made = result::graph::instantiate(recorded, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(recorded);
            made.map_err(failed("capture"))?
        };
        Ok(Handle::new(Graph { graph, stream: self.stream.clone(), _uploads: uploads }))
    }

    fn replay(&self, graph: &Handle) -> Result<()> {
        let Graph { graph, .. } = graph.get();
        // SAFETY: the graph lives until it is dropped, which waits for it; what it reads and writes is kept with it.
        self.stream.call("capture", |stream| unsafe { result::graph::launch(*graph, stream) })
    }

    fn upload_aside(&self, to: Address, bytes: &[u8]) -> Result<()> {
        // SAFETY: the target is an allocation with room for the bytes that nothing else uses; they are copied when the
        // call returns.
        self.aside.call("upload", |stream| unsafe {
            let enqueued = result::memcpy_htod_async(to, bytes, stream);
            enqueued.and(result::stream::synchronize(stream))
        })
    }
}
