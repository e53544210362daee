//! Where NVIDIA's libraries are: in the folder `ISOGRAD_CUDA_LIB`, where the system's loader looks, in `/usr/local/cuda*`, or in
//! NVIDIA's packages of a Python: on the path, of the user, of the system, or of pyenv.

use isograd_gpu::vendor::dynlib::{Files, Library, Places, entries, load, within};
use std::path::{Path, PathBuf};

pub const PLACES: Places = Places {
    variable: "ISOGRAD_CUDA_LIB",
    folders: || toolkits().into_iter().chain(packages()).collect(),
    words: "/usr/local/cuda*/lib64 or nvidia/*/lib of a Python on the path, of the user, of the system or of pyenv",
};

/// Opens a library, and then those of its folder whose names begin with `beside`: not every build of a library looks there for what it
/// opens, but what is open already is found by its name.
pub fn open_with(files: &Files, beside: &str) -> Result<&'static Library, String> {
    let others = |path: &Path| path.parent().into_iter().flat_map(|folder| within(folder, beside)).collect::<Vec<_>>();
    let open_all = |paths: Vec<PathBuf>| paths.iter().filter_map(|path| load(path).ok()).for_each(std::mem::forget);
    files.open_by(|path| load(path).inspect(|_| open_all(others(path))))
}

/// The folders of installed toolkits, the newest first.
fn toolkits() -> Vec<PathBuf> {
    within(Path::new("/usr/local"), "cuda").iter().map(|toolkit| toolkit.join("lib64")).collect()
}

/// The folders of NVIDIA's packages of each Python.
fn packages() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).filter(|folder| folder.join("python3").exists());
    let mut roots: Vec<PathBuf> = on_path.filter_map(|folder| Some(folder.parent()?.to_path_buf())).collect();
    let home = std::env::home_dir();
    // The folders of the user, and of Debian's Python, whose packages are not where it is.
    roots.extend(home.as_ref().map(|home| home.join(".local")));
    roots.extend(["/usr/local", "/usr"].map(PathBuf::from));
    // What is on the path is a script there.
    let pyenv = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or_else(|| Some(home?.join(".pyenv")));
    roots.extend(pyenv.iter().flat_map(|pyenv| entries(&pyenv.join("versions"))));
    roots.iter().flat_map(|root| packages_of(root)).collect()
}

/// The folders of NVIDIA's packages below where a Python is installed.
fn packages_of(root: &Path) -> Vec<PathBuf> {
    let versions = entries(&root.join("lib")).into_iter();
    let sites = versions.flat_map(|version| ["site-packages", "dist-packages"].map(|name| version.join(name)));
    sites.flat_map(|site| entries(&site.join("nvidia"))).map(|package| package.join("lib")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_a_python_are_found() {
        let root = tempfile::tempdir().unwrap();
        let folders = [
            "lib/python3.13/site-packages/nvidia/cu13/lib",
            "lib/python3.11/dist-packages/nvidia/cuda_nvrtc/lib",
            "lib/python3.11/site-packages/numpy/lib",
        ];
        folders.iter().for_each(|folder| std::fs::create_dir_all(root.path().join(folder)).unwrap());
        assert_eq!(packages_of(root.path()), folders[..2].iter().map(|f| root.path().join(f)).collect::<Vec<_>>());
        assert!(packages_of(&root.path().join("none")).is_empty());
    }
}
