//! Messages of a program's own, and those of networks with a gate.

use super::Graph;
use crate::{Forward, Init, Linear, Module, called};
use isograd_core::ops::{IndexReduce, Message, MessageMlp, Messages};
use isograd_core::{Error, Result, Tensor};
use std::fmt;

/// The features at the ends of edges, and the edges' own.
#[derive(Debug)]
pub struct EdgeEnds<'a> {
    /// Features of each edge's source, `[E, ..]`.
    pub x_j: &'a Tensor,
    /// Features of each edge's target, `[E, ..]`.
    pub x_i: &'a Tensor,
    /// Attributes of edges, `[E, ..]`.
    pub edge_attr: Option<&'a Tensor>,
}

/// Messages that a closure computes for all edges at once, reduced to targets. Messages that [`Tensor::message_passing`] knows are
/// faster: it makes no tensor of all edges.
///
/// ```
/// # use isograd_cpu as _;
/// # use isograd_core::{Device, Result, Tensor, ops::IndexReduce};
/// # use isograd_nn::{Graph, MessagePassing};
/// # fn main() -> Result<()> {
/// # let cpu = Device::cpu()?;
/// # let ends = Tensor::from_vec(vec![0i64, 1], 2, &cpu)?;
/// # let graph = Graph::from_edges(&ends, &ends, 2)?;
/// # let x = Tensor::from_vec(vec![1f32, 2.0, 3.0, 4.0], (2, 2), &cpu)?;
/// // The largest difference to a neighbour.
/// let steps = MessagePassing::new(IndexReduce::Max, |edges| edges.x_j.sub(edges.x_i)?.abs());
/// let y = steps.forward(&x, &graph, None)?;
/// # assert_eq!(y.to_vec::<f32>()?, [0.0; 4]);
/// # Ok(())
/// # }
/// ```
pub struct MessagePassing<F> {
    message: F,
    aggr: IndexReduce,
}

impl<F: Fn(EdgeEnds<'_>) -> Result<Tensor>> MessagePassing<F> {
    /// `message` returns `[E, F]` or `[E, H, F]`.
    pub fn new(aggr: IndexReduce, message: F) -> MessagePassing<F> {
        MessagePassing { message, aggr }
    }

    /// The reduced messages `[N, ..]` for x `[N, ..]`. Errors: those of the closure; `Shape`, `Dtype`, `Device`.
    pub fn forward(&self, x: &Tensor, graph: &Graph, edge_attr: Option<&Tensor>) -> Result<Tensor> {
        let (x_j, x_i) = (x.index_select(0, &graph.src()?)?, x.index_select(0, &graph.dst()?)?);
        (self.message)(EdgeEnds { x_j: &x_j, x_i: &x_i, edge_attr })?.aggregate(graph.adjacency(), self.aggr)
    }
}

impl<F> fmt::Debug for MessagePassing<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessagePassing").field("aggr", &self.aggr).finish_non_exhaustive()
    }
}

/// Sums of messages of a network of two layers, and an update by a gate: `y = (1 - z) x + z m`, where `m[i]` is the sum of
/// `message.1(relu(message.0([x[j], x[i], attributes])))` over edges from j to i, and `z = sigmoid(gate_x(x) + gate_m(m))`.
#[derive(Debug, Module)]
pub struct GatedMessagePassing {
    /// The two layers of a message.
    pub message: [Linear; 2],
    /// The gate's layer of features, with its bias.
    pub gate_x: Linear,
    /// The gate's layer of messages, without a bias.
    pub gate_m: Linear,
}

impl GatedMessagePassing {
    /// For features of width `width` and `edge_dim` attributes of an edge. The layers start as [`Linear::new`] does.
    pub fn new(width: usize, edge_dim: usize, init: &Init) -> Result<GatedMessagePassing> {
        Ok(GatedMessagePassing {
            message: [Linear::new(2 * width + edge_dim, width, init)?, Linear::new(width, width, init)?],
            gate_x: Linear::new(width, width, init)?,
            gate_m: Linear::without_bias(width, width, init)?,
        })
    }

    /// Maps x `[N, width]` to `[N, width]`. `edge_attr` is `[E, edge_dim]`. Errors: `Shape`, `Dtype`, `Device`.
    pub fn forward(&self, x: &Tensor, graph: &Graph, edge_attr: Option<&Tensor>) -> Result<Tensor> {
        called(self, &[x], || {
            let [first, second] = &self.message;
            let message = Message::Mlp(MessageMlp {
                x_dst: None,
                edge_attr,
                w1: &first.weight,
                b1: first.bias.as_ref(),
                w2: &second.weight,
                b2: second.bias.as_ref(),
            });
            let m = x.message_passing(graph.adjacency(), &Messages { message, ..Messages::default() })?;
            if m.shape() != x.shape() {
                let message = format!("messages are {}, expected {} as x", m.shape(), x.shape());
                return Err(Error::shape("gated_message_passing", message));
            }
            let gate = self.gate_x.forward(x)?.add(&self.gate_m.forward(&m)?)?.sigmoid()?.cast(x.dtype())?;
            x.add(&gate.mul(&m.sub(x)?)?)
        })
    }
}
