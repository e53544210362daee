//! Losses as modules, with PyTorch's defaults, and the options of their ops.

use crate::{Module, Visitor, VisitorMut, called};
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
        #[derive(Debug, Module)]
        pub struct $name {
            $($(#[$saved_doc])* pub $saved: Option<Tensor>,)*
            $($(#[$field_doc])* #[module(skip)] pub $field: $type,)*
            /// The reduction of the losses.
            #[module(skip)]
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
                called(self, &[input, target], || {
                    let call: fn(&Self, &Tensor, &Tensor) -> Result<Tensor> = $call;
                    call(self, input, target)
                })
            }
        }
    )*};
    (@module $name:ident) => {
        impl Module for $name {
            fn visit(&self, _: &mut Visitor<'_>) {}

            fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
        }
    };
}

losses! {
    /// [`Tensor::mse_loss`]: the squared difference of input and target, which broadcast. Errors: `Shape`, `Dtype`.
    MseLoss [] {} => |l, x, target| x.mse_loss(target, l.reduction);

    /// [`Tensor::l1_loss`]: the absolute difference of input and target, which broadcast. Errors: `Shape`, `Dtype`.
    L1Loss [] {} => |l, x, target| x.l1_loss(target, l.reduction);

    /// [`Tensor::smooth_l1_loss`] of input and target, which broadcast. Errors: `Shape`, `Dtype`; `Attr` if beta is negative.
    SmoothL1Loss [] {
        /// The difference from which the loss is linear.
        beta: f64 = 1.0,
    } => |l, x, target| x.smooth_l1_loss(target, l.beta, l.reduction);

    /// [`Tensor::huber_loss`] of input and target, which broadcast. Errors: `Shape`, `Dtype`; `Attr` unless delta is positive.
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

    /// [`Tensor::hinge_embedding_loss`] of distances and of labels 1 and -1. Errors: `Shape`, `Dtype`, `Attr`.
    HingeEmbeddingLoss [] {
        /// The distance from which pairs of label -1 have no loss.
        margin: f64 = 1.0,
    } => |l, x, y| x.hinge_embedding_loss(y, l.margin, l.reduction);

    /// [`Tensor::soft_margin_loss`] of scores and of labels 1 and -1. Errors: `Shape`, `Dtype`.
    SoftMarginLoss [] {} => |l, x, y| x.soft_margin_loss(y, l.reduction);

    /// [`Tensor::multi_margin_loss`] of scores `[N, C]` or `[C]` with classes `[N]` or `[]`. Errors: `Shape`, `Dtype`; `Attr` for
    /// another exponent than 1 and 2; `Index` for a class outside of `0..C`.
    MultiMarginLoss [
        /// A factor for each class, `[C]`.
        weight,
    ] {
        /// The exponent of a violation: 1 or 2.
        p: u32 = 1,
        /// The margin by which the score of the class exceeds the others.
        margin: f64 = 1.0,
    } => |l, x, target| {
        let &MultiMarginLoss { ref weight, p, margin, reduction } = l;
        x.multi_margin_loss(target, weight.as_ref(), &MultiMargin { p, margin, reduction })
    };

    /// [`Tensor::multilabel_margin_loss`] of scores `[N, C]` or `[C]` with lists of classes. Errors: `Shape`, `Dtype`, `Index`.
    MultilabelMarginLoss [] {} => |l, x, target| x.multilabel_margin_loss(target, l.reduction);

    /// [`Tensor::multilabel_soft_margin_loss`] of logits `[N, C]` or `[C]` with probabilities. Errors: `Shape`, `Dtype`.
    MultilabelSoftMarginLoss [
        /// A factor for each class, `[C]`.
        weight,
    ] {} => |l, x, y| x.multilabel_soft_margin_loss(y, l.weight.as_ref(), l.reduction);

    /// [`Tensor::poisson_nll_loss`] of rates or their logarithms, with counts. Errors: `Shape`, `Dtype`; `Attr` for a negative eps.
    PoissonNllLoss [] {
        /// The content of the input.
        input: Rate = Rate::Logarithm,
        /// The terms of the loss.
        terms: Terms = Terms::OfPrediction,
        /// Added to a plain rate before its logarithm.
        eps: f64 = 1e-8,
    } => |l, x, target| {
        let &PoissonNllLoss { input, terms, eps, reduction } = l;
        x.poisson_nll_loss(target, &PoissonNll { input, terms, eps, reduction })
    };

    /// [`Tensor::nll_loss`] of log probabilities `[N, C, d..]` or `[C]` with class indices `[N, d..]`. Errors: `Shape`,
    /// `Dtype`; `Index` for a class outside of `0..C`.
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
    /// probabilities; `Index` for a class outside of `0..C`.
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
        called(self, &[anchor, positive, negative], || anchor.triplet_loss(positive, negative, &self.options))
    }
}

losses!(@module TripletMarginLoss);

/// Losses of two tensors and a third. In braces: fields with their defaults.
macro_rules! losses_of_three {
    ($(
        $(#[$doc:meta])*
        $name:ident ($third:ident) { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)* } => $call:expr;
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// The reduction of the losses.
            pub reduction: Reduction,
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default,)* reduction: Reduction::Mean }
            }
        }

        impl $name {
            /// The loss of the two inputs.
            pub fn forward(&self, input: &Tensor, other: &Tensor, $third: &Tensor) -> Result<Tensor> {
                called(self, &[input, other, $third], || {
                    let call: fn(&Self, &Tensor, &Tensor, &Tensor) -> Result<Tensor> = $call;
                    call(self, input, other, $third)
                })
            }
        }

        losses!(@module $name);
    )*};
}

losses_of_three! {
    /// [`Tensor::cosine_embedding_loss`] of rows `[N, D]` with labels 1 and -1. Errors: `Shape`, `Dtype`, `Attr`.
    CosineEmbeddingLoss (y) {
        /// The cosine up to which pairs of label -1 have no loss.
        margin: f64 = 0.0,
    } => |l, a, b, y| a.cosine_embedding_loss(b, y, l.margin, l.reduction);

    /// [`Tensor::margin_ranking_loss`] of scores with labels 1, where the first should be larger, and -1. Errors: `Shape`, `Dtype`,
    /// `Attr`.
    MarginRankingLoss (y) {
        /// The difference from which a pair has no loss.
        margin: f64 = 0.0,
    } => |l, a, b, y| a.margin_ranking_loss(b, y, l.margin, l.reduction);

    /// [`Tensor::gaussian_nll_loss`] of means and targets, with variances. Errors: `Shape`, `Dtype`; `Attr` unless eps is positive.
    GaussianNllLoss (var) {
        /// The terms of the loss.
        terms: Terms = Terms::OfPrediction,
        /// The smallest variance.
        eps: f64 = 1e-6,
    } => |l, x, target, var| {
        let &GaussianNllLoss { terms, eps, reduction } = l;
        x.gaussian_nll_loss(target, var, &GaussianNll { terms, eps, reduction })
    };
}

/// [`Tensor::ctc_loss`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CtcLoss(pub Ctc);

impl CtcLoss {
    /// The loss of log-probabilities `[T, N, C]` with labels `[N, S]`, and the numbers of frames and of labels `[N]`. Errors: as there.
    pub fn forward(
        &self,
        log_probabilities: &Tensor,
        targets: &Tensor,
        input_lengths: &Tensor,
        target_lengths: &Tensor,
    ) -> Result<Tensor> {
        called(self, &[log_probabilities, targets, input_lengths, target_lengths], || {
            log_probabilities.ctc_loss(targets, input_lengths, target_lengths, &self.0)
        })
    }
}

impl Module for CtcLoss {
    fn visit(&self, _: &mut Visitor<'_>) {}

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
}
