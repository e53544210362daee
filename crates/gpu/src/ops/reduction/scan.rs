//! Running sums and products along a dimension.
//!
//! A team of threads takes a row, tile after tile. Rows that are long, or long and few, are cut into parts: the parts'
//! totals are made, scanned, and then every part is scanned from the total before it. That reads x twice, but fills the
//! device, and keeps the chains of additions short. The positions of a mask's true elements are found so too.
//!
//! Where rows lie side by side, neighbouring threads take neighbours of these columns, line after line. A group takes fewer
//! of them, and several lines at once, if there are few. Columns that are too few even so are cut into parts as rows are.
//!
//! Its constants were tuned on an H100.

use crate::driver::{Address, Geometry, Limits};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::group_size;
use crate::launch::layout::Joint;
use crate::launch::operands::{address, element_address, start_of};
use crate::launch::words::widest;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, zeros};
use crate::program::source::{Variant, word};
use isograd_core::backend::Scan;
use isograd_core::fused::{Fused, FusedCall};
use isograd_core::operands::Output;
use isograd_core::ops::indexing::index::{MaskInputs, MaskPositions};
use isograd_core::{Call, DType, Device, Kernel, Layout, Operand, Result};
use smallvec::SmallVec;

/// Adjacent elements of a thread.
const ITEMS: usize = 8;
/// The most bytes of local memory of a group.
const LOCAL: usize = 24 << 10;
/// Bytes of a product as a fraction and an exponent.
const SCALED: usize = 16;
/// The most tiles of a part: their totals are added one after the other.
const MOST_TILES: usize = 32;
/// The fewest tiles of a part.
const FEWEST_TILES: usize = 2;
/// Groups per multiprocessor that keep it busy.
const BUSY_GROUPS: usize = 8;
/// The most turns of a group of columns: the totals of turns are added one after the other.
const MOST_TURNS: usize = 512;
/// The names of the dimensions beside that of the scan.
const NAMES: [&str; 3] = ["KEPT_EXTENT", "KEPT_X", "KEPT_Y"];
/// The fewest bytes of a line that a group of columns reads: two memory sectors.
const FEWEST_BYTES: usize = 64;

/// A scan of the rows of a view.
struct Task {
    kind: Scan,
    acc: DType,
    /// Storage; none where elements or results are totals.
    from: Option<DType>,
    to: Option<DType>,
    x: Address,
    y: Address,
    /// Strides in x and in y.
    kept: Joint,
    n: usize,
    stride: usize,
    y_stride: usize,
    is_reverse: bool,
    is_exclusive: bool,
    is_wide: bool,
    /// For the positions of a mask's true elements: the mask's extents, then the number of positions. Else empty.
    positions: SmallVec<[usize; 9]>,
}

pub fn run(gpu: &Gpu, call: &Call<'_>, kind: Scan) -> Result<()> {
    let (input, output) = (&call.inputs[0], &call.outputs[0]);
    let (dims, strides) = (input.layout.shape().dims(), [input.layout.strides(), output.layout.strides()]);
    let (n, outer) = dims.split_last().map_or((1, &[][..]), |(&n, outer)| (n, outer));
    let kept = Joint::of(outer, strides.iter().map(|strides| &strides[..outer.len()]));
    let rows = kept.numel();
    if rows * n == 0 {
        return Ok(());
    }
    let [stride, y_stride] = strides.map(|strides| strides.last().copied().unwrap_or(0));
    let end = |layout: &Layout| layout.strides().iter().zip(dims).map(|(s, d)| s * d).sum::<usize>();
    let task = Task {
        kind,
        acc: input.dtype.acc(),
        from: Some(input.dtype),
        to: Some(output.dtype),
        x: element_address(address(input.memory)?, input),
        y: element_address(address(output.memory)?, output),
        kept: kept.at_least_one(),
        n,
        stride,
        y_stride,
        is_reverse: call.ints[0] != 0,
        is_exclusive: call.ints[1] != 0,
        // With room for a step beyond the end.
        is_wide: end(input.layout).max(end(output.layout)) > 1 << 30,
        positions: SmallVec::new(),
    };
    if output.layout.is_contiguous() { scan(gpu, &task) } else { scan_columns(gpu, &task) }
}

pub const FAMILY: Family = Family { launchers: &[Launcher::of::<MaskPositions>()], examples: EXAMPLES };

impl FusedLaunch for MaskPositions {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        positions(gpu, self.inputs(call).mask, self.outputs(call).y)
    }

    fn takes(dtype: DType, _limits: &Limits) -> bool {
        dtype == DType::Bool
    }
}

/// The positions at which a mask is true, numbered over the whole mask.
fn positions(gpu: &Gpu, mask: &Operand<'_>, found: &Operand<'_>) -> Result<()> {
    let (dims, count) = (mask.layout.shape().dims(), found.layout.shape()[1]);
    let n = mask.layout.shape().numel();
    let task = Task {
        kind: Scan::Sum,
        acc: mask.dtype.acc(),
        from: Some(mask.dtype),
        to: Some(found.dtype),
        x: start_of(mask)?,
        y: start_of(found)?,
        kept: Joint::of(&[], [&[][..], &[][..]].into_iter()).at_least_one(),
        n,
        stride: 1,
        y_stride: 1,
        is_reverse: false,
        is_exclusive: true,
        is_wide: n.max(dims.len() * count) > 1 << 30,
        positions: dims.iter().copied().chain([count]).collect(),
    };
    scan(gpu, &task)
}

fn scan(gpu: &Gpu, task: &Task) -> Result<()> {
    let limits = gpu.driver().limits();
    let (rows, n, threads) = (task.kept.numel(), task.n, task.threads(limits));
    let team = n.div_ceil(ITEMS).next_power_of_two().min(threads);
    let tile = team * ITEMS;
    let tiles = n.div_ceil(tile);
    let wanted = (limits.units * BUSY_GROUPS / rows).min(tiles / FEWEST_TILES);
    let parts = wanted.max(tiles.div_ceil(MOST_TILES)).max(1);
    let part = tiles.div_ceil(parts) * tile;
    let parts = n.div_ceil(part);
    // The first position of the scan, and its step.
    let (first, stride) = match task.is_reverse {
        true => (((n - 1) * task.stride) as i64, -(task.stride as i64)),
        false => (0, task.stride as i64),
    };
    let scratch = if parts > 1 { Some(gpu.scratch(2 * rows * parts * task.total_size())?) } else { None };
    let carries = scratch.as_ref().map(|s| s.address + (rows * parts * task.total_size()) as u64);
    if let (Some(totals), Some(carries)) = (&scratch, carries) {
        let arguments = Arguments::new().pointers([task.x, totals.address]).named(task.kept.named(&NAMES));
        let arguments = arguments.numbers([n, part]).numbers([first, stride]);
        let variant = task.variant(threads, None).define("TOTALS", true);
        gpu.launch(variant, "scan_totals", Geometry::new([rows, parts, 1], threads), &arguments)?;
        let next = Task {
            from: None,
            to: None,
            x: totals.address,
            y: carries,
            kept: Joint::of(&[rows], [&[parts][..], &[parts][..]].into_iter()).at_least_one(),
            n: parts,
            stride: 1,
            y_stride: 1,
            is_reverse: false,
            is_exclusive: true,
            positions: SmallVec::new(),
            ..*task
        };
        scan(gpu, &next)?;
    }
    let integers = task.kept.named(&NAMES);
    let integers = match task.positions.split_last() {
        Some((&count, extents)) => {
            integers.position_list("MASK_EXTENT", extents.iter().copied()).positions([("N_TRUE", count)])
        }
        None => integers,
    };
    let arguments = Arguments::new()
        .pointers([task.x, task.y])
        .named(integers)
        .numbers([rows, n, part])
        .numbers([first, stride])
        .numbers([task.is_reverse, task.is_exclusive])
        .int(team)
        .pointers(carries);
    let geometry = Geometry::new([rows.div_ceil(threads / team), parts, 1], threads);
    let variant = task
        .variant(threads, task.to)
        .flag("CARRIES", carries.is_some())
        .optional("POSITIONS", task.positions.split_last().map(|(_count, extents)| extents.len()));
    gpu.launch(variant, "scan", geometry, &arguments)
}

fn scan_columns(gpu: &Gpu, task: &Task) -> Result<()> {
    let limits = gpu.driver().limits();
    let (columns, n, threads) = (task.kept.numel(), task.n, group_size(limits));
    let vector = task.column_vector(limits);
    let vectors = columns / vector;
    // Few columns need few threads side by side, few lines need few teams.
    let mut width = vectors.next_power_of_two().min(threads);
    let fewest = FEWEST_BYTES / (vector * task.from.map_or(task.total_size(), DType::size));
    while width > fewest && vectors.div_ceil(width) < limits.units * BUSY_GROUPS && 2 * ITEMS * threads / width <= n {
        width /= 2;
    }
    let (groups, turn) = (vectors.div_ceil(width), threads / width * ITEMS);
    let turns = n.div_ceil(turn);
    // Reading twice pays where multiprocessors would have nothing to do.
    let wanted = if groups < limits.units { limits.units * BUSY_GROUPS / groups } else { 1 };
    let parts = wanted.min(turns / FEWEST_TILES).max(turns.div_ceil(MOST_TURNS)).max(1);
    let part = turns.div_ceil(parts) * turn;
    let parts = n.div_ceil(part);
    let mut kept = task.kept.clone();
    kept.extents[task.kept.rank() - 1] /= vector;
    // The first position of the scan in x and in y, and its steps.
    let [x, y] = [task.stride, task.y_stride].map(|stride| match task.is_reverse {
        true => [((n - 1) * stride) as i64, -(stride as i64)],
        false => [0, stride as i64],
    });
    let arguments = |to: Address| {
        let arguments = Arguments::new().pointers([task.x, to]).named(kept.named(&NAMES)).numbers([vectors, n, part]);
        arguments.numbers([x, y].into_iter().flatten()).int(task.is_exclusive).int(width)
    };
    let variant = |to: Option<DType>| {
        let word_of = |dtype: DType| word(vector * dtype.size());
        let variant = task.variant(threads, to).define("COLUMNS", true).define("VECTOR", vector);
        variant.optional("X_WORD", task.from.map(word_of)).optional("Y_WORD", to.map(word_of))
    };
    let geometry = Geometry::new([groups, parts, 1], threads);
    if parts == 1 {
        return gpu.launch(variant(task.to), "scan_columns", geometry, &arguments(task.y));
    }
    let size = columns * parts * task.total_size();
    let totals = gpu.scratch(2 * size)?;
    let carries = totals.address + size as u64;
    gpu.launch(variant(None).define("TOTALS", true), "scan_columns", geometry, &arguments(totals.address))?;
    let next = Task {
        from: None,
        to: None,
        x: totals.address,
        y: carries,
        kept: Joint::of(&[columns], [&[1][..], &[1][..]].into_iter()).at_least_one(),
        n: parts,
        stride: columns,
        y_stride: columns,
        is_reverse: false,
        is_exclusive: true,
        positions: SmallVec::new(),
        ..*task
    };
    scan_columns(gpu, &next)?;
    let variant = variant(task.to).define("CARRIES", true);
    gpu.launch(variant, "scan_columns", geometry, &arguments(task.y).pointer(carries))
}

impl Task {
    fn is_scaled(&self) -> bool {
        self.kind == Scan::Prod && self.acc.is_float()
    }

    fn total_size(&self) -> usize {
        if self.is_scaled() { SCALED } else { self.acc.size() }
    }

    /// As many threads as have room for their tile.
    fn threads(&self, limits: &Limits) -> usize {
        let room = LOCAL.min(limits.local_memory) / ((ITEMS + 2) * self.total_size());
        group_size(limits).min(1 << room.max(1).ilog2())
    }

    /// Columns side by side that lie in 16 bytes of x and of y, or fewer.
    fn column_vector(&self, limits: &Limits) -> usize {
        let (Some(from), Some(to)) = (self.from, self.to) else { return 1 };
        let last = self.kept.rank() - 1;
        let strides = &self.kept.strides;
        let room = LOCAL.min(limits.local_memory) / (group_size(limits) * self.total_size());
        if strides.iter().any(|strides| strides[last] != 1) || room < 2 {
            return 1;
        }
        let most = (16 / from.size().max(to.size())).min(1 << room.ilog2());
        let steps = strides.iter().flat_map(|strides| &strides[..last]).copied();
        let steps = steps.chain([self.kept.extents[last], self.stride, self.y_stride]);
        widest(most, steps, [(self.x, from.size()), (self.y, to.size())])
    }

    fn variant(&self, threads: usize, to: Option<DType>) -> Variant {
        Variant::new("reduction/scan.c")
            .define("THREADS", threads)
            .define("KEPT", self.kept.rank())
            .define("ITEMS", ITEMS)
            .arithmetic(self.acc)
            .define(if self.kind == Scan::Sum { "JOIN_SUM" } else { "JOIN_PROD" }, true)
            .optional("X", self.from)
            .optional("Y", to)
            .optional("SCALED", self.is_scaled().then_some("i64"))
            .flags([("PARTIAL_X", self.from.is_none()), ("PARTIAL_Y", to.is_none()), ("WIDE", self.is_wide)])
    }
}

/// The positions in a mask, by a call: a device that runs nothing counts none, so that the op itself would end before its kernel.
fn positions_in(device: &Device) -> Result<()> {
    let backend = device.backend();
    let (mask, found) = (Layout::contiguous((1024, 1024).into()), Layout::contiguous((2, 1 << 20).into()));
    let (from, to) = (backend.allocate(1 << 20)?, backend.allocate((2 * size_of::<i64>()) << 20)?);
    let inputs = [Operand { memory: &*from, layout: &mask, dtype: DType::Bool }];
    let outputs = [Operand { memory: &*to, layout: &found, dtype: DType::I64 }];
    let kernel = Kernel::Fused(FusedCall::new(&MaskPositions, &MaskInputs { mask: () }, &Output { y: () }));
    backend.run(&Call { op: "kernels", kernel, inputs: &inputs, outputs: &outputs, ints: &[], floats: &[] })
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| zeros(d, t, &[1 << 20])?.cumsum(0).map(drop),
    |d, _| positions_in(d),
    // Columns: many, of no whole words, and few, which are cut into parts.
    |d, t| zeros(d, t, &[256, 65536])?.cumsum(0).map(drop),
    |d, t| zeros(d, t, &[256, 65537])?.cumsum(0).map(drop),
    |d, t| zeros(d, t, &[65536, 256])?.cumsum(0).map(drop),
];
