//! Gather and scatter.

use crate::common::*;
use isograd_core::backend::Scatter;
use isograd_core::{DType, Kernel, Kind};

/// Calls `f(number in the index, number in x)` for every element of an index into `x`.
fn each(x_dims: &[usize], dims: &[usize], dim: usize, index: &[f64], mut f: impl FnMut(usize, usize)) {
    for (number, &value) in index.iter().enumerate() {
        let mut rest = number;
        let mut at = vec![0; dims.len()];
        for d in (0..dims.len()).rev() {
            at[d] = rest % dims[d];
            rest /= dims[d];
        }
        at[dim] = value as usize;
        f(number, at.iter().zip(x_dims).fold(0, |n, (i, d)| n * d + i));
    }
}

/// Shapes of x and of the index, and the dimension.
const CASES: [(&[usize], &[usize], usize); 11] = [
    (&[5], &[3], 0),
    (&[5], &[0], 0),
    (&[5, 4], &[7, 4], 0),
    (&[5, 4], &[7, 2], 0),
    (&[5, 4], &[5, 1], 1),
    (&[5, 4], &[3, 6], 1),
    (&[3, 4, 5], &[3, 6, 5], 1),
    (&[3, 4, 5], &[2, 6, 3], 1),
    (&[3, 4, 5], &[3, 4, 2], 2),
    (&[1, 1], &[1, 1], 0),
    (&[300, 70], &[900, 70], 0),
];

fn index_for(x: &[usize], dims: &[usize], dim: usize) -> Vec<f64> {
    let mut lcg = Lcg(17);
    (0..dims.iter().product()).map(|_| lcg.next(x[dim] as u64) as f64).collect()
}

#[test]
fn gather_and_scatter_of_every_dtype_and_placing() {
    let mut lcg = Lcg(18);
    for dtype in NUMBERS {
        for index_dtype in [DType::I64, DType::I32] {
            for placing in PLACINGS {
                for (x_dims, dims, dim) in CASES {
                    let index = index_for(x_dims, dims, dim);
                    let ti = T::placed(index_dtype, dims, &index, placing);
                    let x = lcg.small(x_dims.iter().product());
                    let what = (dtype, placing, x_dims, dims, dim);

                    let mut expected = vec![0.0; index.len()];
                    each(x_dims, dims, dim, &index, |i, p| expected[i] = x[p]);
                    let y = T::out(dtype, dims);
                    run(Kernel::Gather, &[&T::placed(dtype, x_dims, &x, placing), &ti], &[&y], &[dim as i64], &[]);
                    assert_same(&y.values(), &expected, what);

                    let source = lcg.small(index.len());
                    let ts = T::placed(dtype, dims, &source, placing);
                    let (mut added, mut assigned) = (x.clone(), x.clone());
                    each(x_dims, dims, dim, &index, |i, p| {
                        added[p] += source[i];
                        assigned[p] = source[i];
                    });
                    for (mode, expected) in [(Scatter::Add, added), (Scatter::Assign, assigned)] {
                        let y = T::new(dtype, x_dims, &x);
                        run(Kernel::Scatter(mode), &[&ti, &ts], &[&y], &[dim as i64], &[]);
                        assert_same(&y.values(), &expected, (what, mode));
                    }
                }
            }
        }
    }
}

#[test]
fn rows_of_a_table() {
    // An index that does not change along the inner dimensions, as of an embedding or of index_select.
    for dtype in [DType::F32, DType::BF16, DType::I64] {
        for (x_dims, dims, dim) in [
            ([50, 1, 16], [40, 1, 16], 0),
            ([4, 9, 10], [4, 7, 10], 1),
            ([700, 3, 32], [900, 3, 32], 0),
            ([50, 20, 30], [50, 60, 30], 1),
        ] {
            let few: Vec<f64> = index_for(&x_dims, &[dims[dim]], 0).iter().map(|i| i % x_dims[dim] as f64).collect();
            let mut column = [1; 3];
            column[dim] = dims[dim];
            let ti = T::new(DType::I64, &column, &few).expand(&dims);
            let index = ti.values();
            let x = Lcg(19).small(x_dims.iter().product());
            let y = T::out(dtype, &dims);
            run(Kernel::Gather, &[&T::new(dtype, &x_dims, &x), &ti], &[&y], &[dim as i64], &[]);
            let mut expected = vec![0.0; index.len()];
            each(&x_dims, &dims, dim, &index, |i, p| expected[i] = x[p]);
            assert_same(&y.values(), &expected, (dtype, x_dims, dim));

            let source = Lcg(20).small(index.len());
            for (mode, placing) in
                [Scatter::Add, Scatter::Assign].into_iter().flat_map(|m| PLACINGS.iter().map(move |p| (m, *p)))
            {
                let mut expected = x.clone();
                each(&x_dims, &dims, dim, &index, |i, p| match mode {
                    Scatter::Add => expected[p] += source[i],
                    Scatter::Assign | Scatter::Distinct => expected[p] = source[i],
                });
                let y = T::new(dtype, &x_dims, &x);
                let ts = T::placed(dtype, &dims, &source, placing);
                run(Kernel::Scatter(mode), &[&ti, &ts], &[&y], &[dim as i64], &[]);
                assert_same(&y.values(), &expected, (dtype, x_dims, dim, mode, placing));
            }
        }
    }
}

#[test]
fn bool_is_gathered_and_assigned() {
    let index = T::new(DType::I64, &[3], &[2.0, 0.0, 2.0]);
    let y = T::out(DType::Bool, &[3]);
    run(Kernel::Gather, &[&T::new(DType::Bool, &[3], &[1.0, 0.0, 0.0]), &index], &[&y], &[0], &[]);
    assert_same(&y.values(), &[0.0, 1.0, 0.0], "gather");
    let y = T::new(DType::Bool, &[3], &[0.0; 3]);
    run(Kernel::Scatter(Scatter::Assign), &[&index, &T::new(DType::Bool, &[3], &[1.0, 1.0, 0.0])], &[&y], &[0], &[]);
    assert_same(&y.values(), &[1.0, 0.0, 0.0], "scatter");
}

#[test]
fn an_index_out_of_range_is_named_and_nothing_is_written() {
    for dtype in [DType::F32, DType::F16, DType::I32] {
        for bad in [-1.0, 4.0, 1e9] {
            for n in [3, 2000] {
                let mut values = vec![1.0; n];
                (values[2], values[n - 1]) = (bad, 99.0);
                if n == 3 {
                    values[2] = bad;
                }
                let index = T::new(DType::I64, &[n], &values);
                let (x, y) = (T::out(dtype, &[4]), T::out(dtype, &[n]));
                let error = try_run(Kernel::Gather, &[&x, &index], &[&y], &[0], &[]).unwrap_err();
                assert_eq!((error.kind(), error.op()), (Kind::Index, "test"));
                let parts = ["element 2 ", &format!("{bad:.0}"), "0..4"];
                assert!(parts.iter().all(|p| error.message().contains(p)), "{error}");
                for mode in [Scatter::Add, Scatter::Assign] {
                    let error = try_run(Kernel::Scatter(mode), &[&index, &y], &[&x], &[0], &[]).unwrap_err();
                    assert!(parts.iter().all(|p| error.message().contains(p)), "{error}");
                    assert_eq!(x.values(), [7.0; 4]);
                }
            }
        }
    }
    // Of a row's index, the position is that of the row.
    let index = T::new(DType::I64, &[3, 1], &[0.0, 5.0, 9.0]).expand(&[3, 8]);
    let error =
        try_run(Kernel::Gather, &[&T::out(DType::F32, &[5, 8]), &index], &[&T::out(DType::F32, &[3, 8])], &[0], &[]);
    assert!(error.unwrap_err().message().contains("element 1 of the index is 5"));
}

#[test]
fn sixteen_bit_additions_round_once() {
    let n = 4000;
    for dtype in [DType::F16, DType::BF16] {
        let y = T::new(dtype, &[2], &[0.0, 0.5]);
        let index = T::new(DType::I64, &[n], &vec![0.0; n]);
        run(Kernel::Scatter(Scatter::Add), &[&index, &T::new(dtype, &[n], &vec![1.0; n])], &[&y], &[0], &[]);
        let expected = T::new(dtype, &[2], &[n as f64, 0.5]).values();
        assert_same(&y.values(), &expected, dtype);
    }
}

#[test]
fn integer_additions_wrap() {
    let y = T::new(DType::I32, &[1], &[i32::MAX as f64]);
    let index = T::new(DType::I64, &[2], &[0.0; 2]);
    run(Kernel::Scatter(Scatter::Add), &[&index, &T::new(DType::I32, &[2], &[1.0, 1.0])], &[&y], &[0], &[]);
    assert_same(&y.values(), &[i32::MIN as f64 + 1.0], "i32");
}

#[test]
fn results_do_not_depend_on_threads() {
    let (rows, width, count) = (100, 64, 3000);
    let (few, source) = (index_for(&[rows], &[count], 0), Lcg(21).reals(count * width));
    on_threads(|| {
        let y = T::new(DType::F32, &[rows, width], &vec![0.0; rows * width]);
        let index = T::new(DType::I64, &[count, 1], &few).expand(&[count, width]);
        run(Kernel::Scatter(Scatter::Add), &[&index, &T::new(DType::F32, &[count, width], &source)], &[&y], &[0], &[]);
        y.bytes()
    });
}
