//! Matrix products.

use crate::common::*;
use isograd_core::{DType, Kernel};

fn naive([batches, m, k, n]: [usize; 4], a: &[f64], b: &[f64]) -> Vec<f64> {
    let element = |i: usize| {
        let (batch, row, column) = (i / (m * n), i / n % m, i % n);
        (0..k).map(|p| a[(batch * m + row) * k + p] * b[(batch * k + p) * n + column]).sum()
    };
    (0..batches * m * n).map(element).collect()
}

const SHAPES: [[usize; 4]; 12] = [
    [1, 1, 1, 1],
    [1, 2, 3, 4],
    [2, 5, 1, 7],
    [3, 1, 9, 1],
    [1, 17, 33, 31],
    [2, 40, 70, 1],
    [2, 1, 70, 40],
    [40, 16, 20, 24],
    [2, 80, 65, 90],
    [0, 2, 3, 4],
    [1, 0, 3, 4],
    [2, 3, 4, 0],
];

#[test]
fn products_of_every_dtype_and_placing() {
    let mut lcg = Lcg(11);
    for dtype in FLOATS {
        for (pa, pb) in PLACINGS.iter().flat_map(|a| PLACINGS.iter().map(move |b| (*a, *b))) {
            for shape in SHAPES {
                let [batches, m, k, n] = shape;
                let (a, b) = (lcg.small(batches * m * k), lcg.small(batches * k * n));
                let (ta, tb) = (T::placed(dtype, &[batches, m, k], &a, pa), T::placed(dtype, &[batches, k, n], &b, pb));
                let y = T::out(dtype, &[batches, m, n]);
                run(Kernel::Matmul, &[&ta, &tb], &[&y], &[], &[1.0, 0.0]);
                let expected = T::new(dtype, &[batches, m, n], &naive(shape, &a, &b));
                assert_same(&y.values(), &expected.values(), (dtype, pa, pb, shape));
            }
        }
    }
}

#[test]
fn transposes_and_broadcast_batches_are_read_in_place() {
    let mut lcg = Lcg(12);
    for dtype in FLOATS {
        for [batches, m, k, n] in SHAPES.into_iter().filter(|s| !s.contains(&0)) {
            let (a, b) = (lcg.small(m * k), lcg.small(batches * k * n));
            let turned: Vec<f64> = (0..k * m).map(|i| a[i % m * k + i / m]).collect();
            let ta = T::new(dtype, &[1, k, m], &turned).with(|l| l.transpose(1, 2)).expand(&[batches, m, k]);
            let tb = T::new(dtype, &[batches, k, n], &b);
            let y = T::out(dtype, &[batches, m, n]);
            run(Kernel::Matmul, &[&ta, &tb], &[&y], &[], &[1.0, 0.0]);
            let expected = naive([batches, m, k, n], &a.repeat(batches), &b);
            assert_same(&y.values(), &T::new(dtype, &[batches, m, n], &expected).values(), (dtype, batches, m, k, n));
        }
    }
}

#[test]
fn factors_and_the_third_operand() {
    let nan = f64::NAN;
    for dtype in FLOATS {
        let [batches, m, k, n] = [2, 3, 4, 5];
        let (a, b) = (Lcg(13).small(batches * m * k), Lcg(14).small(batches * k * n));
        let bias = [1.0, 2.0, 3.0, 4.0, 5.0];
        let (ta, tb) = (T::new(dtype, &[batches, m, k], &a), T::new(dtype, &[batches, k, n], &b));
        let tc = T::new(dtype, &[n], &bias).expand(&[batches, m, n]);
        let (bad_a, bad_b) = (T::new(dtype, &[2, 3, 4], &[nan; 24]), T::new(dtype, &[2, 4, 5], &[nan; 40]));
        let bad_c = T::new(dtype, &[2, 3, 5], &[nan; 30]);
        let product = naive([batches, m, k, n], &a, &b);
        let check = |inputs: &[&T], floats: [f64; 2], f: &dyn Fn(usize) -> f64| {
            let y = T::out(dtype, &[batches, m, n]);
            run(Kernel::Matmul, inputs, &[&y], &[], &floats);
            assert_same(&y.values(), &(0..30).map(f).collect::<Vec<_>>(), (dtype, floats));
        };
        check(&[&ta, &tb, &tc], [1.0, 1.0], &|i| product[i] + bias[i % n]);
        check(&[&ta, &tb, &tc], [2.0, -0.5], &|i| 2.0 * product[i] - 0.5 * bias[i % n]);
        check(&[&ta, &tb], [0.5, 1.0], &|i| 0.5 * product[i]);
        // What has no factor is not read.
        check(&[&ta, &tb, &bad_c], [1.0, 0.0], &|i| product[i]);
        check(&[&bad_a, &bad_b, &tc], [0.0, 2.0], &|i| 2.0 * bias[i % n]);
        check(&[&bad_a, &bad_b], [0.0, 1.0], &|_| 0.0);
        // Nothing to multiply.
        let (ea, eb) = (T::out(dtype, &[2, 3, 0]), T::out(dtype, &[2, 0, 5]));
        check(&[&ea, &eb, &tc], [1.0, 3.0], &|i| 3.0 * bias[i % n]);
        check(&[&ea, &eb, &bad_c], [1.0, 0.0], &|_| 0.0);
        check(&[&ea, &eb], [1.0, 0.0], &|_| 0.0);
    }
}

#[test]
fn sixteen_bit_products_round_once() {
    // 2048 + 1 + 1 is 2050 in f16, though 2048 + 1 alone rounds to 2048.
    let a = T::new(DType::F16, &[1, 1, 3], &[2048.0, 1.0, 0.0]);
    let b = T::new(DType::F16, &[1, 3, 1], &[1.0, 1.0, 1.0]);
    let c = T::new(DType::F16, &[1, 1, 1], &[1.0]);
    let y = T::out(DType::F16, &[1, 1, 1]);
    run(Kernel::Matmul, &[&a, &b, &c], &[&y], &[], &[1.0, 1.0]);
    assert_eq!(y.values(), [2050.0]);
}

#[test]
fn nan_and_infinity_arrive() {
    let a = T::new(DType::F32, &[1, 2, 2], &[f64::INFINITY, 0.0, 1.0, 0.0]);
    let b = T::new(DType::F32, &[1, 2, 1], &[0.0, f64::NAN]);
    let y = T::out(DType::F32, &[1, 2, 1]);
    run(Kernel::Matmul, &[&a, &b], &[&y], &[], &[1.0, 0.0]);
    assert!(y.values().iter().all(|v| v.is_nan()));
}

#[test]
fn results_do_not_depend_on_threads() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for [batches, m, k, n] in [
            [1, 128, 784, 256],
            [1, 128, 784, 10],
            [1, 500, 600, 1],
            [1, 1, 5000, 300],
            [3, 90, 90, 90],
            [20, 64, 64, 64],
            [1, 256, 2000, 512],
        ] {
            let (a, b) = (Lcg(15).reals(batches * m * k), Lcg(16).reals(batches * k * n));
            on_threads(|| {
                let (ta, tb) = (T::new(dtype, &[batches, m, k], &a), T::new(dtype, &[batches, k, n], &b));
                let y = T::out(dtype, &[batches, m, n]);
                run(Kernel::Matmul, &[&ta, &tb], &[&y], &[], &[1.0, 0.0]);
                let plain = y.bytes();
                let turned = T::new(dtype, &[batches, n, k], &b).with(|l| l.transpose(1, 2));
                run(Kernel::Matmul, &[&ta, &turned], &[&y], &[], &[1.0, 0.0]);
                [plain, y.bytes()]
            });
        }
    }
}
