//! Random draws, bit for bit those of the CPU.

use super::common::*;
use super::device::same;
use isograd::backend::Random;
use isograd::{DType, Kernel};
use isograd_gpu::Gpu;

/// Seed, offset, stream.
const STATES: [[i64; 3]; 4] = [[0, 0, 0], [0x0123456789abcdef, 7, 0], [-1, -2, -1], [42, 0xffff_fffe, 0x1_0000_0003]];

fn check(gpu: &Gpu, kind: Random, dtype: DType, n: usize, ints: &[i64], floats: &[f64]) {
    let what = format!("{dtype}, {n} draws of {ints:?}, {floats:?}");
    same(gpu, Kernel::Random(kind), &[], &[&T::out(dtype, &[n])], ints, floats, &what);
}

pub fn states_and_ranges(gpu: &Gpu) {
    for [seed, offset, stream] in STATES {
        let ints = [seed, offset, stream, 0];
        for dtype in FLOATS {
            for range in [[0.0, 1.0], [-1.0, 1.0], [3.0, 3.0], [0.0, 1e-3], [-2.5, 7.125], [-1e-7, 0.0], [1e4, 6e4]] {
                check(gpu, Random::Uniform, dtype, 4001, &ints, &range);
            }
            for [mean, std] in [[0.0, 1.0], [1.5, 0.02], [-3.0, 100.0], [2.0, 0.0]] {
                check(gpu, Random::Normal, dtype, 4001, &ints, &[mean, std]);
            }
        }
        for threshold in [0, 1, 1 << 31, 3_865_470_566, 1 << 32] {
            check(gpu, Random::Bernoulli, DType::U8, 4001, &[seed, offset, stream, threshold], &[]);
        }
    }
}

pub fn an_output_that_is_not_aligned(gpu: &Gpu) {
    for dtype in FLOATS {
        for start in 1..4 {
            let y = T::out(dtype, &[103]).with(|l| l.narrow(0, start, 99, 1));
            same(gpu, Kernel::Random(Random::Normal), &[], &[&y], &[1, 2, 3, 0], &[0.0, 1.0], "at an offset");
        }
    }
}
