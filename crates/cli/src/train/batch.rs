//! The batches of the command's models, and what models make of them.

use isograd::data::graph::{SeedNode, Subgraph};
use isograd::data::{Collate, HostTensor, Staged};
use isograd::nn::{Layer, Module};
use isograd::{DType, Device, Result, Tensor, Tensors};

/// A sample.
#[derive(Clone)]
pub struct Sample {
    /// Features, or the number of a node.
    pub x: HostTensor,
    /// The indices of a row's categories `[K]` i64; none for samples that are no rows of a table, and for rows without categories.
    pub categories: Option<HostTensor>,
    /// A class or numbers.
    pub y: HostTensor,
}

impl Sample {
    /// A sample without categories.
    pub fn new(x: HostTensor, y: HostTensor) -> Sample {
        Sample { x, categories: None, y }
    }
}

/// The parts of samples, each stacked.
fn stacked(samples: Vec<Sample>) -> Result<(HostTensor, Option<HostTensor>, HostTensor)> {
    let (mut x, mut categories, mut y) = (Vec::new(), Vec::new(), Vec::new());
    for sample in samples {
        x.push(sample.x);
        categories.extend(sample.categories);
        y.push(sample.y);
    }
    let categories = if categories.is_empty() { None } else { Some(HostTensor::stack(&categories)?) };
    Ok((HostTensor::stack(&x)?, categories, HostTensor::stack(&y)?))
}

impl Collate for Sample {
    type Batch = Batch;

    fn collate(items: Vec<Sample>) -> Result<Staged<Batch>> {
        let (x, categories, y) = stacked(items)?;
        Ok(Staged::new(move |device: &Device| {
            let categories = categories.map(|categories| categories.to(device)).transpose()?;
            Ok((Input { x: x.to(device)?, categories, around: None }, y.to(device)?))
        }))
    }
}

/// The input of a model, and classes `[B]` i64, their probabilities `[B, C]` f32, or numbers `[B, K]` f32.
pub type Batch = (Input, Tensor);

/// The input of a model.
#[derive(Clone)]
pub struct Input {
    /// Samples `[B, ..]`, or the numbers of nodes `[B]`.
    pub x: Tensor,
    /// The indices of categories `[B, K]` i64, for rows of a table.
    pub categories: Option<Tensor>,
    /// The part of a graph around the nodes; none for samples, and for nodes in the whole graph.
    pub around: Option<Subgraph>,
}

impl Input {
    /// Samples of this dtype. Numbers of nodes stay.
    pub fn cast(&self, dtype: DType) -> Result<Input> {
        let x = if self.x.dtype() == DType::I64 { self.x.clone() } else { self.x.cast(dtype)? };
        Ok(Input { x, ..self.clone() })
    }
}

impl Tensors for Input {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Input> {
        let categories = Tensors::map(&self.categories, f)?;
        Ok(Input { x: self.x.map(f)?, categories, around: Tensors::map(&self.around, f)? })
    }

    fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Tensor)) {
        Tensors::visit(&self.x, f);
        Tensors::visit(&self.categories, f);
        Tensors::visit(&self.around, f);
    }
}

/// A model of the command.
pub trait Predict: Module + Sync {
    /// The outputs for a batch, `[B, ..]`.
    fn predict(&self, input: &Input) -> Result<Tensor>;
}

impl<L: Layer> Predict for L {
    fn predict(&self, input: &Input) -> Result<Tensor> {
        self.forward(&input.x)
    }
}

/// A batch whose input is a tensor.
fn plain(staged: Staged<(Tensor, Tensor)>) -> Staged<Batch> {
    Staged::new(move |device| {
        let (x, y) = staged.to(device)?;
        Ok((Input { x, categories: None, around: None }, y))
    })
}

/// A sample of features and targets that are formed for a batch.
pub struct Plain<T>(pub T);

impl<T: Collate<Batch = (Tensor, Tensor)>> Collate for Plain<T> {
    type Batch = Batch;

    fn collate(items: Vec<Plain<T>>) -> Result<Staged<Batch>> {
        Ok(plain(T::collate(items.into_iter().map(|item| item.0).collect())?))
    }
}

/// All samples of a dataset as one.
#[derive(Clone)]
pub struct All(HostTensor, HostTensor);

impl All {
    pub fn of(samples: Vec<Sample>) -> Result<All> {
        let (x, _, y) = stacked(samples)?;
        Ok(All(x, y))
    }
}

impl Collate for All {
    type Batch = Batch;

    /// One item is a batch.
    fn collate(items: Vec<All>) -> Result<Staged<Batch>> {
        let none = || HostTensor::vector::<i64>(&[]);
        let All(x, y) = items.into_iter().next().unwrap_or_else(|| All(none(), none()));
        Ok(plain(Staged::new(move |device: &Device| Ok((x.to(device)?, y.to(device)?)))))
    }
}

/// A node, whose neighbours are drawn for a batch, and its class.
pub struct Seed(pub SeedNode, pub HostTensor);

impl Collate for Seed {
    type Batch = Batch;

    fn collate(items: Vec<Seed>) -> Result<Staged<Batch>> {
        let staged = Collate::collate(items.into_iter().map(|Seed(node, label)| (node, label)).collect())?;
        Ok(Staged::new(move |device| {
            let (part, y): (Subgraph, Tensor) = staged.to(device)?;
            Ok((Input { x: part.nodes.narrow(0, 0, part.seeds)?, categories: None, around: Some(part) }, y))
        }))
    }
}
