//! The paths of isograd's crates as a user's crate knows them.

use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Ident, Span, TokenStream as Tokens};
use quote::{format_ident, quote};

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
    match crate_name(name) {
        Ok(FoundCrate::Name(name)) => Some(Ident::new(&name, Span::call_site())),
        _ => None,
    }
}
