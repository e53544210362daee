//! What a device must be able to do: own memory, and run a [`Call`].

use crate::custom::CustomOp;
use crate::pointwise::Pointwise;
use crate::{DType, Error, Layout, Result};
use std::any::Any;
use std::fmt;
use std::time::Instant;

/// Memory on a device. Backends find their own type again through `as_any`.
pub trait Memory: Send + Sync + 'static {
    /// The backend's own type.
    fn as_any(&self) -> &dyn Any;
}

/// Bytes that a device's tensors hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Held by living tensors now.
    pub in_use: usize,
    /// The highest `in_use` since the start or the last [`Backend::reset_peak`].
    pub peak: usize,
    /// Held by the backend for reuse.
    pub pooled: usize,
    /// Held by captured steps beside what living tensors hold.
    pub captured: usize,
}

/// How exactly matrices are multiplied. Factors of 16 bits are summed in f32 whatever it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// f32 in f32, and every result rounded once.
    #[default]
    Exact,
    /// Factors of f32 may be rounded to TF32, which has 11 significant bits instead of 24; sums are f32.
    Tf32,
    /// As `Tf32`; besides, an activation of 16-bit results may be computed from a rounded sum, and approximately: results
    /// are within 4 units roundoff instead of 1.5.
    Reduced,
}

/// Whose kernels multiply matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blas {
    /// Those of the vendor's library where it is installed and has one, else our own.
    #[default]
    Vendor,
    /// Our own.
    Own,
}

/// A device that runs kernels. It does not grow when an op is added: every op is a [`Call`].
pub trait Backend: Send + Sync + 'static {
    /// Allocates `bytes` bytes of unspecified content; `OutOfMemory` error says how much was asked, held and free.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>>;

    /// Copies host bytes to the start of `memory`.
    fn upload(&self, memory: &dyn Memory, bytes: &[u8]) -> Result<()>;

    /// Copies `bytes.len()` bytes from `offset` of `memory` to the host, after all earlier calls.
    fn download(&self, memory: &dyn Memory, offset: usize, bytes: &mut [u8]) -> Result<()>;

    /// Runs one call. Operands have been checked by core; data-dependent errors (index, value) are the backend's.
    fn run(&self, call: &Call<'_>) -> Result<()>;

    /// True if the backend has this fused kernel for a dtype. What it does not have runs as a composite.
    fn supports(&self, _kernel: Fused, _dtype: DType) -> bool {
        false
    }

    /// Sets the precision of products. A backend that has one precision ignores it.
    fn set_matmul_precision(&self, _precision: Precision) {}

    /// Sets whose kernels multiply matrices. A backend without a vendor's library ignores it.
    fn set_blas(&self, _blas: Blas) {}

    /// Sets whether a call waits for what its kernels find in their data. A backend that always does ignores it.
    fn set_checked(&self, _is: bool) {}

    /// Sets whether results must be the same bits in every run. A backend that has nothing faster ignores it.
    fn set_deterministic(&self, _is: bool) {}

    /// Waits for everything that was enqueued and reports what failed.
    fn synchronize(&self) -> Result<()>;

    /// Seconds that the device takes for what `f` enqueues, after waiting for it. By the host's clock, unless the device
    /// has one of its own.
    fn time(&self, f: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        self.synchronize()?;
        let started = Instant::now();
        f()?;
        self.synchronize()?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// Records what `f` enqueues from this thread, instead of running it, for [`replay`](Backend::replay); other threads wait.
    /// Memory that the recording uses stays as it is until the result is dropped. `None`, and `f` is not called, if the
    /// backend cannot do so.
    fn capture(&self, _f: &mut dyn FnMut() -> Result<()>) -> Result<Option<Box<dyn Any + Send + Sync>>> {
        Ok(None)
    }

    /// Enqueues what [`capture`](Backend::capture) of this backend recorded.
    fn replay(&self, _recording: &(dyn Any + Send + Sync)) -> Result<()> {
        Err(Error::unsupported("capture", "this backend records nothing"))
    }

    /// How many kernels were launched, calls of the vendor's library included; `None` where nothing is launched.
    fn launch_count(&self) -> Option<u64> {
        None
    }

    /// The bytes held now, at the peak, and for reuse.
    fn memory(&self) -> MemoryStats;

    /// Starts a new measurement of the peak.
    fn reset_peak(&self);
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

/// A kernel with its operands: inputs, outputs, integers, floats. No other list of arguments exists.
///
/// No buffer is both an input and an output. Outputs are contiguous unless the kernel's documentation says otherwise.
pub struct Call<'a> {
    /// The op on whose behalf the kernel runs, for errors.
    pub op: &'static str,
    /// What to run.
    pub kernel: Kernel,
    /// Read operands.
    pub inputs: &'a [Operand<'a>],
    /// Written operands.
    pub outputs: &'a [Operand<'a>],
    /// Integer attributes, in the order that the kernel documents.
    pub ints: &'a [i64],
    /// Float attributes, in the order that the kernel documents.
    pub floats: &'a [f64],
}

/// The primitives: what every backend must run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Every element of the (strided) output becomes the attribute: `floats[0]` for float dtypes, `ints[0]` otherwise.
    Fill,
    /// Copies the (strided) input to the (strided) output of the same shape and dtype, bit for bit.
    Copy,
    /// Converts the input to the output's dtype.
    Cast,
    /// A row of the pointwise table. Inputs are expanded to the outputs' shape; attributes are `floats` for float rows,
    /// `ints` for integer ones.
    Pointwise(Pointwise),
    /// Reduces the last `ints[0]` dimensions of the input.
    Reduce(Reduce),
    /// The index (i64) of the first largest element of the flattened last `ints[0]` dimensions; NaN is the largest. With
    /// `ints[1]` of 1 it is the last NaN, where there is one.
    ArgMax,
    /// The index (i64) of the first smallest element; NaN is the smallest.
    ArgMin,
    /// `floats[0] * a @ b + floats[1] * c` for `a: [B, M, K]`, `b: [B, K, N]` and, if there is a third input, `c: [B, M, N]`.
    Matmul,
    /// `y[p] = x[p with p[dim] = index[p]]`; inputs x and index, `ints[0]` is `dim`.
    Gather,
    /// `y[p with p[dim] = index[p]] (+)= src[p]` onto the output; inputs index and src, `ints[0]` is `dim`.
    Scatter(Scatter),
    /// Philox draws; `ints` = seed, offset, stream. An input, if there is one, is an i64 `[3]` that is added to these.
    Random(Random),
    /// Stable sort of the last dimension: values and, as the second output, their indices (i64). `ints[0] != 0`: descending.
    /// NaN is the largest value.
    Sort,
    /// Running sum or product along the last dimension, to the (strided) output; `ints` = reverse, exclusive.
    Scan(Scan),
    /// What a composite does in many kernels, for backends that support it.
    Fused(Fused),
    /// An op of a program's own, whose inputs are contiguous.
    Custom(&'static CustomOp),
}

/// The bytes of the longest row that [`Fused::ProdBackward`] takes.
pub const LONGEST_PRODUCT: usize = 1 << 15;

/// The fused kernels. Operands are contiguous unless it says otherwise; statistics are in the accumulation dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fused {
    /// x to y; `ints` = outer, extent, inner, logarithm.
    Softmax,
    /// dy, y, x to dx; `ints` as above. Of a slice without a softmax, whose y is NaN, dx is 0 where x is -infinity.
    SoftmaxBackward,
    /// Rows x `[rows, length]`, weight and bias where there are any, to y, mean and rstd; `ints` = rows, length, whether the
    /// mean is subtracted, whether there are a weight and a bias; `floats` = eps.
    Norm,
    /// dy, x, mean, rstd and the weight, if any, to dx and the gradients of the weight and the bias, those that are there
    /// and wanted; `ints` as above, then whether dx and whether the parameters' gradients are wanted.
    NormBackward,
    /// [`Fused::Norm`] of rows of a table x `[v, length]` that an index `[rows]`, the last input, names, without a bias.
    EmbeddingNorm,
    /// [`Fused::NormBackward`] of the above, with the table for x and the index as the last input; dx is that of rows `[rows,
    /// length]`.
    EmbeddingNormBackward,
    /// x `[batch, channels, inner]`, weight and bias of channels where there are any, and mean and variance of channels if
    /// they are given, to y, mean and rstd, and, read and written, the running mean and variance and the number of batches
    /// where there are any. `ints` = batch, channels, inner, whether there are a weight and a bias, 1 if running statistics
    /// are updated and 2 if they are given, whether batches are counted, whether there is a momentum, without which batches
    /// weigh the same; `floats` = eps, momentum.
    BatchNorm,
    /// dy, x, mean, rstd and the weight, if any, to dx and the gradients of the weight and the bias, those that are there
    /// and wanted; `ints` = the first five of those above, whether mean and variance were given, whether dx and whether the
    /// parameters' gradients are wanted.
    BatchNormBackward,
    /// x `[batch, groups, channels, inner]`, weight and bias of all channels where there are any, and the number of batches if
    /// they weigh the same, to y, and mean and rstd of each group, and, read and written, the running mean and variance of the
    /// groups where there are any. `ints` = batch, groups, channels, inner, whether there are a weight and a bias, whether
    /// running statistics are updated, whether there is a momentum; `floats` = eps, momentum.
    GroupNorm,
    /// As [`Fused::NormBackward`], of the above; `ints` = the first six of those above, then whether dx and whether the
    /// parameters' gradients are wanted.
    GroupNormBackward,
    /// Logits `[outer, classes, inner]`, targets `[outer, inner]`, and numbers a class where there are any (weights, then
    /// bytes) to the loss, statistics `[2, outer, inner]` for the backward pass and, if the loss is reduced, what its sum
    /// was divided by. `ints` = outer, classes, inner, ignored target, whether there are weights and bytes, and 0 without
    /// a reduction, 1 for the sum over a divisor, 2 for the mean, then whether the logits are logarithms of probabilities, and
    /// the loss that of these; `floats` = label smoothing, divisor.
    CrossEntropy,
    /// dy, logits, targets, statistics, weights and bytes where there are any, the divisor if the loss was reduced, and the
    /// sum of the weights if there is smoothing too, to the gradient of the logits; attributes as above.
    CrossEntropyBackward,
    /// Rows `[N, D]` of one dtype, and of a contrastive loss what is 1 for those that are alike `[N]`, to the losses `[N]` and
    /// the distances that they are made of `[1 to 3, N]`, in the accumulation dtype; `ints` = N, D; `floats` = margin, order
    /// of the norm, what is added to differences.
    RowLoss(RowLoss),
    /// dy, one number or `[N]`, the inputs of the above and the distances to the gradients of the rows; attributes as above, and
    /// in `floats` the share that a row's loss has of what dy is the gradient of.
    RowLossBackward(RowLoss),
    /// x to `x m floats[0]`, where m is 1 where the draw is below `ints[3]` of 2^32, else 0; `ints` = seed, offset, stream
    /// and this. A second input, if there is one, is as in [`Kernel::Random`]. It is its own backward kernel.
    Dropout,
    /// An index expanded to `[E, F]` along F and rows `[E, F]`, strided, joined by index to a table `[N, F]`, zeros where there
    /// are none; `ints` = an index that is left out, or -1. The mean may have a second output, how many rows there were
    /// (i32, `[N]`); the largest has two more: how many rows have it, none if it is NaN (i32, `[N, F]`), and the first of them
    /// (i64, `[N, F]`), or -1.
    IndexReduce(IndexReduce),
    /// dy `[N, F]`, an index `[E]` and what the result was made of, to the gradient of rows `[E, F]`.
    IndexReduceBackward(IndexGradient),
    /// One tensor or two `[B, H, T, D]`, their last dimension contiguous, cos and sin `[P, R/2]`, and positions, if there are any,
    /// `[T]` or `[B, T]`, to the tensors with pairs turned; `ints` = whether pairs are neighbours, 1 or -1 for the direction, R,
    /// and the number of tensors. With the other direction it is its own backward kernel.
    Rotary,
    /// Logits `[B, V]`, and a second input as in [`Kernel::Random`] if there is one, to positions `[B, n]`, as
    /// [`Tensor::sample_logits`](crate::Tensor::sample_logits) says; `ints` = seed, offset, stream, how many of the largest are
    /// kept or 0, and what of 1 the kept ones may leave out, in units of 2^-24; `floats` = what powers of 2 have for exponents
    /// in a unit of the logits.
    SampleLogits,
    /// [`Kernel::Matmul`], inputs of any strides as there, and this row of one input and no attributes on its result before
    /// that is rounded. A second output, if there is one, gets what the row was applied to.
    GemmBias(Pointwise),
    /// [`Kernel::Matmul`] of two inputs of any strides, without attributes, and as a second output `[1, M]` the sums of the rows of
    /// the first input, if `ints[0]` is 0, or `[1, N]` those of the columns of the second, if it is 1; one matrix.
    MatmulSum,
    /// [`Kernel::Matmul`] of two inputs of any strides, without attributes, and this row, which has two inputs and no attributes, of
    /// the result and a third input `[B, M, N]` of any strides. Rounded once, or before the row too.
    MatmulPointwise(Pointwise),
    /// An `inout` row over sets of tensors, in one launch. Inputs are each set's own and then its numbers, set after set,
    /// then those that all sets share; outputs are each set's targets, set after set. The operands of a set have one number
    /// of elements, not 0; its numbers and what is shared have one. No set reads or writes what another writes. All sets have
    /// the dtypes of the first. `ints` = number of shared inputs, of a set's numbers; `floats` = the row's attributes.
    Each(Pointwise),
    /// [`Fused::Each`] that does not write the last `ints[2]` operands of those that the row changes: they are the first
    /// of a set's own inputs. Of what each would become, a last output `[sets, ints[2]]` in the accumulation dtype gets the
    /// square root of the sum of squares.
    EachNorms(Pointwise),
    /// The sum of a row's only result over contiguous inputs of one dtype and shape, not empty, divided by the last float and
    /// rounded once. The last inputs, `ints[0]` of them, have one element. `ints` = this, 0, 1; `floats` = the row's
    /// attributes, and this divisor.
    PointwiseTotal(Pointwise),
    /// A row to its results, one of which is summed over all dimensions in which it has one element, and rounded once. The
    /// others, and the first input, have one shape; other inputs are expanded to that from what has all of its elements, one,
    /// or one along all dimensions that are summed over, or that are not. `floats` = the row's attributes.
    PointwiseSum(Pointwise),
    /// The two results of a row without attributes side by side in y `[.., 2H]`; inputs `[.., H]` of any strides.
    Halves(Pointwise),
    /// x, of any strides, to the logarithm of the sum of `e^x` over its last dimensions, and, where there is a second output `[2, ..]`,
    /// to the largest elements and the logarithms of the sums of `e^(x - max)`, both 0 of nothing but -infinity; `ints` = how many
    /// dimensions these are.
    LogSumExp,
    /// x, of any strides, to the sum of squared deviations from the mean over its last dimensions, divided by `floats[0]`, and,
    /// in the accumulation dtype, the mean; `ints` as above.
    Variance,
    /// x, of any strides, to the mean over its last dimensions and `1 / sqrt(var + eps)` of the biased variance, in the accumulation
    /// dtype, neither of which leaves the range on the way; `ints` = how many dimensions these are, and whether the mean is
    /// subtracted, which is 0 otherwise; `floats` = eps. For backends that have none of the norms.
    Moments,
    /// Rows x `[rows, length]` and dy `[rows]` to the gradient of the rows' products. A row is at most [`LONGEST_PRODUCT`]
    /// bytes in the accumulation dtype.
    ProdBackward,
    /// A mask of one dimension or more to the positions (i64) of its true elements, row-major: `[rank, count]`, a row for each
    /// dimension. There are count of them.
    Positions,
    /// All elements of all inputs, which have one dtype and are not empty, to one number in the accumulation dtype or in f64.
    Total(Total),
    /// Divides the outputs but the last, which are contiguous, have one dtype and are not empty, by the only input, as a product
    /// with its inverse in f32. The last output becomes 1 if an element was NaN or infinite before, and stays otherwise. It
    /// and the input are f32 and have one element.
    Unscale,
    /// x `[planes, depth, height, width]` to the largest element of each window and, if that is asked for, where it is: its number
    /// within the window if that is u8, else its position in the volume (i32, i64). `ints` = planes, then for each of three dimensions
    /// the extents of x, the numbers of windows, kernel, stride, padding and dilation, then whether windows are adaptive:
    /// `floor(i L / O) .. ceil((i + 1) L / O)`, of which the kernel is the most elements.
    MaxPool,
    /// dy and what is above to dx; `ints` as above.
    MaxPoolBackward,
    /// x to the sum of each window, divided; `ints` as above, then 0 to divide by the number of its elements, 1 by its size
    /// with the padding, 2 by `floats[0]`.
    AvgPool,
    /// dy to dx; attributes as above.
    AvgPoolBackward,
}

/// What becomes of rows that have one index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexReduce {
    /// Their sum.
    Sum,
    /// Their sum divided by how many there are.
    Mean,
    /// The largest of each element; NaN wins.
    Max,
}

/// A loss of distances between rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowLoss {
    /// Of two, which are alike or not.
    Contrastive,
    /// Of an anchor, a positive and a negative.
    Triplet,
    /// The same with the smaller of the negative's distances.
    NearestTriplet,
}

/// How much of its index's gradient a row gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexGradient {
    /// As much as all others; the input is the number of rows `[N, 1]`.
    Mean,
    /// As much as all that have the largest value; inputs are how many do `[N, F]`, the rows, and the result.
    Even,
    /// All, if it is the first that has the largest value; the input is the first `[N, F]`.
    First,
}

/// What a total over many tensors computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Total {
    /// The square root of the sum of squares.
    Norm,
    /// The sum of absolute values.
    AbsSum,
    /// The largest absolute value; NaN wins.
    AbsMax,
    /// 1 if an element is NaN or infinite, else 0.
    NotFinite,
}

/// What a reduction computes. Sums are in the accumulation dtype, in a fixed order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// The sum; i64 for integers and bool.
    Sum,
    /// The sum divided by the number of elements, rounded once.
    Mean,
    /// The product; i64 for integers and bool.
    Prod,
    /// The largest element; NaN wins. A second output, if there is one, is 1 over how many elements are it, in the accumulation
    /// dtype; none are NaN.
    Max,
    /// The smallest element; NaN wins. A second output is as above.
    Min,
    /// The square root of the sum of squares.
    Norm,
}

/// What a scatter does where it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scatter {
    /// Adds, in row-major order of the index.
    Add,
    /// Overwrites; the last in row-major order of the index wins.
    Assign,
    /// Overwrites; no two rows of the index have one place.
    Distinct,
}

/// What is drawn (kernel attributes in `floats`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Random {
    /// Uniform in `[floats[0], floats[1])`; see [`UniformRange`](crate::random::UniformRange).
    Uniform,
    /// Normal with mean `floats[0]` and deviation `floats[1]`.
    Normal,
    /// 1 where the draw is below `ints[3]` of 2^32, else 0; the output is u8.
    Bernoulli,
}

/// What a scan accumulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scan {
    /// Running sum.
    Sum,
    /// Running product.
    Prod,
}

/// Rounds to an f32 that becomes the same 16-bit float as `v` does when it is rounded once: of the two neighbours of an inexact
/// value it takes the one with an odd last bit, which lies on no boundary between numbers of 16 bits. Boldo and Melquiond 2008,
/// "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd".
pub fn round_to_odd(v: f64) -> f32 {
    let near = v as f32;
    let back = near as f64;
    if back == v || v.is_nan() {
        return near;
    }
    let toward_zero = near.to_bits() - (back.abs() > v.abs()) as u32;
    f32::from_bits(toward_zero | 1)
}

/// The error of an index out of range. Positions count the index's elements without its trailing dimensions along which
/// it does not change.
pub fn index_error(op: &'static str, position: i64, value: i64, extent: usize) -> Error {
    Error::index(op, format!("element {position} of the index is {value}, expected 0..{extent}"))
}

/// The error of an element that a checked row does not accept. Positions count in row-major order of the output's shape.
pub fn value_error(op: &'static str, position: usize, values: &str) -> Error {
    Error::value(op, format!("element {position} is not allowed: {values}"))
}

/// The error of a class out of range, as `index` tells of it.
pub fn class_error(op: &'static str, index: &Error) -> Error {
    Error::value(op, format!("a class is out of range: {}", index.message()))
}

/// The error of a row of logits from which nothing can be drawn.
pub fn logits_error(op: &'static str, row: i64) -> Error {
    Error::value(op, format!("row {row} of the logits has NaN or infinity, or nothing else than -infinity"))
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kernel::Pointwise(row) => f.write_str(row.name()),
            other => write!(f, "{other:?}"),
        }
    }
}
