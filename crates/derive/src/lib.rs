//! `#[derive(Module)]`.

use proc_macro::TokenStream;
use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Ident, Span, TokenStream as Tokens};
use quote::{format_ident, quote, quote_spanned};
use syn::{
    Attribute, Data, DeriveInput, Error, Field, Index, Member, Path, parse_macro_input, parse_quote, spanned::Spanned,
};

/// Implements `Module` for a struct: every field is a part of it under the field's name, or its number in a tuple struct.
/// Fields that are no modules (sizes, rates) say `#[module(skip)]`. Where isograd is known by another path,
/// `#[module(crate = path::to::nn)]` on the struct names it.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    implement(input).unwrap_or_else(|error| error.to_compile_error()).into()
}

fn implement(mut input: DeriveInput) -> Result<Tokens, Error> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(input.span(), "Module can be derived for structs; implement it by hand for others"));
    };
    let nn = options(&input.attrs, Place::Struct)?.nn.map_or_else(nn_path, |path| quote! { #path });
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

/// What stands in `#[module(..)]`.
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
