//! Profiles of a step: its ops, their directions and places, and times that fit into the whole.

use isograd::prelude::*;
use isograd::{Direction, profile};
use isograd_tests::harness::{self, Outcome, equal, expect};
use libtest_mimic::Trial;
use serde_json::Value;

pub fn trials(device: &Device) -> Vec<Trial> {
    let check = |op, aspect, run| harness::check(device, op, aspect, run);
    vec![
        check("profile", "a_step_is_measured_by_op_and_place", by_op_and_place),
        check("profile", "errors_and_other_devices", errors),
    ]
}

fn step(x: &Tensor, w: &Tensor) -> Result<()> {
    let hidden = x.matmul(w)?;
    let line = hidden.tanh()?;
    line.square()?.sum(..)?.backward()
}

fn by_op_and_place(device: &Device) -> Result<Outcome> {
    let x = Tensor::ones((8, 16), DType::F32, device)?;
    let w = Tensor::full((16, 4), 0.01, DType::F32, device)?.require_grad()?;
    step(&x, &w)?;
    let plain = w.grad().map(|g| g.to_vec::<f32>()).transpose()?;
    w.set_grad(None)?;
    let ((), profile) = profile(device, || step(&x, &w))?;
    let of = |op: &str, direction| profile.ops.iter().find(|call| call.op == op && call.direction == direction);
    let mut outcome = equal("gradient", w.grad().map(|g| g.to_vec::<f32>()).transpose()?, plain);
    for (op, direction) in [
        ("matmul", Direction::Forward),
        ("tanh", Direction::Forward),
        ("square", Direction::Forward),
        ("sum", Direction::Forward),
        ("matmul", Direction::Backward),
    ] {
        let call = of(op, direction);
        outcome = outcome.and(expect(call.is_some(), format!("{op} {direction:?} is not in {:?}", profile.ops)));
        let origin = call.and_then(|call| call.origin.clone()).unwrap_or_default();
        outcome = outcome.and(expect(origin.contains("profile.rs:"), format!("{op} {direction:?} is at {origin:?}")));
    }
    let is_in_order = profile.ops.windows(2).all(|pair| pair[0].start <= pair[1].start);
    let fits =
        profile.ops.iter().all(|call| call.start >= 0.0 && call.start + call.seconds <= profile.seconds * 1.001 + 1e-5);
    let totals = profile.totals();
    let sum: f64 = totals.iter().map(|total| total.seconds).sum();
    let trace: Value = serde_json::from_str(&profile.chrome_trace()).expect("a trace is JSON");
    outcome = outcome
        .and(expect(is_in_order && fits, format!("times are out of order or too long: {profile:?}")))
        .and(expect(
            (sum - profile.busy()).abs() <= 1e-9 + 1e-6 * sum,
            format!("totals are {sum}, not {}", profile.busy()),
        ))
        .and(equal("events", trace["traceEvents"].as_array().map(Vec::len), Some(profile.ops.len())))
        .and(expect(profile.to_string().contains("matmul"), profile.to_string()))
        .and(expect(profile.memory.peak > 0, "the step used no memory".to_string()));
    // Nothing is measured after the profile.
    let ((), empty) = isograd::profile(device, || Ok(()))?;
    Ok(outcome.and(equal("calls", empty.ops.len(), 0)))
}

/// An error ends a profile; calls on another device are not measured.
fn errors(device: &Device) -> Result<Outcome> {
    let x = Tensor::ones((2, 2), DType::F32, device)?;
    let failed = profile(device, || x.reshape(3));
    let other = Tensor::ones(2, DType::F32, &Device::cpu()?)?;
    let ((), after) = profile(device, || other.exp()?.to_vec::<f32>().map(drop))?;
    let own = if *device == Device::cpu()? { 1 } else { 0 };
    Ok(expect(failed.is_err(), "a wrong shape is accepted".to_string()).and(equal("calls", after.ops.len(), own)))
}
