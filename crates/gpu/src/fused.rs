//! Fused kernels: softmax and normalisation of rows here, others in files of their own.

use crate::cross_entropy::{cross_entropy, cross_entropy_backward};
use crate::driver::{Address, Driver, Geometry};
use crate::launch::{self, Arguments, THREADS, element_address};
use crate::source::Variant;
use crate::{Gpu, address, each, index, matmul, random, total};
use isograd_core::backend::Fused;
use isograd_core::{Call, DType, Operand, Result};
use smallvec::SmallVec;

/// Words that a thread keeps in registers, at most.
const MOST_WORDS: usize = 4;
/// Rows of fewer elements are left to one thread each.
pub const SHORT: usize = 32;
/// Rows that one thread of a column sums up.
const PART: usize = 64;

/// True for the dtypes of the fused kernels.
pub fn supports<D: Driver>(gpu: &Gpu<D>, _kernel: Fused, dtype: DType) -> bool {
    dtype.is_float() && (dtype != DType::F64 || gpu.driver().limits().has_f64)
}

pub fn run<D: Driver>(gpu: &Gpu<D>, call: &Call<'_>, kernel: Fused) -> Result<()> {
    match kernel {
        Fused::Softmax => softmax(gpu, call, "softmax_rows", "softmax_columns"),
        Fused::SoftmaxBackward => softmax(gpu, call, "softmax_rows_backward", "softmax_columns_backward"),
        Fused::Norm => norm(gpu, call, "norm"),
        Fused::NormBackward => norm(gpu, call, "norm_backward"),
        Fused::NormParameters => parameters(gpu, call),
        Fused::CrossEntropy => cross_entropy(gpu, call),
        Fused::CrossEntropyBackward => cross_entropy_backward(gpu, call),
        Fused::Dropout => random::dropout(gpu, call),
        Fused::EmbeddingBackward => index::table_gradient(gpu, call),
        Fused::GemmBias(_) => matmul::run(gpu, call),
        Fused::Each(row) => each::run(gpu, call, row),
        Fused::Total(kind) => total::run(gpu, call, kind),
    }
}

/// Operands' addresses.
pub fn addresses<D: Driver>(operands: &[Operand<'_>]) -> Result<SmallVec<[Address; 8]>> {
    operands.iter().map(|o| Ok(element_address(address::<D>(o.memory)?, o))).collect()
}

/// A program in the dtypes of `x`.
pub fn variant(file: &'static str, x: &Operand<'_>) -> Variant {
    let dtype = x.dtype;
    let variant = Variant::new(file).define("T", dtype.name()).define("ACC", dtype.acc().name());
    let variant = if dtype == DType::F64 { variant.define("NEEDS_F64", true) } else { variant };
    if x.layout.shape().numel() > i32::MAX as usize / 2 { variant.define("WIDE", true) } else { variant }
}

/// Adds how a group takes rows, and returns the launch.
pub fn rows<D: Driver>(
    gpu: &Gpu<D>,
    variant: Variant,
    dtype: DType,
    count: usize,
    extent: usize,
    addresses: &[Address],
    arrays: usize,
) -> (Variant, Geometry) {
    let aligned = addresses.iter().all(|a| a % 16 == 0);
    let (vector, word) = match (aligned, dtype.size()) {
        (true, size) => (16 / size, "u32x4"),
        (false, 8) => (1, "i64"),
        (false, 4) => (1, "u32"),
        (false, _) => (1, "u16"),
    };
    // One more where a row does not begin with a word.
    let words = extent / vector + 2;
    let most = (MOST_WORDS / arrays).max(1);
    let limit = gpu.driver().limits().max_group.min(1024);
    let mut threads = 32;
    while threads < limit / 2 && threads * most < words {
        threads *= 2;
    }
    let fits = threads * most >= words;
    let per = if fits { words.div_ceil(threads) } else { 0 };
    let variant = variant.define("THREADS", threads).define("VECTOR", vector).define("WORD", word).define("PER", per);
    (variant, Geometry { groups: [count.clamp(1, 1 << 20), 1, 1], threads })
}

fn softmax<D: Driver>(gpu: &Gpu<D>, call: &Call<'_>, by_row: &'static str, by_column: &'static str) -> Result<()> {
    let [outer, extent, inner, logarithm] = [0, 1, 2, 3].map(|i| call.ints[i] as usize);
    let y = &call.outputs[0];
    let mut all = addresses::<D>(call.inputs)?;
    all.extend(addresses::<D>(call.outputs)?);
    let mut variant = variant("softmax.c", y);
    if logarithm != 0 {
        variant = variant.define("LOGARITHM", true);
    }
    let arguments = all.iter().fold(Arguments::new(), |list, &a| list.pointer(a));
    if inner > 1 || extent < SHORT {
        let columns = outer * inner;
        let arguments = arguments.int(columns as i64).int(extent as i64).int(inner as i64);
        return gpu.launch(variant.define("THREADS", THREADS), by_column, launch::each(columns), &arguments);
    }
    let (variant, geometry) = rows(gpu, variant, y.dtype, outer, extent, &all, call.inputs.len());
    gpu.launch(variant, by_row, geometry, &arguments.int(outer as i64).int(extent as i64))
}

/// Adds what a norm's program is told of its parameters, which have the dtype `p`.
fn norm_variant(call: &Call<'_>, x: &Operand<'_>, p: DType) -> Variant {
    let names = ["CENTERED", "WEIGHT", "BIAS"];
    let flags = names.into_iter().zip(&call.ints[2..5]).filter(|(_, on)| **on != 0);
    flags.fold(variant("norm.c", x).define("P", p.name()), |variant, (name, _)| variant.define(name, true))
}

fn norm<D: Driver>(gpu: &Gpu<D>, call: &Call<'_>, entry: &'static str) -> Result<()> {
    let (count, extent) = (call.ints[0] as usize, call.ints[1] as usize);
    let (inputs, outputs) = (addresses::<D>(call.inputs)?, addresses::<D>(call.outputs)?);
    let is_forward = entry == "norm";
    let rest = if is_forward { 1 } else { 4 };
    let x = &call.inputs[0];
    let p = call.inputs.get(rest).map_or(x.dtype, |p| p.dtype);
    let mut arguments = inputs[..rest].iter().fold(Arguments::new(), |list, &a| list.pointer(a));
    let mut parameters = inputs[rest..].iter();
    let has = |i: usize| call.ints[i] != 0;
    // A kernel does not read a pointer that is not there: any other stands for it.
    for present in [has(3), is_forward && has(4)].into_iter().take(if is_forward { 2 } else { 1 }) {
        let address = if present { parameters.next() } else { None };
        arguments = arguments.pointer(*address.unwrap_or(&inputs[0]));
    }
    arguments = outputs.iter().fold(arguments, |list, &a| list.pointer(a)).int(count as i64).int(extent as i64);
    if is_forward {
        arguments = arguments.float(call.floats[0], x.dtype.acc());
    }
    let moved = [&inputs[..if is_forward { 1 } else { 2 }], &outputs[..1]].concat();
    let arrays = if is_forward { 1 } else { 2 };
    let variant = norm_variant(call, x, p);
    let (variant, geometry) = rows(gpu, variant, x.dtype, count, extent, &moved, arrays);
    gpu.launch(variant, entry, geometry, &arguments)
}

fn parameters<D: Driver>(gpu: &Gpu<D>, call: &Call<'_>) -> Result<()> {
    let (count, extent) = (call.ints[0] as usize, call.ints[1] as usize);
    let (inputs, outputs) = (addresses::<D>(call.inputs)?, addresses::<D>(call.outputs)?);
    let x = &call.inputs[1];
    let variant = norm_variant(call, x, call.outputs[0].dtype).define("THREADS", THREADS);
    let parts = count.div_ceil(PART).min(4096);
    let part = count.div_ceil(parts.max(1));
    let bytes = parts * extent * x.dtype.acc().size();
    let (weights, biases) = (gpu.scratch(bytes)?, gpu.scratch(bytes)?);
    let sums = |list: Arguments| list.pointer(weights.address).pointer(biases.address);
    let arguments = sums(inputs.iter().fold(Arguments::new(), |list, &a| list.pointer(a)));
    let arguments = arguments.int(count as i64).int(extent as i64).int(part as i64);
    let groups = extent.div_ceil(THREADS);
    let geometry = |y: usize| Geometry { groups: [groups, y, 1], threads: THREADS };
    gpu.launch(variant.clone(), "norm_parameters", geometry(parts), &arguments)?;
    let mut given = outputs.iter();
    let mut arguments = sums(Arguments::new());
    for present in [call.ints[3] != 0, call.ints[4] != 0] {
        let address = if present { given.next() } else { None };
        arguments = arguments.pointer(*address.unwrap_or(&outputs[0]));
    }
    gpu.launch(variant, "norm_join", geometry(1), &arguments.int(parts as i64).int(extent as i64))
}
