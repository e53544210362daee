//! Wavefront OBJ files: "Object Files (.obj)", in the Advanced Visualizer's manual, 1992.

use super::{TriangleMesh, fans};
use crate::file::{self, invalid};
use isograd_core::Result;
use isograd_files::MAX_LINE;
use std::io::{self, BufRead, Read};
use std::path::Path;

/// The words with which lines begin that are ignored.
const IGNORED: [&str; 45] = [
    "vt",
    "vn",
    "vp",
    "p",
    "l",
    "g",
    "o",
    "s",
    "mg",
    "mtllib",
    "usemtl",
    "maplib",
    "usemap",
    "deg",
    "bmat",
    "step",
    "cstype",
    "curv",
    "curv2",
    "surf",
    "parm",
    "trim",
    "hole",
    "scrv",
    "sp",
    "end",
    "con",
    "bevel",
    "c_interp",
    "d_interp",
    "lod",
    "shadow_obj",
    "trace_obj",
    "ctech",
    "stech",
    "call",
    "csh",
    "bsp",
    "bzp",
    "cdc",
    "cdp",
    "res",
    "merge",
    "texture",
    "color",
];

/// Reads the vertices and faces of an OBJ file, gzipped or not: of all its objects and groups, in the order of the file. Faces of more
/// than three corners become fans of triangles. Normals, texture coordinates and materials are ignored.
///
/// Errors: `Io` if the file cannot be read; `Format` if it is no OBJ file, or a face has no such vertices.
pub fn read_obj(path: impl AsRef<Path>) -> Result<TriangleMesh> {
    let path = path.as_ref();
    parse_obj(path, &isograd_files::read(path)?)
}

/// Reads the bytes of an OBJ file, gzipped or not; errors name `path`. Errors: as [`read_obj`].
pub fn parse_obj(path: &Path, bytes: &[u8]) -> Result<TriangleMesh> {
    let mut content = file::content(bytes).map_err(|e| file::failed(path, e))?;
    let (mut vertices, mut polygons, mut number) = (Vec::new(), Vec::new(), 0);
    loop {
        let first = number + 1;
        let Some(line) = line(&mut content, &mut number).map_err(|e| file::failed(path, e))? else { break };
        let wrong = |why: String| invalid(path, format!("line {first}: {why}"));
        if line.len() > MAX_LINE {
            return Err(wrong(format!("it is longer than {MAX_LINE} bytes")));
        }
        let line = std::str::from_utf8(&line).map_err(|_| wrong("it is no text".into()))?;
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        match words.next() {
            Some("v") => vertices.push(vertex(words).map_err(wrong)?),
            Some("f") => polygons.push(corners(words, vertices.len()).map_err(wrong)?),
            Some(word) if !IGNORED.contains(&word) => {
                return Err(wrong(format!("no line of an OBJ file begins with {word:?}")));
            }
            _ => {}
        }
    }
    let triangles = fans(polygons.into_iter()).map_err(|message| invalid(path, message))?;
    TriangleMesh::new(vertices, triangles).map_err(|e| invalid(path, e.message()))
}

/// The next line, to which those belong that follow a backslash at its end. `number` counts lines.
fn line(content: &mut dyn BufRead, number: &mut usize) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    while line.len() <= MAX_LINE {
        let left = (MAX_LINE + 1 - line.len()) as u64;
        if content.take(left).read_until(b'\n', &mut line)? == 0 {
            return Ok((!line.is_empty()).then_some(line));
        }
        *number += 1;
        let end = line.trim_ascii_end().len();
        if line[..end].last() != Some(&b'\\') {
            break;
        }
        line.truncate(end - 1);
        line.push(b' ');
    }
    Ok(Some(line))
}

/// The place of a vertex, after which there may be a weight or a color.
fn vertex<'a>(mut words: impl Iterator<Item = &'a str>) -> std::result::Result<[f32; 3], String> {
    let mut at = [0.0; 3];
    for coordinate in &mut at {
        let word = words.next().ok_or("a vertex has fewer than three numbers")?;
        *coordinate = word.parse().map_err(|_| format!("a vertex has {word:?}, expected a number"))?;
    }
    Ok(at)
}

/// The vertices of a face, each before its texture coordinates and its normal. Negative numbers count back from the last vertex.
fn corners<'a>(words: impl Iterator<Item = &'a str>, known: usize) -> std::result::Result<Vec<usize>, String> {
    let corner = |word: &str| {
        let number = word.split('/').next().and_then(|number| number.parse::<i64>().ok());
        let place = match number {
            Some(v) if v > 0 => usize::try_from(v - 1).ok(),
            Some(v) if v < 0 => usize::try_from(v.unsigned_abs()).ok().and_then(|back| known.checked_sub(back)),
            _ => None,
        };
        place.ok_or_else(|| format!("a face has the vertex {word:?}, expected 1, 2, .. or -1 to -{known}"))
    };
    words.map(corner).collect()
}
