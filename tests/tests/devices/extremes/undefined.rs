//! Results and gradients outside of domains, at infinity, and where a function is not smooth.

use super::{Check, Outcome, all, near, near_largest, numbers, supported, tensor, with_gradient};
use isograd::linalg::{eigh, svd};
use isograd::ops::loss::{CrossEntropy, Ctc, KlTarget, Reduction};
use isograd::ops::{Approximate, Attention, Causal, EmbeddingOptions, ScanOptions};
use isograd::tape::{BackwardOptions, grad_with};
use isograd::{Checks, DType, Device, Kind, Result, Tensor};
use isograd_tests::cpu;
use isograd_tests::harness::{equal, expect, private, refused};

pub const CHECKS: &[(&str, &str, Check)] = &[
    ("logit", "gradient_outside_of_the_domain", outside),
    ("softsign", "value_at_infinity", at_infinity),
    ("gelu", "gradient_of_large_values", large_values),
    ("div", "gradient_of_divisors_whose_squares_are_out_of_range", divisors),
    ("xlogy", "gradient_of_nothing", nothing),
    ("kl_div", "log_target_without_probability", no_probability),
    ("cross_entropy", "probability_0_of_a_masked_class", masked_class),
    ("l2_norm", "second_derivative_at_0", curvature),
    ("var", "gradient_of_infinite_values", infinite_variance),
    ("prod", "products_of_some_factors_out_of_range", products),
    ("cumprod", "products_of_some_factors_out_of_range", running_products),
    ("eq_scalar", "scalar_of_16_bits", scalars),
    ("scaled_dot_product_attention", "gradient_of_a_weight_of_1", one_key),
    ("ctc_loss", "target_without_alignment", no_alignment),
    ("ctc_loss", "gradient_of_many_frames", many_frames),
    ("svd", "gradient_of_equal_values", equal_values),
    ("cross_entropy", "class_out_of_range", wrong_class),
    ("take", "late_error_names_the_call", late_errors),
];

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

type Function = fn(&Tensor) -> Result<Tensor>;

/// An op, and a call of it.
type Of<'a> = (&'a str, &'a dyn Fn(&Tensor) -> Result<Tensor>);
type Call<'a> = (&'a str, &'a dyn Fn() -> Result<Tensor>);

/// A function, points, and its expected values and derivatives there.
type Points<'a> = (&'a str, Function, &'a [f64], &'a [f64], &'a [f64]);

fn at_points(device: &Device, dtype: DType, points: &[Points<'_>]) -> Result<Outcome> {
    all(points.iter().map(|&(name, f, at, values, slopes)| {
        let x = tensor(at, at.len(), dtype, device)?;
        let (y, dx) = with_gradient(&x, &vec![1.0; at.len()], f)?;
        let bound = |expected: f64| 4.0 * super::rounding(dtype) * expected.abs() + 1e-6;
        let of_values = near(&format!("{name} in {dtype}"), &y, values, |i| bound(values[i]));
        Ok(of_values.and(near(&format!("the gradient of {name} in {dtype}"), &dx, slopes, |i| bound(slopes[i]))))
    }))
}

fn outside(device: &Device) -> Result<Outcome> {
    let nans = &[NAN; 3];
    at_points(
        device,
        DType::F32,
        &[
            ("logit", |x| x.logit(None), &[2.0, -1.0, 1e30], nans, nans),
            ("log", Tensor::log, &[-1.0, -1e30, -0.5], nans, nans),
            ("log2", Tensor::log2, &[-1.0, -1e30, -0.5], nans, nans),
            ("log10", Tensor::log10, &[-1.0, -1e30, -0.5], nans, nans),
            ("log1p", Tensor::log1p, &[-2.0, -1e30, -1.5], nans, nans),
            ("acosh", Tensor::acosh, &[-2.0, 0.5, -1e30], nans, nans),
            ("atanh", Tensor::atanh, &[2.0, -1.5, 1e30], nans, nans),
        ],
    )
}

fn at_infinity(device: &Device) -> Result<Outcome> {
    let ends = &[INF, -INF, 1e38, -1e38];
    all([DType::F32, DType::BF16].map(|dtype| {
        at_points(
            device,
            dtype,
            &[
                ("softsign", Tensor::softsign, ends, &[1.0, -1.0, 1.0, -1.0], &[0.0; 4]),
                ("hardswish", Tensor::hardswish, &[INF, -INF], &[INF, 0.0], &[1.0, 0.0]),
                ("silu", Tensor::silu, &[INF], &[INF], &[1.0]),
                ("mish", Tensor::mish, &[INF], &[INF], &[1.0]),
                ("gelu", |x| x.gelu(Approximate::None), &[INF], &[INF], &[1.0]),
                ("gelu of tanh", |x| x.gelu(Approximate::Tanh), &[INF], &[INF], &[1.0]),
            ],
        )
    }))
}

fn large_values(device: &Device) -> Result<Outcome> {
    let (at, zero_or_one) = (&[6e19, 1e30, 3e38, -6e19, -3e38], &[1.0, 1.0, 1.0, 0.0, 0.0]);
    let values = &[6e19, 1e30, 3e38, 0.0, 0.0];
    let reciprocals: Vec<f64> = [1e20, 1e30, -1e25].iter().map(|x: &f64| 1.0 / x.abs()).collect();
    all([DType::F32, DType::BF16].map(|dtype| {
        let points: [Points<'_>; 4] = [
            ("gelu", |x| x.gelu(Approximate::None), at, values, zero_or_one),
            ("gelu of tanh", |x| x.gelu(Approximate::Tanh), at, values, zero_or_one),
            ("silu", Tensor::silu, at, values, zero_or_one),
            ("mish", Tensor::mish, at, values, zero_or_one),
        ];
        let rounded: Vec<Vec<f64>> =
            [at, values].iter().map(|v| tensor(&v[..], v.len(), dtype, &cpu())?.to_f64_vec()).collect::<Result<_>>()?;
        let points = points.map(|(name, f, _, _, slopes)| (name, f, &rounded[0][..], &rounded[1][..], slopes));
        let slopes = |name: &str, f: Function, at: &[f64]| {
            let x = tensor(at, at.len(), DType::F32, device)?;
            let dx = with_gradient(&x, &[1e10; 3], f)?.1;
            Ok(near(name, &dx, &reciprocals.iter().map(|r| 1e10 * r).collect::<Vec<_>>(), |i| 1e4 * reciprocals[i]))
        };
        Ok(at_points(device, dtype, &points)?.and(slopes("asinh", Tensor::asinh, &[1e20, 1e30, -1e25])?).and(slopes(
            "acosh",
            Tensor::acosh,
            &[1e20, 1e30, 1e25],
        )?))
    }))
}

/// The gradients of both operands for dy = 1.
fn of_both(
    f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    a: &[f64],
    b: &[f64],
    device: &Device,
) -> Result<[Vec<f64>; 2]> {
    let leaf = |v: &[f64]| tensor(v, v.len(), DType::F32, device)?.require_grad();
    let (a, b) = (leaf(a)?, leaf(b)?);
    let found = grad_with(&f(&a, &b)?.sum(..)?, &[&a, &b], &BackwardOptions::default())?;
    Ok([found[0].to_f64_vec()?, found[1].to_f64_vec()?])
}

fn divisors(device: &Device) -> Result<Outcome> {
    let (a, b) = ([0.0, 1e-25, 1e30, 2.0], [1e-25, 1e-25, 1e25, 4.0]);
    let exact = |f: fn(f64, f64) -> f64| (0..4).map(|i| f(a[i], b[i])).collect::<Vec<_>>();
    let of = |what: &str, got: &[f64], f: fn(f64, f64) -> f64| {
        let expected = exact(f);
        near(what, got, &expected, |i| 1e-5 * expected[i].abs())
    };
    let [da, db] = of_both(|a, b| a.div(b), &a, &b, device)?;
    let divided = of("a / b by a", &da, |_, b| 1.0 / b).and(of("a / b by b", &db, |a, b| -a / b / b));
    let [da, db] = of_both(|a, b| a.atan2(b), &a, &b, device)?;
    let angles = of("the angle by a", &da, |a, b| b / (a * a + b * b))
        .and(of("the angle by b", &db, |a, b| -a / (a * a + b * b)));
    let x = tensor(&b, 4, DType::F32, device)?;
    let dx = with_gradient(&x, &[1.0; 4], |x| x.rdiv_scalar(1e-25))?.1;
    // The third is below every f32.
    let inverse = |_: f64, b: f64| if b > 1e20 { 0.0 } else { -1e-25 / b / b };
    Ok(divided.and(angles).and(of("1e-25 / b", &dx, inverse)))
}

/// 0 ln 0 is 0, and so are its gradients; there is no angle at (0, 0).
fn nothing(device: &Device) -> Result<Outcome> {
    let zeros = [0.0; 2];
    let [da, db] = of_both(|a, b| a.xlogy(b), &[0.0, 1.0], &[0.0, -1.0], device)?;
    let logarithms = near("xlogy by a", &da, &[0.0, NAN], |_| 0.0).and(near("xlogy by b", &db, &[0.0, NAN], |_| 0.0));
    let [da, db] = of_both(|a, b| a.atan2(b), &zeros, &zeros, device)?;
    Ok(logarithms.and(near("atan2", &[da, db].concat(), &[0.0; 4], |_| 0.0)))
}

fn no_probability(device: &Device) -> Result<Outcome> {
    let (input, target) = ([0.5, -1.0, -INF], [-INF, -0.5, -INF]);
    let f = |x: &Tensor, t: &Tensor| x.kl_div(t, KlTarget::Logarithms, Reduction::Sum);
    let [dx, dt] = of_both(f, &input, &target, device)?;
    let p = (-0.5f64).exp();
    let loss = f(&tensor(&input, 3, DType::F32, device)?, &tensor(&target, 3, DType::F32, device)?)?.to_f64_vec()?;
    Ok(near("the loss", &loss, &[0.5 * p], |_| 1e-6)
        .and(near("by the input", &dx, &[0.0, -p, 0.0], |_| 1e-6))
        .and(near("by the target", &dt, &[0.0, 1.5 * p, 0.0], |_| 1e-6)))
}

fn masked_class(device: &Device) -> Result<Outcome> {
    let x = tensor(&[0.0, -INF, 0.0], (1, 3), DType::F32, device)?;
    let target = tensor(&[0.5, 0.0, 0.5], (1, 3), DType::F32, device)?;
    let (loss, dx) = with_gradient(&x, &[1.0], |x| x.cross_entropy(&target))?;
    Ok(near("the loss", &loss, &[2f64.ln()], |_| 1e-6).and(near("the gradient", &dx, &[0.0; 3], |_| 1e-6)))
}

fn curvature(device: &Device) -> Result<Outcome> {
    let functions: [(&str, Function); 3] =
        [("l2_norm", |x| x.l2_norm(-1)), ("norm", |x| x.norm(2.0, -1)), ("hypot", |x| x.hypot(x))];
    all(functions.map(|(name, f)| {
        let x = tensor(&[0.0; 3], 3, DType::F32, device)?.require_grad()?;
        let options = BackwardOptions { create_graph: true, ..Default::default() };
        let slope = grad_with(&f(&x)?.sum(..)?, &[&x], &options)?.swap_remove(0);
        // A gradient penalty.
        slope.square()?.sum(..)?.add(&slope.sum(..)?)?.backward()?;
        let second = x.grad().map_or(Ok(Vec::new()), |g| g.to_f64_vec())?;
        Ok(near(name, &second, &[0.0; 3], |_| 0.0))
    }))
}

fn infinite_variance(device: &Device) -> Result<Outcome> {
    all([INF, -INF].map(|v| {
        let x = tensor(&[1.0, 2.0, v, 1.0, 2.0, 4.0], (2, 3), DType::F32, device)?;
        let (y, dx) = with_gradient(&x, &[1.0; 2], |x| x.var(1, 1.0))?;
        let slopes = [NAN, NAN, NAN, -4.0 / 3.0, -1.0 / 3.0, 5.0 / 3.0];
        Ok(near("the variance", &y, &[NAN, 7.0 / 3.0], |_| 1e-5).and(near("the gradient", &dx, &slopes, |_| 1e-5)))
    }))
}

/// Factors whose product is in range, and the products of all before and after each.
fn factors(n: usize) -> Vec<f64> {
    (0..n).map(|i| [1e30, 1e25, 1e-30, 1e-25][i * 4 / n]).chain([2.0]).collect()
}

fn products(device: &Device) -> Result<Outcome> {
    let of_few = [1e30, 1e30, 1e-30, 1e-30, 2.0];
    let x = tensor(&of_few, 5, DType::F32, device)?;
    let (y, dx) = with_gradient(&x, &[1.0], |x| x.prod(-1))?;
    let few = near("few", &y, &[2.0], |_| 1e-5).and(near_largest("few", &dx[2..4], &[2e30; 2], 1, 1e-5));
    let many = all([4, 400, 8000].map(|n| {
        let row = factors(n);
        let rows = tensor(&row.repeat(3), (3, n + 1), DType::F32, device)?;
        let columns = rows.t()?.copy()?;
        let found = [rows.prod(1)?, columns.prod(0)?, rows.narrow(0, 0, 1)?.prod(..)?.reshape(1)?];
        let found = Tensor::concat(&found.iter().collect::<Vec<_>>(), 0)?.to_f64_vec()?;
        Ok(near(&format!("{n} factors"), &found, &[2.0; 7], |_| 1e-5 * n as f64))
    }))?;
    let special = [[INF, 0.0, 1.0], [NAN, 1.0, 1.0], [INF, -2.0, 1.0], [1e30, 1e30, 0.0]].concat();
    let y = tensor(&special, (4, 3), DType::F32, device)?.prod(1)?.to_f64_vec()?;
    Ok(few.and(many).and(near("special values", &y, &[NAN, NAN, -INF, 0.0], |_| 0.0)))
}

fn running_products(device: &Device) -> Result<Outcome> {
    let run = |x: &[f64], expected: &[f64]| {
        let x = tensor(x, x.len(), DType::F32, device)?;
        let y = x.cumprod(0)?.to_f64_vec()?;
        Ok(near(&format!("{expected:?}"), &y, expected, |i| 1e-5 * expected[i].abs()))
    };
    let in_and_out = run(&[1e20, 1e20, 0.0, 5.0], &[1e20, INF, 0.0, 0.0]);
    let back = run(&[1e30, 1e30, 1e-30, 1e-30, 2.0], &[1e30, INF, 1e30, 1.0, 2.0]);
    let small = run(&[1e-30, 1e-30, 1e30, 1e30], &[1e-30, 0.0, 1e-30, 1.0]);
    let integers = Tensor::from_slice(&[2i32, 3, -4, 0, 5], 5, device)?;
    let options = ScanOptions { reverse: true, ..Default::default() };
    let whole = equal("integers", integers.cumprod(0)?.to_vec::<i64>()?, vec![2, 6, -24, 0, 0]).and(equal(
        "reversed",
        integers.cumprod_with(0, &options)?.to_vec::<i64>()?,
        vec![0, 0, 0, 0, 5],
    ));
    all([in_and_out, back, small, Ok(whole)])
}

/// A number that elements are compared with is rounded as they are.
fn scalars(device: &Device) -> Result<Outcome> {
    all([DType::F16, DType::BF16, DType::F32].map(|dtype| {
        let x = tensor(&[0.1], 1, dtype, device)?;
        let compared = [x.eq_scalar(0.1)?, x.ge_scalar(0.1)?, x.le_scalar(0.1)?]
            .iter()
            .chain([x.ne_scalar(0.1)?, x.gt_scalar(0.1)?, x.lt_scalar(0.1)?].iter())
            .map(|y| Ok(y.to_vec::<bool>()?[0]))
            .collect::<Result<Vec<_>>>()?;
        let slope = |f: Function| with_gradient(&x, &[1.0], f).map(|(_, dx)| dx);
        let clamped = slope(|x| x.clamp(None, Some(0.1.into())))?;
        let within = slope(|x| x.hardtanh(0.1, 0.2))?;
        let above = slope(|x| x.threshold(0.1, -5.0))?;
        Ok(equal(&format!("comparisons in {dtype}"), compared, vec![true, true, true, false, false, false]).and(equal(
            &format!("slopes in {dtype}"),
            [clamped, within, above].concat(),
            vec![1.0, 0.0, 0.0],
        )))
    }))
}

/// Scores so far apart that one key has all the weight, and queries with one key.
fn one_key(device: &Device) -> Result<Outcome> {
    let (t, d) = (40, 24);
    let spread: Vec<f64> = (0..t * d).map(|i| 100.0 * ((i * i % 8191) as f64 * 0.37).sin()).collect();
    let leaf = |v: &[f64]| tensor(v, (1, 1, t, d), DType::F32, device)?.require_grad();
    let causal = Attention { causal: Causal::TopLeft, ..Attention::default() };
    let (q, k, v) = (leaf(&spread)?, leaf(&spread)?, leaf(&numbers(t * d))?);
    let gradient = tensor(&numbers(t * d + 7)[7..], (1, 1, t, d), DType::F32, device)?;
    let weights = q.matmul(&k.t()?)?.mul_scalar(1.0 / (d as f64).sqrt())?.softmax(-1)?.to_f64_vec()?;
    let is_one = |row: usize| weights[row * t..][..t].iter().all(|w| *w == 0.0 || *w == 1.0);
    let o = q.scaled_dot_product_attention(&k, &v, &Attention::default())?;
    let options = BackwardOptions { gradient: Some(gradient.clone()), ..Default::default() };
    let dq = grad_with(&o, &[&q], &options)?[0].to_f64_vec()?;
    let rows: Vec<usize> = (0..t).filter(|&row| is_one(row)).collect();
    let worst = rows.iter().flat_map(|row| &dq[row * d..][..d]).fold(0.0, |most: f64, v| most.max(v.abs()));
    let o = q.scaled_dot_product_attention(&k, &v, &causal)?;
    let of_first =
        grad_with(&o, &[&q], &BackwardOptions { gradient: Some(gradient), ..Default::default() })?[0].to_f64_vec()?;
    Ok(expect(rows.len() > t / 2, format!("{} rows have one weight", rows.len()))
        .and(equal("gradients of rows with one weight", worst, 0.0))
        .and(equal("gradients of a row with one key", of_first[..d].to_vec(), vec![0.0; d])))
}

fn alignment(device: &Device, zero_infinity: bool) -> Result<(Vec<f64>, Vec<f64>)> {
    let x = tensor(&numbers(3 * 2 * 4), (3, 2, 4), DType::F32, device)?.log_softmax(-1)?;
    // Two equal labels need a blank between them: three labels do not fit three frames.
    let labels = Tensor::from_slice(&[1i64, 1, 2, 1, 2, 0], (2, 3), device)?;
    let (frames, count) = (Tensor::from_slice(&[3i64, 3], 2, device)?, Tensor::from_slice(&[3i64, 2], 2, device)?);
    let options = Ctc { zero_infinity, reduction: Reduction::None, ..Ctc::default() };
    with_gradient(&x, &[1.0; 2], |x| x.ctc_loss(&labels, &frames, &count, &options))
}

fn no_alignment(device: &Device) -> Result<Outcome> {
    let (loss, dx) = alignment(device, false)?;
    let (zero, none) = alignment(device, true)?;
    let of = |dx: &[f64], sequence: usize| -> Vec<f64> {
        (0..3).flat_map(|t| dx[(t * 2 + sequence) * 4..][..3].to_vec()).collect()
    };
    Ok(expect(loss[0] == INF && loss[1].is_finite(), format!("the losses are {loss:?}"))
        .and(near("the gradient without an alignment", &of(&dx, 0), &[NAN; 9], |_| 0.0))
        .and(expect(of(&dx, 1).iter().all(|v| v.is_finite()), format!("the gradient of the other: {dx:?}")))
        .and(equal("a loss that counts as 0", zero[0], 0.0))
        .and(near("its gradient", &of(&none, 0), &[0.0; 9], |_| 0.0)))
}

/// No share of alignments is above 1, and those of a frame add up to 1.
fn many_frames(device: &Device) -> Result<Outcome> {
    let (t, labels, classes) = (1500, 100, 30);
    let x = tensor(&numbers(t * classes), (t, 1, classes), DType::F32, device)?.mul_scalar(3.0)?.log_softmax(-1)?;
    let targets = (0..labels).map(|i| 1 + (i * 7 % 29) as i64).collect::<Vec<_>>();
    let run = |x: &Tensor| {
        let device = x.device();
        let targets = Tensor::from_slice(&targets, (1, labels), device)?;
        let [frames, count] = [t, labels].map(|n| Tensor::from_slice(&[n as i64], 1, device));
        let options = Ctc { reduction: Reduction::Sum, ..Ctc::default() };
        with_gradient(x, &[1.0], |x| x.ctc_loss(&targets, &frames?, &count?, &options))
    };
    let (loss, dx) = run(&x)?;
    let (exact_loss, exact) = run(&x.to_device(&cpu())?.cast(DType::F64)?)?;
    let sums: Vec<f64> = dx.chunks(classes).map(|frame| frame.iter().sum()).collect();
    Ok(near("the loss", &loss, &exact_loss, |_| 1e-5 * exact_loss[0].abs())
        .and(near("the gradient", &dx, &exact, |_| 2e-5))
        .and(near("the sums of frames", &sums, &vec![-1.0; t], |_| 2e-5)))
}

/// Functions that do not depend on the choice of vectors of equal values.
fn equal_values(device: &Device) -> Result<Outcome> {
    let restored = |x: &Tensor| -> Result<Tensor> {
        let (u, s, vh) = svd(x)?;
        u.matmul(&s.diag_embed(0)?)?.matmul(&vh)?.square()?.sum(..)
    };
    let exponential = |x: &Tensor| -> Result<Tensor> {
        let (w, v) = eigh(x)?;
        v.matmul(&w.exp()?.diag_embed(0)?)?.matmul(&v.t()?)?.square()?.sum(..)
    };
    let matrices: [(&[f64], [usize; 2]); 5] = [
        (&[1.0, 0.0, 0.0, 1.0], [2, 2]),
        (&[0.0; 4], [2, 2]),
        (&[1.0, 1.0, 1.0, 1.0], [2, 2]),
        (&[1.0, 0.0, 0.0, 1.0, 0.0, 0.0], [3, 2]),
        (&[1.0, 2.0, 3.0, 2.0, 4.0, 6.0], [2, 3]),
    ];
    let dtypes = supported(device, &[DType::F32, DType::F64])?;
    let of_svd = all(matrices.iter().flat_map(|m| dtypes.iter().map(move |dtype| (m, *dtype))).map(
        |((values, shape), dtype)| {
            let dx = with_gradient(&tensor(values, *shape, dtype, device)?, &[1.0], restored)?.1;
            // The function is the sum of squares.
            let expected: Vec<f64> = values.iter().map(|v| 2.0 * v).collect();
            Ok(near(&format!("svd of {values:?} in {dtype}"), &dx, &expected, |_| 1e-4))
        },
    ))?;
    let identity = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
    let of_eigh = all(dtypes.iter().map(|&dtype| {
        let dx = with_gradient(&tensor(&identity, (3, 3), dtype, device)?, &[1.0], exponential)?.1;
        let expected = identity.map(|v| 2.0 * 2f64.exp() * v);
        Ok(near(&format!("the norm of an exponential in {dtype}"), &dx, &expected, |_| 1e-4))
    }))?;
    let chosen = with_gradient(&tensor(&identity, (3, 3), DType::F32, device)?, &[1.0], |x| {
        let (_, v) = eigh(x)?;
        v.select(1, 0)?.mul(&tensor(&[1.0, 2.0, 3.0], 3, DType::F32, x.device())?)?.sum(..)
    })?;
    let is_said = expect(chosen.1.iter().any(|v| v.is_nan()), format!("a function of one vector: {:?}", chosen.1));
    Ok(of_svd.and(of_eigh).and(is_said))
}

/// An index and a class have one kind of error, with a gradient and without.
fn wrong_class(device: &Device) -> Result<Outcome> {
    let checked = device.clone();
    let x = tensor(&numbers(12), (4, 3), DType::F32, device)?.log_softmax(1)?;
    let target = Tensor::from_slice(&[0i64, 1, 7, 2], 4, device)?;
    let run = |x: &Tensor, f: &dyn Fn(&Tensor) -> Result<Tensor>| -> Result<Tensor> {
        let y = f(x)?;
        if y.requires_grad() {
            y.sum(..)?.backward()?;
        }
        checked.synchronize()?;
        Ok(y)
    };
    let calls: [Of<'_>; 3] = [
        ("cross_entropy", &|x| x.cross_entropy(&target)),
        ("nll_loss", &|x| x.nll_loss(&target, &CrossEntropy::default())),
        ("embedding", &|x| x.embedding(&target, &EmbeddingOptions::default())),
    ];
    all(calls.iter().flat_map(|call| [x.detach(), x.require_grad().unwrap_or(x.clone())].map(|x| (call, x))).map(
        |((op, f), x)| {
            let is_wrong = run(&x, f);
            let named = match &is_wrong {
                Err(e) => equal("the op", e.op().to_string(), op.to_string()),
                Ok(_) => Ok(()),
            };
            Ok(refused(op, is_wrong, Kind::Index, "7").and(named))
        },
    ))
}

/// An index that a device reports after the call is of the op that was called, not of a part of it, nor of the op that waits.
fn late_errors(device: &Device) -> Result<Outcome> {
    let device = private(device);
    device.set_checks(Checks::Later);
    let x = tensor(&numbers(12), (4, 3), DType::F32, &device)?;
    let index = Tensor::from_slice(&[0i64, 99], 2, &device)?;
    let labels = Tensor::from_slice(&[1i64, 99], (1, 2), &device)?;
    let [frames, count] = [3i64, 2].map(|n| Tensor::from_slice(&[n], 1, &device));
    let (frames, count) = (frames?, count?);
    let calls: [Call<'_>; 6] = [
        ("take", &|| x.take(&index)),
        ("index_select", &|| x.index_select(0, &index)),
        ("embedding", &|| x.embedding(&index, &EmbeddingOptions::default())),
        ("index_fill", &|| x.index_fill(0, &index, 1.0)),
        ("scatter_sum", &|| x.narrow(0, 0, 2)?.scatter_sum(&index, Some(3))),
        ("ctc_loss", &|| x.reshape((4, 1, 3))?.ctc_loss(&labels, &frames, &count, &Ctc::default())),
    ];
    all(calls.iter().map(|(op, f)| {
        let late = f().and_then(|y| y.norm(3.0, ..)?.item::<f64>());
        Ok(match late {
            Ok(v) => Err(format!("{op} gave {v}")),
            Err(e) => equal(&e.to_string(), (e.op().to_string(), e.kind()), (op.to_string(), Kind::Index)),
        })
    }))
}
