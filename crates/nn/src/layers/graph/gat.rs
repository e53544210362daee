//! Attention over the neighbours of a node.

use super::Graph;
use super::convolution::with_bias;
use crate::{Forward, Gain, Init, Linear, Mode, Module, called};
use isograd_core::ops::Messages;
use isograd_core::{Error, Result, Rng, Tensor};

/// The combination of heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum GatHeads {
    /// One after the other: `[N, heads out]`.
    #[default]
    Concat,
    /// Their mean: `[N, out]`.
    Mean,
}

/// The options of a [`GatConv`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct GatOptions {
    /// The number of heads.
    pub heads: usize,
    /// The combination of heads.
    pub combine: GatHeads,
    /// The slope of the leaky relu of scores below 0.
    pub negative_slope: f64,
    /// The probability with which a weight of the attention becomes 0 in training.
    pub dropout: f64,
    /// Whether each node gets a loop in place of its own. Its attributes are the mean of those of the edges that end at the node.
    pub add_self_loops: bool,
    /// The number of attributes of an edge, 0 for none.
    pub edge_dim: usize,
    /// Whether the layer has a bias.
    pub bias: bool,
}

impl Default for GatOptions {
    fn default() -> Self {
        GatOptions {
            heads: 1,
            combine: GatHeads::Concat,
            negative_slope: 0.2,
            dropout: 0.0,
            add_self_loops: true,
            edge_dim: 0,
            bias: true,
        }
    }
}

/// The attention of nodes to their neighbours: `y[i] = sum of a[e] lin(x)[j]` over edges e from j to i, where a is the softmax over the
/// edges of i of `leaky_relu(att_src . lin(x)[j] + att_dst . lin(x)[i] + att_edge . lin_edge(attributes of e))`, for each head.
/// Velickovic et al. 2018, arXiv 1710.10903.
#[derive(Debug, Module)]
pub struct GatConv {
    /// The dense layer to all heads, without a bias.
    pub lin: Linear,
    /// `[1, heads, out]`.
    pub att_src: Tensor,
    /// `[1, heads, out]`.
    pub att_dst: Tensor,
    /// The attention to edges.
    #[module(flatten)]
    pub of_edges: Option<GatEdges>,
    /// `[heads out]`, or `[out]` for means of heads.
    pub bias: Option<Tensor>,
    #[module(skip)]
    output: usize,
    #[module(skip)]
    options: GatOptions,
    #[module(skip)]
    rng: Rng,
    mode: Mode,
}

/// The attention of a [`GatConv`] to edges.
#[derive(Debug, Module)]
pub struct GatEdges {
    /// The dense layer to all heads, without a bias.
    pub lin_edge: Linear,
    /// `[1, heads, out]`.
    pub att_edge: Tensor,
}

impl GatConv {
    /// Weights are uniform with Glorot's variance, the bias 0. Errors: `Attr` without heads.
    pub fn new(input: usize, output: usize, init: &Init) -> Result<GatConv> {
        GatConv::with_options(input, output, &GatOptions::default(), init)
    }

    /// [`new`](GatConv::new) with options.
    pub fn with_options(input: usize, output: usize, options: &GatOptions, init: &Init) -> Result<GatConv> {
        let heads = options.heads;
        if heads == 0 {
            return Err(Error::attr("gat_conv", "heads is 0, expected 1 or more"));
        }
        let lin = |input: usize| -> Result<Linear> {
            Ok(Linear { weight: init.xavier_uniform((heads * output, input), Gain::Linear)?, bias: None })
        };
        let bound = (6.0 / (heads + output) as f64).sqrt();
        let attention = || init.uniform((1, heads, output), -bound, bound);
        let width = if options.combine == GatHeads::Concat { heads * output } else { output };
        Ok(GatConv {
            lin: lin(input)?,
            att_src: attention()?,
            att_dst: attention()?,
            of_edges: match options.edge_dim {
                0 => None,
                edge_dim => Some(GatEdges { lin_edge: lin(edge_dim)?, att_edge: attention()? }),
            },
            bias: options.bias.then(|| init.zeros(width)).transpose()?,
            output,
            options: *options,
            rng: init.rng().clone(),
            mode: Mode::default(),
        })
    }

    /// Maps x `[N, in]` to `[N, heads out]`, or `[N, out]` for means of heads. `edge_attr` is `[E, edge_dim]`. Errors: `Shape`, `Dtype`,
    /// `Device`; `Value` for attributes without `edge_dim`, or none with it.
    pub fn forward(&self, x: &Tensor, graph: &Graph, edge_attr: Option<&Tensor>) -> Result<Tensor> {
        called(self, &[x], || {
            if edge_attr.is_some() != self.of_edges.is_some() {
                let message =
                    format!("edge_dim is {}, attributes are {:?}", self.options.edge_dim, edge_attr.map(Tensor::shape));
                return Err(Error::value("gat_conv", message));
            }
            let (mut graph, mut edge_attr) = (graph, edge_attr.cloned());
            if self.options.add_self_loops {
                let looped = graph.with_self_loops()?;
                (graph, edge_attr) = (&looped.graph, edge_attr.map(|a| looped.attributes(&a)).transpose()?);
            }
            let heads = |t: &Tensor| t.reshape((t.dims()[0], self.options.heads, self.output));
            let x = heads(&self.lin.forward(x)?)?;
            let score = |x: &Tensor, by: &Tensor| x.mul(&by.cast(x.dtype())?)?.sum(-1);
            let mut scores = score(&x, &self.att_src)?.index_select(0, &graph.src()?)?;
            scores = scores.add(&score(&x, &self.att_dst)?.index_select(0, &graph.dst()?)?)?;
            if let (Some(GatEdges { lin_edge: lin, att_edge: by }), Some(edge_attr)) = (&self.of_edges, edge_attr) {
                scores = scores.add(&score(&heads(&lin.forward(&edge_attr)?)?, by)?)?;
            }
            let mut shares = scores.leaky_relu(self.options.negative_slope)?.edge_softmax(graph.adjacency())?;
            if self.mode.is_training() && self.options.dropout > 0.0 {
                shares = shares.dropout(self.options.dropout, &self.rng)?;
            }
            let shares = shares.cast(x.dtype())?;
            let y =
                x.message_passing(graph.adjacency(), &Messages { edge_weight: Some(&shares), ..Messages::default() })?;
            let y = match self.options.combine {
                GatHeads::Concat => y.reshape((graph.nodes(), self.options.heads * self.output))?,
                GatHeads::Mean => y.mean(1)?,
            };
            with_bias(y, self.bias.as_ref())
        })
    }
}
