//! Graphs in host memory: their edges, mini-batches of nodes with sampled neighbours, and folders of files.

mod folder;
mod neighbors;

pub use self::folder::GraphFolder;
pub use self::neighbors::{NeighborSampler, SeedNode, SeedNodes, Subgraph};

use isograd_core::{Error, Result};

/// The edges of a graph by their targets, in host memory: compressed rows, as of [`Csr`](isograd_core::ops::Csr) on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCsr {
    /// The first position of each node's list, and the number of edges.
    row_ptr: Vec<usize>,
    /// The source of the edge at each position.
    col: Vec<i64>,
    /// The number of the edge at each position; none if it is the position.
    edges: Option<Vec<i64>>,
}

impl HostCsr {
    /// The edges that end at node i come from `col[row_ptr[i]..row_ptr[i + 1]]`. Errors: `Value` unless `row_ptr` begins with 0, does not
    /// decrease and ends with the number of edges; `Index` for a source outside of the nodes.
    pub fn new(row_ptr: &[i64], col: Vec<i64>) -> Result<HostCsr> {
        let op = "host_csr";
        let wrong = |message: String| Err(Error::value(op, message));
        match (row_ptr.first(), row_ptr.last()) {
            (Some(0), Some(&end)) if usize::try_from(end) == Ok(col.len()) => {}
            (Some(0), Some(end)) => return wrong(format!("row_ptr ends with {end}, expected {} edges", col.len())),
            (first, _) => return wrong(format!("row_ptr begins with {first:?}, expected 0")),
        }
        if let Some(i) = row_ptr.windows(2).position(|two| two[1] < two[0]) {
            return wrong(format!("row_ptr decreases from {} to {} at node {i}", row_ptr[i], row_ptr[i + 1]));
        }
        check_nodes(op, "source", &col, row_ptr.len() - 1)?;
        Ok(HostCsr { row_ptr: row_ptr.iter().map(|&at| at as usize).collect(), col, edges: None })
    }

    /// Edges from `src[e]` to `dst[e]` between `nodes` nodes. The edges of a node keep their order. Errors: `Shape` unless both ends are as
    /// many; `Index` for a node out of range.
    pub fn from_edges(src: &[i64], dst: &[i64], nodes: usize) -> Result<HostCsr> {
        let op = "host_csr";
        if src.len() != dst.len() {
            return Err(Error::shape(op, format!("{} sources and {} targets, expected as many", src.len(), dst.len())));
        }
        check_nodes(op, "source", src, nodes)?;
        check_nodes(op, "target", dst, nodes)?;
        let mut row_ptr = vec![0; nodes + 1];
        dst.iter().for_each(|&target| row_ptr[target as usize + 1] += 1);
        for node in 0..nodes {
            row_ptr[node + 1] += row_ptr[node];
        }
        let (mut next, mut col, mut edges) = (row_ptr.clone(), vec![0; src.len()], vec![0; src.len()]);
        for (e, (&source, &target)) in src.iter().zip(dst).enumerate() {
            let at = next[target as usize];
            next[target as usize] += 1;
            (col[at], edges[at]) = (source, e as i64);
        }
        Ok(HostCsr { row_ptr, col, edges: Some(edges) })
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.row_ptr.len() - 1
    }

    /// The number of edges.
    pub fn edges(&self) -> usize {
        self.col.len()
    }

    /// The sources of the edges that end at node `node < nodes()`.
    pub fn sources(&self, node: usize) -> &[i64] {
        &self.col[self.row_ptr[node]..self.row_ptr[node + 1]]
    }

    /// The number of the edge at a position.
    fn edge(&self, position: usize) -> i64 {
        self.edges.as_ref().map_or(position as i64, |edges| edges[position])
    }
}

fn check_nodes(op: &'static str, end: &str, found: &[i64], nodes: usize) -> Result<()> {
    match found.iter().position(|&node| usize::try_from(node).map_or(true, |node| node >= nodes)) {
        None => Ok(()),
        Some(e) => Err(Error::index(op, format!("edge {e} has the {end} {}, expected 0..{nodes}", found[e]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_of_a_node_keep_their_order() {
        let graph = HostCsr::from_edges(&[3, 0, 2, 3, 1], &[1, 3, 1, 1, 3], 4).unwrap();
        assert_eq!((graph.nodes(), graph.edges()), (4, 5));
        assert_eq!((0..4).map(|i| graph.sources(i)).collect::<Vec<_>>(), [&[][..], &[3, 2, 3], &[], &[0, 1]]);
        assert_eq!((0..5).map(|k| graph.edge(k)).collect::<Vec<_>>(), [0, 2, 3, 1, 4]);
        let same = HostCsr::new(&[0, 0, 3, 3, 5], vec![3, 2, 3, 0, 1]).unwrap();
        assert_eq!((same.sources(1), same.edge(3)), (graph.sources(1), 3));
    }

    #[test]
    fn edges_that_do_not_fit_are_refused() {
        let errors = [
            HostCsr::from_edges(&[0, 1], &[0], 2),
            HostCsr::from_edges(&[0, 2], &[0, 0], 2),
            HostCsr::from_edges(&[0], &[-1], 2),
            HostCsr::new(&[], Vec::new()),
            HostCsr::new(&[1, 1], vec![0]),
            HostCsr::new(&[0, 2, 1], vec![0]),
            HostCsr::new(&[0, 1], vec![0, 0]),
            HostCsr::new(&[0, 1], vec![1]),
        ]
        .map(|made| made.unwrap_err().to_string());
        for (error, expected) in errors.iter().zip([
            "2 sources and 1 targets",
            "edge 1 has the source 2, expected 0..2",
            "edge 0 has the target -1, expected 0..2",
            "row_ptr begins with None",
            "row_ptr begins with Some(1)",
            "row_ptr decreases from 2 to 1 at node 1",
            "row_ptr ends with 1, expected 2 edges",
            "edge 0 has the source 1, expected 0..1",
        ]) {
            assert!(error.contains(expected), "{error}");
        }
    }
}
