//! Spirals around the vertices of a mesh.

use super::TriangleMesh;
use crate::HostTensor;
use isograd_core::{Error, Result};
use std::collections::HashMap;

impl TriangleMesh {
    /// A spiral around each vertex, `[V, length]` (i64), as [`spiral_conv`](isograd_core::Tensor::spiral_conv) takes it: the vertex itself,
    /// its neighbours in the order of the triangles' corners, and then ring after ring. The first neighbour is that with the lowest
    /// number, and at a boundary the one from which all others follow. Of a spiral, every vertex at a distance of `dilation` is taken.
    /// A spiral that runs out of vertices is filled with -1.
    ///
    /// Errors: `Attr` for a dilation of 0; `Value` for triangles that have an edge in the same direction: their corners are in different
    /// orders, or there are more than two. Gong et al. 2019, arXiv:1911.05856.
    pub fn spirals(&self, length: usize, dilation: usize) -> Result<HostTensor> {
        if dilation == 0 {
            return Err(Error::attr("spirals", "dilation is 0, expected 1 or more"));
        }
        let rings = rings(self)?;
        let count = length.saturating_sub(1).saturating_mul(dilation).saturating_add(usize::from(length > 0));
        let mut all = Vec::with_capacity(rings.len().saturating_mul(length));
        let mut marks = Marks { spiral: vec![NEVER; rings.len()], ring: vec![NEVER; rings.len()], rounds: 0 };
        for v in 0..rings.len() {
            let spiral = spiral(&rings, v, count, &mut marks);
            let taken = spiral.iter().take(count).step_by(dilation).map(|&v| i64::from(v));
            all.extend(taken.chain(std::iter::repeat(-1)).take(length));
        }
        HostTensor::new(&all, [rings.len(), length])
    }
}

const NEVER: usize = usize::MAX;

/// The spiral to which a vertex was added last, and the ring that had it last.
struct Marks {
    spiral: Vec<usize>,
    ring: Vec<usize>,
    rounds: usize,
}

/// The neighbours of each vertex, in the order of corners. At a vertex where several fans of triangles meet, fan follows fan.
fn rings(mesh: &TriangleMesh) -> Result<Vec<Vec<u32>>> {
    // For each vertex, the neighbour that follows a neighbour.
    let mut next: Vec<HashMap<u32, u32>> = vec![HashMap::new(); mesh.vertices().len()];
    for &[a, b, c] in mesh.triangles() {
        for [v, from, to] in [[a, b, c], [b, c, a], [c, a, b]] {
            if next[v as usize].insert(from, to).is_some() {
                let message = format!("two triangles have the edge from vertex {v} to {from} in this direction");
                return Err(Error::value("spirals", message));
            }
        }
    }
    Ok(next.into_iter().map(ring).collect())
}

/// All neighbours, from those that follow each.
fn ring(mut next: HashMap<u32, u32>) -> Vec<u32> {
    let mut ring = Vec::new();
    while !next.is_empty() {
        // An open fan begins with a neighbour that follows none.
        let is_first = |v: &&u32| !next.values().any(|to| to == *v);
        let Some(&first) = next.keys().filter(is_first).min().or(next.keys().min()) else { break };
        let mut at = Some(first);
        while let Some(v) = at {
            ring.push(v);
            // A closed fan ends where it began.
            at = next.remove(&v).filter(|to| *to != first);
        }
    }
    ring
}

/// A vertex and the rings around it: at least `count` vertices, if so many can be reached.
fn spiral(rings: &[Vec<u32>], v: usize, count: usize, marks: &mut Marks) -> Vec<u32> {
    let mut spiral = vec![v as u32];
    marks.spiral[v] = v;
    let mut start = spiral.len();
    for &u in &rings[v] {
        marks.spiral[u as usize] = v;
        spiral.push(u);
    }
    while spiral.len() < count && start < spiral.len() {
        let (first, end) = (start, spiral.len());
        marks.rounds += 1;
        spiral[first..end].iter().for_each(|&u| marks.ring[u as usize] = marks.rounds);
        start = end;
        for i in first..end {
            // The new neighbours, from the first one on that is in this ring.
            let around = &rings[spiral[i] as usize];
            let turn = around.iter().position(|&u| marks.ring[u as usize] == marks.rounds).unwrap_or(0);
            for &u in around[turn..].iter().chain(&around[..turn]) {
                if marks.spiral[u as usize] != v {
                    marks.spiral[u as usize] = v;
                    spiral.push(u);
                }
            }
        }
    }
    spiral
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A grid of `n` by `n` vertices in a plane, with two triangles in each square.
    fn grid(n: u32) -> TriangleMesh {
        let vertices = (0..n * n).map(|i| [(i % n) as f32, (i / n) as f32, 0.0]).collect();
        let squares = (0..(n - 1) * (n - 1)).map(|i| i / (n - 1) * n + i % (n - 1));
        let triangles = squares.flat_map(|a| [[a, a + 1, a + n + 1], [a, a + n + 1, a + n]]).collect();
        TriangleMesh::new(vertices, triangles).unwrap()
    }

    fn of(mesh: &TriangleMesh, length: usize, dilation: usize) -> Vec<Vec<i64>> {
        let all = mesh.spirals(length, dilation).unwrap().to_vec::<i64>().unwrap();
        all.chunks(length).map(<[i64]>::to_vec).collect()
    }

    #[test]
    fn rings_go_round_and_follow_each_other() {
        // 20 21 22 23 24
        // 15 16 17 18 19
        // 10 11 12 13 14
        //  5  6  7  8  9
        //  0  1  2  3  4, with diagonals from 0 to 6
        let spirals = of(&grid(5), 19, 1);
        assert_eq!(spirals[12][..7], [12, 6, 7, 13, 18, 17, 11]);
        let mut second = spirals[12][7..].to_vec();
        // Round vertex 6, from its neighbour 7 on: 12 and 11 are in the first ring.
        assert_eq!(second[..3], [5, 0, 1]);
        second.sort();
        assert_eq!(second, [0, 1, 2, 5, 8, 10, 14, 16, 19, 22, 23, 24]);
    }

    #[test]
    fn a_spiral_at_a_boundary_begins_at_the_end_of_its_fan() {
        let spirals = of(&grid(3), 6, 1);
        assert_eq!(spirals[1], [1, 2, 5, 4, 0, 8]);
    }

    #[test]
    fn what_cannot_be_reached_is_absent() {
        let alone = TriangleMesh::new(vec![[0.0; 3]; 4], vec![[0, 1, 2]]).unwrap();
        assert_eq!(of(&alone, 5, 1), [[0, 1, 2, -1, -1], [1, 2, 0, -1, -1], [2, 0, 1, -1, -1], [3, -1, -1, -1, -1]]);
        assert_eq!(alone.spirals(0, 1).unwrap().dims(), [4, 0]);
    }

    #[test]
    fn dilation_takes_vertices_at_a_distance() {
        let (long, taken) = (of(&grid(5), 9, 1), of(&grid(5), 5, 2));
        for (long, taken) in long.iter().zip(taken) {
            assert_eq!(taken, long.iter().step_by(2).copied().collect::<Vec<_>>());
        }
    }

    #[test]
    fn fans_that_meet_at_a_vertex_follow_each_other() {
        let two = TriangleMesh::new(vec![[0.0; 3]; 5], vec![[0, 3, 4], [0, 1, 2]]).unwrap();
        assert_eq!(of(&two, 5, 1)[0], [0, 1, 2, 3, 4]);
    }

    #[test]
    fn triangles_with_corners_in_different_orders_are_refused() {
        let flipped = TriangleMesh::new(vec![[0.0; 3]; 4], vec![[0, 1, 2], [0, 1, 3]]).unwrap();
        let error = flipped.spirals(4, 1).unwrap_err().to_string();
        assert!(error.contains("from vertex 0 to 1") || error.contains("from vertex 1 to 0"), "{error}");
        assert!(grid(2).spirals(3, 0).unwrap_err().to_string().contains("dilation is 0"));
    }
}
