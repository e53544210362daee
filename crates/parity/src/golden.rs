//! Values and gradients from PyTorch, included in this program.

use crate::cases::{Recorded, parse};
use safetensors::SafeTensors;
use std::sync::LazyLock;

macro_rules! families {
    ($($name:literal)*) => {
        /// Name, cases and tensors of each family.
        const FILES: &[(&str, &str, &[u8])] = &[$((
            $name,
            include_str!(concat!("../golden/", $name, ".json")),
            include_bytes!(concat!("../golden/", $name, ".safetensors")),
        )),*];
    };
}

families! {
    "activation" "arrange" "attention" "binary" "channel_norm" "convolution" "embedding" "fused_pointwise" "gemm_bias" "graph" "in_place" "indexing" "linalg"
    "loss" "matmul" "mesh" "normalization" "optimizer" "pooling" "products" "recurrent" "reduction" "resampling" "scalars" "selection" "sequence" "shapes" "sparse"
    "table28" "unary" "utility"
}

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
    use std::path::Path;

    #[test]
    fn every_file_is_included_and_has_cases() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut there: Vec<String> = files
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        there.sort();
        assert_eq!(there, FILES.iter().map(|(name, ..)| *name).collect::<Vec<_>>());
        for name in there {
            assert!(CASES.iter().any(|case| case.family == name), "{name}");
        }
    }
}
