//! Every conversion rounds once: to nearest, ties to even.

use super::{Check, Outcome, all, supported};
use isograd::{DType, Device, Result, Tensor, bf16, f16};
use isograd_tests::cpu;

pub const CHECKS: &[(&str, &str, Check)] = &[
    ("cast", "midpoints_of_floats", of_floats),
    ("cast", "midpoints_of_integers", of_integers),
    ("full", "midpoints", of_scalars),
    ("update_", "midpoints_of_f64", of_arithmetic),
];

const NARROW: [DType; 2] = [DType::F16, DType::BF16];

/// All finite numbers of a 16-bit dtype in ascending order, and the even ones among them.
fn grid(dtype: DType) -> Vec<(f64, bool)> {
    let value = |bits: u16| match dtype {
        DType::F16 => f16::from_bits(bits).to_f64(),
        _ => bf16::from_bits(bits).to_f64(),
    };
    let positive = (0..0x8000u16).map(|bits| (value(bits), bits % 2 == 0)).filter(|(v, _)| v.is_finite());
    let positive: Vec<(f64, bool)> = positive.collect();
    let negative = positive.iter().skip(1).rev().map(|&(v, is_even)| (-v, is_even));
    negative.chain(positive.iter().copied()).collect()
}

/// The neighbours of a grid that are looked between: some at every exponent, the smallest and the largest.
fn neighbours(grid: &[(f64, bool)]) -> Vec<[(f64, bool); 2]> {
    let pairs = grid.windows(2).map(|pair| [pair[0], pair[1]]);
    let (middle, last) = (grid.len() / 2, grid.len() - 2);
    pairs
        .enumerate()
        .filter(|(i, _)| i % 61 == 0 || i.abs_diff(middle) < 9 || i.min(&(last - i)) < &9)
        .map(|(_, p)| p)
        .collect()
}

/// The numbers of f64 or f32 at the middle of two neighbours and on both of its sides, with what each is rounded to. Beyond
/// the largest number the next step leads to infinity.
fn around_midpoints(from: DType, to: DType) -> Vec<(f64, f64)> {
    let grid = grid(to);
    let (largest, next) = (grid[grid.len() - 1].0, |v: f64, up: bool| match from {
        DType::F64 => {
            if up {
                v.next_up()
            } else {
                v.next_down()
            }
        }
        _ => (if up { (v as f32).next_up() } else { (v as f32).next_down() }) as f64,
    });
    let mut all = vec![(f64::INFINITY, f64::INFINITY), (f64::NAN, f64::NAN), (-0.0, -0.0)];
    for [(a, is_even), (b, _)] in neighbours(&grid) {
        let middle = a / 2.0 + b / 2.0;
        if from == DType::F32 && middle as f32 as f64 != middle {
            continue;
        }
        all.extend([(next(middle, false), a), (middle, if is_even { a } else { b }), (next(middle, true), b)]);
    }
    // Half a step above the largest: the largest is odd.
    let step = largest - grid[grid.len() - 2].0;
    let edge = largest + step / 2.0;
    all.extend([(next(edge, false), largest), (edge, f64::INFINITY), (next(-edge, false), f64::NEG_INFINITY)]);
    // What becomes 0 keeps its sign.
    all.into_iter().map(|(v, r)| (v, if r == 0.0 { r.copysign(v) } else { r })).collect()
}

fn compare(what: &str, from: &[f64], got: &[f64], expected: &[f64]) -> Outcome {
    let is_off = |i: &usize| {
        let (y, r) = (got[*i], expected[*i]);
        (y != r || y.is_sign_negative() != r.is_sign_negative()) && !(y.is_nan() && r.is_nan())
    };
    match (0..got.len()).find(is_off) {
        None => Ok(()),
        Some(i) => Err(format!("{what}: {:e} becomes {:e}, expected {:e}", from[i], got[i], expected[i])),
    }
}

fn of_floats(device: &Device) -> Result<Outcome> {
    let wide = supported(device, &[DType::F64, DType::F32])?;
    let pairs = wide.iter().flat_map(|&from| NARROW.map(|to| (from, to)));
    all(pairs.map(|(from, to)| {
        let (values, expected): (Vec<f64>, Vec<f64>) = around_midpoints(from, to).into_iter().unzip();
        let x = Tensor::from_slice(&values, values.len(), &cpu())?.cast(from)?.to_device(device)?;
        // The elements side by side, and with gaps.
        let strided = Tensor::stack(&[&x, &x], 1)?.select(1, 0)?;
        let got = |x: &Tensor| x.cast(to)?.to_device(&cpu())?.to_f64_vec();
        let what = format!("{from} to {to}");
        Ok(compare(&what, &values, &got(&x)?, &expected).and(compare(&what, &values, &got(&strided)?, &expected)))
    }))
}

/// Whole numbers at the middle of two neighbours of a dtype and on both of its sides, with what each is rounded to.
fn whole_midpoints(to: DType, most: i64) -> Vec<(i64, f64)> {
    // Of f32 some numbers of 24 bits at every exponent; the others are known one by one.
    let pairs: Vec<[(f64, bool); 2]> = match to {
        DType::F32 => (24..63)
            .flat_map(|e| [0x80_0000u64, 0xaa_aaab, 0xc0_0001, 0xff_fffe].map(|m| (m, e)))
            .map(|(m, e)| [m, m + 1].map(|m| (m as f64 * 2f64.powi(e - 23), m % 2 == 0)))
            .collect(),
        _ => grid(to).windows(2).map(|pair| [pair[0], pair[1]]).collect(),
    };
    let mut all = Vec::new();
    for [(a, is_even), (b, _)] in pairs {
        if a.abs().max(b.abs()) > most as f64 {
            continue;
        }
        let (low, high) = (a as i128, b as i128);
        let is_whole = low as f64 == a && high as f64 == b && (high - low) >= 2 && (high - low) % 2 == 0;
        let middle = low + (high - low) / 2;
        if !is_whole {
            continue;
        }
        let nearest = [a, if is_even { a } else { b }, b];
        all.extend([middle - 1, middle, middle + 1].into_iter().zip(nearest).map(|(v, r)| {
            // A step of 2 has no number between its ends but the middle.
            (
                v as i64,
                if v == low {
                    a
                } else if v == high {
                    b
                } else {
                    r
                },
            )
        }));
    }
    if to == DType::F16 {
        all.extend([(65519, 65504.0), (65520, f64::INFINITY), (-65520, f64::NEG_INFINITY)]);
        all.extend([(i32::MAX as i64, f64::INFINITY), (i32::MIN as i64, f64::NEG_INFINITY)]);
    }
    all
}

fn of_integers(device: &Device) -> Result<Outcome> {
    let pairs = [DType::F32, DType::F16, DType::BF16].into_iter().flat_map(|to| [(DType::I64, to), (DType::I32, to)]);
    all(pairs.map(|(from, to)| {
        let most = if from == DType::I64 { i64::MAX } else { i32::MAX as i64 };
        let (mut values, mut expected): (Vec<i64>, Vec<f64>) = whole_midpoints(to, most).into_iter().unzip();
        if from == DType::I64 {
            let far = [(i64::MAX, 2f64.powi(63)), (i64::MIN, -2f64.powi(63))];
            for (v, r) in far {
                values.push(v);
                expected.push(if to == DType::F16 { r * f64::INFINITY } else { r });
            }
        }
        let x = Tensor::from_slice(&values, values.len(), device)?;
        let got = x.cast(from)?.cast(to)?.to_device(&cpu())?.to_f64_vec()?;
        let shown: Vec<f64> = values.iter().map(|&v| v as f64).collect();
        Ok(compare(&format!("{from} to {to}"), &shown, &got, &expected))
    }))
}

/// A number on the host becomes one of 16 bits, too.
fn of_scalars(device: &Device) -> Result<Outcome> {
    all(NARROW.map(|to| {
        let (values, expected): (Vec<f64>, Vec<f64>) = around_midpoints(DType::F64, to)
            .into_iter()
            .step_by(97)
            .chain([(1.0 + 2f64.powi(-11) + 2f64.powi(-40), {
                if to == DType::F16 { 1.0 + 2f64.powi(-10) } else { 1.0 }
            })])
            .unzip();
        let one = |&v: &f64| Tensor::full(1, v, to, device);
        let filled = values.iter().map(one).collect::<Result<Vec<_>>>()?;
        let got = Tensor::concat(&filled.iter().collect::<Vec<_>>(), 0)?.to_device(&cpu())?.to_f64_vec()?;
        Ok(compare(&format!("a scalar to {to}"), &values, &got, &expected))
    }))
}

/// What is computed in f64, because an operand is, rounds once to the 16 bits of another.
fn of_arithmetic(device: &Device) -> Result<Outcome> {
    if supported(device, &[DType::F64])?.is_empty() {
        return Ok(Ok(()));
    }
    all(NARROW.map(|to| {
        let (values, expected): (Vec<f64>, Vec<f64>) = around_midpoints(DType::F64, to).into_iter().unzip();
        let x = Tensor::from_slice(&values, values.len(), device)?;
        let y = Tensor::zeros(values.len(), to, device)?;
        let function = isograd::pointwise::Pointwise::Accumulate;
        isograd::ops::update_(function, &[&y], &[&x], &[])?;
        // 0 + -0 is 0.
        let expected: Vec<f64> = values.iter().zip(&expected).map(|(v, r)| if *v == 0.0 { 0.0 } else { *r }).collect();
        Ok(compare(&format!("f64 arithmetic to {to}"), &values, &y.to_device(&cpu())?.to_f64_vec()?, &expected))
    }))
}
