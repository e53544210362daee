//! The checks of one op. Each takes a case with f64 floats on the CPU, and returns the distance of the results in units of their
//! bounds, or a description of the mistake.

use crate::case::{Case, Gen};
use crate::compare::{Distance, Miss, cancels, close_values, measure, precision, same_bits};
use crate::registry::{Category, Class, Derivative, Op};
use crate::tolerance::{Arriving, Measures, Slices, Sums, bounds, gradient_bounds};
use crate::watch::{Kernels, Watched};
use isograd_core::tape::{BackwardOptions, GradcheckOptions, Ran, Step, grad_with};
use isograd_core::{DType, Device, Error, Result, Tensor, no_grad, tape};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a check.
pub type Found = std::result::Result<Distance, Miss>;

type Fallible<T = ()> = std::result::Result<T, String>;

/// The result of `f`, or the message of a panic.
pub(crate) fn caught<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
        format!("it panicked: {message}")
    })
}

pub(crate) fn text(error: Error) -> String {
    error.to_string()
}

pub(crate) fn cpu() -> Device {
    Device::cpu().expect("the CPU backend is linked")
}

/// The case with its floats rounded to a dtype. A case without inputs gets results in this dtype.
pub fn narrow(case: &Case, dtype: DType) -> Result<Case> {
    let mut case = case.map_floats(|t| t.cast(dtype))?;
    if case.inputs.is_empty() && case.attributes.get("dtype").is_some() {
        case.attributes["dtype"] = dtype.to_string().into();
    }
    Ok(case)
}

/// The op, its attributes, and dtypes and shapes of its inputs.
pub fn shown(case: &Case) -> String {
    let inputs: Vec<String> = case.inputs.iter().map(|(n, t)| format!("{n}: {} {}", t.dtype(), t.shape())).collect();
    format!("{} ({})", case.attributes, inputs.join(", "))
}

/// The results of an op on a device, copied to the CPU.
fn outputs(op: &Op, case: &Case, device: &Device) -> Result<Vec<Tensor>> {
    op.call(&case.to(device)?)?.iter().map(|y| y.to_device(&cpu())).collect()
}

/// A gradient that differs between neighbours, because a constant one cancels in a softmax or a norm. At most 1.
pub(crate) fn cotangent(y: &Tensor) -> Result<Tensor> {
    let values = (0..y.numel()).map(|i| ((i * 7919) % 13) as f64 / 8.0 - 0.75).collect::<Vec<_>>();
    Tensor::from_vec(values, y.shape(), &cpu())?.cast(y.dtype())?.to_device(y.device())
}

/// A pass for each result that is on the tape. All but the last retain it: one node may have several of the results.
pub(crate) fn backward<'a>(results: impl IntoIterator<Item = &'a Tensor>) -> Result<()> {
    let mut rest = results.into_iter().filter(|y| y.requires_grad()).peekable();
    while let Some(y) = rest.next() {
        let retain = rest.peek().is_some();
        y.backward_with(&BackwardOptions { gradient: Some(cotangent(y)?), retain, ..Default::default() })?;
    }
    Ok(())
}

/// The outputs of an op and the gradients of its inputs, on the case's device.
pub(crate) fn run(op: &Op, case: &Case) -> Result<Vec<Tensor>> {
    let mut case = case.clone();
    let differentiable = op.differentiable(&case);
    for &i in &differentiable {
        case.inputs[i].1 = case.inputs[i].1.require_grad()?;
    }
    let mut all = op.call(&case)?;
    backward(&all)?;
    all.iter_mut().for_each(|y| *y = y.detach());
    all.extend(differentiable.iter().filter_map(|&i| case.inputs[i].1.grad()));
    // A device may report errors that a kernel finds in its data later.
    all.first().map_or(Ok(()), |y| y.device().synchronize())?;
    Ok(all)
}

/// The outputs of an op and the gradients of its inputs, copied to the CPU.
fn results(op: &Op, case: &Case, device: &Device) -> Result<Vec<Tensor>> {
    run(op, &case.to(device)?)?.iter().map(|y| y.to_device(&cpu())).collect()
}

/// The largest distance of several results.
fn worst(mut found: impl Iterator<Item = Found>) -> Found {
    found.try_fold(Distance::default(), |worst, next| Ok(worst.or(next?)))
}

/// The result in `dtype` against f64 on the CPU, for the same inputs.
pub fn forward(op: &Op, case: &Case, dtype: DType, device: &Device) -> Found {
    against_f64(op, case, dtype, device, false)
}

/// Integer results against the CPU's, bit for bit; or errors of the same kind.
pub fn integers(op: &Op, case: &Case, dtype: DType, device: &Device) -> Found {
    let case = whole(case, dtype).map_err(text)?;
    match (outputs(op, &case, device), op.reference().call(&case)) {
        (Ok(got), Ok(exact)) => worst(got.iter().zip(&exact).map(|(y, r)| same_bits("the result", y, r))),
        (Err(got), Err(exact)) if got.kind() == exact.kind() => Ok(Distance::default()),
        (got, exact) => Err(format!("{:?} on {device}, {:?} on the CPU: {case:?}", got.err(), exact.err()).into()),
    }
}

/// True if an op with float inputs also runs in an integer dtype.
pub fn takes(op: &Op, dtype: DType) -> bool {
    (1..=4).any(|seed| {
        let case = (op.make)(&mut Gen::new(&[3, 2], seed, &cpu()));
        let has_floats = case.inputs.iter().any(|(_, t)| t.dtype().is_float());
        has_floats && whole(&case, dtype).and_then(|case| op.call(&case)).is_ok()
    })
}

/// The case with integers of this dtype instead of floats.
fn whole(case: &Case, dtype: DType) -> Result<Case> {
    case.map_floats(|t| t.mul_scalar(8.0)?.cast(dtype))
}

/// The results with NaN, infinities and zeros for some elements, and the gradients with such elements in the first differentiable
/// input alone: with infinite parameters, products of zero and infinity would depend on the order of the factors.
pub fn special(op: &Op, case: &Case, dtype: DType, device: &Device, seed: u64) -> Found {
    let case = &case.without(op.finite);
    let all = case.map_floats(|t| inject(t, seed)).map_err(text)?;
    let found = against_f64(op, &all, dtype, device, true)?;
    let Some(&first) = op.differentiable(case).first() else { return Ok(found) };
    let mut case = case.clone();
    case.inputs[first].1 = inject(&case.inputs[first].1, seed).map_err(text)?;
    let is_valid = narrow(&case, dtype).and_then(|case| op.reference().call(&case)).is_ok();
    if is_valid { Ok(found.or(gradients(op, &case, dtype, device)?)) } else { Ok(found) }
}

/// Replaces a quarter of few elements, or some hundred of many, so that some sums are finite.
fn inject(t: &Tensor, seed: u64) -> Result<Tensor> {
    const SPECIAL: [f64; 5] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0];
    let mut values = t.to_f64_vec()?;
    let mut draw = Gen::new(&[], seed, t.device());
    let one_in = values.len().div_ceil(100).max(4);
    for v in &mut values {
        if draw.below(one_in) == 0 {
            *v = draw.pick(&SPECIAL);
        }
    }
    Tensor::from_vec(values, t.shape(), t.device())
}

fn against_f64(op: &Op, case: &Case, dtype: DType, device: &Device, is_special: bool) -> Found {
    let narrow = narrow(case, dtype).map_err(text)?;
    let wide = self::narrow(&narrow, DType::F64).map_err(text)?;
    let reference = op.reference();
    let (got, exact) = match (outputs(op, &narrow, device), reference.exact(&wide)) {
        (Ok(got), Ok(exact)) => (got, exact),
        // Special values may be invalid, for example as probabilities.
        (Err(got), Err(exact)) if is_special && got.kind() == exact.kind() => return Ok(Distance::default()),
        (got, exact) => return Err(format!("{:?} in {dtype}, {:?} in f64: {case:?}", got.err(), exact.err()).into()),
    };
    let companions = reference.companion_of(&wide).map_err(text)?;
    let floats =
        |case: &Case| -> Result<Vec<Vec<f64>>> { reference.call(case)?.iter().map(Tensor::to_f64_vec).collect() };
    let errors = if op.class == Class::Stages { Some(errors_of_cpu(case, dtype, floats).map_err(text)?) } else { None };
    let each = (0..exact.len()).map(|k| {
        let (y, r) = (&got[k], &exact[k]);
        if !r.dtype().is_float() {
            return same_bits("the result", y, r);
        }
        if y.shape() != r.shape() || !y.dtype().is_float() {
            return Err(format!("the result is {} {}, expected {}", y.dtype(), y.shape(), r.shape()).into());
        }
        let values = |t: &Tensor| t.to_f64_vec();
        let measured = || -> Result<_> {
            let errors = errors.as_ref().map(|all| all[k].clone());
            let measures = Measures { companion: values(&companions[k])?, errors };
            Ok((values(y)?, values(r)?, bounds(reference, &wide, r, &measures, y.dtype(), device)?))
        };
        let (y_values, r_values, bounds) = measured().map_err(text)?;
        let found = measure(&y_values, &r_values, y.dtype(), |i| bounds[i])?;
        // After few operations on grid points, all roundings may have the same direction.
        if op.class != Class::Arithmetic {
            cancels(&y_values, &r_values, &bounds)?;
        }
        Ok(found)
    });
    worst(each).map_err(|miss| miss.told(|e| format!("{e}\n{}\n{:?}", case.attributes, narrow.inputs)))
}

/// The error of the CPU in a dtype relative to f64, for each element. In f64 it is the error in f32, scaled by the ratio of the
/// roundoffs.
fn errors_of_cpu(case: &Case, dtype: DType, compute: impl Fn(&Case) -> Result<Vec<Vec<f64>>>) -> Result<Vec<Vec<f64>>> {
    let (near, unit) = match dtype {
        DType::F64 => (narrow(case, DType::F32)?, precision(DType::F64).0 / precision(DType::F32).0),
        _ => (narrow(case, dtype)?, 1.0),
    };
    let pairs = compute(&near)?.into_iter().zip(compute(&narrow(&near, DType::F64)?)?);
    Ok(pairs.map(|(near, exact)| near.iter().zip(&exact).map(|(y, r)| (y - r).abs() * unit).collect()).collect())
}

type Gradients = Vec<Vec<f64>>;

/// The gradients of the inputs.
fn gradients_at(op: &Op, case: &Case, device: &Device) -> Result<Gradients> {
    let results = results(op, case, device)?;
    let dtypes = op.differentiable(case).into_iter().map(|i| case.inputs[i].1.dtype());
    let first = results.len().saturating_sub(dtypes.len());
    let pairs = results[first..].iter().zip(dtypes);
    let each = |(g, dtype): (&Tensor, DType)| match g.dtype() == dtype {
        true => g.to_f64_vec(),
        false => Err(Error::dtype(op.name, format!("a gradient is {}, its input {dtype}", g.dtype()))),
    };
    pairs.map(each).collect()
}

/// The gradients by the op whose results are right, on the CPU.
fn right_gradients(op: &Op, case: &Case) -> Result<Gradients> {
    gradients_at(op.reference(), case, &cpu())
}

/// The gradients in `dtype` against f64 on the CPU.
pub fn gradients(op: &Op, case: &Case, dtype: DType, device: &Device) -> Found {
    compare_gradients(op, case, dtype, 1, |case| gradients_at(op, case, device), |case| right_gradients(op, case))
}

/// Compares the results of `there` in a dtype with the results of `here` in f64 and in that dtype. `times` is the number of
/// [`cotangent`]s that arrive.
fn compare_gradients(
    op: &Op,
    case: &Case,
    dtype: DType,
    times: usize,
    there: impl Fn(&Case) -> Result<Gradients>,
    here: impl Fn(&Case) -> Result<Gradients>,
) -> Found {
    let narrow = narrow(case, dtype).map_err(text)?;
    let wide = self::narrow(&narrow, DType::F64).map_err(text)?;
    let (got, exact, errors) = (there(&narrow), here(&wide), errors_of_cpu(case, dtype, &here));
    let (got, exact, errors) = (got.map_err(text)?, exact.map_err(text)?, errors.map_err(text)?);
    let op = op.reference();
    let sums = sums(op, &wide).map_err(text)?;
    let arriving = Arriving::new(op, &wide, times as f64).map_err(text)?;
    let shapes: Vec<_> = op.differentiable(&wide).into_iter().map(|i| wide.inputs[i].1.shape()).collect();
    let slices = Slices::of_gradients(op, &wide, &shapes).map_err(text)?;
    if got.len() != exact.len() {
        return Err(format!("{} gradients, expected {} in {}", got.len(), exact.len(), shown(&narrow)).into());
    }
    let each = (0..exact.len()).map(|k| {
        let sums = sums.get(k).and_then(Option::as_ref);
        let bounds = gradient_bounds(op, &exact[k], &errors[k], sums, arriving, &slices[k], dtype);
        measure(&got[k], &exact[k], dtype, |i| bounds[i]).map_err(|miss| miss.told(|e| format!("gradient {k}, {e}")))
    });
    worst(each).map_err(|miss| miss.told(|e| format!("{e}\n{}\n{:?}", case.attributes, narrow.inputs)))
}

/// The summed terms of the gradients of expanded inputs: for each element, the gradients of inputs as large as the result.
fn sums(op: &Op, case: &Case) -> Result<Vec<Option<Sums>>> {
    let shape = op.call(case)?[0].shape().clone();
    let differentiable = op.differentiable(case);
    let is_smaller = |i: &usize| case.inputs[*i].1.shape() != &shape;
    if !op.category.has_operands() || !differentiable.iter().any(is_smaller) {
        return Ok(Vec::new());
    }
    let full = gradients_at(op, &case.map(|t| t.broadcast_to(&shape)?.copy())?, &cpu())?;
    let of = |(&i, g): (&usize, &Vec<f64>)| -> Result<Option<Sums>> {
        let t = &case.inputs[i].1;
        let sizes = Tensor::from_slice(g, &shape, &cpu())?.abs()?.sum_to_size(t.shape())?.to_f64_vec()?;
        Ok(Some(Sums { terms: shape.numel() / t.numel().max(1), companion: sizes }))
    };
    differentiable.iter().zip(&full).map(of).collect()
}

/// The gradient of each input if it is the only one with a gradient.
pub fn alone(op: &Op, case: &Case, dtype: DType, device: &Device) -> Found {
    let one_by_one = |case: &Case| -> Result<Gradients> {
        let case = case.to(device)?;
        let mut found = Vec::new();
        for i in op.differentiable(&case) {
            let mut case = case.clone();
            let leaf = case.inputs[i].1.require_grad()?;
            case.inputs[i].1 = leaf.clone();
            backward(&op.call(&case)?)?;
            found.extend(leaf.grad());
        }
        found.iter().map(Tensor::to_f64_vec).collect()
    };
    compare_gradients(op, case, dtype, 1, one_by_one, |case| right_gradients(op, case))
}

/// The fused kernels that a call and its gradients launch in f32 compute what their composites do. A kernel is left out if its inputs
/// are written later, by itself or by another, or if its outputs had values before.
pub fn composites(op: &Op, case: &Case, device: &Device) -> Found {
    let mut given = narrow(case, DType::F32).and_then(|case| case.to(device)).map_err(text)?;
    for i in op.differentiable(&given) {
        given.inputs[i].1 = given.inputs[i].1.require_grad().map_err(text)?;
    }
    let (done, steps) = tape::trace(|| backward(&op.call(&given)?));
    done.map_err(text)?;
    let kernels: Vec<&Ran> = steps
        .iter()
        .filter_map(|step| match step {
            Step::Kernel(ran) => Some(ran),
            Step::Op(_) => None,
        })
        .collect();
    let is_kept = |i: usize| {
        let (inputs, outputs) = (&kernels[i].inputs, &kernels[i].outputs);
        let writes = |kernels: &[&Ran], read: &[Tensor]| {
            kernels.iter().any(|ran| ran.outputs.iter().any(|y| read.iter().any(|x| x.shares_memory(y))))
        };
        let is_given = |y: &Tensor| given.inputs.iter().any(|(_, x)| x.shares_memory(y));
        !writes(&kernels[i..], inputs) && !writes(&kernels[..i], outputs) && !outputs.iter().any(is_given)
    };
    let fused = (0..kernels.len()).filter(|&i| kernels[i].fused.is_some() && !kernels[i].is_random && is_kept(i));
    let each = fused.map(|i| kernels[i]).flat_map(|ran| match ran.expanded() {
        Ok((found, _)) => ran.outputs.iter().zip(found).map(|(y, found)| like_composite(ran, y, found)).collect(),
        Err(error) => vec![Err(text(error).into())],
    });
    worst(each).map_err(|miss| miss.told(|e| format!("{e}\n{}", shown(case))))
}

/// An output of a fused kernel against that of its composite: the difference is at most 2e-4 of the largest element, and 1e-6 where
/// sums cancel.
fn like_composite(ran: &Ran, y: &Tensor, found: Option<Tensor>) -> Found {
    let Some(expected) = found.filter(|_| y.dtype().is_float()) else { return Ok(Distance::default()) };
    let (got, expected) = (y.to_f64_vec().map_err(text)?, expected.to_f64_vec().map_err(text)?);
    let largest = expected.iter().filter(|v| v.is_finite()).fold(0.0, |most: f64, v| most.max(v.abs()));
    let name = ran.fused.as_ref().map_or("", |fused| fused.name());
    measure(&got, &expected, y.dtype(), |_| 2e-4 * largest + 1e-6)
        .map_err(|miss| miss.told(|e| format!("{name} of {} and its composite: {e}", ran.op)))
}

/// Inputs used by two calls, and by one call twice: gradients are summed.
pub fn twice(op: &Op, case: &Case, dtype: DType, device: &Device) -> Found {
    let two_calls = |case: &Case| -> Result<Gradients> {
        let mut case = case.to(device)?;
        let differentiable = op.differentiable(&case);
        for &i in &differentiable {
            case.inputs[i].1 = case.inputs[i].1.require_grad()?;
        }
        let (first, second) = (op.call(&case)?, op.call(&case)?);
        let pairs = first.iter().zip(&second).filter(|(y, _)| y.requires_grad());
        backward(&pairs.map(|(a, b)| a.add_scaled(b, 2)).collect::<Result<Vec<_>>>()?)?;
        differentiable.iter().filter_map(|&i| case.inputs[i].1.grad()).map(|g| g.to_f64_vec()).collect()
    };
    let three_times = |case: &Case| -> Result<Gradients> {
        let once = right_gradients(op, case)?;
        Ok(once.into_iter().map(|g| g.into_iter().map(|v| 3.0 * v).collect()).collect())
    };
    let found = compare_gradients(op, case, dtype, 3, two_calls, three_times)?;
    let [a, b] = op.differentiable(case)[..] else { return Ok(found) };
    if case.inputs[a].1.shape() != case.inputs[b].1.shape() {
        return Ok(found);
    }
    // The second input is also the first.
    let mut case = case.clone();
    case.inputs[b].1 = case.inputs[a].1.clone();
    let one_leaf = |case: &Case| -> Result<Gradients> {
        let mut case = case.to(device)?;
        let leaf = case.inputs[a].1.require_grad()?;
        case.inputs[a].1 = leaf.clone();
        case.inputs[b].1 = leaf.clone();
        backward(&op.call(&case)?)?;
        leaf.grad().iter().map(Tensor::to_f64_vec).collect()
    };
    let sum = |case: &Case| -> Result<Gradients> {
        let [a, b] = right_gradients(op, case)?.try_into().unwrap_or_default();
        Ok(vec![a.iter().zip(&b).map(|(a, b)| a + b).collect()])
    };
    Ok(found.or(compare_gradients(op, &case, dtype, 1, one_leaf, sum)?))
}

/// For an op with a fused kernel, the composite on the same device is as accurate.
pub fn composite(op: &Op, case: &Case, dtype: DType, device: &Device) -> Found {
    let watched = Watched::new(device, Kernels::Composite);
    let found = forward(op, case, dtype, watched.device())?;
    let found = match op.derivative {
        Derivative::None(_) => found,
        _ => found.or(gradients(op, case, dtype, watched.device())?),
    };
    watched.check()?;
    Ok(found)
}

/// True if the op asks for a fused kernel that the device has.
pub fn asks_for_fused(op: &Op, case: &Case, dtype: DType, device: &Device) -> Fallible<bool> {
    let watched = Watched::new(device, Kernels::Any);
    narrow(case, dtype).and_then(|case| results(op, &case, watched.device())).map_err(text)?;
    Ok(watched.asked() > 0)
}

/// No kernel writes outside of its buffers, forward or backward.
pub fn guards(op: &Op, case: &Case, dtype: DType, device: &Device) -> Found {
    let watched = Watched::new(device, Kernels::Any);
    narrow(case, dtype).and_then(|case| results(op, &case, watched.device())).map_err(text)?;
    watched.check()?;
    Ok(Distance::default())
}

/// Two runs give the same bits, forward and backward.
pub fn repeats(op: &Op, case: &Case, dtype: DType, device: &Device) -> Found {
    let run = || narrow(case, dtype).and_then(|case| results(op, &case, device)).map_err(text);
    let (first, second) = (run()?, run()?);
    worst(first.iter().zip(&second).map(|(a, b)| same_bits("the second run", b, a)))
}

/// The numbers of kernels launched for the result, and for all gradients; `None` on a device without launches.
pub fn launches(op: &Op, case: &Case, dtype: DType, device: &Device) -> Fallible<Option<[u64; 2]>> {
    let count = || device.backend().launch_count().unwrap_or(0);
    if device.backend().launch_count().is_none() {
        return Ok(None);
    }
    let counted = || -> Result<[u64; 2]> {
        let mut case = narrow(case, dtype)?.to(device)?;
        for i in op.differentiable(&case) {
            case.inputs[i].1 = case.inputs[i].1.require_grad()?;
        }
        let before = count();
        let outputs = op.call(&case)?;
        let forward = count() - before;
        let mut backward = 0;
        for (k, y) in outputs.iter().enumerate().filter(|(_, y)| y.requires_grad()) {
            let (gradient, retain) = (Some(cotangent(y)?), k + 1 < outputs.len());
            let before = count();
            y.backward_with(&BackwardOptions { gradient, retain, ..Default::default() })?;
            backward += count() - before;
        }
        Ok([forward, backward])
    };
    counted().map(Some).map_err(text)
}

/// The number of launches is at most that of the row.
pub fn budget(op: &Op, case: &Case, dtype: DType, device: &Device) -> Found {
    let Some(found) = launches(op, case, dtype, device)? else { return Ok(Distance::default()) };
    for (k, pass) in ["forward", "backward"].into_iter().enumerate() {
        if found[k] > op.launches[k] {
            let message = format!("{} launches {pass}, at most {} are allowed", found[k], op.launches[k]);
            return Err(format!("{message} in {}", shown(case)).into());
        }
    }
    Ok(Distance::default())
}

/// Other memory layouts of the same elements.
fn layouts(t: &Tensor) -> Result<Vec<Tensor>> {
    if t.rank() > 0 && t.dims()[t.rank() - 1] == 0 {
        return Ok(Vec::new());
    }
    let reversed: Vec<isize> = (0..t.rank() as isize).rev().collect();
    let mut found = vec![t.permute(&reversed)?.copy()?.permute(&reversed)?];
    if t.rank() > 0 {
        // Every second element of the last dimension of a larger tensor, not from its start.
        let spread = Tensor::stack(&[&t.zeros_like()?, t], -1)?.flatten(-2, -1)?;
        found.push(spread.slice(-1, 1, spread.dims()[t.rank() - 1].max(1), 2)?);
    }
    Ok(found)
}

/// Strided and expanded inputs give the results of plain ones.
pub fn strided(op: &Op, case: &Case, dtype: DType, device: &Device) -> Found {
    let case = narrow(case, dtype).and_then(|case| case.to(device)).map_err(text)?;
    let mut worst = Distance::default();
    for (i, (name, t)) in case.inputs.iter().enumerate() {
        for other in layouts(t).map_err(text)? {
            let mut changed = case.clone();
            changed.inputs[i].1 = other;
            worst = worst
                .or(same_results(op, &case, &changed).map_err(|miss| miss.told(|e| format!("{name} strided: {e}")))?);
        }
        if t.rank() > 0 && t.dims()[0] > 0 {
            let row = t.narrow(0, 0, 1).map_err(text)?;
            let expanded = row.broadcast_to(t.shape()).map_err(text)?;
            let (mut plain, mut changed) = (case.clone(), case.clone());
            plain.inputs[i].1 = expanded.copy().map_err(text)?;
            changed.inputs[i].1 = expanded;
            worst = worst
                .or(same_results(op, &plain, &changed)
                    .map_err(|miss| miss.told(|e| format!("{name} expanded: {e}")))?);
        }
    }
    Ok(worst)
}

fn same_results(op: &Op, plain: &Case, changed: &Case) -> Found {
    let (expected, got) = match (run(op, plain), run(op, changed)) {
        (Ok(expected), Ok(got)) => (expected, got),
        (Err(a), Err(b)) if a.kind() == b.kind() => return Ok(Distance::default()),
        (a, b) => return Err(format!("{:?} and {:?} in {}", a.err(), b.err(), shown(plain)).into()),
    };
    let each = expected.iter().zip(&got).enumerate().map(|(k, (e, g))| {
        let what = format!("result {k}");
        // A product may add its terms in another order for another layout (at most four terms of at most 4), and so may several
        // products. A GPU may do so for any sum.
        let products = op.class == Class::Stages && op.category == Category::Matrix;
        let sums = *e.device() != cpu() && matches!(op.class, Class::Reduction | Class::Factors | Class::Stages);
        if !matches!(op.class, Class::Product | Class::Dense) && !products && !sums {
            return same_bits(&what, g, e);
        }
        let values = |t: &Tensor| t.to_f64_vec().map_err(text);
        let epsilon = 2.0 * precision(e.dtype()).0;
        close_values(&what, &values(g)?, &values(e)?, |e| epsilon * (64.0 + 16.0 * e.abs()))
    });
    worst(each)
}

/// The op as a function of its differentiable inputs, with its float outputs joined to one vector.
pub(crate) fn joined(op: &Op, case: &Case, differentiable: &[usize], x: &[Tensor]) -> Result<Tensor> {
    let mut case = case.clone();
    for (&i, t) in differentiable.iter().zip(x) {
        case.inputs[i].1 = t.clone();
    }
    let outputs = op.call(&case)?;
    let flat: Vec<Tensor> =
        outputs.iter().filter(|y| y.dtype().is_float()).map(|y| y.reshape(y.numel())).collect::<Result<_>>()?;
    Tensor::concat(&flat.iter().collect::<Vec<_>>(), 0)
}

fn points<'a>(case: &'a Case, differentiable: &[usize]) -> Vec<&'a Tensor> {
    differentiable.iter().map(|&i| &case.inputs[i].1).collect()
}

/// False for NaN, such as the mean of an empty tensor, which a difference quotient cannot check.
fn is_finite(y: &Tensor) -> Fallible<bool> {
    Ok(y.to_f64_vec().map_err(text)?.iter().all(|v| v.is_finite()))
}

fn values(inputs: &[&Tensor]) -> Vec<Tensor> {
    inputs.iter().map(|&t| t.clone()).collect()
}

/// First derivatives against finite differences, in f64.
pub fn gradcheck(op: &Op, case: &Case, device: &Device) -> Found {
    let case = case.to(device).map_err(text)?;
    let differentiable = op.differentiable(&case);
    let inputs = points(&case, &differentiable);
    let f = |x: &[Tensor]| joined(op, &case, &differentiable, x);
    if is_finite(&f(&values(&inputs)).map_err(text)?)? {
        let checked = tape::gradcheck(f, &inputs, &GradcheckOptions::default());
        checked.map_err(|e| format!("{e} in {}", shown(&case)))?;
    }
    Ok(Distance::default())
}

/// Second derivatives against finite differences, in f64. The gradient of `f(x) c` depends on `c` and `x` even if the gradient of
/// `f` is constant.
pub fn gradgradcheck(op: &Op, case: &Case, device: &Device) -> Found {
    let case = case.to(device).map_err(text)?;
    let differentiable = op.differentiable(&case);
    let inputs = points(&case, &differentiable);
    let y = joined(op, &case, &differentiable, &values(&inputs)).map_err(text)?;
    if !is_finite(&y)? {
        return Ok(Distance::default());
    }
    let weights = (0..y.numel()).map(|i| 0.5 + (i % 7) as f64 / 8.0).collect::<Vec<f64>>();
    let weights = Tensor::from_vec(weights, y.shape(), y.device()).map_err(text)?;
    let f = |x: &[Tensor]| {
        let (weights, x) = x.split_last().expect("the weights");
        joined(op, &case, &differentiable, x)?.mul(weights)
    };
    let all: Vec<&Tensor> = inputs.into_iter().chain([&weights]).collect();
    let checked = tape::gradgradcheck(f, &all, &GradcheckOptions::default());
    checked.map_err(|e| format!("{e} in {}", shown(&case)))?;
    Ok(Distance::default())
}

/// `<f(x), y> = <x, f*(y)>`, summed in f64 on the CPU: within 1e-12 of the sum of absolute values in f64, 1e-5 in f32.
pub fn adjoint(op: &Op, case: &Case, dtype: DType, device: &Device) -> Found {
    let check = || -> Result<(f64, f64, f64)> {
        let case = narrow(case, dtype)?.to(device)?;
        let differentiable = op.differentiable(&case);
        let x: Vec<Tensor> = points(&case, &differentiable).iter().map(|t| t.require_grad()).collect::<Result<_>>()?;
        let y = joined(op, &case, &differentiable, &x)?;
        let weights: Vec<f64> = (0..y.numel()).map(|i| ((i * 7919) % 13) as f64 / 8.0 - 0.75).collect();
        let gradient = Tensor::from_slice(&weights, y.shape(), &cpu())?.cast(y.dtype())?.to_device(y.device())?;
        let options = BackwardOptions { gradient: Some(gradient), ..Default::default() };
        let gradients = grad_with(&y, &x.iter().collect::<Vec<_>>(), &options)?;
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let y = y.to_f64_vec()?;
        let size = y.iter().zip(&weights).map(|(y, w)| (y * w).abs()).sum::<f64>();
        let mut backward = 0.0;
        for (x, g) in x.iter().zip(&gradients) {
            backward += product(&x.to_f64_vec()?, &g.to_f64_vec()?);
        }
        Ok((product(&y, &weights), backward, size))
    };
    let (forward, backward, size) = check().map_err(text)?;
    let bound = if dtype == DType::F64 { 1e-12 * (1.0 + size) } else { 1e-5 * size + 1e-6 };
    let bounds = (forward - backward).abs() / bound;
    match bounds <= 1.0 {
        true => Ok(Distance { bounds, ulps: 0.0 }),
        // The mean of an empty tensor.
        false if !size.is_finite() => Ok(Distance::default()),
        false => Err(format!("<f(x), y> = {forward}, <x, f*(y)> = {backward} in {}", shown(case)).into()),
    }
}

/// A result without a derivative is outside of the tape.
pub fn unrecorded(op: &Op, case: &Case, device: &Device) -> Found {
    let case = case.to(device).and_then(|case| case.map_floats(Tensor::require_grad)).map_err(text)?;
    match op.call(&case).map_err(text)?.iter().any(Tensor::requires_grad) {
        true => Err("the result is on the tape".to_string().into()),
        false => Ok(Distance::default()),
    }
}

/// An input or output changed in place between forward and backward: the backward pass either reports the change, or does not read
/// the tensor and returns the unchanged gradients.
pub fn stale(op: &Op, case: &Case, device: &Device) -> Found {
    let case = case.to(device).map_err(text)?;
    let Changed::Backward(plain) = after_change(op, &case, |_, _| None).map_err(text)? else {
        return Ok(Distance::default());
    };
    let outputs = op.call(&case).map_err(text)?.len();
    let inputs = case.inputs.iter().enumerate().map(|(i, (name, _))| (format!("the input {name}"), Ok(i)));
    let all = inputs.chain((0..outputs).map(|k| (format!("the output {k}"), Err(k))));
    worst(all.map(|(what, place)| {
        let changed = after_change(op, &case, |inputs, outputs| match place {
            Ok(i) => Some(inputs[i].1.clone()),
            Err(k) => Some(outputs[k].clone()),
        });
        match changed {
            Ok(Changed::Refused) => Ok(Distance::default()),
            Ok(Changed::Backward(gradients)) => {
                let what = format!("a gradient after a change of {what} in {}", shown(&case));
                worst(gradients.iter().zip(&plain).map(|(g, expected)| same_bits(&what, g, expected)))
            }
            Err(error) if error.to_string().contains("was changed in place") => Ok(Distance::default()),
            Err(error) => Err(format!("after a change of {what} in {}: {error}", shown(&case)).into()),
        }
    }))
}

/// The effect of a change.
enum Changed {
    /// The tensor cannot be changed: several elements share a position.
    Refused,
    /// The gradients after the change.
    Backward(Vec<Tensor>),
}

/// The gradients of copies of the inputs. A tensor of the call is overwritten after the forward pass.
fn after_change(
    op: &Op,
    case: &Case,
    which: impl Fn(&[(String, Tensor)], &[Tensor]) -> Option<Tensor>,
) -> Result<Changed> {
    let mut case = case.map(Tensor::copy)?;
    let differentiable = op.differentiable(&case);
    for &i in &differentiable {
        case.inputs[i].1 = case.inputs[i].1.require_grad()?;
    }
    let outputs = op.call(&case)?;
    if let Some(t) = which(&case.inputs, &outputs) {
        if t.layout().overlaps() {
            return Ok(Changed::Refused);
        }
        overwrite(&t)?;
    }
    backward(&outputs)?;
    Ok(Changed::Backward(differentiable.iter().filter_map(|&i| case.inputs[i].1.grad()).collect()))
}

/// Overwrites a tensor with other values that are always valid: NaN, the first index, the opposite mask.
fn overwrite(t: &Tensor) -> Result<()> {
    no_grad(|| match t.dtype() {
        DType::Bool => t.copy_(&t.logical_not()?),
        dtype if dtype.is_float() => t.fill_(f64::NAN),
        _ => t.fill_(0),
    })
}
