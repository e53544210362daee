//! The files of the golden families, and the names that their cases have.

use crate::registry::Name;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

macro_rules! families {
    ($($name:literal)*) => {
        /// Name, cases and tensors of each family.
        pub(super) const FILES: &[(&str, &str, &[u8])] = &[$((
            $name,
            include_str!(concat!("../../golden/", $name, ".json")),
            include_bytes!(concat!("../../golden/", $name, ".safetensors")),
        )),*];
    };
}

families! {
    "attention" "conv" "elementwise/activation" "elementwise/binary" "elementwise/copy" "elementwise/fused_pointwise" "elementwise/in_place"
    "elementwise/unary" "graph/edges" "graph/mesh" "image/pooling" "image/resampling" "indexing/embedding" "indexing/index" "indexing/segment"
    "indexing/select" "linalg" "loss" "matrix/gemm_bias" "matrix/matmul" "matrix/products" "normalization/channel_norm" "normalization/norm"
    "optimizer" "random" "recurrent" "reduction" "sequence" "shape/arrange" "shape/concat" "shape/factory" "shape/view" "sparse"
}

static NAMES: LazyLock<BTreeMap<String, BTreeSet<Name>>> = LazyLock::new(|| {
    let mut names: BTreeMap<String, BTreeSet<Name>> = BTreeMap::new();
    for (family, cases, _) in FILES {
        let json: Value = serde_json::from_str(cases).unwrap_or_else(|e| panic!("{family}: {e}"));
        for case in json["cases"].as_array().into_iter().flatten() {
            let of_op = names.entry(text(&case["op"])).or_default();
            of_op.extend(case["inputs"].as_array().into_iter().flatten().map(|name| ("input", text(name))));
            let attributes = case["attributes"].as_object().into_iter().flatten();
            of_op.extend(attributes.map(|(name, _)| ("attribute", name.clone())));
        }
    }
    names
});

fn text(json: &Value) -> String {
    json.as_str().unwrap_or_default().into()
}

/// The attributes and inputs that an op has in golden cases.
pub(crate) fn names(op: &str) -> impl Iterator<Item = &'static Name> {
    NAMES.get(op).into_iter().flatten()
}
