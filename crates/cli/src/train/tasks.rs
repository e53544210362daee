//! The datasets that `isograd train` knows: an entry each.

use super::batch::{All, Batch, Plain, Seed};
use super::config::{Config, Table};
use super::graph::{self, Nodes};
use super::images;
use super::models::{Make, ModelEntry};
use anyhow::{Result, bail};
use isograd::Tensor;
use isograd::data::images::Mixup;
use isograd::data::{self, Context, Dataset, HostTensor, Items, Loader, Samples, csv};
use isograd::ops::loss::Reduction;
use isograd::train::Goal;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

/// A dataset by its name on the command line.
pub struct Task {
    pub name: &'static str,
    /// The dataset's line in `isograd train --help`.
    pub about: &'static str,
    /// Passes over the training data, and samples a step, if the command line does not say.
    pub epochs: u64,
    pub batch_size: usize,
    /// The factor of an optimizer's learning rate, if the command line does not say.
    pub lr_factor: f64,
    /// The model if the command line does not say.
    pub model: &'static str,
    /// Samples are nodes of a graph.
    pub is_graph: bool,
    /// Options that other datasets do not have.
    pub options: &'static [&'static str],
    /// Where the samples come from, for the error of a missing or a needless --data.
    pub data: Data,
    load: fn(&Path, &Config) -> isograd::Result<Split>,
}

/// Where samples come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// This program.
    Inside,
    /// The folder or the file of --data.
    Named(&'static str),
}

/// All datasets of the command.
pub const TASKS: &[Task] = &[
    Task {
        name: "digits",
        about: "Handwritten digits, which are in this program",
        epochs: 60,
        batch_size: 32,
        lr_factor: 1.0,
        model: "mlp",
        is_graph: false,
        options: &[],
        data: Data::Inside,
        load: |_, _| digits(),
    },
    Task {
        name: "mnist",
        about: "MNIST's IDX files, or others in their format",
        epochs: 10,
        batch_size: 128,
        lr_factor: 1.0,
        model: "mlp",
        is_graph: false,
        options: &[],
        data: Data::Named("--data DIR with its IDX files"),
        load: |folder, _| classes(data::mnist(folder)?),
    },
    Task {
        name: "csv",
        about: "A table: classes or numbers in one of its columns",
        epochs: 60,
        batch_size: 32,
        lr_factor: 1.0,
        model: "mlp",
        is_graph: false,
        options: &["target", "header", "classes", "numbers"],
        data: Data::Named("--data FILE with a table"),
        load: |file, config| table(file, &config.table),
    },
    Task {
        name: "cifar10",
        about: "CIFAR-10's binary files",
        epochs: 30,
        batch_size: 128,
        lr_factor: 1.0,
        model: "resnet18",
        is_graph: false,
        options: &["augment"],
        data: Data::Named("--data DIR with its binary files"),
        load: images::cifar10,
    },
    Task {
        name: "cifar100",
        about: "CIFAR-100's binary files",
        epochs: 30,
        batch_size: 128,
        lr_factor: 1.0,
        model: "resnet18",
        is_graph: false,
        options: &["augment"],
        data: Data::Named("--data DIR with its binary files"),
        load: images::cifar100,
    },
    Task {
        name: "images",
        about: "A folder of images for each class",
        epochs: 30,
        batch_size: 32,
        lr_factor: 1.0,
        model: "resnet18",
        is_graph: false,
        options: &["augment", "size"],
        data: Data::Named("--data DIR with a folder of images for each class"),
        load: images::folder,
    },
    Task {
        name: "graph",
        about: "The nodes of a graph",
        epochs: 200,
        batch_size: 512,
        lr_factor: 10.0,
        model: "gcn",
        is_graph: true,
        options: &["neighbours", "replacement", "undirected"],
        data: Data::Named("--data DIR with edges.csv, features.csv or features.npy, and labels.csv"),
        load: graph::folder,
    },
];

/// A sample: features or the number of a node, and a class or numbers.
pub type Sample = (HostTensor, HostTensor);
/// Samples of any kind.
pub type Set = Arc<dyn Dataset<Item = Sample>>;

/// Samples to train on, and to test with.
#[derive(Clone)]
pub struct Split {
    /// The name of the training samples.
    pub name: String,
    pub train: Set,
    /// Samples to validate with after each epoch; none for those to test with.
    pub validation: Option<Set>,
    pub test: Set,
    /// The shape of a sample, and the outputs of a model.
    pub shape: Vec<usize>,
    pub outputs: usize,
    pub objective: Objective,
    pub names: Names,
    /// The scales of features and targets, for data that is not scaled.
    pub scales: Option<(Scale, Scale)>,
    /// Mixes the samples of a batch to train on.
    pub mixup: Option<Mixup>,
    /// Threads that read samples.
    pub workers: usize,
    /// The graph whose nodes are the samples.
    pub graph: Option<Arc<Nodes>>,
}

/// The description of samples that a model needs to predict without its training data; a part of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Signature {
    /// The shape of a sample, and the outputs of a model.
    pub shape: Vec<usize>,
    pub outputs: usize,
    pub objective: Objective,
    /// The model scales its inputs, and numbers that it predicts.
    pub is_scaled: bool,
    pub names: Names,
}

/// Names of what a model reads and predicts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Names {
    /// The classes; none for numbers.
    pub classes: Vec<String>,
    /// The number of columns of a table; 0 for samples that are none.
    pub columns: usize,
    /// The names of the columns; none where the table has no names.
    pub of_columns: Vec<String>,
    /// The columns that are predicted, by their numbers.
    pub targets: Vec<usize>,
}

impl Names {
    /// Classes without names.
    pub fn numbered(classes: usize) -> Names {
        Names { classes: (0..classes).map(|class| class.to_string()).collect(), ..Names::default() }
    }

    /// The columns that are not predicted.
    pub fn features(&self) -> Vec<usize> {
        (0..self.columns).filter(|column| !self.targets.contains(column)).collect()
    }
}

/// The objective of a task: its loss and its metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// The class of a sample: cross entropy, and the share of samples whose largest logit is that of their class.
    Classes,
    /// Numbers: the mean square of the errors, and the mean of their absolute values.
    Numbers,
}

/// The mean and the deviation of each column.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    pub means: Vec<f32>,
    pub deviations: Vec<f32>,
}

impl Task {
    /// The task of this name.
    pub fn named(name: &str) -> Option<&'static Task> {
        TASKS.iter().find(|task| task.name == name)
    }

    /// True for models of such samples.
    pub fn fits(&self, model: &ModelEntry) -> bool {
        matches!(model.make, Make::OfGraph(_)) == self.is_graph
    }

    /// True for an option that this dataset or its model has.
    pub fn takes(&self, model: &ModelEntry, option: &str) -> bool {
        self.options.contains(&option) || model.options.contains(&option)
    }

    /// Reads the samples. `path` is the --data of the command line.
    pub fn load(&self, path: Option<&Path>, config: &Config) -> Result<Split> {
        let split = match (self.data, path) {
            (Data::Inside, None) => (self.load)(Path::new(""), config)?,
            (Data::Inside, Some(_)) => bail!("the {} are inside this program; --data is for {}", self.name, readers()),
            (Data::Named(_), Some(path)) => (self.load)(path, config)?,
            (Data::Named(what), None) => bail!("{} needs {what}", self.name),
        };
        if let (Some(path), true) = (path, split.train.is_empty() || split.test.is_empty()) {
            let (train, test) = (split.train.len(), split.test.len());
            bail!("{} has {train} samples to train on and {test} to test with", path.display());
        }
        Ok(split)
    }
}

/// The tasks that read --data.
fn readers() -> String {
    let names: Vec<&str> = TASKS.iter().filter(|task| task.data != Data::Inside).map(|task| task.name).collect();
    names.join(", ")
}

impl Split {
    /// A split without samples, for a model whose weights are restored.
    pub fn of(dataset: &str, signature: &Signature) -> Split {
        let Signature { shape, outputs, objective, is_scaled, names } = signature.clone();
        let targets = if objective == Objective::Numbers { outputs } else { 0 };
        let scales = is_scaled.then(|| (Scale::unit(shape.iter().product()), Scale::unit(targets)));
        let none: Set = Arc::new(Items(Vec::new()));
        let (train, test, validation, mixup, graph) = (none.clone(), none, None, None, None);
        let name = dataset.to_string();
        Split { name, train, validation, test, shape, outputs, objective, names, scales, mixup, workers: 1, graph }
    }

    /// The description of the samples.
    pub fn signature(&self) -> Signature {
        let Split { shape, outputs, objective, scales, names, .. } = self;
        let (shape, names, is_scaled) = (shape.clone(), names.clone(), scales.is_some());
        Signature { shape, outputs: *outputs, objective: *objective, is_scaled, names }
    }

    /// Batches to train on, in the order of the dataset.
    pub fn train_loader(&self, batch_size: usize) -> isograd::Result<Loader<Batch>> {
        let train = self.train.clone();
        let number = |y: &HostTensor| -> isograd::Result<i64> { Ok(y.to_vec()?[0]) };
        if let Some(graph) = &self.graph {
            let Some(sampler) = graph.sampler.clone() else { return whole(&self.train) };
            let seed = move |(node, label): Sample, context: &Context| {
                Ok(Seed(sampler.seed(number(&node)? as usize, context)?, label))
            };
            return Loader::new(train.map(seed), batch_size);
        }
        match self.mixup {
            None => Loader::new(train.map(|sample, _| Ok(Plain(sample))), batch_size)?,
            Some(mixup) => {
                let mixed = move |(x, y): Sample, context: &Context| Ok(Plain(mixup.draw(x, number(&y)?, context)?));
                Loader::new(train.map(mixed), batch_size)?
            }
        }
        .workers(self.workers)
    }

    /// Samples to validate with after each epoch.
    pub fn validated(&self) -> &Set {
        self.validation.as_ref().unwrap_or(&self.test)
    }

    /// Batches of samples from which nothing is learnt.
    pub fn test_loader(&self, set: &Set, batch_size: usize) -> isograd::Result<Loader<Batch>> {
        if self.graph.is_some() {
            return whole(set);
        }
        Loader::new(set.clone().map(|sample, _| Ok(Plain(sample))), batch_size)?.workers(self.workers)
    }

    /// The features of a sample.
    pub fn inputs(&self) -> usize {
        self.shape.iter().product()
    }
}

/// All samples in one batch, which is formed once.
fn whole(set: &Set) -> isograd::Result<Loader<Batch>> {
    let samples = (0..set.len()).map(|i| set.get(i, &Context::new(0, 0, i))).collect::<isograd::Result<_>>()?;
    Loader::new(Items(vec![All::of(samples)?]), 1)
}

/// The values of the samples of a batch, from the model's outputs and the targets.
pub type Measure = fn(&Tensor, &Tensor) -> isograd::Result<Tensor>;

impl Objective {
    /// The loss of outputs, in their dtype of arithmetic: 16-bit outputs have a loss in f32.
    pub fn loss(self, outputs: &Tensor, y: &Tensor) -> isograd::Result<Tensor> {
        let outputs = outputs.cast(outputs.dtype().acc())?;
        match self {
            Objective::Classes if y.dtype().is_float() => outputs.cross_entropy(&y.cast(outputs.dtype())?),
            Objective::Classes => outputs.cross_entropy(y),
            Objective::Numbers => outputs.mse_loss(&y.cast(outputs.dtype())?, Reduction::Mean),
        }
    }

    /// The metric's name, its better value, and its value for each sample.
    pub fn metric(self) -> (&'static str, Goal, Measure) {
        match self {
            Objective::Classes => ("accuracy", Goal::Highest, |outputs, y| outputs.argmax(1)?.eq(y)),
            Objective::Numbers => {
                ("mean_absolute_error", Goal::Lowest, |outputs, y| outputs.sub(&y.cast(outputs.dtype())?)?.abs())
            }
        }
    }
}

fn classes((train, test): (data::Labelled, data::Labelled)) -> isograd::Result<Split> {
    let (name, shape, outputs) = (train.name().to_string(), train.sample_shape().to_vec(), train.classes());
    let names = match train.class_names() {
        [] => Names::numbered(outputs),
        known => Names { classes: known.to_vec(), ..Names::default() },
    };
    let items = |set: data::Labelled| Arc::new(set.map(|(x, label), _| Ok((x, HostTensor::new(&[label], [])?))));
    let (train, test) = (items(train), items(test));
    let objective = Objective::Classes;
    let (validation, scales, mixup, graph) = (None, None, None, None);
    Ok(Split { name, train, validation, test, shape, outputs, objective, names, scales, mixup, workers: 1, graph })
}

/// Every fifth line of a table is for testing.
fn table(path: &Path, table: &Table) -> isograd::Result<Split> {
    let options = table.options();
    let content = match (table.classes, table.numbers) {
        (_, true) => csv::Content::Numbers,
        (is_classes, false) => match csv::content(path, &options)? {
            csv::Content::Numbers if is_classes => csv::Content::Names,
            content => content,
        },
    };
    let csv::Columns { count, names, targets } = csv::columns(path, &options)?;
    let names = Names { classes: Vec::new(), columns: count, of_columns: names, targets };
    if content != csv::Content::Numbers {
        let labels = if content == csv::Content::Names { csv::Labels::Names } else { csv::Labels::Indices };
        let all = csv::read(path, &csv::Options { labels, ..options })?;
        let scale = Scale::of(&all.split_every(5)?.0);
        let unscaled = Scale::unit(0);
        let split = classes(all.split_every(5)?)?;
        let names = Names { classes: split.names.classes, ..names };
        return Ok(Split { scales: Some((scale, unscaled)), names, ..split });
    }
    let (train, test) = csv::read_regression(path, &options)?.split_every(5)?;
    let (name, shape) = (train.name().to_string(), train.sample_shape().to_vec());
    let targets: Vec<f32> =
        train.targets().iter().map(HostTensor::to_vec).collect::<isograd::Result<Vec<_>>>()?.concat();
    let outputs = options.targets.len();
    let scales = Some((Scale::of(&train), Scale::of_columns(&targets, outputs)));
    let (train, test, objective) = (Arc::new(train), Arc::new(test), Objective::Numbers);
    let (validation, mixup, graph) = (None, None, None);
    Ok(Split { name, train, validation, test, shape, outputs, objective, names, scales, mixup, workers: 1, graph })
}

/// The digits within this program.
fn digits() -> isograd::Result<Split> {
    let split = classes(data::digits()?.split_every(5)?)?;
    let pixels = split.inputs();
    let names = Names { columns: pixels + 1, targets: vec![pixels], ..split.names };
    Ok(Split { names, ..split })
}

impl Scale {
    /// Columns that stay as they are.
    fn unit(columns: usize) -> Scale {
        Scale { means: vec![0.0; columns], deviations: vec![1.0; columns] }
    }

    fn of<T: Clone>(samples: &Samples<T>) -> Scale {
        Scale::of_columns(samples.features(), samples.sample_len())
    }

    /// Of rows of `columns` values. A column of one value has the deviation 1.
    fn of_columns(values: &[f32], columns: usize) -> Scale {
        let rows = (values.len() / columns.max(1)).max(1) as f64;
        let mean = |c: usize, f: &dyn Fn(f64) -> f64| {
            values.iter().skip(c).step_by(columns.max(1)).map(|v| f(f64::from(*v))).sum::<f64>() / rows
        };
        let means: Vec<f64> = (0..columns).map(|c| mean(c, &|v| v)).collect();
        let deviation = |(c, m): (usize, &f64)| mean(c, &|v| (v - m).powi(2)).sqrt() as f32;
        let deviations: Vec<f32> = means.iter().enumerate().map(deviation).collect();
        let deviations = deviations.into_iter().map(|d| if d > 0.0 { d } else { 1.0 }).collect();
        Scale { means: means.into_iter().map(|m| m as f32).collect(), deviations }
    }
}
