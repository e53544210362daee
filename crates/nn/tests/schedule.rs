//! Schedules against values of PyTorch's formulas.

use isograd_core::{DType, Device, Kind, Result, Tensor};
use isograd_cpu as _;
use isograd_nn::schedule::{
    Chain, Constant, Cosine, MultiStep, OneCycle, Polynomial, ReduceOnPlateau, Schedule, Step, WarmRestarts, WarmUp,
};
use isograd_nn::{Optimizer, Sgd};

fn rates(schedule: &dyn Schedule, steps: &[u64]) -> Vec<f64> {
    steps.iter().map(|&s| schedule.lr(s).unwrap()).collect()
}

fn assert_rates(schedule: &dyn Schedule, expected: &[(u64, f64)]) {
    for &(step, rate) in expected {
        let got = schedule.lr(step).unwrap();
        assert!((got - rate).abs() <= 1e-12 * rate.abs().max(1e-12), "step {step}: {got}, expected {rate}");
    }
}

#[test]
fn constant_and_step() {
    assert_eq!(rates(&Constant(0.1), &[0, 7, u64::MAX]), [0.1; 3]);
    let step = Step { lr: 1.0, every: 3, gamma: 0.5 };
    assert_eq!(rates(&step, &[0, 2, 3, 5, 6, 9]), [1.0, 1.0, 0.5, 0.5, 0.25, 0.125]);
    assert_eq!(Step { lr: 1.0, every: 0, gamma: 0.5 }.lr(2).unwrap(), 0.25);
}

#[test]
fn cosine() {
    let cosine = Cosine { lr: 1.0, min: 0.2, steps: 10 };
    let half_root = 0.5f64.sqrt();
    assert_rates(&cosine, &[(0, 1.0), (5, 0.6), (10, 0.2), (11, 0.2), (u64::MAX, 0.2)]);
    let quarters = Cosine { lr: 2.0, min: 0.0, steps: 4 };
    assert_rates(&quarters, &[(1, 1.0 + half_root), (2, 1.0), (3, 1.0 - half_root)]);
    assert_eq!(Cosine { lr: 1.0, min: 0.5, steps: 0 }.lr(0).unwrap(), 0.5);
}

#[test]
fn warm_up_goes_before_any_schedule() {
    let schedule = Step { lr: 1.0, every: 2, gamma: 0.1 }.after_warm_up(4);
    assert_rates(&schedule, &[(0, 0.25), (1, 0.5), (2, 0.75), (3, 1.0), (4, 1.0), (5, 1.0), (6, 0.1)]);
    let boxed: Box<dyn Schedule> = Box::new(Constant(2.0));
    assert_eq!(rates(&WarmUp { steps: 0, then: boxed }, &[0, 1]), [2.0, 2.0]);
}

#[test]
fn one_cycle() {
    // torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=10): the rise ends at step 2.
    let cycle = OneCycle::new(1.0, 10);
    let down = |k: f64| 4e-6 + (1.0 - 4e-6) * (1.0 + (std::f64::consts::PI * k / 7.0).cos()) / 2.0;
    assert_rates(&cycle, &[(0, 0.04), (1, 0.52), (2, 1.0), (3, down(1.0)), (8, down(6.0)), (9, 4e-6), (20, 4e-6)]);
    let own = OneCycle { rise: 0.5, start_divisor: 10.0, end_divisor: 2.0, ..OneCycle::new(1.0, 6) };
    assert_rates(&own, &[(0, 0.1), (1, 0.55), (2, 1.0), (5, 0.05)]);
    for steps in 0..4 {
        let short = OneCycle::new(1.0, steps);
        assert!((0..5).all(|s| (0.0..=1.0).contains(&short.lr(s).unwrap())), "{steps} steps");
    }
}

#[test]
fn schedules_of_several_parts() {
    let multi = MultiStep { lr: 1.0, at: vec![2, 5, 5], gamma: 0.5 };
    assert_eq!(rates(&multi, &[0, 1, 2, 4, 5, 7]), [1.0, 1.0, 0.5, 0.5, 0.125, 0.125]);
    let square = Polynomial { lr: 1.0, min: 0.0, steps: 4, power: 2.0 };
    assert_rates(&square, &[(0, 1.0), (1, 0.5625), (2, 0.25), (3, 0.0625), (4, 0.0), (9, 0.0)]);
    let restarts = WarmRestarts { lr: 1.0, min: 0.2, steps: 2, factor: 2 };
    let known = [1.0, 0.6, 1.0, 0.882842712475, 0.6, 0.317157287525, 1.0, 0.969551813005, 0.882842712475];
    for (step, rate) in known.into_iter().enumerate() {
        assert!((restarts.lr(step as u64).unwrap() - rate).abs() < 1e-11, "{step}");
    }
    let equal = WarmRestarts { lr: 1.0, min: 0.0, steps: 3, factor: 1 };
    assert_rates(&equal, &[(0, 1.0), (1, 0.75), (2, 0.25), (3, 1.0), (30_000_001, 0.75)]);
    let chain = Chain::new(Constant(0.5)).then(2, |step: u64| 1.0 / (step + 1) as f64).then(2, Constant(0.125));
    assert_eq!(rates(&chain, &[0, 1, 2, 3, 4, 99]), [0.5, 0.5, 1.0, 0.5, 0.125, 0.125]);
    assert!((|_: u64| f64::NAN).lr(0).is_err());
}

#[test]
fn a_rate_falls_when_the_loss_does_not() {
    // torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=1, min_lr=0.2)
    let mut rate = ReduceOnPlateau { factor: 0.5, patience: 1, cooldown: 1, min: 0.2, ..ReduceOnPlateau::new(1.0) };
    let losses = [1.0, 0.9, 0.95, 0.9, 0.89999, 0.8, 0.8, 0.8, 0.8, 0.8, 0.7, 0.7, 0.7];
    let expected = [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25, 0.2];
    for (i, (loss, expected)) in losses.into_iter().zip(expected).enumerate() {
        assert_eq!(rate.observe(loss).unwrap(), expected, "observation {i}");
    }
    let saved = rate.state;
    let mut resumed = ReduceOnPlateau { state: saved, ..rate };
    assert_eq!(resumed.observe(f64::NAN).unwrap(), rate.observe(f64::NAN).unwrap());
    assert_eq!(resumed.state, rate.state);
}

#[test]
fn an_optimizer_follows_its_schedule() -> Result<()> {
    let rates = |step: u64| [0.5, 0.25, 0.125, 1.0, 1.0][step as usize];
    let make = || {
        let leaf = |v: f64| Tensor::full((), v, DType::F64, &Device::cpu()?)?.require_grad();
        let (p, q) = (leaf(1.0)?, leaf(2.0)?);
        let sgd = Sgd::from_parameters(vec![p.clone(), q.clone()]).lr(1.0).group(vec![q.clone()], |g| g.lr(0.1));
        Ok((p, q, sgd.scheduled(rates)?))
    };
    let step = |p: &Tensor, q: &Tensor, sgd: &mut dyn Optimizer| -> Result<f64> {
        let rate = sgd.learning_rate();
        p.add(q)?.backward()?;
        sgd.step()?;
        Ok(rate)
    };
    let (p, q, mut sgd) = make()?;
    assert_eq!([step(&p, &q, &mut sgd)?, step(&p, &q, &mut sgd)?], [0.5, 0.25]);
    // Both gradients are 1. The group's rate is a tenth.
    assert!((p.item::<f64>()? - 0.25).abs() < 1e-12 && (q.item::<f64>()? - 1.925).abs() < 1e-12, "{p} {q}");

    // A copy goes on with the rate of step 2.
    let (r, s, mut resumed) = make()?;
    resumed.load_state_dict(&sgd.state_dict()?)?;
    assert_eq!(resumed.steps(), 2);
    assert_eq!([step(&r, &s, &mut resumed)?, step(&r, &s, &mut resumed)?], [0.125, 1.0]);

    let plain = Sgd::from_parameters(vec![r]).state_dict()?;
    let error = resumed.load_state_dict(&plain).unwrap_err();
    assert_eq!(error.message(), "schedule.steps is missing: the state has no schedule");
    let error = Sgd::from_parameters(vec![p]).scheduled(|_: u64| -1.0).err().unwrap();
    assert_eq!(error.kind(), Kind::Attr);
    Ok(())
}

#[test]
fn a_captured_step_cannot_follow_a_schedule() -> Result<()> {
    let device = Device::cpu()?;
    let p = Tensor::ones((), DType::F64, &device)?.require_grad()?;
    let mut sgd = Sgd::from_parameters(vec![p.clone()]).scheduled(Constant(0.5))?;
    let mut step = device.capture(|x: Tensor| {
        p.mul(&x)?.backward()?;
        sgd.step()
    });
    let error = step.run(Tensor::ones((), DType::F64, &device)?).unwrap_err();
    assert!(error.message().contains("call `set_lr` between steps"), "{error}");
    Ok(())
}
