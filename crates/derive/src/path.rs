//! The paths of isograd's crates as a user's crate knows them.

use proc_macro2::{Ident, Span, TokenStream as Tokens};
use quote::{format_ident, quote};
use std::path::Path;

/// The path of the crate `isograd-{part}`, or of the module `part` of isograd.
pub fn path_of(part: &str) -> Tokens {
    let part = Ident::new(part, Span::call_site());
    if let Some(name) = dependency("isograd") {
        return quote! { ::#name::#part };
    }
    let name = dependency(&format!("isograd-{part}")).unwrap_or_else(|| format_ident!("isograd_{part}"));
    quote! { ::#name }
}

/// The path of isograd-core, whose items are in the root of isograd.
pub fn core_path() -> Tokens {
    let name = dependency("isograd").or_else(|| dependency("isograd-core"));
    let name = name.unwrap_or_else(|| format_ident!("isograd_core"));
    quote! { ::#name }
}

/// The name of a dependency in the code of the user's crate.
fn dependency(name: &str) -> Option<Ident> {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR")?;
    let manifest = std::fs::read_to_string(Path::new(&folder).join("Cargo.toml")).ok()?;
    let key = key_of(&manifest, name)?;
    Some(Ident::new(&key.replace('-', "_"), Span::call_site()))
}

/// The key of a dependency in a manifest: the name of its package, or another one that `package = ".."` of the same table renames. A reader
/// of TOML would be most of this crate's compile time.
fn key_of<'a>(manifest: &'a str, name: &str) -> Option<&'a str> {
    let bare = |key: &'a str| key.trim().trim_matches(['"', '\'']);
    let is_renaming = |text: &str| {
        text.split_once("package").is_some_and(|(_, value)| {
            let value = value.trim_start().strip_prefix('=').unwrap_or_default().trim_start();
            value.trim_start_matches(['"', '\'']).strip_prefix(name).is_some_and(|rest| rest.starts_with(['"', '\'']))
        })
    };
    // `[dependencies]`, and the key of `[dependencies.key]`.
    let (mut is_list, mut table) = (false, None);
    for line in manifest.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.split(']').next().unwrap_or_default();
            let (rest, last) = header.rsplit_once('.').unwrap_or(("", header));
            is_list = last.ends_with("dependencies");
            table = rest.ends_with("dependencies").then(|| bare(last));
            if table == Some(name) {
                return table;
            }
        } else if is_list {
            let key = bare(line.split(['.', '=']).next().unwrap_or_default());
            if key == name || is_renaming(line) {
                return Some(key);
            }
        } else if table.is_some() && line.starts_with("package") && is_renaming(line) {
            return table;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::key_of;

    #[test]
    fn dependencies_are_found_by_the_names_of_their_packages() {
        for (manifest, key) in [
            ("[dependencies]\nisograd = \"0.1\"", Some("isograd")),
            ("[dependencies]\nisograd.workspace = true", Some("isograd")),
            ("[target.'cfg(unix)'.dependencies]\niso = { version = \"0.1\", package = \"isograd\" }", Some("iso")),
            ("[dev-dependencies.isograd]\nversion = \"0.1\"", Some("isograd")),
            ("[dependencies.iso]\nversion = \"0.1\"\npackage = 'isograd'", Some("iso")),
            ("[dependencies]\nisograd-nn = \"0.1\"\n# isograd = \"0.1\"", None),
            ("[dependencies]\nother = { package = \"isograd-nn\" }", None),
            ("[package]\nname = \"isograd\"\n[features]\nisograd = []", None),
        ] {
            assert_eq!(key_of(manifest, "isograd"), key, "{manifest}");
        }
    }
}
