//! A trained network as a file of ONNX, with the scaling of its input before it and a softmax after it, for programs such as onnxruntime.
//! `cargo run --example onnx_export -- --out digits.onnx`.

mod print;

use clap::Parser;
use isograd::data::{Dataset, Loader, digits};
use isograd::onnx::{Export, Input};
use isograd::prelude::*;
use print::print;
use std::path::{Path, PathBuf};

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
    /// The file
    #[arg(long, default_value = "digits.onnx")]
    out: PathBuf,
}

fn network(init: &Init) -> Result<Sequential> {
    let same = Conv { padding: Padding::Same, ..Conv::default() };
    Ok(Sequential::new()
        .push(Conv2d::with_options(1, 8, [3, 3], &same, init)?)
        .push(BatchNorm2d::new(8, init)?)
        .push(Relu)
        .push(MaxPool2d::new([2, 2]))
        .push(Flatten::default())
        .push(Linear::new(8 * 4 * 4, 10, init)?))
}

/// The accuracy, and the nodes of the file.
pub fn train(device: &Device, out: &Path, epochs: u64) -> Result<(f64, Vec<String>)> {
    let (train, test) = digits()?.with_sample_shape([1, 8, 8])?.split_every(5)?;
    let model = network(&Init::new(device).seed(42))?;
    let mut optimizer = AdamW::new(&model).lr(1e-2);
    let loader = Loader::new(train, 64)?.shuffle(42).to(device);
    for batch in (0..epochs).flat_map(|epoch| loader.epoch(epoch)) {
        let (x, y): (Tensor, Tensor) = batch?;
        model.forward(&x)?.cross_entropy(&y)?.backward()?;
        optimizer.step()?;
    }
    // Running statistics in place of a batch's own, here and in the file.
    model.eval();
    let (x, y): (Tensor, Tensor) = test.to_batch(device)?;
    let accuracy = no_grad(|| model.forward(&x)?.argmax(1)?.eq(&y)?.cast(DType::F32)?.mean(..)?.item())?;

    // Users of the file have pixels from 0 to 16, as bytes.
    let pixels = x.i((..1,))?.mul_scalar(16.0)?.cast(DType::U8)?;
    let exported =
        Export::new(&model).input(Input::new("pixels", &pixels)).outputs(&["probabilities"]).run(|inputs| {
            let x = inputs[0].cast(DType::F32)?.div_scalar(16.0)?;
            Ok(vec![model.forward(&x)?.softmax(1)?])
        })?;
    exported.save(out)?;
    Ok((accuracy, exported.operators().into_iter().map(String::from).collect()))
}

fn main() -> Result<()> {
    let Options { device, out } = Options::parse();
    let device = device.map_or_else(Device::best, |name| name.parse())?;
    let (accuracy, nodes) = train(&device, &out, 4)?;
    print(&format!("{device}: accuracy {accuracy:.3}; {} has the nodes {}", out.display(), nodes.join(", ")));
    Ok(())
}
