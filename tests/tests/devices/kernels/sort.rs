//! Sorting against the CPU: values and positions, bit for bit.

use super::common::*;
use super::device::{SIZES, same};
use isograd::{DType, Kernel};
use isograd_gpu::Gpu;

/// Sorts the last dimension in both orders.
fn check(gpu: &Gpu, x: &T, what: &str) {
    let dims = x.layout.shape().dims();
    for order in [0, 1] {
        let what = format!("{} of {:?}, order {order}, {what}", x.dtype, x.layout);
        same(gpu, Kernel::Sort, &[x], &[&T::out(x.dtype, dims), &T::out(DType::I64, dims)], &[order], &[], &what);
    }
}

/// Numbers with ties; floats with zeros, infinities and NaN of both signs.
fn data(dtype: DType, n: usize) -> Vec<f64> {
    let mut lcg = Lcg(n as u64 + 7);
    let special = [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0];
    let float = |i: usize| match lcg.next(8) {
        0 => special[lcg.next(6) as usize],
        1 => lcg.next(7) as f64 - 3.0,
        2 if i.is_multiple_of(3) => 1e-40,
        _ => (lcg.next(1 << 20) as f64 - 524_288.0) / 512.0,
    };
    match dtype {
        d if d.is_float() => (0..n).map(float).collect(),
        DType::U8 => (0..n).map(|_| lcg.next(256) as f64).collect(),
        DType::I32 => (0..n).map(|_| lcg.next(1 << 31) as f64 * 2.0 - 2f64.powi(31)).collect(),
        _ => (0..n).map(|_| (lcg.next(1 << 31) as f64 - 2f64.powi(30)) * 2f64.powi(33)).collect(),
    }
}

pub fn sizes(gpu: &Gpu) {
    for dtype in [DType::F32, DType::I64] {
        for n in SIZES {
            check(gpu, &T::new(dtype, &[n], &data(dtype, n)), "one row");
            check(gpu, &T::new(dtype, &[3, n], &data(dtype, 3 * n)), "three rows");
        }
    }
}

pub fn dtypes(gpu: &Gpu) {
    for dtype in NUMBERS {
        for dims in [[7, 33], [3, 1025], [2, 2049], [1, 5000], [300, 5], [1, 20_003]] {
            check(gpu, &T::new(dtype, &dims, &data(dtype, dims[0] * dims[1])), "");
        }
    }
}

pub fn views(gpu: &Gpu) {
    for dtype in [DType::F16, DType::I32] {
        for placing in PLACINGS {
            for dims in [&[4, 5, 129][..], &[3, 2, 4097], &[2500, 2], &[6000]] {
                check(gpu, &T::placed(dtype, dims, &data(dtype, dims.iter().product()), placing), "placed");
            }
        }
        check(gpu, &T::new(dtype, &[1, 2200], &data(dtype, 2200)).expand(&[3, 2200]), "repeated rows");
        check(gpu, &T::new(dtype, &[4, 1], &data(dtype, 4)).expand(&[4, 2200]), "one value a row");
        check(gpu, &T::new(dtype, &[2200, 3], &data(dtype, 6600)).with(|l| l.transpose(0, 1)), "columns");
    }
}

pub fn ties_keep_their_order(gpu: &Gpu) {
    for n in [9, 2048, 2049, 10_000] {
        check(gpu, &T::new(DType::F32, &[n], &vec![1.0; n]), "all equal");
        check(gpu, &T::new(DType::U8, &[n], &Lcg(3).small(n)), "four values");
        check(gpu, &T::new(DType::F64, &[n], &vec![f64::NAN; n]), "all NaN");
        check(gpu, &T::new(DType::I32, &[n], &vec![i32::MIN as f64; n]), "all lowest");
        check(gpu, &T::new(DType::I32, &[n], &vec![i32::MAX as f64; n]), "all highest");
    }
}

pub fn sorted_and_reversed(gpu: &Gpu) {
    for n in [100, 2048, 100_003] {
        check(gpu, &T::new(DType::I64, &[n], &(0..n).map(|i| i as f64).collect::<Vec<_>>()), "sorted");
        check(gpu, &T::new(DType::F64, &[n], &(0..n).map(|i| -(i as f64)).collect::<Vec<_>>()), "reversed");
    }
}
