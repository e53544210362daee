//! What holds on every device: the CPU's random bits, memory that comes back, errors after which all goes on, and captured
//! steps.

// What is written for users runs on every device.
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/custom_op.rs"]
mod custom_op;

use isograd::custom::{CustomOp, Gradient, Launch, Source};
use isograd::nn::{AdamW, Fan, Forward, Gain, Init, Linear, Optimizer};
use isograd::ops::loss::Reduction;
use isograd::ops::{Conv, Interpolate, Interpolation, Pad, Padding, Rounding, Sampling};
use isograd::parity::case::{Case, Domain, Gen};
use isograd::parity::{Extent, Options, Report, registry, run_ops};
use isograd::tape::{BackwardOptions, grad_with};
use isograd::{DType, Determinism, Device, Kind, Result, Rng, Tensor};
use isograd_parity::compare::same_bits;
use isograd_tests::cpu;
use isograd_tests::harness::{private, text, trial};
use libtest_mimic::Trial;

pub fn trials(device: &Device) -> Vec<Trial> {
    let check = |op: &str, aspect: &str, run: fn(&Device) -> std::result::Result<(), String>| {
        let at = device.clone();
        trial(device, op, aspect, move || run(&at))
    };
    let trials: Vec<Trial> = vec![
        check("random", "the_bits_of_the_cpu", draws),
        check("init", "the_bits_of_the_cpu", initial_values),
        check("dropout", "the_bits_of_the_cpu", dropout),
        check("sample_logits", "the_tokens_of_the_cpu", tokens),
        check("to_device", "gradients_come_back", |d| between_devices(d).map_err(text)?),
        check("memory", "a_thousand_steps_hold_no_more_than_ten", |d| steps(d).map_err(text)?),
        check("memory", "too_much_is_refused_and_the_next_call_works", too_much),
        check("upload", "many_copies_in_a_row_arrive_before_their_uses", |d| uploads(d).map_err(text)?),
        check("gather", "a_bad_index_is_an_error_and_the_next_call_works", bad_index),
        check("scatter_add", "a_bad_index_is_an_error_and_the_next_call_works", bad_index_of_a_scatter),
        check("scatter_add", "sums_in_any_order_are_near", |d| any_order(d).map_err(text)?),
        check("capture", "a_replay_is_the_next_step", replays),
        check("capture", "a_result_that_is_kept_does_not_change", |d| kept_results(d).map_err(text)?),
        check("capture", "a_result_on_another_thread_does_not_change", |d| results_of_a_thread(d).map_err(text)?),
        check("capture", "reductions_have_the_same_bits_again", |d| repeated(d).map_err(text)?),
        check("capture", "what_cannot_be_replayed_is_an_error", refusals),
        check("capture", "a_bad_index_of_a_replay_is_an_error", bad_index_of_a_replay),
        check("capture", "an_error_of_a_result_that_nobody_reads_is_told", unread_errors),
        check("capture", "memory_comes_back", |d| captured_memory(d).map_err(text)?),
        check("conv2d", "elements_of_the_padding_add_nothing", |d| absent(d).map_err(text)?),
        check("conv2d", "a_captured_step_has_the_gradients_of_a_plain_one", |d| captured_windows(d).map_err(text)?),
        check("interpolate", "positions_of_nearest_elements_are_exact", |d| nearest(d).map_err(text)?),
        check("interpolate", "a_replay_is_the_plain_call", |d| replayed_images(d).map_err(text)?),
        check("custom_op", "the_example_passes_all_checks", example),
        check("custom_op", "what_its_kernel_does_wrong_is_found", wrong_kernel),
        check("custom_op", "inputs_of_two_dtypes_and_numbers", |d| numbers(d).map_err(text)?),
        check("custom_op", "what_does_not_compile_gives_the_log", bad_source),
        check("custom_op", "a_gradient_that_is_not_there_is_an_error", |d| bad_gradients(d).map_err(text)?),
    ];
    trials
}

/// Copies of several sizes, of which the large ones may run beside the queue, while work uses the memory of earlier ones.
fn uploads(device: &Device) -> Result<std::result::Result<(), String>> {
    let sums = (0..24).map(|i| {
        let n = [40_000, 5, 70_001, 16_384][i % 4];
        let values: Vec<i32> = (0..n).map(|k| (k % 7 + i) as i32).collect();
        let expected: i64 = values.iter().map(|v| 3 * *v as i64).sum();
        let x = Tensor::from_vec(values, n, device)?;
        Ok((x.add(&x)?.add(&x)?.sum(..)?, expected))
    });
    for (i, (got, expected)) in sums.collect::<Result<Vec<_>>>()?.into_iter().enumerate() {
        let got = got.to_vec::<i64>()?;
        if got != [expected] {
            return Ok(Err(format!("copy {i}: the sum is {got:?}, expected {expected}")));
        }
    }
    Ok(Ok(()))
}

/// Windows of 3 x 3 over x `[2, 2, 4, 5]`, and how far apart they are.
const WINDOWS: Conv<2> = Conv { stride: [2, 1], padding: Padding::Each([1, 2]), dilation: [1, 2], groups: 1 };

/// Calls `f` with the positions in y `[2, 3, 2, 5]`, x and the weight `[3, 2, 3, 3]` of each product of [`WINDOWS`] within x.
fn each_product(mut f: impl FnMut(usize, usize, usize)) {
    let at = |dims: [usize; 4], i: [usize; 4]| ((i[0] * dims[1] + i[1]) * dims[2] + i[2]) * dims[3] + i[3];
    let places = (0..2).flat_map(|q| (0..5).flat_map(move |r| (0..9).map(move |k| [q, r, k / 3, k % 3])));
    for [q, r, i, j] in places {
        // Positions in x, one and two elements after those without padding.
        let (row, column) = (q * 2 + i, r + j * 2);
        if !(1..5).contains(&row) || !(2..7).contains(&column) {
            continue;
        }
        for k in 0..12 {
            let [n, c, o] = [k / 6, k / 3 % 2, k % 3];
            let x = at([2, 2, 4, 5], [n, c, row - 1, column - 2]);
            f(at([2, 3, 2, 5], [n, o, q, r]), x, at([3, 2, 3, 3], [o, c, i, j]));
        }
    }
}

/// Weights and gradients that are infinite or NaN, beside the padding: only products with elements of x count.
fn absent(device: &Device) -> Result<std::result::Result<(), String>> {
    let normal =
        |shape: &[usize], seed| Tensor::randn(shape, 0.0, 1.0, DType::F32, &cpu(), &Rng::new(seed))?.to_vec::<f32>();
    let (x, mut w, mut g) = (normal(&[2, 2, 4, 5], 1)?, normal(&[3, 2, 3, 3], 2)?, normal(&[2, 3, 2, 5], 3)?);
    (w[0], w[13], w[53]) = (f32::INFINITY, f32::NAN, f32::NEG_INFINITY);
    (g[0], g[14], g[59]) = (f32::INFINITY, f32::NEG_INFINITY, f32::NAN);
    let [mut y, mut dx, mut dw] = [vec![0.0; 60], vec![0.0; 80], vec![0.0; 54]];
    each_product(|at, i, k| {
        y[at] += x[i] * w[k];
        dx[i] += g[at] * w[k];
        dw[k] += g[at] * x[i];
    });
    let tensor = |values: Vec<f32>, shape: [usize; 4]| Tensor::from_vec(values, shape, device);
    let (x, w) = (tensor(x, [2, 2, 4, 5])?.require_grad()?, tensor(w, [3, 2, 3, 3])?.require_grad()?);
    let result = x.conv2d(&w, None, &WINDOWS)?;
    let options = BackwardOptions { gradient: Some(tensor(g, [2, 3, 2, 5])?), ..Default::default() };
    let found = grad_with(&result, &[&x, &w], &options)?;
    for (what, found, expected) in [("y", &result, y), ("dx", &found[0], dx), ("dw", &found[1], dw)] {
        for (i, (a, b)) in found.to_vec::<f32>()?.into_iter().zip(expected).enumerate() {
            if !(a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-4 * (1.0 + b.abs())) {
                return Ok(Err(format!("{what}, element {i}: {a}, expected {b}")));
            }
        }
    }
    Ok(Ok(()))
}

fn captured_windows(device: &Device) -> Result<std::result::Result<(), String>> {
    let w = Tensor::randn((3, 2, 3, 3), 0.0, 1.0, DType::F32, device, &Rng::new(1))?.require_grad()?;
    let step = |x: Tensor| {
        let x = x.require_grad()?;
        let loss = x.conv2d(&w, None, &WINDOWS)?.square()?.sum(..)?;
        let mut found = grad_with(&loss, &[&x, &w], &BackwardOptions::default())?;
        Ok((found.swap_remove(0), found.swap_remove(0)))
    };
    let mut captured = device.capture(step);
    for seed in 0..3 {
        let x = Tensor::randn((2, 2, 4, 5), 0.0, 1.0, DType::F32, device, &Rng::new(seed))?;
        let (plain, replayed) = (step(x.clone())?, captured.run(x)?);
        if plain.0.to_bytes()? != replayed.0.to_bytes()? || plain.1.to_bytes()? != replayed.1.to_bytes()? {
            return Ok(Err(format!("run {seed}: the gradients of a captured step are others")));
        }
    }
    Ok(Ok(()))
}

/// The position in the input of output `o` is `o input / output`, rounded down, in integers.
fn nearest(device: &Device) -> Result<std::result::Result<(), String>> {
    // Products that f32 rounds to the wrong side of an integer, such as 3 (7 / 3).
    for (input, output) in [(7, 3), (9, 7), (49, 7), (100, 41), (41, 100), (1000, 7), (3, 1000), (1023, 1024)] {
        let x = Tensor::from_vec((0..input).map(|i| i as f32).collect(), (1, input), device)?;
        for (mode, half) in [(Interpolation::Nearest, 0), (Interpolation::NearestExact, 1)] {
            let y = x.interpolate(&Interpolate::size([output]).mode(mode))?.to_vec::<f32>()?;
            let expected: Vec<f32> = (0..output).map(|o| ((2 * o + half) * input / (2 * output)) as f32).collect();
            if y != expected {
                return Ok(Err(format!("{input} to {output}, {mode:?}: {y:?}, expected {expected:?}")));
            }
        }
    }
    Ok(Ok(()))
}

/// Interpolations and paddings, and their gradients, of a captured step. Their tables are on the device before the replay.
fn replayed_images(device: &Device) -> Result<std::result::Result<(), String>> {
    let images = |x: &Tensor| {
        let y = x.interpolate(&Interpolate::scale([2.0, 1.5]).mode(Interpolation::Cubic))?;
        y.pad(&[[2, 1], [1, 2]], Pad::Reflect)
    };
    let step = |x: Tensor| {
        let x = x.require_grad()?;
        let y = images(&x)?;
        let dx = grad_with(&y.square()?.sum(..)?, &[&x], &BackwardOptions::default())?.swap_remove(0);
        Ok((y.detach(), dx))
    };
    let mut captured = device.capture(step);
    for seed in 0..4 {
        let x = Tensor::rand((2, 3, 4, 6), -1.0, 1.0, DType::F32, device, &Rng::new(seed))?;
        let (plain, replayed) = (step(x.clone())?, captured.run(x)?);
        for (what, a, b) in [("images", &plain.0, &replayed.0), ("gradient", &plain.1, &replayed.1)] {
            if a.to_bytes()? != b.to_bytes()? {
                return Ok(Err(format!("run {seed}: the {what} of a captured step are others")));
            }
        }
    }
    Ok(Ok(()))
}

/// Compares what `make` makes on a device and on the CPU.
fn same_as_the_cpu(
    device: &Device,
    what: &str,
    make: &dyn Fn(&Device) -> Result<Tensor>,
) -> std::result::Result<(), String> {
    let (there, here) = (make(device).map_err(text)?, make(&cpu()).map_err(text)?);
    same_bits(what, &there, &here).map(drop).map_err(|miss| miss.why)
}

/// Sizes below, at and above a block of draws and a group of threads, and states in the middle of a block.
fn draws(device: &Device) -> std::result::Result<(), String> {
    for n in [1, 3, 4, 5, 255, 1024, 100_003] {
        let rng = || Rng::new(n as u64);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            same_as_the_cpu(device, "uniform", &|d| Tensor::rand(n, -2.0, 3.0, dtype, d, &rng()))?;
            same_as_the_cpu(device, "normal", &|d| Tensor::randn(n, 1.0, 2.0, dtype, d, &rng()))?;
        }
        same_as_the_cpu(device, "bernoulli", &|d| Tensor::bernoulli(n, 0.3, d, &rng()))?;
        same_as_the_cpu(device, "the second draw", &|d| {
            let rng = rng();
            Tensor::rand(n, 0.0, 1.0, DType::F32, d, &rng)?;
            Tensor::randn(n, 0.0, 1.0, DType::F32, d, &rng)
        })?;
    }
    Ok(())
}

/// Rows of many words, some beginning between words, of logits that are far apart and of logits with many ties.
fn tokens(device: &Device) -> std::result::Result<(), String> {
    let n = Sampling { num_samples: 3, ..Sampling::default() };
    let samplings = [
        n,
        Sampling { top_k: 50, top_p: 0.9, ..n },
        Sampling { top_k: 20_000, top_p: 0.9, ..n },
        Sampling { top_p: 0.9, temperature: 0.7, ..n },
    ];
    for (shape, dtype) in [((2, 50_257), DType::F32), ((2, 50_257), DType::BF16), ((1, 262_144), DType::F32)] {
        let logits = Tensor::randn(shape, 0.0, 3.0, dtype, &cpu(), &Rng::new(8)).map_err(text)?;
        for logits in [logits.round().map_err(text)?, logits] {
            for sampling in samplings {
                same_as_the_cpu(device, &format!("{sampling:?} of {dtype} {shape:?}"), &|d| {
                    logits.to_device(d)?.sample_logits(&sampling, &Rng::new(9))
                })?;
            }
        }
    }
    Ok(())
}

fn initial_values(device: &Device) -> std::result::Result<(), String> {
    let shape = (37, 53);
    type Make = fn(&Init) -> Result<Tensor>;
    let all: [(&str, Make); 6] = [
        ("uniform", |i| i.uniform((37, 53), -0.1, 0.1)),
        ("normal", |i| i.normal((37, 53), 0.0, 0.02)),
        ("truncated_normal", |i| i.truncated_normal((37, 53), 0.0, 1.0, -2.0, 2.0)),
        ("kaiming_uniform", |i| i.kaiming_uniform((37, 53), Fan::In, Gain::Relu)),
        ("xavier_normal", |i| i.xavier_normal((37, 53), Gain::Linear)),
        ("linear", |i| Ok(Linear::new(53, 37, i)?.weight.detach())),
    ];
    for (name, make) in all {
        same_as_the_cpu(device, name, &|d| {
            let made = make(&Init::new(d).seed(3))?;
            assert_eq!(*made.shape(), shape.into());
            Ok(made.detach())
        })?;
    }
    Ok(())
}

fn dropout(device: &Device) -> std::result::Result<(), String> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        same_as_the_cpu(device, "dropout", &|d| Tensor::ones((7, 1001), dtype, d)?.dropout(0.3, &Rng::new(5)))?;
    }
    Ok(())
}

/// Sums by an index of rows, of elements that move together, and of elements that do not, some of them many times, onto
/// something, words and what is no whole word.
fn any_order(device: &Device) -> Result<std::result::Result<(), String>> {
    let device = private(device);
    device.set_determinism(Determinism::AnyOrder);
    for (dtype, roundoff) in [(DType::F32, 2f64.powi(-24)), (DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))]
    {
        for (rows, columns) in [(300, 64), (300, 63), (5, 64)] {
            let draw = |n: usize, seed| Tensor::rand((n, columns), 0.5, 1.0, dtype, &cpu(), &Rng::new(seed));
            let index = |f: &dyn Fn(usize, usize) -> usize| {
                let all = (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j)));
                Tensor::from_vec(all.map(|(i, j)| (f(i, j) % 41) as i64).collect(), (rows, columns), &cpu())
            };
            let (onto, source) = (draw(41, 1)?, draw(rows, 2)?);
            let alike = index(&|i, _| i * i)?;
            for index in
                [&alike.narrow(1, 0, 1)?.broadcast_to((rows, columns))?, &alike, &index(&|i, j| i * i + j / 5)?]
            {
                let there = onto.to_device(&device)?;
                let got =
                    there.scatter_add(0, &index.to_device(&device)?, &source.to_device(&device)?)?.to_f64_vec()?;
                let wide = onto.cast(DType::F64)?;
                let exact = wide.scatter_add(0, index, &source.cast(DType::F64)?)?.to_f64_vec()?;
                // A rounding for each of the at most 15 rows of an index, and one at the end.
                let bound = 16.0 * 2.0 * roundoff;
                if let Some(i) = (0..exact.len()).find(|&i| (got[i] - exact[i]).abs() > bound * exact[i]) {
                    return Ok(Err(format!(
                        "{dtype} {rows}x{columns}: element {i}: got {}, expected {}",
                        got[i], exact[i]
                    )));
                }
            }
        }
    }
    let (x, bad) = (Tensor::ones((4, 8), DType::F32, &device)?, Tensor::full((4, 8), 4, DType::I64, &device)?);
    let found = x.scatter_add(0, &bad, &x).and_then(|y| y.to_vec::<f32>());
    Ok(match found.map_err(|e| e.kind()) {
        Err(Kind::Index) => Ok(()),
        other => Err(format!("a bad index: {other:?}")),
    })
}

/// A small classifier, of sizes that fit no tile, with what it is trained by.
struct Classifier {
    init: Init,
    first: Linear,
    second: Linear,
    optimizer: AdamW,
}

impl Classifier {
    fn new(device: &Device) -> Result<Classifier> {
        let init = Init::new(device).seed(1);
        let (first, second) = (Linear::new(13, 37, &init)?, Linear::new(37, 5, &init)?);
        let parameters = [&first, &second].into_iter().flat_map(|l| [Some(l.weight.clone()), l.bias.clone()]);
        let optimizer = AdamW::from_parameters(parameters.flatten().collect()).clip_norm(1.0);
        Ok(Classifier { init, first, second, optimizer })
    }

    fn step(&mut self, x: &Tensor, classes: &Tensor) -> Result<Tensor> {
        let hidden = self.first.forward(x)?.relu()?.dropout(0.1, self.init.rng())?;
        // A tensor from the host is a part of the step too.
        let weights = Tensor::from_vec(vec![1.0f32, 2.0, 0.5, 1.0, 3.0], 5, x.device())?;
        let loss = self.second.forward(&hidden)?.mul(&weights)?.cross_entropy(classes)?;
        loss.backward()?;
        self.optimizer.step()?;
        Ok(loss)
    }
}

/// Batch `i` for the classifier.
fn batch(i: u64, device: &Device) -> Result<(Tensor, Tensor)> {
    let x = Tensor::randn((19, 13), 0.0, 1.0, DType::F32, device, &Rng::new(i))?;
    let classes = (0..19).map(|k| (k + i as i64) % 5).collect();
    Ok((x, Tensor::from_vec::<i64>(classes, 19, device)?))
}

fn steps(device: &Device) -> Result<std::result::Result<(), String>> {
    let device = private(device);
    let mut classifier = Classifier::new(&device)?;
    let (x, classes) = batch(0, &device)?;
    let mut step = || classifier.step(&x, &classes).map(drop);
    (0..10).try_for_each(|_| step())?;
    device.synchronize()?;
    let held = device.memory();
    (0..990).try_for_each(|_| step())?;
    device.synchronize()?;
    let then = device.memory();
    Ok(if then == held { Ok(()) } else { Err(format!("{held:?} after 10 steps, {then:?} after 1000")) })
}

fn too_much(device: &Device) -> std::result::Result<(), String> {
    let error = Tensor::zeros(1usize << 46, DType::F32, device).err().ok_or("256 TiB were there")?;
    if error.kind() != Kind::OutOfMemory || !error.to_string().contains(&(1u64 << 48).to_string()) {
        return Err(format!("{error}"));
    }
    still_works(device)
}

fn bad_index(device: &Device) -> std::result::Result<(), String> {
    // Alone on its device: whoever waits next is told of a bad index.
    let device = &private(device);
    let x = Tensor::ones((4, 3), DType::F32, device).map_err(text)?;
    for value in [4i64, -1, i64::MAX] {
        let index = Tensor::from_vec(vec![0, value, 2], 3, device).map_err(text)?;
        // In checked mode the call fails, otherwise what waits for it.
        let read = x.index_select(0, &index).and_then(|y| y.to_vec::<f32>());
        let error = read.err().ok_or("a bad index was read")?;
        if error.kind() != Kind::Index || !error.to_string().contains(&format!("is {value}, expected 0..4")) {
            return Err(format!("{error}"));
        }
        still_works(device)?;
    }
    Ok(())
}

/// One index for all elements of a row.
fn bad_index_of_a_scatter(device: &Device) -> std::result::Result<(), String> {
    // Alone on its device, as above.
    let device = &private(device);
    let scattered = || {
        let table = Tensor::ones((700, 1024), DType::F16, device)?;
        let rows = Tensor::from_vec((0..300).map(|i| 401 + i).collect::<Vec<i64>>(), (300, 1), device)?;
        let index = rows.broadcast_to((300, 1024))?.copy()?;
        table.scatter_add(0, &index, &table.narrow(0, 0, 300)?)?.to_f64_vec()
    };
    let error = scattered().err().ok_or("a bad index was written to")?;
    if error.kind() != Kind::Index || !error.to_string().contains("is 700, expected 0..700") {
        return Err(format!("{error}"));
    }
    still_works(device)
}

fn still_works(device: &Device) -> std::result::Result<(), String> {
    let sum =
        Tensor::ones(1000, DType::F32, device).and_then(|x| x.sum(..)).and_then(|x| x.item::<f64>()).map_err(text)?;
    if sum == 1000.0 { Ok(()) } else { Err(format!("a sum is {sum}")) }
}

/// Reductions whose parts meet in memory, one after another, plain and captured in turns: each finds that memory as it was.
fn repeated(device: &Device) -> Result<std::result::Result<(), String>> {
    let all = |x: &Tensor| -> Result<Vec<Tensor>> {
        let row = x.reshape(x.numel())?;
        let half = x.narrow(0, 0, 1)?;
        let losses = x.mse_loss(&x.mul_scalar(0.5)?, Reduction::Mean)?;
        let found = [row.argmax(0)?, x.argmax(1)?].map(|at| at.cast(x.dtype()));
        let [position, positions] = found;
        Ok(vec![
            x.sum(..)?,
            half.mean(..)?,
            x.sum(1)?,
            x.amax(..)?,
            position?,
            positions?,
            x.logsumexp(..)?,
            half.logsumexp(..)?,
            x.var(.., 1.0)?,
            x.amin(1)?,
            losses,
        ])
    };
    for dtype in [DType::BF16, DType::F32] {
        let x =
            Tensor::randn((3, 60_001), 0.0, 1.0, DType::F32, &cpu(), &Rng::new(4))?.cast(dtype)?.to_device(device)?;
        let first = all(&x)?;
        let mut captured = device.capture(|x: Tensor| all(&x));
        for turn in 0..5 {
            let plain = all(&x)?;
            for again in [plain, captured.run(x.clone())?, captured.run(x.clone())?] {
                for (k, (a, b)) in first.iter().zip(&again).enumerate() {
                    if let Err(miss) = same_bits(&format!("{dtype}, result {k} of turn {turn}"), a, b) {
                        return Ok(Err(miss.why));
                    }
                }
            }
        }
        let exact = all(&x.to_device(&cpu())?.cast(DType::F64)?)?;
        for (k, (y, r)) in first.iter().zip(&exact).enumerate() {
            let (y, r) = (y.to_f64_vec()?, r.to_f64_vec()?);
            if let Some((y, r)) = y.iter().zip(&r).find(|(y, r)| (**y - **r).abs() > 0.01 * r.abs().max(1.0)) {
                return Ok(Err(format!("{dtype}, result {k}: {y}, not {r}")));
            }
        }
    }
    Ok(Ok(()))
}

/// Losses of captured steps and of plain ones, with a learning rate that changes and draws between the steps.
fn replays(device: &Device) -> std::result::Result<(), String> {
    let losses = |captured: bool| -> Result<Vec<f32>> {
        let mut classifier = Classifier::new(device)?;
        let rng = classifier.init.rng().clone();
        let optimizer = std::rc::Rc::new(std::cell::RefCell::new(&mut classifier));
        let mut step = |(x, classes): (Tensor, Tensor)| optimizer.borrow_mut().step(&x, &classes);
        let mut recorded = device.capture(&mut step);
        let mut losses = Vec::new();
        for i in 0..8 {
            if i == 5 {
                optimizer.borrow_mut().optimizer.set_lr(0.1)?;
                Tensor::rand(9, 0.0, 1.0, DType::F32, device, &rng)?;
            }
            let inputs = batch(i, device)?;
            losses.push(if captured {
                recorded.run(inputs)?
            } else {
                optimizer.borrow_mut().step(&inputs.0, &inputs.1)?
            });
        }
        let first = optimizer.borrow().first.weight.sum(..)?;
        losses.push(first);
        losses.iter().map(|loss| Ok(loss.to_vec::<f32>()?[0])).collect()
    };
    let (plain, captured) = (losses(false).map_err(text)?, losses(true).map_err(text)?);
    let same = plain.iter().zip(&captured).all(|(a, b)| a.to_bits() == b.to_bits());
    if same { Ok(()) } else { Err(format!("{captured:?} captured, {plain:?} plain")) }
}

/// What a step makes of a number: two results, one of which is a view of the other.
fn counted(device: &Device) -> isograd::Step<'_, Tensor, (Tensor, Tensor)> {
    device.capture(|x: Tensor| {
        let y = x.mul_scalar(2)?.add_scalar(1)?;
        Ok((y.narrow(0, 1, 3)?, y))
    })
}

/// Kept results, some of them within another captured step, have the values of their runs.
fn kept_results(device: &Device) -> Result<std::result::Result<(), String>> {
    let number = |i: usize| Tensor::full(4, i as f64, DType::F32, device);
    let (mut step, state) = (counted(device), Tensor::zeros(4, DType::F32, device)?);
    let mut counter = device.capture(|x: Tensor| {
        state.add_(&x)?;
        Ok((state.copy()?, state.sum(..)?))
    });
    let mut kept = Vec::new();
    let mut read = None;
    for i in 0..12 {
        let (part, whole) = step.run(number(i)?)?;
        // A step within which a result is a constant.
        let other = read.get_or_insert_with(|| {
            let constant = whole.clone();
            device.capture(move |x: Tensor| constant.add(&x))
        });
        let sum = other.run(number(100)?)?;
        let (counted, total) = counter.run(number(1)?)?;
        if i % 3 != 2 {
            kept.push((i, part, whole, sum, counted, total));
        }
    }
    for (i, part, whole, sum, counted, total) in kept {
        let all = [&part, &whole, &sum, &counted, &total];
        let found: Vec<f32> = all.iter().map(|t| Ok(t.to_vec::<f32>()?[0])).collect::<Result<_>>()?;
        let count = (i + 1) as f32;
        let expected = [2.0 * i as f32 + 1.0, 2.0 * i as f32 + 1.0, 101.0, count, 4.0 * count];
        if found != expected {
            return Ok(Err(format!("run {i}: {found:?}, expected {expected:?}")));
        }
    }
    Ok(Ok(()))
}

/// Another thread reads results while the step runs again.
fn results_of_a_thread(device: &Device) -> Result<std::result::Result<(), String>> {
    let (send, receive) = std::sync::mpsc::sync_channel::<(usize, Tensor)>(4);
    let reader = std::thread::spawn(move || -> Result<Option<String>> {
        for (i, t) in receive {
            let (sum, expected) = (t.mul_scalar(3)?.sum(..)?.to_vec::<f32>()?[0], 3.0 * 4.0 * (2.0 * i as f32 + 1.0));
            if sum != expected {
                return Ok(Some(format!("run {i}: {sum}, expected {expected}")));
            }
        }
        Ok(None)
    });
    let mut step = counted(device);
    for i in 0..60 {
        let (_, whole) = step.run(Tensor::full(4, i as f64, DType::F32, device)?)?;
        if send.send((i, whole)).is_err() {
            break;
        }
    }
    drop(send);
    let wrong = reader.join().unwrap_or_else(|_| Ok(Some("the reader ended".to_string())))?;
    Ok(wrong.map_or(Ok(()), Err))
}

fn refusals(device: &Device) -> std::result::Result<(), String> {
    let ones = |shape: usize| Tensor::ones(shape, DType::F32, device).map_err(text);
    let expect = |what: &str, result: Result<Tensor>, kind: Kind, says: &str| match result {
        Ok(_) => Err(format!("{what} was accepted")),
        Err(error) if error.kind() == kind && error.to_string().contains(says) => Ok(()),
        Err(error) => Err(format!("{what}: {error}")),
    };
    let mut twice = device.capture(|x: Tensor| x.add(&x));
    for _ in 0..3 {
        twice.run(ones(4)?).map_err(text)?;
        expect(
            "another shape",
            twice.run(ones(5)?),
            Kind::Shape,
            "input 0 has shape [5], the step was captured with [4]",
        )?;
    }
    let tokens = Tensor::zeros(4, DType::I64, device).map_err(text)?;
    expect("another dtype", twice.run(tokens), Kind::Dtype, "input 0 is i64")?;
    expect("a leaf", twice.run(ones(4)?.require_grad().map_err(text)?), Kind::Value, "on the tape")?;
    let mut reading = device.capture(|x: Tensor| x.mul_scalar(x.item::<f64>()?));
    expect("a reading step", reading.run(ones(1)?), Kind::Value, "waits for the device")?;
    // Only what is recorded reads.
    let runs = std::cell::Cell::new(0);
    let mut later = device.capture(|x: Tensor| {
        runs.set(runs.get() + 1);
        if runs.get() == 2 {
            x.device().synchronize()?
        };
        x.neg()
    });
    later.run(ones(4)?).map_err(text)?;
    expect("a waiting step", later.run(ones(4)?), Kind::Value, "waits for the device")?;
    for _ in 0..3 {
        let y = later.run(ones(4)?).and_then(|y| y.to_vec::<f32>()).map_err(text)?;
        assert_eq!(y, [-1.0; 4]);
    }
    still_works(device)
}

fn bad_index_of_a_replay(device: &Device) -> std::result::Result<(), String> {
    // Alone on its device: whoever waits next is told of a bad index.
    let device = &private(device);
    let x = Tensor::ones((4, 3), DType::F32, device).map_err(text)?;
    let mut step = device.capture(|index: Tensor| x.index_select(0, &index));
    for value in [0i64, 1, 2, 7, 3, 9, 0] {
        let index = Tensor::from_vec(vec![0, value], 2, device).map_err(text)?;
        let read = step.run(index).and_then(|y| y.to_vec::<f32>());
        match read {
            Ok(_) if value < 4 => {}
            Err(error) if value >= 4 && error.to_string().contains(&format!("is {value}, expected 0..4")) => {}
            other => return Err(format!("index {value}: {other:?}")),
        }
    }
    still_works(device)
}

/// A step leaves out calls whose results nobody reads, but not those that find an error in their data.
fn unread_errors(device: &Device) -> std::result::Result<(), String> {
    // Alone on its device: whoever waits next is told of an error.
    let device = &private(device);
    let x = Tensor::ones(4, DType::F32, device).map_err(text)?;
    let gather = |index: &Tensor| x.index_select(0, index).map(drop);
    let divide = |index: &Tensor| index.ones_like()?.div_rounded(&index.sub_scalar(7)?, Rounding::Floor).map(drop);
    type Call<'a> = &'a dyn Fn(&Tensor) -> Result<()>;
    for (name, call) in [("a gather", &gather as Call<'_>), ("a division", &divide)] {
        let mut step = device.capture(|index: Tensor| {
            call(&index)?;
            index.neg()
        });
        for value in [0i64, 1, 2, 7, 3, 7, 0] {
            let index = Tensor::from_vec(vec![0, value], 2, device).map_err(text)?;
            let read = step.run(index).and_then(|y| y.to_vec::<i64>());
            match read {
                Ok(y) if value < 4 && y == [0, -value] => {}
                Err(_) if value == 7 => {}
                other => return Err(format!("{name} of {value}: {other:?}")),
            }
        }
    }
    still_works(device)
}

fn captured_memory(device: &Device) -> Result<std::result::Result<(), String>> {
    let device = private(device);
    let mut classifier = Classifier::new(&device)?;
    let inputs = batch(0, &device)?;
    classifier.step(&inputs.0, &inputs.1)?;
    device.synchronize()?;
    let held = device.memory().in_use;
    for _ in 0..3 {
        let mut step = device.capture(|(x, classes): (Tensor, Tensor)| classifier.step(&x, &classes));
        (0..4).try_for_each(|_| step.run(inputs.clone()).map(drop))?;
        drop(step);
    }
    device.synchronize()?;
    let then = device.memory();
    let clean = then.in_use == held && then.captured == 0;
    Ok(if clean { Ok(()) } else { Err(format!("{held} bytes before, {then:?} after")) })
}

fn example(device: &Device) -> std::result::Result<(), String> {
    for dtype in [DType::F32, DType::F16] {
        let report = checked(&custom_op::SOFTSIGN, custom_op::case, dtype, device)?;
        if !report.passed() {
            return Err(report.text());
        }
    }
    Ok(())
}

/// The checks of an op in a dtype, in fewer cases.
fn checked(
    op: &'static CustomOp,
    make: fn(&mut Gen) -> Case,
    dtype: DType,
    device: &Device,
) -> std::result::Result<Report, String> {
    let (devices, extent) = (vec![device.clone()], Extent::Quick);
    let options = Options { devices, extent, dtype: Some(dtype), ..Options::default() };
    run_ops(&[registry::custom(op, make)], &options, &mut |_| ()).map_err(text)
}

/// `2 x` with this kernel and gradient.
const fn double(name: &'static str, text: &'static str, gradient: Gradient) -> CustomOp {
    CustomOp {
        name,
        output: |x| Ok((x[0].shape().clone(), x[0].dtype())),
        cpu: |call, y| y.iter_mut().zip(&call.inputs[0].elements).for_each(|(y, x)| *y = 2.0 * x),
        source: Source::Common(text),
        launch: Launch::Elements,
        gradient,
    }
}

fn wrong_kernel(device: &Device) -> std::result::Result<(), String> {
    // Half a thousandth too much.
    static WRONG: CustomOp = double(
        "off",
        "KERNEL(off)(GLOBAL const STORAGE(T0) *x, GLOBAL STORAGE(T) *y, i64 n) {
            EACH(i) STORE(T, y, i, (A)2.001 * LOAD(T0, x, i));
        }",
        Gradient::None,
    );
    let report = checked(&WRONG, |g| Case::of(vec![("x", g.x(Domain::Real))]), DType::F32, device)?;
    // The CPU runs the function.
    match report.passed() == (*device == cpu()) {
        true => Ok(()),
        false => Err(report.text()),
    }
}

/// `y[i] = x[i] + scale table[index[i] + shift]`, by groups of 64 threads.
fn numbers(device: &Device) -> Result<std::result::Result<(), String>> {
    static LOOK_UP: CustomOp = CustomOp {
        name: "look_up",
        output: |x| Ok((x[0].shape().clone(), x[0].dtype())),
        cpu: |call, y| {
            let [x, index, table] = [0, 1, 2].map(|i| &call.inputs[i].elements);
            for (i, y) in y.iter_mut().enumerate() {
                *y = x[i] + call.floats[0] * table[(index[i] as i64 + call.ints[0]) as usize];
            }
        },
        source: Source::Common(
            "KERNEL(look_up)(GLOBAL const STORAGE(T0) *x, GLOBAL const STORAGE(T1) *index, GLOBAL const STORAGE(T2) *table,
                             GLOBAL STORAGE(T) *y, i64 n, i64 shift, A scale) {
                i64 i = GROUP * THREADS + LANE;
                if (i < n) STORE(T, y, i, LOAD(T0, x, i) + scale * LOAD(T2, table, LOAD(T1, index, i) + shift));
            }",
        ),
        launch: Launch::Groups { threads: 64, groups: |shape| shape.numel().div_ceil(64) },
        gradient: Gradient::None,
    };
    let n = 1000;
    let x = Tensor::from_vec((0..n).map(|i| i as f32).collect(), n, device)?;
    let index = Tensor::from_vec((0..n).map(|i| (i * 7 % 10) as i64).collect(), n, device)?;
    let table = Tensor::from_vec((0..12).map(|i| 0.25 * i as f32).collect(), 12, device)?.cast(DType::F16)?;
    let y = LOOK_UP.call_with(&[&x, &index, &table], &[2], &[-4.0])?.to_vec::<f32>()?;
    let expected: Vec<f32> = (0..n).map(|i| i as f32 - (i * 7 % 10 + 2) as f32).collect();
    let halves = LOOK_UP.call_with(&[&x.cast(DType::F16)?, &index.cast(DType::I32)?, &table], &[2], &[-4.0])?;
    let halves_expected = Tensor::from_vec(expected.clone(), n, device)?.cast(DType::F16)?;
    Ok(match y == expected {
        true => same_bits("in halves", &halves, &halves_expected).map(drop).map_err(|miss| miss.why),
        false => Err(format!("{y:?}")),
    })
}

fn bad_source(device: &Device) -> std::result::Result<(), String> {
    static BAD: CustomOp = double(
        "bad",
        "KERNEL(bad)(GLOBAL const STORAGE(T0) *x, GLOBAL STORAGE(T) *y, i64 n) { EACH(i) y[i] = unheard_of(x[i]); }",
        Gradient::None,
    );
    static ELSEWHERE: CustomOp =
        CustomOp { source: Source::Each(&[("metal", "")]), ..double("elsewhere", "", Gradient::None) };
    let x = Tensor::ones(3, DType::F32, device).map_err(text)?;
    if *device == cpu() {
        return BAD.call(&[&x]).and(ELSEWHERE.call(&[&x])).map(drop).map_err(text);
    }
    for (op, kind, parts) in
        [(&BAD, Kind::Backend, ["bad", "unheard_of"]), (&ELSEWHERE, Kind::Unsupported, ["elsewhere", "no kernel in"])]
    {
        let error = op.call(&[&x]).err().ok_or("it ran")?;
        if error.kind() != kind || !parts.iter().all(|part| error.to_string().contains(part)) {
            return Err(text(error));
        }
    }
    // All goes on.
    x.sum(..)
        .and_then(|y| y.item::<f64>())
        .map_err(text)
        .and_then(|y| if y == 3.0 { Ok(()) } else { Err(y.to_string()) })
}

fn bad_gradients(device: &Device) -> Result<std::result::Result<(), String>> {
    const TEXT: &str = "KERNEL(twice)(GLOBAL const STORAGE(T0) *x, GLOBAL STORAGE(T) *y, i64 n) {
        EACH(i) STORE(T, y, i, 2 * LOAD(T0, x, i));
    }";
    static LEFT_OUT: CustomOp = double("twice", TEXT, Gradient::Once(|_| Ok(vec![None])));
    static TOO_FEW: CustomOp = double("twice", TEXT, Gradient::Once(|_| Ok(vec![])));
    static ONCE: CustomOp = double("twice", TEXT, Gradient::Once(|g| Ok(vec![Some(g.dy.mul_scalar(2)?)])));
    static TWICE: CustomOp = double("twice", TEXT, Gradient::Twice(|g| Ok(vec![Some(TWICE.call(&[&g.dy])?)])));
    static CONSTANT: CustomOp = double("twice", TEXT, Gradient::None);
    let x = Tensor::ones(3, DType::F32, device)?.require_grad()?;
    let slope = |op: &'static CustomOp, create_graph| -> Result<Tensor> {
        let y = op.call(&[&x])?.square()?.sum(..)?;
        Ok(grad_with(&y, &[&x], &BackwardOptions { create_graph, ..Default::default() })?.swap_remove(0))
    };
    for (op, create_graph, message) in [
        (&LEFT_OUT, false, "twice: Value: its gradient leaves input 0 out"),
        (&TOO_FEW, false, "twice: Value: its gradient is one of 0 inputs, expected 1"),
        (&ONCE, true, "twice: Unsupported: the op has no second derivative"),
    ] {
        match slope(op, create_graph) {
            Err(error) if error.to_string() == message => {}
            other => return Ok(Err(format!("{other:?}, expected {message}"))),
        }
    }
    // (2 x)^2 = 4 x^2
    let first = slope(&TWICE, true)?;
    let second = grad_with(&first.sum(..)?, &[&x], &BackwardOptions::default())?;
    let found = (first.to_vec::<f32>()?, second[0].to_vec::<f32>()?, slope(&ONCE, false)?.to_vec::<f32>()?);
    let is_right = found == (vec![8.0; 3], vec![8.0; 3], vec![8.0; 3]) && !CONSTANT.call(&[&x])?.requires_grad();
    Ok(if is_right { Ok(()) } else { Err(format!("{found:?}")) })
}

/// A function of two devices: its gradients are those of one device, on the devices of their tensors. The second derivative too.
fn between_devices(device: &Device) -> Result<std::result::Result<(), String>> {
    let other = private(&cpu());
    let x = Tensor::from_slice(&[0.5f32, -1.0, 2.0], 3, device)?.require_grad()?;
    let w = Tensor::from_slice(&[3.0f32, 1.0, -2.0], 3, &other)?.require_grad()?;
    // y = sum(w x^3), half of it on each device.
    let there = x.mul(&x)?.to_device(&other)?.mul(&w)?;
    let y = there.to_device(device)?.mul(&x)?.sum(..)?;
    let found = grad_with(&y, &[&x, &w], &BackwardOptions { create_graph: true, ..Default::default() })?;
    assert_eq!((found[0].device(), found[1].device()), (device, &other));
    assert_eq!(found[0].to_vec::<f32>()?, [3.0 * 3.0 * 0.25, 3.0, 3.0 * -2.0 * 4.0]);
    assert_eq!(found[1].to_vec::<f32>()?, [0.125, -1.0, 8.0]);
    found[0].sum(..)?.backward()?;
    // 6 w x.
    let second = x.grad().map(|g| g.to_vec::<f32>()).transpose()?;
    assert_eq!(second, Some(vec![9.0, -6.0, -24.0]));
    Ok(Ok(()))
}
