//! What trains a model: losses, optimizers, schedules, and what is done to gradients and weights between steps.

mod average;
pub(crate) mod clip;
pub mod loss;
pub mod optim;
mod scaler;
pub mod schedule;

pub use average::{Averaged, Averaging};
pub use clip::{clip_grad_norm, clip_grad_norm_finite, clip_grad_value, grad_norm};
pub use loss::{
    BceLoss, BceWithLogitsLoss, CosineEmbeddingLoss, CrossEntropyLoss, CtcLoss, GaussianNllLoss, HingeEmbeddingLoss,
    HuberLoss, KlDivLoss, L1Loss, MarginRankingLoss, MseLoss, MultiMarginLoss, MultilabelMarginLoss,
    MultilabelSoftMarginLoss, NllLoss, PoissonNllLoss, SmoothL1Loss, SoftMarginLoss, TripletMarginLoss,
};
pub use optim::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Adjust, Asgd, Group, Grouped, Lamb, Lars, Lbfgs, LineSearch,
    Lion, Muon, Nadam, Optimizer, Radam, RmsProp, Rprop, Scaling, Scheduled, Sgd,
};
pub use scaler::GradScaler;
pub use schedule::Schedule;
