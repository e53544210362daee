//! The driver over cudarc.

// CUDA is C: handles, host pointers, and arguments without types.
#![allow(unsafe_code)]

use crate::blaslt::{CublasLt, Products};
use crate::cudnn::Networks;
use crate::nccl;
use crate::staging::Staging;
use crate::stream::{Stream, failed, turn};
use crate::{DIALECT, Nvrtc};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute, CUresult};
use isograd_core::{DType, Error, Kind, Result, Space};
use isograd_gpu::driver::runtime::{self, Program, Queue, Second};
use isograd_gpu::driver::{blas, ccl, dnn};
use isograd_gpu::vendor::ccl::Collectives;
use isograd_gpu::{Address, Arg, Dialect, Driver, Geometry, Handle, Limits, TileMap, TileView};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};
use std::thread;

/// The compute capability of Hopper.
const HOPPER: (i32, i32) = (9, 0);

/// A CUDA device with one stream, in the device's primary context.
pub struct Cuda {
    queue: Queue<Stream>,
    ordinal: usize,
    /// For copies beside a recording.
    aside: Stream,
    /// For other copies from the host.
    staging: Staging,
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

impl Cuda {
    /// Opens a device. Errors: `Device`, `Backend`.
    pub fn new(ordinal: usize) -> Result<Cuda> {
        let (device, (major, minor)) = device(ordinal)?;
        // Reading the libraries takes as long as making a context does, and what is opened once stays open.
        let stream = thread::scope(|scope| {
            // Without a thread, they are opened where they are needed.
            let _ = thread::Builder::new().spawn_scoped(scope, || (CublasLt::open().is_ok(), Nvrtc::open().is_ok()));
            Stream::new(device)
        });
        let queue = Queue::new(stream?);
        Ok(Cuda {
            products: Products::new(queue.stream()),
            networks: OnceLock::new(),
            collectives: OnceLock::new(),
            limits: limits(ordinal)?,
            nvrtc: Nvrtc::open()?,
            // With what this one has alone, where it has such.
            architecture: format!("sm_{major}{minor}{}", if (major, minor) == HOPPER { "a" } else { "" }),
            may_overlap: major >= 9,
            queue,
            ordinal,
            aside: Stream::new(device)?,
            staging: Staging::new(Stream::new(device)?),
        })
    }

    fn stream(&self) -> &Arc<Stream> {
        self.queue.stream()
    }
}

/// A function of a module.
pub struct Entry(sys::CUfunction);

// SAFETY: as for `Stream`.
unsafe impl Send for Entry {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Entry {}

impl Driver for Cuda {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        let _turn = turn();
        self.stream().enter("allocate")?;
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
        let _ = self.stream().wait("free");
        // SAFETY: `allocate` gave the address, and nothing in the stream uses it any more.
        let _ = unsafe { result::free_sync(address) };
    }

    fn upload(&self, to: Address, bytes: &[u8]) -> Result<()> {
        // SAFETY: the target is an allocation with room for the bytes, which the pool sees to; who calls this keeps the bytes until they are
        // copied.
        let enqueue = |bytes: &[u8]| {
            self.stream().call("upload", |stream| unsafe { result::memcpy_htod_async(to, bytes, stream) })
        };
        if self.queue.upload_recorded(bytes, enqueue)? {
            return Ok(());
        }
        // SAFETY: the target is as above, and the streams are of one context.
        if unsafe { self.staging.upload(self.stream(), to, bytes) }? {
            return Ok(());
        }
        // The bytes are in memory that CUDA has not locked: it has copied them when the call returns.
        enqueue(bytes)
    }

    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the source is within an allocation, which the pool sees to; the bytes are there after the wait, until
        // which they are borrowed.
        self.stream().call("download", |stream| unsafe {
            let enqueued = result::memcpy_dtoh_async(bytes, from, stream);
            enqueued.and(result::stream::synchronize(stream))
        })
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        // SAFETY: both are within allocations, which the pool sees to.
        self.stream().call("copy", |stream| unsafe { result::memcpy_dtod_async(to, from, bytes, stream) })
    }

    fn fill(&self, at: Address, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the target is within an allocation, which the pool sees to.
        self.stream().call("fill", |stream| unsafe { result::memset_d8_async(at, byte, bytes, stream) })
    }

    fn compile(&self, source: &str) -> Result<(Handle, Option<Vec<u8>>)> {
        let cubin = self.nvrtc.compile(source, &self.architecture)?.code;
        Ok((self.load(&cubin)?, Some(cubin)))
    }

    fn load(&self, binary: &[u8]) -> Result<Handle> {
        let _turn = turn();
        self.stream().enter("load")?;
        // SAFETY: a cubin says in its header how long it is; the cache has checked that it is what `compile` gave.
        let module = unsafe { result::module::load_data(binary.as_ptr().cast()) }.map_err(failed("load"))?;
        // SAFETY: it was loaded above, in the stream's context.
        Ok(Handle::new(unsafe { Program::new(module.cast(), self.stream()) }))
    }

    fn entry(&self, program: &Handle, name: &str) -> Result<Handle> {
        let (name, program) = (runtime::entry_name(name)?, program.get::<Program<Stream>>());
        let _turn = turn();
        // SAFETY: the module is loaded until `program` is dropped.
        let function =
            self.stream().call("load", |_| unsafe { result::module::get_function(program.module().cast(), name) })?;
        Ok(Handle::new(Entry(function)))
    }

    fn launch(&self, entry: &Handle, geometry: Geometry, arguments: &[Arg<'_>], _reached: &[Address]) -> Result<()> {
        let mut starts = runtime::starts(arguments);
        let Geometry { groups, threads, given, follows } = geometry;
        let [x, y, z] = groups.map(|n| n as u32);
        let &Entry(function) = entry.get();
        // SAFETY: the host code writes the list that the kernel's source declares, which the call copies; addresses are
        // within allocations, and the grid is what the kernel was written for. The caller holds the entry's program.
        self.stream().call("launch", |stream| unsafe {
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
                    &mut starts,
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
            sys::cuLaunchKernelEx(&config, function, starts.as_mut_ptr(), null_mut()).result()
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
        self.networks.get_or_init(|| Networks::new(self.stream())).as_ref().map(|library| library as _)
    }

    /// Opened when tensors are exchanged.
    fn ccl(&self) -> Option<&dyn ccl::Library> {
        let open = || {
            let library = nccl::open().inspect_err(|error| tracing::debug!(%error, "collectives use the host")).ok()?;
            let main = self.stream().clone();
            Some(Collectives::new(library, move || Ok(Box::new(Second::new(&main)?))))
        };
        self.collectives.get_or_init(open).as_ref().map(|library| library as _)
    }

    fn space(&self) -> Option<Space> {
        Some(Space::Cuda(self.ordinal as u32))
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
        self.stream().wait("synchronize")
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
        // SAFETY: the target is an allocation with room for the bytes that nothing else uses; they are copied when the
        // call returns.
        self.aside.call("upload", |stream| unsafe {
            let enqueued = result::memcpy_htod_async(to, bytes, stream);
            enqueued.and(result::stream::synchronize(stream))
        })
    }
}
