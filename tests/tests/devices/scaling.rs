//! Loss scaling with optimizers that have parameters in common, on every device.

use isograd::nn::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Asgd, GradScaler, Lamb, Lars, Lion, Muon, Nadam, Optimizer,
    Radam, RmsProp, Rprop, Sgd, clip_grad_norm,
};
use isograd::{DType, Device, Kind, Result, Tensor};
use isograd_tests::harness::{self, Outcome};
use libtest_mimic::Trial;

const SCALE: f32 = 65536.0;

pub fn trials(device: &Device) -> Vec<Trial> {
    let check = |aspect, run| harness::check(device, "grad_scaler", aspect, run);
    vec![
        check("a_parameter_of_two_optimizers_is_unscaled_once", overlapping),
        check("an_infinity_beside_a_shared_parameter_is_seen", infinity),
        check("an_optimizer_of_some_of_them_steps_with_what_is_unscaled", subset),
        check("optimizers_of_the_same_parameters_share_what_is_known", equal),
        check("the_order_of_parameters_does_not_matter", reordered),
        check("a_gradient_that_comes_after_unscaling_is_scaled", late),
        check("optimizers_that_share_a_parameter_step_one_after_the_other", after_each_other),
        check("a_gradient_that_f16_does_not_hold_is_kept_by_unscaling", tiny),
        check("a_step_is_the_same_with_gradients_that_were_unscaled_before", unscaled_before),
        check("a_scale_never_falls_to_0", floor),
    ]
}

struct Setup {
    a: Tensor,
    b: Tensor,
    scaler: GradScaler,
}

impl Setup {
    /// Two parameters, 0 and 0, whose scaled gradients are those of 1 and `slope`.
    fn new(device: &Device, slope: f32) -> Result<Setup> {
        let zero = || Tensor::zeros(1, DType::F32, device)?.require_grad();
        let setup = Setup { a: zero()?, b: zero()?, scaler: GradScaler::new(device)? };
        set_grad(&setup.a, SCALE)?;
        set_grad(&setup.b, SCALE * slope)?;
        Ok(setup)
    }

    /// Compares both parameters.
    fn expect(&self, a: f32, b: f32) -> Result<Outcome> {
        let got = [self.a.to_vec::<f32>()?[0], self.b.to_vec::<f32>()?[0]];
        Ok(if got == [a, b] { Ok(()) } else { Err(format!("a and b are {got:?}, expected {a} and {b}")) })
    }
}

fn set_grad(parameter: &Tensor, value: f32) -> Result<()> {
    parameter.set_grad(Some(Tensor::from_slice(&[value], 1, parameter.device())?))
}

/// Steps by the gradient itself.
fn sgd(parameters: &[&Tensor]) -> Sgd {
    Sgd::from_parameters(parameters.iter().map(|&p| p.clone()).collect()).lr(1.0)
}

fn is_refused(result: Result<()>) -> Outcome {
    match result {
        Err(error) if error.kind() == Kind::Value => Ok(()),
        other => Err(format!("{other:?}, expected a Value error")),
    }
}

/// After 200 infinite steps, of which each halves the scale, a finite step goes as far as its gradient.
fn floor(device: &Device) -> Result<Outcome> {
    let mut s = Setup::new(device, 1.0)?;
    let mut optimizer = sgd(&[&s.a, &s.b]);
    let mut step = |s: &mut Setup, slope: f32| -> Result<f32> {
        let scale = s.scaler.scale(&Tensor::scalar(1f32, device)?)?.item::<f32>()?;
        set_grad(&s.a, scale * slope)?;
        set_grad(&s.b, scale)?;
        s.scaler.step(&mut optimizer)?;
        s.scaler.update()?;
        Ok(scale)
    };
    for _ in 0..200 {
        step(&mut s, f32::INFINITY)?;
    }
    let untouched = s.expect(0.0, 0.0)?;
    let scale = step(&mut s, 1.0)?;
    let is_floor = if scale == 2f32.powi(-24) { Ok(()) } else { Err(format!("the scale is {scale}, expected 2^-24")) };
    Ok(untouched.and(is_floor).and(s.expect(-1.0, -1.0)?))
}

fn overlapping(device: &Device) -> Result<Outcome> {
    let mut s = Setup::new(device, 1.0)?;
    let (first, mut second) = (sgd(&[&s.a]), sgd(&[&s.a, &s.b]));
    s.scaler.unscale_(&first)?;
    s.scaler.step(&mut second)?;
    let stepped = s.expect(-1.0, -1.0)?;
    // The same if the second is unscaled as well.
    let mut s = Setup::new(device, 1.0)?;
    let (first, mut second) = (sgd(&[&s.a]), sgd(&[&s.a, &s.b]));
    s.scaler.unscale_(&first)?;
    s.scaler.unscale_(&second)?;
    s.scaler.step(&mut second)?;
    Ok(stepped.and(s.expect(-1.0, -1.0)?))
}

fn infinity(device: &Device) -> Result<Outcome> {
    let mut s = Setup::new(device, f32::INFINITY)?;
    let (first, mut second) = (sgd(&[&s.a]), sgd(&[&s.a, &s.b]));
    s.scaler.unscale_(&first)?;
    s.scaler.step(&mut second)?;
    s.scaler.update()?;
    let scale = s.scaler.current().item::<f64>()?;
    let lowered = if scale == 32768.0 { Ok(()) } else { Err(format!("the scale is {scale}, expected 32768")) };
    Ok(s.expect(0.0, 0.0)?.and(lowered))
}

fn subset(device: &Device) -> Result<Outcome> {
    let mut s = Setup::new(device, 2.0)?;
    let (mut first, mut second) = (sgd(&[&s.b]), sgd(&[&s.a, &s.b]));
    s.scaler.unscale_(&second)?;
    s.scaler.step(&mut first)?;
    s.scaler.step(&mut second)?;
    s.expect(-1.0, -2.0)
}

fn equal(device: &Device) -> Result<Outcome> {
    let mut s = Setup::new(device, 2.0)?;
    let (first, mut second) = (sgd(&[&s.a, &s.b]), sgd(&[&s.a, &s.b]));
    s.scaler.unscale_(&first)?;
    let again = is_refused(s.scaler.unscale_(&second));
    s.scaler.step(&mut second)?;
    Ok(again.and(s.expect(-1.0, -2.0)?).and(is_refused(s.scaler.step(&mut second))))
}

fn reordered(device: &Device) -> Result<Outcome> {
    let mut s = Setup::new(device, 2.0)?;
    let (first, mut second) = (sgd(&[&s.a, &s.b]), sgd(&[&s.b, &s.a]));
    s.scaler.unscale_(&first)?;
    let again = is_refused(s.scaler.unscale_(&second));
    s.scaler.step(&mut second)?;
    Ok(again.and(s.expect(-1.0, -2.0)?).and(is_refused(s.scaler.step(&mut second))))
}

fn late(device: &Device) -> Result<Outcome> {
    let mut s = Setup::new(device, 2.0)?;
    let mut both = sgd(&[&s.a, &s.b]);
    s.b.set_grad(None)?;
    s.scaler.unscale_(&both)?;
    set_grad(&s.b, 3.0 * SCALE)?;
    s.scaler.step(&mut both)?;
    s.expect(-1.0, -3.0)
}

fn after_each_other(device: &Device) -> Result<Outcome> {
    let mut s = Setup::new(device, 2.0)?;
    let (mut first, mut second) = (sgd(&[&s.a]), sgd(&[&s.a, &s.b]));
    s.scaler.step(&mut first)?;
    s.scaler.step(&mut second)?;
    let stepped = s.expect(-1.0, -2.0)?;
    s.scaler.update()?;
    let steps = s.scaler.state_dict()?["growth_tracker"].item::<f64>()?;
    Ok(stepped.and(if steps == 1.0 { Ok(()) } else { Err(format!("{steps} steps were counted, expected 1")) }))
}

/// A parameter 0 in f16 whose true gradient, 2^-26, is below half of f16's smallest number. The scaled gradient is 2^-10.
fn tiny(device: &Device) -> Result<Outcome> {
    let p = Tensor::zeros(1, DType::F16, device)?.require_grad()?;
    p.set_grad(Some(Tensor::full(1, 2f64.powi(-10), DType::F16, device)?))?;
    let (mut scaler, mut sgd) = (GradScaler::new(device)?, Sgd::from_parameters(vec![p.clone()]).lr(2f64.powi(20)));
    scaler.unscale_(&sgd)?;
    let seen = p.grad().map(|g| g.item::<f64>()).transpose()?;
    let norm = clip_grad_norm(std::slice::from_ref(&p), 1.0, 2.0)?.item::<f64>()?;
    scaler.step(&mut sgd)?;
    let got = (seen, norm, p.item::<f64>()?, p.grad().is_some());
    let expected = (Some(2f64.powi(-26)), 2f64.powi(-26), -(2f64.powi(-6)), false);
    Ok(if got == expected { Ok(()) } else { Err(format!("gradient, norm, parameter: {got:?}, expected {expected:?}")) })
}

/// Every optimizer takes f32 gradients of f16 parameters.
fn unscaled_before(device: &Device) -> Result<Outcome> {
    type Make = fn(Vec<Tensor>) -> Box<dyn Optimizer>;
    macro_rules! makers {
        ($($name:ident)*) => {
            [$((stringify!($name), (|p| Box::new($name::from_parameters(p).lr(0.25).clip_norm(0.5))) as Make)),*]
        };
    }
    let all =
        makers!(Adadelta Adafactor Adagrad Adam AdamW Adamax Asgd Lamb Lars Lion Muon Nadam Radam RmsProp Rprop Sgd);
    for (name, make) in all {
        let mut found = Vec::new();
        for unscales in [false, true] {
            let values: Vec<f32> = (1..=6).map(|i| i as f32 / 8.0).collect();
            let p = Tensor::from_slice(&values, (2, 3), device)?.cast(DType::F16)?.detach().require_grad()?;
            let (mut scaler, mut optimizer) = (GradScaler::new(device)?.init_scale(1024.0)?, make(vec![p.clone()]));
            for step in 0..2 {
                p.set_grad(Some(p.detach().mul_scalar(if step == 0 { 1024.0 } else { 512.0 })?))?;
                if unscales {
                    scaler.unscale_(&*optimizer)?;
                }
                scaler.step(&mut *optimizer)?;
                scaler.update()?;
            }
            found.push((p.to_f64_vec()?, values));
        }
        let [(scaled, before), (unscaled, _)] = &found[..] else { unreachable!("there are two runs") };
        if scaled != unscaled || scaled.iter().zip(before).all(|(p, q)| *p == f64::from(*q)) {
            return Ok(Err(format!("{name}: {scaled:?} from scaled gradients, {unscaled:?} from unscaled ones")));
        }
    }
    Ok(Ok(()))
}
