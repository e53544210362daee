//! Random programs of elementwise calls, views, reductions, draws, changes in place and gradients: a captured step of each computes the bits of
//! the plain one. So do steps in which a pass must leave some calls as they are.

use isograd::tape::{BackwardOptions, grad_with};
use isograd::{DType, Device, Result, Rng, Shape, Tensor};
use isograd_tests::harness::{Outcome, check, text, trial};
use isograd_tests::programs::{Program, equal, values};
use libtest_mimic::Trial;

/// Programs, unless `ISOGRAD_PROGRAMS` is another number.
const PROGRAMS: u64 = 25;
/// Programs of a trial.
const AT_ONCE: u64 = 5;

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
