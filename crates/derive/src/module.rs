//! `#[derive(Module)]`.

use crate::path::path_of;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote, quote_spanned};
use syn::{Attribute, Data, DeriveInput, Error, Field, Index, Member, Path, parse_quote, spanned::Spanned};

pub fn implement(mut input: DeriveInput) -> Result<Tokens, Error> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(input.span(), "Module can be derived for structs; implement it by hand for others"));
    };
    let nn = options(&input.attrs, Place::Struct)?.nn.map_or_else(|| path_of("nn"), |path| quote! { #path });
    let is_generic = input.generics.type_params().next().is_some();
    let mut parts = Vec::new();
    let mut bounds = Vec::new();
    for (i, field) in data.fields.iter().enumerate() {
        if options(&field.attrs, Place::Field)?.is_skipped {
            continue;
        }
        let (member, name) = named(i, field);
        let ty = &field.ty;
        // With the field's place, so that an error about its type points there.
        parts.push(quote_spanned! { ty.span() => visitor.part(#name, &self.#member); });
        bounds.push(quote! { #ty: #nn::Module });
    }
    if is_generic {
        let clause = input.generics.make_where_clause();
        bounds.into_iter().for_each(|bound| clause.predicates.push(parse_quote! { #bound }));
    }
    let name = &input.ident;
    let visitor = if parts.is_empty() { format_ident!("_visitor") } else { format_ident!("visitor") };
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();
    Ok(quote! {
        impl #impl_generics #nn::Module for #name #type_generics #where_clause {
            fn visit(&self, #visitor: &mut #nn::Visitor<'_>) {
                #(#parts)*
            }
        }
    })
}

/// A field as code names it, and as users read it.
fn named(i: usize, field: &Field) -> (Member, String) {
    match &field.ident {
        Some(name) => (Member::Named(name.clone()), name.to_string().trim_start_matches("r#").to_string()),
        None => (Member::Unnamed(Index::from(i)), i.to_string()),
    }
}

/// The options of `#[module(..)]`.
#[derive(Default)]
struct Options {
    is_skipped: bool,
    nn: Option<Path>,
}

#[derive(Clone, Copy)]
enum Place {
    Struct,
    Field,
}

fn options(attributes: &[Attribute], place: Place) -> Result<Options, Error> {
    let mut options = Options::default();
    for attribute in attributes.iter().filter(|a| a.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| match place {
            Place::Field if meta.path.is_ident("skip") => {
                options.is_skipped = true;
                Ok(())
            }
            Place::Struct if meta.path.is_ident("crate") => {
                options.nn = Some(meta.value()?.call(Path::parse_mod_style)?);
                Ok(())
            }
            Place::Field => Err(meta.error("expected `skip`")),
            Place::Struct => Err(meta.error("expected `crate = path`")),
        })?;
    }
    Ok(options)
}
