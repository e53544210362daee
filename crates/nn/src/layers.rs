//! Layers, with PyTorch's names, defaults and initial values.

use crate::{Forward, Init, Layer, Mode, Module, Recompute, Visitor, VisitorMut, called};
use isograd_core::ops::{Activation, Bag, BagMode, EmbeddingOptions, GemmBias, Transpose};
use isograd_core::{Error, Result, Rng, Tensor, no_grad};
use std::sync::Arc;

/// `x w^T + b` for `x: [.., in]`.
#[derive(Debug, Module)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
}

impl Linear {
    /// Weight and bias uniform in `±1 / sqrt(in)`.
    pub fn new(input: usize, output: usize, init: &Init) -> Result<Linear> {
        let bound = bound(input);
        let weight = init.uniform((output, input), -bound, bound)?;
        Ok(Linear { weight, bias: Some(init.uniform(output, -bound, bound)?) })
    }

    /// Without a bias.
    pub fn without_bias(input: usize, output: usize, init: &Init) -> Result<Linear> {
        let bound = bound(input);
        Ok(Linear { weight: init.uniform((output, input), -bound, bound)?, bias: None })
    }

    /// `activation(x w^T + b)`, rounded once. On a GPU it is one kernel. Errors: `Shape`.
    pub fn forward_with(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        called(self, &[x], || {
            let options = GemmBias { trans_b: Transpose::Yes, activation, ..Default::default() };
            x.gemm_bias(&self.weight, self.bias.as_ref(), &options)
        })
    }
}

/// The bound of Kaiming's uniform rule for a leaky relu of slope sqrt(5).
pub(crate) fn bound(input: usize) -> f64 {
    if input == 0 { 0.0 } else { 1.0 / (input as f64).sqrt() }
}

impl Forward for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || x.linear(&self.weight, self.bias.as_ref()))
    }
}

/// `y[.., o] = x1[.., i] weight[o, i, j] x2[.., j] + bias[o]`, summed over i and j, for `x1: [.., in1]` and `x2: [.., in2]`.
#[derive(Debug, Module)]
pub struct Bilinear {
    /// `[out, in1, in2]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
}

impl Bilinear {
    /// Weight and bias uniform in `±1 / sqrt(in1)`.
    pub fn new(input1: usize, input2: usize, output: usize, init: &Init) -> Result<Bilinear> {
        let bound = bound(input1);
        let weight = init.uniform((output, input1, input2), -bound, bound)?;
        Ok(Bilinear { weight, bias: Some(init.uniform(output, -bound, bound)?) })
    }

    /// Without a bias.
    pub fn without_bias(input1: usize, input2: usize, output: usize, init: &Init) -> Result<Bilinear> {
        let bound = bound(input1);
        Ok(Bilinear { weight: init.uniform((output, input1, input2), -bound, bound)?, bias: None })
    }

    /// The form of two inputs with equal leading dimensions. Errors: `Shape`, `Dtype`.
    pub fn forward(&self, x1: &Tensor, x2: &Tensor) -> Result<Tensor> {
        called(self, &[x1, x2], || x1.bilinear(x2, &self.weight, self.bias.as_ref()))
    }
}

/// Multiplies elements by 0 with probability `p` in training. The identity in evaluation.
#[derive(Debug, Module)]
pub struct Dropout {
    #[module(skip)]
    p: f64,
    #[module(skip)]
    rng: Rng,
    mode: Mode,
}

impl Dropout {
    /// Draws from the generator of `init`. Errors (in `forward`): `Attr` unless `0 <= p <= 1`.
    pub fn new(p: f64, init: &Init) -> Dropout {
        Dropout { p, rng: init.rng().clone(), mode: Mode::default() }
    }
}

impl Dropout {
    /// Dropout of the sum of x `[.., C]` and a bias `[C]`. On a GPU it is one kernel. Errors: `Shape`, `Dtype`.
    pub fn forward_with_bias(&self, x: &Tensor, bias: &Tensor) -> Result<Tensor> {
        called(self, &[x, bias], || x.bias_dropout(bias, if self.mode.is_training() { self.p } else { 0.0 }, &self.rng))
    }
}

impl Forward for Dropout {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || if self.mode.is_training() { x.dropout(self.p, &self.rng) } else { Ok(x.clone()) })
    }
}

/// Its input: a layer where there is nothing to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity;

impl Module for Identity {
    fn visit(&self, _: &mut Visitor<'_>) {}

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
}

impl Forward for Identity {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || Ok(x.clone()))
    }
}

/// Rows of a table, selected by index and reduced over bags: [`Tensor::embedding_bag`].
#[derive(Debug, Module)]
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
#[derive(Debug, Module)]
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

/// [`Tensor::flatten`]: merges dimensions `start` to `end`, by default `[N, ..]` to `[N, product of the others]`.
#[derive(Clone, Copy, Debug)]
pub struct Flatten {
    /// The first merged dimension.
    pub start: isize,
    /// The last merged dimension.
    pub end: isize,
}

impl Default for Flatten {
    fn default() -> Self {
        Flatten { start: 1, end: -1 }
    }
}

impl Module for Flatten {
    fn visit(&self, _: &mut Visitor<'_>) {}

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
}

impl Forward for Flatten {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || x.flatten(self.start, self.end))
    }
}

/// Layers in sequence, named by their numbers.
///
/// ```
/// # use isograd_nn::{Init, Linear, Sequential};
/// # use isograd_core::{Result, Tensor};
/// # fn network(init: &Init) -> Result<Sequential> {
/// Ok(Sequential::new().push(Linear::new(64, 32, init)?).push(Tensor::relu).push(|x: &Tensor| x.mul_scalar(0.5)))
/// # }
/// ```
#[derive(Default, Module)]
pub struct Sequential {
    #[module(flatten)]
    layers: Vec<Box<dyn Layer>>,
    #[module(flatten)]
    recompute: Recompute,
}

impl Sequential {
    /// No layers: the identity.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Appends a layer, or a function of a tensor.
    pub fn push<K>(mut self, layer: impl IntoLayer<K>) -> Sequential {
        self.layers.push(layer.into_layer());
        self
    }

    /// Inserts a layer, or a function of a tensor, before layer `index`, or at the end. The layers behind it are named by their new
    /// numbers. Errors: `Index` if `index` is greater than the number of layers.
    pub fn insert<K>(&mut self, index: usize, layer: impl IntoLayer<K>) -> Result<()> {
        if index > self.layers.len() {
            let message = format!("there is no place {index}, expected one in 0..={}", self.layers.len());
            return Err(Error::index("sequential", message));
        }
        self.layers.insert(index, layer.into_layer());
        Ok(())
    }

    /// Removes the last layer and returns it.
    pub fn pop(&mut self) -> Option<Box<dyn Layer>> {
        self.layers.pop()
    }

    /// Layer `index`.
    pub fn get(&self, index: usize) -> Option<&dyn Layer> {
        self.layers.get(index).map(|layer| &**layer)
    }

    /// The number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// True if there are no layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The layers, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &dyn Layer> + ExactSizeIterator {
        self.layers.iter().map(|layer| &**layer)
    }
}

impl Forward for Sequential {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        // With the least memory, a stretch has as many layers as there are stretches.
        let length = self.layers.len().isqrt().max(1);
        let stretches = self.layers.chunks(if self.recompute.is_on() { length } else { self.layers.len().max(1) });
        called(self, &[x], || {
            stretches.into_iter().try_fold(x.clone(), |x, layers| {
                self.recompute.run(layers, &[&x], |layers, x| {
                    layers.iter().try_fold(x[0].clone(), |x, layer| called(layer, &[&x], || layer.forward(&x)))
                })
            })
        })
    }
}

/// A layer, or a function `Fn(&Tensor) -> Result<Tensor>`, which is a layer without parameters. `K` is inferred: it tells the two apart.
pub trait IntoLayer<K> {
    /// The layer.
    fn into_layer(self) -> Box<dyn Layer>;
}

/// The kind of layers, for [`IntoLayer`].
pub struct ByLayer;

/// The kind of functions, for [`IntoLayer`].
pub struct ByFunction;

impl<L: Layer + 'static> IntoLayer<ByLayer> for L {
    fn into_layer(self) -> Box<dyn Layer> {
        Box::new(self)
    }
}

impl<F: Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static> IntoLayer<ByFunction> for F {
    fn into_layer(self) -> Box<dyn Layer> {
        Box::new(Function(Arc::new(self)))
    }
}

/// A function as a layer.
struct Function<F>(Arc<F>);

impl<F> Clone for Function<F> {
    fn clone(&self) -> Self {
        Function(self.0.clone())
    }
}

impl<F> Module for Function<F> {
    fn visit(&self, _: &mut Visitor<'_>) {}

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}

    fn type_name(&self) -> &'static str {
        std::any::type_name::<F>()
    }
}

impl<F: Fn(&Tensor) -> Result<Tensor>> Forward for Function<F> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || (self.0)(x))
    }
}
