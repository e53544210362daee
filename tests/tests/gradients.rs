//! Derivatives of every op against finite differences in f64, and linear ops against their adjoints.

use isograd::tape::{BackwardOptions, GradcheckOptions, grad_with, gradcheck, gradgradcheck};
use isograd::{Device, Result, Tensor};
use isograd_parity::case::{Case, Gen};
use isograd_tests::harness::{self, for_shapes, text, trial};
use isograd_parity::registry::{Derivative, OPS, Op};
use libtest_mimic::Trial;

fn main() {
    harness::main(|device| OPS.iter().flat_map(|op| trials(op, device)).collect());
}

fn trials(op: &'static Op, device: &Device) -> Vec<Trial> {
    let cases = |count, check: fn(&Op, &Case) -> Result<(), String>| {
        let device = device.clone();
        move || for_shapes(count, |shape, seed| check(op, &(op.make)(&mut Gen::new(shape, seed, &device))))
    };
    let mut trials = Vec::new();
    if let Derivative::None(_) = op.derivative {
        return vec![trial(device, op.name, "not_differentiable", cases(3, not_differentiable))];
    }
    trials.push(trial(device, op.name, "gradcheck", cases(48, first)));
    if op.derivative == Derivative::Twice {
        trials.push(trial(device, op.name, "gradgradcheck", cases(24, second)));
    }
    if op.linear {
        trials.push(trial(device, op.name, "adjoint", cases(48, adjoint)));
    }
    trials
}

/// The op of its differentiable inputs, its float outputs joined to one vector.
fn joined(op: &Op, case: &Case, differentiable: &[usize], x: &[Tensor]) -> Result<Tensor> {
    let mut inputs = case.inputs.clone();
    for (&i, t) in differentiable.iter().zip(x) {
        inputs[i].1 = t.clone();
    }
    let outputs = op.call_with(&case.attributes, &inputs)?;
    let flat: Vec<Tensor> =
        outputs.iter().filter(|y| y.dtype().is_float()).map(|y| y.reshape(y.numel())).collect::<Result<_>>()?;
    Tensor::concat(&flat.iter().collect::<Vec<_>>(), 0)
}

fn points<'a>(case: &'a Case, differentiable: &[usize]) -> Vec<&'a Tensor> {
    differentiable.iter().map(|&i| &case.inputs[i].1).collect()
}

fn shown(case: &Case) -> String {
    let inputs: Vec<String> = case.inputs.iter().map(|(n, t)| format!("{n}: {} {}", t.dtype(), t.shape())).collect();
    format!("{} ({})", case.attributes, inputs.join(", "))
}

/// The mean of nothing is NaN, which no quotient can check.
fn is_finite(y: &Tensor) -> Result<bool, String> {
    Ok(y.to_f64_vec().map_err(text)?.iter().all(|v| v.is_finite()))
}

fn values(inputs: &[&Tensor]) -> Vec<Tensor> {
    inputs.iter().map(|&t| t.clone()).collect()
}

fn first(op: &Op, case: &Case) -> Result<(), String> {
    let differentiable = op.differentiable(case);
    let inputs = points(case, &differentiable);
    let f = |x: &[Tensor]| joined(op, case, &differentiable, x);
    if !is_finite(&f(&values(&inputs)).map_err(text)?)? {
        return Ok(());
    }
    gradcheck(f, &inputs, GradcheckOptions::default()).map_err(|e| format!("{e} in {}", shown(case)))
}

/// The gradient of `f(x) c` depends on `c` and `x` even where that of `f` is constant.
fn second(op: &Op, case: &Case) -> Result<(), String> {
    let differentiable = op.differentiable(case);
    let inputs = points(case, &differentiable);
    let y = joined(op, case, &differentiable, &values(&inputs)).map_err(text)?;
    if !is_finite(&y)? {
        return Ok(());
    }
    let weights = (0..y.numel()).map(|i| 0.5 + (i % 7) as f64 / 8.0).collect::<Vec<f64>>();
    let weights = Tensor::from_vec(weights, y.shape(), y.device()).map_err(text)?;
    let f = |x: &[Tensor]| {
        let (weights, x) = x.split_last().expect("the weights");
        joined(op, case, &differentiable, x)?.mul(weights)
    };
    let all: Vec<&Tensor> = inputs.into_iter().chain([&weights]).collect();
    gradgradcheck(f, &all, GradcheckOptions::default()).map_err(|e| format!("{e} in {}", shown(case)))
}

/// `<f(x), y> = <x, f*(y)>`.
fn adjoint(op: &Op, case: &Case) -> Result<(), String> {
    let differentiable = op.differentiable(case);
    let check = || -> Result<(f64, f64)> {
        let x: Vec<Tensor> = points(case, &differentiable).iter().map(|t| t.leaf()).collect::<Result<_>>()?;
        let y = joined(op, case, &differentiable, &x)?;
        let weights: Vec<f64> = (0..y.numel()).map(|i| ((i * 7919) % 13) as f64 / 6.0 - 1.0).collect();
        let weights = Tensor::from_vec(weights, y.shape(), y.device())?;
        let forward = y.detach().mul(&weights)?.sum(..)?.item()?;
        let options = BackwardOptions { gradient: Some(weights), ..Default::default() };
        let gradients = grad_with(&y, &x.iter().collect::<Vec<_>>(), options)?;
        let backward =
            x.iter().zip(&gradients).map(|(x, g)| x.detach().mul(g)?.sum(..)?.item()).sum::<Result<f64>>()?;
        Ok((forward, backward))
    };
    let (forward, backward) = check().map_err(text)?;
    if (forward - backward).abs() > 1e-12 * (1.0 + forward.abs()) {
        return Err(format!("<f(x), y> = {forward}, <x, f*(y)> = {backward} in {}", shown(case)));
    }
    Ok(())
}

/// A result that has no derivative is outside of the tape.
fn not_differentiable(op: &Op, case: &Case) -> Result<(), String> {
    let mut inputs = case.inputs.clone();
    for (_, t) in inputs.iter_mut().filter(|(_, t)| t.dtype().is_float()) {
        *t = t.leaf().map_err(text)?;
    }
    match op.call_with(&case.attributes, &inputs).map_err(text)?.iter().any(Tensor::requires_grad) {
        true => Err("the result is on the tape".into()),
        false => Ok(()),
    }
}
