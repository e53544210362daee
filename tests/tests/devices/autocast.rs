//! Mixed precision on every device: which dtypes come out, where gradients go, and training through an overflow.

#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/amp.rs"]
mod amp;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/matrix_factorisation.rs"]
mod matrix_factorisation;

use isograd::nn::{Forward, GradScaler, Init, Linear, Module, Relu, Sequential, Sgd};
use isograd::ops::loss::{CrossEntropy, Focal, KlTarget, Reduction, Triplet};
use isograd::ops::{
    Activation, Approximate, Conv, Gemm, GemmBias, Nonlinearity, RecurrentSteps, RecurrentWeights, Statistics,
};
use isograd::{
    DType, Device, Kind, Result, Tensor, autocast, checkpoint, forget_casts, no_autocast, no_grad, remembered_casts,
    tape,
};
use isograd_tests::cpu;
use isograd_tests::harness::{self, Outcome, expect, private};
use libtest_mimic::Trial;
use std::cell::Cell;
use std::rc::Rc;

pub fn trials(device: &Device) -> Vec<Trial> {
    let check = |aspect, run| harness::check(device, "autocast", aspect, run);
    let trials: Vec<Trial> = vec![
        check("products_are_in_16_bits", products),
        check("what_needs_it_is_in_f32", in_f32),
        check("other_ops_and_other_dtypes_stay", others),
        check("scopes_nest_and_end", scopes),
        check("gradients_have_the_parameters_dtype", gradients),
        check("a_norm_leaves_the_sum_in_f32_and_is_itself_in_16_bits", residual_norm),
        check("losses_of_16_bits_have_the_digits_of_f32", losses),
        check("a_parameter_is_cast_once_and_again_when_it_has_changed", casts),
        check("parameters_of_the_scope_before_are_cast_together", together),
        check("a_checkpoint_is_recomputed_as_it_was", checkpointed),
        check("training_recovers_from_an_overflow", recovers),
        check("the_example_learns", |d| {
            let (accuracy, left_out) = amp::train(d, 2)?;
            Ok(expect(accuracy > 0.8 && left_out > 0, format!("accuracy {accuracy}, {left_out} steps left out")))
        }),
        check("factorisation_finds_the_factors", |d| {
            let [before, after] = matrix_factorisation::train(d, 150)?;
            Ok(expect(after < 0.5 * before, format!("RMSE {before}, then {after}")))
        }),
    ];
    trials
}

/// `[4, 4]`, positive, of a dtype.
fn square(dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::from_vec((1..17).map(|v| v as f32 / 16.0).collect(), (4, 4), device)?.cast(dtype)
}

type Op = (&'static str, fn(&Tensor) -> Result<Tensor>);

/// Errors unless each op makes of an input of each dtype what is expected.
fn dtypes(
    ops: &[Op],
    given: &[DType],
    expected: fn(low: DType, given: DType) -> DType,
    device: &Device,
) -> Result<Outcome> {
    for low in [DType::F16, DType::BF16] {
        for &dtype in given {
            let x = square(dtype, device)?;
            for (name, op) in ops {
                let got = autocast(low, || op(&x))?.dtype();
                if got != expected(low, dtype) {
                    return Ok(Err(format!("{name} of {dtype} within {low} is {got}")));
                }
            }
        }
    }
    Ok(Ok(()))
}

fn products(device: &Device) -> Result<Outcome> {
    let ops: &[Op] = &[
        ("matmul", |x| x.matmul(x)),
        ("gemm", |x| x.gemm(x, Some(x), &Gemm::default())),
        ("linear", |x| x.linear(x, Some(&x.select(0, 0)?))),
        ("gemm_bias", |x| {
            x.gemm_bias(x, None, &GemmBias { activation: Activation::Gelu(Approximate::None), ..GemmBias::default() })
        }),
        ("matmul of two dtypes", |x| x.matmul(&x.cast(DType::F32)?)),
        ("rnn of two dtypes", |x| {
            let weights = x.cast(DType::F32)?;
            let weights = RecurrentWeights::new(&weights, &weights);
            Ok(x.unsqueeze(0)?.rnn(None, weights, Nonlinearity::Tanh, &RecurrentSteps::default())?.0)
        }),
        ("conv2d of two dtypes", |x| {
            let image = |x: &Tensor| x.reshape((1, 1, 4, 4));
            image(x)?.conv2d(&image(&x.cast(DType::F32)?)?, None, &Conv::default())
        }),
    ];
    dtypes(ops, &[DType::F32, DType::F16, DType::BF16], |low, _| low, device)
}

fn in_f32(device: &Device) -> Result<Outcome> {
    let ops: &[Op] = &[
        ("softmax", |x| x.softmax(-1)),
        ("log_softmax", |x| x.log_softmax(0)),
        ("logsumexp", |x| x.logsumexp(1)),
        ("layer_norm", |x| x.layer_norm(1, Some(&x.select(0, 0)?), None, 1e-5)),
        ("rms_norm", |x| x.rms_norm(1, Some(&x.select(0, 0)?.cast(DType::F32)?), 1e-5)),
        ("embedding_rmsnorm", |x| {
            x.embedding_rmsnorm(&Tensor::zeros(3, DType::I64, x.device())?, Some(&x.select(0, 0)?), 1e-5)
        }),
        ("group_norm", |x| x.group_norm(1, None, Some(&x.select(0, 0)?), 1e-5)),
        ("exp", Tensor::exp),
        ("expm1", Tensor::expm1),
        ("log", Tensor::log),
        ("log1p", Tensor::log1p),
        ("rsqrt", Tensor::rsqrt),
        ("reciprocal", Tensor::reciprocal),
        ("softplus", |x| x.softplus(1.0, 20.0)),
        ("pow", |x| x.pow(x)),
        ("pow_scalar", |x| x.pow_scalar(2.0)),
        ("rpow_scalar", |x| x.rpow_scalar(2.0)),
        ("sum", |x| x.sum(0)),
        ("mean", |x| x.mean_keepdim(1)),
        ("prod", |x| x.prod(..)),
        ("l2_norm", |x| x.l2_norm(1)),
        ("var", |x| x.var(.., 1.0)),
        ("cumsum", |x| x.cumsum(0)),
        ("cross_entropy", |x| x.cross_entropy(&Tensor::zeros(4, DType::I64, x.device())?)),
        ("nll_loss", |x| x.nll_loss(&Tensor::zeros(4, DType::I64, x.device())?, &CrossEntropy::default())),
        ("mse_loss of two dtypes", |x| x.mse_loss(&x.cast(DType::F32)?, Reduction::Mean)),
        ("l1_loss", |x| x.l1_loss(x, Reduction::Sum)),
        ("smooth_l1_loss", |x| x.smooth_l1_loss(x, 1.0, Reduction::None)),
        ("huber_loss", |x| x.huber_loss(x, 1.0, Reduction::Mean)),
        ("bce_loss", |x| x.bce_loss(x, Some(x), Reduction::Mean)),
        ("bce_with_logits", |x| x.bce_with_logits(x, None, Some(x), Reduction::Mean)),
        ("kl_div", |x| x.kl_div(x, KlTarget::Probabilities, Reduction::Sum)),
        ("focal_loss", |x| x.focal_loss(x, &Focal::default())),
        ("triplet_loss", |x| x.triplet_loss(x, x, &Triplet::default())),
        ("contrastive_loss", |x| x.contrastive_loss(x, &x.select(1, 0)?, 1.0, Reduction::Mean)),
    ];
    dtypes(ops, &[DType::F32, DType::F16, DType::BF16], |_, _| DType::F32, device)
}

/// The results and the gradients are those of the norm in f32 whose operands and results are cast. Compilers round products in between or not,
/// so that a result may be one rounding away.
fn residual_norm(device: &Device) -> Result<Outcome> {
    // Rows in whole words, with elements outside of words, and longer than what threads keep.
    for (rows, length) in [(5, 64), (7, 37), (2, 40_000)] {
        for low in [DType::F16, DType::BF16] {
            let wave = |scale: f64, n: usize| -> Result<Tensor> {
                Tensor::arange_with(0.0, n as f64, 1.0, DType::F32, device)?.mul_scalar(scale)?.sin()
            };
            let leaf = |x: Tensor| x.require_grad();
            let x = leaf(wave(0.7, rows * length)?.reshape((rows, length))?.cast(low)?)?;
            let residual = leaf(wave(1.3, rows * length)?.reshape((rows, length))?)?;
            let (weight, bias) = (leaf(wave(0.1, length)?)?, leaf(wave(0.3, length)?)?);
            let dy = wave(2.1, rows * length)?.reshape((rows, length))?.cast(low)?;
            let ds = wave(1.7, rows * length)?.reshape((rows, length))?;
            let run = |x_of: &dyn Fn(&Tensor) -> Result<Tensor>| -> Result<Vec<Tensor>> {
                let (y, s) =
                    autocast(low, || x_of(&x)?.residual_layer_norm(&residual, 1, Some(&weight), Some(&bias), 1e-5))?;
                let y = y.cast(low)?;
                let leaves = [&x, &residual, &weight, &bias];
                let both = [(&y, dy.clone()), (&s, ds.clone())];
                let gradients = tape::grad_from(&both, &leaves, &Default::default())?;
                Ok([vec![y.detach(), s.detach()], gradients].concat())
            };
            let (mixed, wide) = (run(&|x| Ok(x.clone()))?, run(&|x| x.cast(DType::F32))?);
            for (i, (a, b)) in mixed.iter().zip(&wide).enumerate() {
                let unit = if b.dtype() == low { if low == DType::F16 { 1e-3 } else { 8e-3 } } else { 1e-6 };
                let (a_values, b_values) = (a.to_f64_vec()?, b.to_f64_vec()?);
                let largest = b_values.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
                let off = a_values.iter().zip(&b_values).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                if a.dtype() != b.dtype() || off > unit * largest {
                    let what = format!("{low}, rows of {length}: result {i} of {} is off by {off}", b.dtype());
                    return Ok(Err(format!("{what}, the largest is {largest}")));
                }
            }
            let y = autocast(low, || x.residual_layer_norm(&residual, 1, None, None, 1e-5))?;
            if (y.0.dtype(), y.1.dtype()) != (low, DType::F32) {
                return Ok(Err(format!("the norm is {}, the sum {}", y.0.dtype(), y.1.dtype())));
            }
        }
    }
    Ok(Ok(()))
}

fn losses(device: &Device) -> Result<Outcome> {
    let x = Tensor::from_vec((0..60).map(|i| ((i * 37) % 23) as f32 / 4.0).collect(), (12, 5), device)?;
    let target = Tensor::from_vec((0..12).map(|i| i % 5).collect::<Vec<i64>>(), 12, device)?;
    for low in [DType::F16, DType::BF16] {
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let options = CrossEntropy { reduction, label_smoothing: 0.1, ..CrossEntropy::default() };
            let of = |x: &Tensor| -> Result<(Vec<f64>, Tensor)> {
                let x = x.require_grad()?;
                let loss = autocast(low, || x.cross_entropy_with(&target, &options))?;
                loss.mul(&loss)?.sum(..)?.backward()?;
                Ok((loss.to_f64_vec()?, x.grad().expect("x is a leaf")))
            };
            let ((got, gradient), (expected, exact)) = (of(&x.cast(low)?)?, of(&x)?);
            let error = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            let off = gradient.cast(DType::F32)?.sub(&exact)?.abs()?.amax(..)?.item::<f64>()?;
            let unit = if low == DType::F16 { 1e-3 } else { 8e-3 };
            let largest = exact.abs()?.amax(..)?.item::<f64>()?;
            if gradient.dtype() != low || error > 1e-5 || off > unit * largest {
                return Ok(Err(format!("{low}, {reduction:?}: the loss is off by {error}, its gradient by {off}")));
            }
        }
    }
    Ok(Ok(()))
}

fn others(device: &Device) -> Result<Outcome> {
    let ops: &[Op] = &[
        ("relu", Tensor::relu),
        ("batch_norm", |x| x.batch_norm(Some(&x.select(0, 0)?.cast(DType::F32)?), None, Statistics::Batch, 1e-5)),
        ("instance_norm", |x| x.unsqueeze(0)?.instance_norm(None, None, Statistics::Batch, 1e-5)),
        ("global_avg_pool2d", |x| x.unsqueeze(0)?.global_avg_pool2d()),
        ("add", |x| x.add(x)),
        ("amax", |x| x.amax(0)),
        ("sort", |x| Ok(x.sort(0, isograd::ops::Order::Ascending)?.0)),
        ("where", |x| x.gt_scalar(0.5)?.where_scalar(x, 0.0)),
        ("outside", |x| no_autocast(|| x.matmul(x)?.softmax(0))),
    ];
    let stay = dtypes(ops, &[DType::F32, DType::F16, DType::BF16], |_, given| given, device)?;
    let of_f64: &[Op] = &[("matmul", |x| x.matmul(x)), ("softmax", |x| x.softmax(0)), ("sum", |x| x.sum(0))];
    let x = Tensor::ones((2, 2), DType::F32, device)?;
    let mixed = autocast(DType::F16, || x.add(&x.cast(DType::F16)?)).is_err_and(|e| e.kind() == Kind::Dtype);
    let integers = autocast(DType::F16, || Tensor::arange(3, device)?.sum(..))?.dtype() == DType::I64;
    Ok(stay
        .and(dtypes(of_f64, &[DType::F64], |_, given| given, &cpu())?)
        .and(expect(mixed && integers, "two dtypes were added, or integers cast".into())))
}

fn scopes(device: &Device) -> Result<Outcome> {
    let x = square(DType::F32, device)?;
    let product = || -> Result<DType> { Ok(x.matmul(&x)?.dtype()) };
    let inside = autocast(DType::F16, || {
        let outer = product()?;
        let inner = autocast(DType::BF16, product)?;
        let off = no_autocast(|| -> Result<_> { Ok((product()?, autocast(DType::BF16, product)?)) })?;
        Ok((outer, inner, off, product()?))
    })?;
    let failed: Result<()> = autocast(DType::F16, || x.reshape(3).map(drop));
    let refused = autocast(DType::F32, || Ok(())).is_err_and(|e| e.kind() == Kind::Attr);
    let expected = (DType::F16, DType::BF16, (DType::F32, DType::BF16), DType::F16);
    let is_so = inside == expected && failed.is_err() && product()? == DType::F32 && refused;
    Ok(expect(is_so, format!("{inside:?}, {refused}")))
}

fn gradients(device: &Device) -> Result<Outcome> {
    let (x, w) = (square(DType::F32, device)?, square(DType::F32, device)?.require_grad()?);
    let (b, narrow) = (x.select(0, 1)?.copy()?.require_grad()?, square(DType::BF16, device)?.require_grad()?);
    // Backward within the scope, and twice.
    autocast(DType::F16, || {
        for _ in 0..2 {
            let y = x.linear(&w, Some(&b))?.relu()?.cast(DType::BF16)?.mul(&narrow)?;
            y.softmax(-1)?.l2_norm(1)?.mean(..)?.backward()?;
        }
        Ok(())
    })?;
    let got = [&w, &b, &narrow].map(|p| p.grad().map(|g| g.dtype()));
    let expected = [Some(DType::F32), Some(DType::F32), Some(DType::BF16)];
    Ok(expect(got == expected, format!("{got:?}")))
}

fn casts(device: &Device) -> Result<Outcome> {
    let device = &private(device);
    let (x, w) = (square(DType::F16, device)?, Tensor::eye(4, DType::F32, device)?.require_grad()?);
    let (first, second) = autocast(DType::F16, || {
        let before = device.memory().in_use;
        let y = x.matmul(&w)?;
        let first = device.memory().in_use - before;
        let z = x.matmul(&w)?;
        let second = device.memory().in_use - before - first;
        drop((y, z));
        Ok((first, second))
    })?;
    let changed = autocast(DType::F16, || {
        x.matmul(&w)?;
        no_grad(|| w.detach().fill_(0.0))?;
        x.matmul(&w)?.sum(..)?.item::<f64>()
    })?;
    Ok(expect(second < first && changed == 0.0, format!("{first} bytes, then {second}; {changed} of zeros")))
}

/// The second scope casts the leaves of the first in one op. Each gradient is as without the others; a leaf that is not used has none, and a
/// leaf with a hook is cast alone.
fn together(device: &Device) -> Result<Outcome> {
    let leaf = |scale: f64| square(DType::F32, device)?.mul_scalar(scale)?.require_grad();
    let filters = square(DType::F32, device)?.reshape((2, 2, 2, 2))?.to_channels_last()?.require_grad()?;
    let (a, b, unused, hooked) = (leaf(1.0)?, leaf(0.5)?, leaf(0.25)?, leaf(0.125)?);
    let (x, image) = (square(DType::F32, device)?, Tensor::ones((1, 2, 2, 2), DType::F32, device)?);
    let leaves = [&a, &b, &filters, &hooked, &unused];
    let casts = |uses_all: bool| -> Result<(usize, Vec<Option<Vec<f64>>>)> {
        let count = Rc::new(Cell::new(0));
        let counter = count.clone();
        let observer = move |event| {
            if let tape::Event::Recorded { op: "cast", .. } = event {
                counter.set(counter.get() + 1)
            }
        };
        tape::observe(observer, || {
            autocast(DType::BF16, || {
                // Two losses, each with its own pass.
                let first = x.matmul(&a)?.matmul(&b)?.matmul(&hooked)?.sum(..)?;
                let second = image.conv2d(&filters, None, &Conv::default())?.sum(..)?.add(&x.matmul(&a)?.sum(..)?)?;
                if uses_all {
                    x.matmul(&unused)?.sum(..)?.backward()?;
                }
                first.backward()?;
                second.backward()
            })
        })?;
        let gradients = leaves.map(|leaf| {
            let found = leaf.grad().map(|grad| grad.to_f64_vec()).transpose();
            leaf.set_grad(None)?;
            found
        });
        Ok((count.get(), gradients.into_iter().collect::<Result<_>>()?))
    };
    let (alone, expected) = casts(true)?;
    let hook = hooked.register_hook(|_| Ok(None))?;
    let (grouped, mut found) = casts(false)?;
    hook.remove();
    let is_list = |(dtype, list): &(DType, Vec<Tensor>)| *dtype == DType::BF16 && list[0].key() == a.key();
    let remembered = remembered_casts().into_iter().find(is_list).map_or(0, |(_, list)| list.len());
    forget_casts();
    let forgotten = remembered_casts().len();
    let (again, _) = casts(true)?;
    // Four leaves in one op, and one sum less.
    let is_fewer = alone == grouped + 4;
    let is_absent = found[4].take().is_none() && expected[4].is_some();
    let is_same = found[..4] == expected[..4];
    let is_known = (remembered, forgotten, again) == (5, 0, alone);
    let outcome =
        expect(is_known, format!("{remembered} casts are remembered, then {forgotten}; {again} are made again"));
    Ok(outcome.and(expect(
        is_fewer && is_absent && is_same,
        format!("{alone} casts, then {grouped}: {found:?}, not {expected:?}"),
    )))
}

fn checkpointed(device: &Device) -> Result<Outcome> {
    let gradient = |is_checkpointed: bool| {
        let (x, w) = (square(DType::F32, device)?, square(DType::F32, device)?.require_grad()?);
        let weight = w.clone();
        let f = move |x: &[Tensor]| x[0].matmul(&weight)?.relu();
        let loss = autocast(DType::F16, || {
            let y = if is_checkpointed { checkpoint(f, &[&x])? } else { f(&[x])? };
            y.square()?.sum(..)
        })?;
        loss.backward()?;
        w.grad().map_or(Ok(Vec::new()), |g| g.to_vec::<f32>())
    };
    let (plain, again) = (gradient(false)?, gradient(true)?);
    Ok(expect(!plain.is_empty() && plain == again, format!("{plain:?} {again:?}")))
}

/// Losses and scales of a small model in f16, of which one batch is too large for its gradients.
fn training(device: &Device) -> Result<Vec<[f64; 2]>> {
    let init = Init::new(device).seed(3);
    let model = Sequential::new().push(Linear::new(4, 16, &init)?).push(Relu).push(Linear::new(16, 3, &init)?);
    let mut optimizer = Sgd::new(&model).lr(0.5);
    let mut scaler = GradScaler::new(device)?.init_scale(1024.0)?.growth_interval(8)?;
    let x = Tensor::randn((24, 4), 0.0, 1.0, DType::F32, device, init.rng())?;
    let y = Tensor::from_vec((0..24i64).map(|i| i % 3).collect(), 24, device)?;
    (0..24)
        .map(|step| {
            let x = if step == 5 { x.mul_scalar(1e6)? } else { x.clone() };
            let before: Vec<Vec<f32>> = model.parameters().iter().map(Tensor::to_vec).collect::<Result<_>>()?;
            let loss = autocast(DType::F16, || model.forward(&x)?.cross_entropy(&y))?;
            scaler.scale(&loss)?.backward()?;
            scaler.step(&mut optimizer)?;
            scaler.update()?;
            let after: Vec<Vec<f32>> = model.parameters().iter().map(Tensor::to_vec).collect::<Result<_>>()?;
            // Nothing moves in the step that overflows.
            let loss = if step == 5 { (before != after) as u8 as f64 } else { loss.item::<f64>()? };
            Ok([loss, scaler.current().item::<f64>()?])
        })
        .collect()
}

fn recovers(device: &Device) -> Result<Outcome> {
    let (there, here) = (training(device)?, training(&cpu())?);
    let scales = |all: &[[f64; 2]]| all.iter().map(|[_, scale]| *scale).collect::<Vec<_>>();
    let expected: Vec<f64> = [vec![1024.0; 5], vec![512.0; 8], vec![1024.0; 8], vec![2048.0; 3]].concat();
    // Sums of a product may come in another order: a unit of f16 in each of 24 steps.
    let near = there.iter().zip(&here).all(|(a, b)| (a[0] - b[0]).abs() < 24.0 * 1e-3);
    let learns = here[23][0] < 0.95 * here[0][0] && here[5][0] == 0.0 && there[5][0] == 0.0;
    Ok(expect(scales(&there) == expected && near && learns, format!("{there:?}\n{here:?}")))
}
