//! Softmax, norms, cross entropy, dropout and the gradient of an embedding against what the CPU makes of tensor ops.

use super::common::Lcg;
use isograd::ops::EmbeddingOptions;
use isograd::ops::loss::{CrossEntropy, Reduction};
use isograd::tape::BackwardOptions;
use isograd::{DType, Device, Kind, Result, Tensor};
use std::sync::LazyLock;

static CPU: LazyLock<Device> = LazyLock::new(isograd_tests::cpu);

const REDUCTIONS: [Reduction; 4] = [Reduction::None, Reduction::Mean, Reduction::Sum, Reduction::BatchMean];

/// Numbers in -1..1 times `scale`, rounded to the dtype.
fn reals(seed: usize, dims: &[usize], scale: f64, dtype: DType) -> Result<Tensor> {
    let values = Lcg(seed as u64).reals(dims.iter().product());
    Tensor::from_vec(values, dims, &CPU)?.mul_scalar(scale)?.cast(dtype)
}

/// Numbers in `0..n`.
fn indices(seed: usize, dims: &[usize], n: usize) -> Result<Tensor> {
    let mut lcg = Lcg(seed as u64 + 5);
    let values: Vec<i64> = (0..dims.iter().product()).map(|_| lcg.next(n as u64) as i64).collect();
    Tensor::from_vec(values, dims, &CPU)
}

/// `y` and the gradient of `x`, where the gradient of `y` is powers of 2, which every dtype holds.
fn with_gradient(x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<[Tensor; 2]> {
    let x = x.require_grad()?;
    let y = f(&x)?;
    let values = (0..y.numel()).map(|i| 2f64.powi(i as i32 % 5 - 2)).collect();
    let dy = Tensor::from_vec::<f64>(values, y.shape(), y.device())?.cast(y.dtype())?;
    y.backward_with(&BackwardOptions { gradient: Some(dy), ..Default::default() })?;
    Ok([y.detach(), x.grad().expect("a gradient")])
}

/// One rounding of the result, and 32 roundings of the largest on the way; special values at the same places.
#[track_caller]
fn assert_close(got: &Tensor, expected: &Tensor, what: &str) -> Result<()> {
    let (unit, acc, tiny) = match got.dtype() {
        DType::F64 => (0.0, 1.1e-16, 0.0),
        DType::F32 => (0.0, 6e-8, 1e-37),
        DType::F16 => (4.9e-4, 6e-8, 6e-8),
        _ => (3.9e-3, 6e-8, 1e-37),
    };
    let (got, expected) = (got.to_f64_vec()?, expected.to_f64_vec()?);
    let largest = expected.iter().filter(|v| v.is_finite()).fold(0f64, |a, v| a.max(v.abs()));
    for (i, (y, r)) in got.iter().zip(&expected).enumerate() {
        let bound = 1.5 * unit * r.abs() + 32.0 * acc * largest + tiny;
        let is_right = y == r || y.is_nan() && r.is_nan() || (y - r).abs() <= bound;
        assert!(is_right, "{what}: element {i} is {y}, expected {r} +- {bound}");
    }
    Ok(())
}

/// Options on a device, of which some bits choose.
fn options(bits: usize, classes: usize, dtype: DType, reduction: Reduction, device: &Device) -> Result<CrossEntropy> {
    let numbers = |bit: usize| match bits & bit {
        0 => Ok(None),
        _ => reals(bits + bit, &[classes], 1.0, dtype)?.abs()?.add_scalar(0.5)?.to_device(device).map(Some),
    };
    Ok(CrossEntropy {
        weight: numbers(1)?,
        label_smoothing: if bits & 2 != 0 { 0.1 } else { 0.0 },
        ignore_index: (bits & 4 != 0).then_some(1),
        token_bytes: numbers(8)?,
        reduction,
    })
}

fn check_entropy(device: &Device, x: &Tensor, target: &Tensor, bits: usize, reduction: Reduction) -> Result<()> {
    let what = format!("{} {} by {}, options {bits}, {reduction:?}", x.dtype(), x.shape(), target.dtype());
    let classes = x.dims()[1];
    let on = |device: &Device, dtype: DType| {
        // What the narrow dtype holds, also in f64.
        let options = options(bits, classes, x.dtype(), reduction, device)?;
        let wide = |t: Option<Tensor>| t.map(|t| t.cast(dtype)).transpose();
        let options =
            CrossEntropy { weight: wide(options.weight)?, token_bytes: wide(options.token_bytes)?, ..options };
        let (x, target) = (x.cast(dtype)?.to_device(device)?, target.to_device(device)?);
        with_gradient(&x, |x| x.cross_entropy_with(&target, &options))
    };
    let (got, again, expected) = (on(device, x.dtype())?, on(device, x.dtype())?, on(&CPU, DType::F64)?);
    for (k, (y, r)) in got.iter().zip(&expected).enumerate() {
        assert_close(y, r, &format!("{what}, {}", ["the loss", "the gradient"][k]))?;
        assert_eq!(y.to_bytes()?, again[k].to_bytes()?, "{what}: two runs differ");
    }
    Ok(())
}

/// Lengths of rows, and how many: of less than a word up to more than a group keeps, of whole words and of others.
const ROWS: [[usize; 2]; 12] = [
    [7, 5],
    [9, 33],
    [300, 16],
    [40, 100],
    [33, 768],
    [3, 1000],
    [5, 4099],
    [2, 8200],
    [1, 16_400],
    [2, 33_000],
    [2, 40_003],
    [1, 50_257],
];

/// All dtypes at some lengths, two at the others.
fn dtypes(extent: usize) -> &'static [DType] {
    match extent {
        100 | 4099 => &[DType::F32, DType::BF16, DType::F16, DType::F64],
        _ => &[DType::F32, DType::BF16],
    }
}

pub fn softmax_of_rows(device: &Device) -> Result<()> {
    for [rows, extent] in ROWS {
        for &dtype in dtypes(extent) {
            let x = reals(extent, &[rows, extent], 8.0, dtype)?;
            for is_log in [false, true] {
                let on = |device: &Device, dtype: DType| {
                    let x = x.cast(dtype)?.to_device(device)?;
                    with_gradient(&x, |x| if is_log { x.log_softmax(-1) } else { x.softmax(-1) })
                };
                let ([y, dx], expected) = (on(device, dtype)?, on(&CPU, DType::F64)?);
                let what = format!("{dtype} {rows} x {extent}, logarithm: {is_log}");
                assert_close(&y, &expected[0], &what)?;
                // dx = y (dy - sum(dy y)), or dy - e^y sum(dy), of y as it was rounded.
                let y = y.to_device(&CPU)?.cast(DType::F64)?;
                let dy =
                    Tensor::from_vec((0..y.numel()).map(|i| 2f64.powi(i as i32 % 5 - 2)).collect(), y.shape(), &CPU)?;
                let expected = match is_log {
                    false => y.mul(&dy.sub(&dy.mul(&y)?.sum_keepdim(1)?)?)?,
                    true => dy.sub(&y.exp()?.mul(&dy.sum_keepdim(1)?)?)?,
                };
                assert_close(&dx, &expected, &format!("{what}, the gradient"))?;
            }
        }
    }
    Ok(())
}

/// y and the gradients of x, the weight and the bias: those of bits 1, 2 and 4 are wanted, 8: there is no bias, 16: no
/// weight, 32: the mean is not subtracted.
fn norm(x: &Tensor, weight: &Tensor, bias: &Tensor, bits: usize) -> Result<Vec<Tensor>> {
    let leaf = |bit: usize, t: &Tensor| if bits & bit != 0 { t.require_grad() } else { Ok(t.clone()) };
    let (x, weight, bias) = (leaf(1, x)?, leaf(2, weight)?, leaf(4, bias)?);
    let (w, b) = ((bits & 16 == 0).then_some(&weight), (bits & 8 == 0).then_some(&bias));
    let y = if bits & 32 != 0 { x.rms_norm(1, w, 1e-5)? } else { x.layer_norm(1, w, b, 1e-5)? };
    let values = (0..y.numel()).map(|i| 2f64.powi(i as i32 % 5 - 2) - 1.0).collect();
    let dy = Tensor::from_vec::<f64>(values, y.shape(), &CPU)?.cast(y.dtype())?.to_device(y.device())?;
    y.backward_with(&BackwardOptions { gradient: Some(dy), ..Default::default() })?;
    Ok([Some(y.detach()), x.grad(), weight.grad(), bias.grad()].into_iter().flatten().collect())
}

pub fn norms_of_rows(device: &Device) -> Result<()> {
    for (k, [rows, extent]) in ROWS.into_iter().enumerate() {
        for &dtype in dtypes(extent) {
            let x = reals(extent, &[rows, extent], 2.0, dtype)?.add_scalar(0.5)?;
            for bits in [7, 32 + 3, [1, 2, 6, 8 + 3, 16 + 5, 16 + 32 + 1, 16 + 8 + 1][k % 7]] {
                let p = if bits == 7 && k % 2 == 0 { DType::F32 } else { dtype };
                let parameters = [reals(k + 1, &[extent], 1.0, p)?, reals(k + 2, &[extent], 1.0, p)?];
                let on = |device: &Device, is_wide: bool| {
                    let [x, w, b] = [&x, &parameters[0], &parameters[1]]
                        .map(|t| if is_wide { t.cast(DType::F64)?.to_device(device) } else { t.to_device(device) });
                    norm(&x?, &w?, &b?, bits)
                };
                let (got, again, expected) = (on(device, false)?, on(device, false)?, on(&CPU, true)?);
                assert_eq!(got.len(), expected.len());
                for (i, (y, r)) in got.iter().zip(&expected).enumerate() {
                    let what = format!("{dtype} {rows} x {extent}, options {bits}, result {i}");
                    assert_close(y, r, &what)?;
                    assert_eq!(y.to_bytes()?, again[i].to_bytes()?, "{what}: two runs differ");
                }
            }
        }
    }
    Ok(())
}

pub fn cross_entropy_of_rows_and_columns(device: &Device) -> Result<()> {
    for (i, classes) in [1, 2, 31, 32, 33, 65, 127, 129, 257, 1025, 4097, 8195, 20_003].into_iter().enumerate() {
        for (k, dtype) in [DType::F32, DType::BF16, DType::F16, DType::F64].into_iter().enumerate() {
            if k > 0 && ![33, 4097, 20_003].contains(&classes) {
                continue;
            }
            let (bits, reduction) = ([0, 2, 4, 7][(i + k) % 4], REDUCTIONS[i % 4]);
            let x = reals(i, &[5, classes], 8.0, dtype)?;
            let target = indices(i, &[5], classes)?;
            check_entropy(device, &x, &target, bits, reduction)?;
            if classes < 1000 {
                let target = indices(i, &[2, 3, 3], classes)?.cast(DType::I32)?;
                check_entropy(device, &reals(i, &[2, classes, 3, 3], 8.0, dtype)?, &target, bits, reduction)?;
            }
        }
    }
    Ok(())
}

pub fn cross_entropy_with_all_options(device: &Device) -> Result<()> {
    let (x, target) = (reals(3, &[9, 40], 4.0, DType::F32)?, indices(3, &[9], 40)?);
    let (columns, targets) = (reals(4, &[3, 7, 5], 4.0, DType::F32)?, indices(4, &[3, 5], 7)?);
    for bits in 0..16 {
        check_entropy(device, &x, &target, bits, REDUCTIONS[bits % 4])?;
        check_entropy(device, &columns, &targets, bits, REDUCTIONS[(bits + 1) % 4])?;
    }
    Ok(())
}

pub fn cross_entropy_of_many_elements_and_special_ones(device: &Device) -> Result<()> {
    check_entropy(device, &reals(7, &[20_000, 3], 4.0, DType::F32)?, &indices(7, &[20_000], 3)?, 5, Reduction::Mean)?;
    for (k, special) in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e4].into_iter().enumerate() {
        for classes in [5, 50, 9000] {
            let mut values = reals(k, &[4, classes], 2.0, DType::F32)?.to_f64_vec()?;
            (0..classes).for_each(|c| values[c] = if c % 3 == 0 { special } else { values[c] });
            values[classes..2 * classes].fill(special);
            let x = Tensor::from_vec(values, (4, classes), &CPU)?.cast(DType::F32)?;
            for target in [0, 1] {
                check_entropy(device, &x, &Tensor::full(4, target, DType::I64, &CPU)?, 0, Reduction::None)?;
                check_entropy(device, &x, &Tensor::full(4, target, DType::I64, &CPU)?, 2, Reduction::None)?;
            }
        }
    }
    Ok(())
}

/// A row that begins anywhere within a word, also of a view.
pub fn cross_entropy_of_a_view(device: &Device) -> Result<()> {
    let target = indices(1, &[3], 77)?;
    let x = reals(1, &[3 * 77 + 3], 2.0, DType::BF16)?;
    for start in 0..4 {
        let rows = |x: &Tensor| x.narrow(0, start, 3 * 77)?.reshape((3, 77));
        let on = |device: &Device, dtype: DType| {
            let target = target.to_device(device)?;
            with_gradient(&x.cast(dtype)?.to_device(device)?, |x| rows(x)?.cross_entropy(&target))
        };
        let (got, expected) = (on(device, DType::BF16)?, on(&CPU, DType::F64)?);
        assert_close(&got[0], &expected[0], "the loss of a view")?;
        assert_close(&got[1], &expected[1], "the gradient of a view")?;
    }
    Ok(())
}

pub fn a_class_out_of_range_is_an_error_with_its_place(device: &Device) -> Result<()> {
    for (dims, bad) in [([3, 50, 1], 50), ([3, 4, 2], -1), ([2, 40, 3], 1 << 40)] {
        let [n, classes, inner] = dims;
        let mut targets = vec![0i64; n * inner];
        targets[n * inner - 1] = bad;
        targets[1] = -100;
        let error = |device: &Device| -> Result<_> {
            let x = Tensor::zeros((n, classes, inner), DType::F32, device)?;
            Ok(x.cross_entropy(&Tensor::from_vec(targets.clone(), (n, inner), device)?).expect_err("a bad class"))
        };
        let (got, expected) = (error(device)?, error(&CPU)?);
        assert_eq!((got.kind(), got.to_string()), (Kind::Index, expected.to_string()));
    }
    Ok(())
}

pub fn gradients_of_tables(device: &Device) -> Result<()> {
    for (l, v, e) in [(1, 3, 1), (7, 3, 8), (33, 50, 7), (1025, 3, 12), (5000, 50, 4), (3000, 5000, 16), (9000, 700, 8)]
    {
        for (k, dtype) in [DType::F32, DType::BF16, DType::F64].into_iter().enumerate() {
            for (padding_idx, scale_grad_by_freq) in [(None, false), (Some(1), false), (None, true), (Some(-1), true)] {
                let index = indices(l, &[l], v)?.cast([DType::I64, DType::I32][k % 2])?;
                let table = reals(v, &[v, e], 1.0, dtype)?;
                let on = |device: &Device, dtype: DType| {
                    let index = index.to_device(device)?;
                    let options = EmbeddingOptions { padding_idx, scale_grad_by_freq };
                    with_gradient(&table.cast(dtype)?.to_device(device)?, |w| w.embedding(&index, &options))
                };
                let (got, again, expected) = (on(device, dtype)?, on(device, dtype)?, on(&CPU, DType::F64)?);
                let what = format!("{l} rows of {v} x {e} {dtype}, padding {padding_idx:?}, {scale_grad_by_freq}");
                assert_close(&got[1], &expected[1], &what)?;
                assert_eq!(got[1].to_bytes()?, again[1].to_bytes()?, "{what}: two runs differ");
            }
        }
    }
    Ok(())
}

/// Rows without a token are zeros, wherever they lie: tables are made where other values were.
pub fn rows_without_tokens(device: &Device) -> Result<()> {
    for (l, v) in [(0, 5), (40, 2000), (40, 1 << 20), (10_000, 2000), (10_000, 31)] {
        let index = indices(l, &[l], v.min(31))?.add_scalar(v as i64 / 2 - 15)?.to_device(device)?;
        drop(Tensor::full((v, 3), 7.0, DType::F32, device)?);
        let table = Tensor::zeros((v, 3), DType::F32, device)?;
        let [_, gradient] = with_gradient(&table, |w| w.embedding(&index, &EmbeddingOptions::default()))?;
        let counts = Tensor::zeros(v, DType::I64, device)?.index_add(0, &index, &index.ones_like()?, 1)?;
        let is_used = counts.gt_scalar(0)?.to_vec::<bool>()?;
        for (row, is_used) in gradient.to_vec::<f32>()?.chunks(3).zip(is_used) {
            assert!(is_used || row == [0.0; 3], "{l} tokens, {v} rows");
        }
        assert_eq!(gradient.abs()?.sum(..)?.item::<f64>()? > 0.0, l > 0);
    }
    Ok(())
}
