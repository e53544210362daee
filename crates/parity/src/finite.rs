//! Checks of results and derivatives that are not finite.

use crate::case::{Case, Gen};
use crate::check::{Found, backward, cotangent, joined, narrow, run, shown, text};
use crate::compare::Distance;
use crate::registry::Op;
use isograd_core::tape::{BackwardOptions, detect_anomaly, grad_with};
use isograd_core::{DType, Device, Result, Tensor};

/// Numbers at bounds of domains, and outside of them.
const OUTSIDE: [f64; 8] = [-100.0, -2.0, -1.0, 0.0, 1.0, 1.5, 2.0, 100.0];
/// Points where functions are not smooth.
const EDGES: [f64; 5] = [0.0, -0.0, 1.0, -1.0, 0.5];

fn is_finite(y: &Tensor) -> Result<bool> {
    Ok(!y.dtype().is_float() || y.to_f64_vec()?.iter().all(|v| v.is_finite()))
}

/// Leaves NaN in the memory that tensors of up to 64 KiB get next.
fn leave_nan(device: &Device) -> Result<()> {
    let sizes = (0..12).map(|power| 8 << power);
    let held: Vec<Tensor> =
        sizes.flat_map(|n| [n; 4]).map(|n| Tensor::full(n, f64::NAN, DType::F32, device)).collect::<Result<_>>()?;
    drop(held);
    device.synchronize()
}

/// Anomaly detection reports nothing if all operands, results and gradients are finite. Memory that is not written yet holds NaN.
pub fn anomalies(op: &Op, case: &Case, device: &Device) -> Found {
    let case = narrow(case, DType::F32).and_then(|case| case.to(device)).map_err(text)?;
    let results = run(op, &case).map_err(text)?;
    let given = case.inputs.iter().map(|(_, t)| t);
    let are_finite = given.chain(&results).map(is_finite).collect::<Result<Vec<_>>>().map_err(text)?;
    if are_finite.contains(&false) {
        return Ok(Distance::default());
    }
    leave_nan(device).map_err(text)?;
    detect_anomaly(|| run(op, &case)).map_err(|e| format!("a false alarm: {e} in {}", shown(&case)))?;
    Ok(Distance::default())
}

/// The case with a third of the elements of its differentiable inputs replaced.
fn moved(op: &Op, case: &Case, values: &[f64], seed: u64) -> Result<Case> {
    let mut case = case.clone();
    let mut draw = Gen::new(&[], seed, &Device::cpu()?);
    for i in op.differentiable(&case) {
        let t = &case.inputs[i].1;
        let mut elements = t.to_f64_vec()?;
        for v in &mut elements {
            if draw.below(3) == 0 {
                *v = draw.pick(values);
            }
        }
        case.inputs[i].1 = Tensor::from_vec(elements, t.shape(), t.device())?;
    }
    Ok(case)
}

/// Where a result of finite inputs is NaN, a gradient of this element is not finite.
pub fn undefined(op: &Op, case: &Case, device: &Device, seed: u64) -> Found {
    let find = || -> Result<Option<String>> {
        let case = narrow(&moved(op, case, &OUTSIDE, seed)?, DType::F32)?;
        let Ok(results) = case.to(device).and_then(|case| op.call(&case)) else { return Ok(None) };
        for (k, y) in results.iter().enumerate().filter(|(_, y)| y.dtype().is_float()) {
            let values = y.to_f64_vec()?;
            for i in (0..values.len()).filter(|&i| values[i].is_nan()).take(4) {
                if is_finite_at(op, &case.to(device)?, k, i)? {
                    return Ok(Some(format!("element {i} of result {k} is NaN, and all of its gradients are finite")));
                }
            }
        }
        Ok(None)
    };
    match find().map_err(text)? {
        None => Ok(Distance::default()),
        Some(why) => Err(format!("{why} in {}", shown(case)).into()),
    }
}

/// True if the gradients of an element of a result are finite: of elements at its place in inputs of the result's shape, and of all
/// elements of others.
fn is_finite_at(op: &Op, case: &Case, k: usize, i: usize) -> Result<bool> {
    let mut case = case.clone();
    let differentiable = op.differentiable(&case);
    for &i in &differentiable {
        case.inputs[i].1 = case.inputs[i].1.require_grad()?;
    }
    let y = op.call(&case)?.swap_remove(k);
    if !y.requires_grad() {
        return Ok(false);
    }
    let one = (0..y.numel()).map(|at| if at == i { 1.0 } else { 0.0 }).collect::<Vec<f64>>();
    let gradient = Tensor::from_vec(one, y.shape(), y.device())?.cast(y.dtype())?;
    y.backward_with(&BackwardOptions { gradient: Some(gradient), ..Default::default() })?;
    let leaves = differentiable.into_iter().map(|i| &case.inputs[i].1).filter(|x| x.numel() > 0);
    // An empty slice has no gradient.
    let mut has_slopes = false;
    for x in leaves {
        has_slopes = true;
        let Some(slopes) = x.grad().map(|g| g.to_f64_vec()).transpose()? else { continue };
        let near = if x.shape() == y.shape() { &slopes[i..=i] } else { &slopes[..] };
        if near.iter().any(|v| !v.is_finite()) {
            return Ok(false);
        }
    }
    Ok(has_slopes)
}

/// Second derivatives are not NaN if results and gradients are finite, where a function is not smooth, too.
pub fn singular(op: &Op, case: &Case, device: &Device, seed: u64) -> Found {
    let find = || -> Result<Option<String>> {
        let case = moved(op, case, &EDGES, seed)?.to(device)?;
        let differentiable = op.differentiable(&case);
        let leaves = differentiable.iter().map(|&i| case.inputs[i].1.require_grad()).collect::<Result<Vec<_>>>()?;
        let leaves: Vec<&Tensor> = leaves.iter().collect();
        let given: Vec<Tensor> = leaves.iter().map(|&t| t.clone()).collect();
        let Ok(y) = joined(op, &case, &differentiable, &given) else { return Ok(None) };
        if !y.requires_grad() || !is_finite(&y)? {
            return Ok(None);
        }
        let options = BackwardOptions { create_graph: true, gradient: Some(cotangent(&y)?), ..Default::default() };
        let slopes = grad_with(&y, &leaves, &options)?;
        for slope in slopes.iter().filter(|slope| slope.requires_grad()) {
            if !is_finite(slope)? {
                return Ok(None);
            }
        }
        backward(&slopes)?;
        for x in &leaves {
            let second = x.grad().map(|g| g.to_f64_vec()).transpose()?.unwrap_or_default();
            if let Some(i) = second.iter().position(|v| v.is_nan()) {
                return Ok(Some(format!("a second derivative is NaN at element {i}: {:?}", case.inputs)));
            }
        }
        Ok(None)
    };
    match find().map_err(text)? {
        None => Ok(Distance::default()),
        Some(why) => Err(format!("{why} of {}", shown(case)).into()),
    }
}
