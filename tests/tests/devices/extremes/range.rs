//! Reductions whose squares or sums leave the range of a dtype though their results do not.

use super::{Check, Outcome, all, near, near_largest, numbers, rounding, supported, tensor, with_gradient};
use isograd::nn::clip_grad_norm;
use isograd::ops::Total;
use isograd::ops::loss::{Reduction, Triplet, TripletNegative};
use isograd::ops::{AvgPool, Statistics, Update, total, update_each_norms_};
use isograd::pointwise::Pointwise;
use isograd::tape::{BackwardOptions, grad_with};
use isograd::{DType, Device, Result, Tensor};
use isograd_tests::cpu;

pub const CHECKS: &[(&str, &str, Check)] = &[
    ("mean", "sums_out_of_range", means),
    ("l1_loss", "mean_of_sums_out_of_range", mean_losses),
    ("avg_pool2d", "sums_out_of_range_are_infinite", sums_of_windows),
    ("scatter_mean", "sums_out_of_range_are_infinite", sums_of_segments),
    ("var", "sums_out_of_range", variances_of_large_values),
    ("var", "squares_out_of_range", variances),
    ("l2_norm", "squares_out_of_range", norms),
    ("l2_norm", "infinite_values", infinite_norms),
    ("l2_norm", "gradient_of_squares_out_of_range", gradients_of_norms),
    ("clip_grad_norm", "squares_out_of_range", clipping),
    ("total", "squares_out_of_range", totals),
    ("total", "f64_and_f32", exact_totals),
    ("lars", "squares_out_of_range", norms_of_updates),
    ("layer_norm", "squares_out_of_range", |d| standardised(d, Norm::Layer)),
    ("rms_norm", "squares_out_of_range", |d| standardised(d, Norm::Rms)),
    ("group_norm", "squares_out_of_range", |d| standardised(d, Norm::Group)),
    ("instance_norm", "squares_out_of_range", |d| standardised(d, Norm::Instance)),
    ("batch_norm", "squares_out_of_range", |d| standardised(d, Norm::Batch)),
    ("batch_norm", "squares_of_images_out_of_range", |d| standardised(d, Norm::BatchOfImages)),
    ("layer_norm", "second_derivative_of_squares_out_of_range", second_derivative),
    ("layer_norm", "one_element", one_element),
    ("triplet_loss", "squares_out_of_range", triplets),
    ("triplet_loss", "nan_before_numbers", nan_before_numbers),
    ("contrastive_loss", "squares_out_of_range", contrasts),
];

const INF: f64 = f64::INFINITY;
/// Lengths of what is reduced: by one thread, by several, by a group, and in parts.
const LENGTHS: [usize; 4] = [3, 40, 1000, 70_001];

fn largest_of(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MAX,
        DType::BF16 => isograd::bf16::MAX.to_f64(),
        DType::F16 => isograd::f16::MAX.to_f64(),
        _ => f32::MAX as f64,
    }
}

/// Reduces `values` as a row, as all elements, as one of three columns and in the middle of three dimensions.
fn reduced(
    values: &[f64],
    dtype: DType,
    device: &Device,
    reduce: impl Fn(&Tensor, &[isize]) -> Result<Tensor>,
) -> Result<Vec<f64>> {
    let n = values.len();
    let row = tensor(values, n, dtype, device)?;
    let rows = row.unsqueeze(0)?.broadcast_to((3, n))?.copy()?;
    let columns = rows.t()?.copy()?;
    let images = columns.reshape((1, n, 3))?;
    let found =
        [reduce(&row, &[0])?.reshape(1)?, reduce(&rows, &[1])?, reduce(&columns, &[0])?, reduce(&images, &[0, 1])?];
    Tensor::concat(&found.iter().collect::<Vec<_>>(), 0)?.to_f64_vec()
}

/// What the device holds of `values` in `dtype`.
fn rounded(values: &[f64], dtype: DType) -> Result<Vec<f64>> {
    tensor(values, values.len(), dtype, &cpu())?.to_f64_vec()
}

fn means(device: &Device) -> Result<Outcome> {
    let dtypes = supported(device, &[DType::F32, DType::BF16, DType::F64])?;
    let cases = dtypes.iter().flat_map(|&dtype| LENGTHS.map(|n| (dtype, n)));
    all(cases.map(|(dtype, n)| {
        let largest = largest_of(dtype);
        let signed: Vec<f64> = (0..n).map(|i| if i % 3 == 2 { -largest } else { largest }).collect();
        let of_signs = (0..n).map(|i| if i % 3 == 2 { -1.0 } else { 1.0 }).sum::<f64>() / n as f64 * largest;
        let small = 1e8 / largest;
        let cases = [(vec![largest; n], largest), (signed, of_signs), (vec![small; n], small), (vec![INF; n], INF)];
        all(cases.into_iter().map(|(values, mean)| {
            let got = reduced(&values, dtype, device, |x, axes| x.mean(axes))?;
            // Sums of up to 70,001 terms.
            let relative = 50.0 * rounding(dtype);
            Ok(near_largest(&format!("{dtype}, {n} of {:e}", values[0]), &got, &[mean; 10], 10, relative))
        }))
    }))
}

fn largest_magnitude(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |most: f64, v| most.max(v.abs()))
}

/// A loss that is reduced to a mean is that mean, not a quotient of a sum.
fn mean_losses(device: &Device) -> Result<Outcome> {
    let cases = LENGTHS.into_iter().flat_map(|n| [Reduction::Mean, Reduction::BatchMean].map(|of| (n, of)));
    all(cases.map(|(n, reduction)| {
        let x = tensor(&vec![3e38; n], n, DType::F32, device)?;
        let target = x.zeros_like()?;
        let (loss, dx) = with_gradient(&x, &[1.0], |x| x.l1_loss(&target, reduction))?;
        let share = 1.0 / n as f64;
        let found = near(&format!("loss of {n}, {reduction:?}"), &loss, &[3e38], |_| 3e38 * 1e-6);
        Ok(found.and(near(&format!("gradient of {n}"), &dx, &vec![share; n], |_| share * 1e-6)))
    }))
}

/// Windows and segments are summed up before they are divided, on every device.
fn sums_of_windows(device: &Device) -> Result<Outcome> {
    let x = tensor(&[3e38; 16], (1, 4, 4), DType::F32, device)?;
    let y = x.avg_pool2d(&AvgPool::new([2, 2]))?.to_f64_vec()?;
    let whole = x.global_avg_pool2d()?.to_f64_vec()?;
    let found = near("windows", &y, &[INF; 4], |_| 0.0);
    Ok(found.and(near("all of a plane", &whole, &[3e38], |_| 3e38 * 1e-6)))
}

fn sums_of_segments(device: &Device) -> Result<Outcome> {
    let x = tensor(&[3e38; 5], (5, 1), DType::F32, device)?;
    let index = Tensor::from_slice(&[0i64, 0, 0, 1, 2], 5, device)?;
    let y = x.scatter_mean(&index, Some(3))?.to_f64_vec()?;
    Ok(near("segments", &y, &[INF, 3e38, 3e38], |_| 3e38 * 1e-6))
}

fn variances_of_large_values(device: &Device) -> Result<Outcome> {
    let dtypes = supported(device, &[DType::F32, DType::BF16, DType::F64])?;
    let cases = dtypes.iter().flat_map(|&dtype| LENGTHS.map(|n| (dtype, n)));
    all(cases.map(|(dtype, n)| {
        let largest = largest_of(dtype);
        let alike = reduced(&vec![largest; n], dtype, device, |x, axes| x.var(axes, 1.0))?;
        // Values between which no number has a distance.
        let apart: Vec<f64> = (0..n).map(|i| if i % 2 == 1 { -largest } else { largest }).collect();
        let apart = reduced(&apart, dtype, device, |x, axes| x.var(axes, 1.0))?;
        let bad = reduced(&[vec![INF], vec![1.0; n]].concat(), dtype, device, |x, axes| x.var(axes, 1.0))?;
        let what = |of: &str| format!("{dtype}, {n} values that are {of}");
        Ok(near(&what("alike"), &alike, &[0.0; 10], |_| 0.0)
            .and(near(&what("far apart"), &apart, &[INF; 10], |_| 0.0))
            .and(near(&what("infinite"), &bad, &[f64::NAN; 10], |_| 0.0)))
    }))
}

/// Sums of squares that leave the range, of which a share does not.
fn variances(device: &Device) -> Result<Outcome> {
    let cases = LENGTHS.iter().flat_map(|&n| [1e18, 1e-17].map(|scale| (n, scale)));
    all(cases.map(|(n, scale)| {
        let values = rounded(&numbers(n).iter().map(|v| v * scale).collect::<Vec<_>>(), DType::F32)?;
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n as f64;
        let got = reduced(&values, DType::F32, device, |x, axes| x.var(axes, 0.0))?;
        Ok(near(&format!("{n} values of {scale:e}"), &got, &[variance; 10], |_| 1e-5 * variance))
    }))
}

/// Scales of numbers whose squares are out of range, or almost.
fn scales(dtype: DType) -> &'static [f64] {
    match dtype {
        DType::F64 => &[1e200, 1e-200, 1e154, 1e-160, 1e-300, 1.0],
        _ => &[1e25, 1e-30, 1e19, 1e-19, 1e-22, 2e34, 1e-38, 1.0],
    }
}

fn norm_of(values: &[f64]) -> f64 {
    let largest = largest_magnitude(values);
    let sum: f64 = values.iter().map(|v| (v / largest) * (v / largest)).sum();
    if largest == 0.0 { 0.0 } else { largest * sum.sqrt() }
}

fn norms(device: &Device) -> Result<Outcome> {
    let dtypes = supported(device, &[DType::F32, DType::BF16, DType::F64])?;
    let cases = dtypes.iter().flat_map(|&dtype| LENGTHS.map(|n| (dtype, n)));
    all(cases.flat_map(|(dtype, n)| scales(dtype).iter().map(move |&scale| (dtype, n, scale))).map(
        |(dtype, n, scale)| {
            let alike: Vec<f64> = numbers(n).iter().map(|v| v * scale).collect();
            // One number beside others that do not count, at the end of what the last thread takes.
            let alone: Vec<f64> =
                (0..n).map(|i| if i == n - 1 { scale } else { scale * 1e-9 * ((i % 2) as f64) }).collect();
            all([alike, alone].map(|values| {
                let norm = norm_of(&rounded(&values, dtype)?);
                let got = reduced(&values, dtype, device, |x, axes| x.l2_norm(axes))?;
                // Sums of many squares, the result's rounding, and that of subnormal numbers.
                let bound = if dtype == DType::F64 { 1e-14 } else { 4e-6 + rounding(dtype) } * norm + 1e-45;
                Ok(near(&format!("{dtype}, {n} of {scale:e}"), &got, &[norm; 10], |_| bound))
            }))
        },
    ))
}

/// Of infinite values the norm is infinite, of NaN it is NaN, of zeros 0.
fn infinite_norms(device: &Device) -> Result<Outcome> {
    let cases = LENGTHS.iter().flat_map(|&n| [(n, 0.0), (n, 1e30), (n, 1e-30)]);
    all(cases.map(|(n, others)| {
        let with = |first: f64, last: f64| {
            let mut values = vec![others; n];
            (values[0], values[n - 1]) = (first, last);
            values
        };
        let zeros = (vec![0.0; n], 0.0);
        let cases = [
            (with(INF, 1.0), INF),
            (with(INF, -INF), INF),
            (with(1.0, f64::NAN), f64::NAN),
            (with(INF, f64::NAN), f64::NAN),
            zeros,
        ];
        all(cases.into_iter().map(|(values, norm)| {
            let got = reduced(&values, DType::F32, device, |x, axes| x.l2_norm(axes))?;
            Ok(near(&format!("{n} with {:e} and {:e}", values[0], values[n - 1]), &got, &[norm; 10], |_| 0.0))
        }))
    }))
}

fn gradients_of_norms(device: &Device) -> Result<Outcome> {
    all([1e25, 1e-30, 1e19, 1e-22, 1.0].map(|scale| {
        let n = 40;
        let values = rounded(&numbers(n).iter().map(|v| v * scale).collect::<Vec<_>>(), DType::F32)?;
        let norm = norm_of(&values);
        all([1.0, 1e20, 1e-20].map(|g| {
            let dx: Vec<f64> = values.iter().map(|v| v / norm * g).collect();
            let got = with_gradient(&tensor(&values, n, DType::F32, device)?, &[g], |x| x.l2_norm(..))?.1;
            Ok(near_largest(&format!("{scale:e}, upstream {g:e}"), &got, &dx, n, 1e-5))
        }))
    }))
}

fn clipping(device: &Device) -> Result<Outcome> {
    let cases = [DType::F32, DType::BF16].into_iter().flat_map(|dtype| [1e25, 1e19, 1e-30, 1e-3].map(|s| (dtype, s)));
    all(cases.map(|(dtype, scale)| {
        let values = [numbers(3), numbers(50_000)].map(|v| v.iter().map(|v| v * scale).collect::<Vec<_>>());
        let mut parameters = Vec::new();
        for values in &values {
            let p = Tensor::zeros(values.len(), dtype, device)?.require_grad()?;
            p.set_grad(Some(tensor(values, values.len(), dtype, device)?))?;
            parameters.push(p);
        }
        let gradients = rounded(&values.concat(), dtype)?;
        let norm = norm_of(&gradients);
        let got = clip_grad_norm(&parameters, 2.0, 2.0)?.to_f64_vec()?;
        let mut clipped = Vec::new();
        for p in &parameters {
            clipped.extend(p.grad().map_or(Ok(Vec::new()), |g| g.to_f64_vec())?);
        }
        let factor = (2.0 / (norm + 1e-6)).min(1.0);
        let expected: Vec<f64> = gradients.iter().map(|g| g * factor).collect();
        let bound = 2e-5f64.max(4.0 * rounding(dtype));
        let n = expected.len();
        Ok(near(&format!("{dtype}, norm of {scale:e}"), &got, &[norm], |_| 1e-5 * norm).and(near_largest(
            &format!("{dtype}, clipped {scale:e}"),
            &clipped,
            &expected,
            n,
            bound,
        )))
    }))
}

/// Of tensors of several dtypes, sizes and magnitudes.
fn totals(device: &Device) -> Result<Outcome> {
    let cases: [&[(f64, usize, DType)]; 5] = [
        &[(1e25, 2, DType::F32)],
        &[(1e-30, 2, DType::F32), (1e-32, 40_000, DType::F32)],
        &[(1e25, 3, DType::BF16), (1e25, 20_001, DType::F32), (1.0, 7, DType::F16)],
        &[(1e-30, 33, DType::BF16), (1e-31, 5, DType::F32)],
        &[(1e20, 7, DType::F32), (1.0, 20_001, DType::F32), (1e-25, 16, DType::F32)],
    ];
    all(cases.map(|tensors| {
        let (mut held, mut values) = (Vec::new(), Vec::new());
        for &(scale, n, dtype) in tensors {
            let of: Vec<f64> = numbers(n).iter().map(|v| v * scale).collect();
            held.push(tensor(&of, n, dtype, device)?);
            values.extend(rounded(&of, dtype)?);
        }
        let norm = norm_of(&values);
        let got = total(Total::Norm, &held.iter().collect::<Vec<_>>())?.to_f64_vec()?;
        Ok(near(&format!("{tensors:?}"), &got, &[norm], |_| 1e-5 * norm))
    }))
}

/// A total in f64 is exact in f64 of f32 tensors, too.
fn exact_totals(device: &Device) -> Result<Outcome> {
    if supported(device, &[DType::F64])?.is_empty() {
        return Ok(Ok(()));
    }
    let wide: Vec<f64> = numbers(1000).iter().map(|v| v / 3.0).collect();
    let narrow = rounded(&numbers(30_001).iter().map(|v| v / 7.0 + 1.0).collect::<Vec<_>>(), DType::F32)?;
    let halves = rounded(&numbers(300), DType::BF16)?;
    let tensors = [
        tensor(&wide, wide.len(), DType::F64, device)?,
        tensor(&narrow, narrow.len(), DType::F32, device)?,
        tensor(&halves, halves.len(), DType::BF16, device)?,
    ];
    let values = [wide, narrow, halves].concat();
    let sum: f64 = values.iter().map(|v| v.abs()).sum();
    let kinds = [(Total::Norm, norm_of(&values)), (Total::AbsSum, sum), (Total::AbsMax, largest_magnitude(&values))];
    all(kinds.map(|(kind, expected)| {
        let got = total(kind, &tensors.iter().collect::<Vec<_>>())?;
        let outcome = near(&format!("{kind:?}"), &got.to_f64_vec()?, &[expected], |_| 1e-13 * expected);
        Ok(outcome.and(if got.dtype() == DType::F64 { Ok(()) } else { Err(format!("{kind:?} is {}", got.dtype())) }))
    }))
}

/// The norms that LARS and LAMB take of parameters and of what they step by.
fn norms_of_updates(device: &Device) -> Result<Outcome> {
    let cases = [1e25, 1e19, 1e-22, 1e-30, 1.0].iter().flat_map(|&scale| [3, 5000].map(|n| (scale, n)));
    all(cases.map(|(scale, n)| {
        let values: Vec<f64> = numbers(n).iter().map(|v| v * scale).collect();
        let p = tensor(&values, n, DType::F32, device)?;
        let g = tensor(&numbers(n), n, DType::F32, device)?;
        let one = Tensor::ones((), DType::F32, device)?;
        let set = Update { targets: Vec::new(), inputs: vec![&p, &g], numbers: Vec::new() };
        let function = Pointwise::LarsNorms;
        let found = update_each_norms_(function, &[set], &[&one], &[INF])?;
        let got = found[0].iter().map(|norm| norm.item::<f64>()).collect::<Result<Vec<_>>>()?;
        let expected = [&rounded(&values, DType::F32)?, &numbers(n)].map(|v| norm_of(v));
        Ok(near(&format!("{n} of {scale:e}"), &got, &expected, |i| 1e-5 * expected[i]))
    }))
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    Layer,
    Rms,
    Group,
    Instance,
    /// Of `[N, C]`.
    Batch,
    /// Of `[N, C, L]`.
    BatchOfImages,
}

impl Norm {
    /// Normalises slices `[slices, n]`: they go to where the op looks for them, and come back.
    pub fn run(self, x: &Tensor, eps: f64) -> Result<Tensor> {
        let (slices, n) = (x.dims()[0], x.dims()[1]);
        let channels = if n % 4 == 0 { 4 } else { 1 };
        let batch = Statistics::Batch;
        match self {
            Norm::Layer => x.layer_norm(1, None, None, eps),
            Norm::Rms => x.rms_norm(1, None, eps),
            Norm::Group => {
                x.reshape((slices, channels, n / channels))?.group_norm(1, None, None, eps)?.reshape((slices, n))
            }
            Norm::Instance => x.reshape((1, slices, n))?.instance_norm(None, None, batch, eps)?.reshape((slices, n)),
            Norm::Batch => x.t()?.contiguous()?.batch_norm(None, None, batch, eps)?.t(),
            Norm::BatchOfImages => {
                let images = x.reshape((slices, channels, n / channels))?.permute(&[1, 0, 2])?.contiguous()?;
                images.batch_norm(None, None, batch, eps)?.permute(&[1, 0, 2])?.reshape((slices, n))
            }
        }
    }

    pub fn is_centred(self) -> bool {
        self != Norm::Rms
    }
}

/// What a slice is divided by.
fn deviation(x: &[f64], eps: f64, is_centred: bool) -> f64 {
    let n = x.len() as f64;
    let mean = if is_centred { x.iter().map(|v| v / n).sum::<f64>() } else { 0.0 };
    (x.iter().map(|v| (v - mean) * (v - mean) / n).sum::<f64>() + eps).sqrt()
}

/// The normalised slice, and the gradient of x for `dy`, in f64.
pub fn normalised(x: &[f64], dy: &[f64], eps: f64, is_centred: bool) -> (Vec<f64>, Vec<f64>) {
    let n = x.len() as f64;
    let mean = if is_centred { x.iter().map(|v| v / n).sum::<f64>() } else { 0.0 };
    let rstd = 1.0 / deviation(x, eps, is_centred);
    let y: Vec<f64> = x.iter().map(|v| (v - mean) * rstd).collect();
    let slope = y.iter().zip(dy).map(|(y, d)| y * d).sum::<f64>() / n;
    let shift = if is_centred { dy.iter().sum::<f64>() / n } else { 0.0 };
    let dx = y.iter().zip(dy).map(|(y, d)| rstd * (d - shift - y * slope)).collect();
    (y, dx)
}

/// Slices of which one is ordinary, and the others have squares that leave the range.
fn standardised(device: &Device, norm: Norm) -> Result<Outcome> {
    // Rows in the registers of a thread, of a team, of a group, and longer ones.
    let lengths: &[usize] = if norm == Norm::Batch { &[3, 40, 1000, 9000] } else { &[3, 40, 1000, 40_004] };
    let dtypes = [DType::F32, DType::BF16];
    let cases = lengths
        .iter()
        .flat_map(|&n| dtypes.map(|dtype| (n, dtype)))
        .filter(|(n, dtype)| *n < 9000 || *dtype == DType::F32);
    all(cases.flat_map(|case| [(case, 1e-5), (case, 0.0)]).map(|((n, dtype), eps)| {
        let large = [1.0, 1e25, 3e19, 3.3e38];
        let small = [1.0, 1e-30, 1e-21, 1e30];
        let scales = if eps == 0.0 { small } else { large };
        let base = numbers(n);
        let slice = |s: &f64| base.iter().map(|v| v * s).collect::<Vec<_>>();
        let values = rounded(&scales.iter().flat_map(slice).collect::<Vec<_>>(), dtype)?;
        let dy: Vec<f64> = (0..values.len()).map(|i| ((i * 11) % 13) as f64 / 8.0 - 0.75).collect();
        let (mut y, mut dx) = (Vec::new(), Vec::new());
        for (x, dy) in values.chunks(n).zip(dy.chunks(n)) {
            let (of_y, of_dx) = normalised(x, dy, eps, norm.is_centred());
            y.extend(of_y);
            dx.extend(of_dx);
        }
        let x = tensor(&values, (scales.len(), n), dtype, device)?;
        let (got_y, got_dx) = with_gradient(&x, &dy, |x| norm.run(x, eps))?;
        let what = |of: &str| format!("{norm:?} {dtype}, {of} of {n}, eps {eps:e}");
        let relative = 2e-5f64.max(4.0 * rounding(dtype));
        // What is subtracted from gradients is of their size. Those of the largest values are subnormal.
        let slopes: Vec<f64> = values.chunks(n).map(|x| 1.0 / deviation(x, eps, norm.is_centred())).collect();
        Ok(near_largest(&what("values"), &got_y, &y, n, relative).and(near(&what("gradients"), &got_dx, &dx, |i| {
            relative * slopes[i / n] + if dtype == DType::BF16 { 1e-40 } else { 1e-44 }
        })))
    }))
}

fn second_derivative(device: &Device) -> Result<Outcome> {
    let n = 8;
    let run = |x: &Tensor| -> Result<Vec<f64>> {
        let x = x.require_grad()?;
        let weights = tensor(&numbers(n), n, x.dtype(), x.device())?;
        let y = x.layer_norm(1, None, None, 0.0)?.mul(&weights)?.square()?.sum(..)?;
        let options = BackwardOptions { create_graph: true, ..Default::default() };
        let slope = grad_with(&y, &[&x], &options)?.swap_remove(0);
        grad_with(&slope.mul(&x)?.square()?.sum(..)?, &[&x], &BackwardOptions::default())?.swap_remove(0).to_f64_vec()
    };
    let values: Vec<f64> = numbers(n).iter().map(|v| v + 0.5 * v * v).collect();
    let expected = run(&tensor(&values, n, DType::F64, &cpu())?)?;
    // The norm does not change with the scale of x, so that the derivative goes with its inverse.
    all([80, -60].map(|power| {
        let scale = 2f64.powi(power);
        let scaled: Vec<f64> = values.iter().map(|v| v * scale).collect();
        let got = run(&tensor(&scaled, n, DType::F32, device)?)?;
        let got: Vec<f64> = got.iter().map(|v| v * scale).collect();
        Ok(near_largest(&format!("times 2^{power}"), &got, &expected, n, 1e-4))
    }))
}

/// What is alone in its slice is normalised to 0, and does not move the result.
fn one_element(device: &Device) -> Result<Outcome> {
    let values: Vec<f64> = numbers(37).iter().map(|v| v * 3.7).collect();
    let dtypes = supported(device, &[DType::F32, DType::F16, DType::BF16, DType::F64])?;
    all(dtypes.into_iter().map(|dtype| {
        let x = tensor(&values, (37, 1), dtype, device)?;
        let weight = tensor(&[0.7], 1, dtype, device)?;
        let dy: Vec<f64> = values.iter().map(|v| v / 1.3).collect();
        let layer = with_gradient(&x, &dy, |x| x.layer_norm(1, Some(&weight), None, 1e-5))?;
        let group = with_gradient(&x, &dy, |x| x.group_norm(1, Some(&weight), None, 1e-5))?;
        let zeros = [0.0; 37];
        let what = |of: &str| format!("{of} in {dtype}");
        Ok(near(&what("layer_norm"), &layer.0, &zeros, |_| 0.0)
            .and(near(&what("gradient of layer_norm"), &layer.1, &zeros, |_| 0.0))
            .and(near(&what("group_norm"), &group.0, &zeros, |_| 0.0))
            .and(near(&what("gradient of group_norm"), &group.1, &zeros, |_| 0.0)))
    }))
}

fn triplets(device: &Device) -> Result<Outcome> {
    let orders = [2.0, 1.0, 3.0, 1.5];
    let negatives = [TripletNegative::FromAnchor, TripletNegative::Nearest];
    let cases = orders.iter().flat_map(|&p| negatives.map(|negative| (p, negative)));
    all(cases.flat_map(|case| [1e25, 1e14, 1e-30].map(|scale| (case, scale))).map(|((p, negative), scale)| {
        let (n, rows) = (40, 3);
        let of = |seed: usize, size: f64| -> Vec<f64> {
            numbers(rows * n + 100 * seed)[100 * seed..].iter().map(|v| v * scale * size).collect()
        };
        let values = [of(0, 1.0), of(1, 2.0), of(2, 0.5)];
        let margin = scale;
        let run = |device: &Device, dtype: DType| -> Result<Vec<f64>> {
            let leaves =
                values.each_ref().map(|v| tensor(v, (rows, n), DType::F32, device)?.cast(dtype)?.require_grad());
            let [a, b, c] = leaves;
            let (a, b, c) = (a?, b?, c?);
            let options = Triplet { margin, p, eps: 0.0, negative, reduction: Reduction::None };
            let loss = a.triplet_loss(&b, &c, &options)?;
            loss.sum(..)?.backward()?;
            let mut all: Vec<f64> = loss.to_f64_vec()?.iter().map(|v| v / scale).collect();
            for x in [&a, &b, &c] {
                all.extend(x.grad().map_or(Ok(Vec::new()), |g| g.to_f64_vec())?);
            }
            Ok(all)
        };
        let expected = run(&cpu(), DType::F64)?;
        let what = format!("order {p}, {negative:?}, {scale:e}");
        Ok(near(&what, &run(device, DType::F32)?, &expected, |i| 1e-4 * expected[i].abs().max(0.1)))
    }))
}

/// A distance to a row that has NaN is NaN, whatever follows, and so is its gradient.
fn nan_before_numbers(device: &Device) -> Result<Outcome> {
    all([2.0, 3.0].map(|p| {
        let n = 40;
        let values: Vec<f64> = (0..n).map(|i| if i == 0 { f64::NAN } else { i as f64 }).collect();
        let a = tensor(&values, (1, n), DType::F32, device)?;
        let (positive, negative) = (a.zeros_like()?, a.ones_like()?);
        let options = Triplet { p, reduction: Reduction::None, ..Triplet::default() };
        let (loss, da) = with_gradient(&a, &[1.0], |a| a.triplet_loss(&positive, &negative, &options))?;
        Ok(near(&format!("order {p}"), &[loss, da].concat(), &[f64::NAN; 41], |_| 0.0))
    }))
}

/// Rows that shall be apart, and are: the loss is 0, whatever the square of their distance is.
fn contrasts(device: &Device) -> Result<Outcome> {
    all([1e25, 1e-30].map(|scale| {
        let n = 40;
        let of = |sign: f64| numbers(2 * n).iter().map(|v| sign * v * scale).collect::<Vec<_>>();
        let (a, b) = (tensor(&of(1.0), (2, n), DType::F32, device)?, tensor(&of(-1.0), (2, n), DType::F32, device)?);
        let y = Tensor::zeros(2, DType::F32, device)?;
        let (loss, da) = with_gradient(&a, &[1.0; 2], |a| a.contrastive_loss(&b, &y, 1.0, Reduction::None))?;
        let (far, d): (f64, Vec<f64>) = (2.0 * norm_of(&of(1.0)[..n]), of(2.0));
        let distances = [far, 2.0 * norm_of(&of(1.0)[n..])];
        let expected: Vec<f64> = distances.iter().map(|d| (1.0 - d).max(0.0).powi(2)).collect();
        let slope = |i: usize| -2.0 * (1.0 - distances[i / n]).max(0.0) * d[i] / distances[i / n];
        let slopes: Vec<f64> = (0..2 * n).map(slope).collect();
        Ok(near(&format!("loss at {scale:e}"), &loss, &expected, |_| 1e-5).and(near(
            &format!("gradient at {scale:e}"),
            &da,
            &slopes,
            |_| 1e-5,
        )))
    }))
}
