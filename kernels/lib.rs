//! The sources of isograd's kernels: the common ones, written in what C99 and C++ share, and the files of each dialect. A dialect's own file
//! takes the place of the common one of its name.
//!
//! The package is the root of the repository, where these folders are, since a package holds nothing from outside its folder.

/// A file: its name, as `#include` has it, and its text.
pub type File = (&'static str, &'static str);

include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// The list of all kernels, written and planned, in TOML.
pub const TABLE: &str = include_str!("../docs/kernels.toml");

/// The file of a name. Panics if there is none; in a constant that is an error of the build.
pub const fn file(files: &[File], name: &str) -> File {
    let mut i = 0;
    while i < files.len() {
        if equal(files[i].0.as_bytes(), name.as_bytes()) {
            return files[i];
        }
        i += 1;
    }
    panic!("there is no such file of kernels");
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}
