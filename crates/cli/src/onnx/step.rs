//! A step of a model that devices are compared on: outputs, a loss of them, and its gradients.

use super::arrays::Inputs;
use anyhow::{Result, bail};
use isograd::nn::Module;
use isograd::onnx::{OnnxModel, load, load_in_f64};
use isograd::parity::{Arithmetic, Model, Options, Progress, Report, Results, run_model};
use isograd::{DType, Device, Error, Rng, Tensor, no_grad};
use std::path::{Path, PathBuf};

/// The seed of the weights of a loss.
const SEED: u64 = 11;

/// A model of ONNX, and its inputs.
#[derive(clap::Args, Debug)]
pub struct Compared {
    /// Compare the devices on this model in the format of ONNX: its outputs, and the gradients of its parameters and inputs
    #[arg(long = "onnx", value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    inputs: Inputs,
}

impl Compared {
    /// The model, if one is compared. Errors: inputs without a model.
    pub fn file(&self) -> Result<Option<&Path>> {
        if self.file.is_none() && self.inputs.are_given() {
            bail!("--inputs and --sizes are of the model that --onnx names");
        }
        Ok(self.file.as_deref())
    }

    /// The model on a device with its inputs, of which floats are leaves of the tape.
    fn opened(
        &self,
        file: &Path,
        device: &Device,
        arithmetic: Arithmetic,
    ) -> isograd::Result<(OnnxModel, Vec<Tensor>)> {
        let model = match arithmetic {
            Arithmetic::Own => load(file, device)?,
            Arithmetic::F64 => load_in_f64(file, device)?,
        };
        let inputs = self.inputs.of(&model).map_err(|e| match e.downcast::<Error>() {
            Ok(error) => error,
            Err(error) => Error::value("onnx", format!("{error:#}")),
        })?;
        let leaf = |x: Tensor| if x.dtype().is_float() { x.require_grad() } else { Ok(x) };
        let inputs = inputs.into_iter().map(leaf).collect::<isograd::Result<_>>()?;
        Ok((model, inputs))
    }

    /// Runs the model and returns its loss.
    pub fn loss(&self, file: &Path, device: &Device) -> isograd::Result<Tensor> {
        let (model, inputs) = self.opened(file, device, Arithmetic::Own)?;
        match loss(&model.forward(&inputs)?)? {
            Some(loss) => Ok(loss),
            None => Tensor::zeros((), DType::F32, device),
        }
    }

    /// Compares the model on devices with the CPU.
    pub fn check(&self, file: &Path, options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Report> {
        let calls = load(file, &Device::cpu()?)?.operators().iter().map(|(_, count)| count).sum();
        let run = |device: &Device, arithmetic| self.results(file, device, arithmetic);
        let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Ok(run_model(&Model { name: &name, calls, run: &run }, options, progress)?)
    }

    fn results(&self, file: &Path, device: &Device, arithmetic: Arithmetic) -> isograd::Result<Results> {
        let (model, inputs) = self.opened(file, device, arithmetic)?;
        let outputs = model.forward(&inputs)?;
        if let Some(loss) = loss(&outputs)? {
            loss.backward()?;
        }
        let names = model.inputs().iter().map(|port| port.name().to_string());
        let leaves = model.named_parameters().into_iter().chain(names.zip(inputs));
        let gradients = leaves.filter_map(|(name, leaf)| Some((format!("gradient of {name}"), leaf.grad()?)));
        let names = model.outputs().iter().map(|port| port.name().to_string());
        Ok(Results { outputs: names.zip(outputs.iter().map(Tensor::detach)).collect(), gradients: gradients.collect() })
    }
}

/// The sum of all outputs on the tape, each element with a weight of its own; `None` if there is none.
fn loss(outputs: &[Tensor]) -> isograd::Result<Option<Tensor>> {
    let rng = Rng::new(SEED);
    let mut sum: Option<Tensor> = None;
    for y in outputs.iter().filter(|y| y.requires_grad()) {
        let weights = no_grad(|| Tensor::rand(y.shape(), -1.0, 1.0, DType::F32, &Device::cpu()?, &rng))?;
        let weights = weights.cast(y.dtype())?.to_device(y.device())?;
        let part = y.mul(&weights)?.sum(..)?;
        sum = Some(match sum {
            Some(sum) => sum.add(&part.cast(sum.dtype())?)?,
            None => part,
        });
    }
    Ok(sum)
}
