//! The options of a training run on samples: the command line, and the part of it that a checkpoint keeps.

use super::graph::{GraphConfig, GraphOptions};
use super::images::{ImageConfig, ImageOptions};
use super::optimizers::OptimizerName;
use super::sample::Signature;
use super::table::{Table, TableOptions};
use super::tasks::{Data, ModelName, Reading, TASKS, Task};
use crate::parse;
use crate::run::RunOptions;
use anyhow::{Result, bail};
use clap::parser::ValueSource;
use clap::{ArgGroup, ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use isograd::DType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A model and the first steps of its training. Hyper-parameters are optional, so that a resumed run takes them from its
/// checkpoint. An option that not every dataset and model takes is in the groups of those that do, which have their names.
#[derive(Args, Debug)]
pub struct Model {
    // First, since other fields take their values out of the matches.
    #[command(flatten)]
    given: Given,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    table: Box<TableOptions>,
    #[command(flatten)]
    images: ImageOptions,
    #[command(flatten)]
    graph: GraphOptions,
    #[command(flatten)]
    hyper: Hyper,
}

/// The options of every dataset. A struct without flattened parts is a group of clap's, which --resume excludes.
#[derive(Args, Debug)]
struct Hyper {
    /// The model [default: resnet18 for images in colour, gcn for graphs, mlp for others]
    #[arg(long, value_enum)]
    model: Option<ModelName>,
    /// Samples a step [default: 128 for mnist and cifar, 512 for graphs, 32 for others]
    #[arg(long, visible_alias = "batch", value_parser = parse::count)]
    batch_size: Option<usize>,
    /// Learning rate [default: that of the optimizer; ten times as much for graphs]
    #[arg(long, value_parser = parse::rate, allow_negative_numbers = true)]
    lr: Option<f64>,
    /// The optimizer [default: adam]
    #[arg(long, value_enum)]
    optimizer: Option<OptimizerName>,
    /// Sizes of the hidden layers of an mlp, gcn, sage or gat, separated by commas [default: 256 for mlp, 8 in each head for gat, 64]
    #[arg(long, value_delimiter = ',', value_parser = parse::count, groups = ["mlp", "gcn", "sage", "gat"])]
    hidden: Option<Vec<usize>>,
    /// f32, f64, f16 (with loss scaling) or bf16 [default: f32]
    #[arg(long, value_parser = parse::float)]
    dtype: Option<DType>,
    /// Decides weights and order of the samples [default: 42]
    #[arg(long)]
    seed: Option<u64>,
}

/// Where the samples are.
#[derive(Args, Debug)]
struct Source {
    /// The folder or the file with the samples
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// The folder or the file with the samples
    #[arg(long, value_name = "PATH", conflicts_with = "path")]
    data: Option<PathBuf>,
}

/// The names of the options that the command line gives.
#[derive(Debug)]
struct Given(Vec<String>);

impl Args for Given {
    /// A group for each dataset and model, of the options that it takes.
    fn augment_args(command: Command) -> Command {
        command.groups(takers().map(|name| ArgGroup::new(name).multiple(true)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Given::augment_args(command)
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Given, clap::Error> {
        let ids = matches.ids().map(|id| id.as_str());
        let given = ids.filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine));
        Ok(Given(given.map(long).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        Given::from_arg_matches(matches).map(|given| *self = given)
    }
}

/// The name on the command line of an option with this name in the program.
fn long(id: &str) -> String {
    id.replace('_', "-")
}

/// The names of all datasets and models.
fn takers() -> impl Iterator<Item = &'static str> {
    TASKS.iter().map(|task| task.name).chain(ModelName::value_variants().iter().map(|model| model.name()))
}

/// The datasets and models that take an option; none for an option that all take.
fn takers_of(option: &str) -> &'static [&'static str] {
    static TAKERS: LazyLock<BTreeMap<String, Vec<&'static str>>> = LazyLock::new(|| {
        let mut command = Model::augment_args(Command::new("model"));
        command.build();
        let mut all: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
        for name in takers() {
            let group = command.get_groups().find(|group| group.get_id() == name);
            for id in group.into_iter().flat_map(ArgGroup::get_args) {
                all.entry(long(id.as_str())).or_default().push(name);
            }
        }
        all
    });
    TAKERS.get(option).map_or(&[], Vec::as_slice)
}

/// False for an option that neither this dataset nor its model, or the default one, has.
pub fn takes(dataset: &str, model: Option<&str>, option: &str) -> bool {
    let Ok(task) = Task::named(dataset) else { return true };
    let model = model.and_then(|name| ModelName::from_str(name, false).ok()).unwrap_or(task.model);
    is_taken(option, task, &[model])
}

/// True for an option that a dataset, one of these models, or every one takes.
fn is_taken(option: &str, task: &Task, models: &[ModelName]) -> bool {
    let takers = takers_of(option);
    takers.is_empty()
        || takers.iter().any(|name| *name == task.name || models.iter().any(|model| model.name() == *name))
}

/// The names of models, separated by commas.
fn listed(models: &[ModelName]) -> String {
    models.iter().map(|model| model.name()).collect::<Vec<_>>().join(", ")
}

impl Model {
    /// The folder or the file with the samples.
    pub fn data(&self) -> Option<&Path> {
        self.source.path.as_deref().or(self.source.data.as_deref())
    }

    /// Errors: an option that neither the dataset nor the model has.
    fn check(&self, task: &Task, model: ModelName) -> Result<()> {
        if let Some(option) = self.given.0.iter().find(|option| !is_taken(option, task, &[model])) {
            bail!("--{option} is for {}", takers_of(option).join(", "));
        }
        if !task.fits(model) {
            bail!("--model {} is not for {}, but {}", model.name(), task.name, listed(&task.models()));
        }
        if task.is_graph && self.hyper.batch_size.is_some() && self.graph.neighbours.is_none() {
            bail!("--batch-size of {} needs --neighbours: without them, a step has the whole graph", task.name);
        }
        Ok(())
    }
}

/// The options of `isograd train` with a dataset of samples.
#[derive(Args, Debug)]
pub struct Train {
    /// The name of the dataset.
    #[arg(skip)]
    pub dataset: String,
    #[command(flatten)]
    pub model: Model,
    /// Batch norms take mean and variance of a batch's parts on all devices, as on one device
    #[arg(long)]
    pub sync_batch_norm: bool,
    /// Passes over the training data [default: 10 for mnist, 30 for images in colour, 200 for graphs, 60 for others]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: Option<u64>,
    /// Go on from the checkpoint in this folder, with its hyper-parameters; --epochs may be larger than before
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["Hyper", "TableOptions", "ImageOptions", "GraphOptions"]
    )]
    pub resume: Option<PathBuf>,
    #[command(flatten)]
    pub run: RunOptions,
}

impl Train {
    /// The subcommand of a dataset, whose help has the options that the dataset or one of its models takes.
    pub fn command(task: &'static Task) -> Command {
        let fit = task.models();
        Train::augment_args(Command::new(task.name)).about(task.about).mut_args(|arg| {
            let option = arg.get_long().unwrap_or("data");
            let is_hidden = match option {
                "data" => task.data == Data::Inside,
                _ => !is_taken(option, task, &fit),
            };
            let arg = match option {
                // Other models are refused with the names of those that fit.
                "model" => {
                    let help = format!("The model: {} [default: {}]", listed(&fit), task.model.name());
                    arg.hide_possible_values(true).help(help)
                }
                "hidden" => {
                    let units = |sizes: &[usize]| sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
                    let has_hidden = fit.iter().filter(|model| !model.hidden().is_empty());
                    let each: Vec<String> =
                        has_hidden.map(|model| format!("{} for {}", units(model.hidden()), model.name())).collect();
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
                    "The folder of the run: configuration, metrics, curves and checkpoints [default: out/{0}, or {0}-2, .. if that has a run]",
                    task.name
                )),
                _ => arg,
            };
            arg.hide(is_hidden)
        })
    }
}

/// The options on which the weights depend; a checkpoint keeps them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The name of the dataset.
    pub dataset: String,
    /// The folder or the file with the samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    #[serde(flatten)]
    pub reading: Reading,
    /// The model.
    pub model: ModelName,
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
        let hyper = &options.hyper;
        let model = hyper.model.unwrap_or(task.model);
        options.check(task, model)?;
        let hidden = hyper.hidden.clone().unwrap_or_else(|| model.hidden().to_vec());
        let optimizer = hyper.optimizer.unwrap_or(OptimizerName::Adam);
        Ok(Config {
            dataset: task.name.into(),
            data: None,
            reading: Reading {
                table: Table::new(&options.table),
                images: ImageConfig::new(&options.images)?,
                graph: GraphConfig::new(&options.graph, hidden.len() + 1)?,
            },
            model,
            epochs: epochs.unwrap_or(task.epochs),
            batch_size: hyper.batch_size.unwrap_or(task.batch_size),
            lr: hyper.lr.unwrap_or(task.lr_factor * optimizer.lr()),
            optimizer,
            hidden,
            dtype: hyper.dtype.unwrap_or(DType::F32).to_string(),
            seed: hyper.seed.unwrap_or(42),
            samples: None,
        })
    }
}
