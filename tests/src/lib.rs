//! What the tests share. Ops, their cases and how results are compared are in `isograd_parity`.

pub mod damaged;
pub mod harness;
pub mod programs;
#[cfg(test)]
mod pytorch;
mod times;

use isograd::{Device, Result, Tensor};

/// The CPU.
pub fn cpu() -> Device {
    Device::cpu().expect("the CPU backend is linked")
}

/// A leaf of f64 values.
pub fn leaf(values: &[f64], shape: impl Into<isograd::Shape>) -> Result<Tensor> {
    Tensor::from_slice(values, shape, &cpu())?.require_grad()
}

/// The code of the book and of the pages at the root: `cargo test --doc` compiles and runs it.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../README.md")]
    mod readme {}
    #[doc = include_str!("../../ARCHITECTURE.md")]
    mod architecture {}
    #[doc = include_str!("../../docs/src/features.md")]
    mod features {}
    #[doc = include_str!("../../docs/src/first-model.md")]
    mod first_model {}
    #[doc = include_str!("../../docs/src/data.md")]
    mod data {}
    #[doc = include_str!("../../docs/src/modules.md")]
    mod modules {}
    #[doc = include_str!("../../docs/src/files.md")]
    mod files {}
    #[doc = include_str!("../../docs/src/tables.md")]
    mod tables {}
    #[doc = include_str!("../../docs/src/training.md")]
    mod training {}
    #[doc = include_str!("../../docs/src/tape.md")]
    mod tape {}
    #[doc = include_str!("../../docs/src/capture.md")]
    mod capture {}
    #[doc = include_str!("../../docs/src/custom-ops.md")]
    mod custom_ops {}
    #[doc = include_str!("../../docs/src/parallel.md")]
    mod parallel {}
    #[doc = include_str!("../../docs/src/text.md")]
    mod text {}
    #[doc = include_str!("../../docs/src/models.md")]
    mod models {}
    #[doc = include_str!("../../docs/src/talking.md")]
    mod talking {}
    #[doc = include_str!("../../docs/src/onnx.md")]
    mod onnx {}
    #[doc = include_str!("../../docs/src/python.md")]
    mod python {}
    #[doc = include_str!("../../docs/src/errors.md")]
    mod errors {}
    #[doc = include_str!("../../docs/src/environment.md")]
    mod environment {}
    #[doc = include_str!("../../docs/src/pytorch.md")]
    mod pytorch {}
    #[doc = include_str!("../../docs/src/cuda.md")]
    mod cuda {}
    #[doc = include_str!("../../docs/src/hip.md")]
    mod hip {}
    #[doc = include_str!("../../docs/src/opencl.md")]
    mod opencl {}
    #[doc = include_str!("../../docs/src/simt.md")]
    mod simt {}
    #[doc = include_str!("../../docs/src/convolution.md")]
    mod convolution {}
    #[doc = include_str!("../../docs/src/meshes.md")]
    mod meshes {}
    #[doc = include_str!("../../docs/src/matmul.md")]
    mod matmul {}
    #[doc = include_str!("../../docs/src/linalg.md")]
    mod linalg {}
    #[doc = include_str!("../../docs/src/attention.md")]
    mod attention {}
    #[doc = include_str!("../../docs/src/graphs.md")]
    mod graphs {}
    #[doc = include_str!("../../docs/src/speed.md")]
    mod speed {}
    #[doc = include_str!("../../docs/src/device.md")]
    mod device {}
    #[doc = include_str!("../../docs/src/images.md")]
    mod images {}
    #[doc = include_str!("../../docs/src/inference.md")]
    mod inference {}
    #[doc = include_str!("../../docs/src/kernels.md")]
    mod kernels {}
    #[doc = include_str!("../../docs/src/losses.md")]
    mod losses {}
    #[doc = include_str!("../../docs/src/measured-gpus.md")]
    mod measured_gpus {}
    #[doc = include_str!("../../docs/src/measured-ops.md")]
    mod measured_ops {}
    #[doc = include_str!("../../docs/src/measured-parallel.md")]
    mod measured_parallel {}
    #[doc = include_str!("../../docs/src/measured-steps.md")]
    mod measured_steps {}
    #[doc = include_str!("../../docs/src/recurrent.md")]
    mod recurrent {}
    #[doc = include_str!("../../docs/src/tested.md")]
    mod tested {}
    #[doc = include_str!("../../docs/src/fuzzing.md")]
    mod fuzzing {}
    #[doc = include_str!("../../docs/src/parity.md")]
    mod parity {}
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    #[test]
    fn no_crate_has_unit_tests_that_are_not_run() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        for folder in fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
            let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
            if manifest.contains("test = false") {
                sources(&folder.join("src")).for_each(|(path, text)| {
                    assert!(!text.contains("#[test]"), "{} has tests, and its crate `test = false`", path.display());
                });
            }
        }
    }

    /// A crate has `autotests = false`, so that a file that no program has as a module would not be run.
    #[test]
    fn every_file_of_tests_is_in_a_program() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
        for package in crates.chain([root.join("tests")]).filter(|package| package.join("tests").exists()) {
            let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
            let all: Vec<_> = sources(&package.join("tests")).collect();
            for (path, _) in &all {
                let name = path.file_stem().unwrap().to_string_lossy();
                let is_program = manifest.contains(&*path.strip_prefix(&package).unwrap().to_string_lossy());
                let folder = if name == "mod" { path.parent().unwrap() } else { path };
                let module = format!("mod {};", folder.file_stem().unwrap().to_string_lossy());
                let parents = ["main.rs", "mod.rs"].map(|file| fs::read_to_string(folder.with_file_name(file)));
                let is_module = parents.into_iter().flatten().any(|parent| parent.contains(&module));
                // A program in a folder may have a module beside that.
                let place = format!("#[path = \"../{}\"]", path.strip_prefix(package.join("tests")).unwrap().display());
                let is_shared = all.iter().any(|(_, text)| text.contains(&place));
                assert!(is_program || is_module || is_shared || name == "main", "{} is in no program", path.display());
            }
        }
    }

    /// The Rust sources in a folder and those below.
    pub fn sources(folder: &Path) -> impl Iterator<Item = (PathBuf, String)> {
        let paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.into_iter().flat_map(|path| match path.is_dir() {
            true => sources(&path).collect(),
            false if path.extension().is_none_or(|extension| extension != "rs") => Vec::new(),
            false => vec![(path.clone(), fs::read_to_string(&path).unwrap())],
        })
    }

    #[test]
    fn every_chapter_is_in_the_summary_and_its_code_is_run() {
        let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src");
        let summary = fs::read_to_string(book.join("SUMMARY.md")).unwrap();
        let files = fs::read_dir(book).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let chapters: Vec<String> = files.filter(|name| name.ends_with(".md") && name != "SUMMARY.md").collect();
        assert_eq!(summary.matches(".md)").count(), chapters.len());
        for name in chapters {
            assert!(summary.contains(&format!("({name})")), "{name} is not in SUMMARY.md");
            assert!(include_str!("lib.rs").contains(&format!("docs/src/{name}\")")), "{name} is not in `pages`");
        }
    }

    /// The text without blocks of code.
    fn prose(text: &str) -> String {
        text.split("```").step_by(2).collect()
    }

    /// The anchors of a page: its headings in small letters, with hyphens for spaces, and nothing else.
    fn anchors(text: &str) -> Vec<String> {
        let headings = text.split("```").step_by(2).flat_map(str::lines).filter(|line| line.starts_with('#'));
        let anchor = |heading: &str| {
            let small = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            small.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
        };
        headings.map(anchor).collect()
    }

    #[test]
    fn every_link_of_the_pages_leads_somewhere() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let folders = [root.clone(), root.join("docs/src"), root.join("kernels"), root.join("tools/simt")];
        let pages = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
        let (mut links, mut broken) = (0, Vec::new());
        for page in pages.filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
            let text = fs::read_to_string(&page).unwrap();
            for link in prose(&text).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                // Pages of the repository are looked up in this tree.
                let here = link.strip_prefix("https://github.com/isograd/isograd/blob/main/");
                if here.is_none() && link.contains("://") {
                    continue;
                }
                links += 1;
                let (file, anchor) = here.unwrap_or(link).split_once('#').unwrap_or((here.unwrap_or(link), ""));
                let folder = if here.is_some() { &root } else { page.parent().unwrap() };
                let target = if file.is_empty() { page.clone() } else { folder.join(file) };
                let leaves = here.is_none() && page.starts_with(root.join("docs/src")) && file.starts_with("..");
                let is_there = fs::read_to_string(&target)
                    .map_or(target.is_dir(), |text| anchor.is_empty() || anchors(&text).iter().any(|a| a == anchor));
                if leaves || !is_there {
                    broken.push(format!("{}: {link}", page.display()));
                }
            }
        }
        assert!(links > 100 && broken.is_empty(), "{} of {links}:\n{}", broken.len(), broken.join("\n"));
    }
}
