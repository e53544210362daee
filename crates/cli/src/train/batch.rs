//! The batches of the command's models, and what models make of them.

use isograd::data::graph::{SeedNode, Subgraph};
use isograd::data::{Collate, HostTensor, Staged};
use isograd::nn::{Layer, Module};
use isograd::{DType, Device, Result, Tensor, Tensors};

/// A sample: features or the number of a node, and a class or numbers.
pub type Sample = (HostTensor, HostTensor);

/// The input of a model, and classes `[B]` i64, their probabilities `[B, C]` f32, or numbers `[B, K]` f32.
pub type Batch = (Input, Tensor);

/// The input of a model.
#[derive(Clone)]
pub struct Input {
    /// Samples `[B, ..]`, or the numbers of nodes `[B]`.
    pub x: Tensor,
    /// The part of a graph around the nodes; none for samples, and for nodes in the whole graph.
    pub around: Option<Subgraph>,
}

impl Input {
    /// Samples of this dtype. Numbers of nodes stay.
    pub fn cast(&self, dtype: DType) -> Result<Input> {
        let x = if self.x.dtype() == DType::I64 { self.x.clone() } else { self.x.cast(dtype)? };
        Ok(Input { x, around: self.around.clone() })
    }
}

impl Tensors for Input {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Input> {
        Ok(Input { x: self.x.map(f)?, around: Tensors::map(&self.around, f)? })
    }

    fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Tensor)) {
        Tensors::visit(&self.x, f);
        Tensors::visit(&self.around, f);
    }
}

/// A model of the command.
pub trait Predict: Module {
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
        Ok((Input { x, around: None }, y))
    })
}

/// A sample of features and targets.
pub struct Plain<T>(pub T);

impl<T: Collate<Batch = (Tensor, Tensor)>> Collate for Plain<T> {
    type Batch = Batch;

    fn collate(items: Vec<Plain<T>>) -> Result<Staged<Batch>> {
        Ok(plain(T::collate(items.into_iter().map(|item| item.0).collect())?))
    }
}

/// All samples of a dataset as one.
#[derive(Clone)]
pub struct All(Sample);

impl All {
    pub fn of(samples: Vec<Sample>) -> Result<All> {
        let (x, y): (Vec<HostTensor>, Vec<HostTensor>) = samples.into_iter().unzip();
        Ok(All((HostTensor::stack(&x)?, HostTensor::stack(&y)?)))
    }
}

impl Collate for All {
    type Batch = Batch;

    /// One item is a batch.
    fn collate(items: Vec<All>) -> Result<Staged<Batch>> {
        let (x, y) = items
            .into_iter()
            .next()
            .map(|item| item.0)
            .unwrap_or((HostTensor::vector::<i64>(&[]), HostTensor::vector::<i64>(&[])));
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
            Ok((Input { x: part.nodes.narrow(0, 0, part.seeds)?, around: Some(part) }, y))
        }))
    }
}
