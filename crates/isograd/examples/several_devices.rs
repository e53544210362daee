//! Shows that several devices work together, and how fast: values and gradients of collectives, equal losses, the bandwidth of
//! `all_reduce`, and the tokens a second of GPT-2 on one device and on all. Ranks are threads with a device each (`--devices
//! cuda:0,cuda:1`), or the processes of a launcher: `mpirun -n 2 several_devices`, `torchrun --no-python --nproc-per-node 2
//! several_devices`. A part that fails does not end the others.

mod print;

use clap::Parser;
use isograd::models::{Gpt2, Gpt2Options};
use isograd::parallel::{
    DataParallel, Group, Options, ParallelOptions, Reduction, ShardedOptimizer, World, threads_with,
};
use isograd::prelude::*;
use print::print;
use std::time::{Duration, Instant};

#[derive(Clone, Parser)]
struct Arguments {
    /// Devices of threads; without them, each process has a device
    #[arg(long, value_delimiter = ',')]
    devices: Vec<String>,
    /// The kind of the processes' devices, such as cuda or cpu
    #[arg(long)]
    device: Option<String>,
    /// A small network and small tensors, for processors
    #[arg(long)]
    small: bool,
    /// Sequences of a step on each rank
    #[arg(long, default_value_t = 8)]
    batch: usize,
    /// Steps that are timed
    #[arg(long, default_value_t = 20)]
    steps: usize,
    /// Parts that are run: collectives, gradients, losses, sharded, bandwidth, speed, capture
    #[arg(long, value_delimiter = ',', default_value = "collectives,gradients,losses,sharded,bandwidth,speed,capture")]
    parts: Vec<String>,
    /// Seconds that a rank waits for the others
    #[arg(long, default_value_t = 180)]
    timeout: u64,
}

/// A part of the program, on a rank of a group of its own.
type Part = fn(&Group, &Device, &Arguments) -> Result<()>;

const PARTS: [(&str, Part); 7] = [
    ("collectives", collectives),
    ("gradients", gradients),
    ("losses", losses),
    ("sharded", sharded),
    ("bandwidth", bandwidth),
    ("speed", speed),
    ("capture", capture),
];

fn say(group: &Group, line: &str) {
    if group.is_first() {
        print(line);
    }
}

fn check(is_right: bool, what: &str) -> Result<()> {
    if is_right { Ok(()) } else { Err(Error::value("several_devices", format!("{what} is wrong"))) }
}

fn collectives(group: &Group, device: &Device, _: &Arguments) -> Result<()> {
    let (rank, n) = (group.rank(), group.size());
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64, DType::I64, DType::I32, DType::U8] {
        for length in [1, 1000, 100_003] {
            let x = Tensor::full(length, (rank + 1) as f64, DType::F32, device)?.cast(dtype)?;
            let is_all = |y: &Tensor, value: usize| -> Result<bool> {
                Ok(y.numel() == length && y.to_f64_vec()?.iter().all(|v| *v == value as f64))
            };
            let of = |what: &str| format!("{what} of {dtype} [{length}]");
            check(is_all(&group.all_reduce(&x, Reduction::Sum)?, n * (n + 1) / 2)?, &of("all_reduce"))?;
            check(is_all(&group.all_reduce(&x, Reduction::Max)?, n)?, &of("the maximum"))?;
            check(is_all(&group.broadcast(&x, n - 1)?, n)?, &of("broadcast"))?;
            let gathered = group.all_gather(&x)?;
            for i in 0..n {
                check(is_all(&gathered.select(0, i as isize)?, i + 1)?, &of("all_gather"))?;
            }
            check(is_all(&group.reduce_scatter(&gathered, Reduction::Sum)?, n * (rank + 1))?, &of("reduce_scatter"))?;
            let turned = group.all_to_all(&x.unsqueeze(0)?.expand((n, length))?.contiguous()?)?;
            check(turned.to_f64_vec()? == gathered.to_f64_vec()?, &of("all_to_all"))?;
            if dtype.is_float() {
                let mean = group.all_reduce(&x, Reduction::Mean)?.to_f64_vec()?;
                check(mean.iter().all(|v| (v - (n + 1) as f64 / 2.0).abs() < 1e-2), &of("the mean"))?;
            }
        }
    }
    if n > 1 {
        let x = Tensor::full(3, rank as f64, DType::F32, device)?;
        let (to, from) = ((rank + 1) % n, (rank + n - 1) % n);
        // One after the other: a device's message may wait for its receiver.
        if rank == 0 {
            group.send(&x, to)?;
        }
        let found = group.receive(from, 3, DType::F32, device)?.to_f64_vec()?;
        if rank > 0 {
            group.send(&x, to)?;
        }
        check(found == [from as f64; 3], "receive")?;
    }
    say(group, "  values are right in 7 dtypes");
    Ok(())
}

fn gradients(group: &Group, device: &Device, _: &Arguments) -> Result<()> {
    let (rank, n) = (group.rank() as f64, group.size() as f64);
    let x = Tensor::full(4, rank + 1.0, DType::F32, device)?.require_grad()?;
    // The objective is the sum over ranks of 4 s^2, s = n (n + 1) / 2: each element's gradient is n * 2 s.
    group.all_reduce(&x, Reduction::Sum)?.square()?.sum(..)?.backward()?;
    let expected = n * n * (n + 1.0);
    let found = x.grad().map_or(Ok(Vec::new()), |g| g.to_f64_vec())?;
    check(found == [expected; 4], &format!("the gradient of all_reduce, {found:?}, expected {expected},"))?;
    x.set_grad(None)?;
    group.all_gather(&x)?.mul_scalar(rank + 1.0)?.sum(..)?.backward()?;
    let found = x.grad().map_or(Ok(Vec::new()), |g| g.to_f64_vec())?;
    check(found == [n * (n + 1.0) / 2.0; 4], "the gradient of all_gather")?;
    say(group, "  gradients are right");
    Ok(())
}

/// Tokens `[B, T]` that follow each other by a rule, and the next of each.
fn tokens(rows: usize, length: usize, vocab: usize, device: &Device, rng: &Rng) -> Result<(Tensor, Tensor)> {
    let first = Tensor::rand((rows, 1), 0.0, vocab as f64 - 1.0, DType::F64, device, rng)?.floor()?;
    let all = first.add(&Tensor::arange(length + 1, device)?.cast(DType::F64)?.mul_scalar(3.0)?)?;
    let rounds = all.add_scalar(0.5)?.mul_scalar(1.0 / vocab as f64)?.floor()?;
    let all = all.sub(&rounds.mul_scalar(vocab as f64)?)?.cast(DType::I64)?;
    Ok((all.narrow(1, 0, length)?.contiguous()?, all.narrow(1, 1, length)?.contiguous()?))
}

fn loss(model: &Gpt2, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let logits = model.forward(x)?;
    // In mixed precision the kernel reads 16 bits, and the loss is f32.
    logits.flatten(0, 1)?.cross_entropy(&y.flatten(0, 1)?)
}

/// The losses of a small GPT on the ranks of a group, with 8 sequences a step in all.
fn run(group: &Group, device: &Device, steps: usize, is_sharded: bool) -> Result<Vec<f64>> {
    let options = Gpt2Options { vocab: 61, context: 32, layers: 2, heads: 4, width: 64, dropout: 0.0 };
    let model = Gpt2::new(options, &Init::new(device).seed(7 + group.rank() as u64))?;
    let parallel = DataParallel::new(&model, group, ParallelOptions { bucket: 64 << 10, ..Default::default() })?;
    let mut optimizer: Box<dyn Optimizer> = match is_sharded {
        true => Box::new(ShardedOptimizer::new(&model, group, |part| AdamW::new(part).lr(1e-3).clip_norm(1.0))?),
        false => Box::new(AdamW::new(&model).lr(1e-3).clip_norm(1.0)),
    };
    let (rng, mut found) = (Rng::new(5), Vec::new());
    for step in 0..steps {
        group.set_step(step as u64);
        let (x, y) = tokens(8, 32, 61, device, &rng)?;
        let part = |rank: usize| 8 * rank / group.size();
        let (start, count) = (part(group.rank()), part(group.rank() + 1) - part(group.rank()));
        let own = loss(&model, &x.narrow(0, start, count)?, &y.narrow(0, start, count)?)?;
        let own = own.mul_scalar(group.share(count)?)?;
        own.backward()?;
        parallel.synchronize()?;
        optimizer.step()?;
        found.push(group.all_reduce(&own.detach(), Reduction::Mean)?.item::<f64>()?);
    }
    parallel.check_weights()?;
    Ok(found)
}

fn compare(group: &Group, device: &Device, is_sharded: bool) -> Result<()> {
    let steps = 30;
    let found = run(group, device, steps, is_sharded)?;
    if group.is_first() {
        let alone = run(&Group::alone(), device, steps, false)?;
        let distance = found.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        print(&format!(
            "  losses of {steps} steps: {:.6} to {:.6}; on one rank {:.6} to {:.6}; they differ by {distance:.1e} at most",
            found[0],
            found[steps - 1],
            alone[0],
            alone[steps - 1]
        ));
        check(distance < 1e-4, "a loss")?;
    }
    group.barrier()
}

fn losses(group: &Group, device: &Device, _: &Arguments) -> Result<()> {
    compare(group, device, false)
}

fn sharded(group: &Group, device: &Device, _: &Arguments) -> Result<()> {
    compare(group, device, true)
}

fn bandwidth(group: &Group, device: &Device, arguments: &Arguments) -> Result<()> {
    let n = group.size() as f64;
    say(group, "  all_reduce of f32: bytes, microseconds, GB/s (bytes / time), GB/s of the bus (times 2 (n - 1) / n)");
    let most = if arguments.small { 20 } else { 28 };
    for bits in (10..=most).step_by(2) {
        let bytes = 1usize << bits;
        let x = Tensor::ones(bytes / 4, DType::F32, device)?;
        let times = if bits < 22 { 50 } else { 20 };
        let mut seconds = f64::INFINITY;
        for round in 0..3 {
            group.barrier()?;
            device.synchronize()?;
            let started = Instant::now();
            for _ in 0..times {
                group.all_reduce(&x, Reduction::Sum)?;
            }
            device.synchronize()?;
            if round > 0 {
                seconds = seconds.min(started.elapsed().as_secs_f64() / times as f64);
            }
        }
        let rate = bytes as f64 / seconds * 1e-9;
        let bus = rate * 2.0 * (n - 1.0) / n;
        say(group, &format!("  {bytes:>12} {:>12.1} {rate:>10.3} {bus:>10.3}", seconds * 1e6));
    }
    Ok(())
}

/// Tokens a second of all ranks of a group.
fn rate(group: &Group, device: &Device, arguments: &Arguments, bucket: usize, is_captured: bool) -> Result<f64> {
    let small = Gpt2Options { vocab: 512, context: 64, layers: 2, heads: 4, width: 64, dropout: 0.0 };
    let options =
        if arguments.small { small } else { Gpt2Options { vocab: 50304, dropout: 0.0, ..Gpt2Options::small() } };
    let (batch, length) = (arguments.batch, options.context);
    let model = Gpt2::new(options, &Init::new(device).seed(1))?;
    let parallel =
        DataParallel::new(&model, group, ParallelOptions { bucket, check_every: None, ..Default::default() })?;
    let mut optimizer = AdamW::new(&model).lr(1e-4);
    let (x, y) = tokens(batch, length, options.vocab, device, &Rng::new(2 + group.rank() as u64))?;
    let has_half = !arguments.small;
    let mut once = |(x, y): (Tensor, Tensor)| -> Result<Tensor> {
        let forward = || loss(&model, &x, &y);
        let loss = if has_half { autocast(DType::BF16, forward)? } else { forward()? };
        loss.backward()?;
        parallel.synchronize()?;
        optimizer.step()?;
        Ok(loss.detach())
    };
    let mut step: Box<dyn FnMut() -> Result<Tensor> + '_> = match is_captured {
        true => {
            let mut step = device.capture(once);
            Box::new(move || step.run((x.clone(), y.clone())))
        }
        false => Box::new(move || once((x.clone(), y.clone()))),
    };
    let mut seconds = f64::INFINITY;
    let mut last = f64::NAN;
    // The first round compiles and records.
    for round in 0..4 {
        let steps = if round == 0 { 5 } else { arguments.steps };
        group.barrier()?;
        let started = Instant::now();
        let mut found = None;
        for _ in 0..steps {
            found = Some(step()?);
        }
        device.synchronize()?;
        if round > 0 {
            seconds = seconds.min(started.elapsed().as_secs_f64() / steps as f64);
        }
        last = found.map_or(Ok(f64::NAN), |loss: Tensor| loss.item::<f64>())?;
    }
    check(last.is_finite(), "the loss")?;
    Ok((batch * length * group.size()) as f64 / seconds)
}

/// The rates of one rank, while the others wait, and of all.
fn rates(group: &Group, device: &Device, arguments: &Arguments, is_captured: bool) -> Result<()> {
    let words = if is_captured { "captured, " } else { "" };
    let mut alone = 0.0;
    if group.is_first() {
        alone = rate(&Group::alone(), device, arguments, 25_000_000, is_captured)?;
        print(&format!("  {words}1 rank: {alone:.0} tokens/s"));
    }
    group.barrier()?;
    for (name, bucket) in [("buckets of 25 MB, reduced during the pass", 25_000_000), ("one bucket", usize::MAX)] {
        let all = rate(&group.duplicate()?, device, arguments, bucket, is_captured)?;
        let n = group.size();
        let share = 100.0 * all / (alone * n as f64);
        say(group, &format!("  {words}{n} ranks, {name}: {all:.0} tokens/s, {share:.1} % of {n} times one rank"));
    }
    group.barrier()
}

fn speed(group: &Group, device: &Device, arguments: &Arguments) -> Result<()> {
    rates(group, device, arguments, false)
}

fn capture(group: &Group, device: &Device, arguments: &Arguments) -> Result<()> {
    if !group.is_enqueued(device)? || !arguments.devices.is_empty() {
        say(group, "  not tried: a recording needs NCCL or RCCL, and a process for each rank");
        return Ok(());
    }
    rates(group, device, arguments, true)
}

fn run_rank(group: &Group, device: &Device, arguments: &Arguments) -> Result<()> {
    let own = format!("rank {} of {}: {device}, {}", group.rank(), group.size(), group.transport());
    for line in group.gather_bytes("introduction", own.as_bytes())? {
        say(group, &String::from_utf8_lossy(&line));
    }
    let way = if group.is_enqueued(device)? { "the vendor's library of collectives" } else { "host memory" };
    say(group, &format!("tensors go through {way}"));
    let mut failures = Vec::new();
    for (name, part) in PARTS.iter().filter(|(name, _)| arguments.parts.iter().any(|part| part == name)) {
        say(group, &format!("{name}:"));
        let started = Instant::now();
        match group.duplicate().and_then(|own| part(&own, device, arguments)) {
            Ok(()) => say(group, &format!("  {name} done in {:.1} s", started.elapsed().as_secs_f64())),
            Err(error) => {
                print(&format!("  rank {}: {name} FAILED: {error}", group.rank()));
                failures.push(*name);
            }
        }
    }
    if !failures.is_empty() {
        return Err(Error::value("several_devices", format!("failed: {}", failures.join(", "))));
    }
    say(group, "all parts are right");
    Ok(())
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let options = Options { timeout: Duration::from_secs(arguments.timeout) };
    if arguments.devices.is_empty() {
        let world = World::start_with(options)?;
        let device = world.device(arguments.device.as_deref())?;
        return run_rank(world.group(), &device, &arguments);
    }
    let devices = arguments.devices.iter().map(|name| name.parse()).collect::<Result<Vec<Device>>>()?;
    threads_with(devices.len(), options, |group| run_rank(&group, &devices[group.rank()], &arguments)).map(drop)
}
