//! Every op with wrong arguments, and random chains of views against a plain host model.

use isograd::tape::BackwardOptions;
use isograd::{DType, Device, Dims, Error, Kind, Result, Rng, Shape, Tensor};
use isograd_parity::case::{Case, Domain, Gen};
use isograd_parity::check::shown;
use isograd_parity::registry::{OPS, Op};
use isograd_tests::cpu;
use isograd_tests::harness::{self, for_all, for_shapes, private, text, trial};
use libtest_mimic::Trial;
use proptest::prelude::any;
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub fn trials(device: &Device) -> Vec<Trial> {
    // Arguments are checked in core, whatever the device; elsewhere each new shape may be a kernel to compile.
    let few = if *device == cpu() { 1 } else { 16 };
    let wrong = OPS.iter().map(|op| {
        let at = device.clone();
        let check = move || for_shapes(1000 / few, |shape, seed| wrong_arguments(op, &mut Gen::new(shape, seed, &at)));
        trial(device, op.name, "wrong_arguments", check)
    });
    let views: [(&str, Check); 2] = [("random_strides", random_strides), ("wrong_arguments", wrong_views)];
    let views = views.map(|(aspect, check)| {
        let at = device.clone();
        let run = move || {
            let device = private(&at);
            for_all(500 / few, &any::<u64>(), |seed| check(&mut Gen::new(&[], seed, &device)))
        };
        trial(device, "views", aspect, run)
    });
    let at = device.clone();
    let huge = trial(device, "factories", "huge_shapes", move || huge_shapes(&at));
    harness::sampled(device, &["wrong_arguments", "random_strides", "huge_shapes"], wrong.chain(views).chain([huge]))
}

type Check = fn(&mut Gen) -> Result<(), String>;

/// A call that should fail.
type Attempt<'a> = Box<dyn Fn() -> Result<Tensor> + 'a>;

/// What panics is an error of the test that tells why.
fn caught<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", message.unwrap_or("without a message")))
    })
}

/// A valid call with one argument broken gives a result or an error that names the op, and never a panic.
fn wrong_arguments(op: &Op, g: &mut Gen) -> Result<(), String> {
    let mut case = (op.make)(g);
    break_one(&mut case, g).map_err(text)?;
    caught(|| call(op, &case)).map_err(|e| format!("{e} in {}", shown(&case)))
}

fn call(op: &Op, case: &Case) -> Result<(), String> {
    let mut leaves = case.clone();
    for i in op.differentiable(case) {
        leaves.inputs[i].1 = leaves.inputs[i].1.require_grad().map_err(text)?;
    }
    match op.call(&leaves) {
        Ok(outputs) => outputs.iter().filter(|y| y.requires_grad()).try_for_each(backward),
        Err(error) => {
            let name = op.name;
            let names = [name].into_iter().chain(op.also.iter().copied());
            let shapes: Vec<&Shape> = case.inputs.iter().map(|(_, t)| t.shape()).collect();
            named(&error, &names.collect::<Vec<_>>(), &shapes)
        }
    }
}

/// What was accepted has a gradient; a view of more elements than memory holds is not filled.
fn backward(y: &Tensor) -> Result<(), String> {
    if y.numel() > 1 << 20 {
        return Ok(());
    }
    let gradient = Some(y.detach().ones_like().map_err(text)?);
    let options = BackwardOptions { gradient, retain: true, ..Default::default() };
    y.backward_with(&options).map_err(|e| format!("backward of what was accepted: {e}"))
}

/// An error names the op, and one of shapes also the shapes of two inputs (of one if there is one).
fn named(error: &Error, names: &[&str], shapes: &[&Shape]) -> Result<(), String> {
    if !names.contains(&error.op()) {
        return Err(format!("the error names none of {names:?}: {error}"));
    }
    let shows = |s: &&&Shape| error.message().contains(&s.to_string());
    if error.kind() == Kind::Shape && shapes.iter().filter(shows).count() < shapes.len().min(2) {
        return Err(format!("the error does not show the shapes {shapes:?}: {error}"));
    }
    Ok(())
}

/// Breaks one argument at random.
fn break_one(case: &mut Case, g: &mut Gen) -> Result<()> {
    let mut attributes: Vec<&mut Value> =
        case.attributes.as_object_mut().into_iter().flatten().map(|(_, v)| v).collect();
    let choices = case.inputs.len() + attributes.len();
    match g.below(choices) {
        _ if choices == 0 => {}
        i if i < case.inputs.len() => break_input(case, i, g)?,
        i => {
            let value = &mut attributes[i - case.inputs.len()];
            **value = wrong_value(value, g);
        }
    }
    Ok(())
}

fn break_input(case: &mut Case, i: usize, g: &mut Gen) -> Result<()> {
    let t = case.inputs[i].1.clone();
    let is_index = t.dtype() == DType::I64 && t.numel() > 0;
    case.inputs[i].1 = match g.below(if is_index { 5 } else { 4 }) {
        0 | 1 => {
            let shape: Vec<usize> = (0..g.below(6)).map(|_| g.below(6)).collect();
            if shape.iter().product::<usize>() > 300 {
                return Ok(());
            }
            g.tensor(Domain::Real, &shape).cast(t.dtype())?
        }
        2 => t.cast(g.pick(&DType::ALL))?,
        3 => {
            case.inputs.remove(i);
            return Ok(());
        }
        _ => {
            let mut values = t.to_vec::<i64>()?;
            let at = g.below(values.len());
            values[at] = g.pick(&[-1, -100, 5, 1000, i64::MIN, i64::MAX]);
            Tensor::from_vec(values, t.shape(), t.device())?
        }
    };
    Ok(())
}

/// Another value in place of an attribute's: out of any range, of another type, or none.
fn wrong_value(value: &Value, g: &mut Gen) -> Value {
    if let Some(list) = value.as_array()
        && !list.is_empty()
        && g.coin()
    {
        let mut list = list.clone();
        let at = g.below(list.len());
        list[at] = wrong_value(&list[at], g);
        return list.into();
    }
    let huge = 1u64 << 40;
    let choices = [
        json!(i64::MIN),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(-1),
        json!(-9),
        json!(9),
        json!(0),
        json!(huge),
        json!(0.5),
        json!(-0.5),
        json!(1e308),
        json!("nan"),
        json!("inf"),
        json!("-inf"),
        json!(true),
        json!([]),
        json!([-1, 0]),
        json!([0, 0]),
        json!([huge, huge]),
        json!([huge, 3]),
        json!([1u64 << 62, 2, 0]),
        json!([1, 1, 1, 1, 1, 1, 1, 1, 1]),
        Value::Null,
    ];
    choices[g.below(choices.len())].clone()
}

/// Factories refuse shapes that cannot be counted, and those that no machine has memory for.
fn huge_shapes(device: &Device) -> Result<(), String> {
    let rng = Rng::new(1);
    for n in [1 << 44, 1 << 59, 1 << 60, usize::MAX / 2, usize::MAX] {
        let calls: [(&str, Attempt<'_>); 6] = [
            ("zeros", Box::new(|| Tensor::zeros(n, DType::F16, device))),
            ("eye", Box::new(|| Tensor::eye(n, DType::Bool, device))),
            ("arange", Box::new(|| Tensor::arange(n, device))),
            ("rand", Box::new(|| Tensor::rand((3, n), 0.0, 1.0, DType::F32, device, &rng))),
            ("randn", Box::new(|| Tensor::randn((n, 0, n), 0.0, 1.0, DType::F32, device, &rng))),
            ("bernoulli", Box::new(|| Tensor::bernoulli((n, 8), 0.5, device, &rng))),
        ];
        for (op, call) in &calls {
            let result = caught(|| Ok(call())).map_err(|e| format!("{op} of {n}: {e}"))?;
            let error = result.err().ok_or_else(|| format!("{op} of {n} was accepted"))?;
            named(&error, &[op], &[])?;
        }
    }
    match rng.state().offset {
        0 => Ok(()),
        n => Err(format!("{n} blocks were drawn")),
    }
}

/// The host's copy of a view: its extents and its elements in row-major order.
#[derive(Clone, Debug)]
struct Model {
    dims: Vec<usize>,
    values: Vec<f64>,
}

impl Model {
    /// The elements at `source(p)` for every index `p` of `dims`.
    fn map(&self, dims: Vec<usize>, source: impl Fn(&[usize]) -> Vec<usize>) -> Model {
        let mut values = Vec::new();
        for i in 0..dims.iter().product() {
            let (mut index, mut rest) = (vec![0; dims.len()], i);
            for (p, d) in index.iter_mut().zip(&dims).rev() {
                (*p, rest) = (rest % d, rest / d);
            }
            let at = source(&index).iter().zip(&self.dims).fold(0, |at, (p, d)| at * d + p);
            values.push(self.values[at]);
        }
        Model { dims, values }
    }

    fn transpose(&self, a: usize, b: usize) -> Model {
        let swapped = |list: &[usize]| {
            let mut list = list.to_vec();
            list.swap(a, b);
            list
        };
        self.map(swapped(&self.dims), swapped)
    }

    fn permute(&self, perm: &[usize]) -> Model {
        self.map(perm.iter().map(|&p| self.dims[p]).collect(), |index| {
            (0..perm.len()).map(|d| index[perm.iter().position(|&p| p == d).expect("a permutation")]).collect()
        })
    }

    fn slice(&self, dim: usize, start: usize, stop: usize, step: usize) -> Model {
        let mut dims = self.dims.clone();
        dims[dim] = (start..stop).step_by(step).count();
        self.map(dims, |index| {
            let mut index = index.to_vec();
            index[dim] = start + step * index[dim];
            index
        })
    }

    fn select(&self, dim: usize, at: usize) -> Model {
        let mut dims = self.dims.clone();
        dims.remove(dim);
        self.map(dims, |index| {
            let mut index = index.to_vec();
            index.insert(dim, at);
            index
        })
    }

    fn expand(&self, dims: Vec<usize>) -> Model {
        let new = dims.len() - self.dims.len();
        self.map(dims, |index| index[new..].iter().zip(&self.dims).map(|(&p, &d)| p.min(d - 1)).collect())
    }
}

/// A chain of views has the elements that the model says, and holds the first tensor's memory and no other.
fn random_strides(g: &mut Gen) -> Result<(), String> {
    let dims: Vec<usize> = (0..g.below(5)).map(|_| g.below(5)).collect();
    let values: Vec<f64> = (0..dims.iter().product::<usize>()).map(|i| i as f64).collect();
    let mut model = Model { dims, values };
    let device = g.tensor(Domain::Real, &[]).device().clone();
    let first = Tensor::from_slice(&model.values, &model.dims, &device).map_err(text)?;
    let before = device.memory().in_use;
    let (mut view, mut chain) = (first.clone(), first.shape().to_string());
    for _ in 0..1 + g.below(6) {
        let (next, expected, what) = step(&view, &model, g).map_err(text)?;
        (view, model) = (next, expected);
        chain += &format!(" {what}");
    }
    if !view.shares_memory(&first) || device.memory().in_use != before {
        return Err(format!("{chain}: the memory was copied"));
    }
    if view.dims() != model.dims {
        return Err(format!("{chain}: the shape is {}, expected {:?}", view.shape(), model.dims));
    }
    let values = view.to_f64_vec().map_err(text)?;
    if values != model.values {
        return Err(format!("{chain}: got {values:?}, expected {:?}", model.values));
    }
    Ok(())
}

/// One random view of a view, and of its model.
fn step(view: &Tensor, model: &Model, g: &mut Gen) -> Result<(Tensor, Model, String)> {
    let rank = model.dims.len();
    let dim = g.below(rank);
    let signed = |d: usize, g: &mut Gen| if g.coin() { d as isize } else { d as isize - rank as isize };
    let extent = model.dims.get(dim).copied().unwrap_or(0);
    match g.below(6) {
        0 if rank > 0 => {
            let other = g.below(rank);
            let (a, b) = (signed(dim, g), signed(other, g));
            Ok((view.transpose(a, b)?, model.transpose(dim, other), format!("transpose {a} {b}")))
        }
        1 => {
            let mut perm: Vec<usize> = (0..rank).collect();
            (1..rank).rev().for_each(|i| perm.swap(i, g.below(i + 1)));
            let given: Vec<isize> = perm.iter().map(|&p| signed(p, g)).collect();
            Ok((view.permute(&given)?, model.permute(&perm), format!("permute {given:?}")))
        }
        2 if rank > 0 => {
            let start = g.below(extent + 1);
            let length = g.below(extent - start + 1);
            let y = view.narrow(signed(dim, g), start, length)?;
            Ok((y, model.slice(dim, start, start + length, 1), format!("narrow {dim} {start} {length}")))
        }
        3 if rank > 0 => {
            let start = g.below(extent + 1);
            let (stop, step) = (start + g.below(extent - start + 1), 1 + g.below(4));
            let y = view.slice(signed(dim, g), start, stop, step)?;
            Ok((y, model.slice(dim, start, stop, step), format!("slice {dim} {start}..{stop} by {step}")))
        }
        4 if extent > 0 => {
            let at = g.below(extent);
            let given = if g.coin() { at as isize } else { at as isize - extent as isize };
            Ok((view.select(signed(dim, g), given)?, model.select(dim, at), format!("select {dim} {given}")))
        }
        _ => {
            let grown = |d: usize, g: &mut Gen| if d == 1 { g.below(4) } else { d };
            let mut dims: Vec<usize> = model.dims.iter().map(|&d| grown(d, g)).collect();
            if rank < 5 && g.coin() {
                dims.insert(0, g.below(4));
            }
            Ok((view.expand(&dims)?, model.expand(dims.clone()), format!("expand {dims:?}")))
        }
    }
}

/// Arguments of views that do not fit are errors that name the op and show the shape.
fn wrong_views(g: &mut Gen) -> Result<(), String> {
    let dims: Vec<usize> = (0..g.below(5)).map(|_| g.below(5)).collect();
    let x = g.tensor(Domain::Real, &dims);
    let x = if g.coin() { x } else { x.require_grad().map_err(text)? };
    let rank = dims.len().max(1) as isize;
    let far = g.pick(&[rank, rank + 7, -rank - 1, isize::MAX, isize::MIN]);
    let dim = g.below(rank as usize) as isize;
    let extent = dims.get(dim as usize).copied().unwrap_or(0);
    let beyond = g.pick(&[extent + 1, usize::MAX, usize::MAX / 2]);
    let within = g.below(extent + 1);
    let mut other: Dims = dims.iter().copied().collect();
    match other.first_mut() {
        Some(d) if *d != 1 => *d += 1,
        _ => other.insert(0, usize::MAX),
    }
    let mut twice: Vec<isize> = (0..dims.len() as isize).collect();
    twice.push(0);
    let calls: [(&str, Attempt<'_>); 12] = [
        ("transpose", Box::new(|| x.transpose(far, 0))),
        ("transpose", Box::new(|| x.transpose(-1, far))),
        ("permute", Box::new(|| x.permute(&twice))),
        ("permute", Box::new(|| x.permute(&[far]))),
        ("narrow", Box::new(|| x.narrow(far, 0, 0))),
        ("narrow", Box::new(|| x.narrow(dim, beyond, 0))),
        ("narrow", Box::new(|| x.narrow(dim, within, beyond))),
        ("narrow", Box::new(|| x.slice(dim, within, beyond, 1))),
        ("narrow", Box::new(|| x.slice(dim, 0, 0, 0))),
        ("select", Box::new(|| x.select(far, 0))),
        ("select", Box::new(|| x.select(dim, beyond.min(isize::MAX as usize) as isize))),
        ("broadcast_to", Box::new(|| x.expand(Shape::from(other.clone())))),
    ];
    for (i, (op, call)) in calls.iter().enumerate() {
        let result = caught(|| Ok(call())).map_err(|e| format!("{op} ({i}) of {}: {e}", x.shape()))?;
        let error = result.err().ok_or_else(|| format!("{op} ({i}) of {} was accepted", x.shape()))?;
        named(&error, &[op], &[])?;
        if !error.message().contains(&x.shape().to_string()) {
            return Err(format!("{op} ({i}): the error does not show {}: {error}", x.shape()));
        }
    }
    Ok(())
}
