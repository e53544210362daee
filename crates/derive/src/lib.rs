//! `#[derive(Module)]` and `#[derive(Collate)]`.

mod collate;
mod module;
mod path;

use proc_macro::TokenStream;
use syn::{DeriveInput, Error, parse_macro_input};

/// Implements `Module` and `Clone` for a struct: every field is a part of it under the field's name, or its number in a tuple struct.
/// Fields that are no modules (sizes, rates) say `#[module(skip)]`, `#[module(name = "..")]` gives a part another name, and the parts of
/// a field with `#[module(flatten)]` are parts of the struct. A clone has tensors of its own; a struct of which a field is not `Clone`
/// has no clones. `#[module(type_name = ..)]` on the struct is an expression for
/// the type's name, and `#[module(details = ..)]` one for the text of the method `details`, with which `Debug` is implemented too. Where
/// isograd is known by another path, `#[module(crate = path::to::nn)]` names it.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    module::implement(input).unwrap_or_else(Error::into_compile_error).into()
}

/// Implements `Collate` for a struct whose fields implement it. The batch of a struct `Pair` is a struct `PairBatch` with the same fields
/// and visibility, each the batch of its field.
#[proc_macro_derive(Collate)]
pub fn derive_collate(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    collate::implement(&input).unwrap_or_else(Error::into_compile_error).into()
}
