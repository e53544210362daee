//! Reductions, arg-reductions, scans, sorting.

use crate::common::*;
use isograd_core::backend::{Reduce, Scan};
use isograd_core::{DType, Kernel, Layout};

const KINDS: [Reduce; 6] = [Reduce::Sum, Reduce::Mean, Reduce::Prod, Reduce::Max, Reduce::Min, Reduce::Norm];

/// The definition, in f64.
fn naive(kind: Reduce, x: &[f64]) -> f64 {
    let nan = |a: f64, b: f64, best: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { best };
    match kind {
        Reduce::Sum => x.iter().sum(),
        Reduce::Mean => x.iter().sum::<f64>() / x.len() as f64,
        Reduce::Prod => x.iter().product(),
        Reduce::Max => x.iter().copied().reduce(|a, b| nan(a, b, a.max(b))).unwrap_or(0.0),
        Reduce::Min => x.iter().copied().reduce(|a, b| nan(a, b, a.min(b))).unwrap_or(0.0),
        Reduce::Norm => x.iter().map(|v| v * v).sum::<f64>().sqrt(),
    }
}

fn out_dtype(kind: Reduce, dtype: DType) -> DType {
    match kind {
        Reduce::Sum | Reduce::Prod if !dtype.is_float() => DType::I64,
        _ => dtype,
    }
}

#[test]
fn reductions_of_every_dtype_and_placing() {
    let cases: [(&[usize], usize); 13] = [
        (&[], 0),
        (&[1], 1),
        (&[5], 1),
        (&[5], 0),
        (&[3, 4], 1),
        (&[3, 4], 2),
        (&[10, 40], 1),
        (&[2, 3, 4], 2),
        (&[2, 12, 5], 1),
        (&[9, 2, 70], 2),
        (&[0, 3], 1),
        (&[1, 1, 1], 2),
        (&[2, 9, 4, 5], 2),
    ];
    for kind in KINDS {
        for dtype in DType::ALL {
            let is_real = matches!(kind, Reduce::Mean | Reduce::Norm);
            let is_ordered = matches!(kind, Reduce::Max | Reduce::Min);
            if is_real && !dtype.is_float() || is_ordered && dtype == DType::Bool {
                continue;
            }
            for placing in PLACINGS {
                for (dims, reduced) in cases {
                    let n: usize = dims.iter().product();
                    let small = |i: usize| [1.0, 0.0, 2.0, 1.0, 1.0][i * 7 % 5] * (dtype != DType::Bool) as u8 as f64;
                    // Products stay small: mostly ones.
                    let x: Vec<f64> = match kind {
                        Reduce::Prod => {
                            (0..n).map(|i| if i % 13 == 0 && dtype != DType::Bool { 2.0 } else { 1.0 }).collect()
                        }
                        _ => (0..n).map(small).collect(),
                    };
                    let kept = &dims[..dims.len() - reduced];
                    let count: usize = dims[dims.len() - reduced..].iter().product();
                    let y = T::out(out_dtype(kind, dtype), kept);
                    run(Kernel::Reduce(kind), &[&T::placed(dtype, dims, &x, placing)], &[&y], &[reduced as i64], &[]);
                    let results: Vec<f64> = x.chunks(count).map(|row| naive(kind, row)).collect();
                    let rounded = T::new(y.dtype, kept, &results);
                    assert_same(&y.values(), &rounded.values(), (kind, dtype, placing, dims, reduced));
                    if is_ordered && dtype.is_float() {
                        // Beside the element, 1 over how many are it.
                        let [y, shares] = [dtype, dtype.acc()].map(|dtype| T::out(dtype, kept));
                        let x_placed = T::placed(dtype, dims, &x, placing);
                        run(Kernel::Reduce(kind), &[&x_placed], &[&y, &shares], &[reduced as i64], &[]);
                        let rows = x.chunks(count).zip(&results);
                        let expected: Vec<f64> =
                            rows.map(|(row, best)| 1.0 / row.iter().filter(|v| *v == best).count() as f64).collect();
                        let expected = T::new(dtype.acc(), kept, &expected);
                        assert_same(&y.values(), &rounded.values(), (kind, dtype, placing, dims, reduced));
                        assert_same(&shares.values(), &expected.values(), (kind, dtype, placing, dims, reduced));
                    }
                }
            }
        }
    }
}

#[test]
fn permuted_reductions_read_columns() {
    // As bias gradients do: [B, T, C] to [C], and to [B, C].
    for dtype in [DType::F32, DType::BF16, DType::I32] {
        for (b, t, c) in [(2, 3, 4), (3, 65, 130), (2, 100, 257), (2, 20_000, 9)] {
            let x = Lcg(7).small(b * t * c);
            let to_c = T::new(dtype, &[b, t, c], &x).with(|l| l.permute(&[2, 0, 1]));
            let to_bc = T::new(dtype, &[b, t, c], &x).with(|l| l.permute(&[0, 2, 1]));
            for kind in [Reduce::Sum, Reduce::Max] {
                let of = |picks: &dyn Fn(usize) -> usize, n: usize| -> Vec<f64> {
                    let mut groups = vec![Vec::new(); n];
                    x.iter().enumerate().for_each(|(i, &v)| groups[picks(i)].push(v));
                    groups.iter().map(|g| naive(kind, g)).collect()
                };
                let out = out_dtype(kind, dtype);
                let y = T::out(out, &[c]);
                run(Kernel::Reduce(kind), &[&to_c], &[&y], &[2], &[]);
                let expected = T::new(out, &[c], &of(&|i| i % c, c)).values();
                assert_same(&y.values(), &expected, (dtype, b, t, c, kind));
                let y = T::out(out, &[b, c]);
                run(Kernel::Reduce(kind), &[&to_bc], &[&y], &[1], &[]);
                let expected = T::new(out, &[b, c], &of(&|i| i / (t * c) * c + i % c, b * c)).values();
                assert_same(&y.values(), &expected, (dtype, b, t, c, kind));
            }
        }
    }
}

#[test]
fn empty_extents_give_the_identity() {
    for dtype in FLOATS {
        for (kind, expected) in [(Reduce::Sum, 0.0), (Reduce::Mean, f64::NAN), (Reduce::Prod, 1.0), (Reduce::Norm, 0.0)]
        {
            let y = T::out(dtype, &[3]);
            run(Kernel::Reduce(kind), &[&T::out(dtype, &[3, 0])], &[&y], &[1], &[]);
            assert_same(&y.values(), &[expected; 3], (dtype, kind));
        }
    }
}

#[test]
fn nan_wins_wherever_it_is() {
    for n in [3, 8, 17, 600, 70_000] {
        for at in [0, n / 2, n - 1] {
            let mut x = vec![1.0; n];
            x[at] = f64::NAN;
            for kind in [Reduce::Max, Reduce::Min, Reduce::Sum] {
                for (dims, reduced) in [(vec![n], 1), (vec![1, n], 1)] {
                    let y = T::out(DType::F32, &dims[..dims.len() - reduced]);
                    run(Kernel::Reduce(kind), &[&T::new(DType::F32, &dims, &x)], &[&y], &[1], &[]);
                    assert!(y.values()[0].is_nan(), "{kind:?} {n} {at}");
                }
                // In a column beside columns without it.
                let wide = T::new(DType::F32, &[n], &x).with(|l| l.expand(&[9, n].into()));
                let columns = T::out(DType::F32, &[n, 9]);
                run(Kernel::Copy, &[&wide.with(|l| l.transpose(0, 1))], &[&columns], &[], &[]);
                let y = T::out(DType::F32, &[9]);
                run(Kernel::Reduce(kind), &[&columns.with(|l| l.transpose(0, 1))], &[&y], &[1], &[]);
                assert!(y.values().iter().all(|v| v.is_nan()), "{kind:?} {n} {at} columns");
            }
        }
    }
}

#[test]
fn long_sums_keep_to_the_tolerance() {
    // (8 + 4 log2(K + 1)) units in the last place of f32, for equal summands and for mixed ones, rows and columns.
    for k in [127, 1000, 4097, 100_000, 1_000_003] {
        for x in [vec![0.1f32 as f64; k], Lcg(8).reals(k).iter().map(|&v| v as f32 as f64).collect()] {
            let (exact, size): (f64, f64) = (x.iter().sum(), x.iter().map(|v| v.abs()).sum());
            let bound = (8.0 + 4.0 * ((k + 1) as f64).log2()) * 6.0e-8 * size;
            let y = T::out(DType::F32, &[]);
            run(Kernel::Reduce(Reduce::Sum), &[&T::new(DType::F32, &[k], &x)], &[&y], &[1], &[]);
            assert!((y.values()[0] - exact).abs() <= bound, "{k}: {} is not {exact}", y.values()[0]);
            let columns: Vec<f64> = x.iter().flat_map(|&v| [v; 8]).collect();
            let y = T::out(DType::F32, &[8]);
            let view = T::new(DType::F32, &[k, 8], &columns).with(|l: &Layout| l.transpose(0, 1));
            run(Kernel::Reduce(Reduce::Sum), &[&view], &[&y], &[1], &[]);
            y.values().iter().for_each(|v| assert!((v - exact).abs() <= bound, "{k} columns: {v} is not {exact}"));
            let y = T::out(DType::F32, &[k]);
            run(Kernel::Scan(Scan::Sum), &[&T::new(DType::F32, &[k], &x)], &[&y], &[0, 0], &[]);
            let last = y.values()[k - 1];
            assert!((last - exact).abs() <= bound, "{k} scan: {last} is not {exact}");
        }
    }
    let y = T::out(DType::F16, &[]);
    run(Kernel::Reduce(Reduce::Sum), &[&T::new(DType::F16, &[4096], &[1.0; 4096])], &[&y], &[1], &[]);
    assert_eq!(y.values(), [4096.0]);
}

#[test]
fn results_do_not_depend_on_threads() {
    let x = Lcg(9).reals(300_000);
    on_threads(|| {
        let tensor = T::new(DType::F32, &[300, 1000], &x);
        let (all, rows, columns) = (T::out(DType::F32, &[]), T::out(DType::F32, &[300]), T::out(DType::F32, &[1000]));
        run(Kernel::Reduce(Reduce::Sum), &[&tensor], &[&all], &[2], &[]);
        run(Kernel::Reduce(Reduce::Sum), &[&tensor], &[&rows], &[1], &[]);
        let turned = tensor.with(|l| l.transpose(0, 1));
        run(Kernel::Reduce(Reduce::Sum), &[&turned], &[&columns], &[1], &[]);
        [all.bytes(), rows.bytes(), columns.bytes()]
    });
}

#[test]
fn integer_sums_wrap_and_go_to_i64() {
    let big = i32::MAX as f64;
    let y = T::out(DType::I64, &[]);
    run(Kernel::Reduce(Reduce::Sum), &[&T::new(DType::I32, &[3], &[big; 3])], &[&y], &[1], &[]);
    assert_eq!(y.values(), [3.0 * big]);
    run(Kernel::Reduce(Reduce::Sum), &[&T::new(DType::Bool, &[4], &[1.0, 0.0, 1.0, 1.0])], &[&y], &[1], &[]);
    assert_eq!(y.values(), [3.0]);
    run(Kernel::Reduce(Reduce::Prod), &[&T::new(DType::I64, &[2], &[2f64.powi(62), 4.0])], &[&y], &[1], &[]);
    assert_eq!(y.values(), [0.0]);
}

#[test]
fn arg_takes_the_first_extremum_and_the_first_nan() {
    for dtype in NUMBERS {
        for placing in PLACINGS {
            let x = T::placed(dtype, &[2, 5], &[1.0, 3.0, 0.0, 3.0, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0], placing);
            let y = T::out(DType::I64, &[2]);
            run(Kernel::ArgMax, &[&x], &[&y], &[1], &[]);
            assert_same(&y.values(), &[1.0, 0.0], (dtype, placing));
            run(Kernel::ArgMin, &[&x], &[&y], &[1], &[]);
            assert_same(&y.values(), &[2.0, 0.0], (dtype, placing));
            let all = T::out(DType::I64, &[]);
            run(Kernel::ArgMax, &[&x], &[&all], &[2], &[]);
            assert_same(&all.values(), &[1.0], (dtype, placing));
        }
    }
    for dtype in FLOATS {
        for kernel in [Kernel::ArgMax, Kernel::ArgMin] {
            let y = T::out(DType::I64, &[]);
            let x = [9.0, f64::NAN, -9.0, f64::NAN];
            run(kernel, &[&T::new(dtype, &[4], &x)], &[&y], &[1], &[]);
            assert_same(&y.values(), &[1.0], dtype);
            // Across blocks.
            let mut x = vec![1.0; 2000];
            (x[1500], x[700]) = (f64::NAN, 5.0);
            run(kernel, &[&T::new(dtype, &[2000], &x)], &[&y], &[1], &[]);
            assert_same(&y.values(), &[1500.0], dtype);
        }
    }
    run(Kernel::ArgMax, &[&T::out(DType::F32, &[0, 3])], &[&T::out(DType::I64, &[0])], &[1], &[]);
}

#[test]
fn sort_is_stable_both_ways_with_nan_largest() {
    for dtype in NUMBERS {
        for placing in PLACINGS {
            let x = T::placed(dtype, &[2, 4], &[3.0, 1.0, 3.0, 0.0, 2.0, 2.0, 1.0, 2.0], placing);
            let (y, i) = (T::out(dtype, &[2, 4]), T::out(DType::I64, &[2, 4]));
            run(Kernel::Sort, &[&x], &[&y, &i], &[0], &[]);
            assert_same(&y.values(), &[0.0, 1.0, 3.0, 3.0, 1.0, 2.0, 2.0, 2.0], (dtype, placing));
            assert_same(&i.values(), &[3.0, 1.0, 0.0, 2.0, 2.0, 0.0, 1.0, 3.0], (dtype, placing));
            run(Kernel::Sort, &[&x], &[&y, &i], &[1], &[]);
            assert_same(&y.values(), &[3.0, 3.0, 1.0, 0.0, 2.0, 2.0, 2.0, 1.0], (dtype, placing));
            assert_same(&i.values(), &[0.0, 2.0, 1.0, 3.0, 0.0, 1.0, 3.0, 2.0], (dtype, placing));
        }
        let (y, i) = (T::out(dtype, &[3, 0]), T::out(DType::I64, &[3, 0]));
        run(Kernel::Sort, &[&T::out(dtype, &[3, 0])], &[&y, &i], &[0], &[]);
    }
    for dtype in FLOATS {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let x = T::new(dtype, &[7], &[nan, 0.0, inf, -0.0, nan, -inf, -1.0]);
        let (y, i) = (T::out(dtype, &[7]), T::out(DType::I64, &[7]));
        run(Kernel::Sort, &[&x], &[&y, &i], &[0], &[]);
        assert_same(&y.values(), &[-inf, -1.0, 0.0, 0.0, inf, nan, nan], dtype);
        assert_same(&i.values(), &[5.0, 6.0, 1.0, 3.0, 2.0, 0.0, 4.0], dtype);
        run(Kernel::Sort, &[&x], &[&y, &i], &[1], &[]);
        assert_same(&i.values(), &[0.0, 4.0, 2.0, 1.0, 3.0, 6.0, 5.0], dtype);
    }
    let x = T::new(DType::I64, &[3], &[5.0, -(2f64.powi(63)), -1.0]);
    let (y, i) = (T::out(DType::I64, &[3]), T::out(DType::I64, &[3]));
    run(Kernel::Sort, &[&x], &[&y, &i], &[0], &[]);
    assert_same(&i.values(), &[1.0, 2.0, 0.0], "negative integers");
    let (rows, n) = (50, 1000);
    let x = Lcg(10).reals(rows * n);
    let (y, i) = (T::out(DType::F64, &[rows, n]), T::out(DType::I64, &[rows, n]));
    run(Kernel::Sort, &[&T::new(DType::F64, &[rows, n], &x)], &[&y, &i], &[0], &[]);
    let mut sorted = x;
    sorted.chunks_mut(n).for_each(|row| row.sort_by(f64::total_cmp));
    assert_same(&y.values(), &sorted, "many rows");
}

#[test]
fn scans_run_both_ways() {
    for dtype in NUMBERS {
        let out = if dtype.is_float() { dtype } else { DType::I64 };
        for placing in PLACINGS {
            let x = T::placed(dtype, &[2, 3], &[1.0, 2.0, 3.0, 2.0, 2.0, 0.0], placing);
            for (kind, ints, expected) in [
                (Scan::Sum, [0, 0], [1.0, 3.0, 6.0, 2.0, 4.0, 4.0]),
                (Scan::Sum, [1, 0], [6.0, 5.0, 3.0, 4.0, 2.0, 0.0]),
                (Scan::Sum, [0, 1], [0.0, 1.0, 3.0, 0.0, 2.0, 4.0]),
                (Scan::Sum, [1, 1], [5.0, 3.0, 0.0, 2.0, 0.0, 0.0]),
                (Scan::Prod, [0, 0], [1.0, 2.0, 6.0, 2.0, 4.0, 0.0]),
                (Scan::Prod, [0, 1], [1.0, 1.0, 2.0, 1.0, 2.0, 4.0]),
                (Scan::Prod, [1, 1], [6.0, 3.0, 1.0, 0.0, 0.0, 1.0]),
            ] {
                let y = T::out(out, &[2, 3]);
                run(Kernel::Scan(kind), &[&x], &[&y], &ints, &[]);
                assert_same(&y.values(), &expected, (dtype, placing, kind, ints));
                let y = T::out(out, &[3, 2]).with(|layout| layout.transpose(0, 1));
                run(Kernel::Scan(kind), &[&x], &[&y], &ints, &[]);
                assert_same(&y.values(), &expected, (dtype, placing, kind, ints, "to columns"));
            }
        }
        let y = T::out(out, &[2, 0]);
        run(Kernel::Scan(Scan::Sum), &[&T::out(dtype, &[2, 0])], &[&y], &[0, 0], &[]);
    }
    // Long rows are made of parts.
    let n = 100_000;
    let y = T::out(DType::I64, &[n]);
    run(Kernel::Scan(Scan::Sum), &[&T::new(DType::I32, &[n], &vec![1.0; n])], &[&y], &[0, 0], &[]);
    assert_same(&y.values(), &(1..=n).map(|i| i as f64).collect::<Vec<_>>(), "long");
    let y = T::out(DType::F32, &[3, 300]);
    run(Kernel::Scan(Scan::Prod), &[&T::new(DType::F32, &[3, 300], &[1.0; 900])], &[&y], &[0, 0], &[]);
    assert_same(&y.values(), &[1.0; 900], "ones");
}
