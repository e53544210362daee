//! Attention in tiles, and its gradients.
//!
//! Its constants were tuned on an H100.

use crate::driver::{Address, Geometry, Limits};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::integers::Integers;
use crate::launch::operands::start_of;
use crate::launch::words::fits;
use crate::memory::status::{Check, Slot};
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, in_tf32, zeros};
use crate::ops::random::draw::{state_ints, with_base};
use crate::program::source::Variant;
use isograd_core::backend::{index_error, starts_error};
use isograd_core::fused::Fused;
use isograd_core::ops::attention::flash::{
    Draws, FlashAttention, FlashAttentionBackward, FlashBackwardInputs, FlashGradients, FlashInputs, FlashOutputs,
};
use isograd_core::ops::attention::sequences::Sequences;
use isograd_core::ops::{Attention, Causal};
use isograd_core::{Call, DType, Device, Operand, Precision, Result, Rng, Tensor};
use std::ops::Range;

pub const FAMILY: Family = Family {
    launchers: &[Launcher::of::<FlashAttention>(), Launcher::of::<FlashAttentionBackward>()],
    examples: EXAMPLES,
};

/// Scales for which `-inf * scale` is `-inf` in f32.
const SCALES: Range<f64> = 1e-30..1e30;
/// Elements of a word.
const WORD: usize = 4;
/// The file of the kernels on matrix units.
const MMA: &str = "attention/attention_mma.c";
/// The widest head for which a wave holds two accumulators, of dk and of dv.
const MOST_MMA: usize = 128;
/// Rows of the resident tile (4 warps).
const ROWS_MMA: usize = 64;
/// Rows of the streamed tile, best first.
const OTHERS_MMA: [usize; 3] = [64, 32, 16];
/// The most bytes of tiles in TF32: `[forward, backward]`. A multiprocessor of an H100 then runs three groups, or two; with larger tiles
/// both kernels take half as long again.
const ROOM_TF32: [usize; 2] = [64 << 10, 96 << 10];
/// The file of the kernels for Hopper's tensor cores (WGMMA), which read local memory.
const WGMMA: &str = "attention/attention_wgmma.c";
/// The widest head of these kernels.
const MOST_WGMMA: usize = 128;
/// The number of queries up to which their tile would be half empty.
const FEW_WGMMA: usize = 64;
/// Keys of a tile of these kernels.
const KEYS_WGMMA: usize = 128;
/// Alignment of a tile of these kernels, in bytes.
const ALIGNMENT: usize = 1024;
/// Elements of a tile of the gradient of q.
const SUMS_WGMMA: usize = 8192;
/// The most key tiles of a head that run at a time. They add to dq in turns, so that with few of them the first wait is short.
const TOGETHER: usize = 32;
/// Keys are split among groups only up to this many score rows per KV head, for one query.
const MOST_HEADS: usize = 64;
/// The same limit for several queries.
const MOST_ROWS: usize = 16;
/// The fewest keys that are split for several queries.
const LEAST_KEYS: usize = 512;
/// The fewest keys of a split.
const LEAST_PART: usize = 128;
/// The most splits of a head's keys.
const MOST_PARTS: usize = 64;

impl FusedLaunch for FlashAttention {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let (problem, FlashOutputs { o, lse }) = (Problem::new(self, self.inputs(call), None), self.outputs(call));
        let pointers: Vec<Address> = problem.starts()?.into_iter().chain([start_of(o)?, start_of(lse)?]).collect();
        match problem.parts(gpu)? {
            Some(parts) => problem.launch_parts(gpu, call.op, &parts, (pointers, o)),
            None => problem.launch(gpu, call.op, Kernel::Output, (pointers, o)),
        }
    }

    fn takes(dtype: DType, _limits: &Limits) -> bool {
        dtype.is_float() && dtype.acc() == DType::F32
    }
}

impl FusedLaunch for FlashAttentionBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let inputs = self.inputs(call);
        let FlashBackwardInputs { dy, dlse, o, lse, .. } = inputs;
        let problem = Problem::new(&self.0, inputs.forward(), Some(dy));
        let delta = gpu.scratch(lse.layout.shape().numel() * lse.dtype.size())?;
        problem.launch_delta(gpu, dy, dlse, o, delta.address)?;
        let read = [problem.starts()?.as_slice(), &[start_of(dy)?, start_of(lse)?, delta.address]].concat();
        let outputs = self.outputs(call);
        if problem.launch_on_wgmma(gpu, &read, outputs)? {
            return Ok(());
        }
        let FlashGradients { q: dq, k: dk, v: dv } = outputs;
        if let Some(dq) = dq {
            problem.launch(gpu, call.op, Kernel::Queries, ([&read[..], &[start_of(dq)?]].concat(), dq))?;
        }
        if let (Some(dk), Some(dv)) = (dk, dv) {
            problem.launch(gpu, call.op, Kernel::Keys, ([&read[..], &[start_of(dk)?, start_of(dv)?]].concat(), dk))?;
        }
        Ok(())
    }

    fn takes(dtype: DType, limits: &Limits) -> bool {
        FlashAttention::takes(dtype, limits)
    }
}

/// A kernel that computes scores.
#[derive(Clone, Copy, PartialEq)]
enum Kernel {
    Output,
    Queries,
    Keys,
}

impl Kernel {
    /// Its flag, its name, and its name on matrix units.
    fn names(self) -> [&'static str; 3] {
        match self {
            Kernel::Output => ["OUTPUT", "attention", "attention_mma"],
            Kernel::Queries => ["QUERIES", "attention_queries", "attention_queries_mma"],
            Kernel::Keys => ["KEYS", "attention_keys", "attention_keys_mma"],
        }
    }
}

/// A call's attributes and operands.
struct Problem<'a> {
    of: &'a FlashAttention,
    /// q, k, v and, in the backward pass, dy.
    rows: Vec<&'a Operand<'a>>,
    mask: Option<&'a Operand<'a>>,
    /// The operands of the sequences.
    ends: Vec<&'a Operand<'a>>,
    base: Option<&'a Operand<'a>>,
}

impl<'a> Problem<'a> {
    fn new(
        attention: &'a FlashAttention,
        inputs: FlashInputs<&'a Operand<'a>>,
        dy: Option<&'a Operand<'a>>,
    ) -> Problem<'a> {
        let FlashInputs { q, k, v, mask, base, .. } = inputs;
        Problem {
            of: attention,
            rows: [q, k, v].into_iter().chain(dy).collect(),
            mask,
            ends: inputs.ends().collect(),
            base,
        }
    }

    fn dims(&self, operand: usize) -> &[usize] {
        self.rows[operand].layout.shape().dims()
    }

    /// The addresses of q, k and v.
    fn starts(&self) -> Result<Vec<Address>> {
        self.rows[..3].iter().map(|x| start_of(x)).collect()
    }

    /// The integers of `attention.h`.
    fn integers(&self, tiles: usize, result: &Operand<'_>) -> Integers {
        let (q, k, band) = (self.dims(0), self.dims(1), self.of.band);
        let own = Integers::new()
            .integers([("N_QUERIES", q[2]), ("N_KEYS", k[2]), ("ROW_WIDTH", q[3])])
            .integers([("HEADS", q[1]), ("SHARED_BY", q[1] / k[1]), ("TILES", tiles)])
            .integers([("BAND_LOW", band.low), ("BAND_HIGH", band.high)])
            .integers([("SEQUENCES", self.sequences()), ("FROM_END", usize::from(self.of.from_end))]);
        let rows = self.rows.iter().chain([&result]).copied();
        let names = ["QUERY_STRIDES", "KEY_STRIDES", "VALUE_STRIDES", "DY_STRIDES"][..self.rows.len()].iter();
        let named = names.chain([&"RESULT_STRIDES"]).zip(rows);
        named.fold(own, |own, (name, x)| own.list(name, x.layout.strides()[..3].iter().copied()))
    }

    /// The number of packed sequences, or of numbers of keys.
    fn sequences(&self) -> usize {
        let numbers = self.ends.first().map_or(0, |ends| ends.layout.shape().numel());
        if self.of.sequences == Sequences::Packed { numbers - 1 } else { numbers }
    }

    /// The number of tiles along `rows` rows of a batch. Each packed sequence may end in a partial tile, and so may the rows before and after
    /// all sequences.
    fn tiles(&self, rows: usize, tile: usize) -> usize {
        if self.of.sequences == Sequences::Packed { rows / tile + self.sequences() + 2 } else { rows.div_ceil(tile) }
    }

    /// The program of a file, which it moves in words.
    fn program(&self, file: &'static str, dim: usize) -> Variant {
        Variant::new(file).stored(self.rows[0].dtype).define("DIM", dim)
    }

    /// True if rows consist of whole words of so many elements.
    fn has_words(&self, elements: usize) -> Result<bool> {
        are_words(elements, &self.rows)
    }

    /// A program for tiles of `4 grid` queries and keys, which moves words, or elements. `team` threads share a row.
    fn variant(&self, grid: usize, team: usize, has_words: bool) -> Result<Variant> {
        let (dtype, width) = (self.rows[0].dtype, self.dims(0)[3]);
        let vector = if has_words { WORD } else { 1 };
        // With wide heads, a thread has an even number of columns.
        let unit = if width > 2 * grid { 2 * grid } else { grid };
        let program = self.program("attention/attention.c", width.next_multiple_of(unit)).words(vector, dtype.size());
        Ok(program.define("GRID", grid).define("THREADS", grid * grid).define("TEAM", team))
    }

    /// The program and the shape of a launch. Tiles are along the rows of q, or of k.
    fn method(&self, gpu: &Gpu, kernel: Kernel, rows: usize) -> Result<Method> {
        if kernel == Kernel::Output
            && let Some(method) = self.on_wgmma(gpu)?
        {
            return Ok(method);
        }
        if let Some(method) = self.on_matrix_units(gpu, kernel)? {
            return Ok(method);
        }
        let grid = grid_of(gpu.driver().limits(), rows);
        let entry = kernel.names()[1];
        Ok(Method {
            program: self.variant(grid, grid, self.has_words(WORD)?)?,
            entry,
            tile: 4 * grid,
            threads: grid * grid,
            given: 0,
        })
    }

    /// The same on matrix units, f32 in TF32; `None` where the device has none, or its dialect no kernel for the call.
    fn on_matrix_units(&self, gpu: &Gpu, kernel: Kernel) -> Result<Option<Method>> {
        let (limits, dialect) = (gpu.driver().limits(), gpu.driver().dialect());
        let (dtype, width) = (self.rows[0].dtype, self.dims(0)[3]);
        let has_kernel = limits.has_mma && dialect.files.iter().any(|(file, _)| *file == MMA);
        // With wide heads, two accumulators exceed the registers.
        let is_wide = width > MOST_MMA && kernel == Kernel::Keys;
        let is_tf32 = dtype == DType::F32 && gpu.precision() != Precision::Exact && limits.turns_operands;
        let fits = has_kernel && (dtype.size() == 2 || is_tf32) && SCALES.contains(&self.of.scale) && !is_wide;
        if !fits || !self.has_words(16 / dtype.size())? {
            return Ok(None);
        }
        if !limits.turns_operands {
            return Ok(self.on_turned_tiles(limits, kernel));
        }
        // So do two blocks of rows with heads wider than 64, or with a mask or dropout.
        let is_plain = self.mask.is_none() && self.of.dropout.is_none();
        let most_blocks = if kernel == Kernel::Output && width <= 64 && is_plain { 2 } else { 1 };
        let dim = width.next_multiple_of(64);
        let (row, most) = (dim * dtype.size(), limits.given_memory);
        let room = if is_tf32 { most.min(ROOM_TF32[usize::from(kernel != Kernel::Output)]) } else { most };
        let tiles = tiles_mma(kernel, most_blocks, row, room).or_else(|| tiles_mma(kernel, most_blocks, row, most));
        let Some([tile, others, given]) = tiles else { return Ok(None) };
        let steps = if is_tf32 { width.div_ceil(32) * 2 } else { width.div_ceil(16) };
        let program = self.program(MMA, dim).define("STEPS", steps).define("BLOCKS", tile / ROWS_MMA);
        let (entry, threads) = (kernel.names()[2], 128usize);
        let program = program.define("OTHERS_TILE", others).define("THREADS", threads).flag("TF32", is_tf32);
        Ok(Some(Method { program, entry, tile, threads, given }))
    }

    /// The same for devices whose waves cannot transpose operands that they load from local memory. Resident rows are in registers, two
    /// threads per row. Streamed tiles are in local memory: k and v; for dq also k transposed; for dk and dv q, dy and the transpose of
    /// each.
    fn on_turned_tiles(&self, limits: &Limits, kernel: Kernel) -> Option<Method> {
        let (size, width) = (self.rows[0].dtype.size(), self.dims(0)[3]);
        let dim = width.next_multiple_of(64);
        let others = if dim == 64 && kernel == Kernel::Output { 64 } else { 32 };
        let tiles = match kernel {
            Kernel::Output => 2,
            Kernel::Queries => 3,
            Kernel::Keys => 4,
        };
        let given = tiles * others * dim * size;
        if given > limits.given_memory {
            return None;
        }
        let rows = self.dims(usize::from(kernel == Kernel::Keys))[2];
        let tile = if rows > 64 || dim > 128 { 128 } else { 64 };
        let program = self.program(MMA, dim).define("STEPS", width.div_ceil(16)).define("OTHERS_TILE", others);
        let program = program.define("THREADS", 2 * tile);
        Some(Method { program, entry: kernel.names()[2], tile, threads: 2 * tile, given })
    }

    /// True if kernels on matrix units that read local memory compute the call.
    fn fits_wgmma(&self, gpu: &Gpu) -> Result<bool> {
        let has_kernel = gpu.driver().dialect().files.iter().any(|(file, _)| *file == WGMMA);
        let is_plain = self.mask.is_none() && self.of.dropout.is_none();
        let is_large = self.dims(0)[2].min(self.dims(1)[2]) > FEW_WGMMA && self.dims(0)[3] <= MOST_WGMMA;
        let size = self.rows[0].dtype.size();
        let fits = gpu.driver().limits().has_wgmma && has_kernel && is_plain && is_large && size == 2;
        Ok(fits && SCALES.contains(&self.of.scale) && self.has_words(16 / size)?)
    }

    /// The forward kernel. Narrow heads leave registers for four more waves. Their larger tile is only used if all queries attend to all
    /// keys: at the diagonal of a causal mask, more of it would be wasted.
    fn on_wgmma(&self, gpu: &Gpu) -> Result<Option<Method>> {
        if !self.fits_wgmma(gpu)? {
            return Ok(None);
        }
        let dim = self.dims(0)[3].next_multiple_of(64);
        let (queries, keys, band) = (self.dims(0)[2] as i64, self.dims(1)[2] as i64, self.of.band);
        let has_all = band.low <= 1 - queries && band.high >= keys - 1;
        let threads = if dim == 64 && has_all { 384usize } else { 256 };
        let (program, tile) = (self.program(WGMMA, dim).define("THREADS", threads), threads / 2);
        // A tile of queries, and two of keys and of values.
        let given = (tile + 4 * KEYS_WGMMA) * dim * self.rows[0].dtype.size() + ALIGNMENT;
        Ok(Some(Method { program, entry: "attention_wgmma", tile, threads, given }))
    }

    /// Launches the kernel of all gradients; false if it does not take the call.
    fn launch_on_wgmma(&self, gpu: &Gpu, read: &[Address], outputs: FlashGradients<&Operand<'_>>) -> Result<bool> {
        let FlashGradients { q: Some(dq), k: Some(dk), v: Some(dv) } = outputs else { return Ok(false) };
        let (q, k, band) = (self.dims(0), self.dims(1), self.of.band);
        let size = self.rows[0].dtype.size();
        // Each query must have a key: only key tiles write gradients of queries.
        let has_keys = band.high >= 0 && q[2] as i64 - 1 + band.low < k[2] as i64;
        let is_whole = self.of.sequences == Sequences::Whole;
        if !is_whole || !has_keys || !are_words(16 / size, &[dq, dk, dv])? || !self.fits_wgmma(gpu)? {
            return Ok(false);
        }
        let (threads, dim) = (256usize, q[3].next_multiple_of(64));
        let queries = SUMS_WGMMA / dim;
        let (tiles, tiles_q) = (k[2].div_ceil(KEYS_WGMMA), q[0] * q[1] * q[2].div_ceil(queries));
        // Turn counters, then f32 sums of dq; neither is needed for a single turn.
        let counted = (tiles_q * size_of::<u32>()).next_multiple_of(16);
        let scratch = gpu.scratch(counted + if tiles > 1 { tiles_q * SUMS_WGMMA * size_of::<f32>() } else { 0 })?;
        gpu.driver().fill(scratch.address, 0, counted)?;
        let together = gpu.driver().limits().units.div_ceil(tiles.min(TOGETHER));
        let integers = self.integers(tiles, dk).list("DQ_STRIDES", dq.layout.strides()[..3].iter().copied());
        let integers = integers.integers([("TOGETHER", together)]);
        let pointers = [
            read,
            &[start_of(dq)?, start_of(dk)?, start_of(dv)?],
            &[scratch.address + counted as Address, scratch.address],
        ]
        .concat();
        let arguments = self.arguments(&pointers, integers)?;
        // Keys and values, three tiles of queries and of gradients with two numbers of each query, and two of gradients of scores.
        let rows = 2 * KEYS_WGMMA + 6 * queries;
        let given = rows * dim * size + 2 * KEYS_WGMMA * queries * size + 6 * queries * size_of::<f32>() + ALIGNMENT;
        let program = self.program(WGMMA, dim).define("THREADS", threads).define("GRADIENTS", true);
        let geometry = Geometry { given, ..Geometry::new([tiles * k[1] * k[0], 1, 1], threads) };
        gpu.launch(program, "attention_gradients_wgmma", geometry, &arguments)?;
        Ok(true)
    }

    fn launch(
        &self,
        gpu: &Gpu,
        op: &'static str,
        kernel: Kernel,
        (pointers, result): (Vec<Address>, &Operand<'_>),
    ) -> Result<()> {
        let of_rows = self.dims(usize::from(kernel == Kernel::Keys));
        let (batches, heads, rows) = (of_rows[0], of_rows[1], of_rows[2]);
        let Method { program, entry, tile, threads, given } = self.method(gpu, kernel, rows)?;
        let tiles = self.tiles(rows, tile);
        let program = self.with_flags(program.define(kernel.names()[0], true));
        let (program, base) = with_base(program, self.base)?;
        let mut arguments = self.arguments(&pointers, self.integers(tiles, result))?;
        if let Some(Draws { state, threshold, scale }) = self.of.dropout {
            arguments = arguments.pointer(base.unwrap_or(pointers[0])).numbers(state_ints(state));
            arguments = arguments.int(threshold).float(scale, DType::F32);
        }
        let checks = self.checks(gpu, op, kernel == Kernel::Output)?;
        let arguments = self.with_ends(arguments, &checks)?;
        let geometry = Geometry { given, ..Geometry::new([tiles * heads * batches, 1, 1], threads) };
        gpu.launch(program, entry, geometry, &arguments)?;
        self.finish(gpu, op, checks)
    }

    /// The flags of masks, dropout and sequences.
    fn with_flags(&self, program: Variant) -> Variant {
        let mask = self.mask.map(|mask| mask.dtype);
        let flags = [
            ("ADDS_MASK", mask.is_some_and(DType::is_float)),
            ("DROPOUT", self.of.dropout.is_some()),
            ("PACKED", self.of.sequences == Sequences::Packed),
            ("LENGTHS", self.of.sequences == Sequences::Lengths),
        ];
        program.optional("MASK", mask).flags(flags)
    }

    /// Pointers, integers, the scale and the mask.
    fn arguments(&self, pointers: &[Address], integers: Integers) -> Result<Arguments> {
        let masks = self.mask.iter().map(|mask| mask.layout.strides());
        let integers = masks.fold(integers, |own, strides| own.list("MASK_STRIDES", strides.iter().copied()));
        let arguments = Arguments::new().pointers(pointers.iter().copied()).named(integers);
        let mask = self.mask.map(start_of).transpose()?;
        Ok(arguments.float(self.of.scale, DType::F32).pointers(mask))
    }

    /// A slot for each operand of the sequences that a kernel checks, and the numbers that it may have.
    fn checks(&self, gpu: &Gpu, op: &'static str, is_checked: bool) -> Result<Vec<(Slot, usize)>> {
        let slot = |i: usize| {
            let check = match self.of.sequences {
                Sequences::Packed => Check::Starts(self.dims(i)[2]),
                _ => Check::Index(self.dims(1)[2] + 1),
            };
            Ok((gpu.status(op, check)?, self.dims(if self.of.sequences == Sequences::Packed { i } else { 1 })[2]))
        };
        if is_checked { (0..self.ends.len()).map(slot).collect() } else { Ok(Vec::new()) }
    }

    fn with_ends(&self, arguments: Arguments, checks: &[(Slot, usize)]) -> Result<Arguments> {
        let starts = self.ends.iter().map(|ends| start_of(ends)).collect::<Result<Vec<_>>>()?;
        Ok(arguments.pointers(starts).pointers(checks.iter().map(|(slot, _)| slot.address)))
    }

    fn finish(&self, gpu: &Gpu, op: &'static str, checks: Vec<(Slot, usize)>) -> Result<()> {
        for ((slot, most), ends) in checks.into_iter().zip(&self.ends) {
            gpu.checked(slot, |position| {
                let value = gpu.element(ends, 1, position)?.as_i64()?;
                Ok(match self.of.sequences {
                    Sequences::Packed => starts_error(op, position as i64, value, most),
                    _ => index_error(op, position as i64, value, most + 1),
                })
            })?;
        }
        Ok(())
    }

    /// How the keys of each head are split among groups (split-KV decoding). None if there are enough queries to fill the device.
    fn parts(&self, gpu: &Gpu) -> Result<Option<SplitKeys>> {
        let (q, k, limits) = (self.dims(0), self.dims(1), gpu.driver().limits());
        let rows = q[1] / k[1] * q[2];
        let is_taken = if q[2] == 1 { rows <= MOST_HEADS } else { rows <= MOST_ROWS && k[2] >= LEAST_KEYS };
        if !is_taken || self.of.dropout.is_some() || self.of.sequences == Sequences::Packed {
            return Ok(None);
        }
        let (size, width) = (self.rows[0].dtype.size(), q[3]);
        let vector = if self.has_words(16 / size)? { 16 / size } else { 1 };
        let threads = 1usize << limits.max_group.clamp(1, 128).ilog2();
        let words = width.div_ceil(vector);
        let team = words.next_power_of_two().min(32).min(threads);
        let chunks = words.div_ceil(team);
        let at_once = rows.next_power_of_two().min(4);
        // Vector loads that a thread has in flight.
        let unroll = (4 / chunks).max(1);
        let blocks = rows.div_ceil(at_once);
        let groups = q[0] * k[1] * blocks;
        // With several rows a group needs more registers, so that fewer groups run at a time.
        let at_a_time = if at_once > 1 { 2 } else { 8 } * limits.units;
        let parts = at_a_time.div_ceil(groups).min(k[2].div_ceil(LEAST_PART)).clamp(1, MOST_PARTS);
        let program = self.program("attention/attention_parts.c", width).words(vector, size).define("THREADS", threads);
        let program = program.define("TEAM", team).define("CHUNKS", chunks).define("ROWS", at_once);
        let program = self.with_flags(program.define("UNROLL", unroll));
        Ok(Some(SplitKeys { program, threads, blocks, groups, parts }))
    }

    fn launch_parts(
        &self,
        gpu: &Gpu,
        op: &'static str,
        split: &SplitKeys,
        (pointers, result): (Vec<Address>, &Operand<'_>),
    ) -> Result<()> {
        let (rows, width) = (self.dims(0)[..3].iter().product::<usize>(), self.dims(0)[3]);
        let results = if split.parts > 1 { Some(gpu.scratch(rows * split.parts * (width + 2) * 4)?) } else { None };
        let at = results.as_ref().map_or(pointers[4], |results| results.address);
        let checks = self.checks(gpu, op, true)?;
        let arguments = self.with_ends(self.arguments(&pointers, self.integers(split.blocks, result))?, &checks)?;
        let program = split.program.clone().define("PARTS", true).flag("ALONE", split.parts == 1);
        let geometry = Geometry::new([split.groups * split.parts, 1, 1], split.threads);
        let arguments = arguments.pointer(at).numbers([split.parts, rows]);
        gpu.launch(program, "attention_parts", geometry, &arguments)?;
        self.finish(gpu, op, checks)?;
        if results.is_none() {
            return Ok(());
        }
        let columns = width.next_power_of_two();
        let threads = (1usize << gpu.driver().limits().max_group.clamp(1, 256).ilog2()).max(columns);
        let program = Variant::new("attention/attention_parts.c").stored(self.rows[0].dtype);
        let program = program.define("JOINED", true).define("THREADS", threads).define("MOST_PARTS", MOST_PARTS);
        let program = program.define("COLUMNS", columns).define("SLICES", threads / columns);
        let arguments =
            Arguments::new().pointers([at, pointers[3], pointers[4]]).named(self.integers(split.blocks, result));
        let geometry = Geometry::new([rows, 1, 1], threads);
        gpu.launch(program, "attention_joined", geometry, &arguments.numbers([split.parts, rows]))
    }

    /// `sum(dy * y)` of each row, which the gradients of its scores subtract. In f32 it is added in the order of the products `dy @ v^T`
    /// from which it is subtracted, so that the gradient of a score of weight 1 is exactly 0.
    fn launch_delta(
        &self,
        gpu: &Gpu,
        dy: &Operand<'_>,
        dlse: Option<&Operand<'_>>,
        o: &Operand<'_>,
        delta: Address,
    ) -> Result<()> {
        let [batches, heads, queries] = [0, 1, 2].map(|d| self.dims(0)[d]);
        let (rows, grid) = (batches * heads * queries, grid_of(gpu.driver().limits(), queries));
        let has_words = self.has_words(WORD)? && are_words(WORD, &[o])?;
        let team = if self.rows[0].dtype == DType::F32 { 1 } else { grid };
        let program = self.variant(grid, team, has_words)?.define("DELTA", true).flag("HAS_DLSE", dlse.is_some());
        let dlse = dlse.map_or(Ok(delta), start_of)?;
        let arguments =
            Arguments::new().pointers([start_of(dy)?, dlse, start_of(o)?, delta]).named(self.integers(1, o));
        let geometry = Geometry::new([(rows * team).div_ceil(grid * grid), 1, 1], grid * grid);
        gpu.launch(program, "attention_delta", geometry, &arguments.int(rows))
    }
}

/// How a kernel is launched.
struct Method {
    program: Variant,
    entry: &'static str,
    /// Rows of a group.
    tile: usize,
    threads: usize,
    /// Bytes of local memory that the launch gives.
    given: usize,
}

/// How the keys of heads are divided among groups.
struct SplitKeys {
    program: Variant,
    threads: usize,
    /// Groups of rows of a head of keys.
    blocks: usize,
    /// Groups of rows of all heads and batches.
    groups: usize,
    /// Parts of the keys of a head.
    parts: usize,
}

/// Threads along a side of a tile: 16 for tiles of 64 rows; 8 for tiles of 32, where there are no more rows or the device lacks room.
fn grid_of(limits: &Limits, rows: usize) -> usize {
    const ROOM: usize = 44 << 10;
    if rows > 32 && limits.max_group >= 256 && limits.local_memory >= ROOM { 16 } else { 8 }
}

/// The largest tiles of a tensor-core kernel that fit `room` bytes, at `row` bytes per row: `[resident rows, streamed rows, bytes]`.
fn tiles_mma(kernel: Kernel, most_blocks: usize, row: usize, room: usize) -> Option<[usize; 3]> {
    // Forward: q is resident, k and v are streamed. Backward: two tensors are resident, and two are streamed.
    let staying = if kernel == Kernel::Output { 1 } else { 2 };
    let tiles = (1..=most_blocks).rev().flat_map(|blocks| OTHERS_MMA.map(|others| [ROWS_MMA * blocks, others]));
    let mut sized = tiles.map(|[tile, others]| [tile, others, (staying * tile + 2 * others) * row]);
    sized.find(|[.., bytes]| *bytes <= room)
}

/// True if rows of these operands consist of whole words of so many elements.
fn are_words(elements: usize, operands: &[&Operand<'_>]) -> Result<bool> {
    let steps =
        operands.iter().flat_map(|x| x.layout.strides()[..3].iter().chain(x.layout.shape().dims().last()).copied());
    let memory = operands.iter().map(|x| Ok((start_of(x)?, x.dtype.size()))).collect::<Result<Vec<_>>>()?;
    Ok(fits(elements, steps, memory))
}

/// Attention of few queries to the first keys of each batch.
fn decode(device: &Device, dtype: DType, q: [usize; 4], k: [usize; 4]) -> Result<()> {
    let [q, k] = [q, k].map(|dims| zeros(device, dtype, &dims));
    let (q, k) = (q?, k?);
    let key_lengths = Some(Tensor::full(k.dims()[0], k.dims()[2] as i64, DType::I64, device)?);
    q.scaled_dot_product_attention(&k, &k, &Attention { key_lengths, ..Attention::default() })?;
    q.scaled_dot_product_attention(&k, &k, &Attention { causal: Causal::BottomRight, ..Attention::default() })?;
    Ok(())
}

/// Attention of queries to the keys up to their own.
fn plain(device: &Device, dtype: DType, dims: &[usize]) -> Result<()> {
    differentiate(device, dtype, &[dims, dims, dims], |x| {
        let causal = Attention { causal: Causal::TopLeft, ..Attention::default() };
        x[0].scaled_dot_product_attention(&x[1], &x[2], &causal)
    })
}

/// Attention with a mask and dropout.
fn with_all(device: &Device, dtype: DType, dims: &[usize]) -> Result<()> {
    differentiate(device, dtype, &[dims, dims, dims], |x| {
        let mask = Some(zeros(x[0].device(), DType::Bool, &x[0].dims()[2..3])?);
        let attention = Attention { mask, dropout: Some((0.1, Rng::new(0))), ..Attention::default() };
        x[0].scaled_dot_product_attention(&x[1], &x[2], &attention)
    })
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| plain(d, t, &[2, 8, 1024, 64]),
    |d, t| {
        differentiate(d, t, &[&[2, 8, 1024, 128], &[2, 2, 1024, 128], &[2, 2, 1024, 128]], |x| {
            x[0].scaled_dot_product_attention(&x[1], &x[2], &Attention::default())
        })
    },
    |d, t| {
        differentiate(d, t, &[&[300, 4, 64], &[400, 2, 64], &[400, 2, 64]], |x| {
            let starts = |end: i64| Tensor::from_slice(&[0, 100, end], 3, x[0].device());
            let causal = Attention { causal: Causal::BottomRight, ..Attention::default() };
            x[0].varlen_attention(&x[1], &x[2], &starts(300)?, &starts(400)?, &causal)
        })
    },
    // One query and few queries, of which several heads share keys.
    |d, t| decode(d, t, [1, 12, 1, 64], [1, 12, 1024, 64]),
    |d, t| decode(d, t, [2, 8, 2, 40], [2, 2, 600, 40]),
    |d, t| decode(d, t, [64, 32, 1, 36], [64, 32, 100, 36]),
    // Few queries and keys.
    |d, t| plain(d, t, &[2, 8, 64, 64]),
    |d, t| plain(d, t, &[2, 8, 64, 128]),
    |d, t| in_tf32(d, || plain(d, t, &[2, 8, 100, 64])),
    |d, t| in_tf32(d, || with_all(d, t, &[2, 4, 100, 128])),
    // Rows of whole words of 16 bytes, and of 8.
    |d, t| with_all(d, t, &[2, 4, 100, 40]),
    |d, t| with_all(d, t, &[2, 4, 8, 36]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_of_matrix_units_fit_local_memory() {
        let tiles =
            |kernel, blocks, width: usize, room| tiles_mma(kernel, blocks, 2 * width, room).map(|[m, n, _]| [m, n]);
        let (large, small) = (99 << 10, 48 << 10);
        assert_eq!(tiles(Kernel::Output, 2, 64, small), Some([128, 64]));
        assert_eq!(tiles(Kernel::Output, 2, 64, 16 << 10), Some([64, 32]));
        assert_eq!(tiles(Kernel::Output, 1, 128, small), Some([64, 64]));
        assert_eq!(tiles(Kernel::Output, 1, 192, small), Some([64, 32]));
        assert_eq!([small, large].map(|room| tiles(Kernel::Output, 1, 256, room)), [Some([64, 16]), Some([64, 64])]);
        for kernel in [Kernel::Queries, Kernel::Keys] {
            assert_eq!(tiles(kernel, 1, 64, small), Some([64, 64]));
            assert_eq!([small, large].map(|room| tiles(kernel, 1, 128, room)), [Some([64, 32]), Some([64, 64])]);
        }
        assert_eq!(tiles(Kernel::Queries, 1, 192, small), None);
    }
}
