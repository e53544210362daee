//! Where NVIDIA's libraries are: in the folder `ISOGRAD_CUDA_LIB`, where the system's loader looks, in `/usr/local/cuda*`, or in
//! the packages of a Python on the path.

// Opening a library runs its initialisers.
#![allow(unsafe_code)]

use libloading::Library;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The folder that is looked at before all others.
const FOLDER: &str = "ISOGRAD_CUDA_LIB";

/// A library by the names of its files.
pub struct Files {
    /// What a loader finds, the newest version first.
    pub names: &'static [&'static str],
    /// What the name begins with under any version.
    pub stem: &'static str,
    /// With what a library begins that this one opens by its name, if it does.
    pub opens: Option<&'static str>,
    /// The Python package that has it.
    pub package: &'static str,
}

impl Files {
    /// The library, or in words where it was looked for.
    pub fn open(&self) -> Result<Library, String> {
        let own = std::env::var_os(FOLDER).map(PathBuf::from);
        let others = || toolkits().into_iter().chain(packages());
        let in_loader = self.names.iter().map(PathBuf::from);
        let in_others = others().flat_map(|folder| within(&folder, self.stem));
        let in_own = own.iter().flat_map(|folder| within(folder, self.stem));
        let found = in_own.chain(in_loader).chain(in_others).find_map(|path| self.load(&path));
        found.ok_or_else(|| {
            let set = own.map_or("is not set".into(), |folder| format!("is {}", folder.display()));
            format!(
                "{FOLDER} {set}, the loader finds no {}, and it is neither in /usr/local/cuda*/lib64 nor in nvidia/*/lib \
                 of a Python on the path (pip install {})",
                self.names[0], self.package
            )
        })
    }

    fn load(&self, path: &Path) -> Option<Library> {
        // SAFETY: NVIDIA's initialisers ask nothing of a program.
        let open = |path: &Path| unsafe { Library::new(path) }.ok();
        let library = open(path)?;
        // Not every build looks in its own folder for what it opens, but what is open already is found by its name.
        let opened = path.parent().zip(self.opens).into_iter().flat_map(|(folder, stem)| within(folder, stem));
        opened.filter_map(|path| open(&path)).for_each(std::mem::forget);
        Some(library)
    }
}

/// The files in a folder whose names begin so.
fn within(folder: &Path, stem: &str) -> Vec<PathBuf> {
    let is_one = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with(stem) && !name.contains(".alt."));
    entries(folder).into_iter().filter(|path| path.file_name().is_some_and(is_one)).collect()
}

/// The folders of installed toolkits, the newest first.
fn toolkits() -> Vec<PathBuf> {
    let local = entries(Path::new("/usr/local"));
    let is_toolkit =
        |path: &&PathBuf| path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("cuda"));
    local.iter().filter(is_toolkit).map(|path| path.join("lib64")).collect()
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

/// What is in a folder, the last name first: of versions, the newest. Nothing if there is no folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    all.sort_by(|a, b| b.cmp(a));
    all
}
