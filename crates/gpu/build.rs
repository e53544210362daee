//! Lists the families of kernels, so that a new file of `src/ops` is one.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?;
    fs::write(Path::new(&folder).join("families.rs"), families(&package.join("src/ops"))?)
}

/// The names of the modules that define a `FAMILY`, and these families.
fn families(root: &Path) -> io::Result<String> {
    let mut list = String::from("&[\n");
    for file in files(root)? {
        if fs::read_to_string(&file)?.contains("const FAMILY: Family") {
            let path = file.with_extension("");
            let module: Vec<_> = parts(root, &path).into_iter().filter(|&part| part != "mod").collect();
            let _ = writeln!(list, "    ({:?}, {}::FAMILY),", module.join("/"), module.join("::"));
        }
    }
    Ok(list + "]\n")
}

/// The parts of a file's path below a folder.
fn parts<'a>(root: &Path, file: &'a Path) -> Vec<&'a str> {
    file.strip_prefix(root).into_iter().flatten().filter_map(|part| part.to_str()).collect()
}

/// The sources of a folder, and of the folders in it, in order.
fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    println!("cargo:rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();
    Ok(files)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
