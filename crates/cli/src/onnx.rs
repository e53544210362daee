//! `isograd onnx`: models of other programs in the format of ONNX.

use crate::info::{printable, table};
use crate::print;
use crate::run::device;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use isograd::data::{HostTensor, npy};
use isograd::nn::Module;
use isograd::onnx::{OnnxModel, Port, load};
use isograd::{DType, Device, Tensor, no_grad};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

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
}

/// Says what a model has, or runs it.
pub fn run(options: Onnx) -> Result<ExitCode> {
    match options.action {
        Action::Inspect { file } => inspect(&file)?,
        Action::Run { file, inputs, outputs, device: name } => {
            run_model(&file, &inputs, &outputs, &device(name.as_deref())?)?;
        }
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

/// The file of an input or an output.
fn file_of(folder: &Path, port: &Port) -> PathBuf {
    folder.join(format!("{}.npy", port.name().replace(['/', '\\'], "_")))
}

/// An input from its file. NumPy has no bf16: such an input is read from floats.
fn input(folder: &Path, port: &Port, device: &Device) -> Result<Tensor> {
    let array = npy::read(file_of(folder, port)).with_context(|| format!("cannot read the input {port}"))?;
    let tensor = array.to(device)?;
    let is_cast = port.dtype() == DType::BF16 && tensor.dtype() == DType::F32;
    Ok(if is_cast { tensor.cast(DType::BF16)? } else { tensor })
}

fn run_model(file: &Path, inputs: &Path, outputs: &Path, device: &Device) -> Result<()> {
    let model: OnnxModel = load(file, device)?;
    let files: HashSet<PathBuf> = model.outputs().iter().map(|port| file_of(outputs, port)).collect();
    if files.len() < model.outputs().len() {
        bail!("two outputs of {} would have one file", file.display());
    }
    let given = model.inputs().iter().map(|port| input(inputs, port, device)).collect::<Result<Vec<_>>>()?;
    let found = no_grad(|| model.forward(&given))?;
    fs::create_dir_all(outputs).with_context(|| format!("cannot make the folder {}", outputs.display()))?;
    for (port, y) in model.outputs().iter().zip(&found) {
        let y = if y.dtype() == DType::BF16 { y.cast(DType::F32)? } else { y.clone() };
        npy::write(file_of(outputs, port), &HostTensor::from_tensor(&y)?)?;
        print(&printable(&format!("{}: {} {}", port.name(), y.dtype(), y.shape())))?;
    }
    Ok(())
}
