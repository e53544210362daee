//! Times a training step in f32 with Adam: `training_step NETWORK [DEVICE]`, where the network is `mlp` (784-256-10, batch 128), `cnn`
//! (two convolutions with 32 and 64 channels, batch 64), `resnet18` (for 32 x 32 pixels, batch 8), `mobilenet` (the second version, for 96 x 96 pixels,
//! batch 8), `gpt` (four layers of width 128, 12 x 64 tokens), `lstm` or `gru` (64 steps, batch 32, width 256, gradients without an optimizer), `gcn` (two
//! layers, 10,000 nodes, 160,000 edges), `table` (8 categories of 1000 values, batch 1024). Prints a line of JSON:
//! `first_step_s` from opening the device to the first loss, compilation included, and `step_ms`, the median of later ones.
//! `benches/cpu.py` compares it with PyTorch. A third argument is a file for a trace of a step, whose table goes to stderr; both have
//! the lines of a program that is built with `--config profile.release.debug=\"line-tables-only\"`.

mod print;

use isograd::models::{
    Gpt2, Gpt2Options, MobileNetV2, MobileNetV2Options, ResNet, ResNetOptions, Stem, Tabular, TabularOptions,
};
use isograd::nn::{GcnConv, GcnOptions, Graph, Gru, Lstm};
use isograd::ops::{Conv, Padding};
use isograd::prelude::*;
use print::print;
use std::io::Write;
use std::time::Instant;

/// A step that returns its loss, and the number of steps that are timed.
type Case = (Box<dyn FnMut() -> Result<Tensor>>, usize);

/// Random integers below n.
fn indices(n: usize, shape: &[usize], init: &Init) -> Result<Tensor> {
    Tensor::rand(shape, 0.0, n as f64, DType::F32, init.device(), init.rng())?.cast(DType::I64)
}

fn uniform(shape: &[usize], init: &Init) -> Result<Tensor> {
    Tensor::rand(shape, 0.0, 1.0, DType::F32, init.device(), init.rng())
}

/// Adam's steps for the classes of a model's outputs `[rows, 10]`.
fn classes<M: Module + 'static>(
    model: M,
    rows: usize,
    steps: usize,
    init: &Init,
    output: impl Fn(&M) -> Result<Tensor> + 'static,
) -> Result<Case> {
    let y = indices(10, &[rows], init)?;
    let mut optimizer = Adam::new(&model).lr(1e-3);
    let step = move || {
        let loss = output(&model)?.cross_entropy(&y)?;
        loss.backward()?;
        optimizer.step()?;
        Ok(loss)
    };
    Ok((Box::new(step), steps))
}

/// [`classes`] of random inputs.
fn classifier(model: impl Layer + 'static, shape: &[usize], steps: usize, init: &Init) -> Result<Case> {
    let x = uniform(shape, init)?;
    classes(model, shape[0], steps, init, move |model| model.forward(&x))
}

fn mlp(init: &Init) -> Result<Case> {
    let network = Sequential::new().push(Linear::new(784, 256, init)?).push(Relu).push(Linear::new(256, 10, init)?);
    classifier(network, &[128, 784], 300, init)
}

fn cnn(init: &Init) -> Result<Case> {
    let padded = Conv { padding: Padding::Each([1; 2]), ..Conv::default() };
    let network = Sequential::new()
        .push(Conv2d::with_options(1, 32, [3, 3], &padded, init)?)
        .push(Relu)
        .push(MaxPool2d::new([2, 2]))
        .push(Conv2d::with_options(32, 64, [3, 3], &padded, init)?)
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

fn mobilenet(init: &Init) -> Result<Case> {
    let options = MobileNetV2Options { classes: 10, dropout: 0.0, ..MobileNetV2Options::default() };
    classifier(MobileNetV2::new(&options, init)?, &[8, 3, 96, 96], 10, init)
}

/// Two layers with weights of edges.
fn gcn(init: &Init) -> Result<Case> {
    let (nodes, edges) = (10_000, 160_000);
    let options = GcnOptions { add_self_loops: false, normalize: false, ..GcnOptions::default() };
    let layers = [GcnConv::with_options(128, 128, &options, init)?, GcnConv::with_options(128, 10, &options, init)?];
    let graph = Graph::from_edges(&indices(nodes, &[edges], init)?, &indices(nodes, &[edges], init)?, nodes)?;
    let (x, weight) = (uniform(&[nodes, 128], init)?, uniform(&[edges], init)?);
    classes(layers.to_vec(), nodes, 20, init, move |layers| {
        let x = layers[0].forward(&x, &graph, Some(&weight))?.relu()?;
        layers[1].forward(&x, &graph, Some(&weight))
    })
}

fn table(init: &Init) -> Result<Case> {
    let options = TabularOptions { numbers: 8, categories: vec![1000; 8], hidden: vec![256, 128], outputs: 10 };
    let (numbers, categories) = (uniform(&[1024, 8], init)?, indices(1000, &[1024, 8], init)?);
    let forward = move |model: &Tabular| model.forward(&numbers, &categories);
    classes(Tabular::new(&options, init)?, 1024, 100, init, forward)
}

fn gpt(init: &Init) -> Result<Case> {
    let options = Gpt2Options { vocab: 65, context: 64, layers: 4, heads: 4, width: 128, dropout: 0.0 };
    let model = Gpt2::new(&options, init)?;
    let mut optimizer = AdamW::new(&model).lr(1e-3);
    let tokens = indices(65, &[12, 65], init)?;
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
    let x = uniform(&[64, 32, 256], init)?.require_grad()?;
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
        "mobilenet" => mobilenet(init),
        "gpt" => gpt(init),
        "lstm" => recurrent(Lstm::new(256, 256, init)?, init),
        "gru" => recurrent(Gru::new(256, 256, init)?, init),
        "gcn" => gcn(init),
        "table" => table(init),
        _ => {
            let expected = "mlp, cnn, resnet18, mobilenet, gpt, lstm, gru, gcn or table";
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
