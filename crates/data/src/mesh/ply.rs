//! PLY files: Turk, "The PLY Polygon File Format", 1994.

use super::{TriangleMesh, fans};
use crate::file::{self, invalid};
use isograd_core::Result;
use isograd_files::{Checked, held};
use ply_rs_bw::parser::{Parser, Reader};
use ply_rs_bw::ply::{
    ElementDef, Encoding, Header, Property, PropertyAccess, PropertyAccessResult, PropertyType, ScalarType,
};
use std::path::Path;

/// Reads the vertices and faces of a PLY file, as text or binary, gzipped or not. Coordinates may have any type, and become f32. Faces of
/// more than three corners become fans of triangles. Other elements and properties are ignored; a file without faces is a cloud of
/// points.
///
/// Errors: `Io` if the file cannot be read; `Format` if it is no PLY file, a vertex has no x, y or z, or a face has no such vertices.
pub fn read_ply(path: impl AsRef<Path>) -> Result<TriangleMesh> {
    let path = path.as_ref();
    parse_ply(path, &isograd_files::read(path)?)
}

/// Reads the bytes of a PLY file, gzipped or not; errors name `path`. Errors: as [`read_ply`].
pub fn parse_ply(path: &Path, bytes: &[u8]) -> Result<TriangleMesh> {
    let content = file::content(bytes).map_err(|e| file::failed(path, e))?;
    let (parser, mut content) = (Parser::<Item>::new(), Reader::new(content));
    let header = parser.read_header(&mut content).map_err(|e| invalid(path, e.to_string()))?;
    check(&header, file::max_content(bytes)).map_err(|message| invalid(path, message))?;
    let payload = parser.read_payload(&mut content, &header).map_err(|e| invalid(path, e.to_string()))?;
    let elements = |name: &str| payload.get(name).map_or(&[][..], |all| all);
    let vertices = elements("vertex").iter().enumerate().map(|(i, vertex)| {
        let coordinate = |axis: usize| {
            vertex.at[axis].ok_or_else(|| invalid(path, format!("vertex {i} has no number {}", AXES[axis])))
        };
        Ok([coordinate(0)?, coordinate(1)?, coordinate(2)?])
    });
    let vertices = vertices.collect::<Result<Vec<[f32; 3]>>>()?;
    let faces = elements("face").iter().enumerate().map(|(i, face)| {
        let corners = face.corners.as_ref();
        let corners = corners.ok_or_else(|| invalid(path, format!("face {i} has no list of vertex_indices")))?;
        Ok(corners.iter().map(|&v| v as usize).collect())
    });
    let faces = faces.collect::<Result<Vec<Vec<usize>>>>()?;
    let triangles = fans(faces.into_iter()).map_err(|message| invalid(path, message))?;
    TriangleMesh::new(vertices, triangles).map_err(|e| invalid(path, e.message()))
}

/// The names of coordinates.
const AXES: [&str; 3] = ["x", "y", "z"];

/// The properties of a vertex or a face that a mesh keeps.
struct Item {
    at: [Option<f32>; 3],
    corners: Option<Vec<u32>>,
}

impl PropertyAccess for Item {
    fn new() -> Item {
        Item { at: [None; 3], corners: None }
    }

    fn set_property(&mut self, name: &str, property: Property) -> PropertyAccessResult {
        match AXES.iter().position(|axis| *axis == name) {
            Some(axis) => self.at[axis] = property.to_f32_lossy(),
            // Both names are in use.
            None if name == "vertex_indices" || name == "vertex_index" => self.corners = property.to_u32_list(),
            None => return PropertyAccessResult::Ignored,
        }
        PropertyAccessResult::Set
    }
}

/// Errors: elements that the file cannot hold.
fn check(header: &Header, mut left: usize) -> Checked<()> {
    for (name, element) in &header.elements {
        let least = least(element, header.encoding == Encoding::Ascii);
        if least == 0 && element.count > 0 {
            return Err(format!("there are {} elements {name} without properties", element.count));
        }
        let count = held(element.count as u64, least, left);
        left -= least * count.map_err(|why| format!("the header promises too many elements {name}: {why}"))?;
    }
    Ok(())
}

/// The fewest bytes of an element.
fn least(element: &ElementDef, is_text: bool) -> usize {
    // A digit, and a space or the end of the line.
    let each = |property: &PropertyType| match property {
        _ if is_text => 2,
        PropertyType::Scalar(scalar) | PropertyType::List(scalar, _) => size(scalar),
    };
    element.properties.iter().map(|(_, property)| each(&property.data_type)).sum()
}

fn size(scalar: &ScalarType) -> usize {
    match scalar {
        ScalarType::Char | ScalarType::UChar => 1,
        ScalarType::Short | ScalarType::UShort => 2,
        ScalarType::Int | ScalarType::UInt | ScalarType::Float => 4,
        ScalarType::Double => 8,
    }
}
