//! What a training run is made of: the command line, and what of it a checkpoint keeps.

use clap::{Args, ValueEnum};
use isograd::DType;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The dataset to learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DatasetName {
    /// 1,797 handwritten digits of 8 x 8 pixels, inside this program
    Digits,
    /// The MNIST images, from the IDX files in --data
    Mnist,
}

impl DatasetName {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            DatasetName::Digits => "digits",
            DatasetName::Mnist => "mnist",
        }
    }
}

/// The optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerName {
    /// SGD with momentum 0.9
    Sgd,
    /// Adam
    Adam,
    /// AdamW with weight decay 0.01
    Adamw,
    /// RMSprop
    Rmsprop,
    /// Adagrad
    Adagrad,
    /// LARS with momentum 0.9
    Lars,
    /// LAMB with weight decay 0.01
    Lamb,
    /// Muon for matrices, and AdamW for the rest
    Muon,
}

impl OptimizerName {
    /// A rate that learns.
    fn lr(self) -> f64 {
        match self {
            OptimizerName::Sgd => 0.05,
            OptimizerName::Adam | OptimizerName::Adamw | OptimizerName::Rmsprop | OptimizerName::Muon => 0.001,
            OptimizerName::Adagrad | OptimizerName::Lamb => 0.01,
            OptimizerName::Lars => 5.0,
        }
    }
}

/// A model and the first steps of its training. Hyper-parameters are optional, so that a resumed run takes them from its
/// checkpoint.
#[derive(Args, Debug)]
pub struct Model {
    /// What to learn
    #[arg(value_enum)]
    pub dataset: DatasetName,
    /// The folder with the dataset's files
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Samples a step [default: 32 for digits, 128 for mnist]
    #[arg(long, value_parser = parse_count)]
    pub batch_size: Option<usize>,
    /// Learning rate [default: 0.001; 0.05 for sgd, 0.01 for adagrad and lamb, 5 for lars]
    #[arg(long, value_parser = parse_rate, allow_negative_numbers = true)]
    pub lr: Option<f64>,
    /// The optimizer [default: adam]
    #[arg(long, value_enum)]
    pub optimizer: Option<OptimizerName>,
    /// Sizes of the hidden layers, separated by commas [default: 256]
    #[arg(long, value_delimiter = ',', value_parser = parse_count)]
    pub hidden: Option<Vec<usize>>,
    /// f32, f64, f16 (with loss scaling) or bf16 [default: f32]
    #[arg(long, value_parser = parse_float)]
    pub dtype: Option<DType>,
    /// Decides weights and order of the samples [default: 42]
    #[arg(long)]
    pub seed: Option<u64>,
}

/// The options of `isograd train`.
#[derive(Args, Debug)]
pub struct Train {
    #[command(flatten)]
    pub model: Model,
    /// The device, as `isograd devices` lists it [default: the best there is]
    #[arg(long)]
    pub device: Option<String>,
    /// Passes over the training data [default: 60 for digits, 10 for mnist]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: Option<u64>,
    /// Where checkpoint, history and curves are written [default: out/<dataset>]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on from the checkpoint in this folder, with its hyper-parameters; --epochs may be larger than before
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["batch_size", "lr", "optimizer", "hidden", "dtype", "seed"]
    )]
    pub resume: Option<PathBuf>,
    /// Print one line of JSON at the end, and no progress bar
    #[arg(long)]
    pub json: bool,
}

fn parse_count(s: &str) -> Result<usize, String> {
    match s.parse() {
        Ok(0) | Err(_) => Err(format!("{s:?} is not a number of at least 1")),
        Ok(n) => Ok(n),
    }
}

fn parse_rate(s: &str) -> Result<f64, String> {
    match s.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.0 => Ok(rate),
        _ => Err(format!("{s:?} is not a number of at least 0")),
    }
}

/// A dtype of floats.
pub fn parse_float(s: &str) -> Result<DType, String> {
    match s.parse::<DType>() {
        Ok(dtype) if dtype.is_float() => Ok(dtype),
        _ => Err(format!("{s:?} is none of f32, f64, f16, bf16")),
    }
}

/// What a checkpoint keeps of the options: all that the weights depend on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// What is learnt.
    pub dataset: DatasetName,
    /// Passes over the training data.
    pub epochs: u64,
    /// Samples a step.
    pub batch_size: usize,
    /// Learning rate.
    pub lr: f64,
    /// The optimizer.
    pub optimizer: OptimizerName,
    /// Sizes of the hidden layers.
    pub hidden: Vec<usize>,
    /// The dtype of weights and activations.
    pub dtype: String,
    /// The seed of weights and order.
    pub seed: u64,
}

impl Config {
    /// The options of a new run, with defaults where nothing was said.
    pub fn new(options: &Model, epochs: Option<u64>) -> Config {
        let (default_epochs, batch_size, hidden) = match options.dataset {
            DatasetName::Digits => (60, 32, 256),
            DatasetName::Mnist => (10, 128, 256),
        };
        let optimizer = options.optimizer.unwrap_or(OptimizerName::Adam);
        Config {
            dataset: options.dataset,
            epochs: epochs.unwrap_or(default_epochs),
            batch_size: options.batch_size.unwrap_or(batch_size),
            lr: options.lr.unwrap_or(optimizer.lr()),
            optimizer,
            hidden: options.hidden.clone().unwrap_or_else(|| vec![hidden]),
            dtype: options.dtype.unwrap_or(DType::F32).to_string(),
            seed: options.seed.unwrap_or(42),
        }
    }
}
