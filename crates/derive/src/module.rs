//! `#[derive(Module)]`.

use crate::path::path_of;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote, quote_spanned};
use syn::{Attribute, Data, DeriveInput, Error, Field, Index, LitStr, Member, Path, parse_quote, spanned::Spanned};

pub fn implement(mut input: DeriveInput) -> Result<Tokens, Error> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(input.span(), "Module can be derived for structs; implement it by hand for others"));
    };
    let of_struct = options(&input.attrs, Target::Struct)?;
    let nn = of_struct.nn.map_or_else(|| path_of("nn"), |path| quote! { #path });
    let type_name = of_struct.type_name.map(|name| quote! { fn type_name(&self) -> &'static str { #name } });
    let details = of_struct.details;
    let details_method = details.as_ref().map(|text| {
        quote! {
            fn details(&self) -> ::core::option::Option<::std::string::String> {
                ::core::option::Option::Some(#text)
            }
        }
    });
    let is_generic = input.generics.type_params().next().is_some();
    let (mut parts, mut parts_mut, mut fields) = (Vec::new(), Vec::new(), Vec::new());
    let (mut bounds, mut clone_bounds) = (Vec::new(), Vec::new());
    for (i, field) in data.fields.iter().enumerate() {
        let options = options(&field.attrs, Target::Field)?;
        let (member, name) = named(i, field);
        let name = options.name.unwrap_or(name);
        let ty = &field.ty;
        fields.push(quote! { #member: ::core::clone::Clone::clone(&self.#member) });
        // With a lifetime of its own, a bound that does not hold is no error: the struct is then not `Clone`.
        clone_bounds.push(quote! { for<'of_clone> #ty: ::core::clone::Clone });
        if options.is_skipped {
            continue;
        }
        // With the field's place, so that an error about its type points there.
        parts.push(match options.is_flat {
            true => quote_spanned! { ty.span() => #nn::Module::visit(&self.#member, visitor); },
            false => quote_spanned! { ty.span() => visitor.part(#name, &self.#member); },
        });
        parts_mut.push(quote! { visitor.part(&mut self.#member); });
        bounds.push(quote! { #ty: #nn::Module });
    }
    if is_generic {
        let clause = input.generics.make_where_clause();
        bounds.into_iter().for_each(|bound| clause.predicates.push(parse_quote! { #bound }));
    }
    let mut of_clone = input.generics.clone();
    let clause = of_clone.make_where_clause();
    clone_bounds.into_iter().for_each(|bound| clause.predicates.push(parse_quote! { #bound }));
    let name = &input.ident;
    let visitor = if parts.is_empty() { format_ident!("_visitor") } else { format_ident!("visitor") };
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();
    let (_, _, where_clone) = of_clone.split_for_impl();
    let debug = details.map(|_| {
        quote! {
            impl #impl_generics ::core::fmt::Debug for #name #type_generics #where_clause {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    #nn::fmt_module(self, f)
                }
            }
        }
    });
    Ok(quote! {
        impl #impl_generics #nn::Module for #name #type_generics #where_clause {
            fn visit(&self, #visitor: &mut #nn::Visitor<'_>) {
                #(#parts)*
            }

            fn visit_mut(&mut self, #visitor: &mut #nn::VisitorMut<'_>) {
                #(#parts_mut)*
            }

            #type_name

            #details_method
        }

        #debug

        impl #impl_generics ::core::clone::Clone for #name #type_generics #where_clone {
            fn clone(&self) -> Self {
                #nn::VisitorMut::cloned(|| Self { #(#fields,)* })
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
    is_flat: bool,
    name: Option<String>,
    nn: Option<Path>,
    type_name: Option<Tokens>,
    details: Option<Tokens>,
}

#[derive(Clone, Copy)]
enum Target {
    Struct,
    Field,
}

fn options(attributes: &[Attribute], target: Target) -> Result<Options, Error> {
    let mut options = Options::default();
    for attribute in attributes.iter().filter(|a| a.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| match target {
            Target::Field if meta.path.is_ident("skip") => {
                options.is_skipped = true;
                Ok(())
            }
            Target::Field if meta.path.is_ident("flatten") => {
                options.is_flat = true;
                Ok(())
            }
            Target::Field if meta.path.is_ident("name") => {
                options.name = Some(meta.value()?.parse::<LitStr>()?.value());
                Ok(())
            }
            Target::Struct if meta.path.is_ident("crate") => {
                options.nn = Some(meta.value()?.call(Path::parse_mod_style)?);
                Ok(())
            }
            Target::Struct if meta.path.is_ident("type_name") => {
                options.type_name = Some(meta.value()?.parse()?);
                Ok(())
            }
            Target::Struct if meta.path.is_ident("details") => {
                options.details = Some(meta.value()?.parse()?);
                Ok(())
            }
            Target::Field => Err(meta.error("expected `skip`, `flatten` or `name = \"..\"`")),
            Target::Struct => Err(meta.error("expected `crate = path`, `details = ..` or `type_name = ..`")),
        })?;
    }
    Ok(options)
}
