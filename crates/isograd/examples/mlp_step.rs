//! Times a training step of the MLP 784-256-10 (batch 128, f32, Adam) on a device, by default the CPU, and prints a line
//! of JSON: `first_step_s` from opening the device to the first loss, compilation included, and `step_ms`, the median of
//! later ones. `benches/mlp.sh` compares it with PyTorch.

mod print;

use isograd::prelude::*;
use print::print;
use std::time::Instant;

fn main() -> Result<()> {
    let name = std::env::args().nth(1).unwrap_or("cpu".into());
    let started = Instant::now();
    let device: Device = name.parse()?;
    let init = Init::new(&device).seed(0);
    let model = Sequential::new().push(Linear::new(784, 256, &init)?).push(Relu).push(Linear::new(256, 10, &init)?);
    let mut optimizer = Adam::new(&model).lr(1e-3);
    let x = Tensor::rand((128, 784), 0.0, 1.0, DType::F32, &device, init.rng())?;
    let y = Tensor::rand(128, 0.0, 10.0, DType::F32, &device, init.rng())?.cast(DType::I64)?;
    let mut step = || -> Result<Tensor> {
        let loss = model.forward(&x)?.cross_entropy(&y)?;
        loss.backward()?;
        optimizer.step()?;
        Ok(loss)
    };
    step()?.item()?;
    let first = started.elapsed().as_secs_f64();
    let mut times = Vec::new();
    for _ in 0..350 {
        let started = Instant::now();
        step()?;
        device.synchronize()?;
        times.push(started.elapsed().as_secs_f64());
    }
    // These warm caches and threads up.
    let mut times = times.split_off(50);
    times.sort_by(f64::total_cmp);
    let step_ms = 1e3 * times[times.len() / 2];
    print(&format!(r#"{{"framework": "isograd", "device": "{name}", "first_step_s": {first}, "step_ms": {step_ms}}}"#));
    Ok(())
}
