//! The structure of graphs.

use isograd_core::ops::Csr;
use isograd_core::{DType, Device, Error, Result, Tensor, no_grad};
use std::sync::{Arc, OnceLock};

/// Directed edges between nodes, in the order in which they were given; several graphs may be parts of one. Everything derived from the
/// edges is computed on their device when it is first needed, and kept. Clones share it.
///
/// ```
/// # use isograd_cpu as _;
/// # use isograd_core::{Device, Result, Tensor};
/// # use isograd_nn::Graph;
/// # fn main() -> Result<()> {
/// let cpu = Device::cpu()?;
/// let (src, dst) = (Tensor::from_vec(vec![0i64, 1, 2], 3, &cpu)?, Tensor::from_vec(vec![1i64, 2, 1], 3, &cpu)?);
/// let graph = Graph::from_edges(&src, &dst, 4)?;
/// assert_eq!(graph.in_degrees()?.to_vec::<i64>()?, [0, 2, 1, 0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Graph(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    edges: Csr,
    /// The first node of each graph, and the number of nodes.
    offsets: Vec<usize>,
    batch: OnceLock<Tensor>,
    self_loops: OnceLock<SelfLoops>,
    normalised: OnceLock<Tensor>,
}

/// A graph with one loop at each node in place of its own loops.
#[derive(Clone, Debug)]
pub struct SelfLoops {
    /// Edges that are no loops, in order; then the loops, in the order of nodes.
    pub graph: Graph,
    /// The number of each of these edges in the original graph: i64. It ends before the loops.
    pub kept: Tensor,
    /// The numbers of the original loops, i64, and the node of each.
    loops: [Tensor; 2],
}

impl Graph {
    /// A graph of edges from `src[e]` to `dst[e]`, both `[E]`, i64 or i32. Waits for the device. Errors: `Shape`, `Dtype`, `Device`;
    /// `Index` for a node outside of `0..nodes`.
    pub fn from_edges(src: &Tensor, dst: &Tensor, nodes: usize) -> Result<Graph> {
        Ok(Graph::of(Csr::from_entries(dst, src, [nodes, nodes]).map_err(|e| e.of("from_edges"))?, vec![0, nodes]))
    }

    /// A graph of the entries of a square matrix, which has a row for each target and a column for each source. Errors: `Shape`.
    pub fn from_adjacency(adjacency: Csr) -> Result<Graph> {
        let nodes = adjacency.rows();
        match adjacency.columns() == nodes {
            true => Ok(Graph::of(adjacency, vec![0, nodes])),
            false => Err(Error::shape("from_adjacency", format!("{adjacency:?} is not square"))),
        }
    }

    /// One graph whose parts are these. The nodes and edges of a part follow those of the parts before it. Errors: `Value` for no graph;
    /// `Device`.
    pub fn batch(graphs: &[&Graph]) -> Result<Graph> {
        let op = "batch";
        let Some(first) = graphs.first() else { return Err(Error::value(op, "there are no graphs")) };
        if graphs.iter().any(|g| g.device() != first.device()) {
            return Err(Error::device(op, "the graphs are on several devices"));
        }
        let (mut offsets, mut nodes, mut ends) = (vec![0], 0, [Vec::new(), Vec::new()]);
        for graph in graphs {
            ends[0].push(graph.src()?.add_scalar(nodes as i64)?);
            ends[1].push(graph.dst()?.add_scalar(nodes as i64)?);
            offsets.extend(graph.offsets()[1..].iter().map(|offset| nodes + offset));
            nodes += graph.nodes();
        }
        let [src, dst] = ends.map(|parts| Tensor::concat(&parts.iter().collect::<Vec<_>>(), 0));
        Ok(Graph::of(Csr::from_entries(&dst?, &src?, [nodes, nodes])?, offsets))
    }

    fn of(edges: Csr, offsets: Vec<usize>) -> Graph {
        let (batch, self_loops, normalised) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Graph(Arc::new(Inner { edges, offsets, batch, self_loops, normalised }))
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.0.edges.rows()
    }

    /// The number of edges.
    pub fn edges(&self) -> usize {
        self.0.edges.entries()
    }

    /// The number of graphs of which this one consists.
    pub fn graphs(&self) -> usize {
        self.offsets().len() - 1
    }

    /// The first node of each part, and the number of nodes.
    pub fn offsets(&self) -> &[usize] {
        &self.0.offsets
    }

    /// The device of the edges.
    pub fn device(&self) -> &Device {
        self.0.edges.device()
    }

    /// The adjacency matrix: a row for each target, a column for each source, an entry for each edge.
    pub fn adjacency(&self) -> &Csr {
        &self.0.edges
    }

    /// The source of each edge, i64 `[E]`.
    pub fn src(&self) -> Result<Tensor> {
        self.0.edges.column()
    }

    /// The target of each edge, i64 `[E]`.
    pub fn dst(&self) -> Result<Tensor> {
        self.0.edges.row()
    }

    /// The number of edges that end at each node, i64 `[N]`.
    pub fn in_degrees(&self) -> Result<Tensor> {
        self.0.edges.row_counts()
    }

    /// The number of edges that begin at each node, i64 `[N]`.
    pub fn out_degrees(&self) -> Result<Tensor> {
        self.0.edges.column_counts()
    }

    /// The part to which each node belongs, i64 `[N]`.
    pub fn batch_index(&self) -> Result<&Tensor> {
        kept(&self.0.batch, || {
            let counts = self.offsets().windows(2).map(|ends| ends[1] - ends[0]);
            let all: Vec<i64> =
                counts.enumerate().flat_map(|(graph, n)| std::iter::repeat_n(graph as i64, n)).collect();
            Tensor::from_vec(all, self.nodes(), self.device())
        })
    }

    /// The graph with one loop at each node in place of its own loops. Waits for the device when it is first called.
    pub fn with_self_loops(&self) -> Result<&SelfLoops> {
        kept(&self.0.self_loops, || {
            let (src, dst) = (self.src()?, self.dst()?);
            let is_loop = src.eq(&dst)?;
            let [kept, loops] = [is_loop.logical_not()?, is_loop].map(|mask| Ok(mask.nonzero()?.swap_remove(0)));
            let (kept, loops) = (kept?, loops?);
            let nodes = Tensor::arange(self.nodes(), self.device())?;
            let joined = |t: &Tensor| Tensor::concat(&[&t.index_select(0, &kept)?, &nodes], 0);
            let extents = [self.nodes(), self.nodes()];
            let edges = Csr::from_entries(&joined(&dst)?, &joined(&src)?, extents)?;
            let of_loops = dst.index_select(0, &loops)?;
            Ok(SelfLoops { graph: Graph::of(edges, self.offsets().to_vec()), kept, loops: [loops, of_loops] })
        })
    }

    /// `w[e] / sqrt(d[src] d[dst])` for each edge, where d is the sum of the weights of the edges that end at a node; 0 where it is 0. The
    /// default weights `[E]` are 1, and the result is then f32. Kipf, Welling 2017, arXiv 1609.02907, eq. 2. Errors: `Shape`, `Dtype`.
    pub fn symmetric_norm(&self, weight: Option<&Tensor>) -> Result<Tensor> {
        match weight {
            Some(weight) => self.normalised(weight),
            None => kept(&self.0.normalised, || {
                no_grad(|| self.normalised(&Tensor::ones(self.edges(), DType::F32, self.device())?))
            })
            .cloned(),
        }
    }

    fn normalised(&self, weight: &Tensor) -> Result<Tensor> {
        if weight.dims() != [self.edges()] {
            let message = format!("the weights are {}, expected [{}] for as many edges", weight.shape(), self.edges());
            return Err(Error::shape("symmetric_norm", message));
        }
        let (src, dst) = (self.src()?, self.dst()?);
        let degrees = weight.scatter_sum(&dst, Some(self.nodes()))?;
        let has_edges = degrees.ne_scalar(0.0)?;
        // The root of a degree of 0 is not taken, so that its gradient is 0.
        let roots = has_edges.where_scalar(&has_edges.where_scalar(&degrees, 1.0)?.pow_scalar(-0.5)?, 0.0)?;
        roots.index_select(0, &src)?.mul(weight)?.mul(&roots.index_select(0, &dst)?)
    }
}

impl SelfLoops {
    /// Weights `[E]` of the original edges, for these edges. A new loop gets 1; a node's own loop keeps its weight, the last if there are
    /// several. Errors: `Shape`.
    pub fn weights(&self, weight: &Tensor) -> Result<Tensor> {
        let (nodes, [loops, of_loops]) = (self.graph.nodes(), &self.loops);
        let ones = Tensor::ones(nodes, weight.dtype(), weight.device())?;
        let own = match loops.numel() {
            0 => ones,
            _ => ones.index_put(&[of_loops.into()], &weight.index_select(0, loops)?, isograd_core::ops::Put::Assign)?,
        };
        Tensor::concat(&[&weight.index_select(0, &self.kept)?, &own], 0)
    }

    /// Attributes `[E, A]` of the original edges, for these edges. A loop gets the mean of the edges that end at its node and are no
    /// loops, or 0. Errors: `Shape`.
    pub fn attributes(&self, attributes: &Tensor) -> Result<Tensor> {
        let rest = attributes.index_select(0, &self.kept)?;
        let targets = self.graph.dst()?.narrow(0, 0, self.kept.numel())?;
        Tensor::concat(&[&rest, &rest.scatter_mean(&targets, Some(self.graph.nodes()))?], 0)
    }
}

/// The value that is kept in `place`, or is made now.
fn kept<T>(place: &OnceLock<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(value) = place.get() {
        return Ok(value);
    }
    let value = make()?;
    Ok(place.get_or_init(|| value))
}
