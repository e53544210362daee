//! Gather and scatter against the CPU.

use super::common::*;
use super::device::{SIZES, on_gpu, opened, same, try_on, values_in};
use isograd::backend::Scatter;
use isograd::{Backend, Call, Checks, DType, Device, Kernel, Kind, Operand, Tensor};
use isograd_gpu::Gpu;
use std::sync::Arc;

const ASSIGN: Kernel = Kernel::Scatter(Scatter::Assign);
const ADD: Kernel = Kernel::Scatter(Scatter::Add);

fn indices(seed: usize, n: usize, extent: usize) -> Vec<f64> {
    let mut lcg = Lcg(seed as u64 + 11);
    (0..n).map(|_| lcg.next(extent as u64) as f64).collect()
}

fn data(dtype: DType, n: usize) -> Vec<f64> {
    let mut lcg = Lcg(n as u64 + 3);
    if dtype.is_float() { lcg.reals(n) } else { lcg.small(n) }
}

#[track_caller]
fn gather(gpu: &Gpu, x: &T, index: &T, dim: usize) {
    let y = T::out(x.dtype, index.layout.shape().dims());
    let what = format!("{} {:?} at {} {:?}, dim {dim}", x.dtype, x.layout, index.dtype, index.layout);
    same(gpu, Kernel::Gather, &[x, index], &[&y], &[dim as i64], &[], &what);
}

/// Assigns and adds: exact, except sums of floats, which keep class R of the parity rule.
#[track_caller]
fn scatter(gpu: &Gpu, index: &T, source: &T, y_dims: &[usize], dim: usize) {
    let dtype = source.dtype;
    let target = |dtype, f: &dyn Fn(f64) -> f64| {
        let n = y_dims.iter().product();
        T::new(dtype, y_dims, &data(dtype, n).into_iter().map(f).collect::<Vec<_>>())
    };
    let what = format!("{dtype} {:?} to {y_dims:?} at {} {:?}, dim {dim}", source.layout, index.dtype, index.layout);
    let ints = [dim as i64];
    same(gpu, ASSIGN, &[index, source], &[&target(dtype, &|v| v)], &ints, &[], &what);
    if !dtype.is_float() {
        return same(gpu, ADD, &[index, source], &[&target(dtype, &|v| v)], &ints, &[], &what);
    }
    let y = target(dtype, &|v| v);
    let got = values_in(&y, &on_gpu(gpu, ADD, &[index, source], &[&y], &ints, &[])[0]);
    let wide = |f: &dyn Fn(f64) -> f64| {
        let start: Vec<f64> = y.values().into_iter().map(f).collect();
        let values: Vec<f64> = source.values().into_iter().map(f).collect();
        let r = T::new(DType::F64, y_dims, &start);
        run(ADD, &[index, &T::new(DType::F64, source.layout.shape().dims(), &values)], &[&r], &ints, &[]);
        r.values()
    };
    let (unit, acc) = match dtype {
        DType::F64 => (0.0, 1.1e-16),
        DType::F32 => (0.0, 6e-8),
        DType::F16 => (4.9e-4, 6e-8),
        _ => (3.9e-3, 6e-8),
    };
    let count = index.layout.shape().dims()[dim] as f64;
    let c = 8.0 + 4.0 * (count + 1.0).log2();
    for (i, ((y, r), a)) in got.iter().zip(wide(&|v| v)).zip(wide(&f64::abs)).enumerate() {
        let bound = 1.5 * unit * r.abs() + c * acc * a + 1e-7 * unit;
        assert!((y - r).abs() <= bound, "add {what}: element {i} is {y}, expected {r} +- {bound}");
    }
}

/// Rows `[L]` of a table `[V, E]`, as an embedding and its gradient move them.
fn rows(gpu: &Gpu, dtype: DType, index_dtype: DType, l: usize, v: usize, e: usize) {
    let index = || T::new(index_dtype, &[l, 1], &indices(l + e, l, v)).expand(&[l, e]);
    gather(gpu, &T::new(dtype, &[v, e], &data(dtype, v * e)), &index(), 0);
    scatter(gpu, &index(), &T::new(dtype, &[l, e], &data(dtype, l * e)), &[v, e], 0);
}

pub fn sizes_of_rows(gpu: &Gpu) {
    for e in SIZES {
        rows(gpu, DType::F32, DType::I64, 37, 11, e);
        rows(gpu, DType::BF16, DType::I64, 5, 11, e);
    }
}

pub fn sizes_of_indices(gpu: &Gpu) {
    for l in SIZES {
        rows(gpu, DType::F32, DType::I64, l, 50, 12);
        rows(gpu, DType::F16, DType::I32, l, 3, 8);
        rows(gpu, DType::F64, DType::I32, l, 100, 1);
    }
}

pub fn dtypes(gpu: &Gpu) {
    for dtype in DType::ALL {
        for of in [DType::I64, DType::I32] {
            for e in [1, 4, 33, 64] {
                if dtype == DType::Bool {
                    let index = T::new(of, &[50, 1], &indices(e, 50, 9)).expand(&[50, e]);
                    gather(gpu, &T::new(dtype, &[9, e], &data(dtype, 9 * e)), &index, 0);
                    let source = T::new(dtype, &[50, e], &data(dtype, 50 * e));
                    same(gpu, ASSIGN, &[&index, &source], &[&T::out(dtype, &[9, e])], &[0], &[], "bool");
                } else {
                    rows(gpu, dtype, of, 50, 9, e);
                    rows(gpu, dtype, of, 20, 9, e);
                }
            }
        }
    }
}

/// One element an index, along each dimension, with the operands placed in every way.
pub fn views(gpu: &Gpu) {
    for placing in PLACINGS {
        for of_index in PLACINGS {
            for dim in 0..3 {
                for (dtype, long) in [(DType::F32, 7), (DType::F16, 40), (DType::I64, 90)] {
                    let x_dims = [6, 7, 8];
                    let mut dims = [5, 6, 7];
                    dims[dim] = long;
                    let n = dims.iter().product();
                    let index = T::placed(DType::I64, &dims, &indices(dim, n, x_dims[dim]), of_index);
                    gather(gpu, &T::placed(dtype, &x_dims, &data(dtype, 336), placing), &index, dim);
                    scatter(gpu, &index, &T::placed(dtype, &dims, &data(dtype, n), placing), &x_dims, dim);
                }
            }
        }
    }
}

/// An index `[L]` along the middle and the last dimension, and one that does not change along what it indexes.
pub fn expanded_indices(gpu: &Gpu) {
    for l in [1, 9, 64, 3000] {
        let x_dims = [4, 10, 16];
        let middle = || T::new(DType::I64, &[1, l, 1], &indices(l, l, 10)).expand(&[4, l, 16]);
        gather(gpu, &T::new(DType::F32, &x_dims, &data(DType::F32, 640)), &middle(), 1);
        scatter(gpu, &middle(), &T::new(DType::F32, &[4, l, 16], &data(DType::F32, 64 * l)), &x_dims, 1);
        let last = || T::new(DType::I32, &[1, 1, l], &indices(l, l, 16)).expand(&[4, 10, l]);
        gather(gpu, &T::new(DType::BF16, &x_dims, &data(DType::BF16, 640)), &last(), 2);
        scatter(gpu, &last(), &T::new(DType::BF16, &[4, 10, l], &data(DType::BF16, 40 * l)), &x_dims, 2);
        let still = || T::new(DType::I64, &[4, 1, 1], &indices(l, 4, 10)).expand(&[4, l, 16]);
        gather(gpu, &T::new(DType::F32, &x_dims, &data(DType::F32, 640)), &still(), 1);
        scatter(gpu, &still(), &T::new(DType::F32, &[4, l, 16], &data(DType::F32, 64 * l)), &x_dims, 1);
    }
    let x = || T::new(DType::F32, &[10, 1], &data(DType::F32, 10)).expand(&[10, 24]);
    let index = || T::new(DType::I64, &[50, 1], &indices(1, 50, 10)).expand(&[50, 24]);
    gather(gpu, &x(), &index(), 0);
    let source = T::new(DType::F32, &[1, 24], &data(DType::F32, 24)).expand(&[50, 24]);
    scatter(gpu, &index(), &source, &[10, 24], 0);
    let one = T::new(DType::F16, &[1, 1], &[0.5]).expand(&[50, 24]);
    scatter(gpu, &index(), &one, &[10, 24], 0);
}

/// Rows that begin where no wide word can.
pub fn rows_at_offsets(gpu: &Gpu) {
    for dtype in [DType::F32, DType::F16, DType::U8] {
        for (start, width) in [(0, 24), (1, 24), (2, 24), (4, 20), (8, 16), (4, 6)] {
            let part = |n: usize| T::new(dtype, &[n, 48], &data(dtype, n * 48)).with(|l| l.narrow(1, start, width, 1));
            let index = T::new(DType::I64, &[70, 1], &indices(start, 70, 10)).expand(&[70, width]);
            gather(gpu, &part(10), &index, 0);
            scatter(gpu, &index, &part(70), &[10, width], 0);
        }
    }
}

/// Sums of all lengths, which begin and end anywhere in the parts.
pub fn long_and_short_sums(gpu: &Gpu) {
    for (n, bins) in [(4097, 1), (4097, 2), (4097, 300), (4097, 100_000), (70_001, 1), (70_001, 40), (70_001, 9000)] {
        for (dtype, e) in [(DType::F32, 1), (DType::F16, 4), (DType::I32, 3)] {
            let index = T::new(DType::I64, &[n, 1], &indices(bins, n, bins)).expand(&[n, e]);
            scatter(gpu, &index, &T::new(dtype, &[n, e], &data(dtype, n * e)), &[bins, e], 0);
        }
    }
    // Few long segments among many short ones.
    let n = 20_000;
    let skewed: Vec<f64> = indices(5, n, 1 << 20).iter().map(|v| (v.sqrt() - 700.0).max(3.0).floor()).collect();
    let index = T::new(DType::I64, &[n, 1], &skewed).expand(&[n, 8]);
    scatter(gpu, &index, &T::new(DType::F32, &[n, 8], &data(DType::F32, n * 8)), &[400, 8], 0);
}

/// Sums of the smallest and the largest integers wrap; sums of 16-bit floats are rounded once.
pub fn integers_wrap_and_sums_round_once(gpu: &Gpu) {
    for n in [10, 3000] {
        let index = || T::new(DType::I64, &[n], &vec![0.0; n]);
        let high = |dtype, v: f64| T::new(dtype, &[n], &vec![v; n]);
        for (dtype, v) in [(DType::I32, i32::MAX as f64), (DType::U8, 200.0), (DType::I64, -(2f64.powi(63)))] {
            same(gpu, ADD, &[&index(), &high(dtype, v)], &[&T::new(dtype, &[1], &[1.0])], &[0], &[], "wraps");
        }
        let y = T::new(DType::F16, &[1], &[2048.0]);
        let got = on_gpu(gpu, ADD, &[&index(), &high(DType::F16, 1.0)], &[&y], &[0], &[]);
        assert_eq!(values_in(&y, &got[0]), [(2048 + n) as f64]);
    }
}

pub fn nan_and_zeros_move_as_they_are(gpu: &Gpu) {
    let x = T::new(DType::F32, &[4], &[f64::NAN, -0.0, f64::INFINITY, 1e-40]);
    let index = T::new(DType::I64, &[40], &indices(1, 40, 4));
    gather(gpu, &x, &index, 0);
    let source = T::new(DType::F32, &[40], &[f64::NAN, -0.0, f64::INFINITY, 1e-40].repeat(10));
    same(gpu, ASSIGN, &[&index, &source], &[&T::out(DType::F32, &[4])], &[0], &[], "special values");
}

/// In checked mode every call fails as the CPU's, with the first bad element.
pub fn checked_errors_are_those_of_the_cpu(device: &Device) {
    let gpu = &opened(device);
    gpu.set_checks(Checks::AtOnce);
    for of in [DType::I64, DType::I32] {
        for (n, bad) in
            [(3, vec![(1, 9.0)]), (40, vec![(0, -1.0)]), (5000, vec![(4999, 7.0), (2000, -8.0), (2001, 12.0)])]
        {
            let mut values = indices(n, n, 7);
            bad.iter().for_each(|&(at, v)| values[at] = v);
            for e in [1, 12] {
                for placing in [Placing::Contiguous, Placing::Gaps] {
                    let index = T::placed(of, &[n, 1], &values, placing).expand(&[n, e]);
                    let (x, y) = (T::out(DType::F32, &[7, e]), T::out(DType::F32, &[n, e]));
                    for (kernel, inputs, output) in
                        [(Kernel::Gather, [&x, &index], &y), (ASSIGN, [&index, &y], &x), (ADD, [&index, &y], &x)]
                    {
                        let expected = try_run(kernel, &inputs, &[output], &[0], &[]).unwrap_err();
                        let got = try_on(gpu, kernel, &inputs, &[output], &[0], &[]).unwrap_err();
                        assert_eq!((got.kind(), got.to_string()), (Kind::Index, expected.to_string()));
                    }
                }
            }
        }
    }
    let fine = T::new(DType::I64, &[2], &[1.0, 0.0]);
    assert!(
        try_on(gpu, Kernel::Gather, &[&T::out(DType::F32, &[2]), &fine], &[&T::out(DType::F32, &[2])], &[0], &[])
            .is_ok()
    );
}

/// Otherwise the next call that waits fails, once; good elements have been moved, and nothing else was written.
pub fn deferred_errors_come_with_the_next_wait(device: &Device) {
    let gpu = Arc::new(opened(device));
    gpu.set_checks(Checks::Later);
    let device = Device::from_backend(device.name(), gpu.clone());
    let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0], 3, &device).unwrap();
    for n in [3, 3000] {
        let index = |bad: i64| {
            let mut all = vec![2i64; n];
            all[1] = bad;
            Tensor::from_vec(all, n, &device).unwrap()
        };
        for bad in [3, -1, i64::MAX, i64::MIN] {
            let y = x.gather(0, &index(bad)).unwrap();
            let error = y.to_vec::<f32>().unwrap_err();
            assert_eq!(error.to_string(), format!("gather: Index: element 1 of the index is {bad}, expected 0..3"));
            let values = y.to_vec::<f32>().unwrap();
            assert!(values[0] == 3.0 && values[1].is_nan() && values[2] == 3.0);
            let ones = Tensor::ones(n, DType::F32, &device).unwrap();
            for op in ["scatter_add", "scatter"] {
                let put = if op == "scatter" { Tensor::scatter } else { Tensor::scatter_add };
                let y = put(&x, 0, &index(bad), &ones).unwrap();
                let error = device.synchronize().unwrap_err();
                assert_eq!(error.to_string(), format!("{op}: Index: element 1 of the index is {bad}, expected 0..3"));
                let last = if op == "scatter" { 1.0 } else { 3.0 + (n - 1) as f32 };
                assert_eq!(y.to_vec::<f32>().unwrap(), [1.0, 2.0, last]);
            }
        }
        assert_eq!(x.gather(0, &index(0)).unwrap().to_vec::<f32>().unwrap()[..3], [3.0, 1.0, 3.0]);
    }
    let i = Tensor::from_vec(vec![5i32], 1, &device).unwrap();
    let whole = Tensor::from_vec(vec![1i64, 2], 2, &device).unwrap().gather(0, &i).unwrap();
    assert!(device.synchronize().is_err());
    assert_eq!(whole.to_vec::<i64>().unwrap(), [0]);
}

/// However many indices are bad, what lies before and behind the output stays.
pub fn bad_indices_touch_nothing(device: &Device) {
    let gpu = &opened(device);
    gpu.set_checks(Checks::Later);
    for n in [20, 70, 5000] {
        for bad in [-1.0, 4.0, 1e15] {
            for kernel in [ADD, ASSIGN] {
                let index = T::new(DType::I64, &[n, 1], &vec![bad; n]).expand(&[n, 6]);
                let source = T::new(DType::F32, &[n, 6], &vec![1.0; 6 * n]);
                let y = T::out(DType::F32, &[10, 6]).with(|l| l.narrow(0, 3, 4, 1));
                let memories = [&index, &source, &y].map(|t| {
                    let memory = gpu.allocate(t.bytes().len()).unwrap();
                    gpu.upload(&*memory, &t.bytes()).unwrap();
                    memory
                });
                let operand = |t, k: usize| Operand { memory: &*memories[k], ..T::op(t) };
                let (inputs, outputs) = ([operand(&index, 0), operand(&source, 1)], [operand(&y, 2)]);
                gpu.run(&Call { op: "test", kernel, inputs: &inputs, outputs: &outputs, ints: &[0], floats: &[] })
                    .unwrap();
                assert_eq!(gpu.synchronize().unwrap_err().kind(), Kind::Index);
                let mut bytes = y.bytes();
                gpu.download(&*memories[2], 0, &mut bytes).unwrap();
                assert_eq!(bytes, y.bytes());
            }
        }
    }
}

/// Lists of all lengths about what fits in local memory, whose entries meet never, sometimes, often and always.
pub fn lists_of_all_lengths(gpu: &Gpu) {
    for n in [33, 100, 2048, 2049, 8192, 8193] {
        for extent in [1, 3, 60, 20_000] {
            let values: Vec<f64> = (0..n).map(|i| (i * 7919 % extent) as f64).collect();
            let index = T::new(DType::I32, &[n], &values);
            scatter(gpu, &index, &T::new(DType::F32, &[n], &data(DType::F32, n)), &[extent], 0);
            let index = || T::new(DType::I64, &[n, 1], &indices(extent, n, extent)).expand(&[n, 5]);
            scatter(gpu, &index(), &T::new(DType::BF16, &[n, 5], &data(DType::BF16, n * 5)), &[extent, 5], 0);
        }
    }
}

/// Many lists, beside each other and one after the other, which groups take together.
pub fn many_lists(gpu: &Gpu) {
    for (lists, n, extent) in [(1, 40, 7), (3, 700, 50), (33, 128, 1000), (70, 64, 5), (260, 35, 90)] {
        for dim in [0, 1] {
            let dims = |n: usize| if dim == 0 { [n, lists] } else { [lists, n] };
            let index = T::new(DType::I64, &dims(n), &indices(n, n * lists, extent));
            for dtype in [DType::F16, DType::I64] {
                scatter(gpu, &index, &T::new(dtype, &dims(n), &data(dtype, n * lists)), &dims(extent), dim);
            }
        }
    }
}

/// A table that is too large for an entry of a list, and one whose keys have two digits.
pub fn large_tables(gpu: &Gpu) {
    for (n, extent) in [(50, 1 << 19), (50, (1 << 19) + 1), (9000, 600), (9000, 1 << 18)] {
        rows(gpu, DType::F32, DType::I64, n, extent, 2);
    }
    // Lists before and behind the indexed dimension, all of them in one order.
    let dims = [2, 9000, 3];
    let index = T::new(DType::I64, &dims, &indices(1, 54_000, 40));
    scatter(gpu, &index, &T::new(DType::F32, &dims, &data(DType::F32, 54_000)), &[2, 40, 3], 1);
}

/// Sums have a fixed order.
pub fn two_runs_give_the_same_bits(gpu: &Gpu) {
    for (n, extent) in [(2000, 150), (2000, 2), (20_000, 150), (20_000, 2)] {
        let index = T::new(DType::I64, &[n, 3], &indices(n, n * 3, extent));
        let source = T::new(DType::F32, &[n, 3], &data(DType::F32, n * 3));
        let y = T::out(DType::F32, &[extent, 3]);
        let sums = || on_gpu(gpu, ADD, &[&index, &source], &[&y], &[0], &[]);
        let first = sums();
        for _ in 0..3 {
            assert!(sums() == first, "{n} rows to {extent}");
        }
    }
}

/// A short index is looked through, a list that fits goes through local memory, a longer one is put in order: one digit
/// after the other.
pub fn the_kernels_that_run(device: &Device) {
    let gpu = &opened(device);
    let entries = |kernel, n: usize, extent: usize| {
        gpu.launches();
        let index = T::new(DType::I64, &[n], &indices(n, n, extent));
        try_on(gpu, kernel, &[&index, &T::out(DType::F32, &[n])], &[&T::out(DType::F32, &[extent])], &[0], &[])
            .unwrap();
        gpu.launches().iter().map(|l| l.entry).collect::<Vec<_>>()
    };
    for kernel in [ADD, ASSIGN] {
        assert_eq!(entries(kernel, 32, 3), ["few"]);
        assert_eq!(entries(kernel, 33, 3), ["lists"]);
    }
    assert_eq!(entries(ADD, 9000, 3), ["keys", "digits", "move", "sums", "joins"]);
    assert_eq!(entries(ADD, 9000, 512), ["keys", "digits", "move", "digits", "move", "sums", "joins"]);
    assert_eq!(entries(ASSIGN, 9000, 511), ["keys", "digits", "move", "assign"]);
}
