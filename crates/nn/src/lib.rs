//! Modules, initialisers, optimizers, schedules, mixed precision and checkpoints.
//!
//! Losses are methods of [`Tensor`](isograd_core::Tensor). [`loss`] has their options, and modules such as [`CrossEntropyLoss`].
//! [`Activation`] is the activation of [`Linear::forward_with`].

extern crate self as isograd_nn;

mod activation;
mod attention;
mod average;
mod checkpoint;
mod clip;
mod conv;
mod file;
mod gated;
mod graph;
mod hook;
mod init;
mod layers;
pub mod loss;
mod mesh;
mod module;
mod norm;
mod number;
pub mod optim;
mod pad;
mod pattern;
mod pickle;
mod pool;
mod recompute;
mod recurrent;
mod resample;
mod scaler;
pub mod schedule;
mod shards;
mod summary;
mod torch;
mod weight;

pub use activation::*;
pub use attention::*;
pub use average::{Averaged, Averaging};
pub use checkpoint::Checkpoint;
pub use clip::{clip_grad_norm, clip_grad_norm_finite, clip_grad_value, grad_norm};
pub use conv::*;
pub use file::{Contents, Metadata, load, load_checked, save};
pub use gated::SwiGlu;
pub use graph::*;
pub use hook::{Called, ForwardHook, called};
pub use init::{Across, Fan, Gain, Init, Keeper};
pub use isograd_core::ops::Activation;
pub use isograd_derive::Module;
pub use layers::{Bilinear, Dropout, Embedding, EmbeddingBag, Flatten, Identity, IntoLayer, Linear, Sequential};
pub use loss::{
    BceLoss, BceWithLogitsLoss, CosineEmbeddingLoss, CrossEntropyLoss, CtcLoss, GaussianNllLoss, HingeEmbeddingLoss,
    HuberLoss, KlDivLoss, L1Loss, MarginRankingLoss, MseLoss, MultiMarginLoss, MultilabelMarginLoss,
    MultilabelSoftMarginLoss, NllLoss, PoissonNllLoss, SmoothL1Loss, SoftMarginLoss, TripletMarginLoss,
};
pub use mesh::{MeshConv, SpiralConv};
pub use module::{
    Forward, Layer, LoadFloats, LoadNames, LoadOptions, Mode, Module, StateDict, Unmatched, Visitor, VisitorMut,
};
pub use norm::{
    BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm, InstanceNorm, InstanceNorm1d, InstanceNorm2d,
    InstanceNorm3d, LayerNorm, LocalResponseNorm, NormOptions, RmsNorm,
};
pub use optim::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Adjust, Asgd, Group, Grouped, Lamb, Lars, Lbfgs, LineSearch,
    Lion, Muon, Nadam, Optimizer, Radam, RmsProp, Rprop, Scaling, Scheduled, Sgd,
};
pub use pad::*;
pub use pool::*;
pub use recompute::Recompute;
pub use recurrent::*;
pub use resample::*;
pub use scaler::GradScaler;
pub use schedule::Schedule;
pub use shards::{load_part, save_index};
pub use summary::{LayerSummary, Summary, summary};
pub use weight::{SpectralNorm, WeightNorm};
