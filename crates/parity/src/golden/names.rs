//! The names that the cases of the golden families have.

use crate::registry::Name;
use isograd_golden::FILES;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

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
