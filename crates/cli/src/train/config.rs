//! The options of a training run: the command line, and the part of it that a checkpoint keeps.

use super::graph::{GraphConfig, GraphOptions};
use super::images::{ImageConfig, ImageOptions};
use super::models::{MODELS, ModelEntry};
use super::optimizers::OptimizerName;
use super::tasks::{Data, Signature, TASKS, Task};
use super::watch::Watch;
use anyhow::{Result, bail};
use clap::Args;
use clap::Command;
use clap::builder::PossibleValuesParser;
use isograd::DType;
use isograd::data::csv;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A model and the first steps of its training. Hyper-parameters are optional, so that a resumed run takes them from its
/// checkpoint.
#[derive(Args, Debug)]
pub struct Model {
    /// The name of the dataset.
    #[arg(skip)]
    pub dataset: String,
    /// The folder or the file with the samples
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// The folder or the file with the samples
    #[arg(long, value_name = "PATH", conflicts_with = "path")]
    data: Option<PathBuf>,
    #[command(flatten)]
    pub table: TableOptions,
    #[command(flatten)]
    pub images: ImageOptions,
    #[command(flatten)]
    pub graph: GraphOptions,
    /// The model [default: resnet18 for images in colour, gcn for graphs, mlp for others]
    #[arg(long, value_parser = PossibleValuesParser::new(MODELS.iter().map(|model| model.name)))]
    pub model: Option<String>,
    /// Samples a step [default: 128 for mnist and cifar, 512 for graphs, 32 for others]
    #[arg(long, visible_alias = "batch", value_parser = parse_count)]
    pub batch_size: Option<usize>,
    /// Learning rate [default: that of the optimizer; ten times as much for graphs]
    #[arg(long, value_parser = parse_rate, allow_negative_numbers = true)]
    pub lr: Option<f64>,
    /// The optimizer [default: adam]
    #[arg(long, value_enum)]
    pub optimizer: Option<OptimizerName>,
    /// Sizes of the hidden layers of an mlp, gcn, sage or gat, separated by commas [default: 256 for mlp, 8 in each head for gat, 64]
    #[arg(long, value_delimiter = ',', value_parser = parse_count)]
    pub hidden: Option<Vec<usize>>,
    /// f32, f64, f16 (with loss scaling) or bf16 [default: f32]
    #[arg(long, value_parser = parse_float)]
    pub dtype: Option<DType>,
    /// Decides weights and order of the samples [default: 42]
    #[arg(long)]
    pub seed: Option<u64>,
}

impl Model {
    /// The folder or the file with the samples.
    pub fn data(&self) -> Option<&Path> {
        self.path.as_deref().or(self.data.as_deref())
    }

    /// Errors: an option that neither the dataset nor the model has.
    fn check(&self, task: &Task, model: &ModelEntry) -> Result<()> {
        let ImageOptions { size, augment, stem, channels_last } = &self.images;
        let GraphOptions { neighbours, replacement, undirected, dropout, heads } = &self.graph;
        let TableOptions { target, header, classes, numbers } = &self.table;
        let given = [
            ("target", !target.is_empty()),
            ("header", *header),
            ("classes", *classes),
            ("numbers", *numbers),
            ("hidden", self.hidden.is_some()),
            ("size", size.is_some()),
            ("augment", augment.is_some()),
            ("stem", stem.is_some()),
            ("channels-last", *channels_last),
            ("neighbours", neighbours.is_some()),
            ("replacement", *replacement),
            ("undirected", *undirected),
            ("dropout", dropout.is_some()),
            ("heads", heads.is_some()),
        ];
        for (option, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
            if !task.takes(model, option) {
                let tasks = TASKS.iter().filter(|task| task.options.contains(&option)).map(|task| task.name);
                let models = MODELS.iter().filter(|model| model.options.contains(&option)).map(|model| model.name);
                bail!("--{option} is for {}", tasks.chain(models).collect::<Vec<_>>().join(", "));
            }
        }
        if !task.fits(model) {
            let fit = MODELS.iter().filter(|model| task.fits(model)).map(|model| model.name);
            bail!("--model {} is not for {}, but {}", model.name, task.name, fit.collect::<Vec<_>>().join(", "));
        }
        if task.is_graph && self.batch_size.is_some() && neighbours.is_none() {
            bail!("--batch-size of {} needs --neighbours: without them, a step has the whole graph", task.name);
        }
        Ok(())
    }
}

/// The options of a table.
#[derive(Args, Debug)]
pub struct TableOptions {
    /// The column of a table to predict: a name of its first line, or a number from 0; may be repeated for numbers [default: the last]
    #[arg(long, value_name = "COLUMN")]
    pub target: Vec<String>,
    /// The first line of a table has the names of the columns
    #[arg(long)]
    pub header: bool,
    /// Predict classes: indices, or names [default: if the column has whole numbers below 1000, or no numbers]
    #[arg(long, conflicts_with = "numbers")]
    pub classes: bool,
    /// Predict numbers, not classes [default: if the column has others, or there are several]
    #[arg(long)]
    pub numbers: bool,
}

/// How a table is read: the part of a configuration that only tables have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The columns to predict, or none for the last.
    pub targets: Vec<String>,
    /// The first line has names.
    pub header: bool,
    /// The targets are classes, whatever they look like.
    #[serde(default)]
    pub classes: bool,
    /// The targets are numbers, whatever they look like.
    pub numbers: bool,
}

impl Table {
    /// The options of a reader. A target that is no number is a name, and names are in the first line.
    pub fn options(&self) -> csv::Options {
        let is_named = self.targets.iter().any(|target| target.parse::<usize>().is_err());
        let column = |target: &String| match target.parse() {
            Ok(number) => csv::Column::Number(number),
            Err(_) => csv::Column::Name(target.clone()),
        };
        let targets: Vec<csv::Column> = self.targets.iter().map(column).collect();
        let header = if self.header || is_named { csv::Header::Present } else { csv::Header::Absent };
        let targets = if targets.is_empty() { vec![csv::Column::Last] } else { targets };
        csv::Options { targets, header, ..csv::Options::default() }
    }
}

/// The options of `isograd train` with a dataset of samples.
#[derive(Args, Debug)]
pub struct Train {
    #[command(flatten)]
    pub model: Model,
    /// Take options from this TOML file, by their long names, or from config.json of another run; those of the command line win
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The device, as `isograd devices` lists it [default: the best there is]
    #[arg(long)]
    pub device: Option<String>,
    /// Several devices, separated by commas: each has a part of every batch, such as cuda:0,cuda:1 or cpu,cpu
    #[arg(long, value_name = "DEVICE,..", value_delimiter = ',', conflicts_with = "device")]
    pub devices: Vec<String>,
    /// Batch norms take mean and variance of a batch's parts on all devices, as on one device
    #[arg(long)]
    pub sync_batch_norm: bool,
    /// Passes over the training data [default: 10 for mnist, 30 for images in colour, 200 for graphs, 60 for others]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: Option<u64>,
    /// End when the test loss has not become lower for so many epochs
    #[arg(long, value_name = "EPOCHS", value_parser = clap::value_parser!(u64).range(1..))]
    pub patience: Option<u64>,
    /// The folder of the run: configuration, metrics, curves and checkpoints [default: out/<dataset>]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on from the checkpoint in this folder, with its hyper-parameters; --epochs may be larger than before
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = [
            "batch_size", "lr", "optimizer", "hidden", "dtype", "seed", "model", "target", "header", "classes", "numbers",
            "size", "augment", "stem", "channels_last", "neighbours", "replacement", "undirected", "dropout", "heads",
        ]
    )]
    pub resume: Option<PathBuf>,
    #[command(flatten)]
    pub watch: Watch,
    /// Print one line of JSON at the end, and nothing else
    #[arg(long)]
    pub json: bool,
    /// Show no progress: only the first and the last line
    #[arg(long)]
    pub quiet: bool,
}

impl Train {
    /// The subcommand of a dataset, whose help has the options that the dataset or one of its models takes.
    pub fn command(task: &'static Task) -> Command {
        let fit: Vec<&ModelEntry> = MODELS.iter().filter(|model| task.fits(model)).collect();
        Train::augment_args(Command::new(task.name)).about(task.about).mut_args(|arg| {
            let option = arg.get_long().unwrap_or("data");
            let is_path = option == "data";
            let is_common = !OPTIONS.contains(&option) && !is_path;
            let is_hidden = match is_path {
                true => task.data == Data::Inside,
                false => !is_common && !fit.iter().any(|model| task.takes(model, option)),
            };
            let names: Vec<&str> = fit.iter().map(|model| model.name).collect();
            let arg = match option {
                // Other models are refused with the names of those that fit.
                "model" => {
                    let help = format!("The model: {} [default: {}]", names.join(", "), task.model);
                    arg.hide_possible_values(true).help(help)
                }
                "hidden" => {
                    let units =
                        |model: &&ModelEntry| model.hidden.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
                    let has_hidden = fit.iter().filter(|model| model.options.contains(&"hidden"));
                    let each: Vec<String> =
                        has_hidden.map(|model| format!("{} for {}", units(model), model.name)).collect();
                    arg.help(format!(
                        "Sizes of the hidden layers, separated by commas{} [default: {}]",
                        if task.is_graph { ", of gat in each head" } else { "" },
                        each.join(", ")
                    ))
                }
                "lr" if !task.is_graph => {
                    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                    arg.help(help.replace("; ten times as much for graphs", ""))
                }
                "batch-size" => arg.help(format!("Samples a step [default: {}]", task.batch_size)),
                "epochs" => arg.help(format!("Passes over the training data [default: {}]", task.epochs)),
                "out" => arg.help(format!(
                    "The folder of the run: configuration, metrics, curves and checkpoints [default: out/{}]",
                    task.name
                )),
                _ => arg,
            };
            arg.hide(is_hidden)
        })
    }
}

/// The options that not every dataset and model has.
const OPTIONS: [&str; 14] = [
    "target",
    "header",
    "classes",
    "numbers",
    "hidden",
    "size",
    "augment",
    "stem",
    "channels-last",
    "neighbours",
    "replacement",
    "undirected",
    "dropout",
    "heads",
];

/// False for an option that neither this dataset nor its model, or the default one, has.
pub fn takes(dataset: &str, model: Option<&str>, option: &str) -> bool {
    let Some(task) = Task::named(dataset) else { return true };
    !OPTIONS.contains(&option) || task.takes(ModelEntry::named(model.unwrap_or(task.model)), option)
}

/// A number of at least 1.
pub fn parse_count(s: &str) -> Result<usize, String> {
    match s.parse() {
        Ok(0) | Err(_) => Err(format!("{s:?} is not a number of at least 1")),
        Ok(n) => Ok(n),
    }
}

/// A finite number of at least 0.
pub fn parse_rate(s: &str) -> Result<f64, String> {
    match s.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.0 => Ok(rate),
        _ => Err(format!("{s:?} is not a number of at least 0")),
    }
}

/// A dtype of floats.
fn parse_float(s: &str) -> Result<DType, String> {
    match s.parse::<DType>() {
        Ok(dtype) if dtype.is_float() => Ok(dtype),
        _ => Err(format!("{s:?} is none of f32, f64, f16, bf16")),
    }
}

/// The options on which the weights depend; a checkpoint keeps them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The name of the dataset.
    pub dataset: String,
    /// How a table is read.
    pub table: Table,
    /// How images are read and changed.
    pub images: ImageConfig,
    /// How a graph is read and sampled.
    #[serde(default)]
    pub graph: GraphConfig,
    /// The name of the model.
    pub model: String,
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
    /// The description of the samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<Signature>,
}

impl Config {
    /// The options of a new run, with the defaults of its dataset. Errors: options that the dataset or the model does not have.
    pub fn new(options: &Model, task: &Task, epochs: Option<u64>) -> Result<Config> {
        let model = ModelEntry::named(options.model.as_deref().unwrap_or(task.model));
        options.check(task, model)?;
        let hidden = options.hidden.clone().unwrap_or_else(|| model.hidden.to_vec());
        let optimizer = options.optimizer.unwrap_or(OptimizerName::Adam);
        let TableOptions { target, header, classes, numbers } = &options.table;
        Ok(Config {
            dataset: task.name.into(),
            table: Table { targets: target.clone(), header: *header, classes: *classes, numbers: *numbers },
            images: ImageConfig::new(&options.images)?,
            graph: GraphConfig::new(&options.graph, hidden.len() + 1)?,
            model: model.name.into(),
            epochs: epochs.unwrap_or(task.epochs),
            batch_size: options.batch_size.unwrap_or(task.batch_size),
            lr: options.lr.unwrap_or(task.lr_factor * optimizer.lr()),
            optimizer,
            hidden,
            dtype: options.dtype.unwrap_or(DType::F32).to_string(),
            seed: options.seed.unwrap_or(42),
            samples: None,
        })
    }
}
