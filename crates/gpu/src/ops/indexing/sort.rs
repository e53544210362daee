//! Sorting of tensors. Tiles are sorted in local memory, then merged.
//!
//! Its constants were tuned on an H100.

use crate::driver::{Address, Limits};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, groups, in_groups};
use crate::launch::layout::Joint;
use crate::launch::operands::start_of;
use crate::launch::words::{bits, is_wide};
use crate::memory::pool::Buffer;
use crate::ops::family::{Example, Family, zeros};
use crate::program::source::Variant;
use isograd_core::ops::Order;
use isograd_core::{Call, DType, Result};

pub const FAMILY: Family = Family { launchers: &[], examples: EXAMPLES };

/// Elements that a thread sorts in registers.
const ITEMS: usize = 8;

/// How lists are sorted on a device.
struct SortPlan {
    rows: usize,
    length: usize,
    /// `u32` or `u64`: the keys' type.
    key: &'static str,
    threads: usize,
    is_wide: bool,
    /// Whether keys have positions in them.
    is_packed: bool,
}

/// Sorted keys, row by row, and their positions unless the keys contain them.
struct Sorted {
    keys: Buffer,
    order: Option<Buffer>,
}

impl Sorted {
    fn addresses(&self) -> impl Iterator<Item = Address> {
        std::iter::once(&self.keys).chain(&self.order).map(|buffer| buffer.address)
    }
}

impl SortPlan {
    /// The plan for `rows` rows of `length` elements.
    fn new(limits: &Limits, [rows, length]: [usize; 2], dtype: DType, is_wide: bool) -> SortPlan {
        let is_packed = dtype.size() <= 2 && length <= 1 << 16;
        let mut plan = SortPlan { rows, length, key: key_of(dtype).0, threads: group_size(limits), is_wide, is_packed };
        // A key and a 16-bit position per element, and two split positions.
        while plan.threads > 1 && plan.tile() * (plan.key_size() + 2) + 16 > limits.local_memory {
            plan.threads /= 2;
        }
        plan
    }

    fn key_size(&self) -> usize {
        if self.key == "u64" { 8 } else { 4 }
    }

    fn tile(&self) -> usize {
        self.threads * ITEMS
    }

    /// Elements that are sorted at once: a row, or a tile.
    fn span(&self) -> usize {
        self.length.next_power_of_two().clamp(ITEMS, self.tile())
    }

    fn variant(&self) -> Variant {
        let variant = Variant::new("indexing/sort.c")
            .define("THREADS", self.threads)
            .define("ITEMS", ITEMS)
            .define("K", self.key);
        variant.flags([("WIDE", self.is_wide), ("PACKED", self.is_packed)])
    }

    /// Sorts tiles. `arguments` begin with the kernel's source and targets.
    fn tiles(&self, gpu: &Gpu, variant: Variant, arguments: Arguments) -> Result<()> {
        let (span, tile) = (self.span(), self.tile());
        let tiles = (self.rows * self.length.div_ceil(span)).div_ceil(tile / span);
        gpu.launch(variant, "tiles", groups(tiles, self.threads), &arguments.numbers([self.rows, self.length, span]))
    }

    fn buffers(&self, gpu: &Gpu) -> Result<Sorted> {
        let n = self.rows * self.length;
        let position = if self.is_wide { 8 } else { 4 };
        let order = (!self.is_packed).then(|| gpu.scratch(n * position)).transpose()?;
        Ok(Sorted { keys: gpu.scratch(n * self.key_size())?, order })
    }

    /// Merges sorted spans until rows are sorted.
    fn merge(&self, gpu: &Gpu, mut sorted: Sorted) -> Result<Sorted> {
        let mut run = self.span();
        if run >= self.length {
            return Ok(sorted);
        }
        let mut other = self.buffers(gpu)?;
        let tiles = self.rows * self.length.div_ceil(self.tile());
        while run < self.length {
            let buffers = [&sorted.keys, &other.keys].into_iter().chain(&sorted.order).chain(&other.order);
            let arguments = Arguments::new().pointers(buffers.map(|buffer| buffer.address));
            let arguments = arguments.numbers([self.rows, self.length, run]);
            gpu.launch(self.variant(), "merge", groups(tiles, self.threads), &arguments)?;
            std::mem::swap(&mut sorted, &mut other);
            run *= 2;
        }
        Ok(sorted)
    }
}

/// The type of a dtype's keys, the sign's bit, and the bits of infinity.
fn key_of(dtype: DType) -> (&'static str, &'static str, Option<&'static str>) {
    match dtype {
        DType::F64 => ("u64", "0x8000000000000000", Some("0x7ff0000000000000")),
        DType::F32 => ("u32", "0x80000000", Some("0x7f800000")),
        DType::F16 => ("u32", "0x8000", Some("0x7c00")),
        DType::BF16 => ("u32", "0x8000", Some("0x7f80")),
        DType::I64 => ("u64", "0x8000000000000000", None),
        DType::I32 => ("u32", "0x80000000", None),
        DType::U8 | DType::Bool => ("u32", "0", None),
    }
}

pub fn run(gpu: &Gpu, call: &Call<'_>) -> Result<()> {
    let (x, [y, positions]) = (&call.inputs[0], [&call.outputs[0], &call.outputs[1]]);
    let n = x.layout.shape().numel();
    if n == 0 {
        return Ok(());
    }
    let length = x.layout.shape().dims().last().copied().unwrap_or(1);
    let (_, sign, infinite) = key_of(x.dtype);
    let joint = Joint::new([x].into_iter()).at_least_one();
    let plan = SortPlan::new(gpu.driver().limits(), [n / length, length], x.dtype, is_wide(n.max(x.layout.end())));
    let variant = plan
        .variant()
        .define("X", bits(x.dtype))
        .define("SIGN", sign)
        .define("DIMS", joint.rank())
        .optional("INFINITE", infinite);
    let (from, to, positions) = (start_of(x)?, start_of(y)?, start_of(positions)?);
    let source = || Arguments::new().pointer(from).named(joint.named(&["X_EXTENT", "X_STRIDE"])).int(call.ints[0]);
    if plan.span() >= length {
        let arguments = source().pointers([to, positions]);
        return plan.tiles(gpu, variant.define("WHOLE", true), arguments);
    }
    let sorted = plan.buffers(gpu)?;
    plan.tiles(gpu, variant.clone(), source().pointers(sorted.addresses()))?;
    let sorted = plan.merge(gpu, sorted)?;
    let arguments = source().pointers(sorted.addresses().chain([to, positions])).numbers([n, length]);
    gpu.launch(variant, "values", in_groups(n, plan.threads), &arguments)
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| zeros(d, t, &[1 << 20])?.sort(0, Order::Ascending).map(drop),
    |d, t| zeros(d, t, &[1 << 14])?.sort(0, Order::Ascending).map(drop),
];
