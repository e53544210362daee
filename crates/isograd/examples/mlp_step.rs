//! Times one training step of the MLP 784-256-10 (batch 128, f32, Adam), and prints a line of JSON. `benches/mlp.sh`
//! compares it with PyTorch.

use isograd::prelude::*;
use std::time::Instant;

fn main() -> Result<()> {
    let device = Device::cpu()?;
    let init = Init::new(&device).seed(0);
    let model = Sequential::new().push(Linear::new(784, 256, &init)?).push(Relu).push(Linear::new(256, 10, &init)?);
    let mut optimizer = Adam::new(&model).lr(1e-3);
    let x = Tensor::rand((128, 784), 0.0, 1.0, DType::F32, &device, init.rng())?;
    let y = Tensor::rand(128, 0.0, 10.0, DType::F32, &device, init.rng())?.cast(DType::I64)?;
    let mut times = Vec::new();
    for _ in 0..350 {
        let started = Instant::now();
        model.forward(&x)?.cross_entropy(&y)?.backward()?;
        optimizer.step()?;
        times.push(started.elapsed().as_secs_f64());
    }
    // The first steps warm caches and threads up.
    let mut times = times.split_off(50);
    times.sort_by(f64::total_cmp);
    println!(r#"{{"framework": "isograd", "step_ms": {}}}"#, 1e3 * times[times.len() / 2]);
    Ok(())
}
