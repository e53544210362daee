//! Every op in f32, f16 and bf16 against f64 on the CPU, and strided, expanded and special inputs against plain ones.
//!
//! The bound is `1.5 u_out |r| + C u_acc a + eta`: one rounding of the result r, and the roundings within, measured by a
//! companion a that the registry computes from absolute values. Ops of several stages take the largest |r| for a.
//! Gradients on other devices may be off by 8 times what the CPU's are in the same dtype, or 32 roundings of the largest.

use isograd::tape::BackwardOptions;
use isograd::{DType, Device, Result, Tensor};
use isograd_parity::case::{Case, Gen};
use isograd_parity::compare::{close_values, same_bits};
use isograd_tests::cpu;
use isograd_tests::harness::{self, for_shapes, text, trial};
use isograd_parity::registry::{Class, Derivative, OPS, Op};
use libtest_mimic::Trial;

/// Primes, above the elements of a group's threads and of several groups; in f32, since the narrower dtypes run the same
/// code around other loads and stores.
const LARGE: [&[usize]; 3] = [&[1009], &[67, 131], &[3, 61, 17]];
const NARROW: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn main() {
    harness::main(|device| OPS.iter().flat_map(|op| trials(op, device)).collect());
}

fn trials(op: &'static Op, device: &Device) -> Vec<Trial> {
    let cases = |check: fn(&Op, &mut Gen) -> Result<(), String>| {
        let device = device.clone();
        move || for_shapes(24, |shape, seed| check(op, &mut Gen::new(shape, seed, &device)))
    };
    let mut trials = vec![trial(device, op.name, "strided", cases(strided))];
    if op.one_dtype.is_some() {
        return trials;
    }
    for dtype in NARROW {
        let at = device.clone();
        let run = move || {
            let check = |shape: &[usize], seed, special| {
                let case = (op.make)(&mut Gen::new(shape, seed, &at));
                narrow(op, case, dtype, special, seed)
            };
            for_shapes(24, |shape, seed| check(shape, seed, false))?;
            for_shapes(24, |shape, seed| check(shape, seed, true))?;
            if dtype != DType::F32 {
                return Ok(());
            }
            LARGE.iter().try_for_each(|shape| check(shape, 1, false).map_err(|e| start(&e)))
        };
        trials.push(trial(device, op.name, dtype.name(), run));
        if *device != cpu() && !matches!(op.derivative, Derivative::None(_)) {
            let at = device.clone();
            let check = move |shape: &[usize], seed| gradients(op, (op.make)(&mut Gen::new(shape, seed, &at)), dtype);
            let aspect = format!("{dtype}_gradient");
            let run = move || {
                for_shapes(24, &check)?;
                if dtype != DType::F32 {
                    return Ok(());
                }
                LARGE.iter().try_for_each(|shape| check(shape, 1).map_err(|e| start(&e)))
            };
            trials.push(trial(device, op.name, &aspect, run));
        }
    }
    trials
}

/// The start of a message that shows large tensors.
fn start(message: &str) -> String {
    message.chars().take(500).collect()
}

fn floats(case: &Case, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Case> {
    let each = |(name, t): &(String, Tensor)| Ok((name.clone(), if t.dtype().is_float() { f(t)? } else { t.clone() }));
    let inputs = case.inputs.iter().map(each).collect::<Result<_>>()?;
    Ok(Case { attributes: case.attributes.clone(), inputs })
}

/// NaN, infinities and zeros in place of some elements.
fn inject(t: &Tensor, seed: u64) -> Result<Tensor> {
    const SPECIAL: [f64; 5] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0];
    let mut values = t.to_f64_vec()?;
    let mut draw = Gen::new(&[], seed, t.device());
    for v in &mut values {
        if draw.below(4) == 0 {
            *v = draw.pick(&SPECIAL);
        }
    }
    Tensor::from_vec(values, t.shape(), t.device())
}

/// Unit roundoff and smallest normal number of a dtype (of f16 the smallest subnormal, which is not flushed).
fn precision(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F16 => (2f64.powi(-11), 6e-8),
        DType::BF16 => (2f64.powi(-8), f32::MIN_POSITIVE as f64),
        _ => (2f64.powi(-24), f32::MIN_POSITIVE as f64),
    }
}

fn factor(op: &Op, case: &Case, y: &Tensor, dtype: DType, device: &Device) -> f64 {
    let largest = case.inputs.iter().map(|(_, t)| t.numel()).max().unwrap_or(1);
    let terms = match op.name {
        // Sums along one dimension, at most all elements.
        "cumsum" | "index_add" | "index_put" | "scatter_add_kernel" => largest,
        _ => largest / y.numel().max(1),
    } as f64;
    // The root of the terms of a product's sums: these are no longer than the longest dimension.
    let extents = case.inputs.iter().flat_map(|(_, t)| t.dims().iter().copied());
    let sum = (extents.max().unwrap_or(0).max(4) as f64).sqrt();
    match op.class {
        Class::Exact => 0.0,
        Class::Arithmetic => 4.0,
        // OpenCL allows 16 units in the last place for some functions.
        Class::Transcendental if device.name().starts_with("opencl") => 40.0,
        Class::Transcendental => 16.0,
        Class::Reduction => 8.0 + 4.0 * (terms + 1.0).log2(),
        Class::Product | Class::Dense if dtype == DType::F32 => 8.0 + 2.0 * sum,
        Class::Product | Class::Dense => 32.0 + 8.0 * sum,
        Class::Stages => 32.0,
    }
}

fn narrow(op: &Op, case: Case, dtype: DType, special: bool, seed: u64) -> Result<(), String> {
    let case = if special { floats(&case, |t| inject(t, seed)).map_err(text)? } else { case };
    let narrow = floats(&case, |t| t.cast(dtype)).map_err(text)?;
    let wide = floats(&narrow, |t| t.cast(DType::F64)).and_then(|case| case.to(&cpu())).map_err(text)?;
    let (got, exact) = match (op.call(&narrow), op.call(&wide)) {
        (Ok(got), Ok(exact)) => (got, exact),
        // Special values may be invalid, as a probability is.
        (Err(got), Err(exact)) if special && got.to_string() == exact.to_string() => return Ok(()),
        (got, exact) => return Err(format!("{:?} in {dtype}, {:?} in f64: {case:?}", got.err(), exact.err())),
    };
    let companions = op.companion_of(&wide).map_err(text)?;
    for ((y, r), a) in got.iter().zip(&exact).zip(&companions) {
        compare(op, &wide, y, r, a, dtype).map_err(|e| format!("{e}\n{}\n{:?}", case.attributes, narrow.inputs))?;
    }
    Ok(())
}

/// Gradients on a device against those on the CPU in f64.
fn gradients(op: &Op, case: Case, dtype: DType) -> Result<(), String> {
    let narrow = floats(&case, |t| t.cast(dtype)).map_err(text)?;
    let there = narrow.to(&cpu()).map_err(text)?;
    let wide = floats(&there, |t| t.cast(DType::F64)).map_err(text)?;
    let all = |case| results(op, case).map_err(text);
    let (got, yardstick, exact) = (all(&narrow)?, all(&there)?, all(&wide)?);
    let outputs = exact.len() - op.differentiable(&wide).len();
    let (u_out, eta) = precision(dtype);
    for ((y, c), r) in got.iter().zip(&yardstick).zip(&exact).skip(outputs) {
        let values = |t: &Tensor| t.to_f64_vec().map_err(text);
        let (y, c, r) = (values(y)?, values(c)?, values(r)?);
        let largest = |v: &mut dyn Iterator<Item = f64>| v.filter(|v| v.is_finite()).fold(0.0, f64::max);
        let error = largest(&mut c.iter().zip(&r).map(|(c, r)| (c - r).abs()));
        let scale = largest(&mut r.iter().map(|r| r.abs()));
        // A kernel of several stages may keep its result, which is rounded, for backward, and multiply it with the
        // gradients that arrive, which are at most 1; or round what it then multiplies with factors of at most 2.
        let stages = matches!(op.class, Class::Stages | Class::Dense);
        let kept = if stages { 4.0 * u_out * scale.max(1.0) } else { 0.0 };
        let slack = (8.0 * error).max(32.0 * precision(DType::F32).0 * scale) + kept + eta;
        close_values("a gradient", &y, &r, |r| 1.5 * u_out * r.abs() + slack)
            .map_err(|e| format!("{e}\n{}\n{:?}", case.attributes, narrow.inputs))?;
    }
    Ok(())
}

fn compare(op: &Op, case: &Case, y: &Tensor, r: &Tensor, a: &Tensor, dtype: DType) -> Result<(), String> {
    if !r.dtype().is_float() || y.dtype() != dtype {
        return same_bits("the result", y, r);
    }
    let rounded = r.cast(dtype).and_then(|t| t.to_f64_vec()).map_err(text)?;
    let values = |t: &Tensor| t.to_f64_vec().map_err(text);
    let c = factor(op, case, r, dtype, y.device());
    let (y, r, a) = (values(y)?, values(r)?, values(a)?);
    let (u_out, eta) = precision(dtype);
    let largest = r.iter().map(|v| v.abs()).filter(|v| v.is_finite()).fold(0.0, f64::max);
    for i in 0..r.len() {
        let companion = if op.class == Class::Stages { largest } else { a[i] };
        let rounding = if dtype == DType::F32 && c > 0.0 { 0.0 } else { 1.5 * u_out * r[i].abs() };
        let bound = rounding + c * precision(DType::F32).0 * companion + eta;
        let fits = match op.class {
            Class::Exact => y[i] == rounded[i] || (y[i].is_nan() && rounded[i].is_nan()),
            _ if rounded[i].is_finite() => (y[i] - r[i]).abs() <= bound,
            _ => y[i] == rounded[i] || (y[i].is_nan() && rounded[i].is_nan()),
        };
        if !fits {
            return Err(format!("element {i}: got {:e}, expected {:e} within {bound:e}", y[i], r[i]));
        }
    }
    Ok(())
}

/// Other ways in which the same elements may lie in memory.
fn layouts(t: &Tensor) -> Result<Vec<Tensor>> {
    let reversed: Vec<isize> = (0..t.rank() as isize).rev().collect();
    let mut found = vec![t.permute(&reversed)?.copy()?.permute(&reversed)?];
    if t.rank() > 0 {
        // Every other element of the last dimension of a larger tensor, not from its start.
        let spread = Tensor::stack(&[&t.zeros_like()?, t], -1)?.flatten(-2, -1)?;
        found.push(spread.slice(-1, 1, spread.dims()[t.rank() - 1].max(1), 2)?);
    }
    Ok(found)
}

/// Strided inputs give the same bits, forward and backward.
fn strided(op: &Op, g: &mut Gen) -> Result<(), String> {
    let case = (op.make)(g);
    for (i, (name, t)) in case.inputs.iter().enumerate() {
        let others = match t.numel() {
            0 if t.rank() > 0 && t.dims()[t.rank() - 1] == 0 => Vec::new(),
            _ => layouts(t).map_err(text)?,
        };
        for other in others {
            let mut changed = case.clone();
            changed.inputs[i].1 = other;
            same_results(op, &case, &changed).map_err(|e| format!("{name} strided: {e}"))?;
        }
        if t.rank() > 0 && t.dims()[0] > 0 {
            let row = t.narrow(0, 0, 1).map_err(text)?;
            let expanded = row.broadcast_to(t.shape()).map_err(text)?;
            let (mut plain, mut changed) = (case.clone(), case.clone());
            plain.inputs[i].1 = expanded.copy().map_err(text)?;
            changed.inputs[i].1 = expanded;
            same_results(op, &plain, &changed).map_err(|e| format!("{name} expanded: {e}"))?;
        }
    }
    Ok(())
}

fn same_results(op: &Op, plain: &Case, changed: &Case) -> Result<(), String> {
    let (expected, got) = (results(op, plain), results(op, changed));
    let (expected, got) = match (expected, got) {
        (Ok(expected), Ok(got)) => (expected, got),
        (Err(a), Err(b)) if a.kind() == b.kind() => return Ok(()),
        (a, b) => return Err(format!("{:?} and {:?}", a.err(), b.err())),
    };
    expected.iter().zip(&got).enumerate().try_for_each(|(k, (e, g))| {
        let what = format!("result {k}");
        // A product may add its terms, at most four of at most 4, in another order for another layout; a GPU any sum.
        let sums = *e.device() != cpu() && matches!(op.class, Class::Reduction | Class::Stages);
        if !matches!(op.class, Class::Product | Class::Dense) && !sums {
            return same_bits(&what, g, e);
        }
        let values = |t: &Tensor| t.to_f64_vec().map_err(text);
        close_values(&what, &values(g)?, &values(e)?, |e| f64::EPSILON * (64.0 + 16.0 * e.abs()))
    })
}

/// The outputs of an op and the gradients of its inputs.
fn results(op: &Op, case: &Case) -> Result<Vec<Tensor>> {
    let mut inputs = case.inputs.clone();
    let differentiable = op.differentiable(case);
    for &i in &differentiable {
        inputs[i].1 = inputs[i].1.leaf()?;
    }
    let mut all = op.call_with(&case.attributes, &inputs)?;
    for y in all.iter().filter(|y| y.requires_grad()) {
        // Different for neighbours: what is the same for all cancels in a softmax or a norm.
        let values = (0..y.numel()).map(|i| ((i * 7919) % 13) as f64 / 8.0 - 0.75).collect::<Vec<_>>();
        let gradient = Some(Tensor::from_vec(values, y.shape(), y.device())?.cast(y.dtype())?);
        y.backward_with(BackwardOptions { gradient, ..Default::default() })?;
    }
    all.iter_mut().for_each(|y| *y = y.detach());
    all.extend(differentiable.iter().filter_map(|&i| inputs[i].1.grad()));
    Ok(all)
}
