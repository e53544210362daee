//! Random numbers: known answers, what a draw depends on, and distributions.
//!
//! Bounds are five standard deviations of the statistic for as many draws: with any seed a right generator fails one in
//! 1.7 million times, and with a fixed seed always or never.

use isograd::ops::Sampling;
use isograd::random::{UniformRange, normal2, philox};
use isograd::{DType, Result, Rng, RngState, Tensor, bf16, f16};
use isograd_tests::cpu;
use std::cmp::Ordering;

const N: usize = 1_000_000;

fn rand(shape: &[usize], dtype: DType, rng: &Rng) -> Result<Tensor> {
    Tensor::rand(shape, -2.0, 3.0, dtype, &cpu(), rng)
}

fn randn(shape: &[usize], dtype: DType, rng: &Rng) -> Result<Tensor> {
    Tensor::randn(shape, 0.0, 1.0, dtype, &cpu(), rng)
}

/// The vectors `philox4x32 10` of Random123's `kat_vectors`.
#[test]
fn philox_has_the_known_answers() {
    assert_eq!(philox([0; 4], [0; 2]), [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
    assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]);
    let counter = [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344];
    let answer = [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1];
    assert_eq!(philox(counter, [0xA409_3822, 0x299F_31D0]), answer);
}

#[test]
fn tensors_have_the_known_answers() -> Result<()> {
    let rng = || Rng::from_state(RngState { seed: 0x0123_4567_89AB_CDEF, offset: 7, stream: 0 });
    let bits = |t: Tensor| Ok(t.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect::<Vec<_>>());
    let uniform = Tensor::rand(4, 0.0, 1.0, DType::F32, &cpu(), &rng())?;
    assert_eq!(bits(uniform)?, [0x3F0E_9499, 0x3F38_90A8, 0x3F5E_F850, 0x3EAA_56F4]);
    let blocks =
        [[0xBF64_22E9, 0xBF1D_0E36, 0x3E0D_6443, 0x3F01_D57F], [0xBEDD_7604, 0x3E9C_DB80, 0x3EC5_D541, 0xBE3E_ED94]];
    assert_eq!(bits(randn(&[2, 4], DType::F32, &rng())?)?, blocks.concat());
    let kept = |p: f64| Tensor::bernoulli(8, 1.0 - p, &cpu(), &rng())?.to_vec::<u8>();
    assert_eq!(kept(0.1)?, [1, 1, 1, 1, 1, 1, 0, 1]);
    assert_eq!(kept(0.5)?, [0, 0, 0, 1, 0, 0, 0, 1]);
    Ok(())
}

/// Box and Muller's formula in f64, of the same two draws; `normal2` is within 2e-7 of the radius.
#[test]
fn a_pair_of_normal_draws_is_box_and_mullers() {
    for i in 0..200_000u32 {
        let [a, b, ..] = philox([i, 0, 0, 0], [1, 2]);
        // The ends of the range among them.
        let a = match i {
            0 => 0,
            1 => u32::MAX,
            _ => a,
        };
        // The radius: of a + 1 the 24 highest bits.
        let n = a as u64 + 1;
        let low = (64 - n.leading_zeros()).saturating_sub(24);
        let radius = (-2.0 * ((n >> low << low) as f64 / 4_294_967_296.0).ln()).sqrt();
        // The angle: b's upper two bits are the quadrant, the next 24 the place in it, from its middle.
        let within = ((b & 0x3FFF_FFFF) >> 6) as f64 / 8_388_608.0 - 1.0;
        let angle = std::f64::consts::FRAC_PI_4 * within + std::f64::consts::FRAC_PI_2 * (b >> 30) as f64;
        let (c, s) = normal2(a, b);
        let error = (c as f64 - radius * angle.cos()).abs().max((s as f64 - radius * angle.sin()).abs());
        assert!(error <= 2e-7 * radius + 1e-9, "{a:#x} {b:#x}: off by {error:e}");
    }
}

#[test]
fn a_uniform_draw_stays_within_its_range() -> Result<()> {
    let ranges =
        [(0.0, 1.0), (-1.0, 0.0), (5.0, 5.5), (-0.25, -0.125), (1.0, 1.0001), (-2f64.powi(127), 0.0), (0.0, 1e-40)];
    for (lo, hi) in ranges {
        let single = UniformRange::new(lo, hi, DType::F32);
        let [half, brain] = [DType::F16, DType::BF16].map(|dtype| UniformRange::new(lo, hi, dtype));
        let inside = |v: f64, what: &str| assert!(lo <= v && v < hi, "{what} {v:e} of {lo}..{hi}");
        for draw in [0, 255, 256, 1 << 31, u32::MAX - 256, u32::MAX] {
            inside(single.value(draw) as f64, "f32");
            // A 16-bit format does not have every lower end.
            if f16::from_f64(lo).to_f64() == lo {
                inside(f16::from_f32(half.value(draw)).to_f64(), "f16");
            }
            if bf16::from_f64(lo).to_f64() == lo {
                inside(bf16::from_f32(brain.value(draw)).to_f64(), "bf16");
            }
        }
        let values = Tensor::rand(100_000, lo, hi, DType::F64, &cpu(), &Rng::new(3))?.to_f64_vec()?;
        values.into_iter().for_each(|v| inside(v, "f64"));
    }
    let same = Tensor::rand(9, 0.5, 0.5, DType::F32, &cpu(), &Rng::new(3))?.to_vec::<f32>()?;
    assert_eq!(same, [0.5; 9]);
    assert!(Tensor::rand(9, -3e38, 3e38, DType::F64, &cpu(), &Rng::new(3)).is_err());
    Ok(())
}

/// An element depends on its row-major position alone.
#[test]
fn shape_dtype_and_parts_do_not_change_draws() -> Result<()> {
    for draw in [rand, randn] {
        let whole = draw(&[1200], DType::F32, &Rng::new(5))?.to_vec::<f32>()?;
        let shaped = draw(&[3, 40, 10], DType::F32, &Rng::new(5))?;
        assert_eq!(shaped.to_vec::<f32>()?, whole);
        let rng = Rng::new(5);
        let parts = [400, 4, 796].map(|n| draw(&[n], DType::F32, &rng)?.to_vec::<f32>());
        assert_eq!(parts.into_iter().collect::<Result<Vec<_>>>()?.concat(), whole);
        let as_dtype = |dtype| draw(&[1200], dtype, &Rng::new(5))?.to_f64_vec();
        let wide: Vec<f64> = whole.iter().map(|&v| v as f64).collect();
        assert_eq!(as_dtype(DType::F64)?, wide);
        // 3 is the upper end of the uniform range, and no normal draw is near it.
        let below = |v: f64, last: f64| if v == 3.0 { last } else { v };
        let halves: Vec<f64> = whole.iter().map(|&v| below(f16::from_f32(v).to_f64(), 2.998046875)).collect();
        assert_eq!(as_dtype(DType::F16)?, halves);
        let brains: Vec<f64> = whole.iter().map(|&v| below(bf16::from_f32(v).to_f64(), 2.984375)).collect();
        assert_eq!(as_dtype(DType::BF16)?, brains);
    }
    Ok(())
}

#[test]
fn a_draw_takes_whole_blocks() -> Result<()> {
    let rng = Rng::new(5);
    for (n, offset) in [(0, 0), (1, 1), (4, 2), (5, 4), (9, 7)] {
        rand(&[n], DType::F32, &rng)?;
        assert_eq!(rng.state().offset, offset);
    }
    Ok(())
}

#[test]
fn a_state_gives_the_same_bits_again() -> Result<()> {
    let rng = Rng::new(11);
    rand(&[7], DType::F32, &rng)?;
    let (state, clone) = (rng.state(), rng.clone());
    let first = randn(&[100], DType::F32, &rng)?.to_vec::<f32>()?;
    assert_eq!(clone.state(), rng.state(), "clones share their state");
    let again = |rng: &Rng| randn(&[100], DType::F32, rng)?.to_vec::<f32>();
    assert_ne!(again(&rng)?, first);
    assert_eq!(again(&Rng::from_state(state))?, first);
    rng.set_state(state);
    assert_eq!(again(&clone)?, first);
    let [seed, stream] = [RngState { seed: 12, ..state }, RngState { stream: 1, ..state }];
    assert_ne!(again(&Rng::from_state(seed))?, first);
    assert_ne!(again(&Rng::from_state(stream))?, first);
    assert_eq!(rng.stream(1).state(), RngState { seed: 11, offset: 0, stream: 1 });
    // The counter is of 64 bits.
    let far = Rng::from_state(RngState { seed: 1, offset: u32::MAX as u64, stream: 0 });
    let [low, high] = [4, 4].map(|n| randn(&[n], DType::F32, &far)?.to_vec::<f32>()).map(Result::unwrap);
    assert_ne!(high, again(&Rng::new(1))?[..4], "the counter's upper half is used");
    assert_ne!(low, high);
    Ok(())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn within(what: &str, got: f64, expected: f64, deviation: f64) {
    assert!((got - expected).abs() < 5.0 * deviation, "{what} is {got}, expected {expected} +- {deviation:e}");
}

/// Kolmogorov and Smirnov's statistic sqrt(n) sup |F_n - F| is above 2.225 once in 10,000 times: 2 exp(-2 * 2.225^2).
fn kolmogorov_smirnov(what: &str, sorted: &[f64], cumulative: &[f64]) {
    let n = sorted.len() as f64;
    let distance = |(i, &f): (usize, &f64)| (f - i as f64 / n).max((i + 1) as f64 / n - f);
    let statistic = n.sqrt() * cumulative.iter().enumerate().map(distance).fold(0.0, f64::max);
    assert!(statistic < 2.225, "{what}: {statistic}");
}

/// The deviations of mean, variance and of the mean product of neighbours: sqrt of 1/12, 1/180 and 1/144 over n.
#[test]
fn uniform_draws_are_uniform() -> Result<()> {
    let n = N as f64;
    let mut u = Tensor::rand(N, 0.0, 1.0, DType::F64, &cpu(), &Rng::new(2024))?.to_f64_vec()?;
    within("the mean", mean(&u), 0.5, (1.0 / 12.0 / n).sqrt());
    let square: Vec<f64> = u.iter().map(|v| (v - 0.5) * (v - 0.5)).collect();
    within("the variance", mean(&square), 1.0 / 12.0, (1.0 / 180.0 / n).sqrt());
    for lag in 1..5 {
        let products: Vec<f64> = u[lag..].iter().zip(&u).map(|(a, b)| (a - 0.5) * (b - 0.5)).collect();
        within("the covariance of neighbours", mean(&products), 0.0, (1.0 / 144.0 / n).sqrt());
    }
    u.sort_by(f64::total_cmp);
    kolmogorov_smirnov("uniform", &u, &u);
    Ok(())
}

/// The deviations of mean, variance and of the mean product of neighbours: sqrt of 1, 2 and 1 over n.
#[test]
fn normal_draws_are_normal() -> Result<()> {
    let n = N as f64;
    let draws = randn(&[N], DType::F64, &Rng::new(2024))?;
    let mut z = draws.to_f64_vec()?;
    within("the mean", mean(&z), 0.0, (1.0 / n).sqrt());
    let square: Vec<f64> = z.iter().map(|v| v * v).collect();
    within("the variance", mean(&square), 1.0, (2.0 / n).sqrt());
    for lag in 1..5 {
        let products: Vec<f64> = z[lag..].iter().zip(&z).map(|(a, b)| a * b).collect();
        within("the covariance of neighbours", mean(&products), 0.0, (1.0 / n).sqrt());
        // Squares are of deviation sqrt 2; two draws that share a radius would show here.
        let products: Vec<f64> = square[lag..].iter().zip(&square).map(|(a, b)| (a - 1.0) * (b - 1.0)).collect();
        within("the covariance of neighbours' squares", mean(&products), 0.0, (4.0 / n).sqrt());
    }
    z.sort_by(f64::total_cmp);
    let sorted = Tensor::from_slice(&z, N, &cpu())?;
    let cumulative = sorted.mul_scalar(std::f64::consts::FRAC_1_SQRT_2)?.erf()?.add_scalar(1.0)?.mul_scalar(0.5)?;
    kolmogorov_smirnov("normal", &z, &cumulative.to_f64_vec()?);
    // The largest of a million is above 4 but for one in e^32, and no draw is beyond sqrt(2 * 32 ln 2).
    assert!(z[0] < -4.0 && z[0] > -6.67 && z[N - 1] > 4.0 && z[N - 1] < 6.67, "{} to {}", z[0], z[N - 1]);
    let scaled = Tensor::randn(100, 3.0, 0.5, DType::F32, &cpu(), &Rng::new(2024))?.to_vec::<f32>()?;
    let expected =
        randn(&[100], DType::F32, &Rng::new(2024))?.to_vec::<f32>()?.into_iter().map(|z| 0.5f32.mul_add(z, 3.0));
    assert_eq!(scaled, expected.collect::<Vec<_>>());
    Ok(())
}

/// A rate has deviation sqrt(p (1 - p) / n).
#[test]
fn bernoulli_draws_have_their_rate() -> Result<()> {
    for p in [0.0, 1e-4, 0.1, 0.5, 0.9, 1.0] {
        let ones = Tensor::bernoulli(N, p, &cpu(), &Rng::new(77))?.sum(..)?.item::<f64>()?;
        let deviation = (p * (1.0 - p) / N as f64).sqrt();
        match deviation {
            0.0 => assert_eq!(ones, p * N as f64),
            _ => within("the rate", ones / N as f64, p, deviation),
        }
    }
    Ok(())
}

/// Each element is dropped or scaled by `1 / (1 - p)`, at the rate, and its gradient alike.
#[test]
fn dropout_keeps_its_rate_and_scales() -> Result<()> {
    for p in [0.1, 0.5, 0.9] {
        let x = Tensor::full(N, 3.0, DType::F32, &cpu())?.require_grad()?;
        let y = x.dropout(p, &Rng::new(78))?;
        y.sum(..)?.backward()?;
        let (y, dx) = (y.to_vec::<f32>()?, x.grad().unwrap().to_vec::<f32>()?);
        let scale = (1.0 / (1.0 - p)) as f32;
        let kept = y.iter().filter(|&&v| v != 0.0).count() as f64 / N as f64;
        within("the rate", kept, 1.0 - p, (p * (1.0 - p) / N as f64).sqrt());
        for (y, dx) in y.into_iter().zip(dx) {
            assert!((y, dx) == (0.0, 0.0) || (y, dx) == (3.0 * scale, scale), "{y} with gradient {dx}");
        }
    }
    let (x, rng) = (randn(&[10], DType::F32, &Rng::new(1))?, Rng::new(2));
    assert_eq!(x.dropout(0.0, &rng)?.to_vec::<f32>()?, x.to_vec::<f32>()?);
    assert_eq!(rng.state().offset, 0, "nothing is drawn");
    assert_eq!(x.dropout(1.0, &rng)?.to_vec::<f32>()?, [0.0; 10]);
    Ok(())
}

/// What `sampling` keeps of a row, in f64: probabilities in the order of positions.
fn kept(row: &[f64], sampling: &Sampling) -> Vec<f64> {
    let z: Vec<f64> = row.iter().map(|x| x / sampling.temperature).collect();
    let mut order: Vec<usize> = (0..z.len()).collect();
    order.sort_by(|&a, &b| z[b].partial_cmp(&z[a]).unwrap_or(Ordering::Equal));
    order.truncate(if sampling.top_k == 0 { z.len() } else { sampling.top_k });
    let largest = z[order[0]];
    let power = |i: usize| (z[i] - largest).exp();
    let total: f64 = order.iter().map(|&i| power(i)).sum();
    let (mut p, mut before) = (vec![0.0; z.len()], 0.0);
    for i in order {
        if before < sampling.top_p {
            p[i] = power(i) / total;
        }
        before += power(i) / total;
    }
    p
}

fn samplings() -> Vec<Sampling> {
    let [all, n] = [Sampling::default(), Sampling { num_samples: 100, ..Sampling::default() }];
    vec![
        all,
        n,
        Sampling { temperature: 0.3, ..n },
        Sampling { temperature: 5.0, top_p: 0.7, ..n },
        Sampling { top_k: 7, ..n },
        Sampling { top_k: 7, top_p: 0.8, ..n },
        Sampling { top_k: 300, top_p: 0.9, ..n },
        Sampling { top_p: 0.5, ..n },
        Sampling { top_p: 1e-9, ..n },
        Sampling { top_k: 5000, ..n },
    ]
}

/// The position of a sample follows from its draw: the kept probabilities before it add up to no more, those up to it to more.
/// The logits are no nearer to each other than f32 has them apart.
#[test]
fn samples_are_where_their_draws_are() -> Result<()> {
    for (seed, v) in [(1, 3usize), (2, 50), (3, 3000)] {
        let values: Vec<f32> = randn(&[2 * v], DType::F32, &Rng::new(seed))?.to_vec()?;
        let values: Vec<f32> = values.iter().map(|v| 3.0 * v).collect();
        let logits = Tensor::from_slice(&values, (2, v), &cpu())?;
        for sampling in samplings() {
            let n = sampling.num_samples;
            let at = logits.sample_logits(&sampling, &Rng::new(9))?;
            assert_eq!(at.dims(), if n == 1 { vec![2] } else { vec![2, n] });
            let draws = Tensor::rand((2, n), 0.0, 1.0, DType::F64, &cpu(), &Rng::new(9))?.to_f64_vec()?;
            for (i, (&at, u)) in at.to_vec::<i64>()?.iter().zip(draws).enumerate() {
                let row: Vec<f64> = values[i / n * v..][..v].iter().map(|&x| x as f64).collect();
                let p = kept(&row, &sampling);
                let (before, total): (f64, f64) = (p[..at as usize].iter().sum(), p.iter().sum());
                let drawn = u * total;
                let fits = before - 1e-5 * total <= drawn && drawn <= before + p[at as usize] + 1e-5 * total;
                assert!(p[at as usize] > 0.0 && fits, "{sampling:?}, V {v}, sample {i}: {at} for a draw of {u}");
            }
        }
    }
    Ok(())
}

#[test]
fn samples_have_their_rates() -> Result<()> {
    const SAMPLES: usize = 20_000;
    let row = [0.5, -1.0, 2.0, 0.5, f64::NEG_INFINITY, -3.0, 1.0, 2.0];
    let logits = Tensor::from_slice(&row, (1, 8), &cpu())?;
    for sampling in samplings() {
        let sampling = Sampling { num_samples: SAMPLES, ..sampling };
        let mut counts = [0usize; 8];
        let at = logits.sample_logits(&sampling, &Rng::new(31))?.to_vec::<i64>()?;
        at.iter().for_each(|&i| counts[i as usize] += 1);
        let p = kept(&row, &sampling);
        let total: f64 = p.iter().sum();
        for (count, p) in counts.into_iter().zip(p.iter().map(|p| p / total)) {
            let (rate, deviation) = (count as f64 / SAMPLES as f64, (p * (1.0 - p) / SAMPLES as f64).sqrt());
            match p {
                0.0 => assert_eq!(count, 0, "{sampling:?}"),
                _ => {
                    assert!((rate - p).abs() <= 5.0 * deviation, "{sampling:?}: {rate}, expected {p} +- {deviation:e}")
                }
            }
        }
    }
    Ok(())
}

/// Of equal logits the first is kept; what is kept is drawn in the order of positions.
#[test]
fn ties_are_kept_from_the_first_on() -> Result<()> {
    let logits = Tensor::from_slice(&[1.0, 1.0, 3.0, f64::NEG_INFINITY], (1, 4), &cpu())?;
    let sampling = Sampling { top_k: 2, num_samples: 1000, ..Sampling::default() };
    let at = logits.sample_logits(&sampling, &Rng::new(4))?.to_vec::<i64>()?;
    let draws = Tensor::rand(1000, 0.0, 1.0, DType::F64, &cpu(), &Rng::new(4))?.to_f64_vec()?;
    let expected = draws.iter().map(|&u| if u < 0.1192029 { 0 } else { 2 });
    assert_eq!(at, expected.collect::<Vec<i64>>());
    let alike = Tensor::zeros((1, 1000), DType::F32, &cpu())?;
    for (top_k, top_p, last) in [(10, 1.0, 10), (0, 0.25, 250), (600, 0.5, 300)] {
        let sampling = Sampling { top_k, top_p, num_samples: 5000, ..Sampling::default() };
        let at = alike.sample_logits(&sampling, &Rng::new(4))?.to_vec::<i64>()?;
        let draws = Tensor::rand(5000, 0.0, 1.0, DType::F64, &cpu(), &Rng::new(4))?.to_f64_vec()?;
        assert_eq!(at, draws.iter().map(|u| (u * last as f64) as i64).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn sampling_the_largest_draws_nothing() -> Result<()> {
    let (rng, logits) = (Rng::new(5), Tensor::from_slice(&[1.0f32, 3.0, 3.0, 0.0, 9.0, 2.0], (2, 3), &cpu())?);
    for sampling in [Sampling { temperature: 0.0, ..Default::default() }, Sampling { top_k: 1, ..Default::default() }] {
        assert_eq!(logits.sample_logits(&sampling, &rng)?.to_vec::<i64>()?, [1, 1]);
        assert_eq!(rng.state().offset, 0);
    }
    logits.sample_logits(&Sampling { num_samples: 3, ..Default::default() }, &rng)?;
    assert_eq!(rng.state().offset, 2, "six draws are two blocks");
    Ok(())
}
