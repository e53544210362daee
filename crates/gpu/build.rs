//! Lists the sources of kernels, so that a new file of the folder is one.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels").canonicalize()?;
    println!("cargo:rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut list = String::from("&[\n");
    for file in &files {
        let parts: Vec<&str> =
            file.strip_prefix(&root).into_iter().flatten().filter_map(|part| part.to_str()).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(list, "    ({:?}, include_str!({file:?})),", parts.join("/"));
    }
    let folder = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?;
    fs::write(Path::new(&folder).join("kernels.rs"), list + "]\n")
}

/// The C files and headers of a folder and of the folders in it.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "c" || extension == "h") {
            files.push(path);
        }
    }
    Ok(())
}
