//! A device as launchers see it: its driver, memory and programs.

use crate::driver::{Driver, Geometry, dnn};
use crate::launch::arguments::Arguments;
use crate::launch::operands::{address, block};
use crate::memory::block::{Block, Later};
use crate::memory::last_group::Partials;
use crate::memory::pool::{Buffer, Pool};
use crate::memory::status::{Check, Slot, Status};
use crate::memory::tables::Tables;
use crate::program::cache;
use crate::program::cache::Programs;
use crate::program::source::Variant;
use half::{bf16, f16};
use isograd_core::{DType, Error, Memory, Operand, Precision, Result, Scalar};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A device behind a driver, as a backend.
pub struct Gpu {
    pub(crate) status: Arc<Status>,
    /// Locked by the thread that records, or puts calls off. All other threads enqueue one by one.
    pub(crate) turn: RwLock<()>,
    pub(crate) tables: Tables,
    pub(crate) partials: Partials,
    pub(crate) programs: Programs,
    precision: Mutex<Precision>,
    pub(crate) is_blas_off: AtomicBool,
    pub(crate) is_dnn_off: AtomicBool,
    /// The library's kernel for each problem that was seen; none where our own is faster.
    pub(crate) chosen_kernels: Mutex<HashMap<dnn::Problem, Option<usize>>>,
    /// Device memory for the library of products.
    pub(crate) workspace: Mutex<Option<Buffer>>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) is_checked: AtomicBool,
    pub(crate) is_deterministic: AtomicBool,
    pub(crate) fuses: AtomicBool,
    /// Programs after the passes of `step`, which knows their type, by the text of the calls before.
    pub(crate) planned: Mutex<HashMap<String, Arc<dyn Any + Send + Sync>>>,
    /// Results of recordings that tensors may have.
    pub(crate) lent: Mutex<Vec<Weak<Later>>>,
    pub(crate) log: Mutex<Option<Vec<Launch>>>,
    pub(crate) launched: AtomicU64,
}

/// A launch as the log shows it. A call of the vendor's library is one without geometry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// File and definitions, or the problem of a vendor's product.
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
    /// A device over a driver, with the user's cache of compiled programs.
    pub fn new(driver: Arc<dyn Driver>) -> Gpu {
        Gpu::with_cache(driver, cache::default_folder())
    }

    /// A device over another driver, without a folder, that chooses its kernels as this one does.
    pub(crate) fn like(&self, driver: Arc<dyn Driver>) -> Gpu {
        let copy = |flag: &AtomicBool| AtomicBool::new(flag.load(Ordering::Relaxed));
        Gpu {
            precision: Mutex::new(self.precision()),
            is_blas_off: copy(&self.is_blas_off),
            is_dnn_off: copy(&self.is_dnn_off),
            chosen_kernels: Mutex::new(self.chosen_kernels.lock().clone()),
            is_checked: AtomicBool::new(false),
            is_deterministic: copy(&self.is_deterministic),
            ..Gpu::with_cache(driver, None)
        }
    }

    /// A device with a folder for compiled programs, or without.
    pub fn with_cache(driver: Arc<dyn Driver>, folder: Option<PathBuf>) -> Gpu {
        let pool = Pool::new(driver);
        Gpu {
            status: Arc::new(Status::new(&pool)),
            turn: RwLock::new(()),
            tables: Tables::default(),
            partials: Partials::default(),
            programs: Programs::new(folder),
            planned: Mutex::default(),
            precision: Mutex::default(),
            is_blas_off: AtomicBool::new(std::env::var("ISOGRAD_BLAS").is_ok_and(|value| value == "own")),
            is_dnn_off: AtomicBool::new(std::env::var("ISOGRAD_DNN").is_ok_and(|value| value == "own")),
            chosen_kernels: Mutex::default(),
            workspace: Mutex::default(),
            pool,
            is_checked: AtomicBool::new(match std::env::var("ISOGRAD_CHECKED").as_deref() {
                Ok("1") => true,
                Ok("0") => false,
                _ => cfg!(debug_assertions),
            }),
            is_deterministic: AtomicBool::new(true),
            lent: Mutex::default(),
            fuses: AtomicBool::new(std::env::var("ISOGRAD_FUSE").as_deref() != Ok("0")),
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

    /// The precision in which products of f32 are computed.
    pub(crate) fn precision(&self) -> Precision {
        *self.precision.lock()
    }

    /// Whether the vendor's library of neural networks may compute what it has kernels for, as `ISOGRAD_DNN` says at the start.
    pub fn set_dnn(&self, is_on: bool) {
        self.is_dnn_off.store(!is_on, Ordering::Relaxed);
    }

    /// Sets whether later captured steps fuse calls, as `ISOGRAD_FUSE` says at the start.
    pub fn set_fuse(&self, is_on: bool) {
        self.fuses.store(is_on, Ordering::Relaxed);
    }

    pub(crate) fn set_precision(&self, precision: Precision) {
        *self.precision.lock() = precision;
    }

    /// Launches an entry of a file.
    pub(crate) fn launch(
        &self,
        variant: Variant,
        entry: &'static str,
        geometry: Geometry,
        arguments: &Arguments,
    ) -> Result<()> {
        self.enqueue(variant, entry, None, geometry, arguments)
    }

    /// Launches an entry of generated text.
    pub(crate) fn generated(
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
        let (names, reached) = (&arguments.integers.names, &arguments.reached);
        let arguments = arguments.list();
        if let Some(log) = &mut *self.log.lock() {
            let arguments = arguments.iter().map(|a| format!("{a:?}")).collect();
            log.push(Launch { program: variant.to_string(), entry, geometry, arguments });
        }
        self.launched.fetch_add(1, Ordering::Relaxed);
        let entry = self.programs.entry(self.driver(), (variant, names), entry, text)?;
        self.driver().launch(&entry, geometry, &arguments, reached)
    }

    /// A slot in which a launch reports bad elements.
    pub(crate) fn status(&self, op: &'static str, check: Check) -> Result<Slot> {
        self.status.slot(op, check)
    }

    /// Ends a call that may report bad elements. In checked mode `explain` makes the error of the first one's position.
    pub(crate) fn checked(&self, slot: Slot, explain: impl FnOnce(usize) -> Result<Error>) -> Result<()> {
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
    pub(crate) fn element(&self, operand: &Operand<'_>, rank: usize, position: usize) -> Result<Scalar> {
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

    /// The block behind memory of this device.
    pub(crate) fn own<'a>(&self, memory: &'a dyn Memory) -> Result<&'a Block> {
        let block = block(memory)?;
        match block.is_of(&self.pool) {
            true => Ok(block),
            false => Err(Error::backend("memory", "the memory belongs to another device")),
        }
    }

    /// Memory for the duration of some launches.
    pub(crate) fn scratch(&self, bytes: usize) -> Result<Buffer> {
        self.pool.take_hidden(bytes)
    }
}

/// The work of a thread on a device while all other threads wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It records a step.
    Records,
    /// It puts calls off, to launch them soon.
    PutsOff,
}

thread_local! {
    /// The work of this thread, and the backend by its place in memory.
    static TURN: Cell<Option<(Turn, usize)>> = const { Cell::new(None) };
}

impl Gpu {
    /// The work of this thread on the device while other threads wait, if there is any.
    pub(crate) fn turn_of_thread(&self) -> Option<Turn> {
        TURN.get().filter(|(_, of)| *of == std::ptr::from_ref(self) as usize).map(|(turn, _)| turn)
    }

    /// True if this thread records.
    pub(crate) fn records(&self) -> bool {
        self.turn_of_thread() == Some(Turn::Records)
    }

    /// Waits while it is another thread's turn.
    pub(crate) fn enter(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.turn_of_thread().is_none().then(|| self.turn.read_recursive())
    }

    /// True if it is this thread's turn at any device.
    pub(crate) fn has_any_turn() -> bool {
        TURN.get().is_some()
    }

    /// Runs `f` as the thread whose turn it is.
    pub(crate) fn in_turn<R>(&self, turn: Turn, f: impl FnOnce() -> R) -> R {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                TURN.set(None);
            }
        }
        TURN.set(Some((turn, std::ptr::from_ref(self) as usize)));
        let _leave = Leave;
        f()
    }
}
