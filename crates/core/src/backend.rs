//! The interface of a device: it owns memory and runs each [`Call`].

use crate::collective::Collectives;
use crate::custom::CustomOp;
use crate::foreign::{Foreign, Space};
use crate::fused::{AnyFused, FusedCall};
use crate::operands::Mask;
use crate::pointwise::Pointwise;
use crate::thread::{PART_OF, within};
use crate::{DType, Error, Layout, Result};
use std::any::{Any, TypeId};
use std::fmt;
use std::time::Instant;

/// Memory on a device. A backend downcasts it to its own type through `as_any`.
pub trait Memory: Send + Sync + 'static {
    /// The memory as `Any`, for downcasts.
    fn as_any(&self) -> &dyn Any;
}

/// Bytes of memory on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Held by living tensors now.
    pub in_use: usize,
    /// The highest `in_use` since the start or the last [`Backend::reset_peak`].
    pub peak: usize,
    /// Held by the backend for reuse.
    pub pooled: usize,
    /// Held by captured steps, in addition to living tensors.
    pub captured: usize,
}

/// The precision of matrix products. Products of 16-bit factors are summed in f32 at every precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Products of f32 factors are summed in f32, and every result is rounded once.
    #[default]
    Exact,
    /// Factors of f32 may be rounded to TF32, which has 11 significant bits instead of 24. Sums are in f32.
    Tf32,
    /// As `Tf32`. In addition, an activation of 16-bit results may be approximate, and computed from a rounded sum: results are
    /// within 4 units roundoff instead of 1.5.
    Reduced,
}

/// The source of the kernels that multiply matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blas {
    /// The vendor's library where it is installed and has a kernel, else our own.
    #[default]
    Vendor,
    /// Our own.
    Own,
}

/// Whether results have the same bits in every run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Determinism {
    /// They have.
    #[default]
    SameBits,
    /// Sums may come in another order in each run, where that is faster.
    AnyOrder,
}

/// When bad indices and values in a kernel's data are errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// The call that met them waits for the device.
    AtOnce,
    /// The next call that waits for the device fails.
    Later,
}

/// A moment of a backend's clock.
pub type Mark = Box<dyn Any + Send + Sync>;

/// A device that runs kernels. A new op adds no method, because every op is a [`Call`].
pub trait Backend: Send + Sync + 'static {
    /// Allocates `bytes` bytes of unspecified content. An `OutOfMemory` error gives the bytes requested, held and free.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>>;

    /// Copies host bytes to the start of `memory`.
    fn upload(&self, memory: &dyn Memory, bytes: &[u8]) -> Result<()>;

    /// Copies `bytes.len()` bytes from `offset` of `memory` to the host, after all earlier calls.
    fn download(&self, memory: &dyn Memory, offset: usize, bytes: &mut [u8]) -> Result<()>;

    /// The memory of tensors as other libraries name it; `None` if they cannot read it.
    fn space(&self) -> Option<Space> {
        None
    }

    /// Memory that another library owns, for a tensor. Nothing is copied. When the memory is dropped and no earlier call uses it any more, the
    /// owner is dropped.
    fn adopt(&self, _foreign: Foreign) -> Result<Box<dyn Memory>> {
        Err(Error::unsupported("adopt", "this backend adopts no memory of other libraries"))
    }

    /// The address of memory, for other libraries. Errors: `Unsupported` without a [`space`](Backend::space); `Value` for memory that may move.
    fn address(&self, _memory: &dyn Memory) -> Result<u64> {
        Err(Error::unsupported("address", "other libraries cannot read this backend's memory"))
    }

    /// The stream in which calls run, by the handle that the driver gave; `None` for calls that have run when they return.
    fn stream(&self) -> Option<u64> {
        None
    }

    /// Makes what another library enqueues on a stream of the same device from now on wait for all earlier calls. Without a stream, or
    /// without a way to make one wait, it waits itself.
    fn follow(&self, _stream: Option<u64>) -> Result<()> {
        self.synchronize()
    }

    /// Runs one call. Core has checked the operands. The backend reports errors that depend on data (index, value).
    fn run(&self, call: &Call<'_>) -> Result<()>;

    /// True if the backend has the kernel of a fused op for a dtype. The op is identified by the type of its descriptor. A fused op
    /// without a kernel runs as a composite.
    fn supports(&self, _fused: TypeId, _dtype: DType) -> bool {
        false
    }

    /// True if the device has room on chip for a fused op whose kernel it has. Ops ask where the need depends on their extents.
    fn has_room(&self, _fused: &dyn AnyFused, _dtype: DType) -> bool {
        true
    }

    /// Sets the precision of products. A backend that has one precision ignores it.
    fn set_matmul_precision(&self, _precision: Precision) {}

    /// Sets the source of the kernels that multiply matrices. A backend without a vendor's library ignores it.
    fn set_blas(&self, _blas: Blas) {}

    /// Sets whether a call waits for the errors that its kernels find in data. A backend that always waits ignores it.
    fn set_checks(&self, _checks: Checks) {}

    /// Sets whether results must have the same bits in every run. A backend without faster kernels in return ignores it.
    fn set_determinism(&self, _determinism: Determinism) {}

    /// Waits for all enqueued work and reports its errors.
    fn synchronize(&self) -> Result<()>;

    /// A moment between the calls before and after it. By the host's clock, after waiting for the calls, unless the device has a clock.
    fn mark(&self) -> Result<Mark> {
        self.synchronize()?;
        Ok(Box::new(Instant::now()))
    }

    /// Seconds between two moments of [`mark`](Backend::mark) of this backend, after waiting for the second.
    fn between(&self, from: &Mark, to: &Mark) -> Result<f64> {
        match [from, to].map(|mark| mark.downcast_ref::<Instant>()) {
            [Some(from), Some(to)] => Ok(to.duration_since(*from).as_secs_f64()),
            _ => Err(Error::backend("time", "the moment is of another backend")),
        }
    }

    /// Runs `f`. A backend may put off what `f` enqueues from this thread until `f` waits or ends, so that it compiles the kernels of all
    /// of it side by side. Other threads wait meanwhile.
    fn put_off(&self, f: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        f()
    }

    /// Records the work that `f` enqueues from this thread for [`replay`](Backend::replay), instead of running it. Other threads
    /// wait. Memory that the recording uses is not reused until the result is dropped. A backend that cannot record returns `None`
    /// without calling `f`.
    fn capture(&self, _f: &mut dyn FnMut() -> Result<()>) -> Result<Option<Box<dyn Any + Send + Sync>>> {
        Ok(None)
    }

    /// Enqueues a recording made by [`capture`](Backend::capture) of this backend.
    fn replay(&self, _recording: &(dyn Any + Send + Sync)) -> Result<()> {
        Err(Error::unsupported("capture", "this backend records nothing"))
    }

    /// Says that every replay of a recording writes a result to this memory, and that tensors with it are lent to the caller between replays.
    /// False if the caller must get copies.
    fn lend_result(&self, _memory: &dyn Memory) -> bool {
        false
    }

    /// Takes the memory of a result back before the next replay. Tensors that still have it, if there are some, get a copy elsewhere.
    /// Returns the memory to which the recording writes, if it is another now.
    fn reclaim_result(&self, _memory: &dyn Memory, _is_held: bool) -> Result<Option<Box<dyn Memory>>> {
        Err(Error::unsupported("capture", "this backend records nothing"))
    }

    /// The program of a recording in words: its calls, the kernels that run them, and their memory.
    fn explain(&self, _recording: &(dyn Any + Send + Sync)) -> Option<String> {
        None
    }

    /// The library by which devices exchange tensors without the host, where it is installed.
    fn collectives(&self) -> Option<&dyn Collectives> {
        None
    }

    /// The number of kernels launched, including calls of the vendor's library; `None` on a backend without launches.
    fn launch_count(&self) -> Option<u64> {
        None
    }

    /// Bytes of memory in use, at the peak, and held for reuse.
    fn memory(&self) -> MemoryStats;

    /// Starts a new measurement of the peak.
    fn reset_peak(&self);

    /// Limits the memory of tensors to this many bytes, as if the device had no more; `None` ends the limit.
    fn limit_memory(&self, _bytes: Option<usize>) -> Result<()> {
        Err(Error::unsupported("limit_memory", "this backend cannot limit its memory"))
    }
}

/// One operand of a [`Call`].
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// The buffer.
    pub memory: &'a dyn Memory,
    /// Shape, strides and offset within the buffer.
    pub layout: &'a Layout,
    /// The elements' type.
    pub dtype: DType,
}

/// A kernel with its operands and attributes. The attributes of a primitive are integers and floats; the attributes of a fused op
/// are in its descriptor.
///
/// No buffer is both an input and an output. Outputs are contiguous unless the kernel's documentation says otherwise.
pub struct Call<'a> {
    /// The op that runs the kernel, for errors.
    pub op: &'static str,
    /// The kernel.
    pub kernel: Kernel<'a>,
    /// Operands that are read.
    pub inputs: &'a [Operand<'a>],
    /// Operands that are written.
    pub outputs: &'a [Operand<'a>],
    /// Integer attributes of a primitive, in the order that the kernel documents.
    pub ints: &'a [i64],
    /// Float attributes of a primitive, in the order that the kernel documents.
    pub floats: &'a [f64],
}

/// The kernel of a call. All but [`Kernel::Fused`] and [`Kernel::Custom`] are primitives: every backend must run them.
#[derive(Clone, Copy, Debug)]
pub enum Kernel<'a> {
    /// Every element of the (strided) output becomes the attribute: `floats[0]` for float dtypes, `ints[0]` otherwise.
    Fill,
    /// Copies the (strided) input to the (strided) output of the same shape and dtype, bit for bit.
    Copy,
    /// Converts the input to the output's dtype.
    Cast,
    /// A row of the pointwise table. Inputs are expanded to the (strided) outputs' shape; attributes are `floats` for float rows,
    /// `ints` for integer ones.
    Pointwise(Pointwise),
    /// Reduces the last `ints[0]` dimensions of the input.
    Reduce(Reduce),
    /// The index (i64) of the first largest element of the flattened last `ints[0]` dimensions. NaN is the largest. If `ints[1]` is
    /// 1, the index of the last NaN, where there is one.
    ArgMax,
    /// The index (i64) of the first smallest element; NaN is the smallest.
    ArgMin,
    /// `floats[0] * a @ b + floats[1] * c` for `a: [B, M, K]`, `b: [B, K, N]` and, if there is a third input, `c: [B, M, N]`.
    Matmul,
    /// `y[p] = x[p with p[dim] = index[p]]`; inputs x and index, `ints[0]` is `dim`.
    Gather,
    /// `y[p with p[dim] = index[p]] (+)= src[p]` onto the output; inputs index and src, `ints[0]` is `dim`.
    Scatter(Scatter),
    /// Philox draws; `ints` = seed, offset, stream. An optional input, i64 `[3]`, is added to these.
    Random(Random),
    /// Stable sort of the last dimension: values and, as the second output, their indices (i64). `ints[0] != 0`: descending.
    /// NaN is the largest value.
    Sort,
    /// Running sum or product along the last dimension, to the (strided) output; `ints` = reverse, exclusive.
    Scan(Scan),
    /// A fused op, on backends that [support](Backend::supports) it. The descriptor has the attributes.
    Fused(FusedCall<'a>),
    /// An op defined by a program. Its inputs are contiguous.
    Custom(&'static CustomOp),
}

/// The function of a reduction. Sums are in the accumulation dtype, in a fixed order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// The sum; i64 for integers and bool.
    Sum,
    /// The sum divided by the number of elements, rounded once.
    Mean,
    /// The product; i64 for integers and bool.
    Prod,
    /// The largest element; NaN wins. An optional second output is 1 over the number of elements that equal it, in the accumulation
    /// dtype; no element equals NaN.
    Max,
    /// The smallest element; NaN wins. The optional second output is as for `Max`.
    Min,
    /// The square root of the sum of squares.
    Norm,
}

/// The way in which a scatter combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scatter {
    /// Adds, in row-major order of the index.
    Add,
    /// Overwrites. The last element in row-major order of the index wins.
    Assign,
    /// Overwrites. The caller guarantees that no two elements have the same destination.
    Distinct,
}

/// The distribution of random draws (kernel attributes in `floats`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Random {
    /// Uniform in `[floats[0], floats[1])`; see [`UniformRange`](crate::random::UniformRange).
    Uniform,
    /// Normal with mean `floats[0]` and deviation `floats[1]`.
    Normal,
    /// 1 where the draw is below `ints[3]` of 2^32, else 0; the output is u8.
    Bernoulli,
}

/// The function of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scan {
    /// Running sum.
    Sum,
    /// Running product.
    Prod,
}

/// Rounds to odd, to an f32 that becomes the same 16-bit float as if `v` were rounded once. An inexact value becomes the neighbour
/// with an odd last bit, which lies on no boundary between 16-bit numbers. Boldo and Melquiond 2008, "Emulation of FMA and
/// correctly rounded sums: proved algorithms using rounding to odd".
pub fn round_to_odd(v: f64) -> f32 {
    let near = v as f32;
    let back = near as f64;
    if back == v || v.is_nan() {
        return near;
    }
    let toward_zero = near.to_bits() - (back.abs() > v.abs()) as u32;
    f32::from_bits(toward_zero | 1)
}

/// The op of which this op is a part in the call that is running, which the errors of its kernels name.
pub fn outermost(op: &'static str) -> &'static str {
    PART_OF.get().unwrap_or(op)
}

/// Runs a call that was put off, as a part of the op that [`outermost`] named when it was made.
pub fn as_part_of<R>(op: &'static str, f: impl FnOnce() -> R) -> R {
    within(op, f)
}

/// The error of an index out of range. `position` counts the elements of the index. Trailing dimensions along which the index is
/// constant are not counted.
pub fn index_error(op: &'static str, position: i64, value: i64, extent: usize) -> Error {
    Error::index(op, format!("element {position} of the index is {value}, expected 0..{extent}"))
}

/// The error of the first rows of sequences that do not rise, or are out of range.
pub fn starts_error(op: &'static str, position: i64, value: i64, rows: usize) -> Error {
    Error::index(
        op,
        format!("element {position} of the starts is {value}, expected numbers that rise from 0 up to {rows}"),
    )
}

/// The error of an element that a checked row rejects. `position` counts in row-major order of the output's shape.
pub fn value_error(op: &'static str, position: usize, values: &str) -> Error {
    Error::value(op, format!("element {position} is not allowed: {values}"))
}

/// The error of a class out of range, from the error `index` of its index.
pub fn class_error(op: &'static str, index: &Error) -> Error {
    Error::index(op, format!("a class is out of range: {}", index.message()))
}

/// The error of a row of logits that has no element to draw.
pub fn logits_error(op: &'static str, row: i64) -> Error {
    Error::value(op, format!("row {row} of the logits has NaN or infinity, or nothing else than -infinity"))
}

impl Kernel<'_> {
    /// The masks of the operands that a fused op reads and writes; those of other kernels have no names.
    pub fn masks(&self) -> [Mask; 2] {
        if let Kernel::Fused(fused) = self { fused.masks() } else { [Mask::UNNAMED; 2] }
    }
}

impl fmt::Display for Kernel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kernel::Pointwise(row) => f.write_str(row.name()),
            Kernel::Fused(fused) => match fused.row() {
                Some(row) => write!(f, "Fused({}({}))", fused.name(), row.name()),
                None => write!(f, "Fused({})", fused.name()),
            },
            other => write!(f, "{other:?}"),
        }
    }
}
