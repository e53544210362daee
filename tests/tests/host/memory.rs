//! Memory: what a training step holds before, during and after, and what a tape gives back.

use isograd::nn::{Optimizer, Sgd};
use isograd::ops::loss::Reduction;
use isograd::{DType, Device, Result, Rng, Tensor, checkpoint};
use isograd_tests::{cpu, harness::private};

/// Samples, inputs, hidden units and outputs: activations are larger than parameters.
const B: usize = 256;
const I: usize = 8;
const H: usize = 256;
const O: usize = 4;
/// Elements of inputs and targets, of all parameters, and of one activation of the hidden layer.
const DATA: usize = B * I + B * O;
const PARAMETERS: usize = H * I + H + O * H + O;
const HIDDEN: usize = B * H;
const F32: usize = 4;

/// A device whose memory is this test's alone.
fn device() -> Device {
    private(&cpu())
}

struct Mlp {
    x: Tensor,
    target: Tensor,
    parameters: [Tensor; 4],
    optimizer: Sgd,
}

impl Mlp {
    fn new(device: &Device) -> Result<Mlp> {
        let rng = Rng::new(1);
        let normal = |shape: [usize; 2]| Tensor::randn(shape, 0.0, 0.1, DType::F32, device, &rng);
        let zeros = |n: usize| Tensor::zeros(n, DType::F32, device)?.require_grad();
        let parameters = [normal([H, I])?.require_grad()?, zeros(H)?, normal([O, H])?.require_grad()?, zeros(O)?];
        let optimizer = Sgd::from_parameters(parameters.to_vec()).lr(0.01).momentum(0.9);
        Ok(Mlp { x: normal([B, I])?, target: normal([B, O])?, parameters, optimizer })
    }

    fn backward(&self) -> Result<()> {
        let [w1, b1, w2, b2] = &self.parameters;
        let y = self.x.linear(w1, Some(b1))?.relu()?.linear(w2, Some(b2))?;
        y.mse_loss(&self.target, Reduction::Mean)?.backward()
    }

    fn step(&mut self) -> Result<()> {
        self.backward()?;
        self.optimizer.step()
    }
}

#[test]
fn a_training_step_holds_what_it_must() -> Result<()> {
    let device = device();
    let mut mlp = Mlp::new(&device)?;
    assert_eq!(device.memory().in_use, F32 * (DATA + PARAMETERS), "data and parameters");
    mlp.backward()?;
    assert_eq!(device.memory().in_use, F32 * (DATA + 2 * PARAMETERS), "with gradients");
    mlp.optimizer.step()?;
    // The step forgets the gradients. The optimizer has one state a parameter, and five numbers of its own: the rate,
    // the steps, what the gradients are multiplied by, 1, 0.
    let held = DATA + 2 * PARAMETERS + 5;
    assert_eq!(device.memory().in_use, F32 * held, "with the optimizer's state");

    device.backend().reset_peak();
    mlp.step()?;
    assert_eq!(device.memory().in_use, F32 * held, "after another step");
    // Saved for backward are relu's output, which is the second layer's input too, and the result. Beside them live
    // at once, in relu's backward: the gradients of its output and of its input. The result's loss and gradient are
    // the other temporaries, with some numbers. Were relu's input kept, the peak would be higher by another HIDDEN,
    // which is more than what does not live at the same time.
    let saved = HIDDEN + B * O;
    let temporaries = 2 * HIDDEN + 2 * B * O + 16;
    let peak = device.memory().peak;
    let most = F32 * (held + PARAMETERS + saved + temporaries);
    assert!(peak <= most, "the peak is {peak}, expected at most {most}");
    assert!(peak > most - F32 * HIDDEN, "the peak is {peak}, but {most} is what lives at once");
    Ok(())
}

#[test]
fn a_thousand_steps_hold_no_more_than_ten() -> Result<()> {
    let device = device();
    let mut mlp = Mlp::new(&device)?;
    let mut after = Vec::new();
    for steps in [10, 990] {
        (0..steps).try_for_each(|_| mlp.step())?;
        after.push((device.memory().in_use, device.memory().peak));
    }
    assert_eq!(after[0], after[1]);
    Ok(())
}

#[test]
fn a_dropped_tape_gives_everything_back() -> Result<()> {
    const NODES: usize = 100_000;
    let device = device();
    let x = Tensor::ones(16, DType::F32, &device)?.require_grad()?;
    let before = device.memory().in_use;
    let mut y = x.clone();
    for _ in 0..NODES {
        y = y.mul(&x)?;
    }
    // Each product is saved as the next one's factor.
    assert_eq!(device.memory().in_use, before + NODES * 16 * F32);
    drop(y);
    assert_eq!(device.memory().in_use, before);
    Ok(())
}

#[test]
fn a_backward_pass_gives_the_tape_back() -> Result<()> {
    let device = device();
    let x = Tensor::ones(16, DType::F32, &device)?.require_grad()?;
    let before = device.memory().in_use;
    let mut y = x.clone();
    for _ in 0..1000 {
        y = y.mul(&x)?;
    }
    let loss = y.sum(..)?;
    drop(y);
    loss.backward()?;
    // The loss and the gradient.
    assert_eq!(device.memory().in_use, before + F32 + 16 * F32);
    Ok(())
}

/// Eight blocks of eight functions that each save their result.
fn blocks(device: &Device, is_checkpointed: bool) -> Result<(usize, Vec<f32>)> {
    let x = Tensor::full(10_000, 0.5, DType::F32, device)?.require_grad()?;
    let block = |x: &[Tensor]| (0..8).try_fold(x[0].clone(), |y, _| y.tanh());
    device.backend().reset_peak();
    let mut y = x.clone();
    for _ in 0..8 {
        y = if is_checkpointed { checkpoint(block, &[&y])? } else { block(&[y])? };
    }
    let loss = y.sum(..)?;
    drop(y);
    loss.backward()?;
    Ok((device.memory().peak, x.grad().expect("a leaf").to_vec()?))
}

/// In units of one tensor: without checkpoints all 64 results are held. With them the 8 blocks' inputs are (x among
/// them), the 8 results of one block, and at most two gradients and the last result.
#[test]
fn checkpoints_lower_the_peak() -> Result<()> {
    let unit = 10_000 * F32;
    let device = device();
    let (plain, expected) = blocks(&device, false)?;
    let (checkpointed, gradient) = blocks(&device, true)?;
    assert!(plain >= 65 * unit, "{plain}");
    assert!(checkpointed <= (8 + 8 + 3) * unit + 100, "{} units", checkpointed as f64 / unit as f64);
    assert_eq!(gradient, expected);
    Ok(())
}
