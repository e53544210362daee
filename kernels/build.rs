//! Lists the sources of kernels, so that a new file in their folders is one.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The constants, their folders, and what their files are.
const FOLDERS: &[(&str, &str, &str)] = &[
    ("COMMON", "kernels", "The common files."),
    ("CUDA", "kernels-cuda", "The files of CUDA C++."),
    ("HIP", "kernels-hip", "The files of HIP C++."),
    ("OPENCL", "kernels-opencl", "The files of OpenCL C."),
];

fn main() -> io::Result<()> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    for (constant, folder, doc) in FOLDERS {
        let root = package.join(folder);
        let mut files = Vec::new();
        collect(&root, &mut files)?;
        files.sort();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "/// {doc}\npub const {constant}: &[File] = &[");
        for file in files {
            let parts: Vec<_> =
                file.strip_prefix(&root).into_iter().flatten().filter_map(|part| part.to_str()).collect();
            let _ = writeln!(text, "    ({:?}, include_str!({file:?})),", parts.join("/"));
        }
        text += "];\n";
    }
    println!("cargo::rerun-if-changed=kernels/build.rs");
    let folder = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?;
    fs::write(Path::new(&folder).join("files.rs"), text)
}

/// Adds the sources of C in a folder and those below it.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    // A folder's time changes with its list of files; their texts are the compiler's to watch.
    println!("cargo::rerun-if-changed={}", folder.display());
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
