//! Two GPUs of a kind with NCCL or RCCL: collectives in device memory, and training. A machine without them ignores this;
//! `ISOGRAD_REQUIRE=cuda,simt`, as for the emulator, makes it a failure.

use crate::equality::{JOBS, Way, distance, losses, losses_by};
use isograd_core::collective::Link;
use isograd_core::{DType, Device, Error, Kind, Result, Tensor};
use isograd_cpu as _;
use isograd_cuda as _;
use isograd_hip as _;
use isograd_nn::{Forward, Init, Linear, Optimizer, Sgd};
use isograd_parallel::{FullySharded, Group, Reduction, ShardOptions, threads};
use libtest_mimic::{Failed, Trial};
use std::time::{Duration, Instant};

/// Fewer than elsewhere: an emulator is slow.
const STEPS: usize = 12;

pub fn trials() -> Vec<Trial> {
    let of = |kind| {
        [
            trial(kind, "collectives", collectives),
            trial(kind, "gradients", gradients),
            trial(kind, "training", training),
            trial(kind, "fully_sharded", fully_sharded),
            trial(kind, "fully_sharded_with_limit", fully_sharded_with_limit),
            trial(kind, "another_shape", another_shape),
            trial(kind, "a_rank_that_does_not_join", missing_rank),
        ]
    };
    ["cuda", "hip"].into_iter().flat_map(of).collect()
}

fn trial(kind: &'static str, name: &str, run: fn(&Group, &Device) -> Result<()>) -> Trial {
    let found = [0, 1].map(|i| format!("{kind}:{i}").parse::<Device>());
    let required = std::env::var("ISOGRAD_REQUIRE").unwrap_or_default();
    let required: Vec<&str> = required.split(',').collect();
    let is_required = required.contains(&kind) && required.contains(&"simt");
    let is_missing = found.iter().any(Result::is_err);
    let test = move || {
        let [a, b] = found;
        let devices = [a.map_err(text)?, b.map_err(text)?];
        threads(2, |group| {
            let device = &devices[group.rank()];
            if !group.is_enqueued(device)? {
                return Err(Error::device("devices", "there is no library of collectives"));
            }
            run(&group, device)
        })
        .map(drop)
        .map_err(text)
    };
    Trial::test(format!("{kind}::{name}"), test).with_ignored_flag(is_missing && !is_required)
}

fn text(error: Error) -> Failed {
    error.to_string().into()
}

fn check(is_right: bool, what: String) -> Result<()> {
    if is_right { Ok(()) } else { Err(Error::value("devices", format!("{what} is wrong"))) }
}

/// The other ranks do not wait without end.
fn missing_rank(group: &Group, device: &Device) -> Result<()> {
    if group.rank() != 0 {
        return Ok(());
    }
    let identity = Link::identity(device)?.unwrap_or_default();
    let (begin, timeout) = (Instant::now(), Duration::from_millis(500));
    let joined = Link::join(device, &identity, 0, 2, timeout).err();
    let message = joined.as_ref().map_or("no error", Error::message);
    check(message.ends_with("rank 0 of 2 waited 500ms for the others"), format!("the error `{message}`"))?;
    check(begin.elapsed() >= timeout && begin.elapsed() < 20 * timeout, format!("{:?} of waiting", begin.elapsed()))
}

fn collectives(group: &Group, device: &Device) -> Result<()> {
    let (rank, n) = (group.rank(), group.size());
    for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::Bool) {
        for length in [1, 1001] {
            // The input of a collective is the result of a kernel, and its memory is used again.
            let x = Tensor::full(length, rank as f64, DType::F32, device)?.add_scalar(1.0)?.cast(dtype)?;
            let is_all = |y: Tensor, value: usize| -> Result<bool> {
                Ok(y.numel() == length && y.to_f64_vec()?.iter().all(|v| *v == value as f64))
            };
            let of = |what: &str| format!("{what} of {dtype} [{length}]");
            check(is_all(group.all_reduce(&x, Reduction::Sum)?, n * (n + 1) / 2)?, of("all_reduce"))?;
            check(is_all(group.all_reduce(&x, Reduction::Max)?, n)?, of("the maximum"))?;
            check(is_all(group.broadcast(&x, n - 1)?, n)?, of("broadcast"))?;
            let gathered = group.all_gather(&x)?;
            for i in 0..n {
                check(is_all(gathered.select(0, i as isize)?, i + 1)?, of("all_gather"))?;
            }
            check(is_all(group.reduce_scatter(&gathered, Reduction::Sum)?, n * (rank + 1))?, of("reduce_scatter"))?;
            let turned = group.all_to_all(&x.unsqueeze(0)?.expand((n, length))?)?;
            check(turned.to_f64_vec()? == gathered.to_f64_vec()?, of("all_to_all"))?;
        }
    }
    let mean = group.all_reduce(&Tensor::full(3, rank as f64, DType::F32, device)?, Reduction::Mean)?;
    check(mean.to_vec::<f32>()? == [0.5; 3], "the mean".into())?;
    let half = group.split(Some(0), n - rank)?.ok_or_else(|| Error::value("devices", "no group"))?;
    let turned = half.all_gather(&Tensor::scalar(rank as f32, device)?)?;
    check(turned.to_vec::<f32>()? == [1.0, 0.0], "a group of another order".into())?;
    let x = Tensor::full(3, 5.0 + rank as f64, DType::F32, device)?;
    if rank == 0 {
        group.send(&x, 1)
    } else {
        check(group.receive(0, 3, DType::F32, device)?.to_vec::<f32>()? == [5.0; 3], "receive".into())
    }
}

fn gradients(group: &Group, device: &Device) -> Result<()> {
    let x = Tensor::full(4, group.rank() as f64 + 1.0, DType::F32, device)?.require_grad()?;
    // The sum is 3; each rank's objective is its square.
    group.all_reduce(&x, Reduction::Sum)?.square()?.sum(..)?.backward()?;
    let found = x.grad().map(|g| g.to_vec::<f32>()).transpose()?;
    check(found == Some(vec![12.0; 4]), "the gradient".into())
}

fn training(group: &Group, device: &Device) -> Result<()> {
    let job = &JOBS[0];
    let found = losses(job, group, device, STEPS)?;
    let distance = distance(&found, &losses(job, &Group::alone(), device, STEPS)?);
    check(distance < 1e-6, format!("a loss, by {distance:e},"))
}

fn fully_sharded(group: &Group, device: &Device) -> Result<()> {
    let job = &JOBS[0];
    let found = losses_by(Way::FullySharded, job, group, device, STEPS)?;
    let distance = distance(&found, &losses(job, &Group::alone(), device, STEPS)?);
    check(distance < 1e-6, format!("a loss, by {distance:e},"))
}

/// A device whose memory is limited refuses more, and has all again afterwards.
fn fully_sharded_with_limit(group: &Group, device: &Device) -> Result<()> {
    let make = |init: &Init| Linear::new(256, 64, init);
    let options = ShardOptions { compute: Some(DType::BF16), ..ShardOptions::default() };
    let (model, sharded) = FullySharded::build(group, &options, &Init::new(device), make)?;
    let mut optimizer = sharded.optimizer(|parts| Sgd::new(parts).lr(0.1))?;
    device.limit_memory(Some(device.memory().in_use + (1 << 20)))?;
    let error = Tensor::zeros(1 << 19, DType::F32, device).err().map(|error| error.kind());
    check(error == Some(Kind::OutOfMemory), format!("the error {error:?}"))?;
    let x = Tensor::ones((2, 256), DType::BF16, device)?;
    let step = |optimizer: &mut dyn Optimizer| -> Result<f64> {
        let loss = model.forward(&x)?.square()?.mean(..)?;
        loss.backward()?;
        sharded.synchronize()?;
        optimizer.step()?;
        loss.item()
    };
    let losses = [step(&mut optimizer)?, step(&mut optimizer)?, step(&mut optimizer)?];
    device.limit_memory(None)?;
    Tensor::zeros(1 << 19, DType::F32, device)?;
    check(losses[2] < losses[0], format!("{losses:?}"))
}

fn another_shape(group: &Group, device: &Device) -> Result<()> {
    let x = Tensor::zeros(3 + group.rank(), DType::F32, device)?;
    let error = group.all_reduce(&x, Reduction::Sum).err().map(|e| e.to_string()).unwrap_or_default();
    let kind = device.name().split(':').next().unwrap_or_default();
    let expected = format!("rank 1 is at all_reduce (sum) of f32 [4] on {kind} in step 0");
    check(error.contains(&expected), format!("the error {error:?}"))
}
