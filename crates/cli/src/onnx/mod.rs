//! `isograd onnx`: models of other programs in the format of ONNX.

mod arrays;
mod predict;
#[cfg(feature = "parity")]
mod step;

pub use predict::{Reading, predict};
#[cfg(feature = "parity")]
pub use step::Compared;

use crate::info::{printable, table};
use crate::run::device;
use crate::{check_writable, parse, print};
use anyhow::{Context, Result, bail};
use arrays::{Inputs, file_of};
use clap::{Args, Subcommand};
use isograd::data::{HostTensor, npy};
use isograd::nn::{AdamW, Metadata, Module, Optimizer, save};
use isograd::onnx::{Export, Input, OnnxModel, load};
use isograd::{DType, Device, Tensor, no_grad};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// The losses that a training prints, at most one more.
const PRINTED: usize = 20;

/// The options of `isograd onnx`.
#[derive(Args, Debug)]
pub struct Onnx {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// List the inputs, outputs, operators and tensors of a model
    Inspect {
        /// The model, such as model.onnx
        file: PathBuf,
    },
    /// Run a model on arrays in files
    Run {
        /// The model, such as model.onnx
        file: PathBuf,
        /// The folder with an array NAME.npy for each input, with _ for each slash of the name
        #[arg(long, value_name = "FOLDER")]
        inputs: PathBuf,
        /// The folder to write an array NAME.npy of each output to
        #[arg(long, value_name = "FOLDER")]
        outputs: PathBuf,
        /// The device, as `isograd devices` lists it [default: the best there is]
        #[arg(long)]
        device: Option<String>,
    },
    /// Time a model on arrays in files, or on drawn numbers
    Bench {
        /// The model, such as model.onnx
        file: PathBuf,
        #[command(flatten)]
        inputs: Inputs,
        /// The number of runs that are timed
        #[arg(long, default_value_t = 20, value_parser = parse::count)]
        runs: usize,
        /// The device, as `isograd devices` lists it [default: the best there is]
        #[arg(long)]
        device: Option<String>,
    },
    /// Train a model further on arrays in files, and save it
    Train(Training),
}

/// The options of `isograd onnx train`.
#[derive(Args, Debug)]
struct Training {
    /// The model, such as model.onnx
    file: PathBuf,
    /// The folder with an array NAME.npy for each input, whose first dimension is that of the samples
    #[arg(long, value_name = "FOLDER")]
    inputs: PathBuf,
    /// The array of targets for the first output: classes, or numbers of its shape
    #[arg(long, value_name = "FILE")]
    targets: PathBuf,
    /// The file to write: model.onnx, or the state alone as model.safetensors
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[arg(long, default_value_t = 100, value_parser = parse::count)]
    steps: usize,
    /// Samples of a step, in the order of the files
    #[arg(long, default_value_t = 32, value_parser = parse::count)]
    batch: usize,
    /// The learning rate of AdamW
    #[arg(long, default_value_t = 1e-4, value_parser = parse::rate)]
    lr: f64,
    /// The device, as `isograd devices` lists it [default: the best there is]
    #[arg(long)]
    device: Option<String>,
}

/// Says what a model has, runs it, times it or trains it.
pub fn run(options: Onnx) -> Result<ExitCode> {
    match options.action {
        Action::Inspect { file } => inspect(&file)?,
        Action::Run { file, inputs, outputs, device: name } => {
            run_model(&file, &inputs, &outputs, &device(name.as_deref())?)?;
        }
        Action::Bench { file, inputs, runs, device: name } => {
            bench(&file, &inputs, runs, &device(name.as_deref())?)?;
        }
        Action::Train(training) => train(&training)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn inspect(file: &Path) -> Result<()> {
    let model = load(file, &Device::cpu()?)?;
    print(&printable(model.about()))?;
    for (what, ports) in [("input", model.inputs()), ("output", model.outputs())] {
        ports.iter().try_for_each(|port| print(&format!("{what:<6}  {}", printable(&port.to_string()))))?;
    }
    print("")?;
    table(model.operators().into_iter().map(|(name, count)| [printable(&name), count.to_string()]).collect())?;
    print("")?;
    let (parameters, buffers) = (model.named_parameters(), model.named_buffers());
    let row = |(name, t): &(String, Tensor), kind: &str| {
        [printable(name), t.dtype().to_string(), t.shape().to_string(), kind.to_string()]
    };
    let all = parameters.iter().map(|t| row(t, "parameter")).chain(buffers.iter().map(|t| row(t, "buffer")));
    table(all.collect())?;
    print(&format!("{} parameters, {} numbers that train", parameters.len(), model.num_parameters()))
}

fn run_model(file: &Path, inputs: &Path, outputs: &Path, device: &Device) -> Result<()> {
    let model: OnnxModel = load(file, device)?;
    let files: HashSet<PathBuf> = model.outputs().iter().map(|port| file_of(outputs, port)).collect();
    if files.len() < model.outputs().len() {
        bail!("two outputs of {} would have one file", file.display());
    }
    let given = model.inputs().iter().map(|port| arrays::read(inputs, port, device)).collect::<Result<Vec<_>>>()?;
    let found = no_grad(|| model.forward(&given))?;
    fs::create_dir_all(outputs).with_context(|| format!("cannot make the folder {}", outputs.display()))?;
    for (port, y) in model.outputs().iter().zip(&found) {
        let y = if y.dtype() == DType::BF16 { y.cast(DType::F32)? } else { y.clone() };
        npy::write(file_of(outputs, port), &HostTensor::from_tensor(&y)?)?;
        print(&printable(&format!("{}: {} {}", port.name(), y.dtype(), y.shape())))?;
    }
    Ok(())
}

/// Prints the median and the shortest time of a run; one more comes before.
fn bench(file: &Path, inputs: &Inputs, runs: usize, device: &Device) -> Result<()> {
    let model = load(file, device)?;
    let given = inputs.of(&model)?;
    let timed = || -> Result<f64> {
        let start = Instant::now();
        no_grad(|| model.forward(&given))?;
        device.synchronize()?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    let first = timed()?;
    let mut times = (0..runs).map(|_| timed()).collect::<Result<Vec<_>>>()?;
    times.sort_by(f64::total_cmp);
    print(&format!("first run  {first:.3} ms\nmedian     {:.3} ms of {runs} runs", times[runs / 2]))?;
    print(&format!("fastest    {:.3} ms", times[0]))
}

/// Samples of all arrays.
fn samples(arrays: &[Tensor], start: usize, count: usize) -> isograd::Result<Vec<Tensor>> {
    arrays.iter().map(|t| t.narrow(0, start, count)?.contiguous()).collect()
}

/// The loss of an output: cross entropy where the targets are integers, otherwise the mean of squared errors.
fn loss(y: &Tensor, targets: &Tensor) -> isograd::Result<Tensor> {
    match targets.dtype().is_float() {
        true => y.sub(&targets.cast(y.dtype())?)?.square()?.mean(..),
        false => y.cross_entropy(targets),
    }
}

fn train(training: &Training) -> Result<()> {
    check_writable(&training.out)?;
    let device = device(training.device.as_deref())?;
    let model = load(&training.file, &device)?;
    let mut arrays =
        model.inputs().iter().map(|port| arrays::read(&training.inputs, port, &device)).collect::<Result<Vec<_>>>()?;
    arrays.push(npy::read(&training.targets).context("cannot read the targets")?.to(&device)?);
    let count = arrays.iter().map(|t| t.dims().first().copied().unwrap_or(0)).min().unwrap_or(0);
    if count == 0 || arrays.iter().any(|t| t.dims().first() != Some(&count)) {
        bail!("the inputs and the targets have different numbers of samples, or none");
    }
    let batch = training.batch.min(count);
    let mut optimizer = AdamW::new(&model).lr(training.lr);
    model.train();
    for step in 0..training.steps {
        let mut taken = samples(&arrays, step % (count / batch) * batch, batch)?;
        let targets = taken.pop().context("there are targets")?;
        model.zero_grad();
        let outputs = model.forward(&taken)?;
        let Some(y) = outputs.first() else { bail!("{} has no outputs", training.file.display()) };
        let loss = loss(y, &targets)?;
        loss.backward()?;
        optimizer.step()?;
        if step % training.steps.div_ceil(PRINTED) == 0 || step + 1 == training.steps {
            print(&format!("step {:>6}  loss {:.6}", step + 1, loss.item::<f64>()?))?;
        }
    }
    model.eval();
    arrays.pop();
    write(training, &model, &samples(&arrays, 0, batch)?)
}

/// Saves a model in the format of the file's name.
fn write(training: &Training, model: &OnnxModel, examples: &[Tensor]) -> Result<()> {
    if training.out.extension().is_none_or(|extension| extension != "onnx") {
        return Ok(save(&training.out, &model.state_dict(), &Metadata::new())?);
    }
    let inputs = model.inputs().iter().zip(examples).map(|(port, x)| Input::new(port.name(), x));
    let names: Vec<&str> = model.outputs().iter().map(|port| port.name()).collect();
    let export = inputs.fold(Export::new(model), |export, input| export.input(input)).outputs(&names);
    let exported = no_grad(|| export.run(|x| model.forward(x)))?;
    Ok(exported.save(&training.out)?)
}
