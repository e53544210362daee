//! Values that differ by little beside their mean.

use super::range::{Norm, normalised};
use super::{Check, Outcome, all, near, numbers, tensor};
use isograd::ops::loss::{Focal, FocalInput, Reduction};
use isograd::{DType, Device, Result, Tensor};
use isograd_tests::cpu;

pub const CHECKS: &[(&str, &str, Check)] = &[
    ("layer_norm", "mean_of_values_that_hardly_differ", |d| means(d, Norm::Layer)),
    ("group_norm", "mean_of_values_that_hardly_differ", |d| means(d, Norm::Group)),
    ("instance_norm", "mean_of_values_that_hardly_differ", |d| means(d, Norm::Instance)),
    ("batch_norm", "mean_of_values_that_hardly_differ", |d| means(d, Norm::Batch)),
    ("batch_norm", "mean_of_images_that_hardly_differ", |d| means(d, Norm::BatchOfImages)),
    ("var", "values_that_hardly_differ", variances),
    ("bce_with_logits", "losses_of_sure_logits", sure_logits),
    ("focal_loss", "losses_of_sure_logits", sure_focal_logits),
];

/// What numbers of f32 lie around, of which neighbours are 2^-14 apart.
const MIDDLES: [f64; 4] = [1000.0, 777.777, 1023.9, 611.7];

/// Numbers of f32 around `middle`, some 1e-3 apart.
fn values(n: usize, middle: f64) -> Result<Vec<f64>> {
    let all: Vec<f64> = numbers(n).iter().map(|v| middle + 2e-3 * v).collect();
    tensor(&all, n, DType::F32, &cpu())?.to_f64_vec()
}

/// Results have mean 0 as far as a mean in f32 allows it.
fn means(device: &Device, norm: Norm) -> Result<Outcome> {
    all([40, 1000, 5000, 40_004].into_iter().flat_map(|n| MIDDLES.map(|middle| (n, middle))).map(|(n, middle)| {
        let values = values(n, middle)?;
        let x = tensor(&values.repeat(3), (3, n), DType::F32, device)?;
        let (y, _) = normalised(&values, &vec![0.0; n], 1e-12, true);
        let got = norm.run(&x, 1e-12)?.to_f64_vec()?;
        let deviation = (values[1] - values[0]) / (y[1] - y[0]);
        // The mean in f32 is the nearest number, or, if it lies almost in the middle of two, the other one.
        let (mean, half) = (values.iter().sum::<f64>() / n as f64, 2f64.powi(-15));
        let off = (mean as f32 as f64 - mean).abs();
        let bound = if off > 0.9 * half { 1.2 * half } else { off + 0.2 * half } / deviation;
        let found: Vec<f64> = got.chunks(n).map(|y| y.iter().sum::<f64>() / n as f64).collect();
        let expected = y.repeat(3);
        let what = |of: &str| format!("{norm:?}, {of} of {n} around {middle}");
        Ok(near(&what("means"), &found, &[0.0; 3], |_| bound)
            .and(near(&what("values"), &got, &expected, |i| bound + 2e-3 * expected[i].abs())))
    }))
}

fn variances(device: &Device) -> Result<Outcome> {
    all([40, 1000, 5000, 70_001].into_iter().flat_map(|n| MIDDLES.map(|middle| (n, middle))).map(|(n, middle)| {
        let values = values(n, middle)?;
        let mean = values.iter().sum::<f64>() / n as f64;
        let expected = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n as f64;
        let row = tensor(&values, n, DType::F32, device)?;
        let columns = Tensor::stack(&[&row, &row, &row], 1)?;
        let got = [row.var(0, 0.0)?.to_f64_vec()?, columns.var(0, 0.0)?.to_f64_vec()?].concat();
        Ok(near(&format!("{n} values around {middle}"), &got, &[expected; 4], |_| 2e-3 * expected))
    }))
}

/// Logits of which a sigmoid is sure, their classes, and `ln(1 + e^-|x|)`, plus |x| of the wrong class.
fn logits() -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let cases = [-60.0, -20.0, -10.0, -0.5, 0.5, 10.0, 20.0, 60.0].into_iter().flat_map(|x: f64| [(x, 0.0), (x, 1.0)]);
    let loss = |(x, t): (f64, f64)| (-x.abs()).exp().ln_1p() + if (x > 0.0) == (t > 0.0) { 0.0 } else { x.abs() };
    let (x, t): (Vec<f64>, Vec<f64>) = cases.clone().unzip();
    (x, t, cases.map(loss).collect())
}

fn sure_logits(device: &Device) -> Result<Outcome> {
    let (x, t, expected) = logits();
    let n = x.len();
    let [x, t] = [&x, &t].map(|v| tensor(v, n, DType::F32, device));
    let (x, t) = (x?, t?);
    let weight = tensor(&[3.0], 1, DType::F32, device)?;
    let plain = x.bce_with_logits(&t, None, None, Reduction::None)?.to_f64_vec()?;
    let weighted = x.bce_with_logits(&t, None, Some(&weight), Reduction::None)?.to_f64_vec()?;
    let of_weight: Vec<f64> = expected.iter().enumerate().map(|(i, r)| if i % 2 == 1 { 3.0 * r } else { *r }).collect();
    Ok(near("losses", &plain, &expected, |i| 1e-6 * expected[i]).and(near(
        "weighted losses",
        &weighted,
        &of_weight,
        |i| 1e-6 * of_weight[i],
    )))
}

fn sure_focal_logits(device: &Device) -> Result<Outcome> {
    let (x, t, expected) = logits();
    let n = x.len();
    let [x, t] = [&x, &t].map(|v| tensor(v, n, DType::F32, device));
    let options = Focal { alpha: -1.0, gamma: 0.0, input: FocalInput::Logits, reduction: Reduction::None };
    let got = x?.focal_loss(&t?, &options)?.to_f64_vec()?;
    Ok(near("losses", &got, &expected, |i| 1e-6 * expected[i]))
}
