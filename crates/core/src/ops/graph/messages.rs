//! Messages along the edges of a graph.

use crate::check::{check_float, check_same, describe};
use crate::ops::indexing::segment::IndexReduce;
use crate::ops::sparse::{Csr, reduce_terms};
use crate::{Error, Result, Tensor, autocast, no_autocast};

/// The options of [`Tensor::message_passing`]. The default copies features and sums them.
#[derive(Clone, Copy, Debug)]
pub struct Messages<'a> {
    /// The message of an edge.
    pub message: Message<'a>,
    /// The factor of each message, `[E]`; for x `[N, H, F]` it is `[E, H]`.
    pub edge_weight: Option<&'a Tensor>,
    /// The reduction of the messages of a target. A target without edges gets 0. Equal maxima share the gradient.
    pub reduce: IndexReduce,
}

impl Default for Messages<'_> {
    fn default() -> Self {
        Messages { message: Message::Copy, edge_weight: None, reduce: IndexReduce::Sum }
    }
}

/// The message of an edge from source s to target d, before it is multiplied with the edge's weight.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// `x[s]`.
    Copy,
    /// `x[s] + a`, for the edge's attributes a: `[E, F]`, or `[E, H, F]` for x `[N, H, F]`.
    Add(&'a Tensor),
    /// A network of two layers.
    Mlp(MessageMlp<'a>),
}

/// `w2 relu(w1 [x[s], x_dst[d], a] + b1) + b2`. The first layer is computed for each node and for each edge's attributes, and added up
/// for each edge. For a sum or a mean the second layer is computed for each target.
#[derive(Clone, Copy, Debug)]
pub struct MessageMlp<'a> {
    /// Features of targets `[N, F]`, by default x.
    pub x_dst: Option<&'a Tensor>,
    /// Attributes of edges, `[E, A]`.
    pub edge_attr: Option<&'a Tensor>,
    /// `[M, 2 F + A]`.
    pub w1: &'a Tensor,
    /// `[M]`.
    pub b1: Option<&'a Tensor>,
    /// `[M, M]`.
    pub w2: &'a Tensor,
    /// `[M]`.
    pub b2: Option<&'a Tensor>,
}

/// # Messages on graphs
impl Tensor {
    /// Sends a message along each edge of a graph, and reduces the messages of each target: y `[targets, F]` from features of sources x
    /// `[sources, F]`, or `[targets, H, F]` from `[sources, H, F]`; `[targets, M]` with [`Message::Mlp`]. The pattern has a row for each
    /// target and a column for each source. Float dtypes; sums are in the accumulation dtype, in the order of edges. Gilmer et al. 2017,
    /// arXiv 1704.01212. Errors: `Shape`, `Dtype`, `Device`.
    pub fn message_passing(&self, graph: &Csr, messages: &Messages<'_>) -> Result<Tensor> {
        let op = "message_passing";
        if let Message::Mlp(mlp) = messages.message {
            return by_mlp(op, self, graph, mlp, messages);
        }
        let attribute = if let Message::Add(attribute) = messages.message { Some(attribute) } else { None };
        let operands: Vec<&Tensor> = [self].into_iter().chain(messages.edge_weight).chain(attribute).collect();
        if let Some(low) = autocast::low_each(&operands)? {
            let mut rest = low.iter();
            let x = rest.next().unwrap_or(self);
            let edge_weight = messages.edge_weight.and_then(|_| rest.next());
            let message = rest.next().map_or(Message::Copy, Message::Add);
            return no_autocast(|| x.message_passing(graph, &Messages { message, edge_weight, ..*messages }));
        }
        reduce_terms(op, graph, self, messages.edge_weight, attribute, messages.reduce)
    }

    /// Reduces messages of edges `[E, F]` or `[E, H, F]`, in the order of edges, to the targets of a graph: `[targets, ..]`, 0 for a
    /// target without edges. Float dtypes. Errors: `Shape`, `Dtype`, `Device`.
    pub fn aggregate(&self, graph: &Csr, reduce: IndexReduce) -> Result<Tensor> {
        reduce_terms("aggregate", graph.to_rows()?, self, None, None, reduce)
    }
}

/// Messages of a network, in the accumulation dtype.
fn by_mlp(op: &'static str, x: &Tensor, graph: &Csr, mlp: MessageMlp<'_>, messages: &Messages<'_>) -> Result<Tensor> {
    check_mlp(op, x, graph, &mlp, messages.edge_weight)?;
    let acc = x.dtype().acc();
    let wide = |t: &Tensor| t.cast(acc)?.contiguous();
    let optional = |t: Option<&Tensor>| t.map(wide).transpose();
    let y = no_autocast(|| -> Result<Tensor> {
        let (features, wide_x) = (x.dims()[1], wide(x)?);
        let of_targets = optional(mlp.x_dst)?.unwrap_or_else(|| wide_x.clone());
        let w1 = mlp.w1.cast(acc)?;
        let part = |start, width| w1.narrow(1, start, width)?.contiguous();
        let from_sources = wide_x.linear(&part(0, features)?, None)?;
        let from_targets = of_targets.linear(&part(features, features)?, optional(mlp.b1)?.as_ref())?;
        let mut sum = from_sources.index_select(0, graph.column_index())?;
        sum = sum.add(&from_targets.index_select(0, graph.row_index()?)?)?;
        if let Some(attributes) = optional(mlp.edge_attr)? {
            sum = sum.add(&attributes.linear(&part(2 * features, attributes.dims()[1])?, None)?)?;
        }
        let (hidden, w2, b2) = (sum.relu()?, wide(mlp.w2)?, optional(mlp.b2)?);
        let weight = optional(messages.edge_weight)?;
        let reduced = |t: &Tensor| reduce_terms(op, graph.to_rows()?, t, weight.as_ref(), None, messages.reduce);
        if messages.reduce == IndexReduce::Max {
            return reduced(&hidden.linear(&w2, b2.as_ref())?);
        }
        // The second layer is linear: it maps the reduced rows of targets, which are fewer than edges. Its bias is multiplied with the
        // reduced weights.
        let mut y = reduced(&hidden)?.linear(&w2, None)?;
        if let Some(b2) = b2 {
            let ones = Tensor::ones((graph.entries(), 1), acc, x.device())?;
            y = y.add(&reduced(&ones)?.mul(&b2)?)?;
        }
        // Infinite parameters do not reach a target without edges.
        graph.row_counts()?.ne_scalar(0)?.unsqueeze(1)?.where_scalar(&y, 0.0)
    });
    y.map_err(|e| e.of(op))?.cast(x.dtype())
}

fn check_mlp(
    op: &'static str,
    x: &Tensor,
    graph: &Csr,
    mlp: &MessageMlp<'_>,
    edge_weight: Option<&Tensor>,
) -> Result<()> {
    let MessageMlp { x_dst, edge_attr, w1, b1, w2, b2 } = *mlp;
    let all: Vec<&Tensor> =
        [x, w1, w2].into_iter().chain(x_dst).chain(edge_attr).chain(b1).chain(b2).chain(edge_weight).collect();
    check_float(op, x)?;
    if autocast::current().is_none() {
        check_same(op, &all)?;
    }
    if x.device() != graph.device() {
        return Err(Error::device(op, format!("{graph:?} and {} are on two devices", describe(&all))));
    }
    let fits = x.rank() == 2 && w1.rank() == 2 && edge_attr.is_none_or(|a| a.rank() == 2) && {
        let (features, m) = (x.dims()[1], w1.dims()[0]);
        let width = 2 * features + edge_attr.map_or(0, |a| a.dims()[1]);
        x.dims()[0] == graph.columns()
            && x_dst.unwrap_or(x).dims() == [graph.rows(), features]
            && edge_attr.is_none_or(|a| a.dims()[0] == graph.entries())
            && w1.dims()[1] == width
            && w2.dims() == [m, m]
            && b1.into_iter().chain(b2).all(|b| b.dims() == [m])
            && edge_weight.is_none_or(|w| w.dims() == [graph.entries()])
    };
    if fits {
        return Ok(());
    }
    let expected = "expected x [sources, F], x_dst [targets, F], edge_attr [E, A], w1 [M, 2 F + A], w2 [M, M], biases [M] and weights [E]";
    Err(Error::shape(op, format!("{graph:?} and {}: {expected}", describe(&all))))
}
