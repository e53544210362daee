//! Optimizers against PyTorch's numbers, and what they promise beside the rule.

use crate::common::{assert_close, cpu, f64s, parameter, set_grad, step_with, values};
use isograd_core::{DType, Kind, Shape, Tensor, autocast};
use isograd_nn::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Adjust, Asgd, Forward, Init, Lamb, Lars, Lbfgs, LineSearch,
    Linear, Lion, Module, Muon, Nadam, Optimizer, Radam, RmsProp, Rprop, Scaling, Sgd,
};

const START: [f64; 2] = [1.0, -2.0];
const GRADIENTS: [[f64; 2]; 3] = [[0.5, 1.0], [-0.25, 2.0], [0.1, 0.1]];

fn three_steps(optimizer: &mut dyn Optimizer) -> Vec<f64> {
    let p = optimizer.parameters()[0].clone();
    GRADIENTS.iter().for_each(|g| step_with(optimizer, &p, g));
    values(&p)
}

fn start() -> Vec<Tensor> {
    vec![parameter(&START, DType::F64)]
}

#[test]
fn golden_values_of_pytorch() {
    let mut sgd = Sgd::from_parameters(start()).lr(0.1).momentum(0.9).dampening(0.1).weight_decay(0.01);
    assert_close(&three_steps(&mut sgd), &[0.8930849387, -2.610864539], 1e-7);
    let mut nag = Sgd::from_parameters(start()).lr(0.1).momentum(0.9).nesterov().weight_decay(0.01);
    assert_close(&three_steps(&mut nag), &[0.8691892082, -2.887078688], 1e-7);
    let mut adam = Adam::from_parameters(start()).lr(0.1).weight_decay(0.01);
    assert_close(&three_steps(&mut adam), &[0.8372923664, -2.273154631], 1e-7);
    let mut adamw = AdamW::from_parameters(start()).lr(0.1);
    assert_close(&three_steps(&mut adamw), &[0.8390714757, -2.267617763], 1e-7);
}

/// The same rules in scalar f64 arithmetic.
fn reference_adam(amsgrad: bool, sign: f64) -> Vec<f64> {
    (0..2)
        .map(|i| {
            let (mut p, mut m, mut v, mut u) = (START[i], 0.0, 0.0, 0f64);
            for (t, g) in GRADIENTS.iter().enumerate() {
                let g = sign * g[i];
                m = 0.8 * m + 0.2 * g;
                v = 0.9 * v + 0.1 * g * g;
                u = u.max(v);
                let (b1, b2) = (1.0 - 0.8f64.powi(t as i32 + 1), 1.0 - 0.9f64.powi(t as i32 + 1));
                let root = (if amsgrad { u } else { v }).sqrt() / b2.sqrt();
                p -= 0.1 / b1 * m / (root + 1e-3);
            }
            p
        })
        .collect()
}

#[test]
fn options_of_adam() {
    let adam = || Adam::from_parameters(start()).lr(0.1).betas(0.8, 0.9).eps(1e-3);
    assert_close(&three_steps(&mut adam()), &reference_adam(false, 1.0), 1e-12);
    assert_close(&three_steps(&mut adam().amsgrad()), &reference_adam(true, 1.0), 1e-12);
    assert_close(&three_steps(&mut adam().maximize()), &reference_adam(false, -1.0), 1e-12);
}

/// The values of PyTorch's NAdam and RAdam with `decoupled_weight_decay=True`.
#[test]
fn decoupled_weight_decay() {
    let run = |new: fn(Vec<Tensor>) -> Box<dyn Optimizer>| {
        let p = parameter(&[1.0], DType::F64);
        let mut optimizer = new(vec![p.clone()]);
        [0.5, -1.0, 2.0, 0.25, 1.0, 1.0, -0.5].map(|g| {
            set_grad(&p, &[g]);
            optimizer.step().unwrap();
            values(&p)[0]
        })
    };
    let near = |got: [f64; 7], expected: [f64; 7]| {
        assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?}, expected {expected:?}")
    };
    near(
        run(|p| Box::new(Nadam::from_parameters(p).lr(0.1).betas(0.5, 0.7).weight_decay(0.5).decoupled_weight_decay())),
        [0.8366618782, 0.9025094804, 0.7409608663, 0.6763396020, 0.5575183160, 0.4391368548, 0.4525133329],
    );
    near(
        run(|p| Box::new(Radam::from_parameters(p).lr(0.1).betas(0.5, 0.7).weight_decay(0.5).decoupled_weight_decay())),
        [0.9, 0.905, 0.7668928571, 0.6718815476, 0.5592552121, 0.4416099118, 0.4002380777],
    );
}

#[test]
fn plain_sgd() {
    let mut sgd = Sgd::from_parameters(start()).lr(0.1);
    assert_close(&three_steps(&mut sgd), &[1.0 - 0.1 * 0.35, -2.0 - 0.1 * 3.1], 1e-14);
}

#[test]
fn a_step_clears_the_gradients() {
    let p = parameter(&START, DType::F32);
    let mut sgd = Sgd::from_parameters(vec![p.clone()]).lr(0.1);
    step_with(&mut sgd, &p, &[1.0, 1.0]);
    assert!(p.grad().is_none());
    let before = values(&p);
    sgd.step().unwrap();
    assert_eq!(values(&p), before);
}

/// The start as a matrix, which all kinds take.
fn matrix(dtype: DType) -> Tensor {
    f64s(&START).reshape((1, 2)).unwrap().cast(dtype).unwrap().require_grad().unwrap()
}

/// The last one clips.
fn all_kinds(p: &Tensor) -> Vec<Box<dyn Optimizer>> {
    let list = || vec![p.clone()];
    vec![
        Box::new(RmsProp::from_parameters(list()).lr(0.1).momentum(0.9).centered()),
        Box::new(Adagrad::from_parameters(list()).lr(0.1)),
        Box::new(Lars::from_parameters(list()).lr(0.1).trust(1.0)),
        Box::new(Lamb::from_parameters(list()).lr(0.1)),
        Box::new(Muon::from_parameters(list()).lr(0.1)),
        Box::new(Sgd::from_parameters(list()).lr(0.1)),
        Box::new(Sgd::from_parameters(list()).lr(0.1).momentum(0.9)),
        Box::new(Sgd::from_parameters(list()).lr(0.1).momentum(0.9).nesterov()),
        Box::new(Adam::from_parameters(list()).lr(0.1).weight_decay(0.1)),
        Box::new(AdamW::from_parameters(list()).lr(0.1)),
        Box::new(AdamW::from_parameters(list()).lr(0.1).amsgrad()),
        Box::new(Adamax::from_parameters(list()).lr(0.1)),
        Box::new(Nadam::from_parameters(list()).lr(0.1)),
        Box::new(Radam::from_parameters(list()).lr(0.1).betas(0.9, 0.7)),
        Box::new(Adadelta::from_parameters(list()).lr(1.0).eps(0.1)),
        Box::new(Rprop::from_parameters(list()).lr(0.1)),
        Box::new(Asgd::from_parameters(list()).lr(0.1).t0(0.0)),
        Box::new(Lion::from_parameters(list()).lr(0.1)),
        Box::new(Adafactor::from_parameters(list()).lr(0.1)),
        Box::new(AdamW::from_parameters(list()).lr(0.1).clip_norm(0.5).clip_value(0.3)),
    ]
}

fn bytes(optimizer: &dyn Optimizer) -> Vec<(String, Vec<u8>)> {
    let mut state = optimizer.state_dict().unwrap();
    for (i, p) in optimizer.parameters().iter().enumerate() {
        state.insert(format!("parameter {i}"), p.clone());
    }
    state.into_iter().map(|(name, t)| (name, t.to_bytes().unwrap())).collect()
}

#[test]
fn found_inf_leaves_everything_bit_for_bit() {
    let scalar = |v: f32| Tensor::scalar(v, &cpu()).unwrap();
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        for k in 0..all_kinds(&matrix(dtype)).len() {
            let p = matrix(dtype);
            let mut optimizer = all_kinds(&p).swap_remove(k);
            // Before the first step, and after one.
            for gradient in GRADIENTS {
                let before = bytes(&*optimizer);
                set_grad(&p, &[f64::INFINITY, f64::NAN]);
                let scaling = Scaling { inv_scale: scalar(0.5), found_inf: scalar(1.0), norm: None };
                optimizer.step_scaled(Some(&scaling)).unwrap();
                assert_eq!(bytes(&*optimizer), before, "{dtype}, optimizer {k}");
                assert!(p.grad().is_none());
                step_with(&mut *optimizer, &p, &gradient);
                assert_ne!(bytes(&*optimizer), before, "{dtype}, optimizer {k}");
            }
        }
    }
}

#[test]
fn a_scale_acts_on_the_gradient() {
    for k in 0..all_kinds(&matrix(DType::F64)).len() - 1 {
        let (p, q) = (matrix(DType::F64), matrix(DType::F64));
        let (mut plain, mut scaled) = (all_kinds(&p).swap_remove(k), all_kinds(&q).swap_remove(k));
        for g in GRADIENTS {
            step_with(&mut *plain, &p, &g);
            set_grad(&q, &g.map(|g| g * 1024.0));
            let scalar = |v: f32| Tensor::scalar(v, &cpu()).unwrap();
            let scaling = Scaling { inv_scale: scalar(1.0 / 1024.0), found_inf: scalar(0.0), norm: None };
            scaled.step_scaled(Some(&scaling)).unwrap();
        }
        assert_eq!(bytes(&*plain), bytes(&*scaled), "optimizer {k}");
    }
}

#[test]
fn clipping_in_the_step_is_clipping_before_it() {
    let (p, q) = (parameter(&START, DType::F64), parameter(&START, DType::F64));
    let mut inside = Sgd::from_parameters(vec![p.clone()]).lr(0.1).clip_norm(0.7);
    let mut outside = Sgd::from_parameters(vec![q.clone()]).lr(0.1);
    for g in GRADIENTS {
        step_with(&mut inside, &p, &g);
        set_grad(&q, &g);
        let norm = isograd_nn::clip_grad_norm(std::slice::from_ref(&q), 0.7, 2.0).unwrap();
        outside.step().unwrap();
        assert_eq!(inside.grad_norm().unwrap().item::<f64>().unwrap(), norm.item::<f64>().unwrap());
    }
    assert_close(&values(&p), &values(&q), 1e-15);
    // With a loss scale the norm is that of the unscaled gradients.
    set_grad(&p, &[300.0, 400.0]);
    let scalar = |v: f32| Tensor::scalar(v, &cpu()).unwrap();
    inside.step_scaled(Some(&Scaling { inv_scale: scalar(0.5), found_inf: scalar(0.0), norm: None })).unwrap();
    assert_eq!(inside.grad_norm().unwrap().item::<f64>().unwrap(), 250.0);
}

/// All kinds with and without an option, of the optimizer or of a group.
fn clipped_kinds(p: &Tensor, limit: Option<f64>) -> Vec<Box<dyn Optimizer>> {
    macro_rules! kinds {
        ($($new:ident $(.$option:ident($($value:expr),*))*;)+) => {
            vec![$({
                let optimizer = $new::from_parameters(vec![p.clone()]).lr(0.1).weight_decay(0.1)$(.$option($($value),*))*;
                let optimizer: Box<dyn Optimizer> = match limit {
                    None => Box::new(optimizer),
                    Some(limit) => Box::new(optimizer.clip_value(limit)),
                };
                optimizer
            }),+]
        };
    }
    kinds! {
        Sgd;
        Sgd.momentum(0.9);
        Sgd.maximize();
        Adam;
        AdamW;
        AdamW.amsgrad();
        RmsProp;
        RmsProp.momentum(0.9);
        RmsProp.centered();
        RmsProp.momentum(0.9).centered();
        Adagrad;
        Lars.trust(1.0);
        Lamb;
        Adamax;
        Nadam;
        Radam;
        Adadelta;
        Rprop;
        Asgd;
        Lion;
        Adafactor;
        Muon.ns_dtype(DType::F64);
    }
}

#[test]
fn clipping_by_value_in_the_step_is_clipping_before_it() {
    let gradients = [[0.5, -1.0], [-0.25, 2.0], [0.1, f64::INFINITY]];
    for k in 0..clipped_kinds(&matrix(DType::F64), None).len() {
        let (p, q) = (matrix(DType::F64), matrix(DType::F64));
        let mut inside = clipped_kinds(&p, Some(0.3)).swap_remove(k);
        let mut outside = clipped_kinds(&q, None).swap_remove(k);
        for g in gradients {
            set_grad(&q, &g);
            isograd_nn::clip_grad_value(std::slice::from_ref(&q), 0.3).unwrap();
            outside.step().unwrap();
            // It is the unscaled gradient that is clipped.
            set_grad(&p, &g.map(|g| g * 1024.0));
            let scalar = |v: f32| Tensor::scalar(v, &cpu()).unwrap();
            let scaling = Scaling { inv_scale: scalar(1.0 / 1024.0), found_inf: scalar(0.0), norm: None };
            inside.step_scaled(Some(&scaling)).unwrap();
            assert!(inside.grad_norm().is_none());
        }
        assert_eq!(values(&p), values(&q), "optimizer {k}");
        let mut free = clipped_kinds(&p, None).swap_remove(k);
        let before = values(&p);
        step_with(&mut *free, &p, &[f64::NAN, 0.5]);
        assert!(values(&p).iter().zip(before).any(|(p, b)| p.is_nan() && !b.is_nan()), "optimizer {k}");
    }
}

#[test]
fn clipping_by_norm_comes_before_clipping_by_value() {
    let (p, q) = (parameter(&START, DType::F64), parameter(&START, DType::F64));
    let mut inside = Sgd::from_parameters(vec![p.clone()]).lr(0.1).clip_norm(0.7).clip_value(0.4);
    let mut outside = Sgd::from_parameters(vec![q.clone()]).lr(0.1);
    for g in GRADIENTS {
        step_with(&mut inside, &p, &g);
        set_grad(&q, &g);
        isograd_nn::clip_grad_norm(std::slice::from_ref(&q), 0.7, 2.0).unwrap();
        isograd_nn::clip_grad_value(std::slice::from_ref(&q), 0.4).unwrap();
        outside.step().unwrap();
    }
    assert_close(&values(&p), &values(&q), 1e-15);
}

#[test]
fn a_parameter_without_gradient_keeps_its_step_count() {
    let (p, q) = (parameter(&START, DType::F64), parameter(&START, DType::F64));
    let alone = parameter(&START, DType::F64);
    let mut both = Adam::from_parameters(vec![p.clone(), q.clone()]).lr(0.1);
    let mut one = Adam::from_parameters(vec![alone.clone()]).lr(0.1);
    for (i, g) in GRADIENTS.iter().enumerate() {
        if i != 0 {
            set_grad(&q, g);
            step_with(&mut one, &alone, g);
        }
        step_with(&mut both, &p, g);
    }
    assert_eq!(values(&q), values(&alone));
    let state = both.state_dict().unwrap();
    assert_eq!((values(&state["0.step"]), values(&state["1.step"])), (vec![3.0], vec![2.0]));
}

#[test]
fn groups_have_their_own_rate_and_decay() {
    let model = Linear::new(2, 2, &Init::new(&cpu()).dtype(DType::F64)).unwrap();
    let bias = model.bias.clone().unwrap();
    let before = (values(&model.weight), values(&bias));
    let mut optimizer = Sgd::new(&model)
        .group_where(|name, _| name.ends_with("bias"), |g| g.lr(0.01).weight_decay(0.0))
        .lr(0.1)
        .weight_decay(0.5);
    assert_eq!(optimizer.parameters().len(), 2);
    let run = |optimizer: &mut Sgd| {
        set_grad(&bias, &[1.0; 2]);
        model.weight.set_grad(Some(model.weight.detach().zeros_like().unwrap())).unwrap();
        optimizer.step().unwrap();
    };
    run(&mut optimizer);
    let shrunk: Vec<f64> = before.0.iter().map(|v| v * 0.95).collect();
    assert_close(&values(&model.weight), &shrunk, 1e-15);
    assert_close(&values(&bias), &before.1.iter().map(|v| v - 0.01).collect::<Vec<_>>(), 1e-14);
    // The group's rate keeps its ratio.
    optimizer.set_lr(0.2).unwrap();
    assert_eq!(optimizer.learning_rate(), 0.2);
    run(&mut optimizer);
    assert_close(&values(&model.weight), &shrunk.iter().map(|v| v * 0.9).collect::<Vec<_>>(), 1e-15);
    assert_close(&values(&bias), &before.1.iter().map(|v| v - 0.03).collect::<Vec<_>>(), 1e-14);
}

/// An optimizer of two parameters, of which the second has options of its own, and one with these options for all.
type Pair = (Box<dyn Optimizer>, Box<dyn Optimizer>);

fn groups_of_all_kinds(p: &Tensor, q: &Tensor, alone: &Tensor) -> Vec<Pair> {
    macro_rules! pairs {
        ($($new:ident {$(.$base:ident($($value:expr),*))*} {$(.$option:ident($($own:expr),*))*})+) => {
            vec![$({
                let both = $new::from_parameters(vec![p.clone()])$(.$base($($value),*))*;
                let both = both.group(vec![q.clone()], |g| g$(.$option($($own),*))*);
                let one = $new::from_parameters(vec![alone.clone()])$(.$base($($value),*))*$(.$option($($own),*))*;
                let pair: Pair = (Box::new(both), Box::new(one));
                pair
            }),+]
        };
    }
    pairs! {
        Sgd {.lr(0.1)} {.momentum(0.9).dampening(0.2).weight_decay(0.1)}
        Sgd {.lr(0.1).momentum(0.5)} {.momentum(0.0)}
        Sgd {.lr(0.1)} {.momentum(0.9).nesterov().maximize()}
        Adam {.lr(0.1)} {.betas(0.5, 0.7).eps(0.1).lr(0.2).weight_decay(0.3)}
        AdamW {.lr(0.1)} {.amsgrad().betas(0.5, 0.1)}
        AdamW {.lr(0.1).amsgrad()} {.weight_decay(0.5).maximize()}
        RmsProp {.lr(0.1)} {.alpha(0.5).eps(0.1).momentum(0.9).centered()}
        RmsProp {.lr(0.1).centered()} {.momentum(0.5)}
        Adagrad {.lr(0.1)} {.lr_decay(0.5).initial_accumulator(0.3).eps(0.1)}
        Lars {.lr(0.1)} {.momentum(0.5).trust(0.5).eps(0.1).nesterov()}
        Lars {.lr(0.1)} {.skip_trust_ratio()}
        Lamb {.lr(0.1)} {.betas(0.5, 0.7).eps(0.1).max_trust(0.5).no_bias_correction()}
        Lamb {.lr(0.1)} {.skip_trust_ratio()}
        Muon {.lr(0.1)} {.momentum(0.5).no_nesterov().ns_steps(2).ns_coefficients([2.0, -1.5, 0.5]).eps(0.3)}
        Muon {.lr(0.1)} {.adjust(Adjust::MatchRmsAdamW).ns_dtype(DType::F64)}
        Adam {.lr(0.1)} {.no_bias_correction()}
        Adamax {.lr(0.1)} {.betas(0.5, 0.7).eps(0.1)}
        Nadam {.lr(0.1)} {.betas(0.5, 0.7).eps(0.1).momentum_decay(0.5).weight_decay(0.5).decoupled_weight_decay()}
        Radam {.lr(0.1)} {.betas(0.5, 0.7).eps(0.1).weight_decay(0.5).decoupled_weight_decay()}
        Adadelta {.lr(1.0)} {.rho(0.5).eps(0.1)}
        Rprop {.lr(0.1)} {.etas(0.3, 2.0).step_sizes(0.01, 0.11)}
        Asgd {.lr(0.1)} {.lambda(0.5).alpha(0.5).t0(0.0)}
        Lion {.lr(0.1)} {.betas(0.1, 0.2).weight_decay(0.5)}
        Adafactor {.lr(0.1)} {.beta2_decay(-0.1).eps(0.1, 2.0).clip_threshold(0.5)}
    }
}

#[test]
fn a_group_has_every_option_of_its_own() {
    let all = || (matrix(DType::F64), matrix(DType::F64), matrix(DType::F64));
    for k in 0..groups_of_all_kinds(&all().0, &all().1, &all().2).len() {
        let (p, q, alone) = all();
        let (mut both, mut one) = groups_of_all_kinds(&p, &q, &alone).swap_remove(k);
        for g in &GRADIENTS {
            set_grad(&q, g);
            step_with(&mut *both, &p, g);
            step_with(&mut *one, &alone, g);
        }
        assert_eq!(values(&q), values(&alone), "optimizer {k}");
        assert_ne!(values(&q), values(&p), "optimizer {k}");
    }
}

#[test]
fn options_of_groups_are_part_of_the_state() {
    let all = || (matrix(DType::F64), matrix(DType::F64), matrix(DType::F64));
    for k in 0..groups_of_all_kinds(&all().0, &all().1, &all().2).len() {
        // Two runs of the same groups, of which one had other options until the state of the first came.
        let ((p, q, other), (a, b, _)) = (all(), all());
        let mut first = groups_of_all_kinds(&p, &q, &other).swap_remove(k).0;
        macro_rules! plain {
            ($($new:ident)+) => { [$(|a: Tensor, b: Tensor| -> Box<dyn Optimizer> {
                Box::new($new::from_parameters(vec![a]).group(vec![b], |g| g.lr(0.3).weight_decay(0.7)))
            }),+] };
        }
        type New = fn(Tensor, Tensor) -> Box<dyn Optimizer>;
        let kinds: [New; 24] = plain![
            Sgd Sgd Sgd Adam AdamW AdamW RmsProp RmsProp Adagrad Lars Lars Lamb Lamb Muon Muon Adam Adamax Nadam Radam Adadelta
            Rprop Asgd Lion Adafactor
        ];
        let mut second = kinds[k](a.clone(), b.clone());
        set_grad(&b, &GRADIENTS[2]);
        step_with(&mut *second, &a, &GRADIENTS[2]);
        set_grad(&q, &GRADIENTS[0]);
        step_with(&mut *first, &p, &GRADIENTS[0]);
        first.set_lr(0.07).unwrap();
        second.load_state_dict(&first.state_dict().unwrap()).unwrap();
        [(&a, &p), (&b, &q)].into_iter().for_each(|(to, from)| to.detach().copy_(&from.detach()).unwrap());
        for (step, g) in GRADIENTS[1..].iter().enumerate() {
            [&b, &q].into_iter().for_each(|p| set_grad(p, g));
            step_with(&mut *first, &p, g);
            step_with(&mut *second, &a, g);
            let rate = 0.07 / (step + 2) as f64;
            first.set_lr(rate).unwrap();
            second.set_lr(rate).unwrap();
        }
        assert_eq!(bytes(&*first), bytes(&*second), "optimizer {k}");
    }
}

#[test]
fn a_state_without_options_leaves_them_as_they_are() {
    let build = |p: &Tensor, q: &Tensor| {
        Adam::from_parameters(vec![p.clone()]).lr(0.1).group(vec![q.clone()], |g| g.lr(0.02).betas(0.5, 0.7))
    };
    let (p, q) = (matrix(DType::F64), matrix(DType::F64));
    let mut adam = build(&p, &q);
    set_grad(&q, &GRADIENTS[0]);
    step_with(&mut adam, &p, &GRADIENTS[0]);
    adam.set_lr(0.05).unwrap();
    let mut state = adam.state_dict().unwrap();
    let before = bytes(&adam);
    let mut less = state.clone();
    less.remove("group.1.beta2");
    let error = adam.load_state_dict(&less).unwrap_err();
    assert!(error.message().contains("group.1.beta2 is missing"), "{error}");
    let mut wrong = state.clone();
    wrong.insert("group.1.beta2".into(), Tensor::scalar(1f64, &cpu()).unwrap());
    assert_eq!(adam.load_state_dict(&wrong).unwrap_err().kind(), Kind::Attr);
    assert_eq!(bytes(&adam), before);
    // Another division into groups.
    let mut whole = Adam::from_parameters(vec![p.clone(), q.clone()]);
    let error = whole.load_state_dict(&state).unwrap_err();
    let advice = "build it with the parameters and groups of the saved run";
    let sizes = "the state has 2 groups, of 1 and 1 parameters, the optimizer has 1 group, of 2 parameters";
    assert_eq!((error.kind(), error.message()), (Kind::Value, format!("{sizes}; {advice}").as_str()));
    let mut swapped = Adam::from_parameters(vec![q.clone(), p.clone()]).group(vec![q.clone()], |g| g.lr(0.02));
    let error = swapped.load_state_dict(&state).unwrap_err();
    let same =
        "the state has 2 groups, of 1 and 1 parameters, and so has the optimizer, but other parameters are in them";
    assert_eq!(error.message(), format!("{same}; {advice}"));
    state.retain(|name, _| name == "lr" || !(name.starts_with("group.") || name == "initial_lr"));
    let mut other = build(&matrix(DType::F64), &matrix(DType::F64));
    other.load_state_dict(&state).unwrap();
    let named =
        |o: &dyn Optimizer| bytes(o).into_iter().filter(|(name, _)| !name.starts_with("parameter")).collect::<Vec<_>>();
    assert_eq!(named(&other), named(&adam));
}

#[test]
fn options_given_after_a_load_are_those_of_parameters_without_a_group() {
    let (p, q) = (matrix(DType::F64), matrix(DType::F64));
    let saved = Sgd::from_parameters(vec![p.clone()]).lr(1.0).group(vec![q.clone()], |g| g.lr(0.5));
    let mut sgd = Sgd::from_parameters(vec![p.clone()]).lr(0.3).group(vec![q.clone()], |g| g.lr(0.2));
    sgd.load_state_dict(&saved.state_dict().unwrap()).unwrap();
    let mut sgd = sgd.weight_decay(0.25);
    let zeros = p.detach().zeros_like().unwrap();
    [&p, &q].into_iter().for_each(|p| p.set_grad(Some(zeros.clone())).unwrap());
    sgd.step().unwrap();
    assert_eq!((values(&p), values(&q)), (START.map(|v| v * 0.75).to_vec(), START.to_vec()));
}

#[test]
fn a_group_keeps_what_another_one_set() {
    let (p, q) = (matrix(DType::F64), matrix(DType::F64));
    let alone = matrix(DType::F64);
    let mut both = AdamW::from_parameters(vec![p.clone(), q.clone()])
        .group(vec![p.clone(), q.clone()], |g| g.weight_decay(0.0).lr(0.2))
        .group(vec![q.clone()], |g| g.lr(0.1).betas(0.5, 0.9))
        .weight_decay(0.5);
    let mut one = AdamW::from_parameters(vec![alone.clone()]).lr(0.1).weight_decay(0.0).betas(0.5, 0.9);
    for g in &GRADIENTS {
        set_grad(&q, g);
        step_with(&mut both, &p, g);
        step_with(&mut one, &alone, g);
    }
    assert_eq!(values(&q), values(&alone));
    assert_eq!(both.parameters().len(), 2);
}

/// As PyTorch's: the first gradient with a momentum is the momentum, undamped.
#[test]
fn a_momentum_given_after_steps_starts_there() {
    let p = parameter(&START, DType::F64);
    let mut sgd = Sgd::from_parameters(vec![p.clone()]).lr(0.1);
    step_with(&mut sgd, &p, &GRADIENTS[0]);
    let mut sgd = sgd.momentum(0.9).dampening(0.5);
    // A state of before the first step with it has none yet.
    let q = parameter(&values(&p), DType::F64);
    let mut other = Sgd::from_parameters(vec![q.clone()]);
    other.load_state_dict(&sgd.state_dict().unwrap()).unwrap();
    step_with(&mut sgd, &p, &GRADIENTS[1]);
    step_with(&mut sgd, &p, &GRADIENTS[2]);
    let expected: Vec<f64> = (0..2)
        .map(|i| {
            let [a, b, c] = GRADIENTS.map(|g| g[i]);
            START[i] - 0.1 * (a + b + (0.9 * b + 0.5 * c))
        })
        .collect();
    assert_close(&values(&p), &expected, 1e-14);
    GRADIENTS[1..].iter().for_each(|g| step_with(&mut other, &q, g));
    assert_eq!(values(&q), values(&p));
    // Without it again the state has none.
    let sgd = sgd.momentum(0.0).dampening(0.0);
    assert!(!sgd.state_dict().unwrap().contains_key("0.momentum_buffer"));
}

#[test]
fn options_with_states_of_their_own_may_come_and_go() {
    let p = parameter(&START, DType::F64);
    let mut adam = Adam::from_parameters(vec![p.clone()]).lr(0.1).betas(0.8, 0.9).eps(1e-3);
    step_with(&mut adam, &p, &GRADIENTS[0]);
    let mut adam = adam.amsgrad();
    step_with(&mut adam, &p, &[0.0, 0.0]);
    // The largest mean of squares is that since then, and the other states went on.
    let state = adam.state_dict().unwrap();
    let squares: Vec<f64> = GRADIENTS[0].iter().map(|g| 0.9 * 0.1 * g * g).collect();
    assert_close(&values(&state["0.max_exp_avg_sq"]), &squares, 1e-15);
    assert_close(&values(&state["0.exp_avg_sq"]), &squares, 1e-15);
    assert_eq!(values(&state["0.step"]), [2.0]);
    let mut prop = RmsProp::from_parameters(vec![p.clone()]).lr(0.1);
    step_with(&mut prop, &p, &GRADIENTS[0]);
    let mut prop = prop.centered().momentum(0.5);
    step_with(&mut prop, &p, &GRADIENTS[1]);
    let state = prop.state_dict().unwrap();
    assert_close(&values(&state["0.grad_avg"]), &GRADIENTS[1].map(|g| g * 0.01), 1e-15);
    assert_close(
        &values(&state["0.square_avg"]),
        &[0, 1].map(|i| 0.01 * (0.99 * GRADIENTS[0][i].powi(2) + GRADIENTS[1][i].powi(2))),
        1e-15,
    );
    assert!(values(&state["0.momentum_buffer"]).iter().all(|b| *b != 0.0));
}

#[test]
fn a_rate_set_before_the_first_step_scales_the_groups_too() {
    let (p, q) = (parameter(&[0.0], DType::F64), parameter(&[0.0], DType::F64));
    let mut sgd = Sgd::from_parameters(vec![p.clone()]).lr(1.0).group(vec![q.clone()], |g| g.lr(0.1));
    sgd.set_lr(0.5).unwrap();
    set_grad(&q, &[1.0]);
    step_with(&mut sgd, &p, &[1.0]);
    assert_close(&[values(&p)[0], values(&q)[0]], &[-0.5, -0.05], 1e-15);
}

#[test]
fn a_parameter_added_after_a_step_trains_from_step_0() {
    let (p, q) = (matrix(DType::F64), matrix(DType::F64));
    let (p_alone, q_alone) = (matrix(DType::F64), matrix(DType::F64));
    let mut both = Adam::from_parameters(vec![p.clone()]).lr(0.1);
    step_with(&mut both, &p, &GRADIENTS[0]);
    let mut both = both.group(vec![q.clone()], |g| g.lr(0.05));
    let names: Vec<String> = both.state_dict().unwrap().into_keys().collect();
    assert!(["0.exp_avg", "1.exp_avg", "1.exp_avg_sq", "1.step"].iter().all(|name| names.contains(&name.to_string())));
    let mut first = Adam::from_parameters(vec![p_alone.clone()]).lr(0.1);
    step_with(&mut first, &p_alone, &GRADIENTS[0]);
    let mut second = Adam::from_parameters(vec![q_alone.clone()]).lr(0.05);
    for g in &GRADIENTS[1..] {
        set_grad(&q, g);
        step_with(&mut both, &p, g);
        step_with(&mut first, &p_alone, g);
        step_with(&mut second, &q_alone, g);
    }
    assert_eq!((values(&p), values(&q)), (values(&p_alone), values(&q_alone)));
    let state = both.state_dict().unwrap();
    assert_eq!((values(&state["0.step"]), values(&state["1.step"])), (vec![3.0], vec![2.0]));
    // One that the rule does not take is an error, and what was there stays.
    let mut muon = Muon::from_parameters(vec![p.clone()]);
    step_with(&mut muon, &p, &GRADIENTS[0]);
    let before = values(&p);
    let mut muon = muon.group(vec![parameter(&START, DType::F64)], |g| g);
    set_grad(&p, &GRADIENTS[1]);
    assert_eq!(muon.step().unwrap_err().kind(), Kind::Shape);
    assert_eq!(values(&p), before);
}

#[test]
fn a_parameter_that_changes_groups_keeps_its_states() {
    let (p, q) = (matrix(DType::F64), matrix(DType::F64));
    let alone = matrix(DType::F64);
    let mut both = AdamW::from_parameters(vec![p.clone(), q.clone()]).lr(0.1);
    let mut one = AdamW::from_parameters(vec![alone.clone()]).lr(0.1);
    set_grad(&q, &GRADIENTS[0]);
    step_with(&mut both, &p, &GRADIENTS[0]);
    step_with(&mut one, &alone, &GRADIENTS[0]);
    let mut both = both.group(vec![q.clone()], |g| g.lr(0.05).weight_decay(0.5));
    let mut one = one.lr(0.05).weight_decay(0.5);
    for g in &GRADIENTS[1..] {
        set_grad(&q, g);
        step_with(&mut both, &p, g);
        step_with(&mut one, &alone, g);
    }
    assert_eq!(values(&q), values(&alone));
    assert_ne!(values(&p), values(&q));
    let state = both.state_dict().unwrap();
    assert_eq!((values(&state["0.step"]), values(&state["1.step"])), (vec![3.0], vec![3.0]));
}

#[test]
fn a_rate_given_after_a_step_is_that_of_the_next() {
    let (p, q) = (parameter(&START, DType::F32), parameter(&START, DType::F32));
    let (mut set, mut given) = (Adam::from_parameters(vec![p.clone()]), Adam::from_parameters(vec![q.clone()]));
    step_with(&mut set, &p, &GRADIENTS[0]);
    step_with(&mut given, &q, &GRADIENTS[0]);
    set.set_lr(0.02).unwrap();
    let mut given = given.lr(0.02);
    step_with(&mut set, &p, &GRADIENTS[1]);
    step_with(&mut given, &q, &GRADIENTS[1]);
    // The one that is given is also the one to which those of groups relate.
    let bytes = |o: &Adam| bytes(o).into_iter().filter(|(name, _)| !name.ends_with("initial_lr")).collect::<Vec<_>>();
    assert_eq!(bytes(&set), bytes(&given));
    assert_eq!(given.state_dict().unwrap()["initial_lr"].item::<f64>().unwrap(), 0.02);
    assert_eq!(given.lr(-0.02).step().unwrap_err().kind(), Kind::Attr);
}

#[test]
fn a_step_within_autocast_is_the_step_outside() {
    let kinds = |p: &Tensor| {
        let mut all = all_kinds(p);
        all.push(Box::new(Muon::from_parameters(vec![p.clone()]).lr(0.1).ns_dtype(DType::F32)));
        all
    };
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        for k in 0..kinds(&matrix(dtype)).len() {
            for low in [DType::F16, DType::BF16] {
                let (p, q) = (matrix(dtype), matrix(dtype));
                let (mut plain, mut inside) = (kinds(&p).swap_remove(k), kinds(&q).swap_remove(k));
                for g in GRADIENTS {
                    step_with(&mut *plain, &p, &g);
                    set_grad(&q, &g);
                    autocast(low, || inside.step()).unwrap();
                }
                assert_eq!(bytes(&*plain), bytes(&*inside), "{dtype}, optimizer {k} in {low}");
            }
        }
    }
}

#[test]
fn options_out_of_range_are_errors_of_the_first_step() {
    let p = || vec![parameter(&START, DType::F32)];
    let cases: Vec<(Box<dyn Optimizer>, &str)> = vec![
        (Box::new(Sgd::from_parameters(p()).lr(-0.1)), "lr is -0.1"),
        (Box::new(Sgd::from_parameters(p()).lr(f64::NAN)), "lr is NaN"),
        (Box::new(Sgd::from_parameters(p()).momentum(-1.0)), "momentum is -1"),
        (Box::new(Sgd::from_parameters(p()).nesterov()), "nesterov needs a momentum"),
        (Box::new(Sgd::from_parameters(p()).momentum(0.9).dampening(0.1).nesterov()), "no dampening"),
        (Box::new(Sgd::from_parameters(p()).weight_decay(-1.0)), "weight_decay is -1"),
        (Box::new(Adam::from_parameters(p()).betas(1.0, 0.9)), "beta1 is 1"),
        (Box::new(Adam::from_parameters(p()).betas(0.9, -0.1)), "beta2 is -0.1"),
        (Box::new(AdamW::from_parameters(p()).eps(-1.0)), "eps is -1"),
        (Box::new(AdamW::from_parameters(p()).clip_norm(-1.0)), "clip_norm is -1"),
        (Box::new(Lars::from_parameters(p()).trust(f64::NAN)), "trust is NaN"),
        (Box::new(Lamb::from_parameters(p()).max_trust(0.0)), "max_trust is 0"),
        (Box::new(AdamW::from_parameters(p()).clip_value(-1.0)), "clip_value is -1"),
        (Box::new(AdamW::from_parameters(vec![]).group(p(), |g| g.weight_decay(-1.0))), "weight_decay is -1"),
        (Box::new(AdamW::from_parameters(vec![]).group(p(), |g| g.betas(0.9, 1.0))), "beta2 is 1"),
        (Box::new(Sgd::from_parameters(vec![]).group(p(), |g| g.nesterov())), "nesterov needs a momentum"),
        (Box::new(Muon::from_parameters(vec![]).group(vec![matrix(DType::F64)], |g| g.lr(-1.0))), "lr is -1"),
        (Box::new(Muon::from_parameters(vec![matrix(DType::F64)]).ns_dtype(DType::F16)), "ns_dtype is f16"),
        (Box::new(AdamW::from_parameters(vec![]).group(p(), |g| g.lr(-1.0))), "lr is -1"),
    ];
    for (mut optimizer, message) in cases {
        let parameter = optimizer.parameters()[0].clone();
        set_grad(&parameter, &[1.0, 1.0]);
        let error = optimizer.step().unwrap_err();
        assert_eq!(error.kind(), Kind::Attr, "{error}");
        assert!(error.message().contains(message), "{error} should say {message}");
        assert_eq!(values(&parameter), START);
    }
    assert_eq!(Sgd::from_parameters(p()).set_lr(-1.0).unwrap_err().kind(), Kind::Attr);
    let constant = Sgd::from_parameters(vec![f64s(&START)]).step().unwrap_err();
    assert!(constant.message().contains("parameter 0 is no leaf"), "{constant}");
    let mut none = Sgd::from_parameters(vec![]);
    assert!(none.step().unwrap_err().message().contains("no parameters"));
    none = none.group(p(), |g| g);
    none.step().unwrap();
}

#[test]
fn sixteen_bit_parameters_have_states_of_32_bits() {
    for dtype in [DType::F16, DType::BF16] {
        let p = parameter(&START, dtype);
        let mut adam = Adam::from_parameters(vec![p.clone()]).lr(0.1);
        let got = three_steps(&mut adam);
        let mut wide = Adam::from_parameters(start()).lr(0.1);
        for (g, e) in got.iter().zip(three_steps(&mut wide)) {
            // Three roundings of the parameter.
            assert!((g - e).abs() < 0.02 * e.abs(), "{dtype}: {g} {e}");
        }
        assert_eq!(adam.state_dict().unwrap()["0.exp_avg"].dtype(), DType::F32);
        assert_eq!(p.dtype(), dtype);
    }
}

#[test]
fn parameters_of_several_dtypes_in_one_optimizer() {
    let (p, q) = (parameter(&START, DType::F64), parameter(&START, DType::F32));
    let mut adam = Adam::from_parameters(vec![p.clone(), q.clone()]).lr(0.1).clip_norm(10.0);
    for g in GRADIENTS {
        set_grad(&q, &g);
        step_with(&mut adam, &p, &g);
    }
    assert_close(&values(&p), &values(&q), 1e-6);
    assert_eq!(adam.state_dict().unwrap()["0.exp_avg"].dtype(), DType::F64);
}

#[test]
fn states_load_into_a_fresh_optimizer() {
    for k in 0..all_kinds(&matrix(DType::F32)).len() {
        let (p, q) = (matrix(DType::F32), matrix(DType::F32));
        let (mut first, mut second) = (all_kinds(&p).swap_remove(k), all_kinds(&q).swap_remove(k));
        step_with(&mut *first, &p, &GRADIENTS[0]);
        first.set_lr(0.05).unwrap();
        q.detach().copy_(&p.detach()).unwrap();
        second.load_state_dict(&first.state_dict().unwrap()).unwrap();
        assert_eq!(second.learning_rate(), 0.05);
        for g in &GRADIENTS[1..] {
            step_with(&mut *first, &p, g);
            step_with(&mut *second, &q, g);
        }
        assert_eq!(bytes(&*first), bytes(&*second), "optimizer {k}");
    }
}

#[test]
fn states_that_do_not_fit_change_nothing() {
    let p = parameter(&START, DType::F32);
    let mut adam = Adam::from_parameters(vec![p.clone()]).lr(0.1);
    step_with(&mut adam, &p, &GRADIENTS[0]);
    let before = bytes(&adam);
    let mut state = adam.state_dict().unwrap();
    state.remove("0.step");
    state.insert("0.exp_avg".into(), f64s(&[1.0]));
    state.insert("other".into(), f64s(&[1.0]));
    let error = adam.load_state_dict(&state).unwrap_err();
    for part in ["0.step is missing", "0.exp_avg is f64 [1], expected f32 [2]", "other is unexpected"] {
        assert!(error.message().contains(part), "{error}");
    }
    let mut state = adam.state_dict().unwrap();
    state.insert("lr".into(), Tensor::scalar(-1f64, &cpu()).unwrap());
    assert_eq!(adam.load_state_dict(&state).unwrap_err().kind(), Kind::Attr);
    assert_eq!(bytes(&adam), before);
}

#[test]
fn states_are_named_by_the_model() {
    let model = vec![Linear::without_bias(1, 1, &Init::new(&cpu())).unwrap()];
    let adam = Adam::new(&model);
    let names: Vec<String> = adam.state_dict().unwrap().into_keys().collect();
    let options =
        ["amsgrad", "beta1", "beta2", "bias_correction", "eps", "initial_lr", "maximize", "params", "weight_decay"];
    let mut expected =
        ["0.weight.exp_avg", "0.weight.exp_avg_sq", "0.weight.step", "initial_lr", "lr"].map(String::from).to_vec();
    expected.splice(3..3, options.map(|name| format!("group.0.{name}")));
    assert_eq!(names, expected);
}

/// What a first step of Muon subtracts from a matrix of zeros: an almost orthogonal matrix, for a gradient of normal draws.
fn muon_step(shape: &[usize], dtype: DType, ns_dtype: DType) -> Tensor {
    let draw = Init::new(&cpu()).seed(5).dtype(DType::F64).normal(shape, 0.0, 1.0).unwrap().detach();
    let p = Tensor::zeros(shape, dtype, &cpu()).unwrap().require_grad().unwrap();
    p.set_grad(Some(draw.cast(dtype).unwrap())).unwrap();
    Muon::from_parameters(vec![p.clone()]).lr(1.0).ns_dtype(ns_dtype).step().unwrap();
    p.detach().cast(DType::F64).unwrap().neg().unwrap()
}

#[test]
fn muon_in_bf16_is_near_muon_in_f64() {
    for shape in [[32, 64], [64, 32], [48, 48]] {
        let factor = (shape[0] as f64 / shape[1] as f64).max(1.0).sqrt();
        let step = |ns_dtype| muon_step(&shape, DType::F64, ns_dtype).div_scalar(factor).unwrap();
        let (rounded, exact) = (step(DType::BF16), step(DType::F64));
        let norm = |t: &Tensor| t.l2_norm(..).unwrap().item::<f64>().unwrap();
        let apart = norm(&rounded.sub(&exact).unwrap()) / norm(&exact);
        assert!(apart > 0.0 && apart <= 0.05, "{shape:?}: {apart}");
        // The largest singular value, by squaring.
        let mut square = rounded.t().unwrap().matmul(&rounded).unwrap();
        let mut logarithm = 0.0;
        for k in 1..=10 {
            let size = norm(&square);
            logarithm += size.ln() / 2f64.powi(k);
            square = square.div_scalar(size).unwrap();
            square = square.matmul(&square).unwrap();
        }
        assert!(logarithm.exp() <= 1.25, "{shape:?}: {}", logarithm.exp());
    }
}

#[test]
fn muon_takes_a_parameter_of_rank_3_as_a_matrix() {
    let whole = muon_step(&[4, 2, 3], DType::F32, DType::F32);
    let flat = muon_step(&[4, 6], DType::F32, DType::F32);
    assert_eq!(values(&whole), values(&flat));
    let vector = Muon::from_parameters(vec![parameter(&START, DType::F32)]).step().unwrap_err();
    assert_eq!((vector.kind(), vector.message()), (Kind::Shape, "a parameter has shape [2], expected rank 2 or more"));
}

#[test]
fn muon_matches_the_steps_of_adamw_if_asked() {
    let shape = Shape::from((6, 24));
    let p = Tensor::zeros(&shape, DType::F64, &cpu()).unwrap().require_grad().unwrap();
    let gradient = Init::new(&cpu()).seed(5).dtype(DType::F64).normal(&shape, 0.0, 1.0).unwrap().detach();
    p.set_grad(Some(gradient)).unwrap();
    let muon = Muon::from_parameters(vec![p.clone()]).lr(1.0).adjust(Adjust::MatchRmsAdamW).ns_dtype(DType::F64);
    { muon }.step().unwrap();
    let plain = muon_step(&[6, 24], DType::F64, DType::F64).mul_scalar(0.2 * 24f64.sqrt()).unwrap();
    assert_close(&values(&p.detach().neg().unwrap()), &values(&plain), 1e-12);
}

#[test]
fn a_group_leaves_out_the_trust_ratio() {
    let (p, q) = (parameter(&START, DType::F64), parameter(&START, DType::F64));
    let plain = Lars::from_parameters(vec![p.clone()]).lr(0.1).weight_decay(0.01);
    let mut plain = plain.group(vec![p.clone()], |g| g.skip_trust_ratio());
    let mut sgd = Sgd::from_parameters(vec![q.clone()]).lr(0.1).momentum(0.9).weight_decay(0.01);
    for g in &GRADIENTS {
        step_with(&mut plain, &p, g);
        step_with(&mut sgd, &q, g);
    }
    assert_close(&values(&p), &values(&q), 1e-12);
}

#[test]
fn a_tiny_regression_converges() {
    let init = Init::new(&cpu()).seed(3).dtype(DType::F32);
    let x = init.normal((64, 3), 0.0, 1.0).unwrap().detach();
    let truth = Tensor::from_vec(vec![1.0f32, -2.0, 0.5], (3, 1), &cpu()).unwrap();
    let y = x.matmul(&truth).unwrap().add_scalar(0.25).unwrap();
    type Build = fn(&Linear) -> Box<dyn Optimizer>;
    let optimizers: [Build; 4] = [
        |m| Box::new(Sgd::new(m).lr(0.1)),
        |m| Box::new(Sgd::new(m).lr(0.05).momentum(0.9).nesterov()),
        |m| Box::new(Adam::new(m).lr(0.05)),
        |m| Box::new(AdamW::new(m).lr(0.05).weight_decay(0.0).clip_norm(5.0)),
    ];
    for (k, build) in optimizers.iter().enumerate() {
        let model = Linear::new(3, 1, &init).unwrap();
        let mut optimizer = build(&model);
        let mut last = f64::NAN;
        for _ in 0..300 {
            let loss = model.forward(&x).unwrap().mse_loss(&y, Default::default()).unwrap();
            loss.backward().unwrap();
            optimizer.step().unwrap();
            last = loss.item::<f64>().unwrap();
        }
        assert!(last < 1e-5, "optimizer {k}: {last}");
        assert!((values(model.bias.as_ref().unwrap())[0] - 0.25).abs() < 1e-2);
    }
    assert_eq!(Linear::new(3, 1, &init).unwrap().num_parameters(), 4);
}

#[test]
fn a_parameter_listed_twice_is_an_error() {
    let (p, q) = (parameter(&START, DType::F32), parameter(&START, DType::F32));
    let list = || vec![p.clone(), q.clone(), p.clone()];
    for mut sgd in [
        Sgd::from_parameters(list()),
        Sgd::from_parameters(vec![]).group(list(), |g| g.lr(0.1)),
        Sgd::from_parameters(vec![p.clone()]).group(list(), |g| g.lr(0.1)),
    ] {
        set_grad(&p, &GRADIENTS[0]);
        let error = sgd.step().unwrap_err();
        assert_eq!(error.kind(), Kind::Value, "{error}");
        assert!(error.message().contains("twice"), "{error}");
        assert_eq!(sgd.state_dict().unwrap_err().kind(), Kind::Value);
        assert_eq!(values(&p), START);
    }
    // A parameter that moves to another group is not listed twice, nor is a tied one.
    let mut moved = Sgd::from_parameters(vec![p.clone(), q.clone()]).lr(0.0).group(vec![p.clone()], |g| g.lr(0.0));
    moved.step().unwrap();
}

/// The losses before steps of four iterations each, and the parameters after them.
fn lbfgs(mut optimizer: Lbfgs, a: &Tensor, b: &Tensor, steps: usize) -> Vec<[f64; 4]> {
    let loss = || {
        let (first, second) = (b.narrow(0, 0, 1)?, b.narrow(0, 1, 1)?);
        let terms = [
            a.rsub_scalar(1.0)?.square()?,
            first.sub(&a.square()?)?.square()?.mul_scalar(5.0)?,
            second.sub(&first)?.square()?.mul_scalar(2.0)?,
        ];
        let loss = terms[0].add(&terms[1])?.add(&terms[2])?.sum(..)?;
        loss.backward()?;
        Ok(loss)
    };
    let mut all = Vec::new();
    for _ in 0..steps {
        // The state goes through a state dictionary.
        let state = optimizer.state_dict().unwrap();
        optimizer.load_state_dict(&state).unwrap();
        let before = optimizer.step(loss).unwrap();
        all.push([before, values(a)[0], values(b)[0], values(b)[1]]);
    }
    assert!(a.grad().is_none() && b.grad().is_none());
    all
}

/// Numbers from PyTorch.
#[test]
fn lbfgs_takes_the_steps_of_pytorch() {
    let start = || (parameter(&[-1.2], DType::F64), parameter(&[1.0, 0.5], DType::F64));
    let of = |(a, b): &(Tensor, Tensor)| Lbfgs::from_parameters(vec![a.clone(), b.clone()]).limits(4, None).history(3);
    let fixed = [
        [6.308000000000001, -0.781345825905399, 0.7395510042191527, 0.6785969156395029],
        [3.2638928845340343, 0.27570305832954667, -0.2907920242631687, 0.40596144534390655],
        [2.168263462551166, 0.5006018927511513, 0.1748820914139061, 0.228147675987241],
        [0.28374063041084874, 0.7251474840279375, 0.4782742430703773, 0.3562946156091646],
    ];
    let searched = [
        [6.308000000000001, -0.6483444801767984, 0.48011342684952574, 0.7931268210728468],
        [2.9308522935524643, 0.07704836758686909, -0.1970669520239489, 0.233884404338084],
        [1.4293297669651688, 0.5117929862299206, 0.19914872407630324, 0.05397470057208878],
        [0.3002058193171157, 0.9410769772393937, 0.8955189511743501, 0.8166677825786481],
    ];
    let p = start();
    assert_close(&lbfgs(of(&p).lr(0.5), &p.0, &p.1, 4).concat(), &fixed.concat(), 1e-9);
    let p = start();
    let found = lbfgs(of(&p).line_search(LineSearch::StrongWolfe), &p.0, &p.1, 4);
    assert_close(&found.concat(), &searched.concat(), 1e-9);
}

#[test]
fn lbfgs_names_what_is_wrong() {
    let p = parameter(&START, DType::F64);
    let plain = || Lbfgs::from_parameters(vec![p.clone()]);
    let loss = || p.square()?.sum(..);
    let wrong = [
        (plain().lr(-1.0), "lr"),
        (plain().tolerances(f64::NAN, 0.0), "tolerance_grad"),
        (plain().history(0), "history"),
        (Lbfgs::from_parameters(vec![]), "no parameters"),
        (Lbfgs::from_parameters(vec![p.square().unwrap()]), "no leaf"),
        (Lbfgs::from_parameters(vec![p.clone(), parameter(&START, DType::F32)]), "f64"),
    ];
    for (mut optimizer, name) in wrong {
        let error = optimizer.step(loss).unwrap_err().to_string();
        assert!(error.contains("lbfgs") && error.contains(name), "{error}");
    }
    let mut state = plain().state_dict().unwrap();
    state.insert("d".into(), p.detach().narrow(0, 0, 1).unwrap());
    let mut optimizer = plain();
    assert!(optimizer.load_state_dict(&state).is_err());
}
