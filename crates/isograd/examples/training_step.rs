//! Times a training step in f32 with Adam: `training_step NETWORK [DEVICE]`, where the network is `mlp` (784-256-10, batch 128), `cnn`
//! (two convolutions with 32 and 64 channels, batch 64), `resnet18` (for 32 x 32 pixels, batch 8), `gpt` (four layers of width 128, 12 x 64
//! tokens), `lstm` or `gru` (64 steps, batch 32, width 256, gradients without an optimizer). Prints a line of JSON:
//! `first_step_s` from opening the device to the first loss, compilation included, and `step_ms`, the median of later ones.
//! `benches/steps.sh` compares it with PyTorch. A third argument is a file for a trace of a step, whose table goes to stderr; both have
//! the lines of a program that is built with `--config profile.release.debug=\"line-tables-only\"`.

mod print;

use isograd::models::{Gpt2, Gpt2Options, ResNet, ResNetOptions, Stem};
use isograd::nn::{Gru, Lstm};
use isograd::ops::{Conv, Padding};
use isograd::prelude::*;
use print::print;
use std::io::Write;
use std::time::Instant;

/// A step that returns its loss, and the number of steps that are timed.
type Case = (Box<dyn FnMut() -> Result<Tensor>>, usize);

/// Adam's steps for the classes of random inputs.
fn classifier(model: impl Layer + 'static, shape: &[usize], steps: usize, init: &Init) -> Result<Case> {
    let x = Tensor::rand(shape, 0.0, 1.0, DType::F32, init.device(), init.rng())?;
    let y = Tensor::rand(shape[0], 0.0, 10.0, DType::F32, init.device(), init.rng())?.cast(DType::I64)?;
    let mut optimizer = Adam::new(&model).lr(1e-3);
    let step = move || {
        let loss = model.forward(&x)?.cross_entropy(&y)?;
        loss.backward()?;
        optimizer.step()?;
        Ok(loss)
    };
    Ok((Box::new(step), steps))
}

fn mlp(init: &Init) -> Result<Case> {
    let network = Sequential::new().push(Linear::new(784, 256, init)?).push(Relu).push(Linear::new(256, 10, init)?);
    classifier(network, &[128, 784], 300, init)
}

fn cnn(init: &Init) -> Result<Case> {
    let padded = Conv { padding: Padding::Each([1; 2]), ..Conv::default() };
    let network = Sequential::new()
        .push(Conv2d::new(1, 32, [3, 3], &padded, init)?)
        .push(Relu)
        .push(MaxPool2d::new([2, 2]))
        .push(Conv2d::new(32, 64, [3, 3], &padded, init)?)
        .push(Relu)
        .push(MaxPool2d::new([2, 2]))
        .push(Flatten::default())
        .push(Linear::new(64 * 49, 10, init)?);
    classifier(network, &[64, 1, 28, 28], 40, init)
}

fn resnet18(init: &Init) -> Result<Case> {
    let options = ResNetOptions { classes: 10, stem: Stem::Cifar, ..ResNetOptions::default() };
    classifier(ResNet::resnet18(&options, init)?, &[8, 3, 32, 32], 10, init)
}

fn gpt(init: &Init) -> Result<Case> {
    let options = Gpt2Options { vocab: 65, context: 64, layers: 4, heads: 4, width: 128, dropout: 0.0 };
    let model = Gpt2::new(&options, init)?;
    let mut optimizer = AdamW::new(&model).lr(1e-3);
    let tokens = Tensor::rand((12, 65), 0.0, 65.0, DType::F32, init.device(), init.rng())?.cast(DType::I64)?;
    let (x, y) = (tokens.narrow(1, 0, 64)?.contiguous()?, tokens.narrow(1, 1, 64)?.contiguous()?);
    let step = move || {
        let loss = model.forward(&x)?.flatten(0, 1)?.cross_entropy(&y.flatten(0, 1)?)?;
        loss.backward()?;
        optimizer.step()?;
        Ok(loss)
    };
    Ok((Box::new(step), 40))
}

/// The gradients of the mean of all results, for the input too.
fn recurrent(model: impl Layer + 'static, init: &Init) -> Result<Case> {
    let x = Tensor::rand((64, 32, 256), 0.0, 1.0, DType::F32, init.device(), init.rng())?.require_grad()?;
    let step = move || {
        let loss = model.forward(&x)?.mean(..)?;
        loss.backward()?;
        Ok(loss)
    };
    Ok((Box::new(step), 40))
}

fn case(network: &str, init: &Init) -> Result<Case> {
    match network {
        "mlp" => mlp(init),
        "cnn" => cnn(init),
        "resnet18" => resnet18(init),
        "gpt" => gpt(init),
        "lstm" => recurrent(Lstm::new(256, 256, init)?, init),
        "gru" => recurrent(Gru::new(256, 256, init)?, init),
        _ => {
            let expected = "mlp, cnn, resnet18, gpt, lstm or gru";
            Err(Error::attr("training_step", format!("the network is {network}, expected {expected}")))
        }
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let network = arguments.next().unwrap_or("mlp".into());
    let name = arguments.next().unwrap_or("cpu".into());
    let trace = arguments.next();
    let started = Instant::now();
    let device: Device = name.parse()?;
    let init = Init::new(&device).seed(0);
    let (mut step, steps) = case(&network, &init)?;
    step()?.item::<f64>()?;
    let first = started.elapsed().as_secs_f64();
    let warm_up = steps / 6 + 1;
    let mut times = Vec::new();
    for _ in 0..warm_up + steps {
        let started = Instant::now();
        step()?;
        device.synchronize()?;
        times.push(started.elapsed().as_secs_f64());
    }
    let mut times = times.split_off(warm_up);
    times.sort_by(f64::total_cmp);
    let step_ms = 1e3 * times[times.len() / 2];
    if let Some(trace) = trace {
        let (_, profile) = isograd::profile(&device, &mut step)?;
        // Nobody can be told where stderr takes nothing.
        let _ = writeln!(std::io::stderr(), "{profile}");
        isograd::replace_file(trace, &[profile.chrome_trace().as_bytes()])?;
    }
    print(&format!(
        r#"{{"framework": "isograd", "network": "{network}", "device": "{name}", "first_step_s": {first}, "step_ms": {step_ms}}}"#
    ));
    Ok(())
}
