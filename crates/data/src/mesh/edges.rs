//! The edges of a mesh of triangles.

use super::TriangleMesh;
use crate::HostTensor;
use isograd_core::{Error, Result};
use std::collections::HashMap;

/// The edges of a mesh of triangles.
#[derive(Clone, Debug, PartialEq)]
pub struct Edges {
    /// The vertices of each edge, the lower number first. Edges are numbered as they first occur in the triangles.
    pub ends: Vec<[u32; 2]>,
    /// The four neighbours of each edge, `[E, 4]` (i64): the other edges of its first triangle, and then of its second one. Each pair
    /// follows the order of the triangle's corners, from the edge on. -1 stands for the edges of an absent second triangle.
    pub neighbors: HostTensor,
}

impl TriangleMesh {
    /// The edges, with the neighbours that [`mesh_conv`](isograd_core::Tensor::mesh_conv) takes. Errors: `Value` for an edge of more than
    /// two triangles. Hanocka et al. 2019, arXiv:1809.05910, section 3.
    pub fn edges(&self) -> Result<Edges> {
        let mut numbers = HashMap::new();
        let (mut ends, mut neighbors): (Vec<[u32; 2]>, Vec<[i64; 4]>) = (Vec::new(), Vec::new());
        let mut sides = Vec::new();
        for &[a, b, c] in self.triangles() {
            let own = [(a, b), (b, c), (c, a)].map(|(from, to)| {
                let pair = [from.min(to), from.max(to)];
                *numbers.entry(pair).or_insert_with(|| {
                    ends.push(pair);
                    neighbors.push([-1; 4]);
                    sides.push(0);
                    ends.len() - 1
                })
            });
            for (k, &edge) in own.iter().enumerate() {
                let Some(pair) = neighbors[edge].chunks_exact_mut(2).nth(sides[edge]) else {
                    let [from, to] = ends[edge];
                    let message = format!("more than two triangles have the edge between vertices {from} and {to}");
                    return Err(Error::value("edges", message));
                };
                pair.copy_from_slice(&[own[(k + 1) % 3] as i64, own[(k + 2) % 3] as i64]);
                sides[edge] += 1;
            }
        }
        Ok(Edges { neighbors: HostTensor::new(neighbors.as_flattened(), [ends.len(), 4])?, ends })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(vertices: usize, triangles: &[[u32; 3]]) -> TriangleMesh {
        TriangleMesh::new(vec![[0.0; 3]; vertices], triangles.to_vec()).unwrap()
    }

    #[test]
    fn a_closed_mesh_has_four_neighbours_of_each_edge_in_the_order_of_corners() {
        let tetrahedron = mesh(4, &[[0, 1, 2], [0, 3, 1], [1, 3, 2], [0, 2, 3]]);
        let edges = tetrahedron.edges().unwrap();
        assert_eq!(edges.ends, [[0, 1], [1, 2], [0, 2], [0, 3], [1, 3], [2, 3]]);
        // From 0-1 on: 1-2 and 2-0 of the first triangle, then 0-3 and 3-1 of the second one.
        let table = edges.neighbors.to_vec::<i64>().unwrap();
        assert_eq!(table[..4], [1, 2, 3, 4]);
        for (e, own) in table.chunks(4).enumerate() {
            let shares_an_end = |n: &i64| edges.ends[*n as usize].iter().any(|v| edges.ends[e].contains(v));
            assert!(own.iter().all(|n| *n >= 0 && *n != e as i64 && shares_an_end(n)), "edge {e}: {own:?}");
            // An edge is a neighbour of its neighbours.
            assert!(own.iter().all(|&n| table[4 * n as usize..][..4].contains(&(e as i64))), "edge {e}: {own:?}");
        }
    }

    #[test]
    fn edges_of_one_triangle_have_two_absent_neighbours() {
        let edges = mesh(3, &[[0, 1, 2]]).edges().unwrap();
        assert_eq!(edges.neighbors.to_vec::<i64>().unwrap(), [1, 2, -1, -1, 2, 0, -1, -1, 0, 1, -1, -1]);
        let none = mesh(2, &[]).edges().unwrap();
        assert_eq!((none.ends.len(), none.neighbors.dims()), (0, &[0, 4][..]));
    }

    #[test]
    fn parts_of_a_joined_mesh_have_their_own_numbers() {
        let one = mesh(3, &[[0, 1, 2]]);
        let both = TriangleMesh::join(&[one.clone(), one]).unwrap();
        assert_eq!(both.triangles(), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(both.edges().unwrap().neighbors.to_vec::<i64>().unwrap()[12..16], [4, 5, -1, -1]);
    }

    #[test]
    fn an_edge_of_three_triangles_is_refused() {
        let error = mesh(5, &[[0, 1, 2], [1, 0, 3], [0, 1, 4]]).edges().unwrap_err();
        assert!(error.to_string().contains("between vertices 0 and 1"), "{error}");
    }

    #[test]
    fn corners_are_three_vertices_of_the_mesh() {
        let of = |corners| TriangleMesh::new(vec![[0.0; 3]; 3], vec![[0, 1, 2], corners]).unwrap_err().to_string();
        assert!(of([0, 1, 3]).contains("triangle 1 has vertex 3, expected one in 0..3"), "{}", of([0, 1, 3]));
        assert!(of([0, 2, 0]).contains("triangle 1 is [0, 2, 0]"), "{}", of([0, 2, 0]));
    }
}
