//! Convolutions of graphs: sums, means and maxima of neighbours, and dense layers.

use super::Graph;
use crate::{Forward, Gain, Init, Linear, Module, called};
use isograd_core::ops::{IndexReduce, Messages};
use isograd_core::{DType, Result, Tensor};

/// The options of a [`GcnConv`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct GcnOptions {
    /// Whether each node gets a loop where it has none.
    pub add_self_loops: bool,
    /// Whether edges are divided by the roots of the degrees of their ends.
    pub normalize: bool,
    /// Whether the layer has a bias.
    pub bias: bool,
}

impl Default for GcnOptions {
    fn default() -> Self {
        GcnOptions { add_self_loops: true, normalize: true, bias: true }
    }
}

/// A graph convolution, `y = D^-1/2 (A + I) D^-1/2 x w^T + b`: a dense layer, and a weighted sum over each node and its neighbours. Kipf,
/// Welling 2017, arXiv 1609.02907.
#[derive(Debug, Module)]
pub struct GcnConv {
    /// The dense layer, without a bias.
    pub lin: Linear,
    /// `[out]`.
    pub bias: Option<Tensor>,
    #[module(skip)]
    options: GcnOptions,
}

impl GcnConv {
    /// The weight is uniform with Glorot's variance, the bias 0.
    pub fn new(input: usize, output: usize, init: &Init) -> Result<GcnConv> {
        GcnConv::with_options(input, output, &GcnOptions::default(), init)
    }

    /// [`new`](GcnConv::new) with options.
    pub fn with_options(input: usize, output: usize, options: &GcnOptions, init: &Init) -> Result<GcnConv> {
        let lin = Linear { weight: init.xavier_uniform((output, input), Gain::Linear)?, bias: None };
        Ok(GcnConv { lin, bias: options.bias.then(|| init.zeros(output)).transpose()?, options: *options })
    }

    /// Maps x `[N, in]` to `[N, out]`. `edge_weight` is `[E]`, by default 1. A loop of the graph keeps its weight, a new one has 1.
    /// Errors: `Shape`, `Dtype`, `Device`.
    pub fn forward(&self, x: &Tensor, graph: &Graph, edge_weight: Option<&Tensor>) -> Result<Tensor> {
        called(self, &[x], || {
            let (mut graph, mut edge_weight) = (graph, edge_weight.cloned());
            // Without normalisation the weights are used as they are, as in PyTorch Geometric.
            if self.options.normalize {
                if self.options.add_self_loops {
                    let looped = graph.with_self_loops()?;
                    (graph, edge_weight) = (&looped.graph, edge_weight.map(|w| looped.weights(&w)).transpose()?);
                }
                if edge_weight.is_none() && x.dtype() == DType::F64 {
                    edge_weight = Some(Tensor::ones(graph.edges(), DType::F64, x.device())?);
                }
                edge_weight = Some(graph.symmetric_norm(edge_weight.as_ref())?);
            }
            let x = self.lin.forward(x)?;
            let weight = edge_weight.map(|w| w.cast(x.dtype())).transpose()?;
            with_bias(x.sparse_mm(graph.adjacency(), weight.as_ref())?, self.bias.as_ref())
        })
    }
}

/// y plus a bias `[F]` for each row.
pub(super) fn with_bias(y: Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    match bias {
        Some(bias) => y.add(&bias.cast(y.dtype())?),
        None => Ok(y),
    }
}

/// The options of a [`SageConv`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct SageOptions {
    /// The reduction of neighbours.
    pub aggr: IndexReduce,
    /// Whether rows of the result are divided by their norms.
    pub normalize: bool,
    /// Whether a node's own features are added, by a dense layer of their own.
    pub root_weight: bool,
    /// Whether the layer has a bias.
    pub bias: bool,
}

impl Default for SageOptions {
    fn default() -> Self {
        SageOptions { aggr: IndexReduce::Mean, normalize: false, root_weight: true, bias: true }
    }
}

/// `y = lin_l(reduction of neighbours) + lin_r(x)`. Hamilton et al. 2017, arXiv 1706.02216.
#[derive(Debug, Module)]
pub struct SageConv {
    /// The layer of neighbours.
    pub lin_l: Linear,
    /// The layer of a node's own features, without a bias.
    pub lin_r: Option<Linear>,
    #[module(skip)]
    options: SageOptions,
}

impl SageConv {
    /// The layers start as [`Linear::new`] does.
    pub fn new(input: usize, output: usize, init: &Init) -> Result<SageConv> {
        SageConv::with_options(input, output, &SageOptions::default(), init)
    }

    /// [`new`](SageConv::new) with options.
    pub fn with_options(input: usize, output: usize, options: &SageOptions, init: &Init) -> Result<SageConv> {
        let lin_l = match options.bias {
            true => Linear::new(input, output, init)?,
            false => Linear::without_bias(input, output, init)?,
        };
        let lin_r = options.root_weight.then(|| Linear::without_bias(input, output, init)).transpose()?;
        Ok(SageConv { lin_l, lin_r, options: *options })
    }

    /// Maps x `[N, in]` to `[N, out]`. Errors: `Shape`, `Dtype`, `Device`.
    pub fn forward(&self, x: &Tensor, graph: &Graph) -> Result<Tensor> {
        called(self, &[x], || {
            let messages = Messages { reduce: self.options.aggr, ..Messages::default() };
            let mut y = self.lin_l.forward(&x.message_passing(graph.adjacency(), &messages)?)?;
            if let Some(lin_r) = &self.lin_r {
                y = y.add(&lin_r.forward(x)?)?;
            }
            // The least norm is that of PyTorch's `normalize`.
            if self.options.normalize {
                y.div(&y.square()?.sum_keepdim(-1)?.sqrt()?.clamp(Some(1e-12.into()), None)?)
            } else {
                Ok(y)
            }
        })
    }
}

/// `y = nn((1 + eps) x + sum of neighbours)`. Xu et al. 2019, arXiv 1810.00826.
#[derive(Debug, Module)]
pub struct GinConv<M> {
    /// The network.
    pub nn: M,
    /// `[1]`. A leaf if it is trained.
    pub eps: Tensor,
}

impl<M: Module + Forward> GinConv<M> {
    /// With a constant `eps`, in PyTorch Geometric 0.
    pub fn new(nn: M, eps: f64, init: &Init) -> Result<GinConv<M>> {
        let eps = Tensor::full(1, eps, init.parameter_dtype(), init.device())?;
        Ok(GinConv { nn, eps })
    }

    /// With an `eps` that is trained.
    pub fn with_trained_eps(nn: M, eps: f64, init: &Init) -> Result<GinConv<M>> {
        Ok(GinConv { nn, eps: init.constant(1, eps)? })
    }

    /// Maps x `[N, in]` by the network. Errors: `Shape`, `Dtype`, `Device`, and those of the network.
    pub fn forward(&self, x: &Tensor, graph: &Graph) -> Result<Tensor> {
        called(self, &[x], || {
            let sum = x.message_passing(graph.adjacency(), &Messages::default())?;
            let own = self.eps.add_scalar(1.0)?.cast(x.dtype())?.mul(x)?;
            self.nn.forward(&sum.cast(x.dtype())?.add(&own)?)
        })
    }
}
