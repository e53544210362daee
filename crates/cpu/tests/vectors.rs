//! Loops over vectors have the bits of the same expressions over single numbers.

use crate::common::*;
use isograd_core::pointwise::{Domain, Pointwise, Row, Visitor};
use isograd_core::{DType, Kernel, bf16, f16};

/// A row of one input, of a single number.
struct Single(f32);

impl Visitor<f32, bool> for Single {
    type Output = f32;

    fn visit<R: Row<f32, bool, N, K, M>, const N: usize, const K: usize, const M: usize>(self) -> f32 {
        R::eval([self.0; N], [0.0; K])[0]
    }
}

/// Rows of one input and one result, without attributes.
fn unary() -> impl Iterator<Item = Pointwise> {
    let all = Pointwise::ALL.iter().copied();
    let all = all.filter(|r| r.domain() != Domain::Integer && !r.is_inout() && !r.is_checked());
    all.filter(|r| (r.inputs(), r.outputs(), r.attributes()) == (1, 1, 0))
}

/// Compares the bits of a row's results with those of single numbers, rounded to a dtype by `round`.
fn check(row: Pointwise, dtype: DType, x: &[f32], round: fn(f32) -> f32) {
    let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let y = T::out(dtype, &[x.len()]);
    run(Kernel::Pointwise(row), &[&T::new(dtype, &[x.len()], &wide)], &[&y], &[], &[]);
    for (x, y) in x.iter().zip(y.values()) {
        let expected = round(row.visit_real(Single(*x)).unwrap());
        let is_same = expected.to_bits() == (y as f32).to_bits() || expected.is_nan() && y.is_nan();
        assert!(is_same, "{row:?} {dtype}: {x:e} gives {y:e}, a single number gives {expected:e}");
    }
}

fn bf16s() -> Vec<f32> {
    (0..=u16::MAX).map(|bits| bf16::from_bits(bits).to_f32()).collect()
}

fn f16s() -> Vec<f32> {
    (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32()).collect()
}

#[test]
fn every_number_of_16_bits() {
    assert!(unary().count() > 40);
    for row in unary() {
        check(row, DType::BF16, &bf16s(), |y| bf16::from_f32(y).to_f32());
        check(row, DType::F16, &f16s(), |y| f16::from_f32(y).to_f32());
    }
}

/// Random bits in f32.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut lcg = Lcg(seed);
    (0..n).map(|_| f32::from_bits((lcg.next(1 << 16) << 16 | lcg.next(1 << 16)) as u32)).collect()
}

#[test]
fn random_numbers_of_32_bits() {
    // An odd length has a last group that is not full.
    let x = numbers(20_011, 8);
    unary().for_each(|row| check(row, DType::F32, &x, |y| y));
}

#[test]
#[ignore = "an hour: a billion numbers for the functions that have loops of their own"]
fn a_billion_numbers_of_32_bits() {
    for row in [Pointwise::Exp, Pointwise::Tanh, Pointwise::Erf, Pointwise::Sigmoid, Pointwise::Log] {
        (0..1000).for_each(|seed| check(row, DType::F32, &numbers(1_000_000, seed), |y| y));
    }
}
