//! The interface of a vendor's driver. All other host code is shared.

pub mod blas;
pub mod ccl;
pub mod dnn;
pub mod list;
pub mod null;
pub mod runtime;

use isograd_core::{DType, Error, Result, Space, inventory};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// An address in device memory. Arithmetic on it stays within one allocation.
pub type Address = u64;

/// A language in which kernels are compiled: a prelude, and the files that are written another way for it.
#[derive(Debug)]
pub struct Dialect {
    /// `cuda`, `hip` or `opencl`.
    pub name: &'static str,
    /// The folders of its own files in the repository.
    pub folders: &'static [&'static str],
    /// File name and text; `prelude.h` is one of them, and the others take the place of common files.
    pub files: &'static [(&'static str, &'static str)],
    /// The tiles of its `mma.c`, the largest first; none where it has none.
    pub mma: &'static [Tile],
}

/// How a group of threads makes `m x n` results, `k` products of each at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Rows of results.
    pub m: usize,
    /// Columns of results.
    pub n: usize,
    /// Products between two barriers.
    pub k: usize,
    /// Rows and columns of a thread's results.
    pub results: [usize; 2],
}

/// A dialect that is in the program. A backend crate that is linked registers its own with `inventory::submit!`.
pub struct Registered(pub &'static Dialect);

inventory::collect!(Registered);

/// The limits and properties of a device.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The hardware in words.
    pub name: String,
    /// Driver and compiler with their versions: programs are compiled again when this changes.
    pub driver: String,
    /// Bytes of memory, and of the largest allocation.
    pub memory: usize,
    /// Bytes of the largest single allocation.
    pub max_allocation: usize,
    /// Threads of the largest group.
    pub max_group: usize,
    /// Bytes of local memory that the kernel of a group may declare.
    pub local_memory: usize,
    /// Bytes of it that a launch may give to a group, in all.
    pub given_memory: usize,
    /// Threads that exchange values without memory; 1 where none do.
    pub wave: usize,
    /// Multiprocessors.
    pub units: usize,
    /// Whether there is double precision.
    pub has_f64: bool,
    /// Whether there are matrix units for which the dialect has `mma.c`.
    pub has_mma: bool,
    /// Whether waves turn operands of matrix units as they load them from local memory (`ldmatrix`).
    pub turns_operands: bool,
    /// Whether there are matrix units that read local memory, for which the dialect has `wgmma_words.c`.
    pub has_wgmma: bool,
    /// Whether an engine copies tiles to local memory, for which the dialect has `wgmma.c`.
    pub has_tile_maps: bool,
    /// Whether the device has fast atomic additions of floats (`red.global.add`, vectors of 16 bytes).
    pub has_adds: bool,
    /// Whether groups see each other's writes while their launch runs, through the dialect's coherent loads and stores.
    pub is_coherent: bool,
    /// Whether a group sees what other groups that run at the same time show (`show_u16`, `seen_u16`), sooner or later.
    pub has_shared_words: bool,
    /// Whether compilers keep arrays of some 32 numbers in registers, in kernels of the largest group.
    pub keeps_arrays: bool,
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub enum Arg<'a> {
    /// A place in device memory.
    Pointer(Address),
    /// A value, byte by byte.
    Value(&'a [u8]),
}

impl fmt::Debug for Arg<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arg::Pointer(_) => f.write_str("pointer"),
            Arg::Value(bytes) => bytes.iter().rev().try_for_each(|b| write!(f, "{b:02x}")),
        }
    }
}

/// How many groups of how many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Groups in x, y and z.
    pub groups: [usize; 3],
    /// Threads of a group, in x.
    pub threads: usize,
    /// Bytes of local memory for the array that the kernel declares as `SHARED_GIVEN`. A dialect that declares its size in the
    /// kernel ignores them.
    pub given: usize,
    /// Whether it may start while the launch before it ends: its kernel has `AWAIT_PREVIOUS`.
    pub follows: bool,
}

impl Geometry {
    /// Nothing is given.
    pub fn new(groups: [usize; 3], threads: usize) -> Geometry {
        Geometry { groups, threads, given: 0, follows: false }
    }

    /// The geometry of a kernel that has `AWAIT_PREVIOUS`.
    pub fn following(self) -> Geometry {
        Geometry { follows: true, ..self }
    }
}

/// Matrices `[batches, lines, columns]` in memory whose columns are neighbours, and the box of them that an engine copies to local
/// memory at once. Numbers are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileView {
    /// Where the first element is.
    pub address: Address,
    /// 16 bits.
    pub dtype: DType,
    /// Columns, lines and matrices.
    pub extents: [usize; 3],
    /// From a line to the next, and from a matrix to the next.
    pub strides: [usize; 2],
    /// Columns and lines of the box. Its lines of 128 bytes lie one after the other, their words of 16 bytes exchanged by the
    /// line's number modulo 8.
    pub tile: [usize; 2],
}

/// The descriptor by which a kernel has tiles copied.
pub type TileMap = [u64; 16];

/// A program, an entry, an event or a recording of a driver, which alone knows its type.
#[derive(Clone)]
pub struct Handle(Arc<dyn Any + Send + Sync>);

impl Handle {
    /// Hides the type.
    pub fn new(made: impl Any + Send + Sync) -> Handle {
        Handle(Arc::new(made))
    }

    /// The value in the handle. Panics if it has another type: drivers get back the handles that they returned.
    #[track_caller]
    pub fn get<T: Any>(&self) -> &T {
        let found = self.0.downcast_ref();
        found.unwrap_or_else(|| panic!("a driver's handle is no {}", std::any::type_name::<T>()))
    }
}

/// A vendor's driver for one device, with one queue in which everything runs in order.
///
/// Programs, entries, events and recordings are [`Handle`]s. Errors are of kind `Backend`, or `OutOfMemory` from `allocate`.
pub trait Driver: Send + Sync + 'static {
    /// The language that `compile` takes.
    fn dialect(&self) -> &'static Dialect;

    /// The device's limits and properties.
    fn limits(&self) -> &Limits;

    /// Allocates device memory, aligned to 16 bytes or more.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Gives memory back. Work that uses it may still be in the queue: it is waited for. Errors have nowhere to go.
    fn free(&self, address: Address);

    /// Copies from the host; the bytes may be changed after the call.
    fn upload(&self, to: Address, bytes: &[u8]) -> Result<()>;

    /// Copies to the host, after all earlier work.
    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()>;

    /// Copies several parts to the host, after all earlier work.
    fn download_each(&self, parts: &mut [(Address, &mut [u8])]) -> Result<()> {
        parts.iter_mut().try_for_each(|(from, bytes)| self.download(*from, bytes))
    }

    /// Copies within the device.
    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()>;

    /// Sets bytes.
    fn fill(&self, at: Address, byte: u8, bytes: usize) -> Result<()>;

    /// Compiles source to a loaded program. With it comes the binary that `load` takes, to be stored in a file, unless the driver
    /// has a cache of its own. The error is the compiler's log.
    fn compile(&self, source: &str) -> Result<(Handle, Option<Vec<u8>>)>;

    /// Loads a binary of `compile`. Errors if it is damaged or not for this device.
    fn load(&self, binary: &[u8]) -> Result<Handle>;

    /// The entry of this name of a program.
    fn entry(&self, program: &Handle, name: &str) -> Result<Handle>;

    /// Enqueues an entry. `reached` are allocations that the entry reaches through pointers in memory,
    /// some more than once.
    fn launch(&self, entry: &Handle, geometry: Geometry, arguments: &[Arg<'_>], reached: &[Address]) -> Result<()>;

    /// The descriptor of a factor for the kernels of `wgmma.c`.
    fn tile_map(&self, _view: &TileView) -> Result<TileMap> {
        Err(Error::unsupported("matmul", "the device copies no tiles"))
    }

    /// The device's memory as other libraries name it; `None` if they cannot read it.
    fn space(&self) -> Option<Space> {
        None
    }

    /// The stream of the queue, by the handle that the driver gave.
    fn stream(&self) -> Option<u64> {
        None
    }

    /// Makes later work of another library's stream wait for everything in the queue.
    fn lead(&self, _stream: u64) -> Result<()> {
        self.synchronize()
    }

    /// The vendor's library of matrix products, where it is installed.
    fn blas(&self) -> Option<&dyn blas::Library> {
        None
    }

    /// The vendor's library of neural networks, where it is installed.
    fn dnn(&self) -> Option<&dyn dnn::Library> {
        None
    }

    /// The vendor's library of collectives, where it is installed.
    fn ccl(&self) -> Option<&dyn ccl::Library> {
        None
    }

    /// An event that marks where the queue stands now.
    fn record(&self) -> Result<Handle>;

    /// Seconds between two events, after waiting for the second.
    fn elapsed(&self, from: &Handle, to: &Handle) -> Result<f64>;

    /// Waits for everything in the queue.
    fn synchronize(&self) -> Result<()>;

    /// Whether the device records enqueued work.
    fn records(&self) -> bool {
        false
    }

    /// Begins to record enqueued work instead of running it; false if the device cannot. Uploads are recorded too, with
    /// a copy of their bytes.
    fn begin_capture(&self) -> Result<bool> {
        Ok(false)
    }

    /// Ends the recording. Errors if something was enqueued that cannot be recorded.
    fn end_capture(&self) -> Result<Handle> {
        Err(Error::unsupported("capture", "the driver records nothing"))
    }

    /// Enqueues a recording.
    fn replay(&self, _graph: &Handle) -> Result<()> {
        Err(Error::unsupported("capture", "the driver records nothing"))
    }

    /// Copies from the host while a recording is made, but not as a part of it. Nothing in the queue uses the target.
    fn upload_aside(&self, to: Address, bytes: &[u8]) -> Result<()> {
        self.upload(to, bytes)
    }
}
