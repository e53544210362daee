//! `#[derive(Collate)]`.

use crate::path::{core_path, path_of};
use proc_macro2::{Ident, TokenStream as Tokens};
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Fields, Type, Visibility, spanned::Spanned};

/// A field of a sample.
struct SampleField<'a> {
    visibility: &'a Visibility,
    name: &'a Ident,
    ty: &'a Type,
}

pub fn implement(input: &DeriveInput) -> Result<Tokens, Error> {
    let parts = parts(input)?;
    let (data, core) = (path_of("data"), core_path());
    let (sample, visibility) = (&input.ident, &input.vis);
    let batch = format_ident!("{sample}Batch");
    let doc = format!(" A batch of [`{sample}`].");
    let names: Vec<_> = parts.iter().map(|part| part.name).collect();
    let types: Vec<_> = parts.iter().map(|part| part.ty).collect();
    let visibilities = parts.iter().map(|part| part.visibility);
    let docs = names.iter().map(|name| format!(" The batch of `{name}`."));
    Ok(quote! {
        #[doc = #doc]
        #[derive(Clone, Debug)]
        #visibility struct #batch {
            #(#[doc = #docs] #visibilities #names: <#types as #data::Collate>::Batch,)*
        }

        impl #core::Tensors for #batch {
            fn map(
                &self,
                f: &mut dyn ::core::ops::FnMut(&#core::Tensor) -> #core::Result<#core::Tensor>,
            ) -> #core::Result<Self> {
                ::core::result::Result::Ok(#batch { #(#names: #core::Tensors::map(&self.#names, f)?,)* })
            }

            fn visit<'a>(&'a self, f: &mut dyn ::core::ops::FnMut(&'a #core::Tensor)) {
                #(#core::Tensors::visit(&self.#names, f);)*
            }
        }

        impl #data::Collate for #sample {
            type Batch = #batch;

            fn collate(items: ::std::vec::Vec<Self>) -> #core::Result<#data::Staged<#batch>> {
                #(let mut #names = ::std::vec::Vec::with_capacity(items.len());)*
                for item in items {
                    #(#names.push(item.#names);)*
                }
                #(let #names = <#types as #data::Collate>::collate(#names)?;)*
                ::core::result::Result::Ok(#data::Staged::new(move |device| {
                    ::core::result::Result::Ok(#batch { #(#names: #names.to(device)?,)* })
                }))
            }
        }
    })
}

/// The fields of a struct with named fields and without generic parameters.
fn parts(input: &DeriveInput) -> Result<Vec<SampleField<'_>>, Error> {
    let expected = "Collate can be derived for structs with named fields and no generic parameters";
    let fields = match &input.data {
        Data::Struct(data) if input.generics.params.is_empty() => &data.fields,
        _ => return Err(Error::new(input.span(), expected)),
    };
    let Fields::Named(fields) = fields else { return Err(Error::new(input.span(), expected)) };
    let named = fields.named.iter().filter_map(|field| Some((field, field.ident.as_ref()?)));
    Ok(named.map(|(field, name)| SampleField { visibility: &field.vis, name, ty: &field.ty }).collect())
}
