//! Times one training step of the MLP 784-256-10 (batch 128, f32, Adam) in candle, and prints a line of JSON.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{AdamW, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, loss, seq};
use std::time::Instant;

fn main() -> Result<()> {
    let device = Device::Cpu;
    let variables = VarMap::new();
    let builder = VarBuilder::from_varmap(&variables, DType::F32, &device);
    let hidden = linear(784, 256, builder.pp("hidden"))?;
    let model = seq().add(hidden).add_fn(|x| x.relu()).add(linear(256, 10, builder.pp("output"))?);
    // Without weight decay, AdamW is Adam.
    let options = ParamsAdamW { lr: 1e-3, weight_decay: 0.0, ..Default::default() };
    let mut optimizer = AdamW::new(variables.all_vars(), options)?;
    let x = Tensor::rand(0f32, 1f32, (128, 784), &device)?;
    let y = Tensor::from_vec((0..128u32).map(|i| i * 7 % 10).collect::<Vec<_>>(), 128, &device)?;
    let mut times = Vec::new();
    for _ in 0..200 {
        let started = Instant::now();
        optimizer.backward_step(&loss::cross_entropy(&model.forward(&x)?, &y)?)?;
        times.push(started.elapsed().as_secs_f64());
    }
    // The first steps warm caches and threads up.
    let mut times = times.split_off(50);
    times.sort_by(f64::total_cmp);
    println!(r#"{{"framework": "candle", "step_ms": {}}}"#, 1e3 * times[times.len() / 2]);
    Ok(())
}
