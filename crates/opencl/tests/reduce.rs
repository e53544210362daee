//! Reductions, arg-reductions and scans against the CPU in f64.

#[path = "../../cpu/tests/common/mod.rs"]
mod common;

use common::*;
use isograd_core::backend::{Reduce, Scan};
use isograd_core::{Backend, Call, DType, Kernel, Layout, Operand, Shape};
use isograd_gpu::Gpu;
use isograd_opencl::{OpenCl, driver};
use std::sync::LazyLock;

static GPU: LazyLock<Gpu<OpenCl>> = LazyLock::new(|| Gpu::new(driver(0).unwrap()));

const SIZES: [usize; 18] = [0, 1, 2, 31, 32, 33, 64, 65, 127, 128, 129, 255, 257, 1000, 1024, 1025, 4097, 100_003];

const SUM: Kernel = Kernel::Reduce(Reduce::Sum);
const MEAN: Kernel = Kernel::Reduce(Reduce::Mean);
const PROD: Kernel = Kernel::Reduce(Reduce::Prod);
const MAX: Kernel = Kernel::Reduce(Reduce::Max);
const MIN: Kernel = Kernel::Reduce(Reduce::Min);
const NORM: Kernel = Kernel::Reduce(Reduce::Norm);
const ALL: [Kernel; 8] = [SUM, MEAN, PROD, MAX, MIN, NORM, Kernel::ArgMax, Kernel::ArgMin];

/// A call's only output, run on the GPU over a copy of `x`.
fn on_gpu(kernel: Kernel, x: &T, dtype: DType, dims: &[usize], ints: &[i64]) -> T {
    let y = T::out(dtype, dims);
    let (input, output) = (x.bytes(), y.bytes());
    let [from, to] = [&input, &output].map(|bytes| {
        let memory = GPU.allocate(bytes.len()).unwrap();
        GPU.upload(&*memory, bytes).unwrap();
        memory
    });
    let inputs = [Operand { memory: &*from, ..x.op() }];
    let outputs = [Operand { memory: &*to, ..y.op() }];
    GPU.run(&Call { op: "test", kernel, inputs: &inputs, outputs: &outputs, ints, floats: &[] }).unwrap();
    let mut bytes = output;
    GPU.download(&*to, 0, &mut bytes).unwrap();
    CPU.upload(&*y.memory, &bytes).unwrap();
    y
}

fn out_dtype(kernel: Kernel, dtype: DType) -> DType {
    match kernel {
        SUM | PROD | Kernel::Scan(_) if !dtype.is_float() => DType::I64,
        Kernel::ArgMax | Kernel::ArgMin => DType::I64,
        _ => dtype,
    }
}

/// What the dtype keeps of a result of the CPU in f64, and how far from it the GPU may be (class R of the parity rule).
/// A product of `count` factors is rounded `count` times in any order; the errors walk at random.
fn tolerance(kernel: Kernel, dtype: DType, count: usize, r: f64, companion: f64) -> f64 {
    let (unit, tiny) = match dtype {
        DType::F64 => (0.0, f64::MIN_POSITIVE),
        DType::F32 => (0.0, f32::MIN_POSITIVE as f64),
        DType::F16 => (4.9e-4, 6e-8),
        _ => (3.9e-3, f32::MIN_POSITIVE as f64),
    };
    let acc = if dtype == DType::F64 { 1.1e-16 } else { 6e-8 };
    let c = match kernel {
        PROD | Kernel::Scan(Scan::Prod) => 8.0 + 2.0 * (count as f64).sqrt(),
        _ => 8.0 + 4.0 * (count as f64 + 1.0).log2(),
    };
    1.5 * unit * r.abs() + c * acc * companion + tiny
}

/// Rounded to the dtype and widened again.
fn rounded(dtype: DType, values: &[f64]) -> Vec<f64> {
    T::new(dtype, &[values.len()], values).values()
}

/// Runs the kernel twice on the GPU and compares with the CPU: bits with bits, values with values. `all` is the whole
/// buffer of x; `dims` is the output's shape; `count` elements make one of its elements.
#[track_caller]
fn check(kernel: Kernel, dtype: DType, all: &[f64], layout: &Layout, dims: &[usize], count: usize, ints: &[i64]) {
    let what = || format!("{kernel} {dtype} of {layout:?}, {ints:?}");
    let to = out_dtype(kernel, dtype);
    let buffer = |dtype, values: &[f64]| T::new(dtype, &[values.len()], values).with(|_| layout.clone());
    let x = buffer(dtype, all);
    let y = on_gpu(kernel, &x, to, dims, ints);
    assert_eq!(y.bytes(), on_gpu(kernel, &x, to, dims, ints).bytes(), "{}: two runs differ", what());
    let reference = |dtype: DType, all: &[f64]| {
        let r = T::out(out_dtype(kernel, dtype), dims);
        run(kernel, &[&buffer(dtype, all)], &[&r], ints, &[]);
        r.values()
    };
    if !dtype.is_float() {
        return assert_same(&y.values(), &reference(dtype, all), what());
    }
    let wide = rounded(dtype, all);
    let r = reference(DType::F64, &wide);
    let is_exact = !matches!(kernel, SUM | MEAN | PROD | NORM | Kernel::Scan(_));
    if is_exact {
        return assert_same(&y.values(), &r, what());
    }
    let companion = reference(DType::F64, &wide.iter().map(|v| v.abs()).collect::<Vec<_>>());
    for (i, ((y, &r), &a)) in y.values().iter().zip(&r).zip(&companion).enumerate() {
        let is_special = !rounded(to, &[r])[0].is_finite();
        let is_right = match is_special {
            true => *y == rounded(to, &[r])[0] || y.is_nan() && r.is_nan(),
            false => (y - r).abs() <= tolerance(kernel, to, count, r, a),
        };
        assert!(is_right, "{}: element {i} is {y}, expected {r} +- {}", what(), tolerance(kernel, to, count, r, a));
    }
}

/// A reduction of the last `reduced` dimensions of a view of `all`.
#[track_caller]
fn check_reduce(kernel: Kernel, dtype: DType, all: &[f64], layout: &Layout, reduced: usize) {
    let dims = layout.shape().dims();
    let (kept, gone) = dims.split_at(dims.len() - reduced);
    let count: usize = gone.iter().product();
    let is_real = matches!(kernel, MEAN | NORM);
    let is_extremum = matches!(kernel, MAX | MIN | Kernel::ArgMax | Kernel::ArgMin);
    if is_real && !dtype.is_float() || is_extremum && count == 0 {
        return;
    }
    check(kernel, dtype, all, layout, kept, count, &[reduced as i64]);
}

/// Test values of a kernel: factors near 1, otherwise numbers in -1..1; small integers for integer dtypes.
fn data(kernel: Kernel, dtype: DType, n: usize) -> Vec<f64> {
    let mut lcg = Lcg(n as u64 + 1);
    match (kernel, dtype.is_float()) {
        (PROD | Kernel::Scan(Scan::Prod), true) => lcg.reals(n).iter().map(|v| 1.0 + v * 0.01).collect(),
        (_, true) => lcg.reals(n),
        _ => lcg.small(n),
    }
}

fn contiguous(dims: &[usize]) -> Layout {
    Layout::contiguous(Shape::new(dims))
}

/// Rows, columns, and everything, of each size.
fn sizes(kernel: Kernel, dtype: DType, sizes: &[usize]) {
    for &n in sizes {
        let x = data(kernel, dtype, 3 * n);
        check_reduce(kernel, dtype, &x, &contiguous(&[3 * n]), 1);
        check_reduce(kernel, dtype, &x, &contiguous(&[3, n]), 1);
        check_reduce(kernel, dtype, &x, &contiguous(&[n, 3]), 1);
        check_reduce(kernel, dtype, &x, &contiguous(&[n, 3]).transpose(0, 1), 1);
        check_reduce(kernel, dtype, &x, &contiguous(&[3, n]).transpose(0, 1), 1);
        if n <= 4097 {
            let x = data(kernel, dtype, 64 * n);
            check_reduce(kernel, dtype, &x, &contiguous(&[64, n]), 1);
            check_reduce(kernel, dtype, &x, &contiguous(&[n, 64]).transpose(0, 1), 1);
            check_reduce(kernel, dtype, &x, &contiguous(&[64, n]).transpose(0, 1), 1);
        }
    }
}

#[test]
fn sizes_of_sums() {
    sizes(SUM, DType::F32, &SIZES);
}

#[test]
fn sizes_of_positions() {
    sizes(Kernel::ArgMax, DType::F32, &SIZES);
}

#[test]
fn sizes_of_others() {
    ALL.into_iter()
        .filter(|&k| k != SUM && k != Kernel::ArgMax)
        .for_each(|k| sizes(k, DType::F16, &[0, 1, 33, 1025, 4097]));
}

#[test]
fn dtypes_of_floats() {
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        ALL.into_iter().for_each(|k| sizes(k, dtype, &[2, 129, 100_003]));
    }
}

#[test]
fn dtypes_of_integers() {
    for dtype in [DType::I64, DType::I32, DType::U8, DType::Bool] {
        ALL.into_iter().for_each(|k| sizes(k, dtype, &[2, 129, 100_003]));
    }
}
