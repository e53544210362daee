//! Reinforcement learning: a policy that balances a pole on a cart, by the gradient of its own choices (REINFORCE, Williams 1992). A batch of
//! carts moves at once. `cargo run --example reinforce -- --device opencl:0`.

mod options;
mod print;

use isograd::prelude::*;
use print::print;

/// Carts that move at once, and steps that each may take.
const CARTS: usize = 16;
const STEPS: usize = 100;

/// Place and speed of a cart, angle and its speed of the pole. Barto, Sutton, Anderson 1983.
type Cart = [f32; 4];

/// The cart after 0.02 s, pushed to the left or to the right; `None` when the pole has fallen or the cart has left.
fn moved([x, v, angle, w]: Cart, to_right: bool) -> Option<Cart> {
    let (force, sin, cos) = (if to_right { 10.0 } else { -10.0 }, angle.sin(), angle.cos());
    let pushed = (force + 0.05 * w * w * sin) / 1.1;
    let turning = (9.8 * sin - cos * pushed) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1));
    let next = [x + 0.02 * v, v + 0.02 * (pushed - 0.05 * turning * cos / 1.1), angle + 0.02 * w, w + 0.02 * turning];
    (next[0].abs() < 2.4 && next[2].abs() < 0.21).then_some(next)
}

/// The observations and the actions of the carts, and the number of steps that each lasted afterwards.
fn play(policy: &Sequential, rng: &Rng, device: &Device) -> Result<(Vec<Cart>, Vec<i64>, Vec<f32>)> {
    let starts = Tensor::rand((CARTS, 4), -0.05, 0.05, DType::F32, device, rng)?.to_vec::<f32>()?;
    let mut carts: Vec<(usize, Cart)> = starts.as_chunks().0.iter().copied().enumerate().collect();
    let (mut states, mut actions, mut of, mut ends) = (Vec::new(), Vec::new(), Vec::new(), [STEPS; CARTS]);
    for step in 0..STEPS {
        let seen: Vec<Cart> = carts.iter().map(|(_, cart)| *cart).collect();
        let x = Tensor::from_slice(seen.as_flattened(), (seen.len(), 4), device)?;
        let done = no_grad(|| policy.forward(&x))?.sample_logits(&Sampling::default(), rng)?.to_vec::<i64>()?;
        of.extend(carts.iter().map(|(cart, _)| (*cart, step)));
        let next = carts.iter().zip(&done).map(|(&(cart, state), &action)| (cart, moved(state, action == 1)));
        let next: Vec<(usize, Option<Cart>)> = next.collect();
        next.iter().filter(|(_, state)| state.is_none()).for_each(|(cart, _)| ends[*cart] = step + 1);
        carts = next.into_iter().filter_map(|(cart, state)| Some((cart, state?))).collect();
        states.extend(seen);
        actions.extend(done);
        if carts.is_empty() {
            break;
        }
    }
    Ok((states, actions, of.into_iter().map(|(cart, step)| (ends[cart] - step) as f32).collect()))
}

/// The mean number of steps before the pole falls, in the first and in the last round.
pub fn train(device: &Device, rounds: usize) -> Result<(f64, f64)> {
    let (init, rng) = (Init::new(device).seed(42), Rng::new(7));
    let policy = Sequential::new().push(Linear::new(4, 32, &init)?).push(Tanh).push(Linear::new(32, 2, &init)?);
    let mut optimizer = Adam::new(&policy).lr(2e-2);
    let mut lengths = Vec::new();
    for _ in 0..rounds {
        let (states, actions, returns) = play(&policy, &rng, device)?;
        lengths.push(states.len() as f64 / CARTS as f64);
        let n = states.len();
        let returns = Tensor::from_vec(returns, (n, 1), device)?;
        let advantage = returns.sub(&returns.mean(..)?)?.div(&returns.var(.., 0.0)?.sqrt()?.add_scalar(1e-6)?)?;
        let log_p = policy.forward(&Tensor::from_slice(states.as_flattened(), (n, 4), device)?)?.log_softmax(1)?;
        let chosen = log_p.gather(1, &Tensor::from_vec(actions, (n, 1), device)?)?;
        chosen.mul(&advantage)?.mean(..)?.neg()?.backward()?;
        optimizer.step()?;
    }
    Ok((lengths[0], lengths[rounds - 1]))
}

fn main() -> Result<()> {
    let device = options::device()?;
    let (first, last) = train(&device, 50)?;
    print(&format!(
        "{device}: the pole stands for {first:.0} steps in the first round, for {last:.0} of {STEPS} in the last"
    ));
    Ok(())
}
