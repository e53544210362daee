//! Loss scaling, in f16 and bf16.

use crate::common::{cpu, parameter, set_grad, values};
use isograd_core::{DType, Kind, Tensor};
use isograd_nn::{AdamW, Forward, GradScaler, Init, Linear, Module, Optimizer, Relu, Sequential, Sgd};

fn scaler(scale: f64) -> GradScaler {
    GradScaler::new(&cpu()).unwrap().init_scale(scale).unwrap()
}

fn current(scaler: &GradScaler) -> f64 {
    scaler.current().item::<f64>().unwrap()
}

fn tracker(scaler: &GradScaler) -> f64 {
    scaler.state_dict().unwrap()["growth_tracker"].item::<f64>().unwrap()
}

/// One step whose unscaled gradient is given.
fn step(scaler: &mut GradScaler, optimizer: &mut dyn Optimizer, gradient: f64) {
    let p = optimizer.parameters()[0].clone();
    set_grad(&p, &[gradient * current(scaler)]);
    scaler.step(optimizer).unwrap();
    scaler.update().unwrap();
}

#[test]
fn it_starts_as_in_pytorch() {
    let scaler = GradScaler::new(&cpu()).unwrap();
    assert_eq!((current(&scaler), tracker(&scaler)), (65536.0, 0.0));
    let loss = Tensor::scalar(0.5f32, &cpu()).unwrap();
    assert_eq!(scaler.scale(&loss).unwrap().item::<f64>().unwrap(), 32768.0);
    let narrow = loss.cast(DType::F16).unwrap();
    assert_eq!(scaler.scale(&narrow.mul_scalar(4.0).unwrap()).unwrap().item::<f64>().unwrap(), 131072.0);
}

#[test]
fn the_scale_grows_and_backs_off() {
    let p = parameter(&[1.0], DType::F32);
    let mut sgd = Sgd::from_parameters(vec![p.clone()]).lr(0.125);
    let mut scaler = scaler(8.0).growth_interval(2).unwrap();
    step(&mut scaler, &mut sgd, 1.0);
    assert_eq!((current(&scaler), tracker(&scaler), values(&p)[0]), (8.0, 1.0, 0.875));
    step(&mut scaler, &mut sgd, 1.0);
    assert_eq!((current(&scaler), tracker(&scaler), values(&p)[0]), (16.0, 0.0, 0.75));
    step(&mut scaler, &mut sgd, 1.0);
    step(&mut scaler, &mut sgd, f64::INFINITY);
    assert_eq!((current(&scaler), tracker(&scaler), values(&p)[0]), (8.0, 0.0, 0.625));
    step(&mut scaler, &mut sgd, f64::NAN);
    assert_eq!((current(&scaler), tracker(&scaler), values(&p)[0]), (4.0, 0.0, 0.625));
    // Without a step there is nothing to judge by.
    scaler.update().unwrap();
    assert_eq!((current(&scaler), tracker(&scaler)), (4.0, 0.0));
}

#[test]
fn a_scale_that_would_overflow_stays() {
    let mut sgd = Sgd::from_parameters(vec![parameter(&[1.0], DType::F32)]).lr(0.0);
    let mut scaler = scaler(2f64.powi(127)).growth_interval(1).unwrap();
    step(&mut scaler, &mut sgd, 0.0);
    assert_eq!((current(&scaler), tracker(&scaler)), (2f64.powi(127), 0.0));
}

#[test]
fn a_scale_never_falls_to_0() {
    let p = parameter(&[1.0], DType::F32);
    let mut sgd = Sgd::from_parameters(vec![p.clone()]).lr(0.125);
    let mut scaler = scaler(65536.0);
    for _ in 0..200 {
        step(&mut scaler, &mut sgd, f64::INFINITY);
    }
    assert_eq!((current(&scaler), values(&p)[0]), (2f64.powi(-24), 1.0));
    step(&mut scaler, &mut sgd, 1.0);
    assert_eq!(values(&p)[0], 0.875);
    let mut state = scaler.state_dict().unwrap();
    for scale in [0.0f32, 1e-40, f32::NAN] {
        state.insert("scale".into(), Tensor::scalar(scale, &cpu()).unwrap());
        assert_eq!(scaler.load_state_dict(&state).unwrap_err().kind(), Kind::Attr);
    }
}

#[test]
fn unscale_once_a_step() {
    let p = parameter(&[1.0], DType::F32);
    let mut sgd = Sgd::from_parameters(vec![p.clone()]).lr(0.125);
    let mut scaler = scaler(8.0);
    set_grad(&p, &[8.0]);
    scaler.unscale_(&sgd).unwrap();
    assert_eq!(values(&p.grad().unwrap()), [1.0]);
    let error = scaler.unscale_(&sgd).unwrap_err();
    assert_eq!((error.op(), error.kind()), ("unscale_", Kind::Value));
    scaler.step(&mut sgd).unwrap();
    assert_eq!(values(&p), [0.875]);
    assert_eq!(scaler.step(&mut sgd).unwrap_err().kind(), Kind::Value);
    assert_eq!(scaler.unscale_(&sgd).unwrap_err().kind(), Kind::Value);
    scaler.update().unwrap();
    // An infinity that unscaling saw counts, whatever became of the gradient since.
    set_grad(&p, &[f64::INFINITY]);
    scaler.unscale_(&sgd).unwrap();
    set_grad(&p, &[1.0]);
    scaler.step(&mut sgd).unwrap();
    scaler.update().unwrap();
    assert_eq!((values(&p)[0], current(&scaler)), (0.875, 4.0));
}

#[test]
fn two_optimizers_share_a_scale() {
    let (p, q) = (parameter(&[1.0], DType::F32), parameter(&[1.0], DType::F32));
    let mut first = Sgd::from_parameters(vec![p.clone()]).lr(0.125);
    let mut second = Sgd::from_parameters(vec![q.clone()]).lr(0.125);
    let mut scaler = scaler(8.0);
    set_grad(&p, &[f64::INFINITY]);
    set_grad(&q, &[8.0]);
    scaler.unscale_(&first).unwrap();
    scaler.step(&mut first).unwrap();
    scaler.step(&mut second).unwrap();
    scaler.update().unwrap();
    assert_eq!((values(&p), values(&q), current(&scaler)), (vec![1.0], vec![0.875], 4.0));
}

#[test]
fn an_overflow_of_f16_is_survived() {
    // The gradient 2 times 65536 is infinite in f16: the first steps are left out, until the scale fits.
    let p = parameter(&[1.0], DType::F16);
    let mut adam = AdamW::from_parameters(vec![p.clone()]).lr(0.125);
    let mut scaler = GradScaler::new(&cpu()).unwrap();
    let mut skipped = 0;
    for _ in 0..6 {
        let before = values(&p);
        let loss = p.mul_scalar(2.0).unwrap().cast(DType::F32).unwrap().sum(..).unwrap();
        scaler.scale(&loss).unwrap().backward().unwrap();
        scaler.step(&mut adam).unwrap();
        scaler.update().unwrap();
        skipped += (values(&p) == before) as u32;
    }
    // 131072 and 65536 overflow, as does every value from 65520 on.
    assert_eq!((skipped, current(&scaler)), (2, 16384.0));
    assert_eq!(adam.state_dict().unwrap()["0.step"].item::<f64>().unwrap(), 4.0);
    assert!(values(&p)[0] < 0.6);
}

#[test]
fn a_clipped_step_judges_by_the_norm() {
    let p = parameter(&[1.0, 2.0], DType::F32);
    let mut sgd = Sgd::from_parameters(vec![p.clone()]).lr(1.0).clip_norm(1.0);
    let mut scaler = scaler(8.0);
    set_grad(&p, &[24.0, -32.0]);
    scaler.step(&mut sgd).unwrap();
    scaler.update().unwrap();
    // The norm without the scale is 5.
    assert_eq!(sgd.grad_norm().unwrap().item::<f64>().unwrap(), 5.0);
    let after = values(&p);
    assert!((after[0] - 0.4).abs() < 1e-6 && (after[1] - 2.8).abs() < 1e-6, "{after:?}");
    for bad in [f64::INFINITY, f64::NAN] {
        let scale = current(&scaler);
        set_grad(&p, &[1.0, bad]);
        scaler.step(&mut sgd).unwrap();
        scaler.update().unwrap();
        assert_eq!((values(&p), current(&scaler)), (after.clone(), scale / 2.0));
    }
}

#[test]
fn models_of_16_bits_learn() {
    for dtype in [DType::F16, DType::BF16] {
        let init = Init::new(&cpu()).seed(5).dtype(dtype);
        let model = Sequential::new()
            .push(Linear::new(2, 16, &init).unwrap())
            .push(Relu)
            .push(Linear::new(16, 2, &init).unwrap());
        assert!(model.parameters().iter().all(|p| p.dtype() == dtype));
        let x = init.normal((64, 2), 0.0, 1.0).unwrap().detach();
        let side = x.narrow(1, 0, 1).unwrap().gt(&x.narrow(1, 1, 1).unwrap()).unwrap();
        let target = side.reshape(64).unwrap().cast(DType::I64).unwrap();
        let mut optimizer = AdamW::new(&model).lr(0.02).clip_norm(1.0);
        let mut scaler = GradScaler::new(&cpu()).unwrap();
        let mut losses = Vec::new();
        for _ in 0..100 {
            let logits = model.forward(&x).unwrap().cast(DType::F32).unwrap();
            let loss = logits.cross_entropy(&target).unwrap();
            scaler.scale(&loss).unwrap().backward().unwrap();
            scaler.step(&mut optimizer).unwrap();
            scaler.update().unwrap();
            losses.push(loss.item::<f64>().unwrap());
        }
        assert!(losses[99] < 0.2 && losses[99] < losses[0] / 3.0, "{dtype}: {} to {}", losses[0], losses[99]);
    }
}

#[test]
fn states() {
    let mut sgd = Sgd::from_parameters(vec![parameter(&[1.0], DType::F32)]);
    let mut first = scaler(8.0);
    step(&mut first, &mut sgd, 1.0);
    let mut second = GradScaler::new(&cpu()).unwrap();
    second.load_state_dict(&first.state_dict().unwrap()).unwrap();
    assert_eq!((current(&second), tracker(&second)), (8.0, 1.0));
    let mut state = first.state_dict().unwrap();
    state.remove("scale");
    state.insert("growth_tracker".into(), Tensor::scalar(7i32, &cpu()).unwrap());
    let error = second.load_state_dict(&state).unwrap_err();
    assert!(error.message().contains("scale is missing"), "{error}");
    assert_eq!(tracker(&second), 1.0);
}

#[test]
fn factors_and_interval_are_part_of_the_state() {
    let first = scaler(8.0).factors(4.0, 0.25).unwrap().growth_interval(1).unwrap();
    let state = first.state_dict().unwrap();
    let numbers = ["growth_factor", "backoff_factor", "growth_interval"].map(|name| state[name].item::<f64>().unwrap());
    assert_eq!(numbers, [4.0, 0.25, 1.0]);
    // A state without them, as files had it, leaves them as they are.
    let mut old = state.clone();
    old.retain(|name, _| name == "scale" || name == "growth_tracker");
    for (state, grown, lowered) in [(&state, 32.0, 8.0), (&old, 8.0, 4.0)] {
        let mut sgd = Sgd::from_parameters(vec![parameter(&[1.0], DType::F32)]);
        let mut second = GradScaler::new(&cpu()).unwrap();
        second.load_state_dict(state).unwrap();
        step(&mut second, &mut sgd, 1.0);
        assert_eq!(current(&second), grown);
        step(&mut second, &mut sgd, f64::INFINITY);
        assert_eq!(current(&second), lowered);
    }
    // What is out of range changes nothing.
    for (name, wrong) in [("growth_factor", 1.0), ("backoff_factor", 1.5), ("growth_interval", 0.0)] {
        let mut state = state.clone();
        let dtype = state[name].dtype();
        state.insert(name.into(), Tensor::scalar(wrong, &cpu()).unwrap().cast(dtype).unwrap());
        let mut second = GradScaler::new(&cpu()).unwrap();
        assert_eq!(second.load_state_dict(&state).unwrap_err().kind(), Kind::Attr, "{name}");
        assert_eq!(current(&second), 65536.0);
    }
}

#[test]
fn options_out_of_range() {
    let new = || GradScaler::new(&cpu()).unwrap();
    for result in [
        new().init_scale(0.0),
        new().init_scale(1e-40),
        new().init_scale(f64::INFINITY),
        new().growth_interval(0),
        new().factors(1.0, 0.5),
        new().factors(2.0, 1.0),
        new().factors(2.0, f64::NAN),
    ] {
        assert_eq!(result.map(drop).unwrap_err().kind(), Kind::Attr);
    }
    assert!(new().factors(4.0, 0.25).is_ok());
}
