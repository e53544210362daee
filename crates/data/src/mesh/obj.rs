//! Wavefront OBJ files.

use super::{TriangleMesh, fans};
use crate::file::{self, invalid};
use isograd_core::Result;
use std::io::Read;
use std::path::Path;
use wobj::{Faces, Obj};

/// Reads the vertices and faces of an OBJ file, gzipped or not: of all its objects and groups, in the order of the file. Faces of more
/// than three corners become fans of triangles. Normals, texture coordinates and materials are ignored.
///
/// Errors: `Io` if the file cannot be read; `Format` if it is no OBJ file, or a face has no such vertices.
pub fn read_obj(path: impl AsRef<Path>) -> Result<TriangleMesh> {
    let path = path.as_ref();
    parse_obj(path, &file::read(path)?)
}

/// Reads the bytes of an OBJ file, gzipped or not; errors name `path`. Errors: as [`read_obj`].
pub fn parse_obj(path: &Path, bytes: &[u8]) -> Result<TriangleMesh> {
    let mut content = Vec::new();
    file::content(bytes).and_then(|mut c| c.read_to_end(&mut content)).map_err(|e| file::failed(path, e))?;
    // The parser takes whole lines.
    content.push(b'\n');
    let obj = Obj::parse(&content).map_err(|e| invalid(path, e.to_string()).with_source(e))?;
    let polygons: Vec<Vec<usize>> = obj.meshes().iter().flat_map(|mesh| corners(mesh.faces())).collect();
    let triangles = fans(polygons.into_iter()).map_err(|message| invalid(path, message))?;
    TriangleMesh::new(obj.vertices().to_vec(), triangles).map_err(|e| invalid(path, e.message()))
}

/// The vertices at the corners of each face.
fn corners(faces: &Faces) -> Vec<Vec<usize>> {
    match faces {
        Faces::V(faces) => faces.clone(),
        Faces::VT(faces) | Faces::VN(faces) => {
            faces.iter().map(|face| face.iter().map(|&(v, _)| v).collect()).collect()
        }
        Faces::VTN(faces) => faces.iter().map(|face| face.iter().map(|&(v, ..)| v).collect()).collect(),
    }
}
