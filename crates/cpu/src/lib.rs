//! The reference backend of isograd: the primitives in plain Rust, on every machine.
//!
//! Linking this crate registers the device `"cpu"`. Results do not depend on the number of threads.

mod access;
mod conv;
mod custom;
mod elementwise;
mod image;
mod indexing;
mod loss;
mod matrix;
mod memory;
mod normalization;
mod quantized;
mod random;
mod recurrent;
mod reduction;
mod slices;
mod vectors;

use isograd_core::fused::AnyFused;
use isograd_core::ops::conv::{ConvForward, ConvInput, ConvWeight};
use isograd_core::ops::elementwise::each::Each;
use isograd_core::ops::elementwise::fused_pointwise::Blocks;
use isograd_core::ops::image::pool::{AvgPoolBackward, AvgPoolForward, MaxPoolBackward, MaxPoolForward};
use isograd_core::ops::loss::cross_entropy::{CrossEntropyBackward, CrossEntropyForward};
use isograd_core::ops::matrix::quantized::{Dequantize, QuantizedLinear};
use isograd_core::ops::normalization::channel_norm::{BatchNorm, BatchNormBackward};
use isograd_core::ops::normalization::norm::{RowNorm, RowNormBackward};
use isograd_core::ops::normalization::softmax::{Softmax, SoftmaxBackward};
use isograd_core::ops::recurrent::kernel::{RecurrentBackward, RecurrentForward};
use isograd_core::ops::reduction::reduce::{Moments, ProdBackward, Variance};
use isograd_core::pointwise::Pointwise;
use isograd_core::{
    Backend, Call, DType, DeviceInfo, Error, Foreign, Kernel, Layout, Memory, MemoryStats, Operand, Provider, Result,
    Space, inventory,
};
use memory::{CpuMemory, Pool};
use rayon::ThreadBuilder;
use std::any::TypeId;
use std::error::Error as _;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

inventory::submit! {
    Provider { name: "cpu", priority: 0, list, open }
}

fn list() -> Result<Vec<DeviceInfo>> {
    start_threads()?;
    let description = format!("{}, {} threads", model(), rayon::current_num_threads());
    let driver = format!("isograd {}", env!("CARGO_PKG_VERSION"));
    Ok(vec![DeviceInfo { name: "cpu".into(), description, driver, memory: None, is_accelerator: false }])
}

/// The processor's name, where the system tells it.
fn model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or(std::env::consts::ARCH.to_string(), |(_, name)| name.trim().to_string())
}

/// The most threads that a variable may ask for on a processor of few cores, and for each core of another.
const MOST_THREADS: (usize, usize) = (64, 4);

/// Starts the threads of all calls, which rayon does at its first call otherwise, with a panic if it cannot. Their number is that of
/// `RAYON_NUM_THREADS`, within bounds, or of the cores, and smaller where the system has no room for as many. Errors: `Device` if there is
/// none.
fn start_threads() -> Result<()> {
    static STARTED: OnceLock<std::result::Result<(), String>> = OnceLock::new();
    let start = || {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = std::env::var("RAYON_NUM_THREADS").ok().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
        let mut count = wanted.unwrap_or(cores).min(MOST_THREADS.0.max(MOST_THREADS.1 * cores));
        let mut waiting = Vec::with_capacity(count);
        while waiting.len() < count {
            match waiting_thread() {
                Ok(thread) => waiting.push(thread),
                Err(e) if waiting.is_empty() => return Err(e.to_string()),
                Err(_) => {
                    // Others of the program's threads find room too.
                    count = waiting.len().div_ceil(2);
                    waiting.truncate(count);
                }
            }
        }
        let give = |worker| match waiting.pop() {
            Some(thread) => thread.send(worker).map_err(|_| std::io::Error::other("a thread has ended")),
            None => Err(std::io::Error::other("more threads were asked for than there are")),
        };
        match rayon::ThreadPoolBuilder::new().num_threads(count).spawn_handler(give).build_global() {
            Err(e) if e.source().is_some() => Err(e.to_string()),
            // Another error is that of a program that has started its threads itself.
            _ => Ok(()),
        }
    };
    let started = STARTED.get_or_init(start).as_ref();
    started.map_err(|why| Error::device("cpu", format!("no thread can be started: {why}"))).copied()
}

/// A thread that waits for what it shall run. Rayon starts its threads once: where it cannot start one of them, every later call panics.
fn waiting_thread() -> std::io::Result<Sender<ThreadBuilder>> {
    let (sender, receiver) = channel::<ThreadBuilder>();
    let run = move || {
        if let Ok(worker) = receiver.recv() {
            worker.run();
        }
    };
    std::thread::Builder::new().name("isograd-cpu".into()).spawn(run)?;
    Ok(sender)
}

fn open(_ordinal: usize) -> Result<Arc<dyn Backend>> {
    start_threads()?;
    Ok(Arc::new(Cpu::default()))
}

/// The CPU as a backend. Calls run at once, so every error comes from the call that made it.
#[derive(Default)]
pub struct Cpu {
    pool: Arc<Pool>,
}

impl Cpu {
    /// A pointwise row whose outputs have gaps: it runs on contiguous copies of them.
    fn strided(&self, call: &Call<'_>, row: Pointwise) -> Result<()> {
        let layouts: Vec<Layout> = call.outputs.iter().map(|y| Layout::contiguous(y.layout.shape().clone())).collect();
        let size = |y: &Operand<'_>| y.layout.shape().numel() * y.dtype.size();
        let memory = call.outputs.iter().map(|y| self.allocate(size(y))).collect::<Result<Vec<_>>>()?;
        let parts = call.outputs.iter().zip(&layouts).zip(&memory);
        let copies: Vec<Operand<'_>> =
            parts.map(|((y, layout), memory)| Operand { memory: &**memory, layout, dtype: y.dtype }).collect();
        let copy = |from: &Operand<'_>, to: &Operand<'_>| {
            let (inputs, outputs) = (&[*from][..], &[*to][..]);
            elementwise::copy::copy(&Call { kernel: Kernel::Copy, inputs, outputs, ints: &[], floats: &[], ..*call })
        };
        if row.is_inout() {
            call.outputs.iter().zip(&copies).try_for_each(|(y, own)| copy(y, own))?;
        }
        elementwise::pointwise::run(&Call { outputs: &copies, ..*call }, row)?;
        copies.iter().zip(call.outputs).try_for_each(|(own, y)| copy(own, y))
    }
}

impl Backend for Cpu {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(CpuMemory::new(&self.pool, bytes)?))
    }

    fn upload(&self, memory: &dyn Memory, bytes: &[u8]) -> Result<()> {
        let memory = memory::of(memory)?;
        match memory.write().get_mut(..bytes.len()) {
            Some(target) => target.copy_from_slice(bytes),
            None => return Err(Error::backend("upload", format!("{} bytes do not fit", bytes.len()))),
        }
        Ok(())
    }

    fn download(&self, memory: &dyn Memory, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let memory = memory::of(memory)?;
        match memory.read().get(offset..offset.saturating_add(bytes.len())) {
            Some(source) => bytes.copy_from_slice(source),
            None => return Err(Error::backend("download", format!("{} bytes are not there", bytes.len()))),
        }
        Ok(())
    }

    fn space(&self) -> Option<Space> {
        Some(Space::Host)
    }

    fn adopt(&self, foreign: Foreign) -> Result<Box<dyn Memory>> {
        Ok(Box::new(CpuMemory::adopt(&self.pool, foreign)))
    }

    fn address(&self, memory: &dyn Memory) -> Result<u64> {
        Ok(memory::of(memory)?.address())
    }

    fn run(&self, call: &Call<'_>) -> Result<()> {
        match call.kernel {
            Kernel::Fill => elementwise::copy::fill(call),
            Kernel::Copy => elementwise::copy::copy(call),
            Kernel::Cast => elementwise::copy::cast(call),
            Kernel::Pointwise(row) if call.outputs.iter().any(|y| !y.layout.is_contiguous()) => self.strided(call, row),
            Kernel::Pointwise(row) => elementwise::pointwise::run(call, row),
            Kernel::Reduce(kind) => reduction::reduce::run(call, kind),
            Kernel::ArgMax => reduction::reduce::arg(call, reduction::reduce::Extremum::Max),
            Kernel::ArgMin => reduction::reduce::arg(call, reduction::reduce::Extremum::Min),
            Kernel::Matmul => matrix::run(call),
            Kernel::Gather => indexing::index::gather(call),
            Kernel::Scatter(mode) => indexing::index::scatter(call, mode),
            Kernel::Random(kind) => random::run(call, kind),
            Kernel::Sort => indexing::sort::run(call),
            Kernel::Scan(kind) => reduction::scan::run(call, kind),
            Kernel::Custom(op) => custom::run(call, op),
            Kernel::Fused(fused) => fused_op(call, fused.fused()),
        }
    }

    /// Statistics and gradients of products have kernels, because they need a larger range than the dtype's; pools and convolutions, because a composite
    /// would write the elements of all windows to memory; results side by side, because a composite would copy each of them; and recurrent
    /// ops, because a composite would put the weight into the order of vectors in each step. Those that do not run in f64 are faster than their composites,
    /// with which other devices are compared in f64.
    fn supports(&self, fused: TypeId, dtype: DType) -> bool {
        let is = |of: &Support| (of.id)() == fused && (dtype != DType::F64 || of.is_for_f64);
        dtype.is_float() && KERNELS.iter().any(is)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn memory(&self) -> MemoryStats {
        self.pool.stats()
    }

    fn reset_peak(&self) {
        self.pool.reset_peak();
    }

    fn limit_memory(&self, bytes: Option<usize>) -> Result<()> {
        self.pool.limit(bytes);
        Ok(())
    }
}

/// A fused op with a kernel.
struct Support {
    id: fn() -> TypeId,
    /// The kernel, if the descriptor is of the type.
    run: fn(&Call<'_>, &dyn AnyFused) -> Option<Result<()>>,
    is_for_f64: bool,
}

/// The kernel of a type of descriptors.
macro_rules! kernel {
    ($fused:ty, $run:expr, $is_for_f64:literal) => {
        Support {
            id: TypeId::of::<$fused>,
            run: |call, fused| Some($run(call, fused.downcast_ref::<$fused>()?)),
            is_for_f64: $is_for_f64,
        }
    };
}

const KERNELS: [Support; 24] = [
    kernel!(Blocks, elementwise::pointwise::blocks, true),
    kernel!(Each, elementwise::pointwise::each, true),
    kernel!(ConvForward, conv::forward, true),
    kernel!(ConvInput, conv::input, true),
    kernel!(ConvWeight, conv::weight, true),
    kernel!(Variance, normalization::moments::variance, true),
    kernel!(Moments, normalization::moments::moments, true),
    kernel!(ProdBackward, |call, _: &ProdBackward| reduction::product::backward(call), true),
    kernel!(MaxPoolForward, image::max, true),
    kernel!(MaxPoolBackward, image::max_backward, true),
    kernel!(AvgPoolForward, image::avg, true),
    kernel!(AvgPoolBackward, image::avg_backward, true),
    kernel!(RecurrentForward, recurrent::forward, true),
    kernel!(RecurrentBackward, recurrent::backward, true),
    kernel!(Softmax, normalization::softmax::forward, false),
    kernel!(SoftmaxBackward, normalization::softmax::backward, false),
    kernel!(RowNorm, normalization::rows::forward, false),
    kernel!(RowNormBackward, normalization::rows::backward, false),
    kernel!(BatchNorm, normalization::channels::forward, false),
    kernel!(BatchNormBackward, normalization::channels::backward, false),
    kernel!(Dequantize, quantized::dequantize, true),
    kernel!(QuantizedLinear, quantized::linear, false),
    kernel!(CrossEntropyForward, loss::cross_entropy, false),
    kernel!(CrossEntropyBackward, loss::cross_entropy_backward, false),
];

fn fused_op(call: &Call<'_>, fused: &dyn AnyFused) -> Result<()> {
    let found = KERNELS.iter().find_map(|kernel| (kernel.run)(call, fused));
    found.unwrap_or_else(|| Err(Error::unsupported(call.op, "the CPU runs composites")))
}
