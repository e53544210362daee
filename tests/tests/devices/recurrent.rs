//! Recurrent ops over time: what generated cases are too short for.

use isograd::nn::{Init, Lstm, Module, RecurrentOptions};
use isograd::ops::recurrent::kernel::RecurrentForward;
use isograd::ops::{RecurrentSteps, RecurrentWeights};
use isograd::tape::{BackwardOptions, grad_from, grad_with};
use isograd::{DType, Device, Kind, Precision, Result, Rng, Tensor};
use isograd_tests::cpu;
use isograd_tests::harness::{self, Outcome};
use libtest_mimic::Trial;
use std::any::TypeId;

pub fn trials(device: &Device) -> Vec<Trial> {
    let check = |op, aspect, run| harness::check(device, op, aspect, run);
    vec![
        check("lstm", "gradients_of_a_thousand_steps", many_steps),
        check("lstm", "gradients_in_tf32", in_tf32),
        check("lstm", "gradients_of_an_odd_width", |device| odd_width(device, 4, lstm)),
        check("gru", "gradients_of_an_odd_width", |device| odd_width(device, 3, gru)),
        check("lstm", "cell_state_in_f32", cell_state),
        check("lstm", "padding_is_not_read", padding),
        check("lstm", "one_tensor_for_both_states", shared_states),
        check("lstm", "launches_of_a_step", launches),
        check("lstm", "truncated_in_captured_steps", truncated),
    ]
}

/// Normal values in f64, rounded to a dtype.
fn normal(shape: &[usize], seed: u64, dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::randn(shape, 0.0, 0.5, DType::F64, &cpu(), &Rng::new(seed))?
        .cast(DType::F32)?
        .cast(dtype)?
        .to_device(device)
}

/// The gradients of x and of both weights, where the last state alone has a loss.
fn gradients(steps: usize, dtype: DType, device: &Device) -> Result<Vec<Vec<f64>>> {
    let leaf = |shape: &[usize], seed| normal(shape, seed, dtype, device)?.require_grad();
    let (x, w, v) = (leaf(&[steps, 2, 3], 1)?, leaf(&[16, 3], 2)?, leaf(&[16, 4], 3)?);
    let (y, h, _) = x.lstm(None, None, RecurrentWeights::new(&w, &v), &RecurrentSteps::default())?;
    let roots = [(&y, y.detach().full_like(0.01)?), (&h, h.detach().ones_like()?)];
    let found = grad_from(&roots, &[&x, &w, &v], &BackwardOptions::default())?;
    found.iter().map(Tensor::to_f64_vec).collect()
}

/// In f32 they are within 1e-4 of the largest in f64.
fn many_steps(device: &Device) -> Result<Outcome> {
    are_near(&gradients(1000, DType::F32, device)?, &gradients(1000, DType::F64, &cpu())?, 1e-4)
}

/// No error exceeds this share of the largest number of its tensor.
fn are_near(near: &[Vec<f64>], exact: &[Vec<f64>], share: f64) -> Result<Outcome> {
    for (k, (near, exact)) in near.iter().zip(exact).enumerate() {
        let scale = exact.iter().fold(0.0, |most: f64, g| most.max(g.abs()));
        let error = near.iter().zip(exact).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs()));
        if error.is_nan() || error > share * scale {
            return Ok(Err(format!("tensor {k} is off by {error}, the largest number is {scale}")));
        }
    }
    Ok(Ok(()))
}

/// With factors rounded to TF32, which has 11 significant bits, they are within 16 roundings of the largest in f64.
fn in_tf32(device: &Device) -> Result<Outcome> {
    let of = |dtype, device: &Device| -> Result<Vec<Vec<f64>>> {
        let leaf = |shape: &[usize], seed| normal(shape, seed, dtype, device)?.mul_scalar(0.3)?.require_grad();
        let (x, w, v) = (leaf(&[12, 20, 32], 1)?, leaf(&[256, 32], 2)?, leaf(&[256, 64], 3)?);
        let (y, h, _) = x.lstm(None, None, RecurrentWeights::new(&w, &v), &RecurrentSteps::default())?;
        let roots = [(&y, normal(y.dims(), 4, dtype, device)?), (&h, h.detach().ones_like()?)];
        let found = grad_from(&roots, &[&x, &w, &v], &BackwardOptions::default())?;
        [&y].into_iter().chain(&found).map(Tensor::to_f64_vec).collect()
    };
    let device = &harness::private(device);
    device.set_matmul_precision(Precision::Tf32);
    are_near(&of(DType::F32, device)?, &of(DType::F64, &cpu())?, 16.0 * 2f64.powi(-11))
}

/// The hidden states of a cell from states of 0.
type Layer = fn(&Tensor, RecurrentWeights<'_>) -> Result<Tensor>;

fn lstm(x: &Tensor, weights: RecurrentWeights<'_>) -> Result<Tensor> {
    Ok(x.lstm(None, None, weights, &RecurrentSteps::default())?.0)
}

fn gru(x: &Tensor, weights: RecurrentWeights<'_>) -> Result<Tensor> {
    Ok(x.gru(None, weights, &RecurrentSteps::default())?.0)
}

/// 19 hidden units of 16 bits have no whole words for matrix units. Results and gradients are within 16 roundings to bf16 of the largest in f64.
fn odd_width(device: &Device, gates: usize, layer: Layer) -> Result<Outcome> {
    let of = |dtype, device: &Device| -> Result<Vec<Vec<f64>>> {
        // Both start from numbers of bf16.
        let draw = |shape: &[usize], seed| normal(shape, seed, DType::BF16, device)?.mul_scalar(0.5)?.cast(dtype);
        let leaf = |shape: &[usize], seed| draw(shape, seed)?.require_grad();
        let (x, w, v) = (leaf(&[4, 3, 5], 1)?, leaf(&[gates * 19, 5], 2)?, leaf(&[gates * 19, 19], 3)?);
        let y = layer(&x, RecurrentWeights::new(&w, &v))?;
        let found = grad_from(&[(&y, draw(y.dims(), 4)?)], &[&x, &w, &v], &BackwardOptions::default())?;
        [&y].into_iter().chain(&found).map(Tensor::to_f64_vec).collect()
    };
    are_near(&of(DType::BF16, device)?, &of(DType::F64, &cpu())?, 16.0 * 2f64.powi(-9))
}

/// Increments of 0.1 to a state of 1000 are lost where the state is rounded to f16 after each step.
fn cell_state(device: &Device) -> Result<Outcome> {
    let of = |values: &[f32], shape: &[usize]| Tensor::from_slice(values, shape, device)?.cast(DType::F16);
    let (x, weight) = (of(&[0.0; 20], &[20, 1, 1])?, of(&[0.0; 4], &[4, 1])?);
    // The gates of input and forgetting are 1, and the new value is 0.1.
    let bias = of(&[20.0, 20.0, 0.1003, 0.0], &[4])?;
    let weights = RecurrentWeights { input_bias: Some(&bias), ..RecurrentWeights::new(&weight, &weight) };
    let (_, _, c) = x.lstm(None, Some(&of(&[1000.0], &[1, 1])?), weights, &RecurrentSteps::default())?;
    let c = c.item::<f64>()?;
    Ok(if c == 1002.0 { Ok(()) } else { Err(format!("the cell state is {c}, expected 1002")) })
}

/// NaN in padding reaches no result and no gradient, in both directions.
fn padding(device: &Device) -> Result<Outcome> {
    let options = RecurrentOptions { layers: 2, bidirectional: true, ..Default::default() };
    let lstm = Lstm::with_options(2, 3, &options, &Init::new(device))?;
    let lengths = Tensor::from_slice(&[2i64, 4, 1], 3, device)?;
    let mut all = Vec::new();
    for fill in [0.0, f32::NAN] {
        let mut values = normal(&[4, 3, 2], 5, DType::F32, &cpu())?.to_vec::<f32>()?;
        for (t, b) in [(2, 0), (3, 0), (1, 2), (2, 2), (3, 2)] {
            values[(t * 3 + b) * 2..][..2].fill(fill);
        }
        let x = Tensor::from_slice(&values, (4, 3, 2), device)?.require_grad()?;
        lstm.zero_grad();
        let (y, (h, c)) = lstm.run(&x, Some(&lengths), None)?;
        y.sum(..)?.add(&h.sum(..)?)?.add(&c.square()?.sum(..)?)?.backward()?;
        let grads = lstm.parameters().into_iter().chain([x]).filter_map(|p| p.grad());
        all.push([y.detach(), h.detach(), c.detach()].into_iter().chain(grads).collect::<Vec<Tensor>>());
    }
    for (k, (a, b)) in all[0].iter().zip(&all[1]).enumerate() {
        let (a, b) = (a.to_f64_vec()?, b.to_f64_vec()?);
        if a != b {
            return Ok(Err(format!("result {k} is {b:?}, expected {a:?}")));
        }
    }
    let of_padding = all[1].last().expect("the gradient of x").select(0, 3)?.select(0, 0)?.to_f64_vec()?;
    Ok(if of_padding == [0.0, 0.0] { Ok(()) } else { Err(format!("the gradient of padding is {of_padding:?}")) })
}

/// The second derivatives of one tensor as both states are the sums of those of two tensors.
fn shared_states(device: &Device) -> Result<Outcome> {
    let of = |shape: &[usize], seed| normal(shape, seed, DType::F32, device);
    let (x, w, v) = (of(&[2, 1, 2], 1)?, of(&[8, 2], 2)?, of(&[8, 2], 3)?);
    let second = |h: &Tensor, c: &Tensor, inputs: &[&Tensor]| -> Result<Vec<Tensor>> {
        let (y, ..) = x.lstm(Some(h), Some(c), RecurrentWeights::new(&w, &v), &RecurrentSteps::default())?;
        let options = BackwardOptions { create_graph: true, ..Default::default() };
        let first = grad_with(&y.square()?.sum(..)?, inputs, &options)?;
        let sum = first.iter().skip(1).try_fold(first[0].clone(), |sum, g| sum.add(g))?;
        grad_with(&sum.square()?.sum(..)?, inputs, &BackwardOptions::default())
    };
    let state = of(&[1, 2], 4)?;
    let (h, c, both) = (state.copy()?.require_grad()?, state.copy()?.require_grad()?, state.require_grad()?);
    let apart = second(&h, &c, &[&h, &c])?;
    let (expected, got) = (apart[0].add(&apart[1])?.to_f64_vec()?, second(&both, &both, &[&both])?[0].to_f64_vec()?);
    let is_near = expected.iter().zip(&got).all(|(e, g)| (e - g).abs() <= 1e-4 * (1.0 + e.abs()));
    Ok(if is_near { Ok(()) } else { Err(format!("{got:?}, expected {expected:?}")) })
}

/// All steps are one launch, forward and backward, where the device has the kernel. Elsewhere, and in f64, a step is a product and a row.
fn launches(device: &Device) -> Result<Outcome> {
    let device = &harness::private(device);
    let count = || device.backend().launch_count();
    if count().is_none() {
        return Ok(Ok(()));
    }
    let of = |steps: usize, dtype: DType| -> Result<[u64; 2]> {
        let leaf = |shape: &[usize], seed| normal(shape, seed, dtype, device)?.require_grad();
        let (x, w, v) = (leaf(&[steps, 4, 8], 1)?, leaf(&[32, 8], 2)?, leaf(&[32, 8], 3)?);
        let start = count().unwrap_or_default();
        let (y, ..) = x.lstm(None, None, RecurrentWeights::new(&w, &v), &RecurrentSteps::default())?;
        let middle = count().unwrap_or_default();
        y.backward_with(&BackwardOptions { gradient: Some(y.detach().ones_like()?), ..Default::default() })?;
        Ok([middle - start, count().unwrap_or_default() - middle])
    };
    for dtype in [DType::F32, DType::F64] {
        let is_at_once = device.backend().supports(TypeId::of::<RecurrentForward>(), dtype);
        let expected = if is_at_once { [0, 0] } else { [2, 2] };
        let (some, more) = match (of(5, dtype), of(6, dtype)) {
            // Not every device has f64.
            (Err(e), _) if dtype == DType::F64 && e.kind() == Kind::Unsupported => continue,
            (some, more) => (some?, more?),
        };
        let found = [more[0] - some[0], more[1] - some[1]];
        if found != expected {
            return Ok(Err(format!("{dtype}: {found:?} launches a step, expected {expected:?}")));
        }
    }
    Ok(Ok(()))
}

/// Parts of a sequence one after the other, whose states are carried without gradients. Captured steps give the same.
fn truncated(device: &Device) -> Result<Outcome> {
    let lstm = Lstm::new(3, 4, &Init::new(device))?;
    let part = |(x, h, c): (Tensor, Tensor, Tensor)| -> Result<(Tensor, Tensor, Tensor)> {
        let (y, (h, c)) = lstm.run(&x, None, Some(&(h, c)))?;
        let parameters = lstm.parameters();
        let gradients = grad_with(&y.square()?.sum(..)?, &parameters.iter().collect::<Vec<_>>(), &Default::default())?;
        Ok((gradients[1].clone(), h.detach(), c.detach()))
    };
    type Three = (Tensor, Tensor, Tensor);
    let run = |f: &mut dyn FnMut(Three) -> Result<Three>| -> Result<Vec<f64>> {
        let zeros = || Tensor::zeros((1, 2, 4), DType::F32, device);
        let (mut h, mut c, mut all) = (zeros()?, zeros()?, Vec::new());
        for seed in 0..4 {
            let (gradient, ..) = &{
                let found = f((normal(&[5, 2, 3], seed, DType::F32, device)?, h.clone(), c.clone()))?;
                (h, c) = (found.1.copy()?, found.2.copy()?);
                found
            };
            all.extend(gradient.to_f64_vec()?);
        }
        Ok(all.into_iter().chain(h.to_f64_vec()?).collect())
    };
    let plain = run(&mut |arguments| part(arguments))?;
    let mut captured = device.capture(part);
    let replayed = run(&mut |arguments| captured.run(arguments))?;
    Ok(if plain == replayed { Ok(()) } else { Err(format!("{replayed:?} captured, {plain:?} plain")) })
}
