//! Long lists: all rows are sorted by their targets.
//!
//! Its constants were tuned on an H100.

use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::layout::Joint;
use crate::launch::operands::start_of;
use crate::memory::pool::Buffer;
use crate::memory::status::Check;
use crate::ops::indexing::index::{Indexed, Strides, named};
use crate::ops::indexing::radix_sort;
use crate::ops::indexing::radix_sort::Ordered;
use crate::ops::indexing::scatter::{Onto, Scattering};
use isograd_core::Result;
use isograd_core::backend::Scatter;
use isograd_core::ops::indexing::segment::IndexReduce;

/// Rows of y that a thread of the kernel `sums` sets to zero.
const ZERO_ROWS: usize = 32;
/// `[least, most]` terms of a part of a sum. A part has about half the square root of the number of terms.
const PARTS: [usize; 2] = [32, 512];

impl Scattering<'_> {
    pub(super) fn ordered(&self, gpu: &Gpu) -> Result<()> {
        let Indexed { index, dim, rank, rows, width, extent, .. } = self.indexed;
        let ([lists, ..], table) = (self.lists(), &self.call.outputs[0]);
        // A bad index comes after all others.
        let bad = lists * extent;
        let key = if bad > u32::MAX as usize { "u64" } else { "u32" };
        let used = gpu.scratch(if matches!(self.onto, Onto::Nothing { .. }) { extent } else { 1 })?;
        let Ordered { keys, order } = self.order(gpu, bad, key, &used)?;
        let source = self.indexed.source.as_deref().unwrap_or_default();
        let without = |all: &[usize]| all[..dim].iter().chain(&all[dim + 1..rank]).copied().collect::<Strides>();
        let list = Joint::of(&without(index.layout.shape().dims()), [&without(&self.indexed.target)[..]].into_iter());
        let file = if self.mode == Scatter::Add { "indexing/scatter/sums.c" } else { "indexing/scatter/assign.c" };
        let outer = self.indexed.joint([&source[..rank]].into_iter());
        let (variant, integers) = self.variant(file, &outer, &["ROW_SPACE", "SOURCE_STRIDES"]);
        let integers = integers.and(&named(&list, &["LIST_SPACE", "Y_LIST_STRIDES"]));
        let variant = variant.define("K", key).define("LIST", list.rank());
        let launch = |variant, entry, pointers: &[u64], part: Option<usize>, n| {
            let arguments = Arguments::new().pointers(pointers.iter().copied()).named(integers.clone()).int(rows);
            let arguments = arguments.numbers(self.indexed.reach()).int(bad).numbers(part);
            gpu.launch(variant, entry, self.indexed.each(n), &arguments)
        };
        if self.mode == Scatter::Assign {
            return launch(variant, "assign", &[keys.address, order.address, self.from, self.to], None, rows * width);
        }
        let part = (rows.isqrt().next_power_of_two() / 2).clamp(PARTS[0], PARTS[1]);
        let n = rows.div_ceil(part) * width;
        let of_largest = if self.is_wide { 16 } else { 8 };
        let is_largest = matches!(self.onto, Onto::Nothing { reduce: IndexReduce::Max, .. });
        let entry = table.dtype.acc().size() + if is_largest { of_largest } else { 0 };
        let bytes = n * self.indexed.vector * entry;
        let [counts, first] = self.others()?;
        let (heads, tails) = (gpu.scratch(bytes)?, gpu.scratch(bytes)?);
        let zeros = match self.onto {
            Onto::Values => 0,
            Onto::Nothing { .. } => extent.div_ceil(ZERO_ROWS) * width,
        };
        let (y, parts) = ([self.to, counts, first], [heads.address, tails.address]);
        let pointers = [&[keys.address, order.address, self.from], &y[..], &parts, &[used.address]].concat();
        launch(variant.clone(), "sums", &pointers, Some(part), n + zeros)?;
        if rows <= part {
            return Ok(());
        }
        launch(variant, "joins", &[&[keys.address], &y[..], &parts].concat(), Some(part), n)
    }

    /// The targets of rows, sorted. For a table without values, `used` becomes 1 for each target that occurs.
    pub(super) fn order(&self, gpu: &Gpu, bad: usize, key: &'static str, used: &Buffer) -> Result<Ordered> {
        let Indexed { index, rank, rows, extent, .. } = self.indexed;
        let outer = self.indexed.joint([&index.layout.strides()[..rank]].into_iter());
        let names = ["ROW_SPACE", "INDEX_STRIDES"];
        let (variant, integers) = self.indexed.variant("indexing/scatter/keys.c", &outer, &names, self.is_wide);
        let is_fresh = matches!(self.onto, Onto::Nothing { .. });
        if is_fresh {
            gpu.driver().fill(used.address, 0, extent)?;
        }
        let variant = variant.define("K", key).flag("FRESH", is_fresh);
        let keys = gpu.scratch(radix_sort::key_bytes(rows, key))?;
        let [_, count, apart] = self.lists();
        let arguments = Arguments::new().pointers([start_of(index)?, keys.address, used.address]).named(integers);
        let slot = gpu.status(self.call.op, Check::Index(extent))?;
        let arguments = arguments.numbers([rows, count, apart, extent, bad]).int(self.padding()).pointer(slot.address);
        gpu.launch(variant, "keys", self.indexed.each(rows), &arguments)?;
        self.indexed.check(gpu, self.call.op, slot)?;
        radix_sort::order(gpu, self.call.op, keys, rows, bad, key, self.is_wide)
    }
}
