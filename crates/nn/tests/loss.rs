//! Losses as modules: the ops that they are, with PyTorch's defaults.

mod common;

use common::{cpu, f64s, values};
use isograd_core::{Kind, Result, Tensor};
use isograd_nn::loss::{CrossEntropy, KlTarget, Reduction, Triplet, TripletNegative};
use isograd_nn::{
    BceLoss, BceWithLogitsLoss, CrossEntropyLoss, HuberLoss, KlDivLoss, L1Loss, Module, MseLoss, NllLoss, SmoothL1Loss,
    TripletMarginLoss,
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
    let classes = Tensor::from_vec(vec![2i64, 1], 2, &cpu()).unwrap();
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
        |r, x, t| x.triplet_loss(t, &w, triplet(r)),
        &x,
        &t,
    );
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
    let classes = |v: &[i64]| Tensor::from_slice(v, v.len(), &cpu()).unwrap();
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
    assert_eq!(names(&NllLoss { weight: w, ..Default::default() }), ["weight"]);
    assert!(names(&BceLoss::default()).is_empty() && names(&TripletMarginLoss::default()).is_empty());
}
