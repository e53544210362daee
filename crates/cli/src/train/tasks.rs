//! The datasets that `isograd train` knows: an entry each.

use super::config::{Config, Table};
use super::images;
use anyhow::{Result, bail};
use isograd::Tensor;
use isograd::data::images::Mixup;
use isograd::data::{self, Dataset, HostTensor, Loader, Samples, csv};
use isograd::ops::loss::Reduction;
use isograd::train::Goal;
use std::path::Path;
use std::sync::Arc;

/// A dataset by its name on the command line.
pub struct Task {
    pub name: &'static str,
    /// Passes over the training data, and samples a step, if the command line does not say.
    pub epochs: u64,
    pub batch_size: usize,
    /// The model if the command line does not say.
    pub model: &'static str,
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
        epochs: 60,
        batch_size: 32,
        model: "mlp",
        options: &[],
        data: Data::Inside,
        load: |_, _| classes(data::digits()?.split_every(5)?),
    },
    Task {
        name: "mnist",
        epochs: 10,
        batch_size: 128,
        model: "mlp",
        options: &[],
        data: Data::Named("--data DIR with its IDX files"),
        load: |folder, _| classes(data::mnist(folder)?),
    },
    Task {
        name: "csv",
        epochs: 60,
        batch_size: 32,
        model: "mlp",
        options: &[],
        data: Data::Named("--data FILE with a table"),
        load: |file, config| table(file, &config.table),
    },
    Task {
        name: "cifar10",
        epochs: 30,
        batch_size: 128,
        model: "resnet18",
        options: &["augment"],
        data: Data::Named("--data DIR with its binary files"),
        load: images::cifar10,
    },
    Task {
        name: "cifar100",
        epochs: 30,
        batch_size: 128,
        model: "resnet18",
        options: &["augment"],
        data: Data::Named("--data DIR with its binary files"),
        load: images::cifar100,
    },
    Task {
        name: "images",
        epochs: 30,
        batch_size: 32,
        model: "resnet18",
        options: &["augment", "size"],
        data: Data::Named("--data DIR with a folder of images for each class"),
        load: images::folder,
    },
];

/// A sample: features, and a class or numbers.
pub type Sample = (HostTensor, HostTensor);
/// Samples `[B, ..]`, and classes `[B]` i64, their probabilities `[B, C]` f32, or numbers `[B, K]` f32.
pub type Batch = (Tensor, Tensor);

/// Samples to train on, and to test with.
#[derive(Clone)]
pub struct Split {
    /// The name of the training samples.
    pub name: String,
    pub train: Arc<dyn Dataset<Item = Sample>>,
    pub test: Arc<dyn Dataset<Item = Sample>>,
    /// The shape of a sample, and the outputs of a model.
    pub shape: Vec<usize>,
    pub outputs: usize,
    pub objective: Objective,
    /// The scales of features and targets, for data that is not scaled.
    pub scales: Option<(Scale, Scale)>,
    /// Mixes the samples of a batch to train on.
    pub mixup: Option<Mixup>,
    /// Threads that read samples.
    pub workers: usize,
}

/// The objective of a task: its loss and its metric.
#[derive(Clone, Copy, PartialEq, Eq)]
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
    /// Batches to train on, in the order of the dataset.
    pub fn train_loader(&self, batch_size: usize) -> isograd::Result<Loader<Batch>> {
        let train = self.train.clone();
        match self.mixup {
            None => Loader::new(train, batch_size)?,
            Some(mixup) => {
                let label = |y: &HostTensor| -> isograd::Result<i64> { Ok(y.to_vec()?[0]) };
                Loader::new(train.map(move |(x, y), context| mixup.draw(x, label(&y)?, context)), batch_size)?
            }
        }
        .workers(self.workers)
    }

    /// Batches to test with.
    pub fn test_loader(&self, batch_size: usize) -> isograd::Result<Loader<Batch>> {
        Loader::new(self.test.clone(), batch_size)?.workers(self.workers)
    }

    /// The features of a sample.
    pub fn inputs(&self) -> usize {
        self.shape.iter().product()
    }
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
    let items = |set: data::Labelled| Arc::new(set.map(|(x, label), _| Ok((x, HostTensor::new(&[label], [])?))));
    let (train, test) = (items(train), items(test));
    let objective = Objective::Classes;
    Ok(Split { name, train, test, shape, outputs, objective, scales: None, mixup: None, workers: 1 })
}

/// Every fifth line of a table is for testing.
fn table(path: &Path, table: &Table) -> isograd::Result<Split> {
    let options = table.options();
    if !table.numbers {
        let all = csv::read(path, &options)?;
        let scale = Scale::of(&all.split_every(5)?.0);
        let unscaled = Scale { means: Vec::new(), deviations: Vec::new() };
        return Ok(Split { scales: Some((scale, unscaled)), ..classes(all.split_every(5)?)? });
    }
    let (train, test) = csv::read_regression(path, &options)?.split_every(5)?;
    let (name, shape) = (train.name().to_string(), train.sample_shape().to_vec());
    let targets: Vec<f32> =
        train.targets().iter().map(HostTensor::to_vec).collect::<isograd::Result<Vec<_>>>()?.concat();
    let outputs = options.targets.len();
    let scales = Some((Scale::of(&train), Scale::of_columns(&targets, outputs)));
    let (train, test, objective) = (Arc::new(train), Arc::new(test), Objective::Numbers);
    Ok(Split { name, train, test, shape, outputs, objective, scales, mixup: None, workers: 1 })
}

impl Scale {
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
