//! Gather and scatter. Scatters sort the rows of the index by where they point, so that the sums have a fixed order.

use crate::driver::Driver;
use crate::elementwise::{bits, word};
use crate::launch::{Arguments, THREADS, each, element_address};
use crate::layout::Joint;
use crate::sort::Keys;
use crate::source::Variant;
use crate::status::{Check, Slot, index_error};
use crate::{Gpu, address};
use isograd_core::backend::Scatter;
use isograd_core::{Call, DType, Layout, Operand, Result};
use smallvec::SmallVec;

/// An index and what it points into.
struct Places {
    /// Strides in the index, and in what it points into with a value of 0.
    rows: Joint,
    /// What lies at one row.
    inner: Joint,
    count: usize,
    width: usize,
    along: usize,
    extent: usize,
}

impl Places {
    fn new(index: &Layout, target: &Layout, dim: usize) -> Places {
        let (dims, steps) = (index.shape().dims(), index.strides());
        let still = (dim + 1..dims.len()).rev().take_while(|&d| steps[d] == 0 || dims[d] == 1).count();
        let at = dims.len() - still;
        let mut strides: SmallVec<[usize; 8]> = target.strides().iter().copied().collect();
        let along = std::mem::take(&mut strides[dim]);
        let rows = Joint::of(&dims[..at], [&steps[..at], &strides[..at]].into_iter()).at_least_one();
        let inner = Joint::of(&dims[at..], [&strides[at..]].into_iter()).at_least_one();
        let (count, width) = (dims[..at].iter().product(), dims[at..].iter().product());
        Places { rows, inner, count, width, along, extent: target.shape()[dim] }
    }

    /// Counts x in words of so many elements, if what lies at a row is made of them.
    fn in_words(&mut self, vector: usize) -> bool {
        let inner = self.inner.rank() == 1 && self.inner.strides[0][0] == 1 && self.width.is_multiple_of(vector);
        let fits = inner && self.along.is_multiple_of(vector) && self.rows.strides[1].iter().all(|s| s % vector == 0);
        if fits {
            self.width /= vector;
            self.along /= vector;
            self.inner.extents[0] /= vector;
            self.rows.strides[1].iter_mut().for_each(|s| *s /= vector);
        }
        fits
    }

    fn ints(&self) -> SmallVec<[i64; 32]> {
        self.rows.ints().into_iter().chain(self.inner.ints()).collect()
    }

    fn variant(&self, index: &Operand<'_>, is_wide: bool) -> Variant {
        let variant = Variant::new("index.c")
            .define("THREADS", THREADS)
            .define("I", index.dtype.name())
            .define("ROWS", self.rows.rank())
            .define("INNER", self.inner.rank())
            .define("INTS", self.ints().len());
        if is_wide || self.rows.is_wide() { variant.define("WIDE", true) } else { variant }
    }
}

/// The bits that stand for what a bad index would have read: NaN, or 0.
fn bad(dtype: DType) -> i64 {
    match dtype {
        DType::F64 => f64::NAN.to_bits() as i64,
        DType::F32 => f32::NAN.to_bits() as i64,
        DType::F16 => 0x7e00,
        DType::BF16 => 0x7fc0,
        _ => 0,
    }
}

/// In checked mode, the error of the first bad index in the order of its elements, as the CPU reports it.
fn check<D: Driver>(gpu: &Gpu<D>, call: &Call<'_>, index: &Operand<'_>, places: &Places, slot: Slot) -> Result<()> {
    let Err(found) = gpu.checked(slot) else { return Ok(()) };
    let mut bytes = vec![0; index.layout.end() * index.dtype.size()];
    gpu.driver().download(address::<D>(index.memory)?, &mut bytes)?;
    let read = |at: usize| match index.dtype {
        DType::I32 => bytemuck::pod_read_unaligned::<i32>(&bytes[4 * at..][..4]) as i64,
        _ => bytemuck::pod_read_unaligned::<i64>(&bytes[8 * at..][..8]),
    };
    for row in 0..places.count {
        let (mut rest, mut at) = (row, index.layout.offset());
        for (extent, stride) in places.rows.extents.iter().zip(&places.rows.strides[0]).rev() {
            at += rest % extent * stride;
            rest /= extent;
        }
        let value = read(at);
        if value as u64 >= places.extent as u64 {
            return Err(index_error(call.op, row as i64, value, places.extent));
        }
    }
    Err(found)
}

pub fn gather<D: Driver>(gpu: &Gpu<D>, call: &Call<'_>) -> Result<()> {
    let ([x, index], y) = ([&call.inputs[0], &call.inputs[1]], &call.outputs[0]);
    let mut places = Places::new(index.layout, x.layout, call.ints[0] as usize);
    let is_wide = x.layout.end() > i32::MAX as usize || y.layout.shape().numel() > i32::MAX as usize;
    let [from, to] = [x, y].map(|o| address::<D>(o.memory).map(|a| element_address(a, o)));
    let (from, to) = (from?, to?);
    let size = x.dtype.size();
    let aligned = from % 16 == 0 && to % 16 == 0;
    let vector = if aligned && places.in_words(16 / size) { 16 / size } else { 1 };
    let storage = if vector > 1 { word(16) } else { bits(x.dtype) };
    let storage = match storage {
        "i64" => "S_i64",
        "i32" => "S_i32",
        "u16" => "S_u16",
        "u8" => "S_u8",
        word => word,
    };
    let variant = places.variant(index, is_wide).define("GATHER", true).define("S", storage);
    let n = places.count * places.width;
    let index_at = element_address(address::<D>(index.memory)?, index);
    let arguments = Arguments::new().pointer(from).pointer(index_at).pointer(to).ints(&places.ints()).int(n as i64);
    let arguments = [places.width, places.along, places.extent].iter().fold(arguments, |list, &v| list.int(v as i64));
    let pattern = bad(x.dtype).to_le_bytes()[..size].repeat(vector);
    let slot = gpu.status(call.op, Check::Index(places.extent))?;
    let arguments = arguments.bytes(&pattern).pointer(slot.address);
    gpu.launch(variant, "gather", each(n), &arguments)?;
    check(gpu, call, index, &places, slot)
}

pub fn scatter<D: Driver>(gpu: &Gpu<D>, call: &Call<'_>, mode: Scatter) -> Result<()> {
    let ([index, source], y) = ([&call.inputs[0], &call.inputs[1]], &call.outputs[0]);
    if index.layout.shape().numel() == 0 {
        return Ok(());
    }
    let places = Places::new(index.layout, &Layout::contiguous(y.layout.shape().clone()), call.ints[0] as usize);
    // The source has the index's shape: its rows are those of the index.
    let from = Joint::new([source].into_iter()).at_least_one();
    let is_wide = y.layout.shape().numel() > i32::MAX as usize || from.is_wide();
    let (ints, source_ints) = (places.ints(), from.ints());
    let keys = Keys::new(gpu, call.op, places.count)?;
    let index_at = element_address(address::<D>(index.memory)?, index);
    let arguments =
        Arguments::new().pointer(index_at).pointer(keys.keys.address).pointer(keys.order.address).ints(&ints);
    let arguments = [places.count, places.along, places.extent].iter().fold(arguments, |list, &v| list.int(v as i64));
    let slot = gpu.status(call.op, Check::Index(places.extent))?;
    let arguments = arguments.pointer(slot.address);
    gpu.launch(places.variant(index, is_wide).define("POSITIONS", true), "positions", each(places.count), &arguments)?;
    // All indices are looked at before anything is written.
    check(gpu, call, index, &places, slot)?;
    let keys = keys.sort(gpu, call.op, places.count, places.count)?;
    let mut variant = places
        .variant(index, is_wide)
        .define("SCATTER", true)
        .define("T", y.dtype.name())
        .define("DIMS", from.rank())
        .define("SOURCE_INTS", source_ints.len());
    let acc = if y.dtype.is_float() { y.dtype.acc() } else { DType::I64 };
    variant = variant.define("ACC", acc.name());
    variant = match acc {
        DType::I64 => variant.define("INTEGER", true),
        DType::F64 => variant.define("NEEDS_F64", true),
        _ => variant,
    };
    if mode == Scatter::Add {
        variant = variant.define("ADDING", true);
    }
    let arguments = Arguments::new()
        .pointer(keys.keys.address)
        .pointer(keys.order.address)
        .pointer(element_address(address::<D>(source.memory)?, source))
        .pointer(element_address(address::<D>(y.memory)?, y))
        .ints(&ints)
        .ints(&source_ints)
        .int(places.count as i64)
        .int(places.width as i64);
    gpu.launch(variant, "scatter", each(places.count * places.width), &arguments)
}
