//! Samples to train on and to test with, and what a model needs to know of them.

use super::batch::{All, Batch, Plain, Sample, Seed};
use isograd::data::csv::Encoding;
use isograd::data::graph::{GraphFolder, NeighborSampler};
use isograd::data::images::Mixup;
use isograd::data::{self, Context, Dataset, HostTensor, Items, Loader};
use isograd::ops::loss::Reduction;
use isograd::train::Goal;
use isograd::{DType, Device, Tensor};
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
    /// The names of the classes; none for numbers.
    pub classes: Vec<String>,
    /// How the rows of a table became samples.
    pub table: Option<TableSplit>,
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
    /// The names of the classes; none for numbers.
    pub classes: Vec<String>,
    /// How the rows of a table become samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<Encoding>,
}

/// How the rows of a table became samples.
#[derive(Clone)]
pub struct TableSplit {
    pub encoding: Arc<Encoding>,
    /// The columns and their types in words; empty for a model that is restored.
    pub description: String,
    /// Choices of the reader that the user may not have meant.
    pub warnings: Vec<String>,
}

/// The names of classes that have only numbers.
pub fn numbered(classes: usize) -> Vec<String> {
    (0..classes).map(|class| class.to_string()).collect()
}

/// The objective of a task: its loss and its metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// The class of a sample: cross entropy, and the share of samples whose largest logit is that of their class.
    Classes,
    /// Numbers: the mean square of the errors in units of the targets' deviation, and the mean of their absolute values in the targets' unit.
    Numbers,
}

/// A graph and how mini-batches are drawn from it.
pub struct Nodes {
    pub folder: GraphFolder,
    pub sampler: Option<NeighborSampler>,
}

impl Split {
    /// A split without samples, for a model whose weights are restored.
    pub fn of(dataset: &str, signature: &Signature) -> Split {
        let Signature { shape, outputs, objective, classes, table } = signature.clone();
        let restored =
            |encoding| TableSplit { encoding: Arc::new(encoding), description: String::new(), warnings: Vec::new() };
        let (table, none): (_, Set) = (table.map(restored), Arc::new(Items(Vec::new())));
        let (train, test, validation, mixup, graph) = (none.clone(), none, None, None, None);
        let name = dataset.to_string();
        Split { name, train, validation, test, shape, outputs, objective, classes, table, mixup, workers: 1, graph }
    }

    /// The description of the samples.
    pub fn signature(&self) -> Signature {
        let Split { outputs, objective, table, .. } = self;
        let (shape, classes) = (self.shape.clone(), self.classes.clone());
        let table = table.as_ref().map(|table| (*table.encoding).clone());
        Signature { shape, outputs: *outputs, objective: *objective, classes, table }
    }

    /// The name of the samples that are not learnt: those that choose the epoch are no test of it.
    pub fn role(&self) -> &'static str {
        if self.validation.is_some() { "test" } else { "validation" }
    }

    /// The deviation of each number to predict, `[K]` in the dtype of arithmetic.
    pub fn unit(&self, dtype: DType, device: &Device) -> isograd::Result<Option<Tensor>> {
        let deviations = self.table.as_ref().map(|table| table.encoding.target_scale().1).unwrap_or_default();
        if deviations.is_empty() {
            return Ok(None);
        }
        let count = deviations.len();
        Ok(Some(Tensor::from_vec(deviations, count, device)?.cast(dtype.acc())?))
    }

    /// Batches to train on, in the order of the dataset.
    pub fn train_loader(&self, batch_size: usize) -> isograd::Result<Loader<Batch>> {
        let train = self.train.clone();
        let number = |y: &HostTensor| -> isograd::Result<i64> { Ok(y.to_vec()?[0]) };
        if let Some(graph) = &self.graph {
            let Some(sampler) = graph.sampler.clone() else { return whole(&self.train) };
            let seed = move |Sample { x: node, y: label, .. }: Sample, context: &Context| {
                Ok(Seed(sampler.seed(number(&node)? as usize, context)?, label))
            };
            return Loader::new(train.map(seed), batch_size);
        }
        match self.mixup {
            None => Loader::new(train, batch_size)?,
            Some(mixup) => {
                let mixed = move |Sample { x, y, .. }: Sample, context: &Context| {
                    Ok(Plain(mixup.draw(x, number(&y)?, context)?))
                };
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
        Loader::new(set.clone(), batch_size)?.workers(self.workers)
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
pub type Measure = Box<dyn Fn(&Tensor, &Tensor) -> isograd::Result<Tensor> + Send + Sync>;

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

    /// The metric's name, its better value, and its value for each sample. `unit` has the deviation of each number to predict.
    pub fn metric(self, unit: Option<Tensor>) -> (&'static str, Goal, Measure) {
        match self {
            Objective::Classes => ("accuracy", Goal::Highest, Box::new(|outputs, y| outputs.argmax(1)?.eq(y))),
            Objective::Numbers => {
                let error = move |outputs: &Tensor, y: &Tensor| {
                    let outputs = outputs.cast(outputs.dtype().acc())?;
                    let error = outputs.sub(&y.cast(outputs.dtype())?)?.abs()?;
                    unit.as_ref().map_or(Ok(error.clone()), |unit| error.mul(unit))
                };
                ("mean_absolute_error", Goal::Lowest, Box::new(error))
            }
        }
    }
}

/// Samples with classes, as a dataset of this program has them.
pub fn classes((train, test): (data::Labelled, data::Labelled)) -> isograd::Result<Split> {
    let (name, shape, outputs) = (train.name().to_string(), train.sample_shape().to_vec(), train.classes());
    let classes = match train.class_names() {
        [] => numbered(outputs),
        known => known.to_vec(),
    };
    let items =
        |set: data::Labelled| Arc::new(set.map(|(x, label), _| Ok(Sample::new(x, HostTensor::new(&[label], [])?))));
    let (train, test) = (items(train), items(test));
    let objective = Objective::Classes;
    let (validation, table, mixup, graph) = (None, None, None, None);
    Ok(Split { name, train, validation, test, shape, outputs, objective, classes, table, mixup, workers: 1, graph })
}
