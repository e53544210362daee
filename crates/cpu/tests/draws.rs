//! Random draws: the known answers, bit for bit.

use crate::common::*;
use isograd_core::backend::Random;
use isograd_core::random::{normal2, philox};
use isograd_core::{DType, Element, Kernel, bf16, f16};

const SEED: i64 = 0x0123_4567_89AB_CDEF;

fn draw(kind: Random, dtype: DType, n: usize, ints: &[i64], floats: &[f64]) -> T {
    let y = T::out(dtype, &[n]);
    run(Kernel::Random(kind), &[], &[&y], ints, floats);
    y
}

fn bits(t: &T) -> Vec<u32> {
    f32::from_bytes(&t.bytes()).into_iter().map(f32::to_bits).collect()
}

#[test]
fn philox_has_the_known_answers() {
    assert_eq!(philox([0; 4], [0; 2]), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]);
    assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]);
    let counter = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344];
    let block = philox(counter, [0xA4093822, 0x299F31D0]);
    assert_eq!(block, [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]);
    let block = philox([7, 0, 0, 0], [0x89ABCDEF, 0x01234567]);
    assert_eq!(block, [0x8E94991C, 0xB890A831, 0xDEF850DE, 0x552B7A90]);
    let ((a, b), (c, d)) = (normal2(block[0], block[1]), normal2(block[2], block[3]));
    assert_eq!([a, b, c, d].map(f32::to_bits), [0xBF6422E9, 0xBF1D0E36, 0x3E0D6443, 0x3F01D57F]);
}

#[test]
fn draws_have_the_known_answers() {
    let ints = [SEED, 7, 0];
    let uniform = draw(Random::Uniform, DType::F32, 4, &ints, &[0.0, 1.0]);
    assert_eq!(bits(&uniform), [0x3F0E9499, 0x3F3890A8, 0x3F5EF850, 0x3EAA56F4]);
    let normal = draw(Random::Normal, DType::F32, 8, &ints, &[0.0, 1.0]);
    let block8 = [0xBEDD7604, 0x3E9CDB80, 0x3EC5D541, 0xBE3EED94];
    assert_eq!(bits(&normal), [[0xBF6422E9, 0xBF1D0E36, 0x3E0D6443, 0x3F01D57F], block8].concat());
    let keep = |p: f64| ((1.0 - p) * 4294967296.0).floor() as i64;
    let kept = |p: f64| draw(Random::Bernoulli, DType::U8, 8, &[SEED, 7, 0, keep(p)], &[]).values();
    assert_eq!(kept(0.1), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0]);
    assert_eq!(kept(0.5), [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    assert_eq!(kept(0.0), [1.0; 8]);
    assert_eq!(kept(1.0), [0.0; 8]);
}

#[test]
fn other_dtypes_hold_the_same_draws() {
    for (kind, floats) in [(Random::Uniform, [-2.0, 3.0]), (Random::Normal, [0.5, 2.0])] {
        for n in [0, 1, 3, 5, 1000, 50_003] {
            let ints = [SEED, -3, 5];
            let single = f32::from_bytes(&draw(kind, DType::F32, n, &ints, &floats).bytes());
            let single = &single[..n];
            let double = draw(kind, DType::F64, n, &ints, &floats).values();
            assert_same(&double, &single.iter().map(|&v| v as f64).collect::<Vec<_>>(), "f64");
            let hi = floats[1];
            let limit = |v: f64, below: f64| if kind == Random::Uniform && v >= hi { below } else { v };
            let half = draw(kind, DType::F16, n, &ints, &floats).values();
            let below = f16::from_bits(f16::from_f64(hi).to_bits() - 1).to_f64();
            assert_same(
                &half,
                &single.iter().map(|&v| limit(f16::from_f32(v).to_f64(), below)).collect::<Vec<_>>(),
                "f16",
            );
            let brain = draw(kind, DType::BF16, n, &ints, &floats).values();
            let below = bf16::from_bits(bf16::from_f64(hi).to_bits() - 1).to_f64();
            assert_same(
                &brain,
                &single.iter().map(|&v| limit(bf16::from_f32(v).to_f64(), below)).collect::<Vec<_>>(),
                "bf16",
            );
        }
    }
}

#[test]
fn an_element_depends_on_its_position_alone() {
    let long = bits(&draw(Random::Normal, DType::F32, 100_000, &[1, 10, 2], &[0.0, 1.0]));
    let later = bits(&draw(Random::Normal, DType::F32, 999, &[1, 10 + 20_000, 2], &[0.0, 1.0]));
    assert_eq!(long[80_000..80_999], later);
    on_threads(|| bits(&draw(Random::Normal, DType::F32, 100_000, &[1, 10, 2], &[0.0, 1.0])));
}

#[test]
fn uniform_stays_below_its_end() {
    for dtype in FLOATS {
        for (lo, hi) in [(0.0, 1.0), (-1.0, 0.0), (5.0, 5.5), (-0.25, -0.125)] {
            let values = draw(Random::Uniform, dtype, 100_000, &[3, 0, 0], &[lo, hi]).values();
            assert!(values.iter().all(|&v| lo <= v && v < hi), "{dtype} {lo}..{hi}");
        }
        let same = draw(Random::Uniform, dtype, 100, &[3, 0, 0], &[0.5, 0.5]).values();
        assert_eq!(same, [0.5; 100]);
    }
}
