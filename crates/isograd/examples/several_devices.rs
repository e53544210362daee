//! Shows that several devices work together, and how fast: values and gradients of collectives, equal losses in three ways of training,
//! bandwidths, GPT-2 and ResNet-18 on one rank, on some and on all, what communication costs beside computing, a network that no rank
//! could train alone, and a rank that is killed. Ranks are threads with a device each (`--devices cuda:0,cuda:1`), or the processes of a
//! launcher: `mpirun -n 2 several_devices`, `torchrun --no-python --nproc-per-node 2 several_devices`. A part that fails does not end the
//! others. `benches/several_devices.sh` runs all of it, beside PyTorch.

mod print;

use clap::Parser;
use isograd::data::{Loader, digits};
use isograd::models::{Gpt2, Gpt2Options, ResNet, ResNetOptions, Stem};
use isograd::parallel::{
    DataParallel, FullySharded, Group, Options, ParallelOptions, Reduction, ShardOptions, ShardedOptimizer, World,
    threads_with,
};
use isograd::prelude::*;
use isograd::train::Trainer;
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
    /// Small networks and small tensors, for processors
    #[arg(long)]
    small: bool,
    /// Steps that are timed at once; the median of three such times counts
    #[arg(long, default_value_t = 10)]
    steps: usize,
    /// Parts that are run: values, losses, trainer, bandwidth, gpt2, resnet, fsdp, kill
    #[arg(long, value_delimiter = ',', default_value = "values,losses,trainer,bandwidth,gpt2,resnet,fsdp")]
    only: Vec<String>,
    /// Seconds that a rank waits for the others
    #[arg(long, default_value_t = 120)]
    timeout: u64,
}

/// A part of the program, on a rank of a group of its own.
type Part = fn(&Group, &Device, &Arguments) -> Result<()>;

const PARTS: [(&str, Part); 8] = [
    ("values", values),
    ("losses", losses),
    ("trainer", trainer),
    ("bandwidth", bandwidth),
    ("gpt2", |group, device, arguments| speed(group, device, arguments, Network::Gpt2)),
    ("resnet", |group, device, arguments| speed(group, device, arguments, Network::ResNet)),
    ("fsdp", fsdp),
    ("kill", kill),
];

/// Bytes of a bucket.
const BUCKET: usize = 25_000_000;

fn say(group: &Group, line: &str) {
    if group.is_first() {
        print(line);
    }
}

fn check(is_right: bool, what: &str) -> Result<()> {
    if is_right { Ok(()) } else { Err(Error::value("several_devices", format!("{what} is wrong"))) }
}

fn values(group: &Group, device: &Device, _: &Arguments) -> Result<()> {
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
    gradients(group, device)?;
    say(group, "  values are right in 7 dtypes, and gradients too");
    Ok(())
}

fn gradients(group: &Group, device: &Device) -> Result<()> {
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
    check(found == [n * (n + 1.0) / 2.0; 4], "the gradient of all_gather")
}

/// Tokens `[B, T]` that follow each other by a rule, and the next of each.
fn tokens(rows: usize, length: usize, vocab: usize, device: &Device, rng: &Rng) -> Result<(Tensor, Tensor)> {
    let first = Tensor::rand((rows, 1), 0.0, vocab as f64 - 1.0, DType::F64, device, rng)?.floor()?;
    let all = first.add(&Tensor::arange(length + 1, device)?.cast(DType::F64)?.mul_scalar(3.0)?)?;
    let rounds = all.add_scalar(0.5)?.mul_scalar(1.0 / vocab as f64)?.floor()?;
    let all = all.sub(&rounds.mul_scalar(vocab as f64)?)?.cast(DType::I64)?;
    Ok((all.narrow(1, 0, length)?.contiguous()?, all.narrow(1, 1, length)?.contiguous()?))
}

/// The mean loss of tokens or of images.
fn loss(model: &dyn Layer, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let logits = model.forward(x)?;
    // In mixed precision the kernel reads 16 bits, and the loss is f32.
    if logits.rank() == 3 { logits.flatten(0, 1)?.cross_entropy(&y.flatten(0, 1)?) } else { logits.cross_entropy(y) }
}

/// The tensors that are distributed over the ranks.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Gradients are reduced.
    Data,
    /// In addition, states of the optimizer are distributed.
    States,
    /// Parameters, gradients and states are distributed.
    All,
}

enum Parallel {
    Data(DataParallel),
    All(FullySharded),
}

impl Parallel {
    fn synchronize(&self) -> Result<()> {
        match self {
            Parallel::Data(parallel) => parallel.synchronize(),
            Parallel::All(sharded) => sharded.synchronize(),
        }
    }
}

fn adam(model: &dyn Module) -> AdamW {
    AdamW::new(model).lr(1e-3).clip_norm(1.0)
}

/// The losses of a small GPT on the ranks of a group, with 8 sequences a step in all.
fn run(group: &Group, device: &Device, steps: usize, way: Way) -> Result<Vec<f64>> {
    let options = Gpt2Options { vocab: 61, context: 32, layers: 2, heads: 4, width: 64, dropout: 0.0 };
    let init = Init::new(device).seed(7 + group.rank() as u64);
    let (model, parallel, mut optimizer): (Gpt2, _, Box<dyn Optimizer>) = match way {
        Way::All => {
            let make = |init: &Init| Gpt2::new(&options, init);
            let (model, sharded) = FullySharded::build(group, &ShardOptions::default(), &init, make)?;
            let optimizer = sharded.optimizer(adam)?;
            (model, Parallel::All(sharded), Box::new(optimizer))
        }
        _ => {
            let model = Gpt2::new(&options, &init)?;
            let buckets = ParallelOptions { bucket: 64 << 10, ..ParallelOptions::default() };
            let parallel = DataParallel::new(&model, group, &buckets)?;
            let optimizer: Box<dyn Optimizer> = match way {
                Way::States => Box::new(ShardedOptimizer::new(&model, group, adam)?),
                _ => Box::new(adam(&model)),
            };
            (model, Parallel::Data(parallel), optimizer)
        }
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
        found.push(group.all_reduce(&own.detach(), Reduction::Mean)?.item()?);
    }
    if let Parallel::Data(parallel) = &parallel {
        parallel.check_weights()?;
    }
    Ok(found)
}

fn losses(group: &Group, device: &Device, _: &Arguments) -> Result<()> {
    let steps = 30;
    let alone = if group.is_first() { run(&Group::alone(), device, steps, Way::Data)? } else { Vec::new() };
    let ways = [(Way::Data, "gradients"), (Way::States, "states too"), (Way::All, "parameters too")];
    let mut worst = 0.0f64;
    for (way, name) in ways {
        let found = run(&group.duplicate()?, device, steps, way)?;
        if group.is_first() {
            let distance = found.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            print(&format!(
                "  {name:<14} losses of {steps} steps: {:.6} to {:.6}; on one rank {:.6} to {:.6}; they differ by {distance:.1e} at most",
                found[0],
                found[steps - 1],
                alone[0],
                alone[steps - 1]
            ));
            worst = worst.max(distance);
        }
    }
    check(worst < 1e-4, "a loss")?;
    group.barrier()
}

/// The least seconds of three rounds of a collective.
fn seconds_of(group: &Group, device: &Device, times: usize, mut once: impl FnMut() -> Result<Tensor>) -> Result<f64> {
    let mut seconds = f64::INFINITY;
    for round in 0..3 {
        group.barrier()?;
        device.synchronize()?;
        let started = Instant::now();
        for _ in 0..times {
            once()?;
        }
        device.synchronize()?;
        if round > 0 {
            seconds = seconds.min(started.elapsed().as_secs_f64() / times as f64);
        }
    }
    Ok(seconds)
}

fn bandwidth(group: &Group, device: &Device, arguments: &Arguments) -> Result<()> {
    let n = group.size();
    say(
        group,
        "  f32 of all ranks together; microseconds; GB/s of the bus: bytes / time, times (n - 1) / n, twice for all_reduce",
    );
    let sizes: &[usize] = if arguments.small { &[1] } else { &[1, 4, 16, 25, 64, 256, 1024] };
    for mib in sizes {
        let elements = (mib << 18) / n * n;
        let x = Tensor::ones(elements, DType::F32, device)?;
        let times = if *mib < 64 { 20 } else { 8 };
        let part = x.narrow(0, 0, elements / n)?;
        let whole = x.reshape((n, elements / n))?;
        let reduced = seconds_of(group, device, times, || group.all_reduce(&x, Reduction::Sum))?;
        let gathered = seconds_of(group, device, times, || group.all_gather(&part))?;
        let scattered = seconds_of(group, device, times, || group.reduce_scatter(&whole, Reduction::Sum))?;
        let bus = |seconds: f64| (4 * elements) as f64 / seconds * 1e-9 * (n - 1) as f64 / n as f64;
        let found = [("all_reduce", reduced, 2.0), ("all_gather", gathered, 1.0), ("reduce_scatter", scattered, 1.0)];
        let words = found
            .map(|(name, seconds, factor)| format!("{name} {:>9.1} {:>7.1}", seconds * 1e6, factor * bus(seconds)));
        say(group, &format!("  {mib:>5} MiB  {}", words.join("  ")));
    }
    // The time of the smallest message is that of the ranks' agreement and of a launch.
    let x = Tensor::ones(1, DType::F32, device)?;
    let seconds = seconds_of(group, device, 50, || group.all_reduce(&x, Reduction::Sum))?;
    say(group, &format!("  one element: {:.1} microseconds", seconds * 1e6));
    Ok(())
}

/// The losses of epochs of the training loop on handwritten digits, captured and not, which have the same steps.
fn trainer(group: &Group, device: &Device, _: &Arguments) -> Result<()> {
    let run = |is_captured: bool| -> Result<(Vec<f64>, f64)> {
        let init = Init::new(device).seed(1);
        let model =
            Sequential::new().push(Linear::new(64, 128, &init)?).push(Tensor::relu).push(Linear::new(128, 10, &init)?);
        let loader = Loader::new(digits()?, 64)?.shuffle(1).to(device);
        let predict = |model: &Sequential, (x, _): &(Tensor, Tensor)| model.forward(x);
        let score = |logits: &Tensor, (_, y): &(Tensor, Tensor)| logits.cross_entropy(y);
        let trainer = Trainer::new(&model, AdamW::new(&model).lr(1e-3), loader, predict, score).epochs(4);
        let mut trainer = trainer.parallel(&group.duplicate()?, &ParallelOptions::default())?;
        trainer = if is_captured { trainer } else { trainer.without_capture() };
        trainer.run()?;
        let history = trainer.history();
        let seconds = history[3].seconds - history[1].seconds;
        let steps = (history[3].steps - history[1].steps) as f64;
        Ok((history.iter().map(|epoch| epoch.train_loss).collect(), 1e3 * seconds / steps))
    };
    let ((plain, slow), (captured, fast)) = (run(false)?, run(true)?);
    let has_capture = group.is_captured(device)?;
    let words = if has_capture { "captured" } else { "not captured" };
    say(
        group,
        &format!("  plain {slow:.3} ms a step, losses {plain:.6?}; {words} {fast:.3} ms, losses {captured:.6?}"),
    );
    check(plain.iter().zip(&captured).all(|(a, b)| (a - b).abs() < 1e-5), "a loss")
}

/// A network whose training is timed.
#[derive(Clone, Copy, PartialEq)]
enum Network {
    /// 124 million parameters, 16 x 1024 tokens a rank, AdamW.
    Gpt2,
    /// ResNet-18 for 32 x 32 pixels with channels last, 256 images a rank, SGD with momentum.
    ResNet,
}

/// How gradients of a timed training are reduced.
#[derive(Clone, Copy, PartialEq)]
struct Reduced {
    bucket: usize,
    dtype: Option<DType>,
    /// False: each rank steps by its own gradients.
    is_on: bool,
    is_captured: bool,
}

/// A timed training.
struct Timed {
    /// Of a step.
    seconds: f64,
    /// Samples of a step of one rank.
    samples: usize,
    /// Elements of buckets, in their order.
    buckets: Vec<usize>,
}

impl Network {
    fn unit(self) -> &'static str {
        if self == Network::Gpt2 { "tokens/s" } else { "images/s" }
    }

    fn make(self, init: &Init, is_small: bool) -> Result<Box<dyn Layer>> {
        Ok(match (self, is_small) {
            (Network::Gpt2, _) => Box::new(Gpt2::new(&gpt(is_small), init)?),
            (Network::ResNet, true) => Box::new(
                Sequential::new()
                    .push(Conv2d::new(3, 4, [3, 3], init)?)
                    .push(Tensor::relu)
                    .push(Flatten::default())
                    .push(Linear::new(4 * 6 * 6, 10, init)?),
            ),
            (Network::ResNet, false) => {
                let options = ResNetOptions { classes: 10, stem: Stem::Cifar, ..ResNetOptions::default() };
                Box::new(ResNet::resnet18(&options, &init.clone().channels_last())?)
            }
        })
    }

    /// Inputs, targets, and the samples in them.
    fn batch(self, rank: usize, device: &Device, is_small: bool) -> Result<(Tensor, Tensor, usize)> {
        let rng = Rng::new(2 + rank as u64);
        if self == Network::Gpt2 {
            let (rows, length, vocab) = if is_small { (2, 32, 61) } else { (16, 1024, 50_304) };
            let (x, y) = tokens(rows, length, vocab, device, &rng)?;
            return Ok((x, y, rows * length));
        }
        let (rows, side) = if is_small { (4, 8) } else { (256, 32) };
        let x = Tensor::randn((rows, 3, side, side), 0.0, 1.0, DType::F32, device, &rng)?.to_channels_last()?;
        let y = Tensor::rand(rows, 0.0, 9.99, DType::F32, device, &rng)?.cast(DType::I64)?;
        Ok((x, y, rows))
    }

    fn optimizer(self, model: &dyn Module) -> Box<dyn Optimizer> {
        match self {
            Network::Gpt2 => Box::new(AdamW::new(model).lr(1e-4)),
            Network::ResNet => Box::new(Sgd::new(model).lr(0.01).momentum(0.9)),
        }
    }
}

fn gpt(is_small: bool) -> Gpt2Options {
    match is_small {
        true => Gpt2Options { vocab: 61, context: 32, layers: 2, heads: 4, width: 64, dropout: 0.0 },
        false => Gpt2Options { vocab: 50_304, dropout: 0.0, ..Gpt2Options::small() },
    }
}

/// The median seconds of a step in three rounds, of the slowest rank.
fn median_of(group: &Group, device: &Device, steps: usize, mut step: impl FnMut() -> Result<Tensor>) -> Result<f64> {
    let mut rounds = Vec::new();
    // The first round compiles and records.
    for round in 0..4 {
        let steps = if round == 0 { 4 } else { steps };
        group.barrier()?;
        let started = Instant::now();
        let mut last = None;
        for _ in 0..steps {
            last = Some(step()?);
        }
        device.synchronize()?;
        if round > 0 {
            rounds.push(started.elapsed().as_secs_f64() / steps as f64);
        }
        let last = last.map_or(Ok(f64::NAN), |loss: Tensor| loss.item())?;
        check(last.is_finite(), "the loss")?;
    }
    rounds.sort_by(f64::total_cmp);
    let all = group.gather_bytes("times", &rounds[1].to_le_bytes())?;
    Ok(all.iter().filter_map(|bytes| bytes.first_chunk()).map(|word| f64::from_le_bytes(*word)).fold(0.0, f64::max))
}

/// Trains on all ranks of a group.
fn time(group: &Group, device: &Device, arguments: &Arguments, network: Network, how: Reduced) -> Result<Timed> {
    let model = network.make(&Init::new(device).seed(1), arguments.small)?;
    let options = ParallelOptions { bucket: how.bucket, check_every: None, reduce: how.dtype, ..Default::default() };
    let parallel = DataParallel::new(&model, group, &options)?;
    let mut optimizer = network.optimizer(&model);
    let (x, y, samples) = network.batch(group.rank(), device, arguments.small)?;
    let once = |(x, y): (Tensor, Tensor)| -> Result<Tensor> {
        let forward = || loss(&*model, &x, &y);
        let loss = if arguments.small { forward()? } else { autocast(DType::BF16, forward)? };
        if how.is_on {
            loss.backward()?;
            parallel.synchronize()?;
        } else {
            parallel.accumulate(|| loss.backward())?;
        }
        optimizer.step()?;
        Ok(loss.detach())
    };
    let mut once = once;
    let seconds = if how.is_captured {
        let mut step = device.capture(once);
        median_of(group, device, arguments.steps, || step.run((x.clone(), y.clone())))?
    } else {
        median_of(group, device, arguments.steps, || once((x.clone(), y.clone())))?
    };
    Ok(Timed { seconds, samples, buckets: parallel.buckets() })
}

/// The rates of one rank, while the others wait, of some and of all.
fn speed(group: &Group, device: &Device, arguments: &Arguments, network: Network) -> Result<()> {
    let n = group.size();
    let plain = Reduced { bucket: BUCKET, dtype: None, is_on: true, is_captured: false };
    // Captured collectives need a library, and a process for each device.
    let has_capture = group.is_captured(device)?;
    let mut sizes: Vec<usize> = (0..).map(|i| 1 << i).take_while(|k| *k < n).collect();
    sizes.push(n);
    for is_captured in [false, true] {
        let words = if is_captured { "captured" } else { "eager" };
        if is_captured && !has_capture {
            say(group, "  captured: not tried, a recording needs NCCL or RCCL and a process for each rank");
            continue;
        }
        let mut alone = f64::NAN;
        for &k in &sizes {
            let part = group.split((group.rank() < k).then_some(0), group.rank())?;
            if let Some(part) = part {
                let found = time(&part, device, arguments, network, Reduced { is_captured, ..plain })?;
                let rate = (k * found.samples) as f64 / found.seconds;
                alone = if k == 1 { rate } else { alone };
                // Rank 0 has measured one rank.
                let share = 100.0 * rate / (k as f64 * alone);
                let line = format!(
                    "{:>7.2} ms, {rate:>10.0} {}, {share:.1} % of {k} times one rank",
                    found.seconds * 1e3,
                    network.unit()
                );
                say(&part, &format!("  {words}, {k} ranks, buckets of 25 MB: {line}"));
            }
            group.barrier()?;
        }
    }
    if n == 1 {
        return Ok(());
    }
    let of = |name: &str, how: Reduced| -> Result<Timed> {
        let found = time(&group.duplicate()?, device, arguments, network, how)?;
        let rate = (n * found.samples) as f64 / found.seconds;
        say(group, &format!("  {n} ranks, {name}: {:.2} ms, {rate:.0} {}", found.seconds * 1e3, network.unit()));
        Ok(found)
    };
    let with = of("buckets of 25 MB", plain)?;
    of("one bucket", Reduced { bucket: usize::MAX, ..plain })?;
    of("buckets of 25 MB, reduced in bf16", Reduced { dtype: Some(DType::BF16), ..plain })?;
    let without = of("without reductions", Reduced { is_on: false, ..plain })?;
    let mut total = 0.0;
    for (i, elements) in with.buckets.iter().enumerate() {
        let x = Tensor::ones(*elements, DType::F32, device)?;
        let seconds = seconds_of(group, device, 10, || group.all_reduce(&x, Reduction::Mean))?;
        total += seconds;
        say(
            group,
            &format!("    bucket {i}: {:>6.1} MB, {:>8.1} microseconds", 4e-6 * *elements as f64, seconds * 1e6),
        );
    }
    let seen = with.seconds - without.seconds;
    let hidden = 100.0 * (1.0 - seen / total);
    say(
        group,
        &format!(
            "  buckets take {:.2} ms one after the other, and the step {:.2} ms more than without them: {hidden:.0} % is hidden",
            total * 1e3,
            seen * 1e3
        ),
    );
    Ok(())
}

/// Steps of a GPT-2 in a way. Returns the seconds of a step, the peak of this rank's tensors in bytes, and the last loss.
fn train_large(group: &Group, device: &Device, arguments: &Arguments, way: Way) -> Result<(f64, usize, f64)> {
    device.synchronize()?;
    let before = device.memory().in_use;
    device.backend().reset_peak();
    let large = Gpt2Options { vocab: 50_304, dropout: 0.0, ..Gpt2Options::medium() };
    let small = Gpt2Options { vocab: 61, context: 32, layers: 6, heads: 4, width: 128, dropout: 0.0 };
    let (options, rows) = if arguments.small { (small, 1) } else { (large, 4) };
    let init = Init::new(device).seed(1);
    let plain = |model: &dyn Module| AdamW::new(model).lr(1e-4);
    let (model, parallel, mut optimizer): (Gpt2, _, Box<dyn Optimizer>) = match way {
        Way::All => {
            let shards =
                ShardOptions { compute: Some(DType::BF16), reduce: Some(DType::F32), ..ShardOptions::default() };
            let (model, sharded) = FullySharded::build(group, &shards, &init, |init| Gpt2::new(&options, init))?;
            let optimizer = sharded.optimizer(plain)?;
            (model, Parallel::All(sharded), Box::new(optimizer))
        }
        _ => {
            let model = Gpt2::new(&options, &init)?;
            let buckets = ParallelOptions { check_every: None, ..ParallelOptions::default() };
            let parallel = Parallel::Data(DataParallel::new(&model, group, &buckets)?);
            let optimizer = plain(&model);
            (model, parallel, Box::new(optimizer))
        }
    };
    let (x, y) = tokens(rows, options.context, options.vocab, device, &Rng::new(2 + group.rank() as u64))?;
    let mut last = None;
    let seconds = median_of(group, device, arguments.steps.min(5), || {
        let loss = autocast(DType::BF16, || loss(&model, &x, &y))?;
        loss.backward()?;
        parallel.synchronize()?;
        optimizer.step()?;
        last = Some(loss.detach());
        Ok(loss.detach())
    })?;
    let last = last.map_or(Ok(f64::NAN), |loss| loss.item())?;
    Ok(((group.size() * rows * options.context) as f64 / seconds, device.memory().peak.saturating_sub(before), last))
}

/// A GPT-2 of 355 million parameters, whose parameters, gradients and states are distributed, and which a rank alone cannot train in the
/// memory that it is left.
fn fsdp(group: &Group, device: &Device, arguments: &Arguments) -> Result<()> {
    let n = group.size();
    let mb = |bytes: usize| bytes as f64 * 1e-6;
    let mut whole = 0;
    if group.is_first() {
        let (rate, peak, last) = train_large(&Group::alone(), device, arguments, Way::Data)?;
        print(&format!("  one rank alone: {rate:.0} tokens/s, peak {:.0} MB, last loss {last:.4}", mb(peak)));
        whole = peak;
    }
    let all = group.gather_bytes("peak", &(whole as u64).to_le_bytes())?;
    let whole = all[0].first_chunk().map_or(0, |word| u64::from_le_bytes(*word) as usize);
    let (rate, peak, of_whole) = train_large(&group.duplicate()?, device, arguments, Way::Data)?;
    say(
        group,
        &format!("  all on each of {n} ranks: {rate:.0} tokens/s, peak {:.0} MB, last loss {of_whole:.4}", mb(peak)),
    );
    let (rate, part, of_parts) = train_large(&group.duplicate()?, device, arguments, Way::All)?;
    say(
        group,
        &format!("  distributed over {n} ranks: {rate:.0} tokens/s, peak {:.0} MB, last loss {of_parts:.4}", mb(part)),
    );
    check(
        (of_whole - of_parts).abs() < 0.05 * of_whole.abs(),
        &format!("the loss {of_parts}, expected about {of_whole},"),
    )?;
    if n == 1 || !arguments.devices.is_empty() {
        say(group, "  without a limit: ranks of one process share the device, or there is one");
        return Ok(());
    }
    let limit = device.memory().in_use + part + whole.saturating_sub(part) / 2;
    device.limit_memory(Some(limit))?;
    let mut refused = String::new();
    if group.is_first() {
        match train_large(&Group::alone(), device, arguments, Way::Data) {
            Ok((_, peak, _)) => refused = format!("trains too, with a peak of {:.0} MB", mb(peak)),
            Err(error) => refused = error.to_string(),
        }
    }
    group.barrier()?;
    say(group, &format!("  limited to {:.0} MB, one rank alone: {refused}", mb(limit)));
    let found = train_large(&group.duplicate()?, device, arguments, Way::All);
    device.limit_memory(None)?;
    let (rate, part, last) = found?;
    say(
        group,
        &format!(
            "  limited to {:.0} MB, {n} ranks: {rate:.0} tokens/s, peak {:.0} MB, last loss {last:.4}",
            mb(limit),
            mb(part)
        ),
    );
    check(!group.is_first() || refused.contains("OutOfMemory"), "what one rank says that should not have had room")
}

/// The last rank is killed in a step, and the others say what they see. Ends the program.
fn kill(group: &Group, device: &Device, arguments: &Arguments) -> Result<()> {
    if !arguments.devices.is_empty() || group.size() == 1 {
        say(group, "  not tried: ranks are threads, or there is one");
        return Ok(());
    }
    let model = Network::Gpt2.make(&Init::new(device), true)?;
    let parallel = DataParallel::new(&model, group, &ParallelOptions::default())?;
    let mut optimizer = Network::Gpt2.optimizer(&model);
    let (x, y, _) = Network::Gpt2.batch(group.rank(), device, true)?;
    let mut started = Instant::now();
    let mut step = |number: u64| -> Result<()> {
        group.set_step(number);
        loss(&*model, &x, &y)?.backward()?;
        parallel.synchronize()?;
        optimizer.step()?;
        device.synchronize()
    };
    for number in 0.. {
        if number == 5 {
            group.barrier()?;
            started = Instant::now();
            if group.rank() + 1 == group.size() {
                let own = std::process::id().to_string();
                let _ = std::process::Command::new("kill").args(["-9", &own]).status();
            }
        }
        if let Err(error) = step(number) {
            let seconds = started.elapsed().as_secs_f64();
            print(&format!("  rank {} after {seconds:.1} s: {error}", group.rank()));
            // Rank 0 is what the launcher waits for: the others have their time to speak.
            std::thread::sleep(Duration::from_secs(2));
            std::process::exit(3);
        }
    }
    Ok(())
}

fn run_rank(group: &Group, device: &Device, arguments: &Arguments) -> Result<()> {
    let own = format!("rank {} of {}: {device}, {}", group.rank(), group.size(), group.transport());
    for line in group.gather_bytes("introduction", own.as_bytes())? {
        say(group, &String::from_utf8_lossy(&line));
    }
    let way = if group.is_enqueued(device)? { "the vendor's library of collectives" } else { "host memory" };
    say(group, &format!("tensors go through {way}"));
    let mut failures = Vec::new();
    for (name, part) in PARTS.iter().filter(|(name, _)| arguments.only.iter().any(|part| part == name)) {
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
    if let Some(unknown) = arguments.only.iter().find(|name| !PARTS.iter().any(|(part, _)| part == name)) {
        return Err(Error::attr("several_devices", format!("there is no part {unknown}")));
    }
    let options = Options { timeout: Duration::from_secs(arguments.timeout) };
    if arguments.devices.is_empty() {
        let world = World::start_with(&options)?;
        let device = world.device(arguments.device.as_deref())?;
        return run_rank(world.group(), &device, &arguments);
    }
    let devices = arguments.devices.iter().map(|name| name.parse()).collect::<Result<Vec<Device>>>()?;
    threads_with(devices.len(), &options, |group| run_rank(&group, &devices[group.rank()], &arguments)).map(drop)
}
