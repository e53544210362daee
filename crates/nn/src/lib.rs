//! Modules, initialisers, optimizers, schedules, mixed precision and checkpoints.
//!
//! Losses are methods of [`Tensor`](isograd_core::Tensor). [`loss`] has their options, and modules such as [`CrossEntropyLoss`].
//! [`Activation`] is the activation of [`Linear::forward_with`].

extern crate self as isograd_nn;

mod details;
mod files;
mod hook;
mod init;
mod layers;
mod module;
mod number;
mod pattern;
mod recompute;
mod summary;
mod training;

#[doc(hidden)]
pub use details::fmt_module;
pub use files::*;
pub use hook::{Called, ForwardHook, called, is_hooked, profile_model};
pub use init::{Across, Fan, Gain, Init, Keeper};
pub use isograd_core::ops::Activation;
pub use isograd_derive::Module;
pub use layers::*;
pub use module::{
    Forward, Layer, LayerChange, LoadFloats, LoadNames, LoadOptions, Mode, Module, StateDict, Unmatched, Visitor,
    VisitorMut,
};
pub use recompute::Recompute;
pub use summary::{LayerSummary, Summary, summary};
pub use training::*;
