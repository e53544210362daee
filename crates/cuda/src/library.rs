//! Where NVIDIA's libraries are: in the folder `ISOGRAD_CUDA_LIB`, where the system's loader looks, in `/usr/local/cuda*`, or in
//! the packages of a Python on the path.

// Opening a library runs its initialisers.
#![allow(unsafe_code)]

use isograd_gpu::library::{Files, Places, entries, within};
use libloading::Library;
use std::path::{Path, PathBuf};

pub const PLACES: Places = Places {
    variable: "ISOGRAD_CUDA_LIB",
    folders: || toolkits().into_iter().chain(packages()).collect(),
    words: "/usr/local/cuda*/lib64 or nvidia/*/lib of a Python on the path",
};

/// Opens a library, and before it those that it opens by names which begin with `opens`.
pub fn open(files: &Files, opens: Option<&str>) -> Result<Library, String> {
    files.find(|path| load(path, opens))
}

fn load(path: &Path, opens: Option<&str>) -> Option<Library> {
    // SAFETY: NVIDIA's initialisers ask nothing of a program.
    let open = |path: &Path| unsafe { Library::new(path) }.ok();
    let library = open(path)?;
    // Not every build looks in its own folder for what it opens, but what is open already is found by its name.
    let opened = path.parent().zip(opens).into_iter().flat_map(|(folder, stem)| within(folder, stem));
    opened.filter_map(|path| open(&path)).for_each(std::mem::forget);
    Some(library)
}

/// The folders of installed toolkits, the newest first.
fn toolkits() -> Vec<PathBuf> {
    within(Path::new("/usr/local"), "cuda").iter().map(|toolkit| toolkit.join("lib64")).collect()
}

/// The folders of NVIDIA's packages of each Python on the path.
fn packages() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let pythons = std::env::split_paths(&path).filter(|folder| folder.join("python3").exists());
    let libraries = pythons.filter_map(|folder| Some(folder.parent()?.join("lib")));
    let versions = libraries.flat_map(|library| entries(&library));
    let sites = versions.flat_map(|version| ["site-packages", "dist-packages"].map(|name| version.join(name)));
    sites.flat_map(|site| entries(&site.join("nvidia"))).map(|package| package.join("lib")).collect()
}
