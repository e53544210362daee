//! Meshes of triangles: the neighbours of edges and the spirals of vertices, for convolutions over meshes, and files.

mod edges;
#[cfg(feature = "mesh-files")]
mod obj;
#[cfg(feature = "mesh-files")]
mod ply;
mod spirals;

#[cfg(feature = "mesh-files")]
pub use self::obj::{parse_obj, read_obj};
#[cfg(feature = "mesh-files")]
pub use self::ply::{parse_ply, read_ply};

pub use self::edges::Edges;

use crate::HostTensor;
use isograd_core::{Error, Result};

/// Vertices in space, and triangles between them.
///
/// ```
/// # use isograd_data::mesh::TriangleMesh;
/// # fn main() -> isograd_core::Result<()> {
/// let square = [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0]];
/// let mesh = TriangleMesh::new(square.to_vec(), vec![[0, 1, 2], [0, 2, 3]])?;
/// let edges = mesh.edges()?;
/// assert_eq!(edges.ends, [[0, 1], [1, 2], [0, 2], [2, 3], [0, 3]]);
/// // The diagonal has four neighbours.
/// assert_eq!(edges.neighbors.to_vec::<i64>()?[8..12], [0, 1, 3, 4]);
/// assert_eq!(mesh.spirals(5, 1)?.to_vec::<i64>()?[..5], [0, 1, 2, 3, -1]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TriangleMesh {
    vertices: Vec<[f32; 3]>,
    triangles: Vec<[u32; 3]>,
}

impl TriangleMesh {
    /// The corners of a triangle are numbers of vertices, in an order that all triangles share, such as counterclockwise from outside.
    /// Errors: `Index` for a corner without a vertex; `Value` for a triangle with one vertex at two corners.
    pub fn new(vertices: Vec<[f32; 3]>, triangles: Vec<[u32; 3]>) -> Result<TriangleMesh> {
        for (i, &[a, b, c]) in triangles.iter().enumerate() {
            if let Some(corner) = [a, b, c].into_iter().find(|&v| v as usize >= vertices.len()) {
                let message = format!("triangle {i} has vertex {corner}, expected one in 0..{}", vertices.len());
                return Err(Error::index("triangle_mesh", message));
            }
            if a == b || b == c || c == a {
                let message = format!("triangle {i} is [{a}, {b}, {c}], expected three vertices");
                return Err(Error::value("triangle_mesh", message));
            }
        }
        Ok(TriangleMesh { vertices, triangles })
    }

    /// One mesh of several, whose parts do not touch. Vertices and triangles follow in order. Errors: `Value` for 2^32 vertices or
    /// more.
    pub fn join(meshes: &[TriangleMesh]) -> Result<TriangleMesh> {
        let mut joined = TriangleMesh::default();
        for mesh in meshes {
            let first = joined.vertices.len();
            if u32::try_from(first + mesh.vertices.len()).is_err() {
                let message = format!("{} vertices or more, expected fewer than 2^32", first + mesh.vertices.len());
                return Err(Error::value("triangle_mesh", message));
            }
            joined.vertices.extend(&mesh.vertices);
            joined.triangles.extend(mesh.triangles.iter().map(|corners| corners.map(|v| v + first as u32)));
        }
        Ok(joined)
    }

    /// The places of the vertices.
    pub fn vertices(&self) -> &[[f32; 3]] {
        &self.vertices
    }

    /// The vertices at the corners of each triangle.
    pub fn triangles(&self) -> &[[u32; 3]] {
        &self.triangles
    }

    /// The places of the vertices, `[V, 3]` (f32).
    pub fn positions(&self) -> Result<HostTensor> {
        HostTensor::new(self.vertices.as_flattened(), [self.vertices.len(), 3])
    }
}

/// Triangles of polygons, each a fan around the polygon's first corner. Errors (as text): a polygon of fewer than three corners, or a
/// corner that is no number of 32 bits.
#[cfg(feature = "mesh-files")]
fn fans(polygons: impl Iterator<Item = Vec<usize>>) -> std::result::Result<Vec<[u32; 3]>, String> {
    let mut triangles = Vec::new();
    for (i, corners) in polygons.enumerate() {
        if corners.len() < 3 {
            return Err(format!("face {i} has {} corners, expected at least 3", corners.len()));
        }
        let corner = |v: usize| u32::try_from(v).map_err(|_| format!("face {i} has vertex {v}, expected 32 bits"));
        for pair in corners[1..].windows(2) {
            triangles.push([corner(corners[0])?, corner(pair[0])?, corner(pair[1])?]);
        }
    }
    Ok(triangles)
}
