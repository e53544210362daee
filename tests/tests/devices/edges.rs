//! Trials that are no rows or cases of the registry. A case compares one call with PyTorch, in f64, or with the CPU; the trials here compare
//! several calls, ops of one name with ops of another, exact results in narrow dtypes (`huber_loss`, `scatter_add`, `pow`, `prod`), rows
//! that are longer than cases (`sort`, `nonzero`), the bits of draws, indices that a case cannot write (`index`), and what a closure or the tape sees.

use isograd::ops::loss::Reduction;
use isograd::ops::reduction::reduce::{LONGEST_PRODUCT, ProdBackward};
use isograd::ops::{
    Activation, Approximate, EmbeddingOptions, GemmBias, GridEnds, GridMode, GridPadding, GridSample, Index, Order,
    Put, Replacement,
};
use isograd::tape::{BackwardOptions, grad, grad_with};
use isograd::{DType, Device, Error, Kind, Result, Rng, Tensor, autocast, no_grad};
use isograd_tests::harness::{self, Outcome, equal, refused};
use libtest_mimic::Trial;
use std::any::TypeId;

pub fn trials(device: &Device) -> Vec<Trial> {
    let check = |op, aspect, run| harness::check(device, op, aspect, run);
    vec![
        check("huber_loss", "infinite_delta", infinite_delta),
        check("cross_entropy", "second_derivatives_one_after_the_other", second_derivatives),
        check("embedding_rmsnorm", "dtype_of_gamma", dtype_of_gamma),
        check("embedding_rmsnorm", "autocast", normalised_in_f32),
        check("global_avg_pool3d", "adaptive", global_pools),
        check("index_put_", "what_is_changed", index_put_in_place),
        check("index", "positions_and_ranges", positions_and_ranges),
        check("nonzero", "ranks", nonzero),
        check("scatter_add", "special_values", special_sums),
        check("sort", "long_rows_of_few_values", few_values),
        check("grid_sample", "points_that_are_not_finite", nowhere),
        check("multinomial", "frequencies", frequencies),
        check("randperm", "each_number_once", permutation),
        check("randint", "range", whole_numbers),
        check("bernoulli_each", "certain_and_impossible", certain),
        check("pow", "special_values", special_powers),
        check("add_scalar", "numbers_of_arithmetic_are_not_rounded", wide_scalars),
        check("clamp", "numbers_that_elements_are_compared_with_are_rounded", rounded_scalars),
        check("prod", "gradient", gradient_of_products),
        check("linear", "gradients_of_activations_before_it", before_products),
        check("linear", "who_else_asks_for_the_gradient", seen_before_products),
    ]
}

/// 16-bit elements are computed with a number of f32.
fn wide_scalars(device: &Device) -> Result<Outcome> {
    type Run = fn(&Tensor, f64) -> Result<Tensor>;
    type Exact = fn(f64, f64) -> f64;
    let ops: [(&str, Run, Exact); 8] = [
        ("add_scalar", |x, s| x.add_scalar(s), |x, s| x + s),
        ("sub_scalar", |x, s| x.sub_scalar(s), |x, s| x - s),
        ("rsub_scalar", |x, s| x.rsub_scalar(s), |x, s| s - x),
        ("mul_scalar", |x, s| x.mul_scalar(s), |x, s| x * s),
        ("div_scalar", |x, s| x.div_scalar(s), |x, s| x / s),
        ("rdiv_scalar", |x, s| x.rdiv_scalar(s), |x, s| s / x),
        ("pow_scalar", |x, s| x.pow_scalar(s), f64::powf),
        ("rpow_scalar", |x, s| x.rpow_scalar(s), |x, s| s.powf(x)),
    ];
    for dtype in [DType::F16, DType::BF16] {
        let of = |values: &[f64]| {
            let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
            Tensor::from_slice(&values, values.len(), device)?.cast(dtype)
        };
        // In bf16 this is 1, in f16 1.00390625.
        let s = 1.0038;
        let rounded = of(&[s])?.to_f64_vec()?[0];
        let xs = of(&(1..=64).map(|i| f64::from(i) * 0.0613).collect::<Vec<_>>())?.to_f64_vec()?;
        for (name, run, expected) in ops {
            let found = run(&of(&xs)?, s)?.to_f64_vec()?;
            let with = |s: f64| of(&xs.iter().map(|&x| expected(x, s)).collect::<Vec<_>>())?.to_f64_vec();
            if with(s)? == with(rounded)? {
                return Ok(Err(format!("{name} {dtype}: the numbers do not tell both apart")));
            }
            let outcome = equal(&format!("{name} {dtype}"), found, with(s)?);
            if outcome.is_err() {
                return Ok(outcome);
            }
        }
    }
    Ok(Ok(()))
}

/// 0.1 in bf16 is larger than 0.1, so that it is equal only to a bound that is rounded.
fn rounded_scalars(device: &Device) -> Result<Outcome> {
    let s = 0.1;
    let run = |f: fn(&Tensor, f64) -> Result<Tensor>| {
        let x = Tensor::scalar(s as f32, device)?.cast(DType::BF16)?.require_grad()?;
        let y = f(&x, s)?;
        y.backward()?;
        let dx = x.grad().map_or(Ok(f64::NAN), |g| Ok::<_, Error>(g.to_f64_vec()?[0]))?;
        Ok::<_, Error>([y.to_f64_vec()?[0] / x.to_f64_vec()?[0], dx])
    };
    let found = [
        run(|x, s| x.clamp(None, Some(s.into())))?,
        run(|x, s| x.hardtanh(s, 1.0))?,
        run(|x, s| x.threshold(s, 0.0))?,
        run(|x, s| x.softshrink(s))?,
        run(|x, s| x.hardshrink(s))?,
    ];
    let expected = [[1.0, 1.0], [1.0, 0.0], [0.0; 2], [0.0; 2], [0.0; 2]];
    Ok(equal("shares and slopes", found.concat(), expected.concat()))
}

/// A position drops its dimension, and is written like a range.
fn positions_and_ranges(device: &Device) -> Result<Outcome> {
    let x = Tensor::arange(24, device)?.reshape((2, 3, 4))?;
    let rows = Tensor::from_slice(&[2i64, 0], 2, device)?;
    let found = [x.i((1, .., 1..3))?, x.i((.., -1, 2..))?, x.i((0, &rows, ..=1))?, x.i((0, 1, 3))?, x.i((.., ..1))?];
    let shapes: Vec<&[usize]> = found.iter().map(Tensor::dims).collect();
    let expected: [&[usize]; 5] = [&[3, 2], &[2, 2], &[2, 2], &[], &[2, 1, 4]];
    if shapes != expected {
        return Ok(Err(format!("shapes {shapes:?}, expected {expected:?}")));
    }
    let values = found.iter().map(Tensor::to_f64_vec).collect::<Result<Vec<_>>>()?.concat();
    let of_numbers = [13, 14, 17, 18, 21, 22, 10, 11, 22, 23, 8, 9, 0, 1, 7, 0, 1, 2, 3, 12, 13, 14, 15];
    let outcome = equal("elements", values, of_numbers.map(f64::from).to_vec());
    let put = x.index_put(&[Index::At(1), (..).into(), Index::At(-1)], &Tensor::scalar(-1i64, device)?, Put::Assign)?;
    let written = put.to_f64_vec()?.iter().enumerate().filter(|(_, v)| **v < 0.0).map(|(i, _)| i as f64).collect();
    let is_refused = [x.i((2,)), x.i((0, 0, 0, 0)), x.i((.., 0, -5))].into_iter().all(|y| y.is_err());
    let refusals = if is_refused { Ok(()) } else { Err("positions that are not there are accepted".into()) };
    Ok(outcome.and(equal("written", written, vec![15.0, 19.0, 23.0])).and(refusals))
}

fn infinite_delta(device: &Device) -> Result<Outcome> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for delta in [f64::INFINITY, f64::MAX, 1e39, 1e38, 1e30] {
            for (reduction, count) in [(Reduction::None, 1.0), (Reduction::Sum, 1.0), (Reduction::Mean, 4.0)] {
                let a = Tensor::from_slice(&[0.0f32, -2.0, 0.5, 8.0], 4, device)?.cast(dtype)?.require_grad()?;
                let t = Tensor::ones(4, dtype, device)?;
                let loss = a.huber_loss(&t, delta, reduction)?;
                loss.sum(..)?.backward()?;
                let losses = [0.5, 4.5, 0.125, 24.5];
                let expected = match reduction {
                    Reduction::None => losses.to_vec(),
                    _ => vec![(losses.iter().sum::<f64>() / count)],
                };
                // 29.625 has more bits than bf16.
                let rounded = Tensor::from_slice(&expected, expected.len(), &isograd_tests::cpu())?.cast(dtype)?;
                let slopes: Vec<f64> = [-1.0, -3.0, -0.5, 7.0].iter().map(|d| d / count).collect();
                let gradient = a.grad().map_or(Ok(Vec::new()), |g| g.to_f64_vec())?;
                let what = format!("{dtype}, delta {delta}, {reduction:?}");
                let outcome = equal(&what, loss.to_f64_vec()?, rounded.to_f64_vec()?);
                if let Err(e) = outcome.and(equal(&what, gradient, slopes)) {
                    return Ok(Err(e));
                }
            }
        }
    }
    Ok(Ok(()))
}

/// Of the gradients of logits and of probabilities each is differentiated by a pass of its own. Neither needs what the other
/// has spent, on any device.
fn second_derivatives(device: &Device) -> Result<Outcome> {
    let leaf = |values: &[f32]| Tensor::from_slice(values, (2, 3), device)?.require_grad();
    let (x, t) = (leaf(&[0.5, -1.0, 2.0, 0.1, 0.7, -0.3])?, leaf(&[0.2, 0.3, 0.5, 0.6, 0.3, 0.1])?);
    let slopes = || {
        let loss = x.cross_entropy(&t)?;
        let options = BackwardOptions { create_graph: true, ..Default::default() };
        grad_with(&loss, &[&x, &t], &options)
    };
    let derivative = |slope: &Tensor| grad(&slope.square()?.sum(..)?, &[&x])?[0].to_f64_vec();
    let found = slopes()?;
    let forward = [derivative(&found[0])?, derivative(&found[1])?];
    let found = slopes()?;
    let [second, first] = [derivative(&found[1])?, derivative(&found[0])?];
    Ok(equal("in either order", [first, second], forward))
}

fn dtype_of_gamma(device: &Device) -> Result<Outcome> {
    let index = Tensor::zeros(2, DType::I64, device)?;
    let norm = |table: DType, gamma: DType| {
        let gamma = Tensor::ones(4, gamma, device)?;
        Tensor::ones((3, 4), table, device)?.embedding_rmsnorm(&index, Some(&gamma), 1e-6)
    };
    let accepted = [(DType::F32, DType::F32), (DType::F16, DType::F16), (DType::F16, DType::F32)];
    for (table, gamma) in accepted {
        let y = norm(table, gamma)?;
        if let Err(e) = equal("the dtype", y.dtype(), table) {
            return Ok(Err(e));
        }
    }
    for (table, gamma) in [(DType::F32, DType::F16), (DType::F16, DType::BF16), (DType::F32, DType::I64)] {
        let outcome = refused("gamma", norm(table, gamma), Kind::Dtype, "gamma must have the dtype");
        if outcome.is_err() {
            return Ok(outcome);
        }
    }
    Ok(Ok(()))
}

fn normalised_in_f32(device: &Device) -> Result<Outcome> {
    let table = Tensor::from_vec((1..13).map(|v| v as f32 / 8.0).collect(), (3, 4), device)?
        .cast(DType::BF16)?
        .require_grad()?;
    let gamma = table.detach().select(0, 1)?.copy()?.require_grad()?;
    let index = Tensor::from_slice(&[2i64, 0, 2], 3, device)?;
    let run = |norm: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>| {
        let y = autocast(DType::BF16, || norm(&table, &index, &gamma))?;
        y.square()?.sum(..)?.backward()?;
        let mut all = vec![y.to_f64_vec()?];
        for x in [&table, &gamma] {
            all.push(x.grad().map_or(Ok(Vec::new()), |g| g.to_f64_vec())?);
            x.set_grad(None)?;
        }
        Ok((y.dtype(), all))
    };
    let at_once = run(|table, index, gamma| table.embedding_rmsnorm(index, Some(gamma), 1e-6))?;
    let apart = run(|table, index, gamma| {
        table.embedding(index, &EmbeddingOptions::default())?.rms_norm(1, Some(gamma), 1e-6)
    })?;
    Ok(equal("the dtype", at_once.0, DType::F32).and(equal("values and gradients", at_once, apart)))
}

fn global_pools(device: &Device) -> Result<Outcome> {
    let values: Vec<f32> = (0..2 * 3 * 60).map(|v| (v * 7 % 61) as f32).collect();
    for shape in [vec![2, 3, 3, 4, 5], vec![6, 5, 3, 4]] {
        let x = Tensor::from_slice(&values, shape, device)?.require_grad()?;
        let bits = |y: &Tensor| -> Result<(Vec<usize>, Vec<f64>, Vec<f64>)> {
            y.square()?.sum(..)?.backward()?;
            let gradient = x.grad().map_or(Ok(Vec::new()), |g| g.to_f64_vec())?;
            x.set_grad(None)?;
            Ok((y.dims().to_vec(), y.to_f64_vec()?, gradient))
        };
        let (largest, at) = x.global_max_pool3d_with_indices()?;
        let (expected, expected_at) = x.adaptive_max_pool3d_with_indices([1; 3])?;
        let outcome = equal("averages", bits(&x.global_avg_pool3d()?)?, bits(&x.adaptive_avg_pool3d([1; 3])?)?)
            .and(equal("maxima", bits(&x.global_max_pool3d()?)?, bits(&x.adaptive_max_pool3d([1; 3])?)?))
            .and(equal("maxima with positions", bits(&largest)?, bits(&expected)?))
            .and(equal("positions", at.to_vec::<i64>()?, expected_at.to_vec::<i64>()?));
        if outcome.is_err() {
            return Ok(outcome);
        }
    }
    let flat = Tensor::ones((2, 3, 4), DType::F32, device)?;
    Ok(refused("rank 3", flat.global_avg_pool3d(), Kind::Shape, "has 3 dimensions, expected 4 or 5"))
}

/// Powers of numbers that C's `pow` names, and others, alike in all dtypes: a sign, an infinity or NaN where f64 has one.
fn special_powers(device: &Device) -> Result<Outcome> {
    let special = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 7.0, 60.0, 160.0, f64::INFINITY];
    let special: Vec<f64> = special.iter().flat_map(|&v| [v, -v]).chain([f64::NAN]).collect();
    let (n, cpu) = (special.len(), Device::cpu()?);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x = Tensor::from_slice(&special, (n, 1), &cpu)?.cast(dtype)?.to_device(device)?;
        let y = x.reshape((1, n))?;
        let powers = x.pow(&y)?.to_f64_vec()?;
        for (i, got) in powers.into_iter().enumerate() {
            let (base, exponent) = (special[i / n], special[i % n]);
            // What is out of range becomes infinite or 0 on the way to the dtype.
            let power = base.powf(exponent);
            let exact = Tensor::from_slice(&[power], 1, &cpu)?.cast(dtype)?.to_f64_vec()?[0];
            let is_close = (got - exact).abs() <= 0.01 * exact.abs() || got == exact;
            let has_sign = got.is_nan() || got.is_sign_negative() == exact.is_sign_negative();
            if !(got.is_nan() && exact.is_nan() || is_close && has_sign) {
                return Ok(Err(format!("{dtype}: {base}^{exponent} is {got}, expected {exact}")));
            }
        }
    }
    Ok(Ok(()))
}

/// Powers of 2, which every order of factors multiplies exactly, with zeros, and with products on the way that leave the range.
fn gradient_of_products(device: &Device) -> Result<Outcome> {
    let gradient = |x: &Tensor, dy: &[f64]| -> Result<Vec<f64>> {
        let (x, dy) = (x.to_device(device)?.require_grad()?, Tensor::from_slice(dy, dy.len(), &isograd_tests::cpu())?);
        let dy = Some(dy.cast(x.dtype())?.to_device(device)?);
        x.prod(-1)?.backward_with(&BackwardOptions { gradient: dy, ..Default::default() })?;
        x.grad().map_or(Ok(Vec::new()), |g| g.to_f64_vec())
    };
    let dy = [0.5, 1.0, -2.0];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for n in [1, 7, 1000, 1024, 4096, 5000, 8192, 20_000] {
            let is_one_kernel =
                device.backend().supports(TypeId::of::<ProdBackward>(), dtype) && 4 * n <= LONGEST_PRODUCT;
            let power = |i: usize| match i {
                _ if n < 24 || !is_one_kernel => i as i32 % 3 - 1,
                0..12 => 12,
                _ if i >= n - 12 => -12,
                _ => i as i32 % 3 - 1,
            };
            let factor = |i: usize| if i % 5 == 4 { -2f64.powi(power(i)) } else { 2f64.powi(power(i)) };
            let (all, sign): (i32, f64) = ((0..n).map(power).sum(), (0..n).map(|i| factor(i).signum()).product());
            for zeros in [&[][..], &[0], &[n / 2], &[n - 1, 0]] {
                let row: Vec<f64> = (0..n).map(|i| if zeros.contains(&i) { 0.0 } else { factor(i) }).collect();
                let x = Tensor::from_vec(row.repeat(dy.len()), (dy.len(), n), &isograd_tests::cpu())?.cast(dtype)?;
                let others = |i: usize| match zeros.iter().any(|&zero| zero != i) {
                    true => 0.0,
                    false => sign * factor(i).signum() * 2f64.powi(all - power(i)),
                };
                let expected: Vec<f64> = dy.iter().flat_map(|dy| (0..n).map(move |i| dy * others(i))).collect();
                if gradient(&x, &dy)? != expected {
                    return Ok(Err(format!("{dtype}, rows of {n} with zeros at {zeros:?}")));
                }
            }
        }
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let rows = [2.0, inf, 0.5, 1.0, 2.0, inf, 0.0, 1.0, nan, -1.0, 1.0, 1.0];
        let x = Tensor::from_slice(&rows, (3, 4), &isograd_tests::cpu())?.cast(dtype)?;
        let expected = [inf, 0.5, inf, inf, nan, 0.0, inf, nan, 2.0, nan, nan, nan];
        // NaN is not equal to itself.
        let outcome = equal("special values", format!("{:?}", gradient(&x, &dy)?), format!("{expected:?}"));
        if outcome.is_err() {
            return Ok(outcome);
        }
    }
    Ok(Ok(()))
}

/// Positions count up in row-major order, and those of all elements are all; of nothing there are none. The last masks are
/// counted in parts.
fn nonzero(device: &Device) -> Result<Outcome> {
    let masks: [fn(usize) -> bool; 5] = [|_| true, |_| false, |i| i >= 3, |i| i != 5, |i| i * i % 7 == 4];
    let small = [&[][..], &[0], &[3, 0], &[0, 3], &[7], &[3, 5], &[2, 3, 4], &[2, 1, 3, 2]];
    for dims in small.into_iter().chain([&[100_003][..], &[3, 70, 301]]) {
        let n: usize = dims.iter().product();
        for is_set in masks {
            let mask = Tensor::from_vec((0..n).map(is_set).collect::<Vec<bool>>(), dims.to_vec(), device)?;
            let mut views = vec![mask.permute(&(0..dims.len() as isize).rev().collect::<Vec<_>>())?];
            if let Some(&extent) = dims.last() {
                views.push(mask.slice(-1, extent.min(1), extent, 2)?);
            }
            views.push(mask);
            let outcome = views.iter().try_fold(Ok(()), |so_far, mask| Ok(so_far.and(positions(mask)?)))?;
            if outcome.is_err() {
                return Ok(outcome);
            }
        }
    }
    Ok(Ok(()))
}

fn positions(mask: &Tensor) -> Result<Outcome> {
    let (dims, set) = (mask.dims(), mask.to_vec::<bool>()?);
    let found = mask.nonzero()?.iter().map(Tensor::to_vec::<i64>).collect::<Result<Vec<_>>>()?;
    let place = |d: usize, i: usize| (i / dims[d + 1..].iter().product::<usize>() % dims[d]) as i64;
    let of = |d: usize| (0..set.len()).filter(|&i| set[i]).map(|i| place(d, i)).collect::<Vec<_>>();
    let is_so = found.iter().enumerate().all(|(d, at)| *at == of(d));
    Ok(equal(&format!("positions in {}", mask.shape()), (found.len(), is_so), (dims.len(), true)))
}

fn index_put_in_place(device: &Device) -> Result<Outcome> {
    let base = || Tensor::from_vec((0..12).map(|v| v as f32).collect(), (3, 4), device);
    let places = Tensor::from_slice(&[2i64, 0, -1], 3, device)?;
    let mask = base()?.gt_scalar(6.5)?;
    let (rows, columns) = (Index::from(&places), [Index::from(..), Index::from(&places)]);
    let cases: [(&str, &[Index], Tensor); 4] = [
        ("rows", &[rows], Tensor::arange(4, device)?.cast(DType::F32)?),
        ("columns", &columns, Tensor::full((), -3.0, DType::F32, device)?),
        ("a mask", &[Index::from(&mask)], Tensor::full((), 0.5, DType::F32, device)?),
        ("a slice", &[Index::from(1..3)], Tensor::ones((2, 1), DType::F32, device)?),
    ];
    for (what, indices, values) in &cases {
        for put in [Put::Assign, Put::Accumulate] {
            // Contiguous, a view of columns, and a leaf.
            let whole = base()?;
            whole.index_put_(indices, values, put)?;
            let wide = Tensor::zeros((3, 8), DType::F32, device)?;
            let view = wide.slice(1, 0, 8, 2)?;
            view.copy_(&base()?)?;
            view.index_put_(indices, values, put)?;
            let expected = base()?.index_put(indices, values, put)?.to_f64_vec()?;
            let between = wide.slice(1, 1, 8, 2)?.to_f64_vec()?;
            let outcome = equal(what, whole.to_f64_vec()?, expected.clone())
                .and(equal(what, wide.slice(1, 0, 8, 2)?.to_f64_vec()?, expected))
                .and(equal("what lies between", between, vec![0.0; 12]));
            if outcome.is_err() {
                return Ok(outcome);
            }
        }
    }
    // The tape sees that a saved tensor has changed.
    let (x, w) = (base()?, base()?.require_grad()?);
    let y = w.mul(&x)?.sum(..)?;
    x.index_put_(cases[0].1, &cases[0].2, Put::Assign)?;
    let changed = y.backward().is_err_and(|e| e.message().contains("changed"));
    let to_tensor = |result: Result<()>| result.and_then(|()| base());
    let overlap = x.index_put_(cases[0].1, &x.select(0, 0)?, Put::Assign);
    Ok(equal("the version", changed, true)
        .and(refused("a leaf", to_tensor(w.index_put_(cases[0].1, &cases[0].2, Put::Assign)), Kind::Value, "no_grad"))
        .and(refused("shared memory", to_tensor(overlap), Kind::Value, "shares memory")))
}

/// Columns of sums that are infinite, NaN, too large, very small or of nothing: exact in every dtype.
fn special_sums(device: &Device) -> Result<Outcome> {
    const COLUMNS: usize = 16;
    // What is there, and what is added.
    let cases: [(f64, &[f64]); COLUMNS] = [
        (1.0, &[f64::INFINITY, -2.0]),
        (1.0, &[3.0, f64::NEG_INFINITY]),
        (1.0, &[f64::INFINITY, f64::NEG_INFINITY]),
        (1.0, &[f64::NAN, 1.0]),
        (f64::NAN, &[f64::INFINITY, 1.0]),
        (f64::INFINITY, &[-65504.0, -1.0]),
        (f64::INFINITY, &[f64::NEG_INFINITY]),
        (f64::NEG_INFINITY, &[1.0]),
        (65504.0, &[65504.0, -65504.0]),
        (-65504.0, &[-65504.0, 65504.0, 32.0]),
        (5.0, &[2048.0, -2050.0, 0.0078125]),
        (-0.25, &[0.25]),
        (-0.0, &[]),
        (0.0, &[-0.5, -0.25, -0.125]),
        (0.0, &[6.103515625e-05, -3.0517578125e-05]),
        (1024.0, &[-1024.0, -4096.0, 4.0]),
    ];
    // The last of two rows gets everything; the first gets zeros.
    let mut source = vec![0.0; 1100 * COLUMNS];
    for (column, (_, added)) in cases.iter().enumerate() {
        added.iter().enumerate().for_each(|(i, v)| source[(37 * i + 1) * COLUMNS + column] = *v);
    }
    let row = cases.map(|(before, _)| before);
    let index: Vec<i64> = (0..source.len()).map(|i| (source[i] != 0.0) as i64).collect();
    let index = Tensor::from_vec(index, (1100, COLUMNS), device)?;
    for dtype in [DType::F16, DType::F32, DType::F64] {
        let x = Tensor::from_vec([row, row].concat(), (2, COLUMNS), device)?.cast(dtype)?;
        let source = Tensor::from_vec(source.clone(), (1100, COLUMNS), device)?.cast(dtype)?;
        let y = x.scatter_add(0, &index, &source)?.to_f64_vec()?;
        for (column, (before, added)) in cases.iter().enumerate() {
            let expected = [*before, added.iter().sum::<f64>() + before];
            for (got, expected) in [y[column], y[COLUMNS + column]].into_iter().zip(expected) {
                if got != expected && !(got.is_nan() && expected.is_nan()) {
                    return Ok(Err(format!("{dtype}, column {column}: {got:e}, expected {expected:e}")));
                }
            }
        }
    }
    Ok(Ok(()))
}

/// Rows that are merged: equal values keep their order, zeros and NaN their bits.
fn few_values(device: &Device) -> Result<Outcome> {
    let cpu = Device::cpu()?;
    let special = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1.0, -1.0, 0.5, -3.0];
    for length in [2049, 1 << 16, (1 << 16) + 1] {
        let values: Vec<f32> = (0..2 * length).map(|i| special[i * i % 97 % special.len()]).collect();
        for dtype in [DType::BF16, DType::F16, DType::F32] {
            // No cast happens on the device: NaN may come out otherwise there.
            let x = Tensor::from_slice(&values, (2, length), &cpu)?.cast(dtype)?;
            for order in [Order::Ascending, Order::Descending] {
                let sorted = |device: &Device| {
                    let (y, positions) = x.to_device(device)?.sort(1, order)?;
                    let y = y.to_device(&cpu)?.cast(DType::F32)?.to_vec::<f32>()?;
                    let bits: Vec<u32> = y.into_iter().map(f32::to_bits).collect();
                    Ok::<_, isograd::Error>((bits, positions.to_vec::<i64>()?))
                };
                if sorted(device)? != sorted(&cpu)? {
                    return Ok(Err(format!("rows of {length} in {dtype}, {order:?}")));
                }
            }
        }
    }
    Ok(Ok(()))
}

/// Numbers of -2 to 2 in steps of a quarter, of which sums of products are exact.
fn quarters(device: &Device, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| ((i * 7919 + 3 * n) % 17) as f32 / 4.0 - 2.0).collect();
    Tensor::from_slice(&values, shape, device)?.cast(dtype)
}

/// Gradients through an activation and a product behind it, which may be one kernel's work, are those of the CPU.
fn before_products(device: &Device) -> Result<Outcome> {
    type Activate = fn(&Tensor) -> Result<Tensor>;
    const ACTIVATIONS: [(&str, Activate); 8] = [
        ("relu", Tensor::relu),
        ("gelu", |x| x.gelu(Approximate::None)),
        ("gelu_tanh", |x| x.gelu(Approximate::Tanh)),
        ("sigmoid", Tensor::sigmoid),
        ("tanh", Tensor::tanh),
        ("silu", Tensor::silu),
        ("leaky_relu", |x| x.leaky_relu(0.1)),
        ("square", Tensor::square),
    ];
    type Multiply = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
    const PRODUCTS: [(&str, Multiply); 6] = [
        ("linear", |x, w, b| x.linear(&w.t()?, Some(b))),
        ("without a bias", |x, w, _| x.linear(&w.t()?, None)),
        ("matmul", |x, w, _| x.matmul(w)),
        ("batches", |x, w, _| x.matmul(&Tensor::stack(&[w, &w.neg()?], 0)?)),
        ("as the right factor", |x, w, _| w.t()?.matmul(&x.t()?)),
        ("squared", |x, _, _| x.matmul(&x.t()?)),
    ];
    let gelu = GemmBias { activation: Activation::Gelu(Approximate::Tanh), ..Default::default() };
    for dtype in [DType::F32, DType::BF16] {
        for (name, activate) in ACTIVATIONS {
            for (product, multiply) in PRODUCTS {
                let run = |device: &Device| {
                    let x = quarters(device, &[2, 3, 20], dtype)?.require_grad()?;
                    let (w, b) = (
                        quarters(device, &[20, 18], dtype)?.require_grad()?,
                        quarters(device, &[18], dtype)?.require_grad()?,
                    );
                    // A layer before it, whose activation is part of the product, too.
                    let h = activate(&x)?.gemm_bias(&quarters(device, &[20, 20], dtype)?, None, &gelu)?;
                    let loss = multiply(&h, &w, &b)?.add(&multiply(&activate(&x)?, &w, &b)?)?.square()?.sum(..)?;
                    loss.backward()?;
                    let mut all = Vec::new();
                    for t in [&x, &w, &b] {
                        all.extend(t.grad().map_or(Ok(Vec::new()), |g| g.to_f64_vec())?);
                    }
                    Ok(all)
                };
                let (there, here) = (run(device)?, run(&isograd_tests::cpu())?);
                let largest = here.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
                let within = largest * if dtype == DType::F32 { 1e-5 } else { 0.05 };
                let is_near = |a: f64, b: f64| (a - b).abs() <= within;
                let far = there.iter().zip(&here).position(|(a, b)| !is_near(*a, *b));
                if there.len() != here.len() || far.is_some() {
                    return Ok(Err(format!("{dtype}, {name}, {product}, {far:?}: {there:?}, expected {here:?}")));
                }
            }
        }
    }
    Ok(Ok(()))
}

/// Hooks, `grad` and a second pass are given the gradient of an activation's result, not what its own rule makes of that.
fn seen_before_products(device: &Device) -> Result<Outcome> {
    let make = |shape: &[usize]| quarters(device, shape, DType::F32);
    let (x, w) = (make(&[4, 6])?.require_grad()?, make(&[6, 5])?);
    let dh = Tensor::ones((4, 5), DType::F32, device)?.matmul(&w.t()?)?.to_f64_vec()?;
    let dx: Vec<f64> = x.to_f64_vec()?.iter().zip(&dh).map(|(x, d)| if *x > 0.0 { *d } else { 0.0 }).collect();
    let twice = |values: &[f64]| values.iter().map(|v| 2.0 * v).collect::<Vec<_>>();

    let h = x.relu()?;
    let found = grad(&h.matmul(&w)?.sum(..)?, &[&h, &x])?;
    let asked = equal("grad", [found[0].to_f64_vec()?, found[1].to_f64_vec()?], [dh.clone(), dx.clone()]);

    let h = x.relu()?;
    let _hook = h.register_hook(|g| g.mul_scalar(2.0).map(Some))?;
    let hooked = grad(&h.matmul(&w)?.sum(..)?, &[&x])?[0].to_f64_vec()?;
    let hooked = equal("hook", hooked, twice(&dx));

    // Two products, and a sum beside them.
    let h = x.relu()?;
    let y = h.matmul(&w)?.sum(..)?.add(&h.matmul(&w.neg()?)?.sum(..)?)?.add(&h.matmul(&w)?.sum(..)?)?;
    let several = grad(&y.add(&h.mul_scalar(3.0)?.sum(..)?)?, &[&x])?[0].to_f64_vec()?;
    let of_x = x.to_f64_vec()?;
    let plus: Vec<f64> = of_x.iter().zip(&dx).map(|(x, d)| d + if *x > 0.0 { 3.0 } else { 0.0 }).collect();
    let several = equal("several", several, plus);

    let h = x.relu()?;
    let y = h.matmul(&w)?.sum(..)?;
    let options = || BackwardOptions { retain: true, ..Default::default() };
    let first = grad_with(&y, &[&x], &options())?[0].to_f64_vec()?;
    let again = equal("again", [first, grad_with(&y, &[&x], &options())?[0].to_f64_vec()?], [dx.clone(), dx.clone()]);

    // The second derivative of sum((relu(x) w)^2) along ones is 2 w w^T of what is not cut off.
    let y = x.relu()?.matmul(&w)?.square()?.sum(..)?;
    let options = BackwardOptions { create_graph: true, ..Default::default() };
    let slope = grad_with(&y, &[&x], &options)?.swap_remove(0);
    let second = grad(&slope.sum(..)?, &[&x])?[0].to_f64_vec()?;
    let mask = x.gt_scalar(0)?.cast(DType::F32)?;
    let expected = mask.matmul(&w)?.matmul(&w.t()?)?.mul(&mask)?.mul_scalar(2.0)?.to_f64_vec()?;
    let second = equal("second derivative", second, expected);

    let h = x.relu()?;
    let y = h.matmul(&w)?.sum(..)?;
    no_grad(|| h.add_(&h.ones_like()?))?;
    let changed = match grad(&y, &[&x]) {
        Err(e) if e.kind() == Kind::Value && e.message().contains("changed in place") => Ok(()),
        other => Err(format!("changed in place: {other:?}")),
    };
    Ok(asked.and(hooked).and(several).and(again).and(second).and(changed))
}

/// Points that are not finite are outside of the image.
fn nowhere(device: &Device) -> Result<Outcome> {
    let image = Tensor::ones((1, 1, 2, 2), DType::F32, device)?.require_grad()?;
    let grid = [f32::NAN, 0.0, f32::INFINITY, 0.0, 0.0, f32::NEG_INFINITY, 0.0, 0.0];
    let grid = Tensor::from_slice(&grid, (1, 1, 4, 2), device)?;
    let mut outcome: Outcome = Ok(());
    for (padding, expected) in [(GridPadding::Zeros, [0.0, 0.0, 0.0, 1.0]), (GridPadding::Border, [1.0; 4])] {
        for mode in [GridMode::Linear, GridMode::Nearest, GridMode::Cubic] {
            let y = image.grid_sample(&grid, &GridSample { mode, padding, ends: GridEnds::Edges })?;
            // Cubic values of the last point, which is inside, reach beyond the edge.
            let points = if mode == GridMode::Cubic { 3 } else { 4 };
            let found = y.to_vec::<f32>()?;
            outcome = outcome.and(equal(&format!("{padding:?}, {mode:?}"), &found[..points], &expected[..points]));
        }
    }
    Ok(outcome)
}

/// Draws with replacement are as frequent as their weights say, those without are all different; a weight of 0 is never drawn.
fn frequencies(device: &Device) -> Result<Outcome> {
    let (rng, draws) = (Rng::new(5), 4000);
    let weights = Tensor::from_slice(&[1.0f32, 0.0, 3.0, 4.0], (1, 4), device)?;
    let drawn = weights.multinomial(draws, Replacement::Yes, &rng)?.to_vec::<i64>()?;
    let share = |k: i64| drawn.iter().filter(|&&v| v == k).count() as f64 / draws as f64;
    let is_near = (share(0) - 0.125).abs() < 0.03 && (share(2) - 0.375).abs() < 0.03 && share(1) == 0.0;
    let mut first = 0;
    let mut are_different = true;
    for _ in 0..400 {
        let row = weights.multinomial(3, Replacement::No, &rng)?.to_vec::<i64>()?;
        first += usize::from(row[0] == 3);
        let mut sorted = row.clone();
        sorted.sort_unstable();
        are_different &= sorted == [0, 2, 3];
    }
    let is_first = (first as f64 / 400.0 - 0.5).abs() < 0.1;
    let refused = refused("multinomial", weights.multinomial(4, Replacement::No, &rng), Kind::Value, "fewer than 4");
    Ok(equal("shares, distinct, first", &[is_near, are_different, is_first].to_vec(), &vec![true; 3]).and(refused))
}

fn permutation(device: &Device) -> Result<Outcome> {
    let drawn = Tensor::randperm(1000, device, &Rng::new(3))?.to_vec::<i64>()?;
    let mut sorted = drawn.clone();
    sorted.sort_unstable();
    let fixed = drawn.iter().enumerate().filter(|(i, v)| *i as i64 == **v).count();
    Ok(equal("sorted", &sorted, &(0..1000).collect::<Vec<i64>>()).and(equal("is mixed", &(fixed < 10), &true)))
}

fn whole_numbers(device: &Device) -> Result<Outcome> {
    let mut drawn = Tensor::randint(500, -2, 3, device, &Rng::new(3))?.to_vec::<i64>()?;
    drawn.sort_unstable();
    drawn.dedup();
    let wide = Tensor::randint(500, 0, 1 << 46, device, &Rng::new(3))?.to_vec::<i64>()?;
    let is_spread = wide.iter().any(|&v| v > 1 << 45) && wide.iter().any(|&v| v < 1 << 45);
    let refused = refused("randint", Tensor::randint(1, 3, 3, device, &Rng::new(3)), Kind::Attr, "3..3");
    Ok(equal("numbers", &drawn, &vec![-2, -1, 0, 1, 2]).and(equal("spread", &is_spread, &true)).and(refused))
}

fn certain(device: &Device) -> Result<Outcome> {
    let p = Tensor::from_slice(&[0.0f32, 1.0, 0.0, 1.0], 4, device)?;
    let drawn = p.bernoulli_each(&Rng::new(1))?.to_vec::<u8>()?;
    let refused =
        refused("bernoulli_each", p.mul_scalar(2.0)?.bernoulli_each(&Rng::new(1)), Kind::Value, "outside of 0 to 1");
    Ok(equal("draws", &drawn, &vec![0, 1, 0, 1]).and(refused))
}
