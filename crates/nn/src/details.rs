//! How layers print: their extents and options in place of their tensors.

use crate::Module;
use crate::summary::short;
use isograd_core::Tensor;
use std::fmt;

/// `Debug` of modules: the type's name with the [`details`](Module::details), or with the shapes of all parameters.
#[doc(hidden)]
pub fn fmt_module(module: &(impl Module + ?Sized), f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let kind = short(module.type_name());
    if let Some(details) = module.details() {
        return write!(f, "{kind}({details})");
    }
    let mut fields = f.debug_struct(&kind);
    for (name, t) in module.named_parameters() {
        fields.field(&name, &t);
    }
    fields.finish()
}

/// The extent of an axis; 0 for an axis that the tensor does not have.
pub(crate) fn extent(t: &Tensor, axis: usize) -> usize {
    t.dims().get(axis).copied().unwrap_or(0)
}

/// The end of a layer's details that says whether it has a bias.
pub(crate) fn bias(bias: &Option<Tensor>) -> &'static str {
    if bias.is_some() { ", bias" } else { "" }
}

/// An option as an end of a layer's details, where it is not the default.
pub(crate) fn unless<T: PartialEq + fmt::Debug>(name: &str, value: T, default: T) -> String {
    if value == default { String::new() } else { format!(", {name} {value:?}") }
}
