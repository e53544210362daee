//! Samples to train on and to test with, and what a model needs to know of them.

use super::batch::{All, Batch, Plain, Sample, Seed};
use isograd::Tensor;
use isograd::data::graph::{GraphFolder, NeighborSampler};
use isograd::data::images::Mixup;
use isograd::data::{self, Context, Dataset, HostTensor, Items, Loader, Samples};
use isograd::ops::loss::Reduction;
use isograd::train::Goal;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

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

/// A graph and how mini-batches are drawn from it.
pub struct Nodes {
    pub folder: GraphFolder,
    pub sampler: Option<NeighborSampler>,
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

/// Samples with classes, as a dataset of this program has them.
pub fn classes((train, test): (data::Labelled, data::Labelled)) -> isograd::Result<Split> {
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

impl Scale {
    /// Columns that stay as they are.
    pub fn unit(columns: usize) -> Scale {
        Scale { means: vec![0.0; columns], deviations: vec![1.0; columns] }
    }

    pub fn of<T: Clone>(samples: &Samples<T>) -> Scale {
        Scale::of_columns(samples.features(), samples.sample_len())
    }

    /// Of rows of `columns` values. A column of one value has the deviation 1.
    pub fn of_columns(values: &[f32], columns: usize) -> Scale {
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
