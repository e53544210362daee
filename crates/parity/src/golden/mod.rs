//! Values and gradients from PyTorch, included in this program.

pub(crate) mod names;

use crate::cases::{Recorded, parse};
use isograd_golden::FILES;
use safetensors::SafeTensors;
use std::sync::LazyLock;

/// All cases.
pub static CASES: LazyLock<Vec<Recorded>> = LazyLock::new(|| {
    let of = |&(family, cases, bytes): &(&str, &str, &[u8])| {
        let tensors = SafeTensors::deserialize(bytes).expect("a file of safetensors");
        parse(family, cases, &[(family.to_string(), tensors)]).expect("a golden file has no mistakes")
    };
    FILES.iter().flat_map(of).collect()
});

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    #[test]
    fn every_file_is_included_and_has_cases() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
        let paths = |folder: &Path| -> Vec<PathBuf> {
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
        };
        // Folders of nouns have nothing but families; those of PyTorch's files and of transformers have files of other kinds.
        let nouns =
            paths(&root).into_iter().filter(|path| root.join("families").join(path.file_name().unwrap()).is_dir());
        let files = nouns.flat_map(|noun| paths(&noun)).chain(paths(&root));
        let name = |path: PathBuf| path.strip_prefix(&root).unwrap().with_extension("").to_string_lossy().into_owned();
        let mut there: Vec<String> =
            files.filter(|path| path.extension().is_some_and(|e| e == "json")).map(name).collect();
        there.sort();
        assert_eq!(there, FILES.iter().map(|(name, ..)| *name).collect::<Vec<_>>());
        for name in there {
            assert!(CASES.iter().any(|case| case.family == name), "{name}");
        }
    }
}
