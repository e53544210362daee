//! OBJ and PLY files, whole, damaged and invented.
#![cfg(feature = "mesh-files")]

use flate2::{Compression, write::GzEncoder};
use isograd_core::{Error, Kind};
use isograd_data::mesh::{TriangleMesh, parse_obj, parse_ply, read_obj, read_ply};
use proptest::prelude::*;
use std::io::Write;
use std::path::Path;

const OBJ: &str = "\
# A square in two groups, which share vertices, and one vertex that no face has.
mtllib none.mtl
v 0 0 0
v 1 0 0 1 0.5 0
v 5 5 5
v 1 1 0.5
vt 0 0
vn 0 0 1
g first
f 1/1/1 2/1/1 4/1/1
v 0 1 0
g second
usemtl stone
f 1//1 4//1 -1//1";

fn square() -> TriangleMesh {
    let vertices = [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [5.0; 3], [1.0, 1.0, 0.5], [0.0, 1.0, 0.0]];
    TriangleMesh::new(vertices.to_vec(), vec![[0, 1, 3], [0, 3, 4]]).unwrap()
}

fn ply_text(faces: &str) -> String {
    format!(
        "ply\nformat ascii 1.0\ncomment none\nelement vertex 5\nproperty double x\nproperty float y\nproperty float z\nproperty uchar red\n\
         element face 1\nproperty list uchar int {faces}\nend_header\n0 0 0 9\n1 0 0 9\n5 5 5 9\n1 1 0.5 9\n0 1 0 9\n4 0 1 3 4\n"
    )
}

/// The same square with its second face, in binary.
fn ply_binary(is_little: bool) -> Vec<u8> {
    let order = if is_little { "little" } else { "big" };
    let mut bytes = format!(
        "ply\nformat binary_{order}_endian 1.0\nelement vertex 5\nproperty float x\nproperty float y\nproperty float z\n\
         element face 2\nproperty list uchar uint vertex_index\nend_header\n"
    )
    .into_bytes();
    for v in square().vertices().as_flattened() {
        bytes.extend(if is_little { v.to_le_bytes() } else { v.to_be_bytes() });
    }
    for corners in square().triangles() {
        bytes.push(3);
        for v in corners {
            bytes.extend(if is_little { v.to_le_bytes() } else { v.to_be_bytes() });
        }
    }
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn assert_format(error: &Error, expected: &str) {
    assert_eq!((error.kind(), error.op()), (Kind::Format, "a mesh"), "{error}");
    assert!(error.message().contains(expected), "{error} does not say {expected:?}");
}

fn path() -> &'static Path {
    Path::new("a mesh")
}

#[test]
fn an_obj_file_is_one_mesh_with_the_vertices_in_order() {
    assert_eq!(parse_obj(path(), OBJ.as_bytes()).unwrap(), square());
    assert_eq!(parse_obj(path(), &gzip(OBJ.as_bytes())).unwrap(), square());
    assert_eq!(parse_obj(path(), OBJ.replace('\n', "\r\n").as_bytes()).unwrap(), square());
}

#[test]
fn faces_of_obj_files_may_mix_their_forms_and_go_on_in_the_next_line() {
    let obj = "v 0 0 0\nv 1 0 0\nv 5 5 5\nv 1 1 \\\n  0.5 # a comment\nvt 0 0\nv 0 1 0\nf 1 2/1 4/1/1\nf 1// \\\r\n 4 \\\n-1/1\n";
    assert_eq!(parse_obj(path(), obj.as_bytes()).unwrap(), square());
    let error = parse_obj(path(), b"v 0 0 0\n\nf 1 0 1\n").unwrap_err();
    assert_format(&error, "line 3: a face has the vertex \"0\", expected 1, 2, .. or -1 to -1");
    assert_format(&parse_obj(path(), b"v 0 0 0\nf -2 1 1\n").unwrap_err(), "line 2: a face has the vertex \"-2\"");
    assert_format(&parse_obj(path(), b"PK\x03\x04\n").unwrap_err(), "line 1: no line of an OBJ file begins with");
    assert_format(&parse_obj(path(), b"v 0 0 x\n").unwrap_err(), "line 1: a vertex has \"x\", expected a number");
}

#[test]
fn elements_that_a_ply_file_cannot_hold_are_refused() {
    let head = "ply\nformat binary_little_endian 1.0\nelement vertex 10000000\n";
    let error = parse_ply(path(), format!("{head}end_header\n").as_bytes()).unwrap_err();
    assert_format(&error, "there are 10000000 elements vertex without properties");
    let error = parse_ply(path(), format!("{head}property float x\nend_header\n").as_bytes()).unwrap_err();
    assert_format(&error, "the header promises too many elements vertex: 10000000 items of ");
    let text = ply_text("vertex_indices").replace("element vertex 5", "element vertex 18446744073709551615");
    assert_format(&parse_ply(path(), text.as_bytes()).unwrap_err(), "the header promises too many elements ");
}

#[test]
fn faces_with_more_corners_are_fans() {
    let obj = "v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nv 0 0.5 0\nf 1 2 3 4 5\n";
    assert_eq!(parse_obj(path(), obj.as_bytes()).unwrap().triangles(), [[0, 1, 2], [0, 2, 3], [0, 3, 4]]);
    for name in ["vertex_indices", "vertex_index"] {
        assert_eq!(parse_ply(path(), ply_text(name).as_bytes()).unwrap(), square());
    }
}

#[test]
fn ply_files_are_text_or_binary_in_either_order() {
    for is_little in [true, false] {
        assert_eq!(parse_ply(path(), &ply_binary(is_little)).unwrap(), square());
        assert_eq!(parse_ply(path(), &gzip(&ply_binary(is_little))).unwrap(), square());
    }
}

#[test]
fn files_are_read_by_their_content() {
    let folder = tempfile::tempdir().unwrap();
    let [obj, ply] = ["a.obj", "a.ply"].map(|name| folder.path().join(name));
    std::fs::write(&obj, OBJ).unwrap();
    std::fs::write(&ply, ply_binary(true)).unwrap();
    assert_eq!((read_obj(&obj).unwrap(), read_ply(&ply).unwrap()), (square(), square()));
    assert_eq!(read_obj(folder.path().join("none")).unwrap_err().kind(), Kind::Io);
}

#[test]
fn damage_is_found() {
    let error = |text: &str| parse_obj(path(), text.as_bytes()).unwrap_err();
    assert_format(&error("v 0 0 0\nv 1 0 0\nv 1 1 0\nf 1 2 4\n"), "has vertex 3, expected one in 0..3");
    assert_format(&error("v 0 0 0\nv 1 0 0\nv 1 1 0\nf 1 2 2\n"), "expected three vertices");
    assert_format(&error("v 0 0\n"), "");
    let error = |text: &str| parse_ply(path(), text.as_bytes()).unwrap_err();
    assert_format(&error(&ply_text("corners")), "face 0 has no list of vertex_indices");
    assert_format(&error(&ply_text("vertex_indices").replace("4 0 1 3 4", "2 0 1")), "face 0 has 2 corners");
    assert_format(&error(&ply_text("vertex_indices").replace("4 0 1 3 4", "3 0 1 7")), "has vertex 7");
    assert_format(&error(&ply_text("vertex_indices").replace("float z", "float w")), "vertex 0 has no number z");
    let binary = ply_binary(true);
    let short = parse_ply(path(), &binary[..binary.len() - 1]).unwrap_err();
    assert_format(&short, "");
    assert_format(&parse_ply(path(), b"obj").unwrap_err(), "");
}

proptest! {
    #[test]
    fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..300) {
        let _ = parse_obj(path(), &bytes);
        let _ = parse_ply(path(), &bytes);
        let mut begun = ply_text("vertex_indices").into_bytes();
        begun.truncate(cut);
        begun.extend(&bytes);
        let _ = parse_ply(path(), &begun);
        let mut begun = OBJ.as_bytes()[..cut.min(OBJ.len())].to_vec();
        begun.extend(&bytes);
        let _ = parse_obj(path(), &begun);
    }
}
