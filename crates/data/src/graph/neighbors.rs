//! Mini-batches of a graph's nodes, each with a sample of its neighbourhood.

use super::HostCsr;
use crate::dataset::no_sample;
use crate::draws::Draws;
use crate::{Collate, Context, Dataset, HostTensor, Staged};
use isograd_core::ops::Csr;
use isograd_core::{Error, Result, RngState, Tensor, Tensors};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Keeps draws of neighbours apart from others of the same seed ("neighb" in ASCII).
const STREAM: u64 = 0x6e65_6967_6862_0000;

/// Draws the neighbours of seeds, of these neighbours, and so on: a number of edges for each node of each step, as PyTorch Geometric's
/// `NeighborLoader`. Hamilton et al. 2017, arXiv 1706.02216, section 3.1.
///
/// A [`Loader`](crate::Loader) over [`seeds`](NeighborSampler::seeds) forms mini-batches on its worker threads. A batch depends on the
/// loader's seed, the epoch and the seeds in it, so that a run that is resumed sees the batches of a run that was not interrupted.
///
/// ```
/// # use isograd_cpu as _;
/// use isograd_core::Device;
/// use isograd_data::Loader;
/// use isograd_data::graph::{HostCsr, NeighborSampler};
///
/// # fn main() -> isograd_core::Result<()> {
/// // A ring of 100 nodes.
/// let graph = HostCsr::from_edges(&Vec::from_iter(0..100), &Vec::from_iter((1..100).chain([0])), 100)?;
/// let sampler = NeighborSampler::new(graph, &[10, 10]);
/// let loader = Loader::new(sampler.seeds(vec![3, 30, 60])?, 2)?.shuffle(42).to(&Device::cpu()?);
/// for batch in loader.epoch(0) {
///     let batch = batch?;
///     // Each seed, its neighbour and the neighbour's neighbour.
///     assert_eq!(batch.nodes.numel(), 3 * batch.seeds);
///     assert_eq!(batch.adjacency()?.entries(), 2 * batch.seeds);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct NeighborSampler {
    graph: Arc<HostCsr>,
    fanouts: Arc<[usize]>,
    has_replacement: bool,
}

impl NeighborSampler {
    /// The number of edges that takes all edges of a node.
    pub const ALL: usize = usize::MAX;

    /// Draws at most `fanouts[0]` edges that end at a seed, at most `fanouts[1]` that end at a node found by these, and so on: a number
    /// for each layer of a network. No edge is drawn twice.
    pub fn new(graph: impl Into<Arc<HostCsr>>, fanouts: &[usize]) -> NeighborSampler {
        NeighborSampler { graph: graph.into(), fanouts: fanouts.into(), has_replacement: false }
    }

    /// Draws the edges of a node independently, so that one may be drawn several times: exactly as many as the number says, if the node
    /// has an edge.
    pub fn with_replacement(self) -> NeighborSampler {
        NeighborSampler { has_replacement: true, ..self }
    }

    /// The graph.
    pub fn graph(&self) -> &HostCsr {
        &self.graph
    }

    /// Nodes as a dataset, of which a loader forms batches. Errors: `Index` for a node out of range.
    pub fn seeds(&self, nodes: Vec<usize>) -> Result<SeedNodes> {
        nodes.iter().try_for_each(|&node| self.check(node))?;
        Ok(SeedNodes { sampler: self.clone(), nodes })
    }

    /// A node as a sample, or a part of a sample. The first sample of a batch decides its draws. Errors: `Index` for a node out of range.
    pub fn seed(&self, node: usize, context: &Context) -> Result<SeedNode> {
        self.check(node)?;
        Ok(SeedNode { sampler: self.clone(), node, key: context.key() })
    }

    fn check(&self, node: usize) -> Result<()> {
        match node < self.graph.nodes() {
            true => Ok(()),
            false => {
                let message = format!("there is no node {node}, expected one in 0..{}", self.graph.nodes());
                Err(Error::index("neighbor_sampler", message))
            }
        }
    }

    /// The part of the graph around seeds.
    fn around(&self, seeds: impl Iterator<Item = usize>, mut draws: Draws) -> HostSubgraph {
        let nodes: Vec<i64> = seeds.map(|node| node as i64).collect();
        let mut part = HostSubgraph { row_ptr: vec![0], col: Vec::new(), nodes, edges: Vec::new() };
        let mut numbers = HashMap::new();
        for (number, &node) in part.nodes.iter().enumerate() {
            numbers.entry(node).or_insert(number as i64);
        }
        let (mut first, mut chosen) = (0, Vec::new());
        for &fanout in self.fanouts.iter() {
            let end = part.nodes.len();
            for target in first..end {
                let start = self.graph.row_ptr[part.nodes[target] as usize];
                let degree = self.graph.sources(part.nodes[target] as usize).len();
                self.choose(degree, fanout, &mut draws, &mut chosen);
                for position in chosen.iter().map(|k| start + k) {
                    let source = self.graph.col[position];
                    let number = match numbers.entry(source) {
                        Entry::Occupied(known) => *known.get(),
                        Entry::Vacant(new) => {
                            part.nodes.push(source);
                            *new.insert(part.nodes.len() as i64 - 1)
                        }
                    };
                    part.col.push(number);
                    part.edges.push(self.graph.edge(position));
                }
                part.row_ptr.push(part.col.len() as i64);
            }
            first = end;
        }
        // The nodes of the last step have no edges.
        part.row_ptr.resize(part.nodes.len() + 1, part.col.len() as i64);
        part
    }

    /// Some of the numbers below `degree`, in ascending order. Without replacement by Floyd's method: Bentley, Floyd 1987, "A sample of
    /// brilliance", Communications of the ACM 30 (9).
    fn choose(&self, degree: usize, fanout: usize, draws: &mut Draws, chosen: &mut Vec<usize>) {
        chosen.clear();
        if degree == 0 {
            return;
        }
        if fanout == NeighborSampler::ALL || (!self.has_replacement && fanout >= degree) {
            chosen.extend(0..degree);
        } else if self.has_replacement {
            chosen.extend((0..fanout).map(|_| draws.below(degree as u64) as usize));
            chosen.sort_unstable();
        } else {
            for last in degree - fanout..degree {
                let drawn = draws.below(last as u64 + 1) as usize;
                // `last` is above all that were drawn before.
                match chosen.binary_search(&drawn) {
                    Ok(_) => chosen.push(last),
                    Err(at) => chosen.insert(at, drawn),
                }
            }
        }
    }
}

/// A part of a graph in host memory.
struct HostSubgraph {
    row_ptr: Vec<i64>,
    col: Vec<i64>,
    nodes: Vec<i64>,
    edges: Vec<i64>,
}

/// A part of a graph around some seeds: its edges as compressed rows, with nodes numbered within the part. The seeds are the first nodes;
/// a seed that a batch has twice is there twice.
#[derive(Clone, Debug)]
pub struct Subgraph {
    /// The first edge that ends at each node, and the number of edges: i64 `[N + 1]`.
    pub row_ptr: Tensor,
    /// The source of each edge, i64 `[E]`.
    pub col: Tensor,
    /// The number in the whole graph of each node, i64 `[N]`.
    pub nodes: Tensor,
    /// The number in the whole graph of each edge, i64 `[E]`.
    pub edges: Tensor,
    /// The number of seeds.
    pub seeds: usize,
}

impl Subgraph {
    /// The edges as a sparse matrix, with a row for each target and a column for each source. Waits for the device.
    pub fn adjacency(&self) -> Result<Csr> {
        Csr::new(&self.row_ptr, &self.col, self.nodes.numel())
    }
}

impl Tensors for Subgraph {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Subgraph> {
        Ok(Subgraph {
            row_ptr: self.row_ptr.map(f)?,
            col: self.col.map(f)?,
            nodes: self.nodes.map(f)?,
            edges: self.edges.map(f)?,
            seeds: self.seeds,
        })
    }

    fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Tensor)) {
        [&self.row_ptr, &self.col, &self.nodes, &self.edges].into_iter().for_each(f);
    }
}

/// A node of a mini-batch. A batch of these is a [`Subgraph`].
#[derive(Clone, Debug)]
pub struct SeedNode {
    sampler: NeighborSampler,
    node: usize,
    /// Decides the draws of a batch that begins with this sample.
    key: u64,
}

impl Collate for SeedNode {
    type Batch = Subgraph;

    /// Errors: `Value` without samples.
    fn collate(items: Vec<SeedNode>) -> Result<Staged<Subgraph>> {
        let Some(first) = items.first() else { return Err(Error::value("neighbor_sampler", "a batch has no seeds")) };
        let draws = Draws::new(RngState { seed: first.key, offset: 0, stream: STREAM });
        let part = first.sampler.around(items.iter().map(|item| item.node), draws);
        let seeds = items.len();
        let [row_ptr, col, nodes, edges] =
            [part.row_ptr, part.col, part.nodes, part.edges].map(|values| HostTensor::vector(&values));
        Ok(Staged::new(move |device| {
            let (row_ptr, col) = (row_ptr.to(device)?, col.to(device)?);
            Ok(Subgraph { row_ptr, col, nodes: nodes.to(device)?, edges: edges.to(device)?, seeds })
        }))
    }
}

/// Nodes to learn from or to predict: the result of [`NeighborSampler::seeds`].
#[derive(Clone, Debug)]
pub struct SeedNodes {
    sampler: NeighborSampler,
    nodes: Vec<usize>,
}

impl Dataset for SeedNodes {
    type Item = SeedNode;

    fn len(&self) -> usize {
        self.nodes.len()
    }

    fn get(&self, index: usize, context: &Context) -> Result<SeedNode> {
        let node = self.nodes.get(index).ok_or_else(|| no_sample("seed_nodes", index, self.nodes.len()))?;
        self.sampler.seed(*node, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Loader;
    use isograd_core::Device;
    use isograd_cpu as _;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// A graph in which edges repeat and nodes have loops.
    fn random(nodes: usize, edges: usize, seed: u64) -> HostCsr {
        let mut draws = Draws::new(RngState { seed, offset: 0, stream: 0 });
        let mut ends = || Vec::from_iter((0..edges).map(|_| draws.below(nodes as u64) as i64));
        HostCsr::from_edges(&ends(), &ends(), nodes).unwrap()
    }

    fn part(sampler: &NeighborSampler, seeds: &[usize], key: u64) -> HostSubgraph {
        sampler.around(seeds.iter().copied(), Draws::new(RngState { seed: key, offset: 0, stream: STREAM }))
    }

    /// All tensors of the batches of an epoch, from batch `first` on.
    fn batches(loader: &Loader<Subgraph>, epoch: u64, first: usize) -> Vec<[Vec<i64>; 4]> {
        let values = |batch: Result<Subgraph>| {
            let batch = batch.unwrap();
            [&batch.row_ptr, &batch.col, &batch.nodes, &batch.edges].map(|t| t.to_vec::<i64>().unwrap())
        };
        loader.epoch_from(epoch, first).map(values).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_edge_is_one_of_the_graph(
            nodes in 1usize..30,
            edges in 0usize..120,
            fanouts in prop::collection::vec(prop::sample::select(vec![0, 1, 3, NeighborSampler::ALL]), 0..4),
            has_replacement: bool,
            seed: u64,
        ) {
            let graph = random(nodes, edges, seed);
            let sampler = NeighborSampler::new(graph.clone(), &fanouts);
            let sampler = if has_replacement { sampler.with_replacement() } else { sampler };
            let seeds = [seed as usize % nodes, nodes / 2, seed as usize % nodes];
            let found = part(&sampler, &seeds, seed);
            prop_assert_eq!(&found.nodes[..3], &seeds.map(|node| node as i64));
            prop_assert_eq!(found.row_ptr.len(), found.nodes.len() + 1);
            // Beside seeds, no node is there twice.
            let others: HashSet<i64> = found.nodes.iter().copied().collect();
            let repeated = seeds.len() - seeds.iter().collect::<HashSet<_>>().len();
            prop_assert_eq!(others.len(), found.nodes.len() - repeated);
            let (mut first, mut end) = (0, 3);
            for &fanout in &fanouts {
                let after = found.col[..found.row_ptr[end] as usize].iter().map(|&n| n as usize + 1).max().unwrap_or(0);
                for target in first..end {
                    let of = found.row_ptr[target] as usize..found.row_ptr[target + 1] as usize;
                    let sources = graph.sources(found.nodes[target] as usize);
                    let expected = match (sources.len(), has_replacement && fanout != NeighborSampler::ALL) {
                        (0, _) => 0,
                        (_, true) => fanout,
                        (degree, false) => fanout.min(degree),
                    };
                    prop_assert_eq!(of.len(), expected);
                    let numbers = &found.edges[of.clone()];
                    prop_assert!(numbers.windows(2).all(|two| two[0] < two[1] || (has_replacement && two[0] == two[1])));
                    for k in of {
                        let position = (0..edges).find(|&p| graph.edge(p) == found.edges[k]).unwrap();
                        let node = found.nodes[target] as usize;
                        prop_assert!((graph.row_ptr[node]..graph.row_ptr[node + 1]).contains(&position));
                        prop_assert_eq!(graph.col[position], found.nodes[found.col[k] as usize]);
                    }
                }
                (first, end) = (end, end.max(after));
            }
            prop_assert_eq!(end, found.nodes.len());
            prop_assert!(found.row_ptr[first..].iter().all(|&at| at as usize == found.col.len()));
        }
    }

    #[test]
    fn all_neighbours_of_two_steps_are_found() {
        // 0 <- 1 <- 2 <- 3, and 0 <- 4.
        let graph = HostCsr::from_edges(&[1, 2, 3, 4], &[0, 1, 2, 0], 5).unwrap();
        let found = part(&NeighborSampler::new(graph, &[NeighborSampler::ALL; 2]), &[0], 7);
        assert_eq!((found.nodes, found.row_ptr), (vec![0, 1, 4, 2], vec![0, 2, 3, 3, 3]));
        assert_eq!((found.col, found.edges), (vec![1, 2, 3], vec![0, 3, 1]));
    }

    #[test]
    fn neighbours_are_equally_likely() {
        // Nodes 1 to 5 have an edge to node 0.
        let graph = Arc::new(HostCsr::from_edges(&[1, 2, 3, 4, 5], &[0; 5], 6).unwrap());
        let sampler = NeighborSampler::new(graph, &[2]);
        for (sampler, pairs) in [(sampler.clone(), 10), (sampler.with_replacement(), 15)] {
            let (mut counts, mut drawn) = ([0; 5], HashMap::new());
            for key in 0..5000 {
                let edges = part(&sampler, &[0], key).edges;
                edges.iter().for_each(|&e| counts[e as usize] += 1);
                *drawn.entry(edges).or_insert(0) += 1;
            }
            // Each edge 2,000 times; the deviation is at most 40.
            assert!(counts.iter().all(|count| (1800..2200).contains(count)), "{counts:?}");
            // Without replacement each pair 500 times, with a deviation of 21; with it, two edges 400 times and one edge twice 200 times.
            assert_eq!(drawn.len(), pairs);
            assert!(drawn.values().all(|count| (140..600).contains(count)), "{drawn:?}");
        }
    }

    #[test]
    fn batches_are_the_same_when_a_run_is_resumed_and_for_every_number_of_workers() {
        let sampler = NeighborSampler::new(random(200, 3000, 1), &[4, 3]);
        let cpu = Device::cpu().unwrap();
        let loader = Loader::new(sampler.seeds((0..100).collect()).unwrap(), 16).unwrap().shuffle(5).to(&cpu);
        let whole = batches(&loader, 2, 0);
        assert_eq!(whole.len(), 7);
        assert_eq!(batches(&loader, 2, 3), whole[3..]);
        assert_eq!(batches(&loader.clone().workers(3).unwrap(), 2, 0), whole);
        assert_ne!(batches(&loader, 3, 0), whole);
        assert_ne!(batches(&loader.clone().seed(6), 2, 0), whole);
        // The same seeds have other neighbours in another epoch.
        let ordered = Loader::new(sampler.seeds((0..100).collect()).unwrap(), 100).unwrap().to(&cpu);
        assert_ne!(batches(&ordered, 0, 0), batches(&ordered, 1, 0));
    }

    #[test]
    fn nodes_out_of_range_are_refused() {
        let sampler = NeighborSampler::new(HostCsr::from_edges(&[], &[], 2).unwrap(), &[1]);
        let error = sampler.seeds(vec![0, 2]).unwrap_err().to_string();
        assert_eq!(error, "neighbor_sampler: Index: there is no node 2, expected one in 0..2");
        assert!(<SeedNode as Collate>::collate(Vec::new()).is_err());
    }
}
