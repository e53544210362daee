//! Reductions, arg-reductions and scans against the CPU in f64.

use super::common::*;
use isograd::backend::{Reduce, Scan};
use isograd::{Backend, Call, DType, Kernel, Layout, Operand, Shape};
use isograd_gpu::Gpu;
use isograd_tests::harness::step;

const SIZES: [usize; 18] = [0, 1, 2, 31, 32, 33, 64, 65, 127, 128, 129, 255, 257, 1000, 1024, 1025, 4097, 100_003];

const SUM: Kernel = Kernel::Reduce(Reduce::Sum);
const MEAN: Kernel = Kernel::Reduce(Reduce::Mean);
const PROD: Kernel = Kernel::Reduce(Reduce::Prod);
const MAX: Kernel = Kernel::Reduce(Reduce::Max);
const MIN: Kernel = Kernel::Reduce(Reduce::Min);
const NORM: Kernel = Kernel::Reduce(Reduce::Norm);
const ALL: [Kernel; 8] = [SUM, MEAN, PROD, MAX, MIN, NORM, Kernel::ArgMax, Kernel::ArgMin];

/// A call's only output `y`, run on the GPU over a copy of `x`.
fn on_gpu(gpu: &Gpu, kernel: Kernel, x: &T, y: T, ints: &[i64]) -> T {
    let (input, output) = (x.bytes(), y.bytes());
    let [from, to] = [&input, &output].map(|bytes| {
        let memory = gpu.allocate(bytes.len()).unwrap();
        gpu.upload(&*memory, bytes).unwrap();
        memory
    });
    let inputs = [Operand { memory: &*from, ..x.op() }];
    let outputs = [Operand { memory: &*to, ..y.op() }];
    gpu.run(&Call { op: "test", kernel, inputs: &inputs, outputs: &outputs, ints, floats: &[] }).unwrap();
    let mut bytes = output;
    gpu.download(&*to, 0, &mut bytes).unwrap();
    CPU.upload(&*y.memory, &bytes).unwrap();
    y
}

fn out_dtype(kernel: Kernel, dtype: DType) -> DType {
    match kernel {
        Kernel::Reduce(Reduce::Sum | Reduce::Prod) | Kernel::Scan(_) if !dtype.is_float() => DType::I64,
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
        Kernel::Reduce(Reduce::Prod) | Kernel::Scan(Scan::Prod) => 8.0 + 2.0 * (count as f64).sqrt(),
        _ => 8.0 + 4.0 * (count as f64 + 1.0).log2(),
    };
    1.5 * unit * r.abs() + c * acc * companion + tiny
}

/// Rounded to the dtype and widened again.
fn rounded(dtype: DType, values: &[f64]) -> Vec<f64> {
    T::new(dtype, &[values.len()], values).values()
}

/// Runs the kernel twice on the GPU and compares with the CPU: bits with bits, values with values. `all` is the whole
/// buffer of x; `y` is the output's layout; `count` elements make one of its elements.
#[track_caller]
fn check(
    gpu: &Gpu,
    kernel: Kernel,
    dtype: DType,
    (all, layout): (&[f64], &Layout),
    y: &Layout,
    count: usize,
    ints: &[i64],
) {
    let what = || format!("{kernel} {dtype} of {layout:?}, {ints:?}");
    let to = out_dtype(kernel, dtype);
    let buffer = |dtype, values: &[f64]| T::new(dtype, &[values.len()], values).with(|_| layout.clone());
    let x = buffer(dtype, all);
    let out = |dtype| T::out(dtype, y.shape().dims()).with(|_| y.clone());
    let y = on_gpu(gpu, kernel, &x, out(to), ints);
    assert_eq!(y.bytes(), on_gpu(gpu, kernel, &x, out(to), ints).bytes(), "{}: two runs differ", what());
    let reference = |dtype: DType, all: &[f64]| {
        let r = out(out_dtype(kernel, dtype));
        run(kernel, &[&buffer(dtype, all)], &[&r], ints, &[]);
        r.values()
    };
    if !dtype.is_float() {
        return assert_same(&y.values(), &reference(dtype, all), what());
    }
    let wide = rounded(dtype, all);
    let r = reference(DType::F64, &wide);
    let is_exact =
        !matches!(kernel, Kernel::Reduce(Reduce::Sum | Reduce::Mean | Reduce::Prod | Reduce::Norm) | Kernel::Scan(_));
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
fn check_reduce(gpu: &Gpu, kernel: Kernel, dtype: DType, all: &[f64], layout: &Layout, reduced: usize) {
    let dims = layout.shape().dims();
    let (kept, gone) = dims.split_at(dims.len() - reduced);
    let count: usize = gone.iter().product();
    let is_real = matches!(kernel, Kernel::Reduce(Reduce::Mean | Reduce::Norm));
    let is_extremum = matches!(kernel, Kernel::Reduce(Reduce::Max | Reduce::Min) | Kernel::ArgMax | Kernel::ArgMin);
    if is_real && !dtype.is_float() || is_extremum && count == 0 {
        return;
    }
    check(gpu, kernel, dtype, (all, layout), &contiguous(kept), count, &[reduced as i64]);
}

/// Test values of a kernel: factors near 1, otherwise numbers in -1..1; small integers for integer dtypes.
fn data(kernel: Kernel, dtype: DType, n: usize) -> Vec<f64> {
    let mut lcg = Lcg(n as u64 + 1);
    match (kernel, dtype.is_float()) {
        (Kernel::Reduce(Reduce::Prod) | Kernel::Scan(Scan::Prod), true) => {
            lcg.reals(n).iter().map(|v| 1.0 + v * 0.01).collect()
        }
        (_, true) => lcg.reals(n),
        _ => lcg.small(n),
    }
}

fn contiguous(dims: &[usize]) -> Layout {
    Layout::contiguous(Shape::new(dims))
}

/// Rows, columns, and everything, of each size.
fn sizes(gpu: &Gpu, kernel: Kernel, dtype: DType, sizes: &[usize]) {
    for &n in sizes {
        let x = data(kernel, dtype, 3 * n);
        check_reduce(gpu, kernel, dtype, &x, &contiguous(&[3 * n]), 1);
        check_reduce(gpu, kernel, dtype, &x, &contiguous(&[3, n]), 1);
        check_reduce(gpu, kernel, dtype, &x, &contiguous(&[n, 3]), 1);
        check_reduce(gpu, kernel, dtype, &x, &contiguous(&[n, 3]).transpose(0, 1), 1);
        check_reduce(gpu, kernel, dtype, &x, &contiguous(&[3, n]).transpose(0, 1), 1);
        if n <= 4097 {
            let x = data(kernel, dtype, 64 * n);
            check_reduce(gpu, kernel, dtype, &x, &contiguous(&[64, n]), 1);
            check_reduce(gpu, kernel, dtype, &x, &contiguous(&[n, 64]).transpose(0, 1), 1);
            check_reduce(gpu, kernel, dtype, &x, &contiguous(&[64, n]).transpose(0, 1), 1);
        }
    }
}

pub fn sizes_of_sums(gpu: &Gpu) {
    sizes(gpu, SUM, DType::F32, &SIZES);
}

pub fn sizes_of_positions(gpu: &Gpu) {
    sizes(gpu, Kernel::ArgMax, DType::F32, &SIZES);
}

pub fn sizes_of_others(gpu: &Gpu) {
    ALL.into_iter()
        .filter(|k| !matches!(k, Kernel::Reduce(Reduce::Sum) | Kernel::ArgMax))
        .for_each(|k| sizes(gpu, k, DType::F16, &[0, 1, 33, 1025, 4097]));
}

pub fn dtypes_of_floats(gpu: &Gpu) {
    for dtype in [DType::F64, DType::BF16] {
        ALL.into_iter().for_each(|k| sizes(gpu, k, dtype, &[2, 129, 100_003]));
    }
    [MEAN, PROD].into_iter().for_each(|k| sizes(gpu, k, DType::F32, &[2, 129, 100_003]));
}

pub fn dtypes_of_integers(gpu: &Gpu) {
    for dtype in [DType::I64, DType::I32, DType::U8, DType::Bool] {
        [SUM, MIN, Kernel::ArgMax].into_iter().for_each(|k| sizes(gpu, k, dtype, &[2, 129, 100_003]));
    }
    [PROD, MAX, Kernel::ArgMin].into_iter().for_each(|k| sizes(gpu, k, DType::I32, &[2, 129, 100_003]));
}

/// Every way to keep and to reduce dimensions of a view that is permuted, with gaps, and partly expanded.
fn views(gpu: &Gpu, kernel: Kernel, dtype: DType, rank: usize) {
    let dims = &[5, 12, 3, 8][4 - rank..];
    let wide: Vec<usize> = dims.iter().map(|d| d * 2 + 1).collect();
    let x = data(kernel, dtype, wide.iter().product());
    let mut lcg = Lcg(rank as u64);
    for mask in 0..1u32 << rank {
        let (reduced, kept): (Vec<usize>, Vec<usize>) = (0..rank).partition(|d| mask >> d & 1 == 1);
        let perm: Vec<usize> = kept.iter().chain(&reduced).copied().collect();
        let mut turned = perm.clone();
        turned[kept.len()..].reverse();
        let gap = lcg.next(rank as u64) as usize;
        let sliced = (0..rank).fold(contiguous(&wide), |l, d| l.narrow(d, d % 2, dims[d], 1 + (d == gap) as usize));
        let mut expanded = dims.to_vec();
        expanded[gap] = 1;
        for layout in [contiguous(dims), sliced, contiguous(&expanded).expand(&Shape::new(dims))] {
            check_reduce(gpu, kernel, dtype, &x, &layout.permute(&perm), reduced.len());
            check_reduce(gpu, kernel, dtype, &x, &layout.permute(&turned), reduced.len());
        }
    }
}

pub fn views_of_sums(gpu: &Gpu) {
    (1..=4).for_each(|rank| views(gpu, SUM, DType::F32, rank));
}

pub fn views_of_positions(gpu: &Gpu) {
    (1..=4).for_each(|rank| views(gpu, Kernel::ArgMin, DType::F16, rank));
}

pub fn many_long_columns_and_rows_take_several_launches(gpu: &Gpu) {
    for (rows, columns) in [(3, 200_001), (40_000, 7), (30_000, 16)] {
        for kernel in [SUM, Kernel::ArgMax] {
            for dtype in [DType::F32, DType::F16] {
                let x = data(kernel, dtype, rows * columns);
                check_reduce(gpu, kernel, dtype, &x, &contiguous(&[rows, columns]), 1);
                check_reduce(gpu, kernel, dtype, &x, &contiguous(&[rows, columns]).transpose(0, 1), 1);
                check_reduce(gpu, kernel, dtype, &x, &contiguous(&[2, rows / 2, columns]).permute(&[0, 2, 1]), 1);
                check_reduce(gpu, kernel, dtype, &x, &contiguous(&[2, rows / 2, columns]).permute(&[1, 0, 2]), 2);
            }
        }
    }
}

pub fn nan_infinities_and_ties(gpu: &Gpu) {
    let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, 1.0];
    for n in [2, 33, 257, 1025, 20_000] {
        for special in specials {
            for at in [0, 1, n / 2, n - 1] {
                let mut x = vec![1.0; n];
                x[at] = special;
                x[n - 1 - at / 2] = special;
                for kernel in [SUM, NORM, MAX, MIN, Kernel::ArgMax, Kernel::ArgMin] {
                    check_reduce(gpu, kernel, DType::F32, &x, &contiguous(&[n]), 1);
                    check_reduce(gpu, kernel, DType::F32, &x, &contiguous(&[n / 2, 2]).transpose(0, 1), 1);
                }
            }
        }
        let nothing = vec![f64::NEG_INFINITY; n];
        check_reduce(gpu, Kernel::ArgMax, DType::F32, &nothing, &contiguous(&[n]), 1);
        check_reduce(gpu, MAX, DType::F32, &nothing, &contiguous(&[n]), 1);
    }
}

pub fn integers_wrap(gpu: &Gpu) {
    let x = [i64::MAX as f64; 5];
    let y = on_gpu(gpu, SUM, &T::new(DType::I64, &[5], &x), T::out(DType::I64, &[]), &[1]);
    let expected = T::out(DType::I64, &[]);
    run(SUM, &[&T::new(DType::I64, &[5], &x)], &[&expected], &[1], &[]);
    assert_eq!(y.bytes(), expected.bytes());
}

const SCANS: [Kernel; 2] = [Kernel::Scan(Scan::Sum), Kernel::Scan(Scan::Prod)];

#[track_caller]
fn check_scan(gpu: &Gpu, kernel: Kernel, dtype: DType, all: &[f64], layout: &Layout) {
    let dims = layout.shape().dims();
    for ints in [[0, 0], [1, 0], [0, 1], [1, 1]] {
        check(gpu, kernel, dtype, (all, layout), &contiguous(dims), dims.last().copied().unwrap_or(1), &ints);
    }
}

/// Along dimension `d`, to an output whose dimensions lie in this order.
#[track_caller]
fn check_columns(gpu: &Gpu, kernel: Kernel, dtype: DType, all: &[f64], layout: &Layout, d: usize) {
    let dims = layout.shape().dims();
    let order: Vec<usize> = (0..dims.len()).filter(|&k| k != d).chain([d]).collect();
    for ints in [[0, 0], [1, 0], [0, 1], [1, 1]] {
        check(gpu, kernel, dtype, (all, &layout.permute(&order)), &contiguous(dims).permute(&order), dims[d], &ints);
    }
}

pub fn sizes_of_scans(gpu: &Gpu) {
    for kernel in SCANS {
        for n in SIZES.into_iter().step_by(step()) {
            let x = data(kernel, DType::F32, 5 * n);
            check_scan(gpu, kernel, DType::F32, &x, &contiguous(&[5, n]));
            check_scan(gpu, kernel, DType::F32, &x, &contiguous(&[n, 5]).transpose(0, 1));
            check_scan(gpu, kernel, DType::F32, &x, &contiguous(&[n, 5]));
        }
    }
}

pub fn dtypes_of_scans(gpu: &Gpu) {
    for kernel in SCANS {
        for dtype in [DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8] {
            for n in [1, 33, 4097, 100_003] {
                check_scan(gpu, kernel, dtype, &data(kernel, dtype, 2 * n), &contiguous(&[2, n]));
            }
        }
    }
}

pub fn views_of_scans(gpu: &Gpu) {
    let x = data(SCANS[0], DType::F32, 9 * 11 * 13 * 70);
    let wide = contiguous(&[9, 11, 13, 70]);
    for layout in [wide.permute(&[3, 0, 2, 1]), wide.permute(&[1, 2, 0, 3]).narrow(3, 3, 30, 2).narrow(0, 1, 5, 2)] {
        check_scan(gpu, SCANS[0], DType::F32, &x, &layout);
    }
    check_scan(gpu, SCANS[0], DType::F32, &x, &contiguous(&[70, 1]).expand(&Shape::new(&[70, 3000])));
    check_scan(gpu, SCANS[0], DType::F32, &x, &contiguous(&[]));
    check_columns(gpu, SCANS[0], DType::F32, &x, &contiguous(&[1, 24]).expand(&Shape::new(&[3000, 24])), 0);
}

pub fn columns_of_scans(gpu: &Gpu) {
    for kernel in SCANS {
        for n in SIZES.into_iter().step_by(step()) {
            let x = data(kernel, DType::F32, 5 * n);
            check_columns(gpu, kernel, DType::F32, &x, &contiguous(&[n, 5]), 0);
        }
        let x = data(kernel, DType::F32, 1 << 18);
        for n in [513, 1, 9, 4097].into_iter().step_by(step()) {
            check_columns(gpu, kernel, DType::F32, &x, &contiguous(&[n, 8]), 0);
            check_columns(gpu, kernel, DType::F32, &x, &contiguous(&[3, n, 12]), 1);
            check_columns(gpu, kernel, DType::F32, &x, &contiguous(&[2, n, 3, 2]), 1);
            check_columns(gpu, kernel, DType::F32, &x, &contiguous(&[n, 60]).narrow(1, 3, 24, 2), 0);
            check_columns(gpu, kernel, DType::F32, &x, &contiguous(&[n, 60]).narrow(1, 4, 24, 1), 0);
            check_columns(gpu, kernel, DType::F32, &x, &contiguous(&[2, n, 5, 3]).permute(&[3, 1, 0, 2]), 1);
        }
        for dims in [[3, 9001], [12, 9000]] {
            check_columns(gpu, kernel, DType::F32, &x, &contiguous(&dims), 0);
        }
    }
}

pub fn dtypes_of_columns_of_scans(gpu: &Gpu) {
    for kernel in SCANS {
        for dtype in [DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8] {
            for dims in [[33, 8], [129, 33], [4097, 16]] {
                check_columns(gpu, kernel, dtype, &data(kernel, dtype, dims[0] * dims[1]), &contiguous(&dims), 0);
            }
        }
    }
}

pub fn running_products_do_not_overflow_between(gpu: &Gpu) {
    for n in [40, 3000, 50_000] {
        let x: Vec<f64> = (0..n).map(|i| [-100, 100, 100, -100][i % 4]).map(|e| 2f64.powi(e)).collect();
        check_scan(gpu, SCANS[1], DType::F32, &x, &contiguous(&[n]));
        let x: Vec<f64> = x.iter().flat_map(|&v| [v, 1.0, v, -1.0]).collect();
        check_columns(gpu, SCANS[1], DType::F32, &x, &contiguous(&[n, 4]), 0);
    }
}

pub fn special_values_in_scans(gpu: &Gpu) {
    for special in [f64::NAN, f64::INFINITY, 0.0] {
        for n in [10, 3000, 70_000] {
            let mut x = vec![1.0; n];
            x[n / 3] = special;
            x[n / 2] = -special;
            SCANS.into_iter().for_each(|kernel| check_scan(gpu, kernel, DType::F32, &x, &contiguous(&[n])));
            SCANS
                .into_iter()
                .for_each(|kernel| check_columns(gpu, kernel, DType::F32, &x, &contiguous(&[n / 2, 2]), 0));
        }
    }
}
