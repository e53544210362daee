//! `isograd export`: a trained model in the format of ONNX.

use crate::run::{Dataset, Weights};
use crate::{check_writable, parse, print, text, train};
use anyhow::{Context, Result, bail};
use clap::Args;
use isograd::nn::Module;
use isograd::onnx::{self, Input, Model};
use isograd::train::SavedRun;
use isograd::{DType, Device, Tensor};
use std::path::PathBuf;
use std::process::ExitCode;

/// The options of `isograd export`.
#[derive(Args, Debug)]
pub struct Export {
    /// The folder of a run of `isograd train`, or of a GPT-2 that Hugging Face's transformers saved
    pub run: PathBuf,
    /// The file to write, such as model.onnx
    pub file: PathBuf,
    /// The folder or the file with the samples, if the run had one
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    weights: Weights,
    /// The number of samples that the exported model takes at once [default: any]
    #[arg(long, value_name = "SAMPLES", value_parser = parse::count)]
    pub batch: Option<usize>,
    /// The number of tokens that an exported language model takes [default: its context]
    #[arg(long, value_parser = parse::count)]
    pub tokens: Option<usize>,
}

/// Writes the model of a run.
pub fn run(options: Export) -> Result<ExitCode> {
    check_writable(&options.file)?;
    let device = Device::cpu()?;
    let model = match SavedRun::load(&options.run, &device) {
        Ok(saved) if saved.config::<Dataset>()?.dataset != text::NAME => of_samples(&options, &saved, &device)?,
        Ok(_) => of_text(&options, &device)?,
        // Networks of other programs are language models.
        Err(_) if text::is_pretrained(&options.run) => of_text(&options, &device)?,
        Err(error) => return Err(error).with_context(|| format!("cannot export {}", options.run.display())),
    };
    model.save(&options.file)?;
    let (inputs, outputs) = (model.inputs().join(", "), model.outputs().join(", "));
    let nodes = model.operators().len();
    print(&format!("{}: {inputs} to {outputs}, {nodes} nodes", options.file.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn of_text(options: &Export, device: &Device) -> Result<Model> {
    if options.data.is_some() {
        bail!("--data is not for language models");
    }
    let (model, context) = text::load(&options.run, device, options.weights)?;
    let length = options.tokens.unwrap_or(context);
    let tokens = Tensor::zeros((options.batch.unwrap_or(1), length), DType::I64, device)?;
    export(&*model, &[("tokens", &tokens)], options, |x| model.forward(&x[0]))
}

fn of_samples(options: &Export, saved: &SavedRun, device: &Device) -> Result<Model> {
    if options.tokens.is_some() {
        bail!("--tokens is for language models");
    }
    let (start, split) = train::restored(saved, &options.run, options.data.as_deref(), options.weights, device)?;
    let batch = options.batch.unwrap_or(1);
    let dims: Vec<usize> = [batch].into_iter().chain(split.shape).collect();
    let dtype = start.init.parameter_dtype();
    let Some(table) = split.table else {
        let x = Tensor::zeros(dims, dtype, device)?;
        return export(&*start.model, &[("x", &x)], options, |x| {
            start.model.predict(&train::Input { x: x[0].clone(), categories: None, around: None })
        });
    };
    // The numbers of a table have their own units, inside and outside.
    let scale = |(means, deviations): (Vec<f32>, Vec<f32>)| -> isograd::Result<[Tensor; 2]> {
        let tensor = |values: Vec<f32>| Tensor::from_slice(&values, values.len(), device);
        Ok([tensor(means)?, tensor(deviations)?])
    };
    let ([means, deviations], units) = (scale(table.encoding.input_scale())?, table.encoding.target_scale());
    let units = if units.0.is_empty() { None } else { Some(scale(units)?) };
    let x = Tensor::zeros(dims, DType::F32, device)?;
    let count = table.encoding.categories().len();
    let categories = Tensor::zeros((batch, count), DType::I64, device)?;
    let inputs = [("x", &x), ("categories", &categories)];
    export(&*start.model, &inputs[..if count > 0 { 2 } else { 1 }], options, |inputs| {
        let x = inputs[0].sub(&means)?.div(&deviations)?;
        let input = train::Input { x, categories: inputs.get(1).cloned(), around: None }.cast(dtype)?;
        let outputs = start.model.predict(&input)?.cast(DType::F32)?;
        match &units {
            Some([means, deviations]) => outputs.mul(deviations)?.add(means),
            None => Ok(outputs),
        }
    })
}

fn export<M: Module + ?Sized>(
    model: &M,
    inputs: &[(&str, &Tensor)],
    options: &Export,
    f: impl Fn(&[Tensor]) -> isograd::Result<Tensor>,
) -> Result<Model> {
    model.eval();
    let batch = if options.batch.is_some() { onnx::Batch::Fixed } else { onnx::Batch::Any };
    let all = inputs.iter().fold(onnx::Export::new(model), |all, (name, x)| all.input(Input::new(name, x)));
    Ok(all.batch(batch).run(|x| Ok(vec![f(x)?]))?)
}
