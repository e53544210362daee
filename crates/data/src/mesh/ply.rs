//! PLY files: Turk, "The PLY Polygon File Format", 1994.

use super::{TriangleMesh, fans};
use crate::file::{self, invalid};
use isograd_core::Result;
use ply_rs_bw::parser::Parser;
use ply_rs_bw::ply::DefaultElement;
use std::path::Path;

/// Reads the vertices and faces of a PLY file, as text or binary, gzipped or not. Coordinates may have any type, and become f32. Faces of
/// more than three corners become fans of triangles. Other elements and properties are ignored; a file without faces is a cloud of
/// points.
///
/// Errors: `Io` if the file cannot be read; `Format` if it is no PLY file, a vertex has no x, y or z, or a face has no such vertices.
pub fn read_ply(path: impl AsRef<Path>) -> Result<TriangleMesh> {
    let path = path.as_ref();
    parse_ply(path, &file::read(path)?)
}

/// Reads the bytes of a PLY file, gzipped or not; errors name `path`. Errors: as [`read_ply`].
pub fn parse_ply(path: &Path, bytes: &[u8]) -> Result<TriangleMesh> {
    let mut content = file::content(bytes).map_err(|e| file::failed(path, e))?;
    let ply = Parser::<DefaultElement>::new().read_ply(&mut content);
    let ply = ply.map_err(|e| invalid(path, e.to_string()).with_source(e))?;
    let elements = |name: &str| ply.payload.get(name).map_or(&[][..], |all| all);
    let vertices = elements("vertex").iter().enumerate().map(|(i, vertex)| {
        let coordinate = |name: &str| {
            let value = vertex.get(name).and_then(|value| value.to_f32_lossy());
            value.ok_or_else(|| invalid(path, format!("vertex {i} has no number {name}")))
        };
        Ok([coordinate("x")?, coordinate("y")?, coordinate("z")?])
    });
    let vertices = vertices.collect::<Result<Vec<[f32; 3]>>>()?;
    let faces = elements("face").iter().enumerate().map(|(i, face)| {
        // Both names are in use.
        let listed = face.get("vertex_indices").or_else(|| face.get("vertex_index"));
        let corners = listed.and_then(|list| list.to_u32_list());
        let corners = corners.ok_or_else(|| invalid(path, format!("face {i} has no list of vertex_indices")))?;
        Ok(corners.into_iter().map(|v| v as usize).collect())
    });
    let faces = faces.collect::<Result<Vec<Vec<usize>>>>()?;
    let triangles = fans(faces.into_iter()).map_err(|message| invalid(path, message))?;
    TriangleMesh::new(vertices, triangles).map_err(|e| invalid(path, e.message()))
}
