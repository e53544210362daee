//! Rows of a table, selected by index.

use crate::details::extent;
use crate::{Forward, Init, Module, called};
use isograd_core::ops::{Bag, BagMode, EmbeddingOptions};
use isograd_core::{Error, Result, Tensor, no_grad};

/// Rows of a table, selected by index and reduced over bags: [`Tensor::embedding_bag`].
#[derive(Module)]
#[module(details = format!("{} -> {}, {:?}", extent(&self.weight, 0), extent(&self.weight, 1), self.mode))]
pub struct EmbeddingBag {
    /// `[V, E]`.
    pub weight: Tensor,
    /// The reduction; the mean by default.
    #[module(skip)]
    pub mode: BagMode,
    /// An index whose rows are left out.
    #[module(skip)]
    pub padding_idx: Option<i64>,
}

impl EmbeddingBag {
    /// `count` rows of `size` elements, normal with mean 0 and deviation 1.
    pub fn new(count: usize, size: usize, mode: BagMode, init: &Init) -> Result<EmbeddingBag> {
        Ok(EmbeddingBag { weight: init.normal((count, size), 0.0, 1.0)?, mode, padding_idx: None })
    }

    /// `[B, E]` for an index `[N]` and the `offsets: [B]` at which bags begin. Errors: `Shape`, `Index`.
    pub fn forward_offsets(&self, index: &Tensor, offsets: &Tensor) -> Result<Tensor> {
        self.reduced(index, Some(offsets), None)
    }

    /// `[B, E]` with a factor for each row, for sums. Errors: `Attr` for another reduction, `Shape`, `Index`.
    pub fn forward_weighted(&self, index: &Tensor, offsets: Option<&Tensor>, weights: &Tensor) -> Result<Tensor> {
        self.reduced(index, offsets, Some(weights))
    }

    fn reduced(&self, index: &Tensor, offsets: Option<&Tensor>, weights: Option<&Tensor>) -> Result<Tensor> {
        called(self, &[index], || {
            let bag = Bag { mode: self.mode, weights, padding_idx: self.padding_idx };
            self.weight.embedding_bag(index, offsets, &bag)
        })
    }
}

impl Forward for EmbeddingBag {
    /// `[B, E]` for an index `[B, L]`.
    fn forward(&self, index: &Tensor) -> Result<Tensor> {
        self.reduced(index, None, None)
    }
}

/// Rows of a table, selected by index.
///
/// ```
/// # use isograd_core::{Device, Tensor};
/// # use isograd_nn::{Embedding, Forward, Init};
/// # use isograd_cpu as _;
/// # fn main() -> isograd_core::Result<()> {
/// let device = Device::cpu()?;
/// let table = Embedding::new(100, 16, &Init::new(&device))?;
/// let words = Tensor::from_vec(vec![7i64, 0, 99], (1, 3), &device)?;
/// assert_eq!(table.forward(&words)?.dims(), [1, 3, 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Module)]
#[module(details = format!("{} -> {}", extent(&self.weight, 0), extent(&self.weight, 1)))]
pub struct Embedding {
    /// `[V, E]`.
    pub weight: Tensor,
    #[module(skip)]
    options: EmbeddingOptions,
}

impl Embedding {
    /// `count` rows of `size` elements, normal with mean 0 and deviation 1.
    pub fn new(count: usize, size: usize, init: &Init) -> Result<Embedding> {
        Embedding::with_options(count, size, &EmbeddingOptions::default(), init)
    }

    /// With a padding row, which is initially 0, or gradients scaled by frequency.
    pub fn with_options(count: usize, size: usize, options: &EmbeddingOptions, init: &Init) -> Result<Embedding> {
        let weight = init.normal((count, size), 0.0, 1.0)?;
        if let Some(row) = options.padding_idx {
            no_grad(|| weight.detach().select(0, row as isize)?.fill_(0.0))?;
        }
        Ok(Embedding { weight, options: *options })
    }

    /// The rows of `weight: [V, E]`, which are trained if it is a leaf, and constant otherwise. Errors: `Shape`.
    pub fn from_pretrained(weight: Tensor, options: &EmbeddingOptions) -> Result<Embedding> {
        match weight.rank() {
            2 => Ok(Embedding { weight, options: *options }),
            _ => Err(Error::shape("embedding", format!("the weight is {}, expected [V, E]", weight.shape()))),
        }
    }
}

impl Forward for Embedding {
    fn forward(&self, index: &Tensor) -> Result<Tensor> {
        called(self, &[index], || self.weight.embedding(index, &self.options))
    }
}
