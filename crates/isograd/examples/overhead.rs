//! Times what the training loop costs beside a bare loop: `overhead [DEVICE] [EPOCHS]`. A classifier of 784-256-10 learns from 50,000 images of
//! noise, in batches of 128, and is validated with 5,000 after each epoch. The bare loop has the same loader and captured step; the
//! trainer adds its bar (on a terminal), metrics, curves, event files and checkpoints. Runs alternate, and so do steps of the bare loop
//! with and without `profile`; a line of JSON has the seconds of each and the quotients of their medians.

mod print;

use isograd::data::{Labelled, Loader};
use isograd::prelude::*;
use isograd::profile;
use isograd::train::tensorboard::TensorBoard;
use isograd::train::{Display, Goal, Trainer};
use print::print;
use std::time::Instant;

const PIXELS: usize = 784;
const BATCH: usize = 128;
const RUNS: usize = 3;

type Batch = (Tensor, Tensor);

fn noise(samples: usize) -> Result<Labelled> {
    let pixels = (0..samples * PIXELS).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u8 as f32 / 255.0).collect();
    Labelled::new("noise", pixels, [PIXELS], (0..samples as i64).map(|i| i % 10).collect(), 10)
}

fn model(device: &Device) -> Result<Sequential> {
    let init = Init::new(device).seed(1);
    Ok(Sequential::new().push(Linear::new(PIXELS, 256, &init)?).push(Relu).push(Linear::new(256, 10, &init)?))
}

fn is_right(prediction: &Tensor, (_, y): &Batch) -> Result<Tensor> {
    prediction.argmax(-1)?.eq(y)?.cast(DType::F32)
}

fn bare(device: &Device, train: &Loader<Batch>, test: &Loader<Batch>, epochs: u64) -> Result<()> {
    let model = model(device)?;
    let mut optimizer = Adam::new(&model).lr(1e-3);
    let mut step = device.capture(|(x, y): Batch| {
        let loss = model.forward(&x)?.cross_entropy(&y)?;
        loss.backward()?;
        optimizer.step()?;
        Ok(loss.detach())
    });
    for epoch in 0..epochs {
        for batch in train.epoch(epoch) {
            step.run(batch?)?;
        }
        let mut right = 0.0;
        for batch in test.epoch(0) {
            let batch = batch?;
            right += no_grad(|| is_right(&model.forward(&batch.0)?, &batch)?.sum(..))?.item::<f64>()?;
        }
        assert!(right <= 5000.0);
    }
    device.synchronize()
}

fn trained(device: &Device, train: Loader<Batch>, test: Loader<Batch>, epochs: u64) -> Result<()> {
    let model = model(device)?;
    let optimizer = Adam::new(&model).lr(1e-3);
    let predict = |model: &Sequential, (x, _): &Batch| model.forward(x);
    let folder = std::env::temp_dir().join(format!("isograd-overhead-{}", std::process::id()));
    let board = TensorBoard::create(&folder)?;
    let mut trainer = Trainer::new(&model, optimizer, train, predict, |prediction, (_, y)| prediction.cross_entropy(y))
        .epochs(epochs)
        .validate(test)
        .metric("accuracy", Goal::Highest, is_right)
        .display(Display::Lines)
        .logger(board)
        .folder(&folder)?;
    trainer.run()?;
    drop(trainer);
    std::fs::remove_dir_all(&folder).map_err(|e| Error::io(&folder, "removing", e))
}

/// The seconds of 64 steps, without and within `profile`.
fn profiled(device: &Device, train: &Loader<Batch>) -> Result<[Vec<f64>; 2]> {
    let model = model(device)?;
    let mut optimizer = Adam::new(&model).lr(1e-3);
    let mut step = |(x, y): &Batch| {
        model.forward(x)?.cross_entropy(y)?.backward()?;
        optimizer.step()?;
        device.synchronize()
    };
    let mut times = [Vec::new(), Vec::new()];
    for (i, batch) in train.epoch(0).take(2 * 64).enumerate() {
        let batch = batch?;
        let started = Instant::now();
        match i % 2 {
            0 => step(&batch)?,
            _ => drop(profile(device, || step(&batch))?),
        }
        times[i % 2].push(started.elapsed().as_secs_f64());
    }
    Ok(times)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<()> {
    let name = std::env::args().nth(1).unwrap_or("cpu".into());
    let epochs = std::env::args().nth(2).map_or(Ok(10), |n| n.parse());
    let epochs = epochs.map_err(|e| Error::attr("overhead", format!("the number of epochs: {e}")))?;
    let device: Device = name.parse()?;
    let (train, test) = (noise(50_000)?, noise(5_000)?);
    let loaders = || -> Result<[Loader<Batch>; 2]> {
        let train = Loader::new(train.clone(), BATCH)?.shuffle(1).drop_last().workers(2)?.to(&device);
        Ok([train, Loader::new(test.clone(), 1000)?.to(&device)])
    };
    let (mut bares, mut trainings) = (Vec::new(), Vec::new());
    // The first runs compile.
    for run in 0..=RUNS {
        let [train, test] = loaders()?;
        let started = Instant::now();
        bare(&device, &train, &test, epochs)?;
        let of_bare = started.elapsed().as_secs_f64();
        let started = Instant::now();
        trained(&device, train, test, epochs)?;
        let of_training = started.elapsed().as_secs_f64();
        if run > 0 {
            bares.push(of_bare);
            trainings.push(of_training);
        }
    }
    let [train, _] = loaders()?;
    profiled(&device, &train)?;
    let [mut plain, mut within] = profiled(&device, &train)?;
    let profile_over_plain = median(&mut within) / median(&mut plain);
    let ratio = median(&mut trainings) / median(&mut bares);
    print(&format!(
        r#"{{"device": "{name}", "bare_s": {bares:?}, "trainer_s": {trainings:?}, "trainer_over_bare": {ratio:.4}, "profile_over_plain": {profile_over_plain:.4}}}"#
    ));
    Ok(())
}
