//! Random draws, bit for bit those of the CPU.

#[path = "../../cpu/tests/common/mod.rs"]
mod common;
mod device;

use common::*;
use device::{SIZES, same};
use isograd_core::backend::Random;
use isograd_core::{DType, Kernel};

/// Seed, offset, stream.
const STATES: [[i64; 3]; 4] = [[0, 0, 0], [0x0123456789abcdef, 7, 0], [-1, -2, -1], [42, 0xffff_fffe, 0x1_0000_0003]];

fn check(kind: Random, dtype: DType, n: usize, ints: &[i64], floats: &[f64]) {
    let what = format!("{dtype}, {n} draws of {ints:?}, {floats:?}");
    same(Kernel::Random(kind), &[], &[&T::out(dtype, &[n])], ints, floats, &what);
}

#[test]
fn sizes() {
    for n in SIZES.into_iter().filter(|&n| n > 0).chain([3, 5, 100_003]) {
        for dtype in FLOATS {
            check(Random::Uniform, dtype, n, &[3, 0, 0, 0], &[0.0, 1.0]);
            check(Random::Normal, dtype, n, &[3, 0, 0, 0], &[0.0, 1.0]);
        }
        check(Random::Bernoulli, DType::U8, n, &[3, 0, 0, 1 << 31], &[]);
    }
}

#[test]
fn states_and_ranges() {
    for [seed, offset, stream] in STATES {
        let ints = [seed, offset, stream, 0];
        for dtype in FLOATS {
            for range in [[0.0, 1.0], [-1.0, 1.0], [3.0, 3.0], [0.0, 1e-3], [-2.5, 7.125], [-1e-7, 0.0], [1e4, 6e4]] {
                check(Random::Uniform, dtype, 4001, &ints, &range);
            }
            for [mean, std] in [[0.0, 1.0], [1.5, 0.02], [-3.0, 100.0], [2.0, 0.0]] {
                check(Random::Normal, dtype, 4001, &ints, &[mean, std]);
            }
        }
        for threshold in [0, 1, 1 << 31, 3_865_470_566, 1 << 32] {
            check(Random::Bernoulli, DType::U8, 4001, &[seed, offset, stream, threshold], &[]);
        }
    }
}

#[test]
fn many_draws() {
    check(Random::Normal, DType::F32, 2_000_003, &[99, 5, 1, 0], &[0.0, 1.0]);
    check(Random::Uniform, DType::BF16, 2_000_003, &[99, 5, 1, 0], &[0.0, 1.0]);
}

#[test]
fn an_output_that_is_not_aligned() {
    for dtype in FLOATS {
        for start in 1..4 {
            let y = T::out(dtype, &[103]).with(|l| l.narrow(0, start, 99, 1));
            same(Kernel::Random(Random::Normal), &[], &[&y], &[1, 2, 3, 0], &[0.0, 1.0], "at an offset");
        }
    }
}
