//! Values at the edges of what a dtype holds: conversions of midpoints, reductions near the largest and the smallest numbers,
//! slices of nothing but -infinity, means of values that hardly differ, and what lies outside of domains.

mod accuracy;
mod conversions;
mod masks;
mod range;
mod undefined;

use isograd::tape::BackwardOptions;
use isograd::{DType, Device, Kind, Result, Shape, Tensor};
use isograd_tests::cpu;
use isograd_tests::harness::{self, Check, Outcome};
use libtest_mimic::Trial;

pub fn trials(device: &Device) -> Vec<Trial> {
    let all = [conversions::CHECKS, masks::CHECKS, range::CHECKS, accuracy::CHECKS, undefined::CHECKS];
    all.into_iter().flatten().map(|(op, aspect, check)| harness::check(device, op, aspect, *check)).collect()
}

/// These values rounded to `dtype` by the CPU, on `device`.
fn tensor(values: &[f64], shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::from_slice(values, shape, &cpu())?.cast(dtype)?.to_device(device)
}

/// The result of `f` at a leaf, and the leaf's gradient for the gradient `dy` of the result.
fn with_gradient(x: &Tensor, dy: &[f64], f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<(Vec<f64>, Vec<f64>)> {
    let x = x.require_grad()?;
    let y = f(&x)?;
    let gradient = Some(tensor(dy, y.shape(), y.dtype(), y.device())?);
    y.backward_with(&BackwardOptions { gradient, ..Default::default() })?;
    Ok((y.to_f64_vec()?, x.grad().map_or(Ok(Vec::new()), |g| g.to_f64_vec())?))
}

/// Errors unless `got` is `expected`, NaN where that is, and elsewhere within `bound` of it.
fn near(what: &str, got: &[f64], expected: &[f64], bound: impl Fn(usize) -> f64) -> Outcome {
    if got.len() != expected.len() {
        return Err(format!("{what}: {} elements, expected {}", got.len(), expected.len()));
    }
    let is_off = |i: &usize| match (got[*i], expected[*i]) {
        (y, r) if r.is_nan() || y.is_nan() => r.is_nan() != y.is_nan(),
        (y, r) => y != r && ((y - r).abs() > bound(*i) || !(y - r).is_finite()),
    };
    match (0..got.len()).find(is_off) {
        None => Ok(()),
        Some(i) => Err(format!("{what}: element {i} of {} is {:e}, expected {:e}", got.len(), got[i], expected[i])),
    }
}

/// [`near`] with a bound of `relative` times the largest of each `slice` neighbours.
fn near_largest(what: &str, got: &[f64], expected: &[f64], slice: usize, relative: f64) -> Outcome {
    let largest: Vec<f64> = expected.chunks(slice).map(|s| s.iter().fold(0.0, |m: f64, v| m.max(v.abs()))).collect();
    near(what, got, expected, |i| relative * largest[i / slice])
}

/// Half of the distance between neighbours of `dtype`, relative to them.
fn rounding(dtype: DType) -> f64 {
    isograd_parity::compare::precision(dtype).0
}

/// The first failure of many.
fn all(outcomes: impl IntoIterator<Item = Result<Outcome>>) -> Result<Outcome> {
    for outcome in outcomes {
        let outcome = outcome?;
        if outcome.is_err() {
            return Ok(outcome);
        }
    }
    Ok(Ok(()))
}

/// True if the device computes in f64.
fn has_f64(device: &Device) -> Result<bool> {
    match Tensor::ones(1, DType::F64, device)?.exp() {
        Err(e) if e.kind() == Kind::Unsupported => Ok(false),
        other => other.map(|_| true),
    }
}

/// Of these dtypes those that the device computes in.
fn supported(device: &Device, dtypes: &[DType]) -> Result<Vec<DType>> {
    let has_f64 = has_f64(device)?;
    Ok(dtypes.iter().copied().filter(|&dtype| dtype != DType::F64 || has_f64).collect())
}

/// Numbers of -1 to 1, neighbours far apart, the same ones in every run.
fn numbers(n: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 7919 + 13) % 16384) as f64 / 8192.0 - 1.0).collect()
}
