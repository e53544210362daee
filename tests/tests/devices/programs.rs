//! Random programs of elementwise calls, views, reductions, draws, changes in place and gradients: a captured step of each computes the bits of
//! the plain one. So do steps in which a pass must leave some calls as they are.

use isograd::tape::{BackwardOptions, grad_with};
use isograd::{DType, Device, Result, Rng, Shape, Tensor};
use isograd_tests::harness::{Outcome, check, text, trial};
use libtest_mimic::Trial;

/// Programs, unless `ISOGRAD_PROGRAMS` is another number.
const PROGRAMS: u64 = 25;
/// Programs of a trial.
const AT_ONCE: u64 = 5;
/// Elements of the largest tensor.
const MOST: usize = 4096;

pub fn trials(device: &Device) -> Vec<Trial> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (first, count) = (number("ISOGRAD_PROGRAMS_FROM").unwrap_or(0), number("ISOGRAD_PROGRAMS").unwrap_or(PROGRAMS));
    let random = (first..first + count).step_by(AT_ONCE as usize).map(|from| {
        let at = device.clone();
        let seeds = from..(from + AT_ONCE).min(first + count);
        trial(device, "programs", &format!("captured_and_plain::{from:03}"), move || {
            for seed in seeds {
                if !same(&at, seed).map_err(|error| format!("program {seed}: {error}"))? {
                    break;
                }
            }
            Ok(())
        })
    });
    let check = |aspect, run| check(device, "programs", aspect, run);
    let known = [
        check("overlapping_views_are_apart", overlapping_views),
        check("what_changes_is_not_computed_again", computed_again),
        check("norms_and_softmaxes_by_hand_are_kernels_of_rows", by_hand),
        check("sums_over_columns_and_over_all_compute_what_they_add_up", sums),
        check("sums_of_the_same_elements_are_one_kernel", sums_together),
        check("slices_of_every_second_element_are_read_and_written_by_one_kernel", pairs),
        check("rows_that_threads_cannot_keep_are_read_before_they_change", long_rows),
        check("rows_that_begin_within_a_word_have_their_own_order", rows_of_a_view),
    ];
    random.chain(known).collect()
}

/// Numbers that are drawn the same way whenever a program runs: its choices.
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % n.max(1) as u64) as usize
    }

    fn of<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }
}

const DTYPES: [DType; 8] =
    [DType::F32, DType::F32, DType::BF16, DType::F16, DType::F64, DType::I64, DType::I32, DType::U8];
const EXTENTS: [usize; 10] = [1, 2, 3, 4, 5, 7, 8, 16, 33, 64];

/// The extents of the program's tensors. Other shapes follow from them, with 1 for an extent, or without the first.
fn extents(seed: u64) -> Vec<usize> {
    let mut choices = Choices(seed ^ 0x5eed);
    let rank = 1 + choices.below(3);
    let mut dims: Vec<usize> = (0..rank).map(|_| choices.of(&EXTENTS)).collect();
    while dims.iter().product::<usize>() > MOST / 2 {
        let largest = dims.iter_mut().max().expect("there is a dimension");
        *largest = largest.div_ceil(2);
    }
    if choices.below(20) == 0 {
        dims[rank - 1] = 0;
    }
    dims
}

fn shape(dims: &[usize], choices: &mut Choices) -> Shape {
    let mut dims = dims.to_vec();
    match choices.below(6) {
        0 => {
            let d = choices.below(dims.len());
            dims[d] = 1;
        }
        1 => drop(dims.remove(0)),
        _ => (),
    }
    Shape::from(&dims[..])
}

fn values(shape: &Shape, dtype: DType, seed: u64, device: &Device) -> Result<Tensor> {
    let x = Tensor::randn(shape, 0.0, 2.0, DType::F32, device, &Rng::new(seed))?;
    x.mul_scalar(if dtype.is_float() { 1.0 } else { 10.0 })?.cast(dtype)
}

/// A step: inputs and states are its tensors, a generator draws.
struct Program {
    seed: u64,
    device: Device,
    rng: Rng,
    states: Vec<Tensor>,
}

impl Program {
    fn new(seed: u64, device: &Device) -> Result<Program> {
        let (dims, mut choices) = (extents(seed), Choices(seed ^ 0xface));
        let states = (0..3).map(|i| values(&shape(&dims, &mut choices), choices.of(&DTYPES), seed + i, device));
        Ok(Program { seed, device: device.clone(), rng: Rng::new(seed), states: states.collect::<Result<_>>()? })
    }

    /// Inputs of a run.
    fn inputs(&self, run: u64) -> Result<Vec<Tensor>> {
        let (dims, mut choices) = (extents(self.seed), Choices(self.seed));
        let one = |i| values(&shape(&dims, &mut choices), choices.of(&DTYPES), 100 * run + i, &self.device);
        (0..4).map(one).collect()
    }

    fn run(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let mut choices = Choices(self.seed.wrapping_mul(977) + 1);
        let mut pool: Vec<Tensor> = inputs.into_iter().chain(self.states.iter().cloned()).collect();
        for _ in 0..5 + choices.below(56) {
            // A call that its operands do not suit makes nothing, in every run.
            if let Ok(made) = self.call(&pool, &mut choices) {
                pool.extend(made.into_iter().filter(|t| t.numel() <= MOST));
            }
        }
        let count = pool.len();
        // Copies, since a state may change later.
        let last = pool.split_off(count.saturating_sub(3));
        let any = (0..2 + choices.below(12)).map(|_| choices.of(&pool)).collect::<Vec<_>>();
        last.iter().chain(&any).map(Tensor::copy).collect()
    }

    fn call(&self, pool: &[Tensor], choices: &mut Choices) -> Result<Vec<Tensor>> {
        // Mostly of what was made last.
        let recent = pool.len().saturating_sub(1 + choices.below(12));
        let a = choices.of(&pool[recent..]);
        let b = pool[choices.below(pool.len())].clone();
        let one = |t: Result<Tensor>| t.map(|t| vec![t]);
        match choices.below(30) {
            0..=6 => one(unary(&a, choices)),
            7..=11 => one(binary(&a, &b.cast(a.dtype())?, choices)),
            12..=14 => one(scalar(&a, choices)),
            15 | 16 => one(a.cast(choices.of(&DTYPES))),
            17 => one(a.gt(&b.cast(a.dtype())?)?.where_cond(&a, &b.cast(a.dtype())?)),
            18 | 19 => one(view(&a, choices)),
            20 => one(match choices.below(3) {
                0 => a.sum_keepdim(-1isize),
                1 => a.keepdim(-1isize, |t, axes| t.mean(axes)),
                _ => a.keepdim(0isize, |t, axes| t.sum(axes)),
            }),
            21 | 22 => one(Ok(self.change(&a, &b, choices)?)),
            23 => one(Tensor::rand(a.shape(), -1.0, 1.0, DType::F32, &self.device, &self.rng)),
            24 => one(Tensor::full(a.shape(), 1.0 / (1 + choices.below(7)) as f64, a.dtype(), &self.device)),
            25 => one(Tensor::from_vec(vec![choices.below(9) as f32 - 4.0; a.numel()], a.shape(), &self.device)),
            26 => one(a.copy()),
            _ => gradients(&a, &b, choices),
        }
    }

    /// Changes a state, or a view of one, and returns it.
    fn change(&self, a: &Tensor, b: &Tensor, choices: &mut Choices) -> Result<Tensor> {
        let state = if choices.below(4) == 0 { a.detach() } else { choices.of(&self.states) };
        let target = if choices.below(2) == 0 { view(&state, choices)? } else { state.clone() };
        let from = b.cast(target.dtype())?.broadcast_to(target.shape())?;
        match choices.below(4) {
            // From memory of its own: the source may be a view of the target.
            0 => target.add_(&from.mul_scalar(1)?)?,
            1 => target.mul_(&from.mul_scalar(1)?)?,
            2 => target.copy_(&from.copy()?)?,
            _ => target.fill_(choices.below(5) as f64)?,
        }
        Ok(state)
    }
}

fn unary(a: &Tensor, choices: &mut Choices) -> Result<Tensor> {
    match choices.below(14) {
        0 => a.neg(),
        1 => a.abs(),
        2 => a.square(),
        3 => a.sigmoid(),
        4 => a.tanh(),
        5 => a.sin(),
        6 => a.relu(),
        7 => a.silu(),
        8 => a.abs()?.sqrt(),
        9 => a.abs()?.add_scalar(1)?.log(),
        10 => a.sigmoid()?.exp(),
        11 => a.abs()?.log1p(),
        12 => a.expm1(),
        _ => a.square()?.add_scalar(0.5)?.rsqrt(),
    }
}

fn binary(a: &Tensor, b: &Tensor, choices: &mut Choices) -> Result<Tensor> {
    match choices.below(6) {
        0 | 1 => a.add(b),
        2 => a.sub(b),
        3 => a.mul(b),
        4 => a.maximum(b),
        _ => a.div(&b.abs()?.add_scalar(1)?),
    }
}

fn scalar(a: &Tensor, choices: &mut Choices) -> Result<Tensor> {
    let number = choices.below(5) as i64 - 2;
    match choices.below(5) {
        0 | 1 => a.mul_scalar(number),
        2 => a.add_scalar(number),
        3 => a.pow_scalar(2 + choices.below(2) as i64),
        _ => a.rsub_scalar(number),
    }
}

fn view(a: &Tensor, choices: &mut Choices) -> Result<Tensor> {
    let d = choices.below(a.rank().max(1));
    match choices.below(if a.rank() > 0 { 4 } else { 1 }) {
        0 => a.transpose(0isize, -1isize),
        1 => {
            let extent = a.shape()[d];
            let start = choices.below(extent);
            a.narrow(d as isize, start, 1 + choices.below(extent - start))
        }
        2 => a.reshape(a.numel()),
        _ => a.reshape((1, a.numel()))?.broadcast_to((2, a.numel())),
    }
}

/// A gradient of a few calls, or the gradient of a gradient. The second operand, which may broadcast, may have one too.
fn gradients(a: &Tensor, b: &Tensor, choices: &mut Choices) -> Result<Vec<Tensor>> {
    let leaf = a.detach().require_grad()?;
    let other = b.detach().cast(a.dtype())?;
    let is_leaf = choices.below(2) == 0 && other.dtype().is_float();
    let other = if is_leaf { other.require_grad()? } else { other };
    let mut y = leaf.clone();
    for _ in 0..1 + choices.below(4) {
        y = match choices.below(if is_leaf { 2 } else { 3 }) {
            0 => binary(&y, &other, choices)?,
            1 => scalar(&y, choices)?,
            _ => unary(&y, choices)?,
        };
    }
    let is_second = choices.below(3) == 0;
    let options = BackwardOptions { create_graph: is_second, ..BackwardOptions::default() };
    let leaves = if is_leaf { vec![&leaf, &other] } else { vec![&leaf] };
    let mut found = grad_with(&y.square()?.sum(..)?, &leaves, &options)?;
    if is_second && found[0].requires_grad() {
        found = grad_with(&found[0].square()?.sum(..)?, &leaves, &BackwardOptions::default())?;
    }
    Ok(found.iter().chain([&y]).map(Tensor::detach).collect())
}

/// Whether two tensors have the same bits, or NaN of any bits.
fn equal(a: &Tensor, b: &Tensor) -> Result<bool> {
    if a.shape() != b.shape() || a.dtype() != b.dtype() {
        return Ok(false);
    }
    if a.to_bytes()? == b.to_bytes()? {
        return Ok(true);
    }
    let (a_values, b_values) = (a.to_f64_vec()?, b.to_f64_vec()?);
    let same = |(x, y): (&f64, &f64)| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
    Ok(a.dtype().is_float() && a_values.iter().zip(&b_values).all(same))
}

/// Compares plain runs of a program with captured ones; false if the device does not record.
fn same(device: &Device, seed: u64) -> std::result::Result<bool, String> {
    let (plain, captured) = (Program::new(seed, device).map_err(text)?, Program::new(seed, device).map_err(text)?);
    let mut step = device.capture(|inputs: Vec<Tensor>| captured.run(inputs));
    for run in 0..4 {
        let inputs = || plain.inputs(run).map_err(text);
        let (expected, got) = (plain.run(inputs()?).map_err(text)?, step.run(inputs()?).map_err(text)?);
        if run == 1 && !step.is_recorded() {
            return Ok(false);
        }
        let pairs = expected.iter().zip(&got).chain(plain.states.iter().zip(&captured.states));
        for (i, (a, b)) in pairs.enumerate() {
            if !equal(a, b).map_err(text)? {
                let explanation = step.explain().unwrap_or_default();
                return Err(format!("run {run}, tensor {i}: {b} captured, {a} plain\n{explanation}"));
            }
        }
    }
    Ok(true)
}

/// Compares plain runs of a step over a state with captured ones. Returns how the step was captured; none if the device does not record.
fn same_with_state(
    device: &Device,
    step: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<std::result::Result<Option<String>, String>> {
    let state = || Tensor::full((SIDE, SIDE), 0.5, DType::F32, device);
    let (plain, captured) = (state()?, state()?);
    let mut recorded = device.capture(|x: Tensor| step(&x, &captured));
    for run in 0..4 {
        let x = Tensor::rand((SIDE, SIDE), -1.0, 1.0, DType::F32, device, &Rng::new(run))?;
        let (expected, got) = (step(&x, &plain)?, recorded.run(x)?);
        for (what, a, b) in [("result", &expected, &got), ("state", &plain, &captured)] {
            if !equal(a, b)? {
                let explanation = recorded.explain().unwrap_or_default();
                return Ok(Err(format!("run {run}: the {what} is {b} captured, {a} plain\n{explanation}")));
            }
        }
    }
    Ok(Ok(if recorded.is_recorded() { Some(recorded.explain().unwrap_or_default()) } else { None }))
}

/// Rows and columns of a state.
const SIDE: usize = 32;

/// Calls that read and write different elements of one memory are not in one kernel, whose threads would not wait for each other.
fn overlapping_views(device: &Device) -> Result<Outcome> {
    let transposed = |x: &Tensor, state: &Tensor| {
        state.add_(x)?;
        state.t()?.mul_scalar(2)
    };
    let windows = |x: &Tensor, state: &Tensor| {
        let window = |t: &Tensor, start: usize| t.narrow(0, start, SIDE - 1);
        window(state, 0)?.add_(&window(x, 0)?)?;
        let sum = window(state, 1)?.add(&window(x, 1)?)?;
        window(state, 1)?.mul_(&window(x, 1)?)?;
        sum.sub(&window(state, 0)?)
    };
    Ok(same_with_state(device, transposed)?.and(same_with_state(device, windows)?).map(drop))
}

/// Of an input and a parameter.
type Function = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// A softmax and a norm in plain ops, with gradients: one kernel each way, in which threads hold a row through several reductions.
fn by_hand(device: &Device) -> Result<Outcome> {
    let softmax: Function = |x, w| {
        let s = x.tanh()?.mul_scalar(0.7)?.mul(w)?;
        let e = s.sub(&s.detach().amax_keepdim(-1isize)?)?.exp()?;
        e.div(&e.sum_keepdim(-1isize)?)
    };
    let norm: Function = |x, w| {
        let x = x.sigmoid()?.sin()?;
        let c = x.sub(&x.keepdim(-1isize, |t, axes| t.mean(axes))?)?;
        let v = c.square()?.keepdim(-1isize, |t, axes| t.mean(axes))?;
        c.mul(&v.add_scalar(1e-5)?.rsqrt()?)?.mul(w)
    };
    for (rows, length) in [(5, 64), (3, 512), (2, 24)] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let w = values(&Shape::from(length), dtype, 1, device)?;
            for f in [softmax, norm] {
                let step = |x: Tensor| {
                    let (x, w) = (x.require_grad()?, w.detach().require_grad()?);
                    let y = f(&x, &w)?;
                    let found = grad_with(&y.square()?.sum(..)?, &[&x, &w], &BackwardOptions::default())?;
                    Ok([vec![y.detach()], found].concat())
                };
                let mut captured = device.capture(step);
                for run in 0..3 {
                    let x = values(&Shape::from((rows, length)), dtype, 7 + run, device)?;
                    let (expected, got) = (step(x.clone())?, captured.run(x)?);
                    for (i, (a, b)) in expected.iter().zip(&got).enumerate() {
                        if !equal(a, b)? {
                            let text = captured.explain().unwrap_or_default();
                            return Ok(Err(format!("{dtype} {rows}x{length}, run {run}, result {i}\n{text}")));
                        }
                    }
                }
                let text = captured.explain().unwrap_or_default();
                if captured.is_recorded() && !text.contains("one kernel of") {
                    return Ok(Err(format!("nothing is fused\n{text}")));
                }
            }
        }
    }
    Ok(Ok(()))
}

/// Sums and means over other dimensions than the last, and over many elements, of what elementwise calls make: one kernel each.
fn sums(device: &Device) -> Result<Outcome> {
    let columns: Function = |x, w| x.sub(w)?.square()?.sum(0isize);
    let middle: Function = |x, w| x.mul(w)?.tanh()?.mean([0isize, 2]);
    let all: Function = |x, w| x.sub(w)?.square()?.mul_scalar(0.5)?.mean(..);
    let total: Function = |x, w| x.sub(w)?.abs()?.sqrt()?.mul(w)?.sum(..);
    let masked: Function = |x, w| x.mul(&w.narrow(-1, 0, 1)?)?.sum(1isize);
    let of_rows: Function = |x, w| x.mul(&w.narrow(1, 0, 1)?.narrow(-1, 3, 1)?)?.sum([1isize, 2]);
    for (name, f, shape) in [
        ("columns", columns, &[640, 48][..]),
        ("columns", columns, &[3000, 8]),
        ("middle", middle, &[6, 32, 64]),
        ("all", all, &[1 << 19]),
        ("all", all, &[512, 1024]),
        ("total", total, &[1 << 19]),
        ("masked", masked, &[6, 32, 64]),
        ("of_rows", of_rows, &[40, 6, 64]),
    ] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let w = values(&Shape::from(shape), dtype, 1, device)?;
            let mut captured = device.capture(|x: Tensor| f(&x, &w));
            for run in 0..3 {
                let x = values(&Shape::from(shape), dtype, 7 + run, device)?;
                let (expected, got) = (f(&x, &w)?, captured.run(x)?);
                if !equal(&expected, &got)? {
                    let text = captured.explain().unwrap_or_default();
                    return Ok(Err(format!("{name} {dtype} {shape:?}, run {run}: {expected} {got}\n{text}")));
                }
            }
            let text = captured.explain().unwrap_or_default();
            if captured.is_recorded() && text.contains("Reduce(") {
                return Ok(Err(format!("{name} {dtype} {shape:?}: the sum is a call of its own\n{text}")));
            }
        }
    }
    Ok(Ok(()))
}

/// Norms of rows and of channels by hand: the gradients of gain and bias are one kernel, which computes the normalised elements again.
fn sums_together(device: &Device) -> Result<Outcome> {
    fn normalised(x: &Tensor, axes: &[isize]) -> Result<Tensor> {
        let c = x.sub(&x.mean_keepdim(axes)?)?;
        c.mul(&c.square()?.mean_keepdim(axes)?.add_scalar(1e-5)?.rsqrt()?)
    }
    for (axes, dims, of_gain) in [(&[-1isize][..], &[96, 64][..], &[64][..]), (&[0, 2, 3], &[6, 16, 8, 8], &[16, 1, 1])]
    {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let [w, b] = [1, 2].map(|seed| values(&Shape::from(of_gain), dtype, seed, device));
            let (w, b) = (w?, b?);
            let step = |x: Tensor| {
                let [x, w, b] = [&x, &w, &b].map(|t| t.detach().require_grad());
                let (x, w, b) = (x?, w?, b?);
                let y = normalised(&x, axes)?.mul(&w)?.add(&b)?;
                grad_with(&y.tanh()?.sum(..)?, &[&x, &w, &b], &BackwardOptions::default())
            };
            let mut captured = device.capture(step);
            for run in 0..3 {
                let x = values(&Shape::from(dims), dtype, 7 + run, device)?;
                let (expected, got) = (step(x.clone())?, captured.run(x)?);
                for (i, (a, b)) in expected.iter().zip(&got).enumerate() {
                    if !equal(a, b)? {
                        let text = captured.explain().unwrap_or_default();
                        return Ok(Err(format!("{dtype} {dims:?}, run {run}, result {i}\n{text}")));
                    }
                }
            }
            let text = captured.explain().unwrap_or_default();
            let sums = |line: &str| line.split(" -> ").nth(1).map_or(0, |results| results.matches("[1, ").count());
            if captured.is_recorded() && text.lines().all(|line| sums(line) < 2) {
                return Ok(Err(format!("{dtype} {dims:?}: each sum is a kernel of its own\n{text}")));
            }
        }
    }
    Ok(Ok(()))
}

/// A rotation of neighbouring elements.
fn pairs(device: &Device) -> Result<Outcome> {
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::I64] {
        let [cos, sin] = [1, 2].map(|seed| values(&Shape::from((24, 1, 16)), dtype, seed, device));
        let (cos, sin) = (cos?, sin?);
        let step = |x: Tensor| {
            let halves = x.reshape((2, 24, 3, 16, 2))?;
            let (a, b) = (halves.select(-1, 0)?, halves.select(-1, 1)?);
            let turned = [a.mul(&cos)?.sub(&b.mul(&sin)?)?, a.mul(&sin)?.add(&b.mul(&cos)?)?];
            Tensor::stack(&[&turned[0], &turned[1]], -1)?.reshape((2, 24, 3, 32))
        };
        let mut captured = device.capture(step);
        for run in 0..3 {
            let x = values(&Shape::from((2, 24, 3, 32)), dtype, 7 + run, device)?;
            let (expected, got) = (step(x.clone())?, captured.run(x)?);
            if !equal(&expected, &got)? {
                return Ok(Err(format!("{dtype}, run {run}\n{}", captured.explain().unwrap_or_default())));
            }
        }
        let text = captured.explain().unwrap_or_default();
        if captured.is_recorded() && !text.contains("one kernel of 8 calls") {
            return Ok(Err(format!("{dtype}: several kernels\n{text}")));
        }
    }
    Ok(Ok(()))
}

/// Calls on rows of several operands, more than registers hold, and a change in place of what was read.
fn long_rows(device: &Device) -> Result<Outcome> {
    let shape = Shape::from((256, 512));
    let of = |seed| values(&shape, DType::F32, seed, device);
    let (others, state) = ([of(1)?, of(2)?, of(3)?], of(4)?);
    let f = |x: &Tensor, state: &Tensor| {
        let mixed = x.mul(&others[0])?.add(&others[1].mul(&others[2])?)?.add(state)?;
        let c = mixed.sub(&mixed.keepdim(-1isize, |t, axes| t.mean(axes))?)?;
        state.add_(&c.mul_scalar(0.5)?)?;
        c.square()?.sum_keepdim(-1isize)
    };
    let (own, mut plain) = (state.copy()?, Vec::new());
    for run in 0..4 {
        plain.push(f(&of(10 + run)?, &own)?);
    }
    let mut step = device.capture(|x: Tensor| f(&x, &state));
    for (run, expected) in (0..).zip(&plain) {
        if !equal(expected, &step.run(of(10 + run)?)?)? {
            return Ok(Err(format!("run {run}\n{}", step.explain().unwrap_or_default())));
        }
    }
    Ok(if equal(&own, &state)? { Ok(()) } else { Err("the state has other bits".into()) })
}

/// Rows of a view, which begin within a word.
fn rows_of_a_view(device: &Device) -> Result<Outcome> {
    let f = |x: &Tensor| {
        let rows = x.narrow(1, 1, 64)?;
        rows.sub(&rows.keepdim(-1isize, |t, axes| t.sum(axes))?)
    };
    let of = |seed| values(&Shape::from((37, 67)), DType::F32, seed, device);
    let mut step = device.capture(|x: Tensor| f(&x));
    for run in 0..3 {
        if !equal(&f(&of(run)?)?, &step.run(of(run)?)?)? {
            return Ok(Err(format!("run {run}\n{}", step.explain().unwrap_or_default())));
        }
    }
    Ok(Ok(()))
}

/// A call that stands between a value and its reader.
#[derive(Clone, Copy, Debug)]
enum Between {
    Nothing,
    /// What the value is computed from changes.
    OfOperand,
    /// The value itself changes.
    OfValue,
    /// The reader reads other elements.
    Transpose,
}

/// The reader of a value computes it again instead of loading it, unless it would be another value by then.
fn computed_again(device: &Device) -> Result<Outcome> {
    for between in [Between::Nothing, Between::OfOperand, Between::OfValue, Between::Transpose] {
        let step = |x: &Tensor, state: &Tensor| {
            let value = x.mul(&state.narrow(0, 0, 1)?)?;
            let powers = value.exp()?;
            if matches!(between, Between::OfValue) {
                value.add_(x)?;
            }
            // Separates the reader's kernel from that of the value.
            let sums = powers.cumsum(0)?;
            if matches!(between, Between::OfOperand) {
                state.add_(&state.mul_scalar(1)?)?;
            }
            let scaled = x.mul(&sums)?;
            scaled.mul(&if matches!(between, Between::Transpose) { value.t()? } else { value })
        };
        match same_with_state(device, step)? {
            Err(why) => return Ok(Err(format!("{between:?}: {why}"))),
            // Else the other steps would show nothing.
            Ok(Some(explanation)) if matches!(between, Between::Nothing) && !explanation.contains("computed again") => {
                return Ok(Err(format!("nothing is computed again:\n{explanation}")));
            }
            Ok(_) => (),
        }
    }
    Ok(Ok(()))
}
