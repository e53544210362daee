//! A variational autoencoder with a critic: digits of 64 pixels as 8 normal numbers and back, and new digits from noise. The critic learns
//! to tell digits from what the decoder makes, which learns to deceive it. `cargo run --example vae -- --device opencl:0`.

mod options;
mod print;

use isograd::data::{Dataset, Loader, digits};
use isograd::prelude::*;
use print::print;

/// The numbers that stand for an image.
const CODE: usize = 8;

#[derive(Module)]
struct Vae {
    encoder: Sequential,
    decoder: Sequential,
}

impl Vae {
    /// The logits of images `[B, 64]` again, and the divergence of their codes from normal numbers. Kingma, Welling 2014, arXiv 1312.6114.
    fn forward(&self, x: &Tensor, rng: &Rng) -> Result<(Tensor, Tensor)> {
        let code = self.encoder.forward(x)?;
        let (mean, log_var) = (code.i((.., ..CODE))?, code.i((.., CODE..))?);
        let noise = Tensor::randn(mean.shape(), 0.0, 1.0, x.dtype(), x.device(), rng)?;
        let z = mean.add(&log_var.mul_scalar(0.5)?.exp()?.mul(&noise)?)?;
        let each = mean.square()?.add(&log_var.exp()?)?.sub(&log_var)?.sub_scalar(1.0)?;
        Ok((self.decoder.forward(&z)?, each.sum(1)?.mean(..)?.mul_scalar(0.5)?))
    }
}

fn mlp([input, hidden, output]: [usize; 3], init: &Init) -> Result<Sequential> {
    Ok(Sequential::new().push(Linear::new(input, hidden, init)?).push(Relu).push(Linear::new(hidden, output, init)?))
}

/// The mean square errors of images that were not learnt and of the mean image in their place, and a new image.
pub fn train(device: &Device, epochs: u64) -> Result<(f64, f64, Tensor)> {
    let init = Init::new(device).seed(42);
    let vae = Vae { encoder: mlp([64, 64, 2 * CODE], &init)?, decoder: mlp([CODE, 64, 64], &init)? };
    let critic = mlp([64, 32, 1], &init)?;
    let (mut of_vae, mut of_critic) = (AdamW::new(&vae).lr(3e-3), AdamW::new(&critic).lr(1e-3));
    let judged = |x: &Tensor, label: f64| {
        let logits = critic.forward(x)?;
        logits.bce_with_logits(&logits.full_like(label)?, None, None, Reduction::Mean)
    };
    let (train, test) = digits()?.split_every(5)?;
    let loader = Loader::new(train, 64)?.shuffle(42).to(device);
    for batch in (0..epochs).flat_map(|epoch| loader.epoch(epoch)) {
        let (x, _): (Tensor, Tensor) = batch?;
        let (logits, divergence) = vae.forward(&x, init.rng())?;
        let made = logits.sigmoid()?;
        judged(&x, 1.0)?.add(&judged(&made.detach(), 0.0)?)?.backward()?;
        of_critic.step()?;
        critic.freeze();
        let error = logits.bce_with_logits(&x, None, None, Reduction::Sum)?.div_scalar(x.dims()[0] as f64)?;
        error.add(&divergence)?.add(&judged(&made, 1.0)?)?.backward()?;
        of_vae.step()?;
        critic.unfreeze();
    }
    no_grad(|| {
        let (x, _): (Tensor, Tensor) = test.to_batch(device)?;
        let again = vae.forward(&x, init.rng())?.0.sigmoid()?;
        let mean = x.sub(&x.mean(0)?)?.square()?.mean(..)?;
        let noise = Tensor::randn((1, CODE), 0.0, 1.0, DType::F32, device, init.rng())?;
        let new = vae.decoder.forward(&noise)?.sigmoid()?.reshape((8, 8))?;
        Ok((again.mse_loss(&x, Reduction::Mean)?.item()?, mean.item()?, new))
    })
}

fn main() -> Result<()> {
    let device = options::device()?;
    let (error, mean, new) = train(&device, 30)?;
    print(&format!("{device}: mean square error {error:.4}, of the mean image {mean:.4}; a new digit:"));
    let shades: Vec<u8> = new.to_vec::<f32>()?.iter().map(|v| b" .:-=+*#%@"[(9.99 * v) as usize]).collect();
    shades.chunks(8).for_each(|row| print(&String::from_utf8_lossy(row)));
    Ok(())
}
