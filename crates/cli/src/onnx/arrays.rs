//! The arrays that a model reads and writes: files of a folder, or drawn numbers.

use anyhow::{Context, Result};
use clap::Args;
use isograd::data::npy;
use isograd::onnx::{OnnxModel, Port, Size};
use isograd::{DType, Device, Rng, Tensor};
use std::path::{Path, PathBuf};

/// The extent of a dimension that the model leaves open.
const OPEN: usize = 2;
/// The seed of drawn inputs.
const SEED: u64 = 7;

/// The name of a symbolic dimension and its extent.
fn extent(text: &str) -> Result<(String, usize), String> {
    match text.rsplit_once('=').map(|(name, extent)| (name, extent.parse::<usize>())) {
        Some((name, Ok(extent))) if !name.is_empty() && extent > 0 => Ok((name.into(), extent)),
        _ => Err(format!("{text:?} is no extent of a dimension, such as N=4")),
    }
}

/// The options of the inputs of a model.
#[derive(Args, Debug)]
pub struct Inputs {
    /// The folder with an array NAME.npy for each input of the ONNX model, with _ for each slash of the name [default: drawn numbers]
    #[arg(long, value_name = "FOLDER")]
    inputs: Option<PathBuf>,
    /// The extents of symbolic dimensions of drawn inputs, such as batch=4,tokens=16 [default: 2]
    #[arg(long, value_name = "NAME=N,..", value_delimiter = ',', value_parser = extent, conflicts_with = "inputs")]
    sizes: Vec<(String, usize)>,
}

impl Inputs {
    /// True if one of the options was given.
    #[cfg(feature = "parity")]
    pub fn are_given(&self) -> bool {
        self.inputs.is_some() || !self.sizes.is_empty()
    }

    /// The inputs of a model, on its device and in its dtypes. Drawn floats are normal, and integers 0 or 1: the same numbers on each device.
    pub fn of(&self, model: &OnnxModel) -> Result<Vec<Tensor>> {
        let rng = Rng::new(SEED);
        let of = |port| match &self.inputs {
            Some(folder) => read(folder, port, model.device()),
            None => self.drawn(port, model.device(), &rng).with_context(|| format!("cannot draw the input {port}")),
        };
        model.inputs().iter().map(of).collect()
    }

    fn drawn(&self, port: &Port, device: &Device, rng: &Rng) -> Result<Tensor> {
        let extent = |size: &Size| match size {
            Size::Fixed(extent) => *extent,
            Size::Symbol(name) => self.sizes.iter().find(|(known, _)| known == name).map_or(OPEN, |(_, n)| *n),
            Size::Any => OPEN,
        };
        let dims: Vec<usize> = port.shape().unwrap_or_default().iter().map(extent).collect();
        let cpu = Device::cpu()?;
        let x = match port.dtype().is_float() {
            true => Tensor::randn(&dims, 0.0, 1.0, DType::F32, &cpu, rng)?,
            false => Tensor::randint(&dims, 0, 2, &cpu, rng)?,
        };
        Ok(x.cast(port.dtype())?.to_device(device)?)
    }
}

/// The file of an input or an output.
pub fn file_of(folder: &Path, port: &Port) -> PathBuf {
    folder.join(format!("{}.npy", port.name().replace(['/', '\\'], "_")))
}

/// An input from its file. NumPy has no bf16: such an input is read from floats. Inputs of a model in f64 are read from floats of any dtype.
pub fn read(folder: &Path, port: &Port, device: &Device) -> Result<Tensor> {
    let array = npy::read(file_of(folder, port)).with_context(|| format!("cannot read the input {port}"))?;
    let tensor = array.to(device)?;
    let is_cast = match port.dtype() {
        DType::BF16 => tensor.dtype() == DType::F32,
        DType::F64 => tensor.dtype().is_float(),
        _ => false,
    };
    Ok(if is_cast { tensor.cast(port.dtype())? } else { tensor })
}
