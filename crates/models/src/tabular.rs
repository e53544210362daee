//! Networks for the rows of tables.

use isograd_core::ops::EmbeddingOptions;
use isograd_core::{Error, Result, Tensor};
use isograd_nn::{Activation, Embedding, Forward, Init, Layer, Linear, Module, Visitor, VisitorMut, called};

/// Linear layers with relu between them.
#[derive(Debug)]
pub struct Mlp {
    /// The hidden layers.
    pub hidden: Vec<Linear>,
    /// The last layer: a [`Linear`] at first.
    pub last: Box<dyn Layer>,
}

impl Mlp {
    /// `[N, outputs]` for `[N, inputs]`, with hidden layers of these sizes.
    pub fn new(inputs: usize, hidden: &[usize], outputs: usize, init: &Init) -> Result<Mlp> {
        let mut width = inputs;
        let mut layer = |units| Linear::new(std::mem::replace(&mut width, units), units, init);
        let hidden = hidden.iter().map(|&units| layer(units)).collect::<Result<_>>()?;
        Ok(Mlp { hidden, last: Box::new(layer(outputs)?) })
    }
}

impl Module for Mlp {
    /// Named as in a sequence of layers in which the activations count.
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.hidden.iter().enumerate().for_each(|(i, layer)| visitor.part(&(2 * i).to_string(), layer));
        visitor.part(&(2 * self.hidden.len()).to_string(), &self.last);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.part(&mut self.hidden);
        visitor.part(&mut self.last);
    }
}

impl Clone for Mlp {
    fn clone(&self) -> Self {
        VisitorMut::cloned(|| Mlp { hidden: self.hidden.clone(), last: self.last.clone() })
    }
}

impl Forward for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || {
            let hidden = self.hidden.iter().try_fold(x.clone(), |x, layer| layer.forward_with(&x, Activation::Relu))?;
            self.last.forward(&hidden)
        })
    }
}

/// The sizes of a [`Tabular`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct TabularOptions {
    /// The numbers of a row.
    pub numbers: usize,
    /// The indices that each category has.
    pub categories: Vec<usize>,
    /// The sizes of the hidden layers.
    pub hidden: Vec<usize>,
    /// The classes, or the numbers to predict.
    pub outputs: usize,
}

/// A network for the rows of a table: each category has an embedding, which follows the numbers as an input of an [`Mlp`]. Guo, Berkhahn 2016, arXiv
/// 1604.06737.
#[derive(Debug, Module)]
pub struct Tabular {
    /// The table of each category.
    pub embeddings: Vec<Embedding>,
    /// The layers.
    #[module(flatten)]
    pub body: Mlp,
}

/// The deviation of an embedding's first values: rows that come seldom stay near to each other.
const DEVIATION: f64 = 0.1;

/// The elements of an embedding of so many indices, as fastai has them.
fn width(indices: usize) -> usize {
    ((1.6 * (indices as f64).powf(0.56)).round() as usize).clamp(1, 64)
}

impl Tabular {
    /// A network of these sizes. Errors: `Attr` for a row of nothing.
    pub fn new(options: &TabularOptions, init: &Init) -> Result<Tabular> {
        let TabularOptions { numbers, categories, hidden, outputs } = options;
        if *numbers == 0 && categories.is_empty() {
            return Err(Error::attr("tabular", "a row has 0 numbers and 0 categories, expected at least one"));
        }
        let embedding = |indices: &usize| {
            let weight = init.normal((*indices, width(*indices)), 0.0, DEVIATION)?;
            Embedding::from_pretrained(weight, &EmbeddingOptions::default())
        };
        let embeddings = categories.iter().map(embedding).collect::<Result<Vec<_>>>()?;
        let inputs = numbers + categories.iter().map(|indices| width(*indices)).sum::<usize>();
        Ok(Tabular { embeddings, body: Mlp::new(inputs, hidden, *outputs, init)? })
    }

    /// `[N, outputs]` for `numbers: [N, numbers]` and `categories: [N, K]`, i64. Errors: `Shape` for other shapes; `Index` for an index that a
    /// category does not have.
    pub fn forward(&self, numbers: &Tensor, categories: &Tensor) -> Result<Tensor> {
        called(self, &[numbers, categories], || self.run(numbers, categories))
    }

    fn run(&self, numbers: &Tensor, categories: &Tensor) -> Result<Tensor> {
        if self.embeddings.is_empty() {
            return self.body.forward(numbers);
        }
        let count = self.embeddings.len();
        if categories.rank() != 2 || categories.dims()[1] != count {
            let message = format!("the categories are {}, expected [N, {count}]", categories.shape());
            return Err(Error::shape("tabular", message));
        }
        let mut parts = if numbers.dims()[1] > 0 { vec![numbers.clone()] } else { Vec::new() };
        for (i, embedding) in self.embeddings.iter().enumerate() {
            parts.push(embedding.forward(&categories.select(1, i as isize)?)?);
        }
        self.body.forward(&Tensor::concat(&parts.iter().collect::<Vec<_>>(), 1)?)
    }
}
