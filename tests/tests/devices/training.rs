//! The training loop and the examples that use it, on every device.

#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/classifier.rs"]
mod classifier;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/cnn.rs"]
mod cnn;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/every_device.rs"]
mod every_device;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/freezing.rs"]
mod freezing;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/karate.rs"]
mod karate;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/moving_digits.rs"]
mod moving_digits;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/own_dataset.rs"]
mod own_dataset;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/pytorch_weights.rs"]
mod pytorch_weights;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/resnet.rs"]
mod resnet;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/resume.rs"]
mod resume;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/shapes.rs"]
mod shapes;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/tagger.rs"]
mod tagger;

use isograd::data::{Dataset, Items, Loader};
use isograd::nn::schedule::Cosine;
use isograd::nn::{AdamW, Dropout, Forward, Init, Linear, Module, Optimizer, Schedule, Sequential};
use isograd::train::{End, Goal, SavedRun, Trainer};
use isograd::{DType, Device, Error, Kind, Result, Tensor};
use isograd_tests::harness::{self, Outcome, expect};
use libtest_mimic::Trial;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Batch = (Tensor, Tensor);

/// Weights of an example.
const PYTORCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/isograd/examples/pytorch/mlp.pt");

pub fn trials(device: &Device) -> Vec<Trial> {
    let check = |aspect, run| harness::check(device, "training", aspect, run);
    let mut trials: Vec<Trial> = vec![
        check("a_trainer_has_the_bits_of_a_loop_of_ones_own", like_a_loop),
        check("a_resumed_run_has_the_bits_of_one_that_was_not_interrupted", resumes),
        check("accumulated_batches_are_one_batch", accumulates),
        check("early_stopping_keeps_the_best_weights", keeps_the_best),
        check("batches_of_several_shapes_are_learnt", several_shapes),
        check("mixed_precision_learns", mixed_precision),
        check("a_loss_that_is_no_number_ends_the_run", diverges),
        check("the_example_of_a_table_learns", |d| {
            let (largest, accuracy) = classifier::train(d, None, 30)?;
            Ok(expect(accuracy > 0.92 && largest < 0.8, format!("{accuracy}, and the largest class has {largest}")))
        }),
        check("the_example_of_pytorchs_weights_has_pytorchs_outputs", |d| {
            let difference = pytorch_weights::difference(d, PYTORCH.as_ref())?;
            Ok(expect(difference < 1e-5, format!("the outputs differ by {difference}")))
        }),
        check("the_example_of_every_device_has_the_losses_of_the_cpu", |d| {
            let (here, there) = (every_device::train(&Device::cpu()?, 5)?, every_device::train(d, 5)?);
            let is_near = here.iter().zip(&there).all(|(a, b)| (a - b).abs() < 1e-4);
            Ok(expect(is_near && here.len() == 5 && here[4] < here[0], format!("{there:?}, on the CPU {here:?}")))
        }),
        check("the_example_of_a_dataset_of_ones_own_learns", |d| {
            let (first, last) = own_dataset::train(d, 4)?;
            Ok(expect(last < 0.6 * first, format!("{first} at first, {last} at last")))
        }),
    ];
    // These examples take minutes on an emulated device. Other tests run their ops on every device.
    if device.name().starts_with("cpu") {
        trials.extend([
            check("the_example_of_a_tagger_learns", |d| {
                let (first, last) = tagger::train(d, 5)?;
                Ok(expect(last > 0.9 && last > first, format!("{first} at first, {last} at last")))
            }),
            check("the_example_of_moving_digits_learns", |d| {
                let (still, last) = moving_digits::train(d, 128, 5)?;
                Ok(expect(last < 0.5 * still, format!("{last}, and the image before has {still}")))
            }),
            check("the_example_of_a_resumed_run_has_the_bits_of_a_whole_one", |d| {
                let file = tempfile::NamedTempFile::new().map_err(|e| Error::value("test", e.to_string()))?;
                let [whole, resumed] = resume::train(d, file.path(), 4)?;
                Ok(expect(whole == resumed && whole < 1.0, format!("{resumed}, and {whole} without a stop")))
            }),
            check("the_example_of_freezing_learns_in_two_steps", |d| {
                let (frozen, whole, is_same) = freezing::train(d, 8)?;
                // Guessing is right once in ten times.
                let learns = is_same && frozen > 0.3 && whole > frozen + 0.2;
                Ok(expect(learns, format!("{frozen} frozen, {whole} after that; the same weights: {is_same}")))
            }),
            check("the_example_of_a_convolutional_network_learns_digits", |d| {
                let options = cnn::images::Options { device: Some(d.name().into()), data: None, epochs: 6 };
                let accuracy = cnn::train(&options)?;
                Ok(expect(accuracy > 0.85, format!("accuracy {accuracy}")))
            }),
            check("the_example_of_a_residual_network_learns_digits", |d| {
                let options = resnet::images::Options { device: Some(d.name().into()), data: None, epochs: 2 };
                let accuracy = resnet::train(&options)?;
                Ok(expect(accuracy > 0.8, format!("accuracy {accuracy}")))
            }),
            check("the_example_of_shapes_learns", |d| {
                let accuracy = shapes::train(d, 10)?;
                Ok(expect(accuracy > 0.9, format!("accuracy {accuracy}")))
            }),
            check("a_gcn_finds_the_clubs_of_the_karate_club", |d| finds_the_clubs(d, karate::Network::Gcn)),
            check("a_gat_finds_the_clubs_of_the_karate_club", |d| finds_the_clubs(d, karate::Network::Gat)),
        ]);
    }
    trials
}

fn finds_the_clubs(device: &Device, network: karate::Network) -> Result<Outcome> {
    let wrong = karate::train(device, network, 60)?;
    Ok(expect(wrong <= 1, format!("{wrong} members are in the wrong club")))
}

/// Points and a smooth function of them, with noise that is new in each epoch.
fn points(n: usize) -> impl Dataset<Item = ([f32; 3], [f32; 1])> + Clone + 'static {
    Items((0..n).collect::<Vec<usize>>()).map(|i, context| {
        let at = [0.7, 1.3, 2.1].map(|f| (f * i as f32).sin());
        Ok((at, [at[0] * at[1] - at[2] + 0.05 * context.normal() as f32]))
    })
}

fn loader(device: &Device, n: usize, batch_size: usize) -> Result<Loader<Batch>> {
    Ok(Loader::new(points(n), batch_size)?.shuffle(3).to(device))
}

/// A network, and the generator of its weights and its dropout.
fn network(device: &Device, seed: u64, p: f64) -> Result<(Sequential, Init)> {
    let init = Init::new(device).seed(seed);
    let model = Sequential::new()
        .push(Linear::new(3, 16, &init)?)
        .push(Tensor::tanh)
        .push(Dropout::new(p, &init))
        .push(Linear::new(16, 1, &init)?);
    Ok((model, init))
}

fn mse(guess: &Tensor, (_, y): &Batch) -> Result<Tensor> {
    guess.mse_loss(y, Default::default())
}

type Regression<'a> = Trainer<'a, Sequential, Batch, Tensor>;

fn trainer<'a>(model: &'a Sequential, init: &Init, train: Loader<Batch>) -> Regression<'a> {
    let optimizer = AdamW::new(model).lr(1e-2);
    Trainer::new(model, optimizer, train, |model: &Sequential, (x, _)| model.forward(x), mse).rng("init", init.rng())
}

fn bits(model: &Sequential) -> Result<Vec<Vec<u8>>> {
    model.state_dict().values().map(Tensor::to_bytes).collect()
}

/// The last batch of an epoch is smaller, and the others may be replayed.
fn like_a_loop(device: &Device) -> Result<Outcome> {
    let schedule = Cosine { lr: 2e-2, min: 1e-3, steps: 15 };
    let (model, _init) = network(device, 1, 0.25)?;
    let mut optimizer = AdamW::new(&model).lr(1e-2);
    let train = loader(device, 36, 8)?;
    let mut step = 0;
    let mut losses = Vec::new();
    for epoch in 0..3 {
        let mut sum = 0.0;
        for batch in train.epoch(epoch) {
            let batch = batch?;
            let loss = mse(&model.forward(&batch.0)?, &batch)?;
            loss.backward()?;
            optimizer.set_lr(schedule.lr(step)?)?;
            optimizer.step()?;
            sum += loss.item::<f64>()? * batch.0.dims()[0] as f64;
            step += 1;
        }
        losses.push(sum / 36.0);
    }
    let (other, init) = network(device, 1, 0.25)?;
    let mut trainer = trainer(&other, &init, train).schedule(schedule).epochs(3);
    assert_eq!(trainer.run()?, End::Finished);
    let found: Vec<f64> = trainer.history().iter().map(|epoch| epoch.train_loss).collect();
    Ok(expect(bits(&other)? == bits(&model)? && found == losses, format!("losses {found:?}, expected {losses:?}")))
}

fn resumes(device: &Device) -> Result<Outcome> {
    let (straight, init) = network(device, 1, 0.25)?;
    let mut run = trainer(&straight, &init, loader(device, 36, 8)?).validate(loader(device, 20, 16)?).epochs(3);
    run.run()?;
    let expected: Vec<f64> = run.history().iter().map(|epoch| epoch.train_loss).collect();
    let folder = tempfile::tempdir().expect("a folder");
    // The flag is set while samples of the second epoch are read, which is before they are learnt.
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let flagged = points(36).map(move |sample, context| {
        if context.epoch() == 1 {
            flag.store(true, Ordering::Relaxed);
        }
        Ok(sample)
    });
    let (first, init) = network(device, 1, 0.25)?;
    let train = Loader::new(flagged, 8)?.shuffle(3).to(device);
    let mut run = trainer(&first, &init, train).validate(loader(device, 20, 16)?).epochs(3);
    run = run.folder(folder.path())?.stop_when(stop);
    let end = run.run()?;
    if end != End::Interrupted || run.progress().batch == 0 {
        return Ok(Err(format!("{end:?} at {:?}", run.progress())));
    }
    // Another seed: everything comes from the checkpoint.
    let (second, init) = network(device, 9, 0.25)?;
    let mut run = trainer(&second, &init, loader(device, 36, 8)?).validate(loader(device, 20, 16)?).epochs(3);
    run = run.folder(folder.path())?.resume(SavedRun::load(folder.path(), device)?)?;
    assert_eq!(run.run()?, End::Finished);
    let found: Vec<f64> = run.history().iter().map(|epoch| epoch.train_loss).collect();
    Ok(expect(bits(&second)? == bits(&straight)? && found == expected, format!("{found:?}, expected {expected:?}")))
}

/// Of 20 samples in batches of 4, a step has two batches, and the last step one.
fn accumulates(device: &Device) -> Result<Outcome> {
    let weights = |batch_size: usize, accumulate: usize| {
        let (model, init) = network(device, 1, 0.0)?;
        let mut run = trainer(&model, &init, loader(device, 20, batch_size)?).accumulate(accumulate)?.epochs(2);
        run.run()?;
        let weights: Result<Vec<Vec<f32>>> = model.parameters().iter().map(Tensor::to_vec).collect();
        Ok::<_, isograd::Error>((weights?.concat(), run.progress().steps, run.history()[1].train_loss))
    };
    let ((parts, steps, loss), (whole, whole_steps, whole_loss)) = (weights(4, 2)?, weights(8, 1)?);
    let close = parts.iter().zip(&whole).all(|(a, b)| (a - b).abs() < 1e-4);
    let found = format!("{steps} steps, loss {loss}; expected {whole_steps}, {whole_loss}");
    Ok(expect(close && steps == 6 && whole_steps == 6 && (loss - whole_loss).abs() < 1e-4, found))
}

fn keeps_the_best(device: &Device) -> Result<Outcome> {
    let (model, init) = network(device, 1, 0.0)?;
    let mut weights = Vec::new();
    // The rate is far too large from some step on.
    struct Exploding;
    impl Schedule for Exploding {
        fn lr(&self, step: u64) -> Result<f64> {
            Ok(if step < 12 { 1e-2 } else { 1.0 })
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut run = trainer(&model, &init, loader(device, 32, 8)?)
        .folder(folder.path())?
        .validate(loader(device, 16, 16)?)
        .metric("error", Goal::Lowest, |guess, (_, y)| guess.sub(y)?.abs())
        .schedule(Exploding)
        .early_stopping(2)
        .epochs(50)
        .on_epoch(|_| {
            weights.push(bits(&model)?);
            Ok(())
        });
    let end = run.run()?;
    let best = run.best().map_or(0, |epoch| epoch.epoch as usize);
    let (count, loss) = (run.history().len(), run.history()[best - 1].validation_loss);
    let again = run.evaluate()?.loss;
    drop(run);
    let (last, _) = network(device, 2, 0.0)?;
    SavedRun::load(folder.path(), device)?.restore_model(&last)?;
    let is_kept = bits(&model)? == weights[best - 1] && bits(&last)? == weights[count - 1];
    let found = format!("{end:?} after {count} epochs, the best is {best}: {loss:?}, and again {again}");
    Ok(expect(end == End::Stopped && count == best + 2 && is_kept && loss == Some(again), found))
}

/// Sequences that are padded to a different length in each batch.
fn several_shapes(device: &Device) -> Result<Outcome> {
    let data = Items((0..24usize).collect::<Vec<_>>()).map(|i, _| {
        let values: Vec<f32> = (0..1 + i % 5).map(|k| (i + k) as f32 * 0.1).collect();
        Ok((values.clone(), values.iter().sum::<f32>()))
    });
    let init = Init::new(device).seed(1);
    let model = Linear::new(1, 1, &init)?;
    let train = Loader::new(data, 4)?.shuffle(1).to(device);
    let predict = |model: &Linear, (x, _): &(isograd::data::Padded, Tensor)| {
        let each = model.forward(&x.values.unsqueeze(-1)?)?.squeeze(-1)?;
        each.mul(&x.mask()?.cast(each.dtype())?)?.sum(1)
    };
    let loss = |sum: &Tensor, (_, y): &(isograd::data::Padded, Tensor)| sum.mse_loss(y, Default::default());
    let mut run = Trainer::new(&model, AdamW::new(&model).lr(0.05).weight_decay(0.0), train, predict, loss).epochs(8);
    run.run()?;
    let losses: Vec<f64> = run.history().iter().map(|epoch| epoch.train_loss).collect();
    Ok(expect(losses[7] < 0.2 * losses[0], format!("{losses:?}")))
}

/// Predictions are in 16 bits, and gradients are clipped.
fn mixed_precision(device: &Device) -> Result<Outcome> {
    for dtype in [DType::F16, DType::BF16] {
        let (model, _init) = network(device, 1, 0.0)?;
        let optimizer = AdamW::new(&model).lr(2e-2).clip_norm(1.0);
        let predict = |model: &Sequential, (x, _): &Batch| {
            let guess = model.forward(x)?;
            assert_eq!(guess.dtype(), dtype);
            Ok(guess)
        };
        let loss = |guess: &Tensor, batch: &Batch| mse(&guess.cast(DType::F32)?, batch);
        let mut run = Trainer::new(&model, optimizer, loader(device, 32, 8)?, predict, loss).autocast(dtype)?.epochs(8);
        run.run()?;
        let losses: Vec<f64> = run.history().iter().map(|epoch| epoch.train_loss).collect();
        if losses[7] > 0.3 * losses[0] || model.parameters().iter().any(|t| t.dtype() != DType::F32) {
            return Ok(Err(format!("{dtype}: {losses:?}")));
        }
    }
    Ok(Ok(()))
}

fn diverges(device: &Device) -> Result<Outcome> {
    let (model, init) = network(device, 1, 0.0)?;
    let nan = |guess: &Tensor, batch: &Batch| mse(guess, batch)?.mul_scalar(f64::NAN);
    let optimizer = AdamW::new(&model);
    let predict = |model: &Sequential, (x, _): &Batch| model.forward(x);
    let mut run = Trainer::new(&model, optimizer, loader(device, 32, 8)?, predict, nan).rng("init", init.rng());
    let error = run.run().map(drop).expect_err("the loss is NaN");
    Ok(expect(error.kind() == Kind::Value && error.message().contains("the loss is NaN"), error.to_string()))
}
