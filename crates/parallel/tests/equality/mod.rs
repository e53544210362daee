//! Training on n ranks with batches of B / n samples, which must be that of one rank with batches of B.

use isograd_core::{DType, Device, Result, Rng, Tensor};
use isograd_models::{Gpt2, Gpt2Options};
use isograd_nn::{AdamW, BatchNorm2d, Conv2d, Forward, Init, Linear, Module, Optimizer, Sequential, Sgd};
use isograd_parallel::{DataParallel, FullySharded, Group, ParallelOptions, Reduction, ShardOptions};

/// Steps of a run, unless they take too long.
#[allow(dead_code)]
pub const STEPS: usize = 100;
/// Samples of a batch of all ranks; the last batch of the runs has fewer, and not equally many on each rank.
const BATCH: usize = 8;
const LAST: usize = 5;

type Loss = Box<dyn Fn(&Tensor, &Tensor) -> Result<Tensor>>;

/// A model, and its loss.
type Model = (Box<dyn Module>, Loss);

/// A model, its loss for inputs and targets, and the samples of a step.
pub struct Job {
    pub name: &'static str,
    make: fn(&Init) -> Result<Model>,
    samples: fn(&Rng, &Device) -> Result<(Tensor, Tensor)>,
}

fn drawn(shape: &[usize], rng: &Rng, device: &Device) -> Result<Tensor> {
    Tensor::randn(shape, 0.0, 1.0, DType::F32, device, rng)
}

/// An MLP that is regressed, a small CNN with batch norms over all ranks, a small GPT.
pub const JOBS: [Job; 3] = [
    Job {
        name: "mlp",
        make: |init| {
            let model = std::rc::Rc::new(
                Sequential::new().push(Linear::new(6, 16, init)?).push(Tensor::tanh).push(Linear::new(16, 2, init)?),
            );
            let parts = Shared(model.clone());
            Ok((Box::new(parts), Box::new(move |x, y| model.forward(x)?.sub(y)?.square()?.mean(..))))
        },
        samples: |rng, device| {
            let x = drawn(&[BATCH, 6], rng, device)?;
            let y = x.narrow(1, 0, 2)?.mul(&x.narrow(1, 2, 2)?)?;
            Ok((x, y))
        },
    },
    Job {
        name: "cnn",
        make: |init| {
            let model = std::rc::Rc::new(Cnn {
                conv: Conv2d::new(1, 4, [3, 3], init)?,
                norm: BatchNorm2d::new(4, init)?,
                head: Linear::new(4 * 36, 3, init)?,
            });
            let parts = Shared(model.clone());
            let loss = move |x: &Tensor, y: &Tensor| {
                let h = model.norm.forward(&model.conv.forward(x)?)?.relu()?;
                model.head.forward(&h.reshape((x.dims()[0], 4 * 36))?)?.cross_entropy(y)
            };
            Ok((Box::new(parts), Box::new(loss)))
        },
        samples: |rng, device| {
            let x = drawn(&[BATCH, 1, 8, 8], rng, device)?;
            let y = x.reshape((BATCH, 64))?.narrow(1, 0, 3)?.argmax(-1)?;
            Ok((x, y))
        },
    },
    Job {
        name: "gpt",
        make: |init| {
            let options = Gpt2Options { vocab: 17, context: 8, layers: 2, heads: 2, width: 16, dropout: 0.0 };
            let model = std::rc::Rc::new(Gpt2::new(&options, init)?);
            let parts = Shared(model.clone());
            let loss = move |x: &Tensor, y: &Tensor| {
                model.forward(x)?.reshape((x.numel(), 17))?.cross_entropy(&y.reshape(y.numel())?)
            };
            Ok((Box::new(parts), Box::new(loss)))
        },
        samples: |rng, device| {
            // Each token is three more than the one before, modulo 17.
            let first = Tensor::rand((BATCH, 1), 0.0, 16.9, DType::F32, device, rng)?.floor()?;
            let all = first.add(&Tensor::arange(9, device)?.cast(DType::F32)?.mul_scalar(3.0)?)?;
            let tokens = all.sub(&all.mul_scalar(1.0 / 17.0)?.floor()?.mul_scalar(17.0)?)?.cast(DType::I64)?;
            Ok((tokens.narrow(1, 0, 8)?.contiguous()?, tokens.narrow(1, 1, 8)?.contiguous()?))
        },
    },
];

struct Shared<M>(std::rc::Rc<M>);

impl<M: Module> Module for Shared<M> {
    fn visit(&self, visitor: &mut isograd_nn::Visitor<'_>) {
        self.0.visit(visitor);
    }
}

#[derive(Module)]
struct Cnn {
    conv: Conv2d,
    norm: BatchNorm2d,
    head: Linear,
}

/// A way to train on several ranks. Not every test program uses both.
#[allow(dead_code)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Every rank has all parameters.
    DataParallel,
    /// Every rank has a part of them.
    FullySharded,
}

/// A model and its loss, as a module.
struct Made(Box<dyn Module>, Loss);

impl Module for Made {
    fn visit(&self, visitor: &mut isograd_nn::Visitor<'_>) {
        self.0.visit(visitor);
    }
}

enum Parallel {
    Data(DataParallel),
    Sharded(FullySharded),
}

fn optimizer(job: &Job, model: &dyn Module) -> Box<dyn Optimizer> {
    match job.name {
        "gpt" => Box::new(AdamW::new(model).lr(3e-3).clip_norm(1.0)),
        _ => Box::new(Sgd::new(model).momentum(0.9).lr(0.02)),
    }
}

/// The mean loss of each step over all samples, and at the end the sum of all weights' squares.
#[allow(dead_code)]
pub fn losses(job: &Job, group: &Group, device: &Device, steps: usize) -> Result<Vec<f64>> {
    losses_by(Way::DataParallel, job, group, device, steps)
}

/// [`losses`] in a way.
pub fn losses_by(way: Way, job: &Job, group: &Group, device: &Device, steps: usize) -> Result<Vec<f64>> {
    // Other weights on each rank, of which those of rank 0 count.
    let init = Init::new(device).seed(3 + group.rank() as u64).across(group.clone());
    let make = |init: &Init| (job.make)(init).map(|(model, loss)| Made(model, loss));
    let (model, parallel, mut optimizer): (_, _, Box<dyn Optimizer>) = match way {
        Way::DataParallel => {
            let model = make(&init)?;
            // Several buckets.
            let bucket = if job.name == "gpt" { 8192 } else { 512 };
            let options = ParallelOptions { bucket, check_every: Some(40), ..ParallelOptions::default() };
            let parallel = Parallel::Data(DataParallel::new(&model, group, &options)?);
            let optimizer = optimizer(job, &model);
            (model, parallel, optimizer)
        }
        Way::FullySharded => {
            let (model, sharded) = FullySharded::build(group, &ShardOptions::default(), &init, make)?;
            let optimizer = sharded.optimizer(|parts| optimizer(job, parts))?;
            (model, Parallel::Sharded(sharded), Box::new(optimizer))
        }
    };
    let rng = Rng::new(11);
    let mut found = Vec::new();
    for step in 0..steps {
        group.set_step(step as u64);
        let (x, y) = (job.samples)(&rng, device)?;
        let all = if step % 10 == 9 { LAST } else { BATCH };
        let part = |rank: usize| all * rank / group.size();
        let (start, count) = (part(group.rank()), part(group.rank() + 1) - part(group.rank()));
        let share = group.share(count)?;
        let own = model.1(&x.narrow(0, start, count)?, &y.narrow(0, start, count)?)?.mul_scalar(share)?;
        own.backward()?;
        match &parallel {
            Parallel::Data(parallel) => parallel.synchronize()?,
            Parallel::Sharded(sharded) => sharded.synchronize()?,
        }
        optimizer.step()?;
        found.push(group.all_reduce(&own.detach(), Reduction::Mean)?.item::<f64>()?);
    }
    if let Parallel::Data(parallel) = &parallel {
        parallel.check_weights()?;
    }
    let squares: f64 = model
        .parameters()
        .iter()
        .map(|p| p.detach().cast(DType::F64)?.square()?.sum(..)?.item::<f64>())
        .sum::<Result<f64>>()?;
    found.push(squares);
    Ok(found)
}

/// The largest difference relative to the value, or to 1.
pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f64::max)
}
