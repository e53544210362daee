//! Numbers that options refuse: infinite ones, and those that are infinite or 0 in the dtype of the arithmetic.

use crate::common::{cpu, parameter, set_grad, values};
use isograd_core::{DType, Kind, Result, Tensor};
use isograd_nn::schedule::{Constant, Cosine, OneCycle, Schedule, Step};
use isograd_nn::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Asgd, Fan, Gain, GradScaler, Init, Lamb, Lars, Lion, Muon,
    Nadam, Optimizer, Radam, RmsProp, Rprop, Sgd, clip_grad_norm, clip_grad_value,
};

const INF: f64 = f64::INFINITY;
/// Infinite in f32.
const HUGE: f64 = 1e300;

fn p() -> Vec<Tensor> {
    vec![parameter(&[1.0, 2.0], DType::F32)]
}

fn m() -> Vec<Tensor> {
    vec![parameter(&[1.0; 4], DType::F32).detach().reshape((2, 2)).unwrap().require_grad().unwrap()]
}

/// Every option of every optimizer that takes a number, with this one, and the name that its error gives.
fn optimizers(v: f64) -> Vec<(Box<dyn Optimizer>, &'static str)> {
    vec![
        (Box::new(Sgd::from_parameters(p()).lr(v)), "lr"),
        (Box::new(Sgd::from_parameters(p()).weight_decay(v)), "weight_decay"),
        (Box::new(Sgd::from_parameters(p()).momentum(v)), "momentum"),
        (Box::new(Sgd::from_parameters(p()).momentum(0.9).dampening(v)), "dampening"),
        (Box::new(Adam::from_parameters(p()).lr(v)), "lr"),
        (Box::new(Adam::from_parameters(p()).eps(v)), "eps"),
        (Box::new(Adam::from_parameters(p()).betas(v, 0.9)), "beta1"),
        (Box::new(AdamW::from_parameters(p()).betas(0.9, v)), "beta2"),
        (Box::new(AdamW::from_parameters(p()).weight_decay(v)), "weight_decay"),
        (Box::new(Adagrad::from_parameters(p()).lr_decay(v)), "lr_decay"),
        (Box::new(Adagrad::from_parameters(p()).initial_accumulator(v)), "initial_accumulator"),
        (Box::new(Adagrad::from_parameters(p()).eps(v)), "eps"),
        (Box::new(RmsProp::from_parameters(p()).alpha(v)), "alpha"),
        (Box::new(RmsProp::from_parameters(p()).eps(v)), "eps"),
        (Box::new(RmsProp::from_parameters(p()).momentum(v)), "momentum"),
        (Box::new(Lars::from_parameters(p()).momentum(v)), "momentum"),
        (Box::new(Lars::from_parameters(p()).trust(v)), "trust"),
        (Box::new(Lars::from_parameters(p()).eps(v)), "eps"),
        (Box::new(Lamb::from_parameters(p()).betas(v, 0.9)), "beta1"),
        (Box::new(Lamb::from_parameters(p()).eps(v)), "eps"),
        (Box::new(Muon::from_parameters(m()).momentum(v)), "momentum"),
        (Box::new(Muon::from_parameters(m()).eps(v)), "eps"),
        (Box::new(Muon::from_parameters(m()).ns_coefficients([v, 1.0, 1.0])), "a"),
        (Box::new(Muon::from_parameters(m()).ns_coefficients([1.0, v, 1.0])), "b"),
        (Box::new(Muon::from_parameters(m()).ns_coefficients([1.0, 1.0, v])), "c"),
        (Box::new(Adamax::from_parameters(p()).eps(v)), "eps"),
        (Box::new(Nadam::from_parameters(p()).momentum_decay(v)), "momentum_decay"),
        (Box::new(Radam::from_parameters(p()).betas(v, 0.9)), "beta1"),
        (Box::new(Adadelta::from_parameters(p()).eps(v)), "eps"),
        (Box::new(Rprop::from_parameters(p()).etas(0.5, v)), "eta_plus"),
        (Box::new(Asgd::from_parameters(p()).lambda(v)), "lambda"),
        (Box::new(Asgd::from_parameters(p()).t0(v)), "t0"),
        (Box::new(Lion::from_parameters(p()).betas(v, 0.9)), "beta1"),
        (Box::new(Adafactor::from_parameters(p()).eps(0.0, v)), "eps2"),
        (Box::new(Sgd::from_parameters(vec![]).group(p(), |g| g.lr(v))), "lr"),
        (Box::new(Sgd::from_parameters(vec![]).group(p(), |g| g.weight_decay(v))), "weight_decay"),
        (Box::new(Adam::from_parameters(vec![]).group(p(), |g| g.eps(v))), "eps"),
    ]
}

#[test]
fn optimizers_refuse_numbers_that_are_not_finite_in_their_arithmetic() {
    for v in [INF, -INF, f64::NAN, HUGE] {
        for (mut optimizer, name) in optimizers(v) {
            let parameter = optimizer.parameters()[0].clone();
            let before = values(&parameter);
            parameter.set_grad(Some(parameter.detach())).unwrap();
            let error = optimizer.step().expect_err(name);
            assert_eq!(error.kind(), Kind::Attr, "{error}");
            assert!(error.message().starts_with(&format!("{name} is {v:?}")), "{error} should say {name} is {v:?}");
            assert_eq!(values(&parameter), before);
        }
    }
    // 1e300 is a number in f64.
    let wide = parameter(&[1.0], DType::F64);
    set_grad(&wide, &[1.0]);
    Sgd::from_parameters(vec![wide.clone()]).lr(HUGE).step().unwrap();
    assert_eq!(values(&wide), [-HUGE]);
}

#[test]
fn a_rate_is_refused_when_it_is_set() {
    for v in [INF, f64::NAN, -1.0, HUGE] {
        let mut sgd = Sgd::from_parameters(p()).lr(0.5);
        assert_eq!(sgd.set_lr(v).unwrap_err().kind(), Kind::Attr, "{v}");
        assert_eq!(sgd.learning_rate(), 0.5);
        let mut state = sgd.state_dict().unwrap();
        for name in ["lr", "initial_lr", "group.0.initial_lr", "group.0.momentum"] {
            state.insert(name.into(), Tensor::scalar(v, &cpu()).unwrap());
            assert_eq!(sgd.load_state_dict(&state).unwrap_err().kind(), Kind::Attr, "{name} {v}");
            state = sgd.state_dict().unwrap();
        }
    }
}

#[test]
fn bounds_may_be_infinite_but_not_nan() {
    for v in [INF, HUGE] {
        let [p] = &p()[..] else { unreachable!() };
        set_grad(p, &[1.0, 1.0]);
        let mut sgd = Sgd::from_parameters(vec![p.clone()]).lr(1.0).clip_norm(v).clip_value(v);
        sgd.step().unwrap();
        assert_eq!(values(p), [0.0, 1.0]);
        set_grad(p, &[1.0, 1.0]);
        clip_grad_norm(std::slice::from_ref(p), v, 2.0).unwrap();
        clip_grad_value(std::slice::from_ref(p), v).unwrap();
        assert_eq!(values(&p.grad().unwrap()), [1.0, 1.0]);
    }
    for optimizer in [
        &mut Sgd::from_parameters(p()).clip_norm(f64::NAN) as &mut dyn Optimizer,
        &mut Sgd::from_parameters(p()).clip_value(f64::NAN),
        &mut Lamb::from_parameters(p()).max_trust(f64::NAN),
    ] {
        assert_eq!(optimizer.step().unwrap_err().kind(), Kind::Attr);
    }
    assert_eq!(clip_grad_norm(&p(), f64::NAN, 2.0).unwrap_err().kind(), Kind::Attr);
    assert_eq!(clip_grad_value(&p(), f64::NAN).unwrap_err().kind(), Kind::Attr);
}

#[test]
fn a_scaler_refuses_numbers_that_f32_does_not_have() {
    let new = || GradScaler::new(&cpu()).unwrap();
    for v in [HUGE, INF, f64::NAN, 1e-300, 0.0, -1.0] {
        assert_eq!(new().init_scale(v).map(drop).unwrap_err().kind(), Kind::Attr, "{v}");
    }
    for (growth, backoff) in [(HUGE, 0.5), (INF, 0.5), (1.0 + 1e-12, 0.5), (2.0, 1e-300), (2.0, 1.0 - 1e-12)] {
        assert_eq!(new().factors(growth, backoff).map(drop).unwrap_err().kind(), Kind::Attr, "{growth} {backoff}");
    }
    for scale in [f32::INFINITY, f32::NAN, 0.0, -1.0] {
        let mut state = new().state_dict().unwrap();
        state.insert("scale".into(), Tensor::scalar(scale, &cpu()).unwrap());
        let mut scaler = new();
        assert_eq!(scaler.load_state_dict(&state).unwrap_err().kind(), Kind::Attr, "{scale}");
        assert_eq!(scaler.current().item::<f64>().unwrap(), 65536.0);
    }
}

#[test]
fn initialisers_refuse_numbers_that_are_not_finite_in_their_dtype() {
    let init = Init::new(&cpu());
    type Make = fn(&Init, f64) -> Result<Tensor>;
    let all: [(&str, Make); 16] = [
        ("constant", |i, v| i.constant(3, v)),
        ("uniform", |i, v| i.uniform(3, v, v)),
        ("uniform", |i, v| i.uniform(3, -1.0, v)),
        ("normal", |i, v| i.normal(3, v, 1.0)),
        ("normal", |i, v| i.normal(3, 0.0, v)),
        ("truncated_normal", |i, v| i.truncated_normal(3, v, 1.0, -1.0, 1.0)),
        ("truncated_normal", |i, v| i.truncated_normal(3, 0.0, v, -1.0, 1.0)),
        ("truncated_normal", |i, v| i.truncated_normal(3, 0.0, 1.0, f64::NAN, v)),
        ("kaiming_uniform", |i, v| i.kaiming_uniform((2, 2), Fan::In, Gain::Value(v))),
        ("kaiming_uniform", |i, v| i.kaiming_uniform((2, 2), Fan::In, Gain::LeakyRelu(v))),
        ("kaiming_normal", |i, v| i.kaiming_normal((2, 2), Fan::Out, Gain::Value(v))),
        ("xavier_uniform", |i, v| i.xavier_uniform((2, 2), Gain::Value(v))),
        ("xavier_normal", |i, v| i.xavier_normal((2, 2), Gain::Value(v))),
        ("xavier_normal", |i, v| i.xavier_normal((2, 2), Gain::LeakyRelu(v))),
        ("orthogonal", |i, v| i.orthogonal((2, 2), Gain::Value(v))),
        ("orthogonal", |i, v| i.orthogonal((2, 2), Gain::LeakyRelu(v))),
    ];
    for (name, make) in all {
        for v in [INF, f64::NAN, HUGE] {
            let error = make(&init, v).map(|t| values(&t)).expect_err(name);
            assert_eq!((error.op(), error.kind()), (name, Kind::Attr), "{v}: {error}");
        }
    }
    // 1e5 is infinite in f16.
    let narrow = Init::new(&cpu()).dtype(DType::F16);
    assert_eq!(narrow.constant(3, 1e5).unwrap_err().kind(), Kind::Attr);
    assert_eq!(narrow.orthogonal((2, 2), Gain::Value(1e5)).unwrap_err().kind(), Kind::Attr);
    // Bounds of a truncated normal may be infinite.
    assert!(init.truncated_normal(3, 0.0, 1.0, 0.0, INF).unwrap().to_vec::<f32>().unwrap().iter().all(|&v| v >= 0.0));
}

#[test]
fn schedules_refuse_numbers_that_are_not_finite() {
    let one = || OneCycle::new(1.0, 10);
    for v in [INF, f64::NAN, -1.0] {
        let all: [(&str, Box<dyn Schedule>); 10] = [
            ("lr", Box::new(Constant(v))),
            ("lr", Box::new(Step { lr: v, every: 2, gamma: 0.5 })),
            ("gamma", Box::new(Step { lr: 1.0, every: 2, gamma: v })),
            ("lr", Box::new(Cosine { lr: v, min: 0.0, steps: 4 })),
            ("min", Box::new(Cosine { lr: 1.0, min: v, steps: 4 })),
            ("lr", Box::new(Constant(v).after_warm_up(3))),
            ("max", Box::new(OneCycle { max: v, ..one() })),
            ("rise", Box::new(OneCycle { rise: v, ..one() })),
            ("start_divisor", Box::new(OneCycle { start_divisor: v, ..one() })),
            ("end_divisor", Box::new(OneCycle { end_divisor: v, ..one() })),
        ];
        for (name, schedule) in all {
            // From the first step on, not only where the number would tell.
            for step in [0, 7] {
                let error = schedule.lr(step).expect_err(name);
                assert_eq!(error.kind(), Kind::Attr, "{error}");
                assert!(error.message().starts_with(&format!("{name} is {v:?}")), "{error}");
            }
        }
    }
    assert_eq!(OneCycle { start_divisor: 0.0, ..one() }.lr(0).unwrap_err().kind(), Kind::Attr);
    assert_eq!(OneCycle { rise: 1.5, ..one() }.lr(0).unwrap_err().kind(), Kind::Attr);
}
