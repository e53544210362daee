//! Matrix products, with an activation or without: the choice of a kernel from `matmul.c`, and its launches.
//!
//! Its constants were tuned on an H100.

mod wgmma;

use crate::driver::{Driver, Geometry, Limits, Tile};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{THREADS, each, groups};
use crate::launch::integers::Integers;
use crate::launch::operands::start_of;
use crate::launch::words::widest;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, zeros};
use crate::ops::reduction::reduce;
use crate::program::source::{Variant, word};
use isograd_core::backend::Reduce;
use isograd_core::fused::Fused;
use isograd_core::ops::matrix::gemm_bias::{
    GemmActivation, GemmInputs, GemmOutputs, MatmulSum, MatmulSumInputs, MatmulSumOutputs, Summed,
};
use isograd_core::ops::matrix::matmul::{MatmulPointwise, MatmulPointwiseInputs};
use isograd_core::ops::{Activation, Approximate, GemmBias};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Call, DType, Kernel, Operand, Result};
use smallvec::SmallVec;

/// The common kernels.
const FILE: &str = "matrix/matmul.c";
/// A product `[m, k] @ [k, n]` is cut along K into parts of at least this many columns.
const LEAST_PART: usize = 128;
/// K per split from which on a few large tiles are faster than many small ones.
const LONG_PART: usize = 2048;
/// Elements of a 16-byte vector of 16-bit elements, by which tensor-core kernels load and store.
pub(crate) const MMA_WORD: usize = 8;
/// Bytes that a thread moves at once.
pub(crate) const WIDEST: usize = 16;
/// Groups of a launch, whose threads HIP counts with 32 bits. More matrices take several launches.
const MOST_GROUPS: usize = u32::MAX as usize / THREADS;
/// Registers of a multiprocessor, of 4 bytes.
const REGISTERS: usize = 1 << 16;
/// The most groups that share a multiprocessor.
const MOST_AT_ONCE: usize = 8;
/// The most parts that `gemm_sum` adds up for one result.
const MOST_PARTS: usize = 256;
/// The fewest partial sums that a thread of `gemm_sum` adds.
const LEAST_ADDED: usize = 4;
/// The fewest adjacent vector loads of a group of `gemm_sum`.
const LEAST_COLUMNS: usize = 8;
/// N or K up to which a product is memory-bound.
const FEW: usize = 16;
/// The same for 16-bit factors, which vector kernels convert once per column; beyond it tensor cores are faster.
const FEW_OF_16_BITS: usize = 4;
/// Multiplications up to which a product is launch-bound, whatever its shape.
const FEW_MULTIPLIED: usize = 1 << 22;
/// The most accumulators of a thread.
const MOST_SUMS: usize = 64;
/// The most partial sums that a group reduces at once, through local memory.
const MOST_TOGETHER: usize = 4096;
/// Rows of a thread of `gemm_outer`.
const OUTER_ROWS: usize = 4;

/// The tiles that are chosen from.
pub mod tiles {
    use crate::driver::Tile;

    /// For products that fill the device; not in double precision, where a thread's results do not fit its registers.
    pub const LARGE: Tile = Tile { m: 128, n: 128, k: 8, results: [8, 8] };
    /// For products of a few hundred rows and columns.
    pub const MEDIUM: Tile = Tile { m: 64, n: 64, k: 16, results: [8, 4] };
    /// For products that would leave multiprocessors idle otherwise.
    pub const SMALL: Tile = Tile { m: 32, n: 32, k: 32, results: [4, 4] };
    /// For at most 16 columns.
    pub const TALL: Tile = Tile { m: 64, n: 16, k: 32, results: [4, 4] };
    /// For at most 16 rows.
    pub const FLAT: Tile = Tile { m: 16, n: 64, k: 32, results: [4, 4] };
    /// For at most 16 rows and columns.
    pub const TINY: Tile = Tile { m: 16, n: 16, k: 32, results: [2, 2] };
    /// All of them.
    pub const ALL: [Tile; 6] = [LARGE, MEDIUM, SMALL, TALL, FLAT, TINY];
}

impl Tile {
    /// Threads of a group.
    pub fn threads(&self) -> usize {
        (self.m / self.results[0]) * (self.n / self.results[1])
    }

    /// An estimate of the groups that a multiprocessor runs at once, if a thread has two registers per accumulator, and at least 64.
    fn at_once(&self) -> usize {
        let registers = (2 * self.results[0] * self.results[1]).max(64);
        (REGISTERS / (self.threads() * registers)).clamp(1, MOST_AT_ONCE)
    }

    /// How many tiles cover `m x n` results.
    fn count(&self, m: usize, n: usize) -> usize {
        m.div_ceil(self.m) * n.div_ceil(self.n)
    }

    /// Bytes of local memory: two starts for each operand.
    fn local_memory(&self, acc: DType) -> usize {
        2 * self.k * (self.m * acc.size() + WIDEST + self.n * acc.size() + WIDEST)
    }

    /// Whether a device runs it, and in few enough registers.
    pub fn fits(&self, acc: DType, limits: &Limits) -> bool {
        let is_small = self.results[0] * self.results[1] * acc.size() <= 256;
        is_small && self.threads() <= limits.max_group && self.local_memory(acc) <= limits.local_memory
    }

    /// Whether at least half of its results lie within the matrix.
    fn is_used(&self, m: usize, n: usize) -> bool {
        2 * m * n >= self.count(m, n) * self.m * self.n
    }
}

/// The extents of a product.
#[derive(Clone, Copy, Debug)]
pub struct Extents {
    /// Matrices.
    pub batches: usize,
    /// Rows of a.
    pub m: usize,
    /// Columns of b.
    pub n: usize,
    /// Columns of a.
    pub k: usize,
}

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Nothing is multiplied: `beta c`.
    Scale,
    /// A matrix times a few vectors. This many threads are adjacent along the contiguous dimension of the matrix.
    Vectors(usize),
    /// An outer product, or a sum of a few: K is small.
    Outer,
    /// The kernel by tiles.
    Tiles(Tile),
    /// The kernel by tiles, on matrix units.
    Mma(Tile),
    /// The kernel by tiles on Hopper's tensor cores (WGMMA); the copy engine (TMA) loads the tiles.
    Wgmma,
    /// The kernel by tiles on Hopper's tensor cores; threads load the tiles, in 16-byte words.
    WgmmaWords(Tile),
}

impl Method {
    /// Whether a library may be faster. Our own kernels are as fast for products that are bound by memory.
    fn is_for_libraries(self) -> bool {
        matches!(self, Method::Tiles(_) | Method::Mma(_) | Method::Wgmma | Method::WgmmaWords(_))
    }
}

/// The kernel of a product, and how K is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulPlan {
    /// The kernel.
    pub method: Method,
    /// Splits of K, which different groups compute.
    pub parts: usize,
    /// Whether positions are computed in 64 bits although they need not be.
    pub is_wide: bool,
    /// Groups of a launch, unless a single matrix takes more.
    pub most_groups: usize,
}

impl MatmulPlan {
    /// A method, and the number of K splits.
    pub fn new(method: Method, parts: usize) -> MatmulPlan {
        MatmulPlan { method, parts, is_wide: false, most_groups: MOST_GROUPS }
    }
}

/// An operand as rows along K: the left matrix, or the transposed right one.
#[derive(Clone, Copy)]
pub(crate) struct Side {
    pub address: u64,
    pub dtype: DType,
    pub rows: usize,
    pub k: usize,
    /// The strides of batch, row and K.
    pub strides: [usize; 3],
    pub is_batched: bool,
}

impl Side {
    fn new(operand: &Operand<'_>, row: usize, k: usize) -> Result<Side> {
        let (dims, strides) = (operand.layout.shape().dims(), operand.layout.strides());
        Ok(Side {
            address: start_of(operand)?,
            dtype: operand.dtype,
            rows: dims[row],
            k: dims[k],
            strides: [strides[0], strides[row], strides[k]],
            is_batched: dims[0] > 1,
        })
    }

    /// Matrices `[rows, k]`, one after the other.
    pub fn contiguous(address: u64, dtype: DType, rows: usize, k: usize) -> Side {
        Side { address, dtype, rows, k, strides: [rows * k, k, 1], is_batched: true }
    }

    /// One matrix `[k, rows]`, read as rows.
    pub fn turned(address: u64, dtype: DType, rows: usize, k: usize) -> Side {
        Side { address, dtype, rows, k, strides: [0, 1, rows], is_batched: false }
    }

    /// A factor that a loader reads element by element. Its strides are not positions: they tell whether neighbours lie along K or
    /// along the rows, and that there are no words.
    pub fn scattered(address: u64, dtype: DType, [rows, k]: [usize; 2], is_along_k: bool) -> Side {
        let strides = if is_along_k { [0, 3, 2] } else { [0, 2, 3] };
        Side { address, dtype, rows, k, strides, is_batched: true }
    }

    /// Whether the stride along K is smaller than the stride between rows.
    pub fn is_along_k(&self) -> bool {
        let [_, row, k] = self.strides;
        self.k > 1 && (self.rows == 1 || k <= row)
    }

    /// Whether every row or column is a sequence of aligned words of `vector` elements.
    pub fn has_words(&self, vector: usize) -> bool {
        self.unit_stride() == 1 && self.vector(vector) == vector
    }

    /// The stride of neighbours.
    fn unit_stride(&self) -> usize {
        if self.is_along_k() { self.strides[2] } else { self.strides[1] }
    }

    /// The widest aligned words of which every row or column is a sequence, in up to `most` elements.
    fn vector(&self, most: usize) -> usize {
        let [batch, row, k] = self.strides;
        let (other, extent, others) = if self.is_along_k() { (row, self.k, self.rows) } else { (k, self.rows, self.k) };
        let steps = [extent, if others == 1 { 0 } else { other }, if self.is_batched { batch } else { 0 }];
        if self.unit_stride() == 1 { widest(most, steps, [(self.address, self.dtype.size())]) } else { 1 }
    }

    /// Whether positions within `rows` rows of `k` elements need more than 31 bits.
    fn is_wide(&self, rows: usize, k: usize) -> bool {
        rows.saturating_mul(self.strides[1]).saturating_add(k.saturating_mul(self.strides[2])) > i32::MAX as usize
    }
}

/// Whether an extent (M, N or K) is so small that the product is memory-bound.
fn is_few(extent: usize, e: Extents, dtype: DType) -> bool {
    let multiplied = e.batches.saturating_mul(e.m).saturating_mul(e.n).saturating_mul(e.k);
    let is_widened = dtype.size() < dtype.acc().size() && multiplied > FEW_MULTIPLIED;
    extent <= if is_widened { FEW_OF_16_BITS } else { FEW }
}

/// Chooses how a product is computed. `along_k`: whether the matrix and the vectors of a matrix times few vectors are contiguous
/// along K.
pub fn choose(e: Extents, dtype: DType, along_k: [bool; 2], limits: &Limits) -> MatmulPlan {
    let acc = dtype.acc();
    let Extents { batches, m, n, k } = e;
    let [is_along_k, are_vectors_along_k] = along_k;
    if m.min(n) > 1 && is_few(k, e, dtype) {
        return MatmulPlan::new(Method::Outer, 1);
    }
    // Vectors that lie side by side are not read well along K.
    if m.min(n) == 1 || (is_few(m.min(n), e, dtype) && (are_vectors_along_k || !is_along_k)) {
        return choose_vectors(batches, m.max(n), k, acc, is_along_k, limits);
    }
    choose_tiles(e, acc, limits)
}

/// The tile of a product on plain cores, and the number of K splits.
fn choose_tiles(e: Extents, acc: DType, limits: &Limits) -> MatmulPlan {
    let Extents { m, n, .. } = e;
    let fits = |tile: &Tile| tile.fits(acc, limits);
    let candidates: &[Tile] = match (m <= tiles::FLAT.m, n <= tiles::TALL.n) {
        (true, true) => &[tiles::TINY],
        (true, false) => &[tiles::FLAT],
        (false, true) => &[tiles::TALL],
        (false, false) => &[tiles::LARGE, tiles::MEDIUM, tiles::SMALL],
    };
    let used: SmallVec<[Tile; 3]> =
        candidates.iter().copied().filter(|tile| fits(tile) && tile.is_used(m, n)).collect();
    let (tile, parts) = cut(e, if used.is_empty() { &[tiles::SMALL] } else { &used }, limits.units.max(1));
    MatmulPlan::new(Method::Tiles(tile), parts)
}

/// Chooses one of these tiles, and the number of K splits. It tries long splits with every tile, then no splits, then short splits, and
/// takes the first tile with which there is a group for each multiprocessor; if there is none, the last tile. K is split into as many
/// parts as fill all multiprocessors.
fn cut(e: Extents, tiles: &[Tile], units: usize) -> (Tile, usize) {
    let groups = |tile: &Tile| tile.count(e.m, e.n).saturating_mul(e.batches).max(1);
    let most = (e.k / LEAST_PART).clamp(1, MOST_PARTS);
    let in_parts = |most: usize| tiles.iter().find(|tile| groups(tile).saturating_mul(most) >= units);
    let tile = in_parts((e.k / LONG_PART).clamp(1, most)).or_else(|| in_parts(1)).or_else(|| in_parts(most));
    let tile = tile.unwrap_or(&tiles[tiles.len() - 1]);
    let parts = if groups(tile) >= units { 1 } else { (units * tile.at_once() / groups(tile)).clamp(1, most) };
    (*tile, parts)
}

/// [`choose`] for matrix units, of the dialect's tiles for them.
fn choose_mma(e: Extents, mma: &[Tile], limits: &Limits) -> Option<MatmulPlan> {
    if mma.is_empty() {
        return None;
    }
    let (tile, parts) = cut(e, mma, limits.units.max(1));
    Some(MatmulPlan::new(Method::Mma(tile), parts))
}

/// A matrix of `rows` rows times a few vectors. Reading the matrix bounds its time, for which a few groups per multiprocessor suffice.
fn choose_vectors(batches: usize, rows: usize, k: usize, acc: DType, is_along_k: bool, limits: &Limits) -> MatmulPlan {
    let threads = vector_threads(limits);
    let vector = WIDEST / acc.size();
    let wanted = 8 * limits.units.max(1);
    let is_small = rows.saturating_mul(k).saturating_mul(batches) < wanted * threads;
    let lanes = match (is_along_k, k.div_ceil(vector)) {
        (false, _) if is_small => 8,
        (false, _) => 32,
        (true, 0..=16) => 8,
        (true, _) if rows * batches >= wanted => 32,
        (true, 17..=256) => 32,
        (true, _) => threads,
    };
    let (block, least) = if is_along_k { (threads / lanes, 4 * lanes * vector) } else { (lanes * vector, LEAST_PART) };
    let groups = rows.div_ceil(block).saturating_mul(batches).max(1);
    let parts = wanted.div_ceil(groups).min(k / least).clamp(1, MOST_PARTS);
    MatmulPlan::new(Method::Vectors(lanes), parts)
}

/// The widest vector, in elements, for which a thread has an accumulator for each element in each of `rows` rows.
fn most_vector(size: usize, rows: usize) -> usize {
    (WIDEST / size).min(1 << (MOST_SUMS / rows).max(1).ilog2())
}

/// The number of vector columns of a group of `gemm_sum`. Where there are few columns and many splits, several threads share a column.
fn columns(words: usize, parts: usize, limits: &Limits) -> usize {
    let members = (parts / LEAST_ADDED).min(limits.units * THREADS / words.max(1)).max(1);
    (THREADS >> members.ilog2()).max(LEAST_COLUMNS)
}

fn vector_threads(limits: &Limits) -> usize {
    THREADS.min(1 << limits.max_group.max(1).ilog2())
}

pub(crate) const FAMILY: Family = Family {
    launchers: &[Launcher::of::<GemmActivation>(), Launcher::of::<MatmulSum>(), Launcher::of::<MatmulPointwise>()],
    examples: EXAMPLES,
};

impl FusedLaunch for GemmActivation {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run(gpu, call)
    }
}

impl FusedLaunch for MatmulSum {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run_with_sums(gpu, call, self)
    }
}

impl FusedLaunch for MatmulPointwise {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run(gpu, call)
    }
}

/// Runs [`Kernel::Matmul`], [`GemmActivation`] or [`MatmulPointwise`].
pub fn run(gpu: &Gpu, call: &Call<'_>) -> Result<()> {
    let product = Product::new(call)?;
    product.run(gpu, product.plan(gpu.driver()))
}

/// Runs [`MatmulSum`].
fn run_with_sums(gpu: &Gpu, call: &Call<'_>, product: &MatmulSum) -> Result<()> {
    let multiply = product_of_sums(call);
    run(gpu, &multiply)?;
    sum_factor(gpu, call, product)
}

/// The product of a [`MatmulSum`].
pub(crate) fn product_of_sums<'a>(call: &Call<'a>) -> Call<'a> {
    Call { kernel: Kernel::Matmul, outputs: &call.outputs[..1], ints: &[], floats: &[1.0, 0.0], ..*call }
}

/// The sums of a [`MatmulSum`].
pub(crate) fn sum_factor(gpu: &Gpu, call: &Call<'_>, product: &MatmulSum) -> Result<()> {
    let (MatmulSumInputs { a, b }, MatmulSumOutputs { sums, .. }) = (product.inputs(call), product.outputs(call));
    let columns = b.layout.transpose(1, 2);
    let input = match product.0 {
        Summed::Rows => *a,
        Summed::Columns => Operand { layout: &columns, ..*b },
    };
    let (kernel, outputs) = (Kernel::Reduce(Reduce::Sum), &[*sums]);
    reduce::run(gpu, &Call { kernel, inputs: &[input], outputs, ints: &[1], floats: &[], ..*call })
}

/// The operands of [`Kernel::Matmul`], [`GemmActivation`] or [`MatmulPointwise`].
fn operands<'a>(call: &'a Call<'_>) -> (GemmInputs<&'a Operand<'a>>, GemmOutputs<&'a Operand<'a>>) {
    if let Kernel::Fused(fused) = call.kernel {
        if let Some(of) = fused.downcast_ref::<GemmActivation>() {
            return (of.inputs(call), of.outputs(call));
        }
        if let Some(of) = fused.downcast_ref::<MatmulPointwise>() {
            let (MatmulPointwiseInputs { a, b, beside }, y) = (of.inputs(call), of.outputs(call).y);
            return (GemmInputs { a, b, c: Some(beside) }, GemmOutputs { y, z: None });
        }
    }
    // The operands of a primitive have an order.
    let (a, b, c) = (&call.inputs[0], &call.inputs[1], call.inputs.get(2));
    (GemmInputs { a, b, c }, GemmOutputs { y: &call.outputs[0], z: None })
}

/// The choice among our own kernels for a call.
pub fn plan(gpu: &Gpu, call: &Call<'_>) -> Result<MatmulPlan> {
    Ok(Product::new(call)?.plan(gpu.driver()))
}

/// Runs a call on our own kernels as a plan says, whether or not it is the best one. [`Method::Vectors`] and
/// [`Method::Outer`] are for extents of at most 16.
pub fn run_as(gpu: &Gpu, call: &Call<'_>, plan: MatmulPlan) -> Result<()> {
    Product::new(call)?.run(gpu, plan)
}

/// `y = activation(alpha a @ b + beta c)`, or a row of two operands of `alpha a @ b` and c, with addresses.
pub(crate) struct Product {
    pub e: Extents,
    pub dtype: DType,
    /// `[M, K]` and `[N, K]`.
    pub a: Side,
    pub b: Side,
    /// Address and strides of batch, row and column; y where c is not read.
    pub c: (u64, [usize; 3]),
    pub y: u64,
    pub alpha: f64,
    pub beta: f64,
    pub activation: Option<Pointwise>,
    /// A row of the product and c, in the place of their sum.
    pub joined: Option<Pointwise>,
    /// The address of the activation's input, if it is kept.
    pub z: Option<u64>,
    /// How the factors are read, unless by their strides.
    pub loading: Option<Loading>,
}

/// A file in the place of `loader.h`.
pub(crate) struct Loading {
    /// Its name.
    pub file: &'static str,
    /// Its flags.
    pub flags: Vec<(&'static str, bool)>,
    /// The addresses that it takes.
    pub pointers: Vec<u64>,
    /// The integers that it reads.
    pub integers: Integers,
}

/// A product `a @ b + c` whose factors are read by a loader.
pub(crate) struct Loaded {
    pub e: Extents,
    pub dtype: DType,
    pub a: Side,
    pub b: Side,
    /// Address and strides of batch, row and column.
    pub c: Option<(u64, [usize; 3])>,
    pub y: u64,
    /// Whether positions need more than 31 bits.
    pub is_wide: bool,
    /// Whether the loader gives matrix units whole words.
    pub has_words: bool,
    pub loading: Loading,
}

/// Runs a product whose factors are read by a loader.
pub(crate) fn run_loaded(gpu: &Gpu, loaded: Loaded) -> Result<()> {
    let Loaded { e, dtype, a, b, c, y, is_wide, has_words, loading } = loaded;
    let beta = if c.is_some() { 1.0 } else { 0.0 };
    let has_table = !loading.pointers.is_empty() && !a.is_along_k();
    let (c, loading) = (c.unwrap_or((y, [0; 3])), Some(loading));
    let product = Product { e, dtype, a, b, c, y, alpha: 1.0, beta, activation: None, joined: None, z: None, loading };
    let (limits, mma) = (gpu.driver().limits(), if has_words { gpu.driver().dialect().mma } else { &[] });
    let is_for_wgmma = has_words && limits.has_wgmma && y.is_multiple_of(WIDEST as u64);
    let plan = is_for_wgmma.then(|| wgmma::choose_words(e, has_table, limits)).flatten();
    let plan = plan.or_else(|| choose_mma(e, &used(e, mma), limits));
    let plan = plan.unwrap_or_else(|| choose_tiles(e, dtype.acc(), limits));
    product.run(gpu, MatmulPlan { is_wide, ..plan })
}

/// The tensor-core tiles at least half of whose results lie within the matrix, and halves of the largest tile; the last tile if there is
/// none.
fn used(e: Extents, mma: &[Tile]) -> SmallVec<[Tile; 4]> {
    let Some((&large, small)) = mma.split_first() else { return SmallVec::new() };
    let [of_m, of_n] = large.results;
    let narrow = Tile { n: large.n / 2, results: [of_m, of_n / 2], ..large };
    let low = Tile { m: large.m / 2, results: [of_m / 2, of_n], ..large };
    let all = [large, narrow, low].into_iter().chain(small.iter().copied());
    let is_used = |tile: &Tile| 2 * e.m * e.n > tile.count(e.m, e.n) * tile.m * tile.n;
    let found: SmallVec<[Tile; 4]> = all.filter(is_used).collect();
    if found.is_empty() { mma.last().copied().into_iter().collect() } else { found }
}

/// A launch of `gemm` or `gemv`.
struct Multiply {
    variant: Variant,
    entry: &'static str,
    /// Groups for one matrix.
    groups: usize,
    threads: usize,
    /// Bytes of local memory that the kernel is given.
    given: usize,
    inputs: [u64; 2],
    parts: usize,
    /// The matrices but the first.
    integers: Integers,
}

impl Product {
    pub(crate) fn new(call: &Call<'_>) -> Result<Product> {
        let (GemmInputs { a, b, c }, GemmOutputs { y: out, z }) = operands(call);
        let (a, b) = (Side::new(a, 1, 2)?, Side::new(b, 2, 1)?);
        let (y, z) = (start_of(out)?, z.map(start_of).transpose()?);
        let fused = if let Kernel::Fused(fused) = call.kernel { Some(fused.fused()) } else { None };
        let joined = fused.and_then(|fused| fused.downcast_ref::<MatmulPointwise>()).map(|fused| fused.0);
        let activated = fused.and_then(|fused| fused.downcast_ref::<GemmActivation>());
        let [alpha, beta] = match activated {
            Some(fused) => [fused.scale.alpha, fused.scale.beta],
            None if joined.is_some() => [1.0; 2],
            None => [call.floats[0], call.floats[1]],
        };
        let added = c.filter(|_| beta != 0.0);
        let c = match added {
            Some(c) => {
                let strides = c.layout.strides();
                (start_of(c)?, [strides[0], strides[1], strides[2]])
            }
            None => (y, [0; 3]),
        };
        Ok(Product {
            e: Extents { batches: out.layout.shape().dims()[0], m: a.rows, n: b.rows, k: a.k },
            dtype: out.dtype,
            a,
            b,
            c,
            y,
            alpha,
            beta: if added.is_some() { beta } else { 0.0 },
            activation: activated.map(|fused| fused.activation),
            joined,
            z,
            loading: None,
        })
    }

    /// Whether a vendor's library may be asked for the product.
    pub(crate) fn is_for_libraries(&self, gpu: &Gpu) -> bool {
        self.numel() > 0 && self.plan(gpu.driver()).method.is_for_libraries()
    }

    fn plan(&self, driver: &dyn Driver) -> MatmulPlan {
        if self.is_scale() {
            return MatmulPlan::new(Method::Scale, 0);
        }
        let limits = driver.limits();
        let is_large = self.e.m > tiles::FLAT.m && self.e.n > tiles::TALL.n && !is_few(self.e.k, self.e, self.dtype);
        if is_large && self.fits_wgmma(limits) {
            return MatmulPlan::new(Method::Wgmma, 1);
        }
        let mma = if is_large && self.fits_mma(limits) { driver.dialect().mma } else { &[] };
        let along_k = self.matrix_and_vectors().map(|side| side.is_along_k());
        let otherwise = || choose(self.e, self.dtype, along_k, limits);
        choose_mma(self.e, mma, limits).unwrap_or_else(otherwise)
    }

    /// The operand with more rows, as the matrix, and the other, whose rows are vectors.
    fn matrix_and_vectors(&self) -> [&Side; 2] {
        if self.e.n <= self.e.m { [&self.a, &self.b] } else { [&self.b, &self.a] }
    }

    /// Whether matrix units can multiply the operands as they lie.
    fn fits_mma(&self, limits: &Limits) -> bool {
        let has_words = |side: &Side| side.has_words(MMA_WORD);
        limits.has_mma && self.dtype.size() == 2 && has_words(&self.a) && has_words(&self.b)
    }

    fn run(&self, gpu: &Gpu, plan: MatmulPlan) -> Result<()> {
        if self.numel() == 0 {
            return Ok(());
        }
        match plan.method {
            Method::Scale => self.sum(gpu, 0, self.y),
            Method::Vectors(lanes) => self.vectors(gpu, lanes, plan),
            Method::Outer => self.outer(gpu, plan),
            Method::Tiles(tile) | Method::Mma(tile) | Method::WgmmaWords(tile) => self.tiles(gpu, tile, plan),
            Method::Wgmma => self.wgmma(gpu),
        }
    }

    pub(crate) fn numel(&self) -> usize {
        self.e.batches * self.e.m * self.e.n
    }

    /// Whether a and b are not read.
    fn is_scale(&self) -> bool {
        self.alpha == 0.0 || self.e.k == 0
    }

    pub(crate) fn variant(&self, file: &'static str, threads: usize, is_wide: bool) -> Variant {
        let variant = Variant::new(file).define("THREADS", threads).stored(self.dtype);
        variant.flags([("NEAR", self.dtype.size() == 2), ("WIDE", is_wide)])
    }

    /// The variant that writes results, not parts of them.
    pub(crate) fn finishing(&self, variant: Variant) -> Variant {
        match (self.activation, self.joined) {
            (Some(row), _) => {
                variant.define("ACTIVATION", row.name()).define("KEEPS_SUM", self.z.is_some()).calling(row)
            }
            (None, Some(row)) => variant.define("JOIN", row.name()).calling(row),
            (None, None) => variant,
        }
    }

    /// Launches a kernel that multiplies, and adds up the parts.
    fn launch(&self, gpu: &Gpu, multiply: Multiply, plan: MatmulPlan) -> Result<()> {
        let Multiply { variant, entry, groups, threads, given, inputs, parts, integers } = multiply;
        let acc = self.dtype.acc();
        let scratch = match parts {
            1 => None,
            _ => Some(gpu.scratch(parts * self.numel() * acc.size())?),
        };
        let sums = scratch.as_ref().map_or(self.y, |s| s.address);
        let at_once = (plan.most_groups / groups).max(1);
        let variant = if parts == 1 { self.finishing(variant) } else { variant };
        for first in (0..self.e.batches).step_by(at_once) {
            let groups = groups * at_once.min(self.e.batches - first);
            let named = Integers::new().integers([("FIRST_BATCH", first)]).and(&integers);
            let named = self.loading.iter().fold(named, |named, own| named.and(&own.integers));
            let pointers = [inputs[0], inputs[1], self.c.0, self.y, self.z.unwrap_or(self.y), sums];
            let arguments = Arguments::new().pointers(pointers).named(named).floats([self.alpha, self.beta], acc);
            let arguments = arguments.pointers(self.loading.iter().flat_map(|own| own.pointers.iter().copied()));
            let geometry = Geometry { given, ..Geometry::new([groups, 1, 1], threads) };
            gpu.launch(variant.clone(), entry, geometry, &arguments)?;
        }
        if parts > 1 { self.sum(gpu, parts, sums) } else { Ok(()) }
    }

    fn tiles(&self, gpu: &Gpu, tile: Tile, plan: MatmulPlan) -> Result<()> {
        let Extents { batches, m, n, k } = self.e;
        let (size, acc) = (self.dtype.size(), self.dtype.acc());
        // A global load has as many elements as a 16-byte word of local memory, which may have a wider dtype.
        let vector = WIDEST / acc.size();
        let is_mma = !matches!(plan.method, Method::Tiles(_));
        let run = if is_mma { MMA_WORD } else { vector.min(tile.results[0]).min(tile.results[1]) };
        let part = k.div_ceil(plan.parts).next_multiple_of(tile.k);
        let parts = k.div_ceil(part);
        let spans = [(self.a, tile.m), (self.b, tile.n)];
        let is_wide = plan.is_wide || spans.iter().any(|(side, rows)| side.is_wide(*rows, tile.k));
        let tiles = [m.div_ceil(tile.m), n.div_ceil(tile.n)];
        let y_words = [self.y, self.z.unwrap_or(self.y)].iter().all(|y| y.is_multiple_of((run * size) as u64));
        let integers = Integers::new()
            .integers([("EXTENT_M", m), ("EXTENT_N", n), ("EXTENT_K", k), ("BATCHES", batches)])
            .integers([("TILES_M", tiles[0]), ("TILES_N", tiles[1]), ("N_PARTS", parts), ("PART_K", part)])
            .integers([("Y_HAS_WORDS", y_words)])
            .list("C_STRIDES", self.c.1);
        let integers = match self.loading {
            Some(_) => integers,
            None => integers.list("A_STRIDES", self.a.strides).list("B_STRIDES", self.b.strides),
        };
        let words = |side: &Side| if side.has_words(vector) { vector } else { 1 };
        let (file, entry) = match plan.method {
            Method::Mma(_) => ("matrix/mma.c", "gemm_mma"),
            Method::WgmmaWords(_) => ("matrix/wgmma_words.c", "gemm_wgmma_words"),
            _ => (FILE, "gemm"),
        };
        let mut variant = self
            .variant(file, tile.threads(), is_wide)
            .define("TILE_M", tile.m)
            .define("TILE_N", tile.n)
            .define("TILE_K", tile.k)
            .define("A_ALONG_K", self.a.is_along_k())
            .define("B_ALONG_K", self.b.is_along_k());
        if !is_mma {
            variant = variant
                .define("RESULTS_M", tile.results[0])
                .define("RESULTS_N", tile.results[1])
                .words(vector, size)
                .define("RUN", run)
                .define("RUN_WORD", word(run * acc.size()))
                .define("STORE_WORD", word(run * size))
                .define("A_VECTOR", words(&self.a))
                .define("B_VECTOR", words(&self.b));
        }
        let mut given = 0;
        if let Method::WgmmaWords(_) = plan.method {
            let [stages, at_once] = wgmma::stages_of_words(tile);
            variant = variant.define("STAGES", stages).define("AT_ONCE", at_once);
            given = wgmma::given_for_words(tile, stages);
        }
        if let Some(loading) = &self.loading {
            variant = loading
                .flags
                .iter()
                .fold(variant.loading(loading.file), |variant, (name, is_set)| variant.flag(name, *is_set));
        }
        let (groups, inputs) = (tiles[0] * tiles[1] * parts, [self.a.address, self.b.address]);
        let threads = tile.threads();
        self.launch(gpu, Multiply { variant, entry, groups, threads, given, inputs, parts, integers }, plan)
    }

    /// A product with few columns, or with few rows: then the rows of a are the vectors.
    fn vectors(&self, gpu: &Gpu, lanes: usize, plan: MatmulPlan) -> Result<()> {
        let Extents { batches, n, k, .. } = self.e;
        let [matrix, x] = self.matrix_and_vectors();
        let [c_batch, c_row, c_column] = self.c.1;
        // Words of a row of the matrix, and of a vector.
        let (c, y) =
            if std::ptr::eq(matrix, &self.a) { ([c_row, c_column], [n, 1]) } else { ([c_column, c_row], [1, n]) };
        let threads = vector_threads(gpu.driver().limits());
        let lanes = lanes.min(threads);
        let size = self.dtype.size();
        let vector = matrix.vector(most_vector(size, x.rows));
        let is_along_k = matrix.is_along_k();
        let has_words = is_along_k && x.is_along_k() && x.has_words(vector);
        let block = if is_along_k { threads / lanes } else { lanes * vector };
        let part = k.div_ceil(plan.parts).next_multiple_of(WIDEST);
        let parts = k.div_ceil(part);
        // The loop counter exceeds the end by less than this.
        let reach = part + THREADS * WIDEST;
        let is_wide = plan.is_wide || matrix.is_wide(block, reach) || x.is_wide(x.rows, reach);
        let blocks = matrix.rows.div_ceil(block);
        let integers = Integers::new()
            .integers([("N_ROWS", matrix.rows), ("EXTENT_K", k), ("BATCHES", batches)])
            .integers([("BLOCKS", blocks), ("N_PARTS", parts), ("PART_K", part)])
            .list("A_STRIDES", matrix.strides)
            .list("X_STRIDES", x.strides)
            .list("C_STRIDES", [c_batch, c[0], c[1]])
            .list("Y_STRIDES", y);
        let variant = self
            .variant(FILE, threads, is_wide)
            .define("LANES", lanes)
            .define("TEAM", lanes)
            .define("COLUMNS", x.rows)
            .define("TOGETHER", (MOST_TOGETHER / (threads * vector)).clamp(1, x.rows))
            .words(vector, size)
            .define("ALONG_K", is_along_k)
            .define("HAS_WORDS", has_words);
        let (groups, inputs) = (blocks * parts, [matrix.address, x.address]);
        self.launch(gpu, Multiply { variant, entry: "gemv", groups, threads, given: 0, inputs, parts, integers }, plan)
    }

    /// K is small.
    fn outer(&self, gpu: &Gpu, plan: MatmulPlan) -> Result<()> {
        let Extents { batches, m, n, k } = self.e;
        let size = self.dtype.size();
        let written = [self.y, self.z.unwrap_or(self.y)];
        let vector = widest(most_vector(size, OUTER_ROWS), [n], written.map(|y| (y, size)));
        let items = batches * m.div_ceil(OUTER_ROWS) * (n / vector);
        let integers = Integers::new()
            .integers([("EXTENT_M", m), ("EXTENT_N", n), ("EXTENT_K", k), ("ITEMS", items)])
            .list("A_STRIDES", self.a.strides)
            .list("B_STRIDES", self.b.strides)
            .list("C_STRIDES", self.c.1);
        let variant = self
            .variant(FILE, THREADS, plan.is_wide || items > i32::MAX as usize)
            .define("ROWS", OUTER_ROWS)
            .words(vector, size)
            .define("HAS_WORDS", !self.b.is_along_k() && self.b.has_words(vector));
        let variant = self.finishing(variant);
        let pointers = [self.a.address, self.b.address, self.c.0, self.y, self.z.unwrap_or(self.y)];
        let arguments = Arguments::new().pointers(pointers).named(integers);
        let arguments = arguments.floats([self.alpha, self.beta], self.dtype.acc());
        gpu.launch(variant, "gemm_outer", each(items), &arguments)
    }

    /// Bits that say where a row of 1 and c, which is one matrix and contiguous along its rows, is not 0: `leading` for each row,
    /// a multiple of 32.
    pub(crate) fn mask(&self, gpu: &Gpu, row: Pointwise, leading: usize, mask: u64) -> Result<()> {
        let (Extents { m, n, .. }, size) = (self.e, self.dtype.size());
        let (address, [_, step, _]) = self.c;
        let (vector, words) = (widest(most_vector(size, 1), [n, step], [(address, size)]), leading / 32);
        let integers = [("EXTENT_M", m), ("EXTENT_N", n), ("C_STEP", step), ("MASK_WORDS", words)];
        let variant = self
            .variant(FILE, THREADS, m * leading.max(step) > i32::MAX as usize)
            .define("MASK", true)
            .words(vector, size)
            .define("JOIN", row.name())
            .calling(row);
        let arguments = Arguments::new().pointers([address, mask]).named(Integers::new().positions(integers));
        gpu.launch(variant, "gemm_mask", each(m * words), &arguments)
    }

    /// `y = activation(alpha (sum of the parts) + beta c)`, or a row of that sum and c.
    pub(crate) fn sum(&self, gpu: &Gpu, parts: usize, sums: u64) -> Result<()> {
        let Extents { batches, m, n, .. } = self.e;
        let acc = self.dtype.acc();
        let integers = Integers::new()
            .integers([("EXTENT_M", m), ("EXTENT_N", n), ("BATCHES", batches), ("N_PARTS", parts)])
            .list("C_STRIDES", self.c.1);
        let written = [self.y, self.z.unwrap_or(self.y)].map(|y| (y, self.dtype.size()));
        let vector = widest(most_vector(acc.size(), 1), [n], written.into_iter().chain([(sums, acc.size())]));
        let words = self.numel() / vector;
        let columns = columns(words, parts, gpu.driver().limits());
        let variant = self
            .variant(FILE, THREADS, self.numel() > i32::MAX as usize)
            .words(vector, self.dtype.size())
            .define("COLUMNS", columns)
            .define("SUM_WORD", word(vector * acc.size()));
        let variant = self.finishing(variant);
        let pointers = [self.c.0, self.y, self.z.unwrap_or(self.y), sums];
        let arguments = Arguments::new().pointers(pointers).named(integers).floats([self.alpha, self.beta], acc);
        gpu.launch(variant, "gemm_sum", groups(words.div_ceil(columns), THREADS).following(), &arguments)
    }
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| zeros(d, t, &[1024, 1024])?.matmul(&zeros(d, t, &[1024, 1024])?).map(drop),
    // A product with a tile for each multiprocessor.
    |d, t| zeros(d, t, &[4096, 1024])?.matmul(&zeros(d, t, &[1024, 4096])?.t()?).map(drop),
    // A product without whole words, which matrix units would take.
    |d, t| zeros(d, t, &[1023, 1023])?.matmul(&zeros(d, t, &[1023, 1023])?).map(drop),
    // A product that a library has on copies with whole words.
    |d, t| zeros(d, t, &[515, 515])?.matmul(&zeros(d, t, &[515, 515])?).map(drop),
    |d, t| zeros(d, t, &[64, 65536])?.matmul(&zeros(d, t, &[65536, 64])?).map(drop),
    |d, t| zeros(d, t, &[1024, 1024])?.matmul(&zeros(d, t, &[1024, 1])?).map(drop),
    |d, t| zeros(d, t, &[128, 1024])?.matmul(&zeros(d, t, &[10, 1024])?.t()?).map(drop),
    |d, t| zeros(d, t, &[10, 128])?.matmul(&zeros(d, t, &[128, 1024])?).map(drop),
    |d, t| zeros(d, t, &[128, 10])?.matmul(&zeros(d, t, &[10, 1024])?).map(drop),
    // Gradients through the activation of a factor, one of which a library masks.
    |d, t| differentiate(d, t, &[&[1024, 1024], &[1024, 1024]], |x| x[0].silu()?.matmul(&x[1])),
    |d, t| differentiate(d, t, &[&[128, 1024], &[1024, 10]], |x| x[0].gelu(Approximate::None)?.matmul(&x[1])),
    |d, t| differentiate(d, t, &[&[4096, 1024], &[1024, 1024]], |x| x[0].relu()?.matmul(&x[1])),
    // An activation of a product, and the gradients of the second factor and of the bias at once.
    |d, t| {
        differentiate(d, t, &[&[1024, 1024], &[1024, 1024], &[1024]], |x| {
            let activation = Activation::Gelu(Approximate::None);
            x[0].gemm_bias(&x[1], Some(&x[2]), &GemmBias { activation, ..Default::default() })
        })
    },
];
