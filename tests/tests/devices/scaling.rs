//! Loss scaling with optimizers that have parameters in common, on every device.

use isograd::nn::{GradScaler, Sgd};
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
