//! A network that solves a differential equation: a spring with friction, `u'' + 2 d u' + w^2 u = 0`, from `u(0) = 1` and `u'(0) = 0`. The
//! loss is how far the network's own derivatives are from the equation, so that it has second derivatives in it. Raissi et al. 2019.
//! `cargo run --example physics -- --device opencl:0`.

mod options;
mod print;

use isograd::prelude::*;
use isograd::tape::{BackwardOptions, grad_with};
use print::print;

/// d and w.
const FRICTION: f64 = 0.5;
const RATE: f64 = 2.0;
/// The time until which the spring is followed, and the times at which the equation is tested.
const END: f64 = 3.0;
const TIMES: usize = 32;

/// The position of the spring: `e^(-d t) (cos v t + d / v sin v t)`, where `v^2 = w^2 - d^2`.
fn exact(t: f64) -> f64 {
    let v = (RATE * RATE - FRICTION * FRICTION).sqrt();
    (-FRICTION * t).exp() * ((v * t).cos() + FRICTION / v * (v * t).sin())
}

/// The derivative of each `u[i]` with respect to `t[i]`, which has derivatives itself.
fn derivative(u: &Tensor, t: &Tensor) -> Result<Tensor> {
    let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
    Ok(grad_with(&u.sum(..)?, &[t], &options)?.remove(0))
}

/// The mean square by which the network violates the equation, and the start.
fn loss(network: &Sequential, t: &Tensor) -> Result<Tensor> {
    let u = network.forward(t)?;
    let speed = derivative(&u, t)?;
    let force = derivative(&speed, t)?;
    let equation = (force + &speed * (2.0 * FRICTION) + &u * (RATE * RATE)).square()?.mean(..)?;
    let start = u.i((0,))?.sub_scalar(1.0)?.square()?.add(&speed.i((0,))?.square()?)?.sum(..)?;
    equation.add(&start.mul_scalar(5.0)?)
}

/// The largest error of the solution at any time.
pub fn train(device: &Device, iterations: usize) -> Result<f64> {
    let init = Init::new(device).seed(42);
    let network = Sequential::new()
        .push(Linear::new(1, 32, &init)?)
        .push(Tanh)
        .push(Linear::new(32, 32, &init)?)
        .push(Tanh)
        .push(Linear::new(32, 1, &init)?);
    let times = Tensor::linspace(0.0, END, TIMES, DType::F32, device)?.reshape((TIMES, 1))?;
    let mut optimizer = Lbfgs::new(&network).limits(iterations, None).line_search(LineSearch::StrongWolfe);
    optimizer.step(|| {
        let loss = loss(&network, &times.require_grad()?)?;
        loss.backward()?;
        Ok(loss)
    })?;
    let found = no_grad(|| network.forward(&times))?.to_f64_vec()?;
    let errors = found.iter().zip(times.to_f64_vec()?).map(|(u, t)| (u - exact(t)).abs());
    Ok(errors.fold(0.0, f64::max))
}

fn main() -> Result<()> {
    let device = options::device()?;
    print(&format!("{device}: the solution is wrong by at most {:.4}", train(&device, 200)?));
    Ok(())
}
