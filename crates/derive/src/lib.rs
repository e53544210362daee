//! `#[derive(Module)]`.

use proc_macro::TokenStream;
use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Ident, Span, TokenStream as Tokens};
use quote::quote;
use syn::{Data, DeriveInput, Error, Field, Fields, parse_macro_input, spanned::Spanned};

/// Implements `Module` for a struct: every field is a part of it under the field's name. Fields that are no modules
/// (sizes, rates) say `#[module(skip)]`.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    implement(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

fn implement(input: &DeriveInput) -> Result<Tokens, Error> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(input.span(), "Module can be derived for structs; implement it by hand for others"));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new(input.span(), "Module is derived for named fields, since parameters have names"));
    };
    let mut parts = Vec::new();
    for field in &fields.named {
        if let (false, Some(name)) = (is_skipped(field)?, &field.ident) {
            let text = name.to_string();
            parts.push(quote! { visitor.part(#text, &self.#name); });
        }
    }
    let (nn, name) = (nn_path(), &input.ident);
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();
    Ok(quote! {
        impl #impl_generics #nn::Module for #name #type_generics #where_clause {
            fn visit(&self, visitor: &mut #nn::Visitor<'_>) {
                #(#parts)*
            }
        }
    })
}

fn is_skipped(field: &Field) -> Result<bool, Error> {
    let mut skipped = false;
    for attribute in field.attrs.iter().filter(|a| a.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("skip") {
                return Err(meta.error("expected `skip`"));
            }
            skipped = true;
            Ok(())
        })?;
    }
    Ok(skipped)
}

/// The path of the nn crate as the user's crate knows it.
fn nn_path() -> Tokens {
    if let Ok(FoundCrate::Name(name)) = crate_name("isograd") {
        let name = Ident::new(&name, Span::call_site());
        return quote! { ::#name::nn };
    }
    match crate_name("isograd-nn") {
        Ok(FoundCrate::Name(name)) => {
            let name = Ident::new(&name, Span::call_site());
            quote! { ::#name }
        }
        _ => quote! { ::isograd_nn },
    }
}
