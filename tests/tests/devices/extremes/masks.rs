//! Slices of nothing but -infinity have no softmax, and gradient 0.

use super::{Check, Outcome, all, near, rounding, tensor, with_gradient};
use isograd::ops::loss::{CrossEntropy, KlTarget, Reduction};
use isograd::tape::{BackwardOptions, grad_with};
use isograd::{DType, Device, Result, Tensor};
use isograd_tests::cpu;

pub const CHECKS: &[(&str, &str, Check)] = &[
    ("logsumexp", "gradient_of_large_values", large_values),
    ("logsumexp", "gradient_of_infinite_slices", |d| infinite_slices(d, Op::LogSumExp)),
    ("softmax", "gradient_of_infinite_slices", |d| infinite_slices(d, Op::Softmax)),
    ("log_softmax", "gradient_of_infinite_slices", |d| infinite_slices(d, Op::LogSoftmax)),
    ("logsumexp", "second_derivative_of_infinite_slices", |d| second_derivative(d, Op::LogSumExp)),
    ("softmax", "second_derivative_of_infinite_slices", |d| second_derivative(d, Op::Softmax)),
    ("log_softmax", "second_derivative_of_infinite_slices", |d| second_derivative(d, Op::LogSoftmax)),
    ("logsumexp", "a_state_that_cannot_be_reached", unreachable_state),
    ("cross_entropy", "gradient_of_infinite_slices", cross_entropy),
    ("cross_entropy", "gradient_of_infinite_slices_and_probabilities", probabilities),
    ("kl_div", "gradient_of_infinite_slices", divergence),
];

const INF: f64 = f64::INFINITY;

#[derive(Clone, Copy, PartialEq)]
enum Op {
    LogSumExp,
    Softmax,
    LogSoftmax,
}

impl Op {
    fn run(self, x: &Tensor, dim: isize) -> Result<Tensor> {
        match self {
            Op::LogSumExp => x.logsumexp(dim),
            Op::Softmax => x.softmax(dim),
            Op::LogSoftmax => x.log_softmax(dim),
        }
    }
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let largest = x.iter().copied().fold(-INF, f64::max);
    let powers: Vec<f64> = x.iter().map(|v| (v - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}

/// Shares of a sum are right however large its terms are.
fn large_values(device: &Device) -> Result<Outcome> {
    let rows: [(&[f64], &[f64]); 6] = [
        (&[1e4, 1e4, -1e4], &[0.5, 0.5, 0.0]),
        (&[65504.0, 65504.0], &[0.5, 0.5]),
        (&[-65504.0, -65504.0, -65504.0, -65504.0], &[0.25; 4]),
        (&[3e38, 3e38, 3e38], &[1.0 / 3.0; 3]),
        (&[-3e38, 3e38], &[0.0, 1.0]),
        (&[INF, 1.0, 1000.0, -1000.0, -INF], &[f64::NAN, 0.0, 0.0, 0.0, 0.0]),
    ];
    let dtypes = super::supported(device, &[DType::F32, DType::F16, DType::BF16, DType::F64])?;
    let small = dtypes.iter().flat_map(|&dtype| rows.map(|row| (dtype, row))).map(|(dtype, (x, expected))| {
        if dtype == DType::F16 && x.iter().any(|v| v.is_finite() && v.abs() > 65504.0) {
            return Ok(Ok(()));
        }
        let n = x.len();
        let what = format!("{dtype}, {x:?}");
        let x = tensor(x, n, dtype, device)?;
        let as_row = with_gradient(&x, &[1.0], |x| x.logsumexp(-1))?.1;
        let as_column = with_gradient(&x, &[1.0; 2], |x| x.reshape((n, 1))?.broadcast_to((n, 2))?.logsumexp(0))?.1;
        let halved: Vec<f64> = as_column.iter().map(|v| v / 2.0).collect();
        let bound = |_| 4.0 * rounding(dtype);
        Ok(near(&what, &as_row, expected, bound).and(near(&what, &halved, expected, bound)))
    });
    // So long that rows and columns are cut into parts.
    let long = [[1, 70001], [70001, 1], [9001, 3]].map(|dims| {
        let n: usize = dims.iter().product();
        let x = tensor(&vec![1e7; n], dims, DType::F32, device)?;
        let found = with_gradient(&x, &vec![1.0; n / dims[0].max(dims[1])], |x| {
            x.logsumexp(if dims[0] > dims[1] { 0 } else { 1 })
        })?;
        let share = 1.0 / dims[0].max(dims[1]) as f64;
        Ok(near(&format!("{dims:?}"), &found.1, &vec![share; n], |_| 1e-5 * share))
    });
    all(small.chain(long))
}

/// Slices of `n` logits: of numbers, of nothing but -infinity, with a few of that, with NaN, and with infinity.
fn slices(n: usize) -> Vec<Vec<f64>> {
    let plain: Vec<f64> = (0..n).map(|i| ((i * 37 + 5) % 64) as f64 / 8.0 - 4.0).collect();
    let with = |every: usize, value: f64| {
        plain.iter().enumerate().map(|(i, &v)| if i % every == 1 { value } else { v }).collect::<Vec<_>>()
    };
    let mut with_nan = with(2, -INF);
    with_nan[0] = f64::NAN;
    let mut with_infinity = with(2, -INF);
    with_infinity[0] = INF;
    vec![plain.clone(), vec![-INF; n], with(2, -INF), with_nan, with_infinity, with(3, -INF)]
}

fn is_without_softmax(x: &[f64]) -> bool {
    !x.iter().copied().fold(-INF, |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }).is_finite()
}

/// The gradient of a slice `x`, given that of its results.
fn expected(op: Op, x: &[f64], g: &[f64]) -> Vec<f64> {
    if op == Op::LogSumExp {
        return match is_without_softmax(x) {
            true if x.iter().all(|&v| v == -INF) => vec![0.0; x.len()],
            true if x.iter().any(|v| v.is_nan()) => vec![f64::NAN; x.len()],
            true => x.iter().map(|&v| if v == INF { f64::NAN } else { 0.0 }).collect(),
            false => softmax(x).iter().map(|p| p * g[0]).collect(),
        };
    }
    if is_without_softmax(x) {
        return x.iter().map(|&v| if v == -INF { 0.0 } else { f64::NAN }).collect();
    }
    let p = softmax(x);
    let dot: f64 = p.iter().zip(g).map(|(p, g)| p * g).sum();
    let sum: f64 = g.iter().sum();
    let slope = |(p, g): (&f64, &f64)| if op == Op::Softmax { p * (g - dot) } else { g - p * sum };
    p.iter().zip(g).map(slope).collect()
}

/// Gradients of results of slice `s`: different for neighbours, and exact in every dtype.
fn upstream(s: usize, n: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 11 + s * 5) % 13) as f64 / 8.0 - 0.75).collect()
}

/// Shapes `[outer, n, inner]`: rows, columns, short and long ones.
const SHAPES: &[(usize, usize)] = &[(5, 1), (48, 1), (300, 1), (20_001, 1), (5, 6), (48, 6), (300, 12), (9001, 6)];

fn dtypes_of(n: usize) -> &'static [DType] {
    if n > 300 { &[DType::F32] } else { &[DType::F32, DType::F16, DType::BF16] }
}

fn infinite_slices(device: &Device, op: Op) -> Result<Outcome> {
    let cases = SHAPES.iter().flat_map(|&(n, inner)| dtypes_of(n).iter().map(move |&dtype| (n, inner, dtype)));
    all(cases.map(|(n, inner, dtype)| {
        let slices = slices(n);
        let (outer, count) = (slices.len() / inner.min(slices.len()), slices.len());
        let (outer, inner) = if inner == 1 { (count, 1) } else { (outer.max(2), inner) };
        let slice = |k: usize| &slices[k % count];
        let m = if op == Op::LogSumExp { 1 } else { n };
        let (mut x, mut dy, mut dx) = (vec![0.0; outer * n * inner], vec![0.0; outer * m * inner], Vec::new());
        dx.resize(x.len(), 0.0);
        for k in 0..outer * inner {
            let at = |i: usize, n: usize| (k / inner * n + i) * inner + k % inner;
            let g = upstream(k, m);
            (0..m).for_each(|i| dy[at(i, m)] = g[i]);
            let d = expected(op, slice(k), &g);
            (0..n).for_each(|i| (x[at(i, n)], dx[at(i, n)]) = (slice(k)[i], d[i]));
        }
        let x = tensor(&x, (outer, n, inner), dtype, device)?;
        let (_, got) = with_gradient(&x, &dy, |x| op.run(x, 1))?;
        // Powers of logits of -8 to 0 in f32, or a softmax that was rounded to 16 bits.
        let bound = if dtype == DType::F32 { 5e-7 } else { 4.0 * rounding(dtype) };
        Ok(near(&format!("{dtype} [{outer}, {n}, {inner}]"), &got, &dx, |_| bound))
    }))
}

/// The derivative of the sum of the squares of a gradient: finite, and 0 where the gradient is constant.
fn second_derivative(device: &Device, op: Op) -> Result<Outcome> {
    let n = 5;
    let of = |slices: &[Vec<f64>]| -> Result<Vec<f64>> {
        let x = tensor(&slices.concat(), (slices.len(), n), DType::F32, device)?.require_grad()?;
        let weights = tensor(&upstream(3, n).repeat(slices.len()), (slices.len(), n), DType::F32, device)?;
        let y = op.run(&x, 1)?;
        // Infinite results and NaN are left out of the loss.
        let y = y.not_finite()?.logical_not()?.where_scalar(&y, 0.0)?;
        let y = if op == Op::LogSumExp { y.square()? } else { y.mul(&weights)?.square()? }.sum(..)?;
        let options = BackwardOptions { create_graph: true, ..Default::default() };
        let slope = grad_with(&y, &[&x], &options)?.swap_remove(0);
        grad_with(&slope.square()?.sum(..)?, &[&x], &BackwardOptions::default())?.swap_remove(0).to_f64_vec()
    };
    let [plain, masked] = [slices(n)[0].clone(), vec![-INF; n]];
    let alone = of(std::slice::from_ref(&plain))?;
    let together = of(&[masked.clone(), plain, masked])?;
    let expected = [vec![0.0; n], alone, vec![0.0; n]].concat();
    Ok(near("second derivative", &together, &expected, |i| 1e-5 * expected[i].abs().max(1e-3)))
}

/// The forward algorithm of a hidden Markov model with a state that nothing leads to: its loss and all gradients are finite.
fn unreachable_state(device: &Device) -> Result<Outcome> {
    let log = |p: &[f64]| p.iter().map(|p| p.ln()).collect::<Vec<_>>();
    let moves = [0.75, 0.25, 0.0, 0.5, 0.5, 0.0, 0.25, 0.75, 0.0];
    let run = |device: &Device, dtype: DType| -> Result<(Vec<f64>, Vec<f64>)> {
        let start = tensor(&log(&[0.5, 0.5, 0.0]), 3, dtype, device)?;
        with_gradient(&tensor(&log(&moves), (3, 3), dtype, device)?, &[1.0], |moves| {
            let mut state = start.clone();
            for _ in 0..4 {
                state = state.unsqueeze(1)?.add(moves)?.logsumexp(0)?;
            }
            state.logsumexp(0)
        })
    };
    let (loss, slopes) = run(device, DType::F32)?;
    // What leads to the state, and what leads away from it, has no share in the loss. The others are as without the state.
    let two = |device: &Device| {
        let start = tensor(&log(&[0.5, 0.5]), 2, DType::F64, device)?;
        with_gradient(&tensor(&log(&[0.75, 0.25, 0.5, 0.5]), (2, 2), DType::F64, device)?, &[1.0], |moves| {
            let mut state = start.clone();
            for _ in 0..4 {
                state = state.unsqueeze(1)?.add(moves)?.logsumexp(0)?;
            }
            state.logsumexp(0)
        })
    };
    let (alone, of_two) = two(&cpu())?;
    let expected = [of_two[0], of_two[1], 0.0, of_two[2], of_two[3], 0.0, 0.0, 0.0, 0.0];
    Ok(near("loss", &loss, &alone, |_| 1e-5).and(near("gradient", &slopes, &expected, |_| 1e-5)))
}

fn cross_entropy(device: &Device) -> Result<Outcome> {
    let cases = [(5, 1), (48, 1), (2000, 1), (11, 6), (300, 6)];
    let cases = cases.iter().flat_map(|&case| [0.0, 0.25].map(|smoothing| (case, smoothing)));
    all(cases.map(|((n, inner), smoothing)| {
        let slices = slices(n);
        let rows = if inner == 1 { slices.len() } else { 2 };
        let (mut x, mut dx) = (vec![0.0; rows * n * inner], vec![0.0; rows * n * inner]);
        let (mut target, mut dy) = (Vec::new(), Vec::new());
        for k in 0..rows * inner {
            let at = |i: usize| (k / inner * n + i) * inner + k % inner;
            let (slice, t, g) = (&slices[k % slices.len()], n / 2 / 6 * 6, 0.5 + (k % 4) as f64 / 4.0);
            target.push(t as i64);
            dy.push(g);
            let p = softmax(slice);
            for i in 0..n {
                let own = if i == t { 1.0 - smoothing } else { 0.0 };
                let slope = g * (p[i] - own - smoothing / n as f64);
                let none = if slice[i] == -INF { 0.0 } else { f64::NAN };
                (x[at(i)], dx[at(i)]) = (slice[i], if is_without_softmax(slice) { none } else { slope });
            }
        }
        let x = tensor(&x, (rows, n, inner), DType::F32, device)?;
        let target = Tensor::from_slice(&target, (rows, inner), device)?;
        let options =
            CrossEntropy { label_smoothing: smoothing, reduction: Reduction::None, ..CrossEntropy::default() };
        let (_, got) = with_gradient(&x, &dy, |x| x.cross_entropy_with(&target, &options))?;
        Ok(near(&format!("[{rows}, {n}, {inner}], smoothing {smoothing}"), &got, &dx, |_| 2e-6))
    }))
}

/// The target is a distribution: 0 where a class is masked.
fn probabilities(device: &Device) -> Result<Outcome> {
    let n = 6;
    let (plain, masked) = (slices(n)[0].clone(), vec![-INF; n]);
    let q = softmax(&upstream(1, n));
    let x = tensor(&[plain.clone(), masked].concat(), (2, n), DType::F32, device)?;
    let target = tensor(&q.repeat(2), (2, n), DType::F32, device)?;
    let options = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
    let (_, got) = with_gradient(&x, &[1.0, 1.0], |x| x.cross_entropy_with(&target, &options))?;
    let slopes = softmax(&plain).iter().zip(&q).map(|(p, q)| p - q).chain([0.0; 6]).collect::<Vec<_>>();
    Ok(near("probabilities", &got, &slopes, |_| 1e-6))
}

fn divergence(device: &Device) -> Result<Outcome> {
    let n = 6;
    let (plain, masked) = (slices(n)[0].clone(), vec![-INF; n]);
    let q = softmax(&upstream(1, n));
    all([KlTarget::Probabilities, KlTarget::Logarithms].map(|kind| {
        let x = tensor(&[plain.clone(), masked.clone()].concat(), (2, n), DType::F32, device)?;
        let of = |q: &f64| if kind == KlTarget::Logarithms { q.ln() } else { *q };
        let target = tensor(&q.iter().map(of).collect::<Vec<_>>().repeat(2), (2, n), DType::F32, device)?;
        let (_, got) = with_gradient(&x, &[1.0], |x| x.log_softmax(1)?.kl_div(&target, kind, Reduction::Sum))?;
        let slopes = softmax(&plain).iter().zip(&q).map(|(p, q)| p - q).chain([0.0; 6]).collect::<Vec<_>>();
        Ok(near(&format!("{kind:?}"), &got, &slopes, |_| 1e-6))
    }))
}
