//! What the GPU backends of isograd share.
//!
//! A backend is a [`Driver`]: it allocates, copies, compiles and launches. [`Gpu`] makes a [`Backend`] of it: it chooses a
//! kernel for each call, assembles its source, has it compiled once, and owns the memory.

mod batch_norm;
pub mod catalogue;
mod cross_entropy;
mod custom;
mod distance;
pub mod driver;
mod each;
mod elementwise;
mod front;
mod fused;
mod group_norm;
mod index;
mod launch;
mod layout;
pub mod library;
pub mod matmul;
mod memory;
mod order;
mod prod;
mod program;
mod random;
mod reduce;
mod rotary;
mod sample;
mod scan;
mod sets;
mod softmax;
mod sort;
mod total;
mod vendor;
mod wgmma;
mod window;

pub use driver::{Address, Arg, Dialect, Driver, Geometry, Handle, Limits, Registered, Tile, TileMap, TileView};
pub use program::source::{self, Variant};

use half::{bf16, f16};
use isograd_core::backend::Fused;
use isograd_core::{
    Backend, Blas, Call, DType, Error, Kernel, Memory, MemoryStats, Operand, Precision, Result, Scalar,
};
use launch::{Arguments, element_address};
use memory::last_group::Partials;
use memory::pool::{self, Buffer, Pool};
use memory::status::{self, Check, Slot, Status};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use program::cache::{self, Programs};
use sets::Tables;
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vendor::Vendor;

/// A device behind a driver, as a backend.
pub struct Gpu {
    status: Arc<Status>,
    /// Held by the thread that records; all others enqueue one by one.
    turn: RwLock<()>,
    tables: Tables,
    partials: Partials,
    programs: Programs,
    vendor: Vendor,
    pool: Arc<Pool>,
    is_checked: AtomicBool,
    is_deterministic: AtomicBool,
    log: Mutex<Option<Vec<Launch>>>,
    launched: AtomicU64,
}

/// A launch as the log shows it. A call of the vendor's library is one without geometry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// File and definitions, or the form of a vendor's product.
    pub program: String,
    /// The entry, or `vendor`.
    pub entry: &'static str,
    /// Groups and threads.
    pub geometry: Geometry,
    /// The arguments: `pointer`, or the bytes of a value, highest first.
    pub arguments: Vec<String>,
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Launch { program, entry, geometry: Geometry { groups: [x, y, z], threads, .. }, arguments } = self;
        write!(f, "{program} {entry} {x}x{y}x{z}x{threads} ({})", arguments.join(", "))
    }
}

impl Gpu {
    /// Over a driver, with the user's cache of compiled programs.
    pub fn new(driver: Arc<dyn Driver>) -> Gpu {
        Gpu::with_cache(driver, cache::default_folder())
    }

    /// With a folder for compiled programs, or none.
    pub fn with_cache(driver: Arc<dyn Driver>, folder: Option<PathBuf>) -> Gpu {
        let pool = Pool::new(driver);
        Gpu {
            status: Arc::new(Status::new(&pool)),
            turn: RwLock::new(()),
            tables: Tables::default(),
            partials: Partials::default(),
            programs: Programs::new(folder),
            vendor: Vendor::new(),
            pool,
            is_checked: AtomicBool::new(match std::env::var("ISOGRAD_CHECKED").as_deref() {
                Ok("1") => true,
                Ok("0") => false,
                _ => cfg!(debug_assertions),
            }),
            is_deterministic: AtomicBool::new(true),
            log: Mutex::new(None),
            launched: AtomicU64::new(0),
        }
    }

    /// The driver.
    pub fn driver(&self) -> &dyn Driver {
        &*self.pool.driver
    }

    /// Starts to record launches, and returns those recorded since the last call.
    pub fn launches(&self) -> Vec<Launch> {
        self.log.lock().replace(Vec::new()).unwrap_or_default()
    }

    /// Gives memory that is kept for reuse back to the device.
    pub fn trim(&self) {
        self.tables.clear();
        self.pool.trim();
    }

    /// Launches an entry of a file.
    fn launch(&self, variant: Variant, entry: &'static str, geometry: Geometry, arguments: &Arguments) -> Result<()> {
        self.enqueue(variant, entry, None, geometry, arguments)
    }

    /// Launches an entry of generated text.
    fn generated(
        &self,
        variant: Variant,
        entry: &'static str,
        text: &dyn Fn() -> String,
        geometry: Geometry,
        arguments: &Arguments,
    ) -> Result<()> {
        self.enqueue(variant, entry, Some(text), geometry, arguments)
    }

    fn enqueue(
        &self,
        variant: Variant,
        entry: &'static str,
        text: Option<&dyn Fn() -> String>,
        geometry: Geometry,
        arguments: &Arguments,
    ) -> Result<()> {
        let reached = &arguments.reached;
        let arguments = arguments.list();
        if let Some(log) = &mut *self.log.lock() {
            let arguments = arguments.iter().map(|a| format!("{a:?}")).collect();
            log.push(Launch { program: variant.to_string(), entry, geometry, arguments });
        }
        self.launched.fetch_add(1, Ordering::Relaxed);
        let entry = self.programs.entry(self.driver(), variant, entry, text)?;
        self.driver().launch(&entry, geometry, &arguments, reached)
    }

    /// Where a launch reports bad elements.
    fn status(&self, op: &'static str, check: Check) -> Result<Slot> {
        self.status.slot(op, check)
    }

    /// Ends a call that may report bad elements. In checked mode `explain` makes the error of the first one's position.
    fn checked(&self, slot: Slot, explain: impl FnOnce(usize) -> Result<Error>) -> Result<()> {
        if self.is_checked.load(Ordering::Relaxed) && !self.records() {
            return match self.status.finish(slot)? {
                None => Ok(()),
                Some(position) => Err(explain(position)?),
            };
        }
        self.status.defer(slot);
        Ok(())
    }

    /// The element of an operand at a position in the row-major order of its first `rank` dimensions.
    fn element(&self, operand: &Operand<'_>, rank: usize, position: usize) -> Result<Scalar> {
        let (layout, mut rest) = (operand.layout, position);
        let mut at = layout.offset();
        for (extent, stride) in layout.shape().dims()[..rank].iter().zip(layout.strides()).rev() {
            at += rest % extent * stride;
            rest /= extent;
        }
        let mut bytes = [0; 8];
        let (bytes, size) = (&mut bytes, operand.dtype.size());
        self.driver().download(address(operand.memory)? + (at * size) as u64, &mut bytes[..size])?;
        let bits = u64::from_le_bytes(*bytes);
        Ok(match operand.dtype {
            DType::F64 => Scalar::Float(f64::from_bits(bits)),
            DType::F32 => Scalar::Float(f32::from_bits(bits as u32) as f64),
            DType::F16 => Scalar::Float(f16::from_bits(bits as u16).to_f64()),
            DType::BF16 => Scalar::Float(bf16::from_bits(bits as u16).to_f64()),
            DType::I32 => Scalar::Int(bits as i32 as i64),
            DType::I64 | DType::U8 | DType::Bool => Scalar::Int(bits as i64),
        })
    }

    /// The buffer behind memory of this device.
    fn own<'a>(&self, memory: &'a dyn Memory) -> Result<&'a Buffer> {
        let buffer = buffer(memory)?;
        match buffer.is_of(&self.pool) {
            true => Ok(buffer),
            false => Err(Error::backend("memory", "the memory belongs to another device")),
        }
    }

    /// Memory for the duration of some launches.
    fn scratch(&self, bytes: usize) -> Result<Buffer> {
        self.pool.take_hidden(bytes)
    }
}

/// The buffer behind memory of a GPU.
fn buffer(memory: &dyn Memory) -> Result<&Buffer> {
    let found = memory.as_any().downcast_ref();
    found.ok_or_else(|| Error::backend("memory", "the memory belongs to another backend"))
}

fn address(memory: &dyn Memory) -> Result<Address> {
    Ok(buffer(memory)?.address)
}

/// Where an operand's elements begin.
fn place(operand: &Operand<'_>) -> Result<Address> {
    Ok(element_address(address(operand.memory)?, operand))
}

thread_local! {
    /// The backend for which this thread records, by its place in memory.
    static RECORDS: Cell<usize> = const { Cell::new(0) };
}

impl Gpu {
    /// True if this thread records.
    fn records(&self) -> bool {
        RECORDS.get() == std::ptr::from_ref(self) as usize
    }

    /// Waits while another thread records.
    fn enter(&self) -> Option<RwLockReadGuard<'_, ()>> {
        (!self.records()).then(|| self.turn.read_recursive())
    }

    /// Runs `f` as the thread that records.
    fn recording<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                RECORDS.set(0);
            }
        }
        RECORDS.set(std::ptr::from_ref(self) as usize);
        let _leave = Leave;
        f()
    }
}

/// What was recorded, and what it keeps.
struct Recording {
    // In this order: the graph goes before the memory that it uses.
    graph: Handle,
    _slots: status::Kept,
    memory: pool::Hold,
}

impl Backend for Gpu {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        let _turn = self.enter();
        Ok(Box::new(self.pool.take(bytes)?))
    }

    fn upload(&self, memory: &dyn Memory, bytes: &[u8]) -> Result<()> {
        let _turn = self.enter();
        let buffer = self.own(memory)?;
        if bytes.len() > buffer.bytes {
            return Err(Error::backend("upload", format!("{} bytes do not fit", bytes.len())));
        }
        if self.records() {
            self.pool.touch(buffer.address);
        }
        if bytes.is_empty() { Ok(()) } else { self.driver().upload(buffer.address, bytes) }
    }

    fn download(&self, memory: &dyn Memory, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let _turn = self.enter();
        let buffer = self.own(memory)?;
        if offset.saturating_add(bytes.len()) > buffer.bytes {
            return Err(Error::backend("download", format!("{} bytes are not there", bytes.len())));
        }
        if bytes.is_empty() {
            return self.status.check();
        }
        self.status.check_and_download(buffer.address + offset as u64, bytes)
    }

    fn run(&self, call: &Call<'_>) -> Result<()> {
        let _turn = self.enter();
        let records = self.records();
        for operand in call.inputs.iter().chain(call.outputs) {
            let buffer = self.own(operand.memory)?;
            if records {
                self.pool.touch(buffer.address);
            }
        }
        // A copy and a gather move bits, whatever they mean.
        let moves_bits = matches!(call.kernel, Kernel::Copy | Kernel::Gather);
        let is_f64 = |operand: &Operand<'_>| operand.dtype == DType::F64;
        if !moves_bits && !self.driver().limits().has_f64 && call.inputs.iter().chain(call.outputs).any(is_f64) {
            return Err(Error::unsupported(call.op, "the device has no f64"));
        }
        match call.kernel {
            Kernel::Fill | Kernel::Copy | Kernel::Cast | Kernel::Pointwise(_) => elementwise::run(self, call),
            Kernel::Reduce(_) | Kernel::ArgMax | Kernel::ArgMin => reduce::run(self, call),
            Kernel::Fused(kernel) => fused::run(self, call, kernel),
            Kernel::Scan(kind) => scan::run(self, call, kind),
            Kernel::Matmul => matmul::run(self, call),
            Kernel::Gather => index::gather(self, call),
            Kernel::Scatter(mode) => index::scatter(self, call, mode),
            Kernel::Random(kind) => random::run(self, call, kind),
            Kernel::Sort => sort::run(self, call),
            Kernel::Custom(op) => custom::run(self, call, op),
        }
    }

    fn supports(&self, kernel: Fused, dtype: DType) -> bool {
        fused::supports(self, kernel, dtype)
    }

    fn set_matmul_precision(&self, precision: Precision) {
        self.vendor.set_precision(precision);
    }

    fn set_blas(&self, blas: Blas) {
        self.vendor.set_blas(blas);
    }

    fn set_checked(&self, is: bool) {
        self.is_checked.store(is, Ordering::Relaxed);
    }

    fn set_deterministic(&self, is: bool) {
        self.is_deterministic.store(is, Ordering::Relaxed);
    }

    fn synchronize(&self) -> Result<()> {
        let _turn = self.enter();
        self.status.check()?;
        self.driver().synchronize()
    }

    fn time(&self, f: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        let from = self.driver().record()?;
        f()?;
        let to = self.driver().record()?;
        self.driver().elapsed(&from, &to)
    }

    fn capture(&self, f: &mut dyn FnMut() -> Result<()>) -> Result<Option<Box<dyn Any + Send + Sync>>> {
        if RECORDS.get() != 0 {
            return Err(Error::value("capture", "a step is captured inside of another"));
        }
        let _turn = self.turn.write();
        // Work that still runs may use memory that is written aside.
        self.status.check()?;
        self.driver().synchronize()?;
        self.status.prepare()?;
        // What a recording makes is filled by its replays alone.
        if self.driver().limits().is_coherent {
            self.partials.places(&self.pool)?;
        }
        if !self.driver().begin_capture()? {
            return Ok(None);
        }
        self.pool.begin_scope();
        // Whatever happens in the closure, the queue must run again.
        let done = self.recording(|| catch_unwind(AssertUnwindSafe(f)));
        let graph = self.driver().end_capture();
        let (slots, memory) = (self.status.keep(), self.pool.end_scope());
        done.unwrap_or_else(|panic| resume_unwind(panic))?;
        Ok(Some(Box::new(Recording { graph: graph?, _slots: slots, memory })))
    }

    fn replay(&self, recording: &(dyn Any + Send + Sync)) -> Result<()> {
        let _turn = self.enter();
        let recording = recording.downcast_ref::<Recording>().filter(|recording| recording.memory.is_of(&self.pool));
        let recording = recording.ok_or_else(|| Error::backend("capture", "the step is of another device"))?;
        self.driver().replay(&recording.graph)
    }

    fn launch_count(&self) -> Option<u64> {
        Some(self.launched.load(Ordering::Relaxed))
    }

    fn memory(&self) -> MemoryStats {
        self.pool.stats()
    }

    fn reset_peak(&self) {
        self.pool.reset_peak();
    }
}
