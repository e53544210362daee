//! Losses as modules: the ops that they are, with PyTorch's defaults.

use crate::common::{cpu, f64s, values};
use isograd_core::{Kind, Result, Tensor};
use isograd_nn::loss::{
    CrossEntropy, Ctc, GaussianNll, KlTarget, MultiMargin, PoissonNll, Rate, Reduction, Terms, Triplet, TripletNegative,
};
use isograd_nn::{
    BceLoss, BceWithLogitsLoss, CosineEmbeddingLoss, CrossEntropyLoss, CtcLoss, GaussianNllLoss, HingeEmbeddingLoss,
    HuberLoss, KlDivLoss, L1Loss, MarginRankingLoss, Module, MseLoss, MultiMarginLoss, MultilabelMarginLoss,
    MultilabelSoftMarginLoss, NllLoss, PoissonNllLoss, SmoothL1Loss, SoftMarginLoss, TripletMarginLoss,
};

const REDUCTIONS: [Reduction; 4] = [Reduction::None, Reduction::Mean, Reduction::Sum, Reduction::BatchMean];

/// A module, and the op that it is, of `x` and a target.
fn same(
    module: impl Fn(Reduction, &Tensor, &Tensor) -> Result<Tensor>,
    op: impl Fn(Reduction, &Tensor, &Tensor) -> Result<Tensor>,
    x: &Tensor,
    target: &Tensor,
) {
    for reduction in REDUCTIONS {
        let (got, expected) = (module(reduction, x, target).unwrap(), op(reduction, x, target).unwrap());
        assert_eq!((got.dims(), values(&got)), (expected.dims(), values(&expected)), "{reduction:?}");
        assert!(values(&got).iter().any(|v| *v != 0.0));
    }
}

fn matrix(v: [f64; 6]) -> Tensor {
    f64s(&v).reshape((2, 3)).unwrap()
}

#[test]
fn each_is_its_op() {
    let (x, t) = (matrix([0.1, 0.9, 0.4, 0.7, 0.2, 0.6]), matrix([1.0, 0.0, 0.5, 0.25, 2.0, 0.75]));
    let (w, p) = (matrix([1.0, 2.0, 0.5, 0.0, 1.0, 3.0]), f64s(&[1.0, 2.0, 4.0]));
    let unit = t.clamp(None, Some(1.0.into())).unwrap();
    let classes = classes(&[2, 1], 2);
    same(|reduction, x, t| MseLoss { reduction }.forward(x, t), |r, x, t| x.mse_loss(t, r), &x, &t);
    same(|reduction, x, t| L1Loss { reduction }.forward(x, t), |r, x, t| x.l1_loss(t, r), &x, &t);
    same(
        |reduction, x, t| SmoothL1Loss { beta: 0.5, reduction }.forward(x, t),
        |r, x, t| x.smooth_l1_loss(t, 0.5, r),
        &x,
        &t,
    );
    same(
        |reduction, x, t| HuberLoss { delta: 0.5, reduction }.forward(x, t),
        |r, x, t| x.huber_loss(t, 0.5, r),
        &x,
        &t,
    );
    same(
        |reduction, x, t| BceLoss { weight: Some(w.clone()), reduction }.forward(x, t),
        |r, x, t| x.bce_loss(t, Some(&w), r),
        &x,
        &unit,
    );
    same(
        |reduction, x, t| {
            BceWithLogitsLoss { weight: Some(w.clone()), pos_weight: Some(p.clone()), reduction }.forward(x, t)
        },
        |r, x, t| x.bce_with_logits(t, Some(&w), Some(&p), r),
        &x,
        &unit,
    );
    for target in [KlTarget::Probabilities, KlTarget::Logarithms] {
        same(
            |reduction, x, t| KlDivLoss { target, reduction }.forward(x, t),
            |r, x, t| x.kl_div(t, target, r),
            &x,
            &unit,
        );
    }
    let options = |reduction, label_smoothing| CrossEntropy {
        weight: Some(p.clone()),
        ignore_index: Some(1),
        label_smoothing,
        reduction,
        token_bytes: None,
    };
    same(
        |reduction, x, t| NllLoss { weight: Some(p.clone()), ignore_index: Some(1), reduction }.forward(x, t),
        |r, x, t| x.nll_loss(t, &options(r, 0.0)),
        &x,
        &classes,
    );
    same(
        |reduction, x, t| {
            CrossEntropyLoss { weight: Some(p.clone()), ignore_index: Some(1), label_smoothing: 0.1, reduction }
                .forward(x, t)
        },
        |r, x, t| x.cross_entropy_with(t, &options(r, 0.1)),
        &x,
        &classes,
    );
    let triplet = |reduction| Triplet { margin: 2.0, p: 1.0, eps: 0.0, negative: TripletNegative::Nearest, reduction };
    same(
        |reduction, x, t| TripletMarginLoss { options: triplet(reduction) }.forward(x, t, &w),
        |r, x, t| x.triplet_loss(t, &w, &triplet(r)),
        &x,
        &t,
    );
}

fn classes(rows: &[i64], shape: impl Into<isograd_core::Shape>) -> Tensor {
    Tensor::from_slice(rows, shape, &cpu()).unwrap()
}

/// Log-probabilities of 3 frames of 2 sequences, their labels, and the numbers of frames and labels.
fn frames() -> [Tensor; 4] {
    let scores = [0.1, 0.9, 0.4, 0.7, 0.2, 0.6, 1.0, 0.0, 0.5, 0.25, 2.0, 0.75, 0.3, 0.6, -0.2, 0.0, 0.1, 0.2];
    let logarithms = f64s(&scores).reshape((3, 2, 3)).unwrap().log_softmax(-1).unwrap();
    [logarithms, classes(&[1, 2, 2, 0], (2, 2)), classes(&[3, 2], 2), classes(&[2, 1], 2)]
}

#[test]
fn margins_and_likelihoods_are_their_ops() {
    let (x, t) = (matrix([0.1, 0.9, 0.4, 0.7, 0.2, 0.6]), matrix([1.0, 0.0, 0.5, 0.25, 2.0, 0.75]));
    let (y, weight) = (f64s(&[1.0, -1.0]), f64s(&[1.0, 2.0, 4.0]));
    let signs = matrix([1.0, -1.0, 1.0, -1.0, -1.0, 1.0]);
    same(
        |reduction, x, t| CosineEmbeddingLoss { margin: 0.25, reduction }.forward(x, t, &y),
        |r, x, t| x.cosine_embedding_loss(t, &y, 0.25, r),
        &x,
        &t,
    );
    same(
        |reduction, x, t| MarginRankingLoss { margin: 0.5, reduction }.forward(x, t, &signs),
        |r, x, t| x.margin_ranking_loss(t, &signs, 0.5, r),
        &x,
        &t,
    );
    same(
        |reduction, x, t| HingeEmbeddingLoss { margin: 0.5, reduction }.forward(x, t),
        |r, x, t| x.hinge_embedding_loss(t, 0.5, r),
        &x,
        &signs,
    );
    same(|reduction, x, t| SoftMarginLoss { reduction }.forward(x, t), |r, x, t| x.soft_margin_loss(t, r), &x, &signs);
    same(
        |reduction, x, t| MultiMarginLoss { weight: Some(weight.clone()), p: 2, margin: 0.5, reduction }.forward(x, t),
        |reduction, x, t| x.multi_margin_loss(t, Some(&weight), &MultiMargin { p: 2, margin: 0.5, reduction }),
        &x,
        &classes(&[2, 1], 2),
    );
    same(
        |reduction, x, t| MultilabelMarginLoss { reduction }.forward(x, t),
        |r, x, t| x.multilabel_margin_loss(t, r),
        &x,
        &classes(&[2, 0, -1, 1, -1, 0], (2, 3)),
    );
    same(
        |reduction, x, t| MultilabelSoftMarginLoss { weight: Some(weight.clone()), reduction }.forward(x, t),
        |r, x, t| x.multilabel_soft_margin_loss(t, Some(&weight), r),
        &x,
        &t.clamp(None, Some(1.0.into())).unwrap(),
    );
    let (input, terms) = (Rate::Plain, Terms::All);
    same(
        |reduction, x, t| PoissonNllLoss { input, terms, eps: 0.25, reduction }.forward(x, t),
        |reduction, x, t| x.poisson_nll_loss(t, &PoissonNll { input, terms, eps: 0.25, reduction }),
        &x,
        &t,
    );
    let var = f64s(&[0.125, 2.0]);
    same(
        |reduction, x, t| GaussianNllLoss { terms, eps: 0.25, reduction }.forward(x, t, &var),
        |reduction, x, t| x.gaussian_nll_loss(t, &var, &GaussianNll { terms, eps: 0.25, reduction }),
        &x,
        &t,
    );
    let [logarithms, labels, frames, lengths] = frames();
    let options = |reduction| Ctc { blank: 0, reduction, zero_infinity: true };
    for reduction in [Reduction::None, Reduction::Mean, Reduction::Sum] {
        let got = CtcLoss(options(reduction)).forward(&logarithms, &labels, &frames, &lengths).unwrap();
        let expected = logarithms.ctc_loss(&labels, &frames, &lengths, &options(reduction)).unwrap();
        assert_eq!((got.dims(), values(&got)), (expected.dims(), values(&expected)), "{reduction:?}");
    }
}

/// The numbers of PyTorch 2.11.0's modules.
#[test]
fn defaults_of_margins_and_likelihoods_are_pytorchs() {
    let (x, t) = (matrix([0.1, 0.9, 0.4, 0.7, 0.2, 0.6]), matrix([1.0, 0.0, 0.5, 0.25, 2.0, 0.75]));
    let (y, scores, others) = (f64s(&[1.0, -1.0]), f64s(&[0.5, 2.0]), f64s(&[1.0, -1.5]));
    let is = |got: Result<Tensor>, expected: f64| {
        let got = got.unwrap().item::<f64>().unwrap();
        assert!((got - expected).abs() < 1e-12 * expected, "{got}, expected {expected}");
    };
    is(CosineEmbeddingLoss::default().forward(&x, &t, &y), 0.6170794283437633);
    is(MarginRankingLoss::default().forward(&scores, &others, &y), 2.0);
    is(HingeEmbeddingLoss::default().forward(&scores, &y), 0.25);
    is(SoftMarginLoss::default().forward(&scores, &y), 1.3005024976115398);
    is(MultiMarginLoss::default().forward(&x, &classes(&[2, 1], 2)), 0.85);
    is(MultilabelMarginLoss::default().forward(&x, &classes(&[2, 0, -1, 1, -1, 0], (2, 3))), 1.0333333333333332);
    let unit = t.clamp(None, Some(1.0.into())).unwrap();
    is(MultilabelSoftMarginLoss::default().forward(&x, &unit), 0.7853964426597579);
    is(PoissonNllLoss::default().forward(&x, &t), 1.4648121654825037);
    let all = PoissonNllLoss { input: Rate::Plain, terms: Terms::All, ..Default::default() };
    is(all.forward(&x, &t), 1.6672834156069356);
    let var = f64s(&[0.5, 2.0]);
    is(GaussianNllLoss::default().forward(&x, &t, &var), 0.4160416666666668);
    let all = GaussianNllLoss { terms: Terms::All, ..Default::default() };
    is(all.forward(&x, &t, &var), 1.3349801998713395);
    let [logarithms, labels, frames, lengths] = frames();
    is(CtcLoss::default().forward(&logarithms, &labels, &frames, &lengths), 1.2861399253187278);
    let sum = CtcLoss(Ctc { reduction: Reduction::Sum, ..Ctc::default() });
    is(sum.forward(&logarithms, &labels, &frames, &lengths), 3.492681036537822);
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let (x, y) = (matrix([0.1, 0.9, 0.4, 0.7, 0.2, 0.6]), f64s(&[1.0, -1.0]));
    let (long, rows) = (f64s(&[1.0; 4]), classes(&[0, 1, 2], 3));
    let refused = |got: Result<Tensor>, kind: Kind, op: &str| {
        let error = got.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(op), "{error}");
    };
    let shape = |got, op| refused(got, Kind::Shape, op);
    shape(CosineEmbeddingLoss::default().forward(&x, &x, &x), "cosine_embedding_loss");
    shape(MarginRankingLoss::default().forward(&y, &long, &y), "margin_ranking_loss");
    shape(HingeEmbeddingLoss::default().forward(&long, &y), "hinge_embedding_loss");
    shape(SoftMarginLoss::default().forward(&long, &y), "soft_margin_loss");
    shape(MultiMarginLoss::default().forward(&x, &rows), "multi_margin_loss");
    shape(MultilabelMarginLoss::default().forward(&x, &rows), "multilabel_margin_loss");
    shape(MultilabelSoftMarginLoss::default().forward(&x, &y), "multilabel_soft_margin_loss");
    shape(PoissonNllLoss::default().forward(&x, &y), "poisson_nll_loss");
    shape(GaussianNllLoss::default().forward(&x, &x, &long), "gaussian_nll_loss");
    let [logarithms, labels, frames, lengths] = frames();
    shape(CtcLoss::default().forward(&logarithms, &labels, &frames, &rows), "ctc_loss");
    refused(
        CtcLoss::default().forward(&logarithms, &labels, &frames.add_scalar(9).unwrap(), &lengths),
        Kind::Index,
        "ctc_loss",
    );
    let attr = |got, op| refused(got, Kind::Attr, op);
    attr(CosineEmbeddingLoss { margin: f64::NAN, ..Default::default() }.forward(&x, &x, &y), "margin");
    attr(MultiMarginLoss { p: 3, ..Default::default() }.forward(&x, &classes(&[2, 1], 2)), "p is 3");
    attr(PoissonNllLoss { eps: -1.0, ..Default::default() }.forward(&x, &x), "eps");
    attr(GaussianNllLoss { eps: 0.0, ..Default::default() }.forward(&x, &x, &y), "eps");
}

/// By hand, from PyTorch's formulas and default arguments.
#[test]
fn defaults_are_pytorchs() {
    let (x, t) = (f64s(&[0.0, 3.0]), f64s(&[0.5, 1.0]));
    let is = |got: Result<Tensor>, expected: f64| {
        let got = got.unwrap().item::<f64>().unwrap();
        assert!((got - expected).abs() < 1e-6, "{got}, expected {expected}");
    };
    is(MseLoss::default().forward(&x, &t), 4.25 / 2.0);
    is(L1Loss::default().forward(&x, &t), 2.5 / 2.0);
    is(SmoothL1Loss::default().forward(&x, &t), (0.125 + 1.5) / 2.0);
    is(HuberLoss::default().forward(&x, &t), (0.125 + 1.5) / 2.0);
    let (p, y) = (f64s(&[0.5, 0.75]), f64s(&[1.0, 0.0]));
    is(BceLoss::default().forward(&p, &y), (2f64.ln() + 4f64.ln()) / 2.0);
    let logits = f64s(&[0.0, 3f64.ln()]);
    is(BceWithLogitsLoss::default().forward(&logits, &y), (2f64.ln() + 4f64.ln()) / 2.0);
    is(KlDivLoss::default().forward(&p.log().unwrap(), &f64s(&[0.25, 0.75])), 0.25 * 0.5f64.ln() / 2.0);
    let classes = |v: &[i64]| classes(v, v.len());
    // Class -100 is left out of the mean.
    let logp = matrix([-1.0, -2.0, -3.0, -0.5, -0.25, -4.0]);
    is(NllLoss::default().forward(&logp, &classes(&[2, 1])), (3.0 + 0.25) / 2.0);
    is(NllLoss::default().forward(&logp, &classes(&[2, -100])), 3.0);
    let even = matrix([0.0; 6]);
    is(CrossEntropyLoss::default().forward(&even, &classes(&[2, 1])), 3f64.ln());
    is(CrossEntropyLoss::default().forward(&even, &classes(&[-100, 1])), 3f64.ln());
    let row = |v: [f64; 2]| f64s(&v).reshape((1, 2)).unwrap();
    let loss = TripletMarginLoss::default();
    is(loss.forward(&row([0.0, 0.0]), &row([3.0, 4.0]), &row([0.0, 2.0])), 5.0 - 2.0 + 1.0);
    assert_eq!((loss.options.p, loss.options.eps), (2.0, 1e-6));
    assert_eq!(loss.options.negative, TripletNegative::FromAnchor);
    // Shapes broadcast, or are refused.
    is(MseLoss::default().forward(&x, &p.reshape((2, 1)).unwrap()), (0.25 + 6.25 + 0.5625 + 5.0625) / 4.0);
    assert_eq!(MseLoss::default().forward(&x, &f64s(&[1.0; 3])).unwrap_err().kind(), Kind::Shape);
}

#[test]
fn weights_are_saved() {
    let names = |module: &dyn Module| module.state_dict().into_keys().collect::<Vec<_>>();
    let w = Some(f64s(&[1.0, 2.0, 3.0]));
    let logits = BceWithLogitsLoss { weight: w.clone(), pos_weight: w.clone(), ..Default::default() };
    assert_eq!(names(&logits), ["pos_weight", "weight"]);
    assert!(logits.parameters().is_empty());
    assert_eq!(names(&CrossEntropyLoss { weight: w.clone(), ..Default::default() }), ["weight"]);
    assert_eq!(names(&MultiMarginLoss { weight: w.clone(), ..Default::default() }), ["weight"]);
    assert_eq!(names(&MultilabelSoftMarginLoss { weight: w.clone(), ..Default::default() }), ["weight"]);
    assert_eq!(names(&NllLoss { weight: w, ..Default::default() }), ["weight"]);
    assert!(names(&BceLoss::default()).is_empty() && names(&TripletMarginLoss::default()).is_empty());
}
