//! Pointwise functions on every dtype and layout.

use crate::common::*;
use isograd_core::pointwise::Pointwise;
use isograd_core::{DType, Kernel, Kind};

fn pointwise(function: Pointwise) -> Kernel<'static> {
    Kernel::Pointwise(function)
}

#[test]
fn add_on_every_dtype_and_placing() {
    let mut lcg = Lcg(2);
    for dtype in NUMBERS {
        for (a, b) in PLACINGS.iter().flat_map(|a| PLACINGS.iter().map(move |b| (*a, *b))) {
            for dims in [&[][..], &[1], &[0], &[4, 0], &[3, 5], &[2, 1, 3], &[31], &[16, 33]] {
                let n = dims.iter().product();
                let (x, w) = (lcg.small(n), lcg.small(n));
                let (ta, tb) = (T::placed(dtype, dims, &x, a), T::placed(dtype, dims, &w, b));
                let y = T::out(dtype, dims);
                run(pointwise(Pointwise::Add), &[&ta, &tb], &[&y], &[2], &[2.0]);
                let sum: Vec<f64> = x.iter().zip(&w).map(|(x, w)| x + 2.0 * w).collect();
                assert_same(&y.values(), &sum, (dtype, a, b, dims));
            }
        }
    }
}

#[test]
fn large_and_broadcast_operands_share_threads() {
    let (m, n) = (300, 401);
    let mut lcg = Lcg(3);
    for dtype in NUMBERS {
        let (x, bias, column) = (lcg.small(m * n), lcg.small(n), lcg.small(m));
        let tx = T::placed(dtype, &[m, n], &x, Placing::Reversed);
        let tb = T::new(dtype, &[n], &bias).expand(&[m, n]);
        let tc = T::new(dtype, &[m, 1], &column).expand(&[m, n]);
        let ts = T::new(dtype, &[], &[3.0]).expand(&[m, n]);
        for (operand, at) in [(&tb, 0), (&tc, 1), (&ts, 2)] {
            let y = T::out(dtype, &[m, n]);
            run(pointwise(Pointwise::Mul), &[&tx, operand], &[&y], &[], &[]);
            let factor = |i: usize| [bias[i % n], column[i / n], 3.0][at];
            let expected: Vec<f64> = x.iter().enumerate().map(|(i, x)| x * factor(i)).collect();
            assert_same(&y.values(), &expected, (dtype, at));
        }
    }
}

#[test]
fn one_buffer_may_be_read_twice() {
    let x = T::new(DType::F32, &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let y = T::out(DType::F32, &[2, 2]);
    run(pointwise(Pointwise::Mul), &[&x, &x], &[&y], &[], &[]);
    assert_same(&y.values(), &[1.0, 4.0, 9.0, 16.0], "square");
}

#[test]
fn comparisons_and_selection_mix_dtypes() {
    for dtype in NUMBERS {
        let a = T::new(dtype, &[4], &[1.0, 2.0, 3.0, 0.0]);
        let b = T::new(dtype, &[], &[2.0]).expand(&[4]);
        let mask = T::out(DType::Bool, &[4]);
        run(pointwise(Pointwise::Lt), &[&a, &b], &[&mask], &[], &[]);
        assert_same(&mask.values(), &[1.0, 0.0, 0.0, 1.0], dtype);
        let y = T::out(dtype, &[4]);
        run(pointwise(Pointwise::Where), &[&mask, &a, &b], &[&y], &[], &[]);
        assert_same(&y.values(), &[1.0, 2.0, 2.0, 0.0], dtype);
    }
    for dtype in FLOATS {
        let a = T::new(dtype, &[3], &[f64::NAN, 1.0, f64::INFINITY]);
        for (r, expected) in [
            (Pointwise::Lt, [0.0, 0.0, 0.0]),
            (Pointwise::Ne, [1.0, 0.0, 0.0]),
            (Pointwise::Eq, [0.0, 1.0, 1.0]),
            (Pointwise::Maximum, [f64::NAN, 1.0, f64::INFINITY]),
        ] {
            let y = T::out(if r == Pointwise::Maximum { dtype } else { DType::Bool }, &[3]);
            run(pointwise(r), &[&a, &a], &[&y], &[], &[]);
            assert_same(&y.values(), &expected, (dtype, r));
        }
    }
}

#[test]
fn bool_operands_compare() {
    let (a, b) = (T::new(DType::Bool, &[3], &[0.0, 1.0, 1.0]), T::new(DType::Bool, &[3], &[1.0, 1.0, 0.0]));
    let y = T::out(DType::Bool, &[3]);
    run(pointwise(Pointwise::Eq), &[&a, &b], &[&y], &[], &[]);
    assert_same(&y.values(), &[0.0, 1.0, 0.0], "eq");
}

#[test]
fn integers_wrap() {
    let a = T::new(DType::I32, &[2], &[i32::MAX as f64, 5.0]);
    let y = T::out(DType::I32, &[2]);
    run(pointwise(Pointwise::AddScalar), &[&a], &[&y], &[1], &[]);
    assert_same(&y.values(), &[i32::MIN as f64, 6.0], "i32");
    let a = T::new(DType::U8, &[1], &[255.0]);
    let y = T::out(DType::U8, &[1]);
    run(pointwise(Pointwise::AddScalar), &[&a], &[&y], &[2], &[]);
    assert_same(&y.values(), &[1.0], "u8");
}

#[test]
fn a_value_does_not_depend_on_its_place() {
    // Groups, tails, blocks and chunks give the same bits.
    let v: Vec<f64> = Lcg(4).reals(777);
    for r in [Pointwise::Gelu, Pointwise::Exp, Pointwise::Sigmoid] {
        for dtype in [DType::F32, DType::F64] {
            let n = 50_000;
            let x: Vec<f64> = (0..n).map(|i| v[i % v.len()]).collect();
            let y = T::out(dtype, &[n]);
            run(pointwise(r), &[&T::new(dtype, &[n], &x)], &[&y], &[], &[]);
            let y = y.values();
            (0..n).for_each(|i| assert_eq!(y[i], y[i % v.len()], "{r:?} {dtype}"));
        }
    }
}

#[test]
fn inout_rows_read_and_write_their_outputs() {
    for dtype in NUMBERS {
        for n in [1, 5, 513, 40_000] {
            let (y, x) = (Lcg(5).small(n), Lcg(6).small(n));
            let (ty, tx) = (T::new(dtype, &[n], &y), T::new(dtype, &[n], &x));
            run(pointwise(Pointwise::Accumulate), &[&tx], &[&ty], &[], &[]);
            let expected: Vec<f64> = y.iter().zip(&x).map(|(y, x)| y + x).collect();
            assert_same(&ty.values(), &expected, (dtype, n));
        }
    }
}

#[test]
fn adam_writes_three_states() {
    // limit, decay, 1 - beta1, beta2, 1 - beta2, eps; without correction, shrinking or loss scale.
    for (dtype, state) in [(DType::F32, DType::F32), (DType::F64, DType::F64), (DType::BF16, DType::F32)] {
        for n in [1, 600, 40_000] {
            let p = T::new(dtype, &[n], &vec![1.0; n]);
            let (m, v) = (T::new(state, &[n], &vec![0.0; n]), T::new(state, &[n], &vec![0.0; n]));
            let g = T::new(dtype, &[n], &vec![2.0; n]);
            let scalar =
                |v: f64| T::new(if dtype == DType::F64 { DType::F64 } else { DType::F32 }, &[], &[v]).expand(&[n]);
            let (step, one, shrink, scale, inf) = (scalar(0.5), scalar(1.0), scalar(1.0), scalar(1.0), scalar(0.0));
            let inputs = [&g, &step, &one, &shrink, &scale, &inf];
            run(
                pointwise(Pointwise::AdamStep),
                &inputs,
                &[&p, &m, &v],
                &[],
                &[f64::INFINITY, 0.0, 0.5, 0.75, 0.25, 0.0],
            );
            assert_same(&m.values(), &vec![1.0; n], "m");
            assert_same(&v.values(), &vec![1.0; n], "v");
            assert_same(&p.values(), &vec![0.5; n], "p");
        }
    }
}

#[test]
fn the_first_invalid_element_is_named() {
    for n in [10, 600, 100_000] {
        for bad in [0, 3, n - 1] {
            let mut b = vec![2.0; n];
            b[bad] = 0.0;
            b[n - 1] = 0.0;
            let (ta, tb) = (T::new(DType::I64, &[n], &vec![8.0; n]), T::new(DType::I64, &[n], &b));
            let y = T::out(DType::I64, &[n]);
            let error = try_run(pointwise(Pointwise::IntDivFloor), &[&ta, &tb], &[&y], &[], &[]).unwrap_err();
            assert_eq!((error.kind(), error.op()), (Kind::Value, "test"));
            assert!(error.message().contains(&format!("element {bad} ")), "{error}");
        }
    }
    let y = T::out(DType::F32, &[2]);
    let inputs = [&T::new(DType::F32, &[2], &[0.5, 1.5]), &T::new(DType::F32, &[2], &[1.0, 1.0])];
    let error = try_run(pointwise(Pointwise::BceLoss), &inputs, &[&y], &[], &[]).unwrap_err();
    assert!(error.message().contains("element 1 ") && error.message().contains("1.5"), "{error}");
}

#[test]
fn rows_of_another_domain_are_unsupported() {
    let (x, y) = (T::out(DType::I32, &[2]), T::out(DType::I32, &[2]));
    let error = try_run(pointwise(Pointwise::Exp), &[&x], &[&y], &[], &[]).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
}
