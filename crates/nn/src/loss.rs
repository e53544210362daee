//! Losses as modules, with PyTorch's defaults, and the options of their ops.

use crate::{Module, Visitor};
use isograd_core::{Result, Tensor};

pub use isograd_core::ops::loss::*;

/// In brackets: tensors that are saved with a model. In braces: other fields with their defaults.
macro_rules! losses {
    ($(
        $(#[$doc:meta])*
        $name:ident [$($(#[$saved_doc:meta])* $saved:ident,)*] {
            $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)*
        } => $call:expr;
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            $($(#[$saved_doc])* pub $saved: Option<Tensor>,)*
            $($(#[$field_doc])* pub $field: $type,)*
            /// The reduction of the losses.
            pub reduction: Reduction,
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($saved: None,)* $($field: $default,)* reduction: Reduction::Mean }
            }
        }

        impl $name {
            /// The loss of `input` with respect to `target`.
            pub fn forward(&self, input: &Tensor, target: &Tensor) -> Result<Tensor> {
                let call: fn(&Self, &Tensor, &Tensor) -> Result<Tensor> = $call;
                call(self, input, target)
            }
        }

        losses!(@module $name $($saved)*);
    )*};
    (@module $name:ident) => {
        impl Module for $name {
            fn visit(&self, _: &mut Visitor<'_>) {}
        }
    };
    (@module $name:ident $($saved:ident)+) => {
        impl Module for $name {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                $(visitor.part(stringify!($saved), &self.$saved);)+
            }
        }
    };
}

losses! {
    /// [`Tensor::mse_loss`]: the squared difference of input and target, which have the same shape. Errors: `Shape`, `Dtype`.
    MseLoss [] {} => |l, x, target| x.mse_loss(target, l.reduction);

    /// [`Tensor::l1_loss`]: the absolute difference of input and target, which have the same shape. Errors: `Shape`, `Dtype`.
    L1Loss [] {} => |l, x, target| x.l1_loss(target, l.reduction);

    /// [`Tensor::smooth_l1_loss`] of input and target of the same shape. Errors: `Shape`, `Dtype`; `Attr` if beta is negative.
    SmoothL1Loss [] {
        /// The difference from which the loss is linear.
        beta: f64 = 1.0,
    } => |l, x, target| x.smooth_l1_loss(target, l.beta, l.reduction);

    /// [`Tensor::huber_loss`] of input and target of the same shape. Errors: `Shape`, `Dtype`; `Attr` unless delta is positive.
    HuberLoss [] {
        /// The difference from which the loss is linear.
        delta: f64 = 1.0,
    } => |l, x, target| x.huber_loss(target, l.delta, l.reduction);

    /// [`Tensor::bce_loss`] of probabilities and targets of the same shape. Errors: `Shape`, `Dtype`; `Value` for an input outside
    /// of `0..=1`.
    BceLoss [
        /// A factor for each element, with the input's shape.
        weight,
    ] {} => |l, p, target| p.bce_loss(target, l.weight.as_ref(), l.reduction);

    /// [`Tensor::bce_with_logits`] of logits and targets of the same shape. Errors: `Shape`, `Dtype`.
    BceWithLogitsLoss [
        /// A factor for each element, with the input's shape.
        weight,
        /// A factor for the term of the target, which broadcasts to the input's shape.
        pos_weight,
    ] {} => |l, x, target| x.bce_with_logits(target, l.weight.as_ref(), l.pos_weight.as_ref(), l.reduction);

    /// [`Tensor::kl_div`] of log probabilities and targets of the same shape. The default is the mean over all elements; for the
    /// mean over a batch use [`Reduction::BatchMean`]. Errors: `Shape`, `Dtype`.
    KlDivLoss [] {
        /// The content of the target.
        target: KlTarget = KlTarget::Probabilities,
    } => |l, x, target| x.kl_div(target, l.target, l.reduction);

    /// [`Tensor::nll_loss`] of log probabilities `[N, C, d..]` or `[C]` with class indices `[N, d..]`. Errors: `Shape`,
    /// `Dtype`; `Value` for a class outside of `0..C`.
    NllLoss [
        /// A factor for each class, `[C]`.
        weight,
    ] {
        /// The ignored target; -100 if absent.
        ignore_index: Option<i64> = None,
    } => |l, logp, target| {
        let &NllLoss { ref weight, ignore_index, reduction } = l;
        let options = CrossEntropy { weight: weight.clone(), ignore_index, reduction, ..CrossEntropy::default() };
        logp.nll_loss(target, &options)
    };

    /// [`Tensor::cross_entropy_with`] of logits `[N, C, d..]` or `[C]` with class indices `[N, d..]` or probabilities
    /// `[N, C, d..]`. Errors: `Shape`, `Dtype`; `Attr` for a smoothing outside of `0..=1` or an `ignore_index` with
    /// probabilities; `Value` for a class outside of `0..C`.
    CrossEntropyLoss [
        /// A factor for each class, `[C]`.
        weight,
    ] {
        /// The ignored target; -100 if absent. Only with class indices.
        ignore_index: Option<i64> = None,
        /// The fraction of the target that is spread evenly over the classes.
        label_smoothing: f64 = 0.0,
    } => |l, logits, target| {
        let &CrossEntropyLoss { ref weight, ignore_index, label_smoothing, reduction } = l;
        let weight = weight.clone();
        let options = CrossEntropy { weight, ignore_index, label_smoothing, reduction, token_bytes: None };
        logits.cross_entropy_with(target, &options)
    };
}

/// [`Tensor::triplet_loss`] of rows `[N, D]`. Errors: `Shape`, `Dtype`; `Attr` unless the margin is positive and p at least 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct TripletMarginLoss {
    /// Margin 1, norm 2 and the mean, unless set.
    pub options: Triplet,
}

impl TripletMarginLoss {
    /// The loss of rows that should be nearer to the rows of `positive` than to the rows of `negative`.
    pub fn forward(&self, anchor: &Tensor, positive: &Tensor, negative: &Tensor) -> Result<Tensor> {
        anchor.triplet_loss(positive, negative, self.options)
    }
}

losses!(@module TripletMarginLoss);
